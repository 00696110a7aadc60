"""The clocks of ranks against each other, from the ends of collectives, which all ranks leave together."""

from typing import Any

import numpy as np
import polars as pl

from traceql.arrays import Floats
from traceql.tables import RANK, Column, Table

CLOCKS = Table(
    "clocks",
    "One row per rank: its clock against that of the lowest rank. Sorted by rank.",
    RANK,
    Column("offset_ns", pl.Float64, "How far it is ahead at time zero; null when nothing tells", nullable=True),
    Column("spread_ns", pl.Float64, "Median absolute deviation of what was found", nullable=True),
    Column("drift_ppm", pl.Float64, "How much faster it runs; null with too few collectives", nullable=True),
    Column("n_collectives", pl.Int64, "Matched collectives whose ends were compared"),
    Column("is_offset_applied", pl.Boolean, "The offset is clear of its spread: start_ns is corrected by it"),
    Column("is_drift_applied", pl.Boolean, "The drift over the recording is clear of it too: it is corrected"),
)

END = pl.col("recorded_start_ns") + pl.col("dur_ns")
END_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Kinds that no rank leaves before all have come, and in which all get the last piece at about the same time."""
LEAST_FOR_CLOCK = 8
"""Collectives without which neither offset nor drift is believed."""
_CLEAR_OF_SPREAD = 3
_MOST_FOR_SLOPE = 300
"""Points between which slopes are taken: 45,000 pairs."""


def clock_offsets(collectives: pl.DataFrame) -> pl.DataFrame:
    """The `clocks` table: the clock of each rank of the `collectives` table against that of the lowest.

    All ranks leave an all-reduce (all-gather, reduce-scatter, all-to-all) together, so the difference of their
    recorded ends is that of their clocks, give or take the last hop of the transfer. The offset is the median of the
    differences over all matched collectives, the drift the median slope between pairs of them (Theil-Sen), the spread
    the median absolute deviation of what is left. Either is applied only where it is above three times the spread
    (the drift with its effect over the recording), and from eight collectives on. A rank that shares no collective
    with the lowest is compared with one that does.
    """
    rows = collectives.filter(pl.col("collective_id").is_not_null() & pl.col("kind").is_in(END_TOGETHER))
    ends = rows.group_by("rank", "collective_id").agg(end_ns=END.max()).sort("rank", "collective_id")
    of_rank = {rank: ends.filter(rank=rank).drop("rank") for rank in collectives["rank"].unique().sort()}
    known: dict[int, dict[str, Any]] = {}
    while unknown := [rank for rank in of_rank if rank not in known]:
        pairs = [(_common(of_rank[base], of_rank[rank]), base, rank) for base in known for rank in unknown]
        common, base, rank = max(pairs, key=lambda pair: pair[0].height, default=(None, unknown[0], unknown[0]))
        if common is None:
            known[rank] = _REFERENCE_CLOCK | {"rank": rank}
        else:
            known[rank] = _clock(rank, common, known[base])
    return CLOCKS.check(pl.DataFrame(list(known.values()), CLOCKS.schema).sort("rank"))


_REFERENCE_CLOCK: dict[str, Any] = {
    "offset_ns": 0.0,
    "spread_ns": 0.0,
    "drift_ppm": 0.0,
    "n_collectives": 0,
    "is_offset_applied": False,
    "is_drift_applied": False,
}


def _common(base: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    return base.join(other, on="collective_id", suffix="_other", validate="1:1", maintain_order="left")


def _clock(rank: int, common: pl.DataFrame, base: dict[str, Any]) -> dict[str, Any]:
    """The clock of a rank, from the ends it has in common with one whose clock is known."""
    row: dict[str, Any] = dict.fromkeys(CLOCKS.names) | {
        "rank": rank, "n_collectives": common.height, "is_offset_applied": False, "is_drift_applied": False,
    }  # fmt: skip
    if not common.height or base["offset_ns"] is None:
        return row
    time = _true_time(common["end_ns"].to_numpy().astype(np.float64), base)
    ahead = common["end_ns_other"].to_numpy() - time
    enough = common.height >= LEAST_FOR_CLOCK
    slope = _slope(time, ahead) if enough else None
    level, spread = _level(ahead)
    row |= {"offset_ns": level, "spread_ns": spread, "drift_ppm": None if slope is None else slope * 1e6}
    if slope is not None:
        level, spread = _level(ahead - slope * time)
        if abs(slope) * np.ptp(time) > _CLEAR_OF_SPREAD * spread:
            row |= {"offset_ns": level, "spread_ns": spread, "is_drift_applied": True}
    row["is_offset_applied"] = enough and (row["is_drift_applied"] or abs(level) > _CLEAR_OF_SPREAD * spread)
    return row


def _level(values: Floats) -> tuple[float, float]:
    """Median, and median absolute deviation from it."""
    middle = float(np.median(values))
    return middle, float(np.median(np.abs(values - middle)))


def _slope(time: Floats, values: Floats) -> float | None:
    """The median slope between pairs of points; None when all are of one time."""
    chosen = np.unique(np.linspace(0, len(time) - 1, _MOST_FOR_SLOPE).round().astype(np.int64))
    one, other = np.triu_indices(len(chosen), 1)
    apart = time[chosen[other]] - time[chosen[one]]
    risen = values[chosen[other]] - values[chosen[one]]
    return float(np.median(risen[apart != 0] / apart[apart != 0])) if apart.any() else None


def _true_time(ns: Floats, clock: dict[str, Any]) -> Floats:
    """Times of a rank's clock on that of the lowest rank."""
    offset = clock["offset_ns"] if clock["is_offset_applied"] else 0.0
    drift = clock["drift_ppm"] / 1e6 if clock["is_drift_applied"] else 0.0
    return (ns - offset) / (1 + drift)


def aligned(rows: pl.DataFrame, clocks: pl.DataFrame) -> pl.DataFrame:
    """Adds start_ns and corrects launch_ns, by what of the clocks is to be applied."""
    rows = rows.join(clocks.drop("n_collectives", "spread_ns"), on="rank", validate="m:1", maintain_order="left")
    drift = pl.when("is_drift_applied").then(pl.col("drift_ppm") / 1e6).otherwise(0.0)

    def true_time(column: str) -> pl.Expr:
        moved = ((pl.col(column) - pl.col("offset_ns")) / (1 + drift)).round().cast(pl.Int64)
        return pl.when("is_offset_applied").then(moved).otherwise(pl.col(column))

    return rows.with_columns(start_ns=true_time("recorded_start_ns"), launch_ns=true_time("launch_ns"))
