"""The steps of a trace: which iteration of the engine each GPU activity belongs to, and each step's window."""

import numpy as np
import polars as pl

from traceql.analyses.exclusive import exclusive_time
from traceql.tables import BATCH_SIZE, DEVICE, KERNEL_ID, RANK, STAGE, Column, Table

STEPS = Table(
    "steps",
    "One row per step, rank and device. Sorted by rank, device, step.",
    RANK,
    DEVICE,
    Column("step", pl.Int64, "0-based, in order of time"),
    Column("label", pl.String, "Text of the annotation, or how the step was found"),
    STAGE,
    BATCH_SIZE,
    Column(
        "start_ns",
        pl.Int64,
        "Start of the window: the first GPU activity launched inside the annotation",
        nullable=True,
    ),
    Column(
        "wall_ns",
        pl.Int64,
        "Length of the window; null when not separable or without GPU activity",
        nullable=True,
    ),
    Column(
        "annotation_ns",
        pl.Int64,
        "Length of the host-side annotation; null when there is none",
        nullable=True,
    ),
    Column("busy_ns", pl.Int64, "Union of GPU activity in the window", nullable=True),
    Column("kernel_ns", pl.Int64, "Sum of the durations of activities launched in the step, `between` included"),
    Column("idle_ns", pl.Int64, "wall - busy", nullable=True),
    Column("n_kernels", pl.Int64, "GPU activities launched in the step, `between` included"),
    Column("n_kernels_between", pl.Int64, "Of them, launched after the annotation and before the next"),
    Column("is_complete", pl.Boolean, "Has a next step to end its window"),
    Column("separable", pl.Boolean, "Its window overlaps no other step's"),
    Column("method", pl.String, "annotation, graph_launch or repetition"),
    Column("confidence", pl.Float64, "0 to 1"),
)

KERNEL_STEPS = Table(
    "kernel_steps",
    "One row per GPU activity: the step that launched it. Sorted by kernel_id.",
    KERNEL_ID,
    Column("step", pl.Int64, "Step; null before the first one, and without a launch", nullable=True),
    Column(
        "section",
        pl.String,
        "`between`: launched after the step's annotation, before the next",
        nullable=True,
    ),
)

WINDOW_TIMES = Table(
    "window_times",
    "One row per step window and GPU activity that runs in it. Sorted by rank, device, step, kernel_id.",
    RANK,
    DEVICE,
    Column("step", pl.Int64, "Step in whose window the time lies"),
    Column("kernel_id", pl.Int64, "GPU activity, whichever step launched it"),
    Column("exclusive_ns", pl.Int64, "Its exclusive time in the window"),
)

COMPLETE = pl.col("is_complete") & pl.col("separable")
"""Of `steps`: its window is its own and ends with a next step. Figures of steps are taken over these."""

_PLACE = ["rank", "device"]
_STEP = [*_PLACE, "step"]


def complete_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """Those of `steps` that are `COMPLETE`."""
    return steps.filter(COMPLETE)


