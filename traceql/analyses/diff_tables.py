"""The tables of a comparison, and the sums that all of them are made of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from traceql.tables import BATCH_SIZE, DEVICE, RANK, STAGE, STEP, Column, Dtype, Table


def _both(name: str, dtype: Dtype, doc: str, *, nullable: bool = False) -> tuple[Column, Column]:
    return (
        Column(f"before_{name}", dtype, f"{doc}, before", nullable),
        Column(f"after_{name}", dtype, f"{doc}, after", nullable),
    )


_CHANGE = (
    *_both("total_ns", pl.Int64, "Sum over the steps compared"),
    *_both("ns_per_step", pl.Float64, "That sum over the number of steps"),
    Column("delta_ns", pl.Float64, "Change of a step: after − before"),
)

WATERFALL = Table(
    "waterfall",
    "One row per kernel category and per cause of idle time: delta_ns adds up to the change of the mean step. "
    "Categories first, the largest change first.",
    Column("kind", pl.String, "category or idle"),
    Column("name", pl.String, "Kernel category, or cause of idle time"),
    Column("group", pl.String, "The category's group; idle for idle time"),
    *_CHANGE,
    *_both("median_ns", pl.Float64, "Median of a step; medians do not add up"),
)

ROLE_CHANGES = Table(
    "role_changes",
    "One row per layer type and section of a step; delta_ns adds up to the change of the mean step. The largest change "
    "first.",
    Column("role", pl.String, "The layer type's label, prologue, epilogue, between, or not attributed"),
    *_CHANGE,
    *_both("n_layers_per_step", pl.Float64, "Layers of the type in a step; 0 for sections"),
    *_both("busy_ns_per_step", pl.Float64, "Of a step's wall there, with GPU activity"),
    *_both("kernel_ns_per_step", pl.Float64, "Kernel time there in a step"),
    *_both("n_kernels_per_step", pl.Float64, "GPU activities there in a step"),
)

KERNEL_CHANGES = Table(
    "kernel_changes",
    "One row per kernel name of either side. Largest change of kernel time first.",
    Column("name", pl.String, "Full name"),
    Column("short_name", pl.String, "Readable name"),
    Column("category", pl.String, "Kernel category"),
    Column("status", pl.String, "gone, new, fewer, more or alike (calls a step)"),
    *_CHANGE,
    *_both("n_per_step", pl.Float64, "Calls a step"),
    *_both("ns_per_call", pl.Float64, "Mean duration of a call; null without calls", nullable=True),
    Column("by_count_ns", pl.Float64, "Of delta_ns, what comes from more or fewer calls, at the mean duration of both"),
    Column("by_call_ns", pl.Float64, "Of delta_ns, what comes from longer or shorter calls, at the mean count of both"),
)

REPLACEMENTS = Table(
    "replacements",
    "One row per place in a layer type at which other kernels run than before. Largest change of time first.",
    Column("role", pl.String, "The layer type's label"),
    Column("position", pl.Int64, "Of the first of them in the layer before, streams one after the other"),
    Column("before", pl.String, "Kernels before, in order; null where some were only added", nullable=True),
    Column("after", pl.String, "Kernels after, in order; null where some were only taken out", nullable=True),
    *_both("n_kernels", pl.Int64, "Number of those kernels in a layer"),
    *_both("n_per_step", pl.Float64, "Number of those kernels in a step"),
    *_both("ns_per_step", pl.Float64, "Their kernel time in a step"),
    Column("delta_ns", pl.Float64, "Change of that time: after − before"),
)

COLLECTIVE_CHANGES = Table(
    "collective_changes",
    "One row per kind of collective and rank: kernel time, and what of it is waiting for other ranks. Sorted by kind, "
    "rank.",
    Column("kind", pl.String, "all_reduce and so on"),
    Column("rank", pl.Int16, "Process rank; null: the mean over all ranks", nullable=True),
    *_CHANGE,
    *_both("n_kernels_per_step", pl.Float64, "Collectives a step"),
    *_both(
        "waiting_ns_per_step", pl.Float64, "Waiting a step; null where it cannot be told from transfer", nullable=True
    ),
)

COMPARED_STEPS = Table(
    "compared_steps",
    "One row per step compared. Sorted by side (before first), recording, rank, device, step.",
    Column("side", pl.String, "before or after"),
    Column("recording", pl.Int64, "Number of the recording on its side, 0-based"),
    RANK,
    DEVICE,
    STEP,
    STAGE,
    BATCH_SIZE,
    Column("wall_ns", pl.Int64, "Length of the window"),
    Column("busy_ns", pl.Int64, "Union of GPU activity in it"),
    Column("kernel_ns", pl.Int64, "Sum of the durations of what the step launched"),
    Column("n_kernels", pl.Int64, "GPU activities launched"),
)

DIFFERENCES = Table(
    "differences",
    "One row per fact in which the two sides differ.",
    Column("fact", pl.String, "What"),
    Column("before", pl.String, "Before; null is unknown", nullable=True),
    Column("after", pl.String, "After; null is unknown", nullable=True),
    Column("breaks", pl.Boolean, "Step times are not comparable because of it"),
)


@dataclass(frozen=True)
class Totals:
    """Sums of one side by some key, and over how many steps they go."""

    frame: pl.DataFrame
    """One row per key with integer sums, `total_ns` among them."""
    n_steps: int


def deltas(before: Totals, after: Totals, key: Sequence[str], others: Sequence[str] = ()) -> pl.DataFrame:
    """Both sides' rows in one: totals, per step, and the change of `total_ns`.

    Args:
        before: the sums of one side.
        after: those of the other. A row that one side lacks counts as 0 there.
        key: columns that rows are matched by; all but `others` of the rest are sums.
        others: columns taken over as they are.
    """
    sums = [name for name in before.frame.columns if name not in (*key, *others)]
    sides = [
        total.frame.select(
            *key, pl.col([*sums, *others]).name.prefix(f"{side}_"), pl.lit(value=True).alias(f"has_{side}")
        )
        for total, side in ((before, "before"), (after, "after"))
    ]
    rows = sides[0].join(sides[1], on=list(key), how="full", coalesce=True, validate="1:1")
    rows = rows.with_columns(
        *_filled("before", before.n_steps, sums, others), *_filled("after", after.n_steps, sums, others)
    )
    return rows.with_columns(delta_ns=pl.col("after_ns_per_step") - pl.col("before_ns_per_step"))


def _filled(side: str, n_steps: int, sums: Sequence[str], others: Sequence[str]) -> Iterator[pl.Expr]:
    """A side's columns, 0 where it lacks the row, and its sums per step."""
    for name in (*sums, *others):
        value = pl.when(pl.col(f"has_{side}").is_null()).then(0).otherwise(pl.col(f"{side}_{name}"))
        yield value.alias(f"{side}_{name}")
        if name in sums:
            yield (value / n_steps).alias(f"{side}_{'ns' if name == 'total_ns' else name}_per_step")
