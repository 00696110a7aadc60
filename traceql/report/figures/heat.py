"""Heat maps: times by row and column, as shades."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from traceql import fmt
from traceql.analyses.layer_stats import LayerStats
from traceql.report import numbers
from traceql.report.maps import Grid, category_rows, total_rows

MAX_CELLS = 240
"""Columns of a heat map."""
LEVELS = 9
MAX_PASSES = 4
MAX_ROWS = 64


@dataclass(frozen=True)
class HeatRow:
    """A row of a heat map: how dark each cell is, what it says, and the sum."""

    label: str
    color: str
    levels: tuple[int, ...]
    values: tuple[str, ...]
    total: str

    @property
    def paths(self) -> list[tuple[int, str]]:
        """(level, SVG path) of its cells, which are one unit wide and high."""
        return level_paths(self.levels)


@dataclass(frozen=True)
class HeatMap:
    """Times by row and column, as shades. The scale is that of square roots, so that small times are seen."""

    kind: ClassVar[str] = "heat"
    title: str
    column: str
    """What a column is: `layer`, `step`."""
    columns: tuple[str, ...]
    """The number or numbers of each column."""
    rows: tuple[HeatRow, ...]
    total_title: str
    limits: tuple[str, ...]
    """Up to how many ms each level goes."""
    links: str
    """Kind of anchor that a cell leads to, with its column: `layer-PASS-`, `step-`; empty for none."""
    n_totals: int = 0
    """The last rows, set off from the others."""


def layer_maps(stats: LayerStats, colors: Mapping[str, str]) -> list[HeatMap]:
    """Mean ms of a layer by category, a map for each forward pass; idle and the sum of all below."""
    if stats.of_layers.is_empty():
        return []
    passes = stats.of_layers["model_pass"].unique().sort().to_list()
    maps = (_layer_map(stats, number, colors, several=len(passes) > 1) for number in passes[:MAX_PASSES])
    return [found for found in maps if found is not None]


def _layer_map(stats: LayerStats, model_pass: int, colors: Mapping[str, str], *, several: bool) -> HeatMap | None:
    kind = "wall" if stats.has_walls else "kernel"
    layers = stats.of_layers.filter(model_pass=model_pass).group_by("layer").agg(
        pl.sum(f"{kind}_ns_per_step"), pl.sum("busy_ns_per_step")
    )  # fmt: skip
    n_layers = 1 + int(layers["layer"].max() or 0)  # pyright: ignore[reportArgumentType]
    totals = total_rows(stats, layers)
    rows = [
        *((name, colors.get(name, ""), times) for name, times in category_rows(stats, model_pass)),
        *((name, "", times) for name, times in totals),
    ]
    grid = Grid(n_layers, MAX_CELLS)
    cells = [(label, color, grid.means(times), numbers.total(times["ns"])) for label, color, times in rows]
    numbered = f" of pass {model_pass}" if several else ""
    title = f"ms a layer{numbered}, by category{'' if stats.has_walls else ' (kernel time)'}"
    return heat_map(title, "layer", grid.labels, cells, "ms/step", links=f"layer-{model_pass}-", n_totals=len(totals))


def heat_map(
    title: str,
    column: str,
    columns: Sequence[str],
    rows: Sequence[tuple[str, str, Sequence[float], float]],
    total_title: str,
    *,
    links: str = "",
    n_totals: int = 0,
) -> HeatMap | None:
    """A map of rows (label, colour, ns by column, their total); None where all is nothing."""
    top_ns = max((ns for _, _, values, _ in rows for ns in values), default=0.0)
    if top_ns <= 0:
        return None
    drawn = tuple(
        HeatRow(
            fmt.visible(label),
            color,
            tuple(level(ns, top_ns) for ns in values),
            tuple(fmt.ms(ns) for ns in values),
            fmt.ms(total),
        )
        for label, color, values, total in rows
    )
    limits = tuple(fmt.ms(top_ns * (step / LEVELS) ** 2) for step in range(1, LEVELS + 1))
    return HeatMap(title, column, tuple(columns), drawn, total_title, limits, links, n_totals)


def level(value: float, top: float) -> int:
    """How dark a value is, from 0 (nothing) to `LEVELS` (as much as `top`), by its square root."""
    return 0 if value <= 0 or top <= 0 else min(max(math.ceil(LEVELS * math.sqrt(value / top) - 1e-9), 1), LEVELS)


def level_paths(levels: Sequence[int]) -> list[tuple[int, str]]:
    """(level, SVG path) of a row of cells one unit wide and high: neighbours of one level are one rectangle."""
    paths: dict[int, str] = {}
    start = 0
    for end in range(1, len(levels) + 1):
        if end == len(levels) or levels[end] != levels[start]:
            width = end - start
            if levels[start]:
                paths[levels[start]] = paths.get(levels[start], "") + f"M{start} 0h{width}v1h-{width}z"
            start = end
    return sorted(paths.items())


def spread_levels(column: Sequence[float | None]) -> list[int]:
    """How dark each cell of a column is that compares equals: by what it has above the least, as a part of the most."""
    known = [value for value in column if value is not None and math.isfinite(value)]
    least, most = min(known, default=0.0), max(known, default=0.0)
    if most <= 0:
        return [0] * len(column)
    return [0 if value is None else round(LEVELS * max(value - least, 0) / most) for value in column]


def waiting_map(collectives: pl.DataFrame, ranks: Sequence[int]) -> HeatMap | None:
    """How many ms each rank waits for others in each step: the one that waits least is the late one.

    Args:
        collectives: the `collectives` table.
        ranks: those to show.
    """
    known = collectives.filter(pl.col("waiting_ns").is_not_null() & pl.col("step").is_not_null())
    if known.is_empty() or len(ranks) > MAX_ROWS:
        return None
    sums = known.group_by("rank", "step").agg(ns=pl.sum("waiting_ns"))
    first, last = int(sums["step"].min()), int(sums["step"].max())  # pyright: ignore[reportArgumentType]
    grid = Grid(last + 1, MAX_CELLS)
    rows: list[tuple[str, str, Sequence[float], float]] = []
    skipped = first // grid.per_cell
    for rank in ranks:
        mine = sums.filter(rank=rank).select("step", "ns")
        mean = numbers.total(mine["ns"]) / mine.height if mine.height else 0.0
        rows.append((f"rank {rank}", "", grid.means(mine)[skipped:], mean))
    return heat_map(
        "ms waiting in collectives for the last rank, by step", "step", grid.labels[skipped:], rows, "mean ms",
        links="step-",
    )  # fmt: skip