def kernel_steps(kernels: pl.LazyFrame, launches: pl.LazyFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """The `kernel_steps` table: each activity goes to the step on the host in which its launch call begins.

    Args:
        kernels: GPU activities with their launch_id.
        launches: runtime and driver calls.
        marks: the `step_marks` table.

    Where marks of several threads overlap, the mark on the launching thread has precedence, then the latest.
    """
    calls = launches.select("launch_id", "thread_id", call_ns="start_ns")
    launched = kernels.select("kernel_id", "rank", "launch_id").join(calls, on="launch_id", validate="m:1")
    launched = launched.sort("call_ns", "kernel_id").collect()
    spans = marks.select("rank", "step", "thread_id", "start_ns", "end_ns").sort("start_ns")

    def latest(by: list[str]) -> pl.DataFrame:
        return launched.join_asof(
            spans.select("step", "start_ns", "end_ns", *by),
            left_on="call_ns",
            right_on="start_ns",
            by=by,
            check_sortedness=False,  # sorted above; polars cannot tell within groups
        )

    found = latest(["rank"])
    if _overlaps(marks).any():
        inside = pl.col("call_ns") < pl.col("end_ns")
        own = latest(["rank", "thread_id"]).filter(inside).select("kernel_id", own="step", own_end_ns="end_ns")
        found = found.join(own, on="kernel_id", how="left", validate="1:1").with_columns(
            step=pl.coalesce("own", "step"), end_ns=pl.coalesce("own_end_ns", "end_ns")
        )
    section = pl.when(pl.col("call_ns") >= pl.col("end_ns")).then(pl.lit("between")).alias("section")
    every = kernels.select("kernel_id").sort("kernel_id").collect()
    placed = every.join(
        found.select("kernel_id", "step", section),
        on="kernel_id",
        how="left",
        validate="1:1",
        maintain_order="left",
    )
    return KERNEL_STEPS.check(placed)


def steps(kernels: pl.LazyFrame, marks: pl.DataFrame, placed: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The `steps` table and the `window_times` table.

    Args:
        kernels: GPU activities.
        marks: the `step_marks` table.
        placed: the `kernel_steps` table.

    Without any GPU activity the steps are still there, on device 0, and what is not known is null.
    """
    activities = kernels.select(
        "kernel_id", *_PLACE, "stream", "start_ns", "dur_ns", "correlation"
    ).join(placed.lazy(), on="kernel_id", validate="1:1").collect()  # fmt: skip
    rows = _windows(_step_rows(marks, activities))
    times = window_times(activities, rows)
    busy = times.group_by(_STEP).agg(busy_ns=pl.sum("exclusive_ns"))
    rows = rows.join(busy, on=_STEP, how="left", validate="1:1").with_columns(
        busy_ns=pl.when(pl.col("wall_ns").is_not_null()).then(pl.col("busy_ns").fill_null(0))
    )
    rows = rows.with_columns(idle_ns=pl.col("wall_ns") - pl.col("busy_ns")).sort(_STEP)
    return STEPS.check(rows.select(STEPS.names)), times


def _step_rows(marks: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    """One row per step and device of its rank, with launch accounting and the start of the window."""
    devices = activities.select(_PLACE).unique()
    idle_ranks = marks.select("rank").unique().join(devices, on="rank", how="anti")
    devices = pl.concat([devices, idle_ranks.with_columns(device=pl.lit(0, pl.Int16))])
    between = pl.col("section") == "between"
    launched = activities.filter(pl.col("step").is_not_null()).group_by(_STEP).agg(
        start_ns=pl.col("start_ns").filter(between.not_().fill_null(True)).min(),
        last_end_ns=(pl.col("start_ns") + pl.col("dur_ns")).max(),
        kernel_ns=pl.sum("dur_ns"),
        n_kernels=pl.len().cast(pl.Int64),
        n_kernels_between=between.sum().cast(pl.Int64),
    )  # fmt: skip
    mark = marks.with_columns(
        annotation_ns=pl.when("is_annotation").then(pl.col("end_ns") - pl.col("start_ns")),
        overlaps=_overlaps(marks),
    ).drop("start_ns", "end_ns", "thread_id", "is_annotation")
    return (
        mark.join(devices, on="rank", validate="m:m")
        .join(launched, on=_STEP, how="left", validate="1:1")
        .with_columns(pl.col("kernel_ns", "n_kernels", "n_kernels_between").fill_null(0))
        .sort(_STEP)
    )


def _overlaps(marks: pl.DataFrame) -> pl.Series:
    """Which marks overlap another one of their rank (two batches at once)."""
    latest_end = pl.col("end_ns").cum_max().shift().over("rank", order_by="start_ns")
    next_start = pl.col("start_ns").shift(-1).over("rank", order_by="start_ns")
    begins_inside = (pl.col("start_ns") < latest_end).fill_null(False)
    return marks.select(overlaps=begins_inside | (pl.col("end_ns") > next_start).fill_null(False))["overlaps"]


def _windows(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds is_complete, separable and wall_ns: windows run from one start to the next on the same device."""
    next_start = pl.col("start_ns").shift(-1).backward_fill().over(_PLACE, order_by="step")
    latest_before = pl.col("start_ns").forward_fill().shift().cum_max().over(_PLACE, order_by="step")
    earliest_after = pl.col("start_ns").backward_fill().cum_min(reverse=True).shift(-1).over(_PLACE, order_by="step")
    begun_before = (pl.col("start_ns") <= latest_before).fill_null(False)
    overtaken = ((earliest_after <= pl.col("start_ns")) | (earliest_after < next_start)).fill_null(False)
    ordered = pl.col("start_ns").is_null() | ~(begun_before | overtaken)
    rows = rows.with_columns(next_start_ns=next_start, separable=ordered & ~pl.col("overlaps"))
    is_complete = pl.col("next_start_ns").is_not_null() & pl.col("start_ns").is_not_null()
    end = pl.coalesce("next_start_ns", "last_end_ns")
    wall = pl.when("separable").then(end - pl.col("start_ns"))
    return rows.with_columns(is_complete=is_complete, wall_ns=wall)


def window_times(activities: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """The `window_times` table: activities cut at the borders of windows.

    Args:
        activities: GPU activities: kernel_id, rank, device, stream, start_ns, dur_ns, correlation, name.
        windows: rank, device, step, start_ns, wall_ns; those with null or nothing are left out. They do not
            overlap.
    """
    timed = activities.filter(pl.col("start_ns").is_not_null())
    known = windows.filter(pl.col("wall_ns") > 0).sort("start_ns")
    parts: list[pl.DataFrame] = [WINDOW_TIMES.empty()]
    for place, of_place in known.group_by(_PLACE, maintain_order=True):
        here = timed.filter((pl.col("rank") == place[0]) & (pl.col("device") == place[1]))
        start = of_place["start_ns"].to_numpy()
        borders = np.unique(np.concatenate([start, start + of_place["wall_ns"].to_numpy()]))
        regions = of_place.select(*_STEP, region=np.searchsorted(borders, start) + 1)
        parts.append(
            exclusive_time(here, borders).join(regions, on="region", validate="m:1").select(WINDOW_TIMES.names)
        )
    return WINDOW_TIMES.check(pl.concat(parts).sort(*_STEP, "kernel_id"))
