"""What maps of time are made of, as text and on the page for the browser: their rows, and their columns.

A row is a name and a frame of a number (of a layer or step) and `ns`, its time.
"""

import math
from dataclasses import dataclass

import polars as pl

from traceql.analyses.layer_stats import LayerStats
from traceql.report.layers_words import time_column

IDLE = "idle"

Rows = list[tuple[str, pl.DataFrame]]


@dataclass(frozen=True)
class Grid:
    """The columns of a map: one a layer or step, or a few together where there are many."""

    n: int
    most: int
    """Columns that a map has room for."""

    @property
    def per_cell(self) -> int:
        """Layers or steps of a cell."""
        return max(math.ceil(self.n / self.most), 1)

    @property
    def labels(self) -> tuple[str, ...]:
        """The number of each cell, or the first and last."""
        firsts = range(0, self.n, self.per_cell)
        ends = [min(first + self.per_cell, self.n) - 1 for first in firsts]
        return tuple(f"{first} to {end}" if first < end else f"{end}" for first, end in zip(firsts, ends, strict=True))

    def means(self, times: pl.DataFrame) -> list[float]:
        """The mean of one layer or step in each cell, of a frame whose columns are a number and ns."""
        sums = [0.0] * len(self.labels)
        for number, ns in times.iter_rows():
            sums[number // self.per_cell] += ns or 0
        sizes = (min(self.per_cell, self.n - cell * self.per_cell) for cell in range(len(sums)))
        return [ns / size for ns, size in zip(sums, sizes, strict=True)]


def category_rows(stats: LayerStats, model_pass: int) -> Rows:
    """Categories of a forward pass with their time a step by layer, those with most time first.

    Exclusive time; kernel time where steps have no windows. What takes no time is left out.
    """
    kind = "exclusive" if stats.has_walls else "kernel"
    times = stats.categories.filter(model_pass=model_pass).select("category", "layer", ns=f"{kind}_ns_per_step")
    sums = times.group_by("category").agg(pl.sum("ns")).filter(pl.col("ns") > 0)
    names = sums.sort("ns", "category", descending=[True, False])["category"].to_list()
    return [(name, times.filter(category=name).select("layer", "ns")) for name in names]


def total_rows(stats: LayerStats, layers: pl.DataFrame) -> Rows:
    """All time a step by layer, the last row; before it idle, where it is known.

    Args:
        stats: what the layers are of.
        layers: rows with layer, `wall_ns_per_step` (or `kernel_ns_per_step`) and `busy_ns_per_step`.
    """
    column = time_column(stats, "{}_ns_per_step")
    idle = pl.col(column) - pl.col("busy_ns_per_step")
    return [
        *([(IDLE, layers.select("layer", ns=idle))] if stats.has_walls else []),
        ("all", layers.select("layer", ns=column)),
    ]
