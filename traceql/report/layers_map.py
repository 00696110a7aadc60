"""The map of layers as text: time by layer and category, a row of blocks for each category."""

import math
from collections.abc import Sequence

import polars as pl

from traceql import fmt
from traceql.analyses.layer_stats import LayerStats
from traceql.report import numbers
from traceql.report.layers_words import time_column
from traceql.report.maps import Grid, category_rows, total_rows
from traceql.report.page import Column, Section, TextTable, View

LEVELS = "▁▂▃▄▅▆▇█"
NOTHING = "·"
"""A cell of the map without any time; also where a layer is missing."""
_MAX_CELLS = 48
"""Of the map: with its other columns it fits 80 cells."""
_MAX_ROWS = 7


def heat_map(stats: LayerStats, view: View) -> Section | None:  # noqa: ARG001
    """Time by layer and category: a row of blocks for each category, those with most time first."""
    number = _longest_pass(stats)
    layers = stats.of_layers.filter(model_pass=number)
    grid = Grid(1 + max(layers["layer"].to_list()), _MAX_CELLS)
    totals = total_rows(stats, layers)
    top_ns = max(grid.means(totals[-1][1]))
    if not top_ns:
        return None
    rows = [
        (fmt.visible(name), _blocks(grid.means(times), top_ns), fmt.ms(numbers.total(times["ns"])))
        for name, times in (*_few(category_rows(stats, number)), *totals)
    ]
    blocks = Column(f"layers 0 to {grid.n - 1}", is_code=True, is_heat=True)
    table = TextTable((Column("category"), blocks, Column("ms/step", "right")), tuple(rows), len(totals))
    title = "Layers by category" + (f", pass {number}" if stats.n_passes > 1 else "")
    return Section(title, table=table, notes=(_legend(top_ns, grid.per_cell),))


def _few(rows: list[tuple[str, pl.DataFrame]]) -> list[tuple[str, pl.DataFrame]]:
    """The first rows; the last ones taken together where there are many."""
    rest = [times for _, times in rows[_MAX_ROWS:]]
    return [*rows[:_MAX_ROWS], *([(f"{len(rest)} more", pl.concat(rest))] if rest else [])]


def _longest_pass(stats: LayerStats) -> int:
    """The forward pass with most time."""
    column = time_column(stats, "{}_ns")
    times = stats.of_layers.group_by("model_pass").agg(pl.sum(column))
    return times.sort(column, "model_pass", descending=[True, False])["model_pass"][0]


def _blocks(cells: Sequence[float], top_ns: float) -> str:
    """A block a cell, the full one for `top_ns`."""
    levels = (min(math.ceil(ns / top_ns * len(LEVELS)), len(LEVELS)) for ns in cells)
    return "".join(LEVELS[level - 1] if level > 0 else NOTHING for level in levels)


def _legend(top_ns: float, per_cell: int) -> str:
    cell = "One cell a layer" if per_cell == 1 else f"One cell {per_cell} layers"
    first, last = fmt.ms(top_ns / len(LEVELS)), fmt.ms(top_ns)
    return f"{cell}. A layer: {LEVELS[0]} up to {first} ms, {LEVELS[-1]} up to {last} ms, {NOTHING} nothing."
