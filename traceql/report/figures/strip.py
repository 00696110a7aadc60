"""The strip of a step: its kernels in time, part by part."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from traceql import fmt
from traceql.analyses.attribution import Attribution
from traceql.analyses.layer_stats import LayerStats
from traceql.analyses.layering import Layering
from traceql.report.text import cut
from traceql.trace import Trace

MAX_MARKS = 400
"""Kernels of one layer in the strip; of all layers together `MAX_ALL_MARKS`."""
MAX_ALL_MARKS = 20_000
MAX_NAME = 200
"""Characters of a name in a figure; tables have more."""

_PLACE = ["rank", "device"]
_STEP = [*_PLACE, "step"]
_PART = ["section", "model_pass", "layer"]

Row = dict[str, Any]
Figure = dict[str, Any]


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
