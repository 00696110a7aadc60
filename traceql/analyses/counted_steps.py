"""The steps that figures per step are taken over, and those figures."""

import polars as pl

from traceql.analyses.summary import Selection, selected_steps
from traceql.tables import Column

PER_STEP = (
    Column("kernel_ns", pl.Int64, "Sum of their durations, over the steps counted"),
    Column("n_per_step", pl.Float64, "Number in a step, mean over the steps counted"),
    Column("ns_per_step", pl.Float64, "kernel_ns over the steps counted"),
    Column("share", pl.Float64, "kernel_ns as a share of the wall of those steps; null without wall", nullable=True),
)
"""Columns that `per_step` adds. Steps counted: the complete ones of a device; all with a window where none is."""

_PLACE = ["rank", "device"]
_STEP = [*_PLACE, "step"]


def counted_steps(steps: pl.DataFrame, selection: Selection | None = None) -> pl.DataFrame:
    """Those of the `steps` selected that figures count: the complete ones of a device; all with a window if none is.

    Raises:
        MissingDataError: the selection names no step.
    """
    windows = selected_steps(steps, selection or Selection()).filter(pl.col("wall_ns").is_not_null())
    return windows.filter(pl.col("is_complete") | ~pl.col("is_complete").any().over(_PLACE))


def in_counted(activities: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """The GPU activities launched in the steps counted."""
    return activities.join(counted, on=_STEP, how="semi", maintain_order="left")


def per_step(stats: pl.DataFrame, counted: pl.DataFrame, number: str) -> pl.DataFrame:
    """Adds n_per_step, ns_per_step and share to rows of rank and device that have kernel_ns and a number of rows."""
    places = counted.group_by(_PLACE).agg(n_steps=pl.len(), wall_ns=pl.sum("wall_ns"))
    rows = stats.join(places, on=_PLACE, validate="m:1")
    return rows.with_columns(
        n_per_step=pl.col(number) / pl.col("n_steps"),
        ns_per_step=pl.col("kernel_ns") / pl.col("n_steps"),
        share=pl.when(pl.col("wall_ns") > 0).then(pl.col("kernel_ns") / pl.col("wall_ns")),
    )
