"""How long the steps of each rank of a run take, side by side."""

from dataclasses import dataclass, fields
from typing import Any

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.step_windows import complete_steps, window_times
from traceql.analyses.summary import Selection, Summary, summarize
from traceql.tables import RANK, Column, Table
from traceql.trace import Trace

RANK_STATS = Table(
    "rank_stats",
    "One row per rank and device of a run: medians over its complete steps selected. Where a summary's scope is "
    "`trace`, n_steps is 0 and the figures are those of the device's one window. Sorted by rank, device.",
    RANK,
    Column("device", pl.Int16, "GPU ordinal; null for a rank without GPU activity", nullable=True),
    Column("name", pl.String, "Name of the rank's file"),
    Column("n_steps", pl.Int64, "Complete steps"),
    Column("wall_ns", pl.Float64, "Median wall of a step; null without any", nullable=True),
    Column("busy_ns", pl.Float64, "Median busy time", nullable=True),
    Column("idle_ns", pl.Float64, "Median idle time", nullable=True),
    Column("kernel_ns", pl.Float64, "Median kernel time, by launch", nullable=True),
    Column(
        "comm_kernel_ns",
        pl.Float64,
        "Median kernel time of communication, waiting for other ranks included",
        nullable=True,
    ),
)

_PLACE = ["rank", "device"]
_STEP = [*_PLACE, "step"]
_FIGURES = ["wall_ns", "busy_ns", "idle_ns", "kernel_ns", "comm_kernel_ns"]
_IS_COMM = pl.col("group") == "nccl"


@dataclass(frozen=True)
class RunSummary(Summary):
    """The summary of a run: its frames are over the windows of all ranks, and `ranks` sets these side by side."""

    ranks: pl.DataFrame
    """Table `rank_stats`."""


def summarize_run(trace: Trace, selection: Selection | None = None) -> Summary:
    """Where the time of a run goes: a `RunSummary`; of a trace of one rank a plain `Summary`.

    Raises:
        MissingDataError: the selection names no step of any rank.
    """
    summary = summarize(trace, selection)
    if len(trace.parts) == 1 and _ranks(trace).height < 2:
        return summary
    values: dict[str, Any] = {field.name: getattr(summary, field.name) for field in fields(Summary)}
    return RunSummary(**values, ranks=rank_stats(trace, summary))


def rank_stats(trace: Trace, summary: Summary) -> pl.DataFrame:
    """The `rank_stats` table of a run, over the steps of its summary."""
    found = Attribution.of(trace)
    windows = _steps(found, summary.steps) if summary.scope == "steps" else _whole(found)
    n_steps = pl.len().cast(pl.Int64) if summary.scope == "steps" else pl.lit(0, pl.Int64)
    stats = windows.group_by(_PLACE).agg(n_steps.alias("n_steps"), pl.col(_FIGURES).median())
    places = found.activities.select(_PLACE).unique()
    places = _ranks(trace).join(places, on="rank", how="left", validate="1:m")
    rows = places.join(stats, on=_PLACE, how="left", validate="1:1").with_columns(pl.col("n_steps").fill_null(0))
    return RANK_STATS.check(rows.with_columns(_name(trace)).select(RANK_STATS.names).sort(_PLACE))


def _ranks(trace: Trace) -> pl.DataFrame:
    """The ranks that have a file, or rows in one that holds several."""
    recorded = [part.rank for part in trace.parts if part.rank is not None] if len(trace.parts) > 1 else []
    in_files = trace.threads.select("rank").unique().collect()
    return pl.concat([in_files, pl.DataFrame({"rank": recorded}, schema=in_files.schema)]).unique()


def _name(trace: Trace) -> pl.Expr:
    if len(trace.parts) == 1:
        return pl.lit(trace.meta.name).alias("name")
    names = {part.rank: part.name for part in trace.parts}
    return pl.col("rank").replace_strict(names, return_dtype=pl.String).alias("name")


def _steps(found: Attribution, steps: pl.DataFrame) -> pl.DataFrame:
    """One row per complete step: its figures."""
    comm = found.activities.filter(_IS_COMM).group_by(_STEP).agg(comm_kernel_ns=pl.sum("dur_ns"))
    complete = complete_steps(steps)
    rows = complete.join(comm, on=_STEP, how="left", validate="1:1")
    return rows.with_columns(pl.col("comm_kernel_ns").fill_null(0)).select(*_PLACE, *_FIGURES)


def _whole(found: Attribution) -> pl.DataFrame:
    """One row per rank and device: the figures of its one window, from the first to the last activity."""
    timed = found.activities.filter(pl.col("start_ns").is_not_null())
    end_ns = pl.col("start_ns") + pl.col("dur_ns")
    windows = timed.group_by(_PLACE).agg(
        pl.min("start_ns"),
        wall_ns=end_ns.max() - pl.min("start_ns"),
        kernel_ns=pl.sum("dur_ns"),
        comm_kernel_ns=pl.col("dur_ns").filter(_IS_COMM).sum(),
        step=pl.lit(0, pl.Int64),
    )
    busy = window_times(timed, windows).group_by(_PLACE).agg(busy_ns=pl.sum("exclusive_ns"))
    rows = windows.join(busy, on=_PLACE, how="left", validate="1:1").with_columns(pl.col("busy_ns").fill_null(0))
    return rows.with_columns(idle_ns=pl.col("wall_ns") - pl.col("busy_ns")).select(*_PLACE, *_FIGURES)
