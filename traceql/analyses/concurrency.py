"""Communication beside computation: how much of it is hidden behind other work, per step."""

import numpy as np
import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.comm import CATEGORY
from traceql.analyses.once import once
from traceql.arrays import Ints
from traceql.tables import DEVICE, RANK, Column, Table
from traceql.trace import Trace

COMM_OVERLAP = Table(
    "comm_overlap",
    "One row per step window: what ran in it, as unions of time. Sorted by its first three columns. "
    "A device without windows has one row with a null step, from its first to its last GPU activity.",
    RANK,
    DEVICE,
    Column("step", pl.Int64, "Step in whose window the time lies", nullable=True),
    Column("comm_ns", pl.Int64, "A communication kernel runs; exposed + overlapped, exactly"),
    Column("exposed_ns", pl.Int64, "Only communication runs"),
    Column("overlapped_ns", pl.Int64, "Communication and other work run at once"),
    Column("compute_ns", pl.Int64, "Any other GPU activity runs (copies and memsets too)"),
    Column("busy_ns", pl.Int64, "Any GPU activity runs; exposed + compute, exactly"),
)

_PLACE = ["rank", "device"]


@once
def comm_overlap(trace: Trace) -> pl.DataFrame:
    """The `comm_overlap` table of a trace. Worked out once."""
    found = Attribution.of(trace)
    return comm_overlap_of(found.activities, found.steps)


def comm_overlap_of(activities: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The `comm_overlap` table.

    Args:
        activities: GPU activities with their category; those without time are left out.
        steps: the `steps` table; those without a window are left out.

    Activities are cut at the borders of windows.
    """
    timed = activities.filter(pl.col("start_ns").is_not_null() & (pl.col("dur_ns") > 0))
    windows = steps.filter(pl.col("wall_ns").is_not_null()).select(
        *_PLACE, "step", "start_ns", end_ns=pl.col("start_ns") + pl.col("wall_ns")
    )
    end = (pl.col("start_ns") + pl.col("dur_ns")).max()
    whole = timed.join(windows, on=_PLACE, how="anti").group_by(_PLACE).agg(pl.min("start_ns"), end_ns=end)
    windows = pl.concat([windows, whole.select(*_PLACE, pl.lit(None, pl.Int64).alias("step"), "start_ns", "end_ns")])
    parts = [COMM_OVERLAP.empty()]
    for place, of_place in windows.sort(*_PLACE, "step").group_by(_PLACE, maintain_order=True):
        here = timed.filter(rank=place[0], device=place[1])
        parts.append(_in_windows(here, of_place))
    return COMM_OVERLAP.check(pl.concat(parts))


def _in_windows(activities: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    is_comm = pl.col("category") == CATEGORY
    begin, end = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    comm, compute, busy = (
        covered(activities.filter(which), begin, end) for which in (is_comm, ~is_comm, pl.lit(value=True))
    )
    found = {
        "comm_ns": comm,
        "exposed_ns": busy - compute,
        "overlapped_ns": comm + compute - busy,
        "compute_ns": compute,
        "busy_ns": busy,
    }
    columns = [pl.Series(name, values, pl.Int64) for name, values in found.items()]
    return windows.select(*_PLACE, "step").with_columns(columns)


def covered(intervals: pl.DataFrame, begin: Ints, end: Ints) -> Ints:
    """Length of the union of intervals (start_ns, dur_ns) within each window from begin to end."""
    if intervals.is_empty():
        return np.zeros(len(begin), np.int64)
    runs = intervals.select("start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns")).sort("start_ns")
    is_new = (pl.col("start_ns") > pl.col("end_ns").cum_max().shift()).fill_null(value=True)
    runs = runs.group_by(run=is_new.cum_sum(), maintain_order=True).agg(pl.min("start_ns"), pl.max("end_ns"))
    start, stop = runs["start_ns"].to_numpy(), runs["end_ns"].to_numpy()
    before = np.concatenate([[0], np.cumsum(stop - start)])

    def until(moment: Ints) -> Ints:
        run = np.searchsorted(start, moment, side="right")
        return before[run] - np.maximum(stop[np.maximum(run - 1, 0)] - np.maximum(moment, start[0]), 0) * (run > 0)

    return until(end) - until(begin)
