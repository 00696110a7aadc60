"""The figures of HTML pages, as plain data worked out from frames: bars of steps, heat maps, the strip of a step.

A figure has no more marks than a screen can show: steps are taken together, layers are taken together, and of a long
sequence only the longest kernels are kept, the others counted. Times leave here as ms or as whole ns from the start
of what is drawn, so that no number is too large for JavaScript.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from traceql import fmt
from traceql.analyses.attribution import Attribution
from traceql.analyses.layer_stats import LayerStats
from traceql.analyses.layering import Layering
from traceql.report import words
from traceql.report.text import cut
from traceql.trace import Trace

MAX_BARS = 200
"""Of one device; of all together `MAX_ALL_BARS`."""
MAX_ALL_BARS = 4000
MAX_CELLS = 240
"""Columns of a heat map."""
MAX_MARKS = 400
"""Kernels of one layer in the strip; of all layers together `MAX_ALL_MARKS`."""
MAX_ALL_MARKS = 20_000
LEVELS = 9
MAX_NAME = 200
"""Characters of a name in a figure; tables have more."""
MAX_PASSES = 4
MAX_ROWS = 64
IDLE = "idle"

_PLACE = ["rank", "device"]
_STEP = [*_PLACE, "step"]
_PART = ["section", "model_pass", "layer"]

Row = dict[str, Any]
Figure = dict[str, Any]


# --- steps: stacked bars


@dataclass(frozen=True)
class StepBars:
    """A bar for each step, or for a few steps together: ms by category, and idle. One figure a device."""

    kind: ClassVar[str] = "bars"
    places: tuple[Figure, ...]
    """`label`; `data` and `layout` as plotly takes them; `bars`: title, about, first and last step, wall in ms."""
    categories: tuple[tuple[str, str], ...]
    """Those that occur with their colours, in order of the stack."""
    per_bar: int
    """Steps in a bar: the most."""


def step_bars(steps: pl.DataFrame, times: pl.DataFrame, colors: Mapping[str, str]) -> StepBars | None:
    """Exclusive ms by category of each step that has a window, with idle; None where no step has one.

    Args:
        steps: the `steps` table.
        times: the `step_categories` table.
        colors: of each category, in order of the stack.
    """
    windows = steps.filter(pl.col("wall_ns") > 0).sort(_STEP)
    if windows.is_empty():
        return None
    n_places = windows.select(_PLACE).n_unique()
    most = max(min(MAX_BARS, MAX_ALL_BARS // n_places), 10)
    number = pl.int_range(pl.len()).over(_PLACE)
    per_bar = pl.len().over(_PLACE).cast(pl.Float64).truediv(most).ceil().cast(pl.Int64)
    binned = windows.with_columns(bar=number // per_bar)
    spent = times.join(binned.select(*_STEP, "bar"), on=_STEP, validate="m:1")
    spent = spent.group_by(*_PLACE, "bar", "category").agg(pl.sum("exclusive_ns")).filter(pl.col("exclusive_ns") > 0)
    here = set(spent["category"])
    stack = [(name, color) for name, color in colors.items() if name in here]
    places = [
        _place_figure(place, bars, spent.filter(rank=place[0], device=place[1]), stack, several=n_places > 1)
        for place, bars in binned.group_by(_PLACE, maintain_order=True)
    ]
    widest = binned.group_by(*_PLACE, "bar").len()["len"].max()
    return StepBars(tuple(places), tuple(stack), int(widest or 1))  # pyright: ignore[reportArgumentType]


def _place_figure(
    place: tuple[Any, ...], steps: pl.DataFrame, spent: pl.DataFrame, stack: list[tuple[str, str]], *, several: bool
) -> Figure:
    bars = steps.group_by("bar", maintain_order=True).agg(
        pl.len().alias("n"), pl.first("step").alias("first"), pl.last("step").alias("last"),
        pl.mean("wall_ns", "idle_ns"), pl.col("stage").unique(maintain_order=True),
        pl.col("batch_size").drop_nulls().unique(maintain_order=True), pl.col("is_complete").all(),
    )  # fmt: skip
    rows = bars.rows(named=True)
    sums = {(bar, name): ns for bar, name, ns in spent.select("bar", "category", "exclusive_ns").iter_rows()}
    x = [(row["first"] + row["last"]) / 2 if row["n"] > 1 else row["first"] for row in rows]
    titles = [_bar_title(row) for row in rows]
    named = [(name, color, [sums.get((row["bar"], name), 0) / row["n"] for row in rows]) for name, color in stack]
    data = [_trace(name, color, x, ns, titles) for name, color, ns in named if any(ns)]
    data.append(_trace(IDLE, None, x, [row["idle_ns"] for row in rows], titles))
    return {
        "label": f"rank {place[0]}, device {place[1]}" if several else "",
        "data": data,
        "layout": _BARS_LAYOUT,
        "bars": [_bar(row, title) for row, title in zip(rows, titles, strict=True)],
    }


_BARS_LAYOUT: Figure = {
    "barmode": "stack",
    "bargap": 0.08,
    "showlegend": False,
    "hovermode": "closest",
    "dragmode": False,
    "margin": {"l": 52, "r": 8, "t": 8, "b": 40},
    "height": 340,
    "xaxis": {"title": {"text": "step"}, "tickformat": "d", "fixedrange": True, "showgrid": False, "zeroline": False},
    "yaxis": {"title": {"text": "ms"}, "rangemode": "tozero", "fixedrange": True},
}


def _trace(name: str, color: str | None, x: Sequence[float], ns: Sequence[float], titles: list[str]) -> Figure:
    """A plotly trace of bars; idle, without a colour of its own, is hatched by the page in the colour of its text."""
    shown = html.escape(name)
    return {
        "type": "bar",
        "name": shown,
        "meta": name,
        "x": x,
        "y": [_ms(each) for each in ns],
        "text": titles,
        "textposition": "none",
        "marker": {"color": color} if color else {},
        "hovertemplate": f"%{{text}}<br>{shown} %{{y:.3f}} ms<extra></extra>",
    }


def _bar_title(row: Row) -> str:
    return f"step {row['first']}" if row["n"] == 1 else f"mean of steps {row['first']} to {row['last']}"


def _bar(row: Row, title: str) -> Figure:
    batch = [f"batch {', '.join(map(str, row['batch_size'][:3]))}"] if row["batch_size"] else []
    incomplete = [] if row["is_complete"] else ["incomplete: no next step"]
    about = ", ".join([*row["stage"], *batch, *incomplete])
    return {"title": title, "about": about, "first": row["first"], "last": row["last"], "wall": _ms(row["wall_ns"])}


def _ms(ns: float) -> float:
    return round(ns / 1e6, 4)


# --- heat maps


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
    kind = ("exclusive", "wall") if stats.has_walls else ("kernel", "kernel")
    layers = stats.of_layers.filter(model_pass=model_pass).group_by("layer").agg(
        pl.sum(f"{kind[1]}_ns_per_step"), pl.sum("busy_ns_per_step")
    )  # fmt: skip
    times = stats.categories.filter(model_pass=model_pass).select("category", "layer", ns=f"{kind[0]}_ns_per_step")
    n_layers = 1 + int(layers["layer"].max() or 0)  # pyright: ignore[reportArgumentType]
    rows = [(name, colors.get(name, ""), times.filter(category=name)) for name in _by_time(times)]
    all_of_it = layers.select("layer", ns=f"{kind[1]}_ns_per_step")
    totals = [("all", "", all_of_it)]
    if stats.has_walls:
        totals.insert(0, (IDLE, "", layers.select("layer", ns=pl.col("wall_ns_per_step") - pl.col("busy_ns_per_step"))))
    grid = Grid(n_layers)
    cells = [(label, color, grid.means(frame), words.total(frame["ns"])) for label, color, frame in (*rows, *totals)]
    numbers = f" of pass {model_pass}" if several else ""
    title = f"ms a layer{numbers}, by category{'' if stats.has_walls else ' (kernel time)'}"
    return heat_map(title, "layer", grid.labels, cells, "ms/step", links=f"layer-{model_pass}-", n_totals=len(totals))


def _by_time(times: pl.DataFrame) -> list[str]:
    sums = times.group_by("category").agg(pl.sum("ns")).filter(pl.col("ns") > 0)
    return sums.sort("ns", "category", descending=[True, False])["category"].to_list()


@dataclass(frozen=True)
class Grid:
    """The columns of a map: one a layer or step, or a few together where there are many."""

    n: int

    @property
    def per_cell(self) -> int:
        """Layers or steps of a cell."""
        return max(math.ceil(self.n / MAX_CELLS), 1)

    @property
    def labels(self) -> tuple[str, ...]:
        """The number of each cell, or the first and last."""
        firsts = range(0, self.n, self.per_cell)
        ends = [min(first + self.per_cell, self.n) - 1 for first in firsts]
        return tuple(f"{first} to {end}" if first < end else f"{end}" for first, end in zip(firsts, ends, strict=True))

    def means(self, times: pl.DataFrame) -> list[float]:
        """The mean of one layer in each cell, of a frame whose columns are a number and ns."""
        sums = [0.0] * len(self.labels)
        for number, ns in times.iter_rows() if times.width == 2 else times.select("layer", "ns").iter_rows():
            sums[number // self.per_cell] += ns or 0
        sizes = (min(self.per_cell, self.n - cell * self.per_cell) for cell in range(len(sums)))
        return [ns / size for ns, size in zip(sums, sizes, strict=True)]


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
    grid = Grid(last + 1)
    rows: list[tuple[str, str, Sequence[float], float]] = []
    skipped = first // grid.per_cell
    for rank in ranks:
        mine = sums.filter(rank=rank).select("step", "ns")
        mean = words.total(mine["ns"]) / mine.height if mine.height else 0.0
        rows.append((f"rank {rank}", "", grid.means(mine)[skipped:], mean))
    return heat_map(
        "ms waiting in collectives for the last rank, by step", "step", grid.labels[skipped:], rows, "ms/step",
        links="step-",
    )  # fmt: skip


# --- one step: its kernels in time


@dataclass(frozen=True)
class Strip:
    """The kernels of one step on a time axis: a part for each layer and for what is around them."""

    kind: ClassVar[str] = "strip"
    title: str
    about: str
    data: Figure
    """`wall`; `parts`: id, title, about, at and wall (ns in the step), mix (category, share of its time), hidden
    (kernels left out), kernels (ns from the part's start, ns, number in names, number in streams); `names`: short name
    and category; `streams`; `colors`."""


def layer_strip(trace: Trace, stats: LayerStats, steps: pl.DataFrame, colors: Mapping[str, str]) -> Strip | None:
    """The step with the median wall, part by part; None where no step has a window.

    Args:
        trace: the trace or run.
        stats: its layers; where none are found the whole step is one part.
        steps: table `steps`: those that figures count.
        colors: of each category.
    """
    windows = (stats.counted if stats.has_walls else steps).filter(pl.col("wall_ns") > 0).sort("wall_ns", *_STEP)
    if windows.is_empty():
        return None
    step = windows.row((windows.height - 1) // 2, named=True)
    key = {name: step[name] for name in _STEP}
    activities = Attribution.of(trace).activities.filter(**key).filter(pl.col("start_ns").is_not_null())
    layering = Layering.of(trace)
    columns = ("kernel_id", "model_pass", "layer", pl.col("section").alias("in_step"), "layer_type")
    rows = activities.join(layering.placed.select(columns), on="kernel_id", how="left", validate="1:1")
    rows = rows.with_columns(section=pl.coalesce("in_step", "section"))
    stretches = layering.sections.filter(**key)
    labels = dict(layering.types.select("layer_type", "label").rows())
    several = len(trace.parts) > 1 or Attribution.of(trace).steps.select(_PLACE).n_unique() > 1
    where = f" of rank {key['rank']}, device {key['device']}" if several else ""
    title = f"step {key['step']}{where}"
    return Strip(title, f"{title}: the step with the median wall, {fmt.duration(step['wall_ns'])}",
                 _strip_data(rows, stretches, step, labels, colors))  # fmt: skip


def _strip_data(
    rows: pl.DataFrame, stretches: pl.DataFrame, step: Row, labels: Mapping[int, str], colors: Mapping[str, str]
) -> Figure:
    known = {tuple(row[name] for name in _PART): row for row in stretches.iter_rows(named=True)}
    groups = list(rows.sort("start_ns", "kernel_id").group_by(_PART, maintain_order=True))
    drawing = _Drawing(step["start_ns"], max(min(MAX_MARKS, MAX_ALL_MARKS // max(len(groups), 1)), 20), {}, {})
    parts = [drawing.part(_Part(*key), kernels, known.get(key), labels) for key, kernels in groups]
    here = {category for _, category in drawing.names}
    return {
        "wall": step["wall_ns"],
        "parts": sorted(parts, key=lambda part: (part["at"], part["id"])),
        "names": [list(key) for key in drawing.names],
        "streams": [str(stream) for stream in drawing.streams],
        "colors": {name: color for name, color in colors.items() if name in here},
    }


@dataclass(frozen=True)
class _Part:
    """A stretch of a step: a layer, or what is before, after or between layers."""

    section: Any
    model_pass: Any
    layer: Any

    @property
    def id(self) -> str:
        """Its anchor on the page."""
        if self.layer is not None:
            return f"layer-{self.model_pass or 0}-{self.layer}"
        return "-".join(str(each) for each in ("part", self.section, self.model_pass) if each is not None)

    @property
    def title(self) -> str:
        """What it is called."""
        numbered = f" of pass {self.model_pass}" if self.model_pass else ""
        if self.layer is not None:
            return f"layer {self.layer}{numbered}"
        return {"between": "between steps", None: "not attributed"}.get(self.section, f"{self.section}{numbered}")


@dataclass(frozen=True)
class _Drawing:
    """What is shared by the parts of a strip: names and streams are numbered as they come."""

    start_ns: int
    most: int
    """Kernels of a part that are drawn."""
    names: dict[tuple[str, str], int]
    streams: dict[int, int]

    def part(
        self,
        part: _Part,
        kernels: pl.DataFrame,
        stretch: Row | None,
        labels: Mapping[int, str],
    ) -> Figure:
        """The data of one part; without a stretch of the window it is as long as its kernels."""
        start_ns, wall_ns = _extent(kernels, stretch)
        mix = kernels.group_by("category").agg(pl.sum("dur_ns")).sort("dur_ns", "category", descending=[True, False])
        whole_ns = max(wall_ns, int(mix["dur_ns"].sum()), 1)
        label = labels.get(kernels["layer_type"][0])
        kind = f" ({fmt.visible(label)})" if label else ""
        return {
            "id": part.id,
            "title": part.title,
            "about": f"{part.title}{kind}: {fmt.duration(wall_ns)}, {fmt.plural(kernels.height, 'kernel')}",
            "at": start_ns - self.start_ns,
            "wall": wall_ns,
            "mix": [[name, round(ns / whole_ns, 4)] for name, ns in mix.rows() if ns > 0],
            "hidden": max(kernels.height - self.most, 0),
            "kernels": self._marks(kernels, start_ns),
        }

    def _marks(self, kernels: pl.DataFrame, start_ns: int) -> list[list[int]]:
        """The longest kernels in order of time."""
        longest = kernels.sort("dur_ns", "kernel_id", descending=[True, False], nulls_last=True).head(self.most)
        columns = ("start_ns", "dur_ns", "short_name", "category", "stream")
        marks: list[list[int]] = []
        for start, dur, short_name, category, stream in longest.sort("start_ns", "kernel_id").select(columns).rows():
            name = cut(fmt.visible(short_name), MAX_NAME, "middle")
            number = self.names.setdefault((name, category), len(self.names))
            marks.append([start - start_ns, dur or 0, number, self.streams.setdefault(stream, len(self.streams))])
        return marks


def _extent(kernels: pl.DataFrame, stretch: Row | None) -> tuple[int, int]:
    """Start and length: of the stretch of the window, else from the first kernel's start to the last end."""
    if stretch is not None and stretch["start_ns"] is not None and stretch["wall_ns"] is not None:
        return stretch["start_ns"], stretch["wall_ns"]
    starts, ends = kernels["start_ns"].to_list(), (kernels["start_ns"] + kernels["dur_ns"].fill_null(0)).to_list()
    return min(starts), max(ends) - min(starts)


def palette(categories: Iterable[Any]) -> dict[str, str]:
    """The colour of each category, in display order."""
    return {category.name: category.color for category in categories}
