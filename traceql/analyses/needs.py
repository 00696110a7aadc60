"""What a rule or a result may need of a trace, and what to say where it is not there.

A rule then abstains; a result table is empty, or a column of it null, and a query and an export say why. The reasons
may hold names from the trace: who prints them makes them visible.
"""

from collections.abc import Callable, Iterable, Mapping

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.device_peaks import device_peaks
from traceql.analyses.layering import Layering
from traceql.analyses.results import RESULTS
from traceql.analyses.step_windows import complete_steps
from traceql.analyses.summary import Selection
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
    if found.layers.height:
        return None
    return "no layers were found: " + "; ".join(found.notes) if found.notes else "no layers were found"


def _several_ranks(trace: Trace) -> str | None:
    ranks = trace.kernels.select(pl.col("rank").n_unique()).collect().item()
    return "only one rank is loaded" if ranks < 2 else None


def _steps(trace: Trace) -> str | None:
    return "no step was found" if Attribution.of(trace).steps.is_empty() else None


def _windows(trace: Trace) -> str | None:
    walls = Attribution.of(trace).steps["wall_ns"]
    if walls.is_empty():
        return "no step was found"
    return "no step has GPU activity of its own" if walls.null_count() == len(walls) else None


def _complete_steps(trace: Trace) -> str | None:
    return "no complete step was found" if timed_steps(Attribution.of(trace).steps).is_empty() else None


def timed_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """Of the `steps` table those that costs are counted over: complete, and with time in them."""
    return complete_steps(steps).filter(pl.col("wall_ns") > 0)


def _recorded(column: str, reason: str) -> Callable[[Trace], str | None]:
    """A column of `kernels` that some kernel has."""

    def need(trace: Trace) -> str | None:
        some = trace.kernels.select(pl.col(column).is_not_null().any()).collect().item()
        return None if some else reason

    return need


def _communication(trace: Trace) -> str | None:
    some = trace.kernels.filter(pl.col("group") == "nccl").head(1).collect()
    return "no communication kernel ran" if some.is_empty() else None


def _device(trace: Trace) -> str | None:
    peaks = device_peaks(trace)
    if peaks["spec"].null_count() < peaks.height:
        return None
    names = ", ".join(sorted(set(peaks["name"].drop_nulls())))
    return f"the peak figures of this device are not known: {names or 'it has no name in the trace'}"


NEEDS: Mapping[str, Callable[[Trace], str | None]] = {
    **{name: _of_table(name) for name in _TABLES},
    "shapes": _shapes,
    "stack": _of_table("python_calls"),
    "device": _device,
    "layers": _layers,
    "several-ranks": _several_ranks,
    "communication": _communication,
    "grids": _recorded("grid_x", "recorded without the launch grids of kernels"),
    "graph-nodes": _recorded("graph_node_id", "recorded without the CUDA graph of a kernel"),
    "marked-graph-nodes": _recorded("annotation", "no node of a CUDA graph was marked in its capture"),
    "steps": _steps,
    "windows": _windows,
    "complete-steps": _complete_steps,
}
"""By name: why a trace does not fulfil it; None where it does."""


_COLUMN_NEEDS: Mapping[str, str] = {
    **dict.fromkeys(("launch_id", "host_call", "launched_ns", "median_delay_ns", "mean_outstanding"), "launches"),
    **dict.fromkeys(("op_id", "op", "outer_op", "n_ops"), "ops"),
    **dict.fromkeys(("shape", "dtype"), "shapes"),
    "n_python_calls": "python_calls",
    **dict.fromkeys(
        ("layer", "layer_type", "model_pass", "block", "position", "n_layers", "method", "confidence"), "layers"
    ),
    **dict.fromkeys(("in_every_layer", "is_whole_pool", "whole_pool_confidence", "whole_pool_reason"), "layers"),
    **dict.fromkeys(("step", "section"), "steps"),
    **dict.fromkeys(
        (
            "ns_per_step", "n_per_step", "share", "median_wall_ns", "median_decode_wall_ns", "comm_kernel_ns_per_step",
        ),
        "complete-steps",
    ),
    **dict.fromkeys(
        (
            "start_ns", "wall_ns", "busy_ns", "idle_ns", "launch_ns", "sync_ns", "dependency_ns", "gpu_gap_ns",
            "unrecorded_ns", "host_idle_ns", "n_gaps", "is_host_bound", "comm_ns", "exposed_comm_ns", "unclassified_ns",
        ),
        "kernels",
    ),
    **dict.fromkeys(("peak_bytes_per_s", "spec", "source", "peak_frac", "floor_ns"), "device"),
    **dict.fromkeys(("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"), "grids"),
    **dict.fromkeys(("graph_id", "graph_node_id"), "graph-nodes"),
    "annotation": "marked-graph-nodes",
    **dict.fromkeys(
        (
            "collective_id", "match", "arrival_lag_ns", "last_rank", "waiting_ns", "transfer_ns", "transfer_median_ns",
            "alg_bandwidth_bytes_per_s", "bus_bandwidth_bytes_per_s", "waiting_ns_per_step", "transfer_ns_per_step",
            "waiting_p50_ns", "waiting_p90_ns", "waiting_p99_ns", "n_late", "lateness_ns", "n_late_host", "n_late_gpu",
            "late_because", "waits_for_rank", "comm_waiting_ns", "offset_ns", "spread_ns", "drift_ppm", "tail_share",
        ),
        "several-ranks",
    ),
}  # fmt: skip
"""What a column of that name needs, in whatever table; without it the column is null throughout."""

