"""One function per question; each takes a loaded trace and returns a frame (or a `Summary` of frames).

The columns of every frame are described in `traceql.tables` and beside each function, and in docs/tables.md.
"""

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.category_times import step_categories as _step_categories
from traceql.analyses.summary import Selection, Summary, summarize
from traceql.trace import Trace

__all__ = ["Attribution", "Selection", "Summary", "kernel_steps", "step_categories", "steps", "summarize"]


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
