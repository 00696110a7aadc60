"""What a rule may need of a trace; where it is not there, the rule abstains and says why."""

from collections.abc import Callable, Mapping

import polars as pl

from traceql import fmt
from traceql.analyses.attribution import Attribution
from traceql.analyses.device_peaks import device_peaks
from traceql.analyses.layering import Layering
from traceql.errors import MissingDataError
from traceql.trace import Trace

_TABLES: Mapping[str, tuple[Callable[[Trace], pl.LazyFrame], str]] = {
    "kernels": (lambda trace: trace.kernels, "no GPU activity is recorded"),
    "launches": (lambda trace: trace.launches, "no runtime or driver call is recorded"),
    "ops": (lambda trace: trace.ops, "no CPU operator is recorded"),
    "python_calls": (lambda trace: trace.python_calls, "no Python frame is recorded (with_stack)"),
    "spans": (lambda trace: trace.spans, "no annotation is recorded"),
    "syncs": (lambda trace: trace.syncs, "no wait for the GPU is recorded"),
    "memory": (lambda trace: trace.memory, "no allocation is recorded (profile_memory)"),
}


def _of_table(name: str) -> Callable[[Trace], str | None]:
    table, reason = _TABLES[name]
    return lambda trace: reason if table(trace).head(1).collect().is_empty() else None


def _shapes(trace: Trace) -> str | None:
    if trace.meta.record_shapes:
        return None
    recorded = pl.col("args").str.contains('"Input Dims"', literal=True)
    some = trace.ops.filter(recorded).head(1).collect()
    return "recorded without shapes (record_shapes)" if some.is_empty() else None


def _layers(trace: Trace) -> str | None:
    try:
        found = Layering.of(trace)
    except MissingDataError as error:
        return error.message
    return "no layers were found" if found.layers.is_empty() else None


def _several_ranks(trace: Trace) -> str | None:
    ranks = trace.kernels.select(pl.col("rank").n_unique()).collect().item()
    return "only one rank is loaded" if ranks < 2 else None


def _complete_steps(trace: Trace) -> str | None:
    return "no complete step was found" if complete_steps(Attribution.of(trace).steps).is_empty() else None


def complete_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """Of the `steps` table those that costs are counted over: complete, with a window of their own."""
    return steps.filter(pl.col("is_complete") & pl.col("separable") & (pl.col("wall_ns") > 0))


def _device(trace: Trace) -> str | None:
    peaks = device_peaks(trace)
    if peaks["spec"].null_count() < peaks.height:
        return None
    names = ", ".join(sorted({fmt.visible(name) for name in peaks["name"].drop_nulls()}))
    return f"the peak figures of this device are not known: {names or 'it has no name in the trace'}"


NEEDS: Mapping[str, Callable[[Trace], str | None]] = {
    **{name: _of_table(name) for name in _TABLES},
    "shapes": _shapes,
    "stack": _of_table("python_calls"),
    "device": _device,
    "layers": _layers,
    "several-ranks": _several_ranks,
    "complete-steps": _complete_steps,
}
"""By name: why a trace does not fulfil it; None where it does."""
