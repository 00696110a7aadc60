"""One function per question; each takes a loaded trace and returns a frame (or a `Summary` of frames).

The columns of every frame are described in `traceql.tables` and beside each function, and in docs/tables.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from traceql.trace import Trace

if TYPE_CHECKING:
    import polars as pl

    from traceql.analyses.attribution import Attribution
    from traceql.analyses.casts import CastReport, cast_groups, cast_report
    from traceql.analyses.clocks import clock_offsets
    from traceql.analyses.comm import collectives
    from traceql.analyses.comm_stats import rank_waits
    from traceql.analyses.concurrency import comm_overlap
    from traceql.analyses.critical_path import CriticalPath, critical_paths
    from traceql.analyses.diff import Diff
    from traceql.analyses.diff_sides import DiffOptions
    from traceql.analyses.idle import idle_gaps
    from traceql.analyses.layer_stats import LayerStats, layer_kernels, odd_layers
    from traceql.analyses.layering import Layering
    from traceql.analyses.pace import launch_stats, queue_depth, step_pace
    from traceql.analyses.rank_stats import RunSummary, summarize_run
    from traceql.analyses.recording import Recording
    from traceql.analyses.replay_costs import Changes, Scaling
    from traceql.analyses.step_facts import typical_steps
    from traceql.analyses.summary import Selection, Summary, summarize
    from traceql.analyses.whatif import WhatIf, what_if

__all__ = [
    "Attribution",
    "CastReport",
    "Changes",
    "CriticalPath",
    "Diff",
    "DiffOptions",
    "LayerStats",
    "Layering",
    "Recording",
    "RunSummary",
    "Scaling",
    "Selection",
    "Summary",
    "WhatIf",
    "cast_groups",
    "cast_report",
    "clock_offsets",
    "collectives",
    "comm_overlap",
    "critical_paths",
    "idle_gaps",
    "kernel_layers",
    "kernel_steps",
    "launch_stats",
    "layer_kernels",
    "layers",
    "odd_layers",
    "queue_depth",
    "rank_waits",
    "step_categories",
    "step_layer_categories",
    "step_pace",
    "steps",
    "summarize",
    "summarize_run",
    "typical_steps",
    "what_if",
]

_HOMES = {
    "Attribution": "attribution",
    "CastReport": "casts",
    "Changes": "replay_costs",
    "CriticalPath": "critical_path",
    "Diff": "diff",
    "DiffOptions": "diff_sides",
    "LayerStats": "layer_stats",
    "Layering": "layering",
    "Recording": "recording",
    "RunSummary": "rank_stats",
    "Scaling": "replay_costs",
    "Selection": "summary",
    "Summary": "summary",
    "WhatIf": "whatif",
    "cast_groups": "casts",
    "cast_report": "casts",
    "clock_offsets": "clocks",
    "collectives": "comm",
    "comm_overlap": "concurrency",
    "critical_paths": "critical_path",
    "idle_gaps": "idle",
    "launch_stats": "pace",
    "layer_kernels": "layer_stats",
    "odd_layers": "layer_stats",
    "queue_depth": "pace",
    "rank_waits": "comm_stats",
    "step_pace": "pace",
    "summarize": "summary",
    "summarize_run": "rank_stats",
    "typical_steps": "step_facts",
    "what_if": "whatif",
}
"""Module of each name; it is imported when the name is first asked for."""


def __getattr__(name: str) -> Any:
    """Imports an analysis only when it is used: a command waits for none that it does not need."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def steps(trace: Trace) -> "pl.DataFrame":
    """The steps of a trace: table `steps`, one row per step, rank and device."""
    from traceql.analyses.attribution import Attribution  # noqa: PLC0415

    return Attribution.of(trace).steps


def kernel_steps(trace: Trace) -> "pl.DataFrame":
    """Which step launched each GPU activity: table `kernel_steps`."""
    from traceql.analyses.attribution import Attribution  # noqa: PLC0415

    return Attribution.of(trace).placed


def step_categories(trace: Trace) -> "pl.DataFrame":
    """What each step's time went to: table `step_categories`, one row per step and category."""
    from traceql.analyses import category_times  # noqa: PLC0415
    from traceql.analyses.attribution import Attribution  # noqa: PLC0415

    found = Attribution.of(trace)
    return category_times.step_categories(trace.kernels, found.placed, found.times)


def layers(trace: Trace) -> "pl.DataFrame":
    """The layers of each step: table `layers`."""
    from traceql.analyses.layering import Layering  # noqa: PLC0415

    return Layering.of(trace).layers


def kernel_layers(trace: Trace) -> "pl.DataFrame":
    """Which layer each GPU activity belongs to: table `kernel_layers`."""
    from traceql.analyses.layering import Layering  # noqa: PLC0415

    return Layering.of(trace).placed


def step_layer_categories(trace: Trace) -> "pl.DataFrame":
    """What each layer's time went to: table `step_layer_categories`."""
    from traceql.analyses.layering import Layering  # noqa: PLC0415

    return Layering.of(trace).categories
