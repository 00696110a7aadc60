"""Where the time of each stage goes: decode steps, prefill steps and mixed ones side by side, never as one mean."""

import polars as pl

from traceql.categories import GROUPS
from traceql.tables import STAGE, Column, Table

STAGES = Table(
    "stages",
    "One row per stage of the complete steps selected, most wall first. idle_ns and the times of the groups add up to "
    "wall_ns.",
    STAGE,
    Column("n_steps", pl.Int64, "Complete steps, of all ranks and devices"),
    Column("batch_size_min", pl.Int64, "Least batch size; null where none is recorded", nullable=True),
    Column("batch_size_max", pl.Int64, "Greatest batch size", nullable=True),
    Column("median_wall_ns", pl.Float64, "Median wall of a step"),
    Column("wall_ns", pl.Int64, "Sum of their walls"),
    Column("share", pl.Float64, "wall_ns as a share of the walls of all stages, 0 to 1", nullable=True),
    Column("idle_ns", pl.Int64, "wall - busy, added up"),
    *(Column(f"{group}_ns", pl.Int64, f"Exclusive time of the group {group} in their windows") for group in GROUPS),
)

_STEP = ["rank", "device", "step"]


def stages(complete: pl.DataFrame, times: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    """The `stages` table.

    Args:
        complete: rows of `steps`: those that count.
        times: the `window_times` table.
        activities: kernel_id and group of the GPU activities.
    """
    spent = (
        times.join(complete.select(*_STEP, "stage"), on=_STEP, validate="m:1")
        .join(activities.select("kernel_id", "group"), on="kernel_id", validate="m:1")
        .group_by("stage")
        .agg(pl.col("exclusive_ns").filter(pl.col("group") == group).sum().alias(f"{group}_ns") for group in GROUPS)
    )
    known = complete.group_by("stage").agg(
        n_steps=pl.len().cast(pl.Int64),
        batch_size_min=pl.min("batch_size").cast(pl.Int64),
        batch_size_max=pl.max("batch_size").cast(pl.Int64),
        median_wall_ns=pl.median("wall_ns"),
        wall_ns=pl.sum("wall_ns"),
        idle_ns=pl.sum("idle_ns"),
    )
    rows = known.join(spent, on="stage", how="left", validate="1:1").with_columns(
        pl.col(f"{group}_ns" for group in GROUPS).fill_null(0),
        share=pl.when(pl.sum("wall_ns") > 0).then(pl.col("wall_ns") / pl.sum("wall_ns")),
    )
    return STAGES.check(rows.select(STAGES.names).sort("wall_ns", "stage", descending=[True, False]))
