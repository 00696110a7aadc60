"""Steps as stacked bars: ms by category, and idle."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from traceql.report.maps import IDLE

MAX_BARS = 200
"""Of one device; of all together `MAX_ALL_BARS`."""
MAX_ALL_BARS = 4000

_PLACE = ["rank", "device"]
_STEP = [*_PLACE, "step"]

Row = dict[str, Any]
Figure = dict[str, Any]


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
