"""Spans around the decoder layers of a server's model. Runs in the server's processes."""
# torch is the server's; without it nothing in this file has a type.
# pyright: basic, reportMissingImports=false

import functools
import re

import torch

_LAYER = re.compile(r"(?P<list>(?:.*\.)?layers)\.(?P<number>\d+)")
"""The name of a decoder layer within its model."""


def wraps(context):
    """What takes the place of each function, by role."""

    def load(original):
        def load_model(self_, *args, **kwargs):
            loaded = original(self_, *args, **kwargs)
            if not self_.is_draft_worker:  # its layers have the numbers of the model's
                layers = decoder_layers(self_.model)
                annotate(layers)
                context.report("on", n_layers=len(layers))
            return loaded

        return load_model

    return {"load": load}


def decoder_layers(model):
    """The modules of the longest list `layers` of a model, by number: a vision tower's list is shorter."""
    lists = {}
    for name, module in model.named_modules():
        if found := _LAYER.fullmatch(name):
            lists.setdefault(found["list"], {})[int(found["number"])] = module
    return max(lists.values(), key=len, default={})


def annotate(layers):
    """Gives each layer's forward pass a span, which costs next to nothing while nothing is recorded."""
    for number, layer in layers.items():
        layer.forward = _spanned(layer.forward, f"layers.{number}")


def _spanned(forward, name):
    @functools.wraps(forward)
    def spanned(*args, **kwargs):
        # Not in compiled code, where a span would break the graph.
        if torch.compiler.is_compiling() or not torch.autograd._profiler_enabled():  # noqa: SLF001 - SGLang asks the same
            return forward(*args, **kwargs)
        with torch.profiler.record_function(name):
            return forward(*args, **kwargs)

    return spanned
