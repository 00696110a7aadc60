"""What each step's time went to, by kernel category."""

import polars as pl

from traceql.tables import DEVICE, RANK, STEP, Column, Table

STEP_CATEGORIES = Table(
    "step_categories",
    "One row per step and category that ran in its window or was launched in it. Sorted by its first four columns.",
    RANK,
    DEVICE,
    STEP,
    Column("category", pl.String, "Kernel category"),
    Column("group", pl.String, "The category's group"),
    Column("exclusive_ns", pl.Int64, "Exclusive time in the window; with idle it adds up to the step's wall"),
    Column("kernel_ns", pl.Int64, "Sum of the durations of the activities launched in the step"),
    Column("n_kernels", pl.Int64, "GPU activities launched in the step"),
)

_KEY = ["rank", "device", "step", "category", "group"]


def step_categories(kernels: pl.LazyFrame, placed: pl.DataFrame, times: pl.DataFrame) -> pl.DataFrame:
    """The `step_categories` table.

    Args:
        kernels: GPU activities with their category.
        placed: the `kernel_steps` table: which step launched them.
        times: the `window_times` table: in which windows they ran.
    """
    named = kernels.select("kernel_id", "rank", "device", "category", "group", "dur_ns").collect()
    launched = (
        named.join(placed, on="kernel_id", validate="1:1")
        .filter(pl.col("step").is_not_null())
        .group_by(_KEY)
        .agg(kernel_ns=pl.sum("dur_ns"), n_kernels=pl.len().cast(pl.Int64))
    )
    ran = (
        times.join(named.select("kernel_id", "category", "group"), on="kernel_id", validate="m:1")
        .group_by(_KEY)
        .agg(pl.sum("exclusive_ns"))
    )
    both = launched.join(ran, on=_KEY, how="full", coalesce=True, validate="1:1")
    both = both.with_columns(pl.col("exclusive_ns", "kernel_ns", "n_kernels").fill_null(0))
    return STEP_CATEGORIES.check(both.sort(_KEY))