_NO_SIZE = "told neither by an operator nor by a launch grid"
_NO_MARK = "steps were found without annotations on the host"
_UNTOLD: Mapping[str, str] = {
    **dict.fromkeys(("batch_size", "batch_size_min", "batch_size_max"), "no step annotation tells the batch"),
    "annotation_ns": "steps were found without annotations",
    **dict.fromkeys(
        (
            "n_host_waits",
            "host_wait_ns",
            "n_pageable_copies",
            "pageable_copy_ns",
            "n_blocking_copies",
            "blocking_copy_ns",
            "n_ops",
            "n_python_calls",
        ),
        _NO_MARK,
    ),
    "median_decode_wall_ns": "no complete step is known to be of decode",
    "args": "recorded without the arguments of operators (record_shapes)",
    "external_id": "recorded without external ids",
    **dict.fromkeys(("op_id", "op", "outer_op", "shape"), "outside of any recorded operator, as CUDA graphs are"),
    **dict.fromkeys(("src_dtype", "dst_dtype", "dtype_evidence"), "told neither by an operator nor by a kernel's name"),
    **dict.fromkeys(("likely_src_dtype", "likely_src_confidence"), "concluded only of casts of a whole KV pool"),
    **dict.fromkeys(
        (
            "n_elements_min",
            "n_elements_max",
            "read_bytes_min",
            "read_bytes_max",
            "written_bytes_min",
            "written_bytes_max",
            "size_evidence",
            "evidence",
            "gb_per_s",
        ),
        _NO_SIZE,
    ),
    **dict.fromkeys(("bytes", "in_bytes", "out_bytes"), "no size is recorded"),
    **dict.fromkeys(("group", "group_size"), "recorded without the process groups of collectives"),
    **dict.fromkeys(
        ("in_every_layer", "is_whole_pool", "whole_pool_confidence", "whole_pool_reason"), "no cast runs in layers"
    ),
    "section": "nothing is launched between steps, or no layers were found",
    **dict.fromkeys(("device", "stream"), "no wait on the GPU is recorded (cuda_sync), only calls that wait"),
    **dict.fromkeys(("process_name", "thread_name"), "recorded without names of processes and threads"),
    **dict.fromkeys(("addr", "total_allocated_bytes", "total_reserved_bytes"), "allocations are recorded without it"),
    "name": "the trace names none",
    "parent_id": "none lies within another",
    **dict.fromkeys(("launch_id", "launched_ns", "host_call"), "no recorded call launched it"),
    **dict.fromkeys(("correlation", "launch_ns"), "the call that launched it is not recorded, or there is no window"),
    "wall_ns": "no step has GPU activity of its own to begin its window",
}
"""What to say of a column of that name that is null throughout and needs nothing else."""


DID_NOT_OCCUR = ("communication",)
"""Needs that a trace which holds everything may not fulfil: then there is nothing to judge, and it is judged."""


def unmet(trace: Trace, needs: Iterable[str]) -> str | None:
    """Why the trace does not fulfil the first of the needs that it does not fulfil; None where it fulfils all."""
    return next((reason for need in needs if (reason := NEEDS[need](trace)) is not None), None)


def why_empty(trace: Trace, table: str, selection: Selection | None = None) -> str:
    """Why a table of that name is empty for a trace: what was not recorded, else what did not occur.

    Args:
        trace: the trace or run.
        table: of the trace itself, or a result.
        selection: the steps that a result was made for.
    """
    if table not in RESULTS:
        return _TABLES[table][1] if table in _TABLES else "no event is recorded"
    result = RESULTS[table]
    where = ", in the steps selected" if selection not in (None, Selection()) else ""
    return unmet(trace, ("kernels", *result.needs, *result.empty_without)) or f"{result.nothing}{where}"


def why_columns_null(trace: Trace, columns: Iterable[str]) -> dict[str, list[str]]:
    """Columns of these names that are null in every row, by the reason; without those of which none is known."""
    known: dict[str, list[str]] = {}
    for column in columns:
        need = _COLUMN_NEEDS.get(column)
        reason = (unmet(trace, [need]) if need else None) or _UNTOLD.get(column)
        if reason:
            known.setdefault(reason, []).append(column)
    return known
