"""Layers from module calls: `nn.Module: SomeDecoderLayer_3` around the launch, as recorded with Python stacks."""

import polars as pl

from traceql.analyses.layer_calls import (
    LAYER_CALLS,
    LAYER_PARTS,
    block_of,
    latest_before,
    launched_activities,
    layer_labels,
    outermost,
    place,
)
from traceql.trace import Trace

_THREAD = ["rank", "thread_id"]
CONFIDENCE = 1.0
"""Modules are the truth about layers."""

LAYER_CLASSES = (r"DecoderLayer$", r"Layer$", r"Block$")
"""The classes of layers; the first that has calls around launches is taken."""
_NO_LAYER = (
    r"(?i:norm|embed\w*|linear|attention|attn|mlp|moe|experts?|ffn|feed_?forward|activation|dropout|conv\w*|pool\w*|"
    r"input|output|lora|quant\w*|rope|rotary|residual|base)(?:Layer|Block)$"
)
"""Parts of a layer, or of what is around the layers, that are called so too."""
_NO_PART = r"(?i:norm|dropout|identity|rotary|rope)"
"""Children of a layer that belong to the part that comes next."""


def by_modules(trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """The `PLACEMENT` table by the module calls around launches: the calls of layers, on the launching thread.

    Args:
        trace: the trace or run.
        activities: GPU activities with their step, as `Attribution` has them.

    Layers are numbered as they run within a pass, which is one call of the outermost module. The block is that of the
    outermost child of the layer that has one; norms and residual adds go to the child that comes next. A step is
    absent where layer calls are around less than half of its launches: without stacks, under CUDA graphs, or where a
    backward pass outweighs them. Confidence is 1; what no module tells is null, and not guessed with less.
    """
    launched, modules = launched_activities(trace, activities), module_calls(trace)
    calls = layer_calls(modules, launched)
    return place(launched, calls, layer_parts(modules, calls), CONFIDENCE)


def layer_classes(trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """One row per layer of each step: rank, step, model_pass, layer and its module class as `label`."""
    launched = launched_activities(trace, activities)
    return layer_labels(launched, layer_calls(module_calls(trace), launched))


def module_calls(trace: Trace) -> pl.DataFrame:
    """Every call of a module with its interval on the host, sorted by start."""
    return (
        trace.python_calls.filter(pl.col("module_class").is_not_null())
        .select("python_call_id", "rank", "thread_id", "start_ns", "dur_ns", "module_class", "module_instance")
        .with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
        .sort("start_ns", "python_call_id")
        .collect()
    )


def layer_calls(modules: pl.DataFrame, launched: pl.DataFrame) -> pl.DataFrame:
    """The `LAYER_CALLS` table of the first kind of layer class of which a call is around a launch.

    Args:
        modules: what `module_calls` gives.
        launched: rank, thread_id and call_ns of launches, sorted by call_ns.
    """
    name = pl.col("module_class")
    for position, pattern in enumerate(LAYER_CLASSES):
        is_layer = name.str.contains(pattern) & (pl.lit(position == 0) | ~name.str.contains(_NO_LAYER))
        calls = outermost(modules.filter(is_layer))
        if latest_before(launched, calls, "call_ns")["inside"].any():
            return _with_passes(calls, modules)
    return LAYER_CALLS.empty()


def layer_parts(modules: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The `LAYER_PARTS` table: the outermost modules in a layer whose class tells a block, and `other` modules.

    Args:
        modules: what `module_calls` gives.
        calls: the `LAYER_CALLS` table.
    """
    children = _children(modules, calls).with_columns(block=block_of("module_class"))
    told = outermost(children.filter(pl.col("block").is_not_null()))
    others = outermost(children).filter(pl.col("block").is_null() & ~pl.col("module_class").str.contains(_NO_PART))
    wrapped = latest_before(told.select(*_THREAD, at_ns="start_ns"), others, "at_ns").filter("inside")
    others = others.join(wrapped, on="python_call_id", how="anti").with_columns(block=pl.lit("other"))
    return LAYER_PARTS.check(pl.concat([told, others]).sort("start_ns", "end_ns").select(LAYER_PARTS.names))


def _children(modules: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The module calls within layer calls, at any depth."""
    rows = modules.with_columns(at_ns="start_ns", until_ns="end_ns").drop("start_ns", "end_ns")
    is_layer = (pl.col("at_ns") == pl.col("start_ns")) & (pl.col("module_class") == pl.col("label"))
    found = latest_before(rows, calls, "at_ns").filter(pl.col("inside") & ~is_layer)
    return found.select("python_call_id", *_THREAD, "module_class", start_ns="at_ns", end_ns="until_ns")


def _with_passes(calls: pl.DataFrame, modules: pl.DataFrame) -> pl.DataFrame:
    """Layer calls with their pass: the outermost module around them, else (it is a layer) until one comes again."""
    roots = outermost(modules).select(*_THREAD, "start_ns", "end_ns", root_id="python_call_id")
    found = latest_before(calls.rename({"start_ns": "at_ns", "end_ns": "until_ns"}), roots, "at_ns")
    alone = found.filter(pl.col("root_id") == pl.col("python_call_id")).sort(*_THREAD, "at_ns")
    alone = alone.select("python_call_id", alone_id=_first_of_run(alone))
    found = found.join(alone, on="python_call_id", how="left", validate="1:1").sort("at_ns", "python_call_id")
    pass_id = pl.coalesce("alone_id", "root_id")
    found = found.select(
        *_THREAD, start_ns="at_ns", end_ns="until_ns", pass_id=pass_id, label="module_class"
    )  # fmt: skip
    return LAYER_CALLS.check(found)


def _first_of_run(calls: pl.DataFrame) -> pl.Series:
    """For each layer call the first one of its pass, where a pass ends before an instance comes again."""
    firsts: list[int] = []
    seen: set[tuple[object, ...]] = set()
    thread: tuple[object, ...] = ()
    for call_id, *key in calls.select("python_call_id", *_THREAD, "module_class", "module_instance").iter_rows():
        if tuple(key) in seen or tuple(key[:2]) != thread:
            seen.clear()
            firsts.append(call_id)
            thread = tuple(key[:2])
        else:
            firsts.append(firsts[-1])
        seen.add(tuple(key))
    return pl.Series(firsts, dtype=pl.Int64)
