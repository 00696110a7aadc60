"""Records decode steps inside a server's model runner. Runs in the server's processes."""
# torch is the server's; without it nothing in this file has a type.
# pyright: basic, reportMissingImports=false

import contextlib
import logging
import os
from pathlib import Path

import torch

SWITCH = "SGLANG_PROFILE_DECODE"

_log = logging.getLogger("traceql.profile_decode")


def wraps(context):
    """What takes the place of each function, by role."""
    return {"forward": _ProfileDecode(context).forward}


class _ProfileDecode:
    def __init__(self, context):
        self._annotates = context.settings["annotates"]
        self._recorder = Recorder(context)
        self._is_on = os.environ.get(SWITCH, "").lower() in ("1", "true", "on", "yes")

    def forward(self, original):
        """One forward pass of a model; those of decode are counted and, after the warm-up, recorded."""

        def forward(self_, forward_batch, *args, **kwargs):
            if not self._is_on or self_.is_draft_worker:
                return original(self_, forward_batch, *args, **kwargs)
            is_decode = forward_batch.forward_mode.is_decode()
            if is_decode:
                self._recorder.before_step()
            with self._span(forward_batch):
                output = original(self_, forward_batch, *args, **kwargs)
            if is_decode:
                self._recorder.after_step(self_)
            return output

        return forward

    def _span(self, forward_batch):
        if not self._annotates or not torch.autograd._profiler_enabled():  # noqa: SLF001 - SGLang asks the same
            return contextlib.nullcontext()
        return torch.profiler.record_function(step_name(forward_batch))


def step_name(forward_batch):
    """The name of a step's annotation, as newer releases write it: `step[DECODE bs=8]`."""
    mode, n_tokens = forward_batch.forward_mode.name, getattr(forward_batch, "extend_num_tokens", None)
    tokens = f" toks={n_tokens}" if mode == "EXTEND" and n_tokens else ""
    return f"step[{mode} bs={forward_batch.batch_size}{tokens}]"


class Recorder:
    """Counts decode steps, starts and stops the profiler between them, and writes the files: once in a process."""

    def __init__(self, context):
        options = context.options
        self._context = context
        self._n_warmup, self._n_recorded = int(options["warmup-steps"]), int(options["steps"])
        self._shapes, self._stack = options["shapes"] == "on", options["stack"] == "on"
        self._n_seen = 0
        self._profiler = None

    def before_step(self):
        """Starts the profiler where the warm-up is over."""
        if self._n_seen == self._n_warmup:
            _wait_for_device()
            self._profiler = torch.profiler.profile(record_shapes=self._shapes, with_stack=self._stack)
            self._profiler.start()
        self._n_seen += 1

    def after_step(self, runner):
        """Stops the profiler after the last recorded step and writes what it has; a failure is reported, not raised."""
        if self._profiler is None or self._n_seen < self._n_warmup + self._n_recorded:
            return
        _wait_for_device()
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        try:
            files = self._write(profiler, runner)
        except Exception as error:
            self._context.report("failed", reason=f"{type(error).__name__}: {error}")
            _log.exception("profile-decode could not write its files")
        else:
            self._context.report("recorded", n_steps=self._n_recorded, files=[str(path) for path in files])
            _log.warning("profile-decode wrote %s", files[0])

    def _write(self, profiler, runner):
        """The trace, which appears whole or not at all, and the summary of operators."""
        stem = Path(self._context.folder) / f"decode-{os.getpid()}-TP-{_rank(runner)}-DECODE"
        trace, summary = Path(f"{stem}.trace.json.gz"), Path(f"{stem}.key_averages.txt")
        part = Path(f"{stem}.part.json.gz")
        profiler.export_chrome_trace(str(part))
        part.replace(trace)
        averages = profiler.key_averages(group_by_input_shape=self._shapes)
        order = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        summary.write_text(averages.table(sort_by=order, row_limit=-1), encoding="utf-8")
        return [trace, summary]


def _rank(runner):
    """The tensor-parallel rank; where the runner does not say, the rank among all processes of the job."""
    rank = getattr(runner, "tp_rank", None)
    if rank is None and torch.distributed.is_initialized():
        rank = torch.distributed.get_rank()
    return rank or 0


def _wait_for_device():
    if torch.cuda.is_available():
        torch.cuda.synchronize()
