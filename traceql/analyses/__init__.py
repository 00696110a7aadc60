"""One function per question; each takes a loaded trace and returns a frame (or a `Summary` of frames).

The columns of every frame are described in `traceql.tables` and beside each function, and in docs/tables.md.
"""

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.category_times import step_categories as _step_categories
from traceql.analyses.collectives import clock_offsets, collectives, rank_waits
from traceql.analyses.concurrency import comm_overlap
from traceql.analyses.idle import idle_gaps
from traceql.analyses.pace import launch_stats, queue_depth, step_pace
from traceql.analyses.rank_stats import RunSummary, summarize_run
from traceql.analyses.summary import Selection, Summary, summarize
from traceql.trace import Trace

__all__ = [
    "Attribution",
    "RunSummary",
    "Selection",
    "Summary",
    "clock_offsets",
    "collectives",
    "comm_overlap",
    "idle_gaps",
    "kernel_steps",
    "launch_stats",
    "queue_depth",
    "rank_waits",
    "step_categories",
    "step_pace",
    "steps",
    "summarize",
    "summarize_run",
]


def steps(trace: Trace) -> pl.DataFrame:
    """The steps of a trace: table `steps`, one row per step, rank and device."""
    return Attribution.of(trace).steps


def kernel_steps(trace: Trace) -> pl.DataFrame:
    """Which step launched each GPU activity: table `kernel_steps`."""
    return Attribution.of(trace).placed


def step_categories(trace: Trace) -> pl.DataFrame:
    """What each step's time went to: table `step_categories`, one row per step and category."""
    found = Attribution.of(trace)
    return _step_categories(trace.kernels, found.placed, found.times)
