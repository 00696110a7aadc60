"""The page and the data of `traceql layers`: one function a section, in the order of the page.

The JSON document (`to_json`); times in ns, shares 0 to 1, null is unknown:

- `trace`: what the file says about itself; `selection`: first_step, end_step, stage.
- `headline`: the answer in a sentence.
- `n_steps`: steps selected; `n_steps_counted`: those that figures count (each rank's count): the complete ones that
  have layers; `is_complete`: whether they are complete ones; `wall_ns`: their wall, added up.
- `layers[]`: every selected step's layers: rank, device, step, model_pass, layer, layer_type, start_ns, wall_ns,
  busy_ns, kernel_ns, n_kernels, method, confidence, as table `layers`.
- `layer_types[]`: over the steps counted, as table `layer_type_stats`; `layer_stats[]`: as the table of that name.
- `sections[]`: as table `layer_sections`: their `wall_ns` adds up to the `wall_ns` above.
- `categories[]`: layer × category, as table `layer_categories`.
- `odd[]`: layers far from their type, as table `odd_layers`.
- `unattributed`: kernel_ns, share, n_kernels, notes[].
- `kernels[]`: with `--layer` its kernels in one step, as table `layer_kernels`; else empty.
- `quirks[]`: oddities of the file.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
import polars as pl

from traceql import fmt
from traceql.analyses.layer_stats import LayerStats, Unattributed
from traceql.ingest.ranks import in_words
from traceql.report import words
from traceql.report.page import Column, Section, TextTable
from traceql.report.plain import plain_rows

Row = dict[str, Any]

TABLES = {"type": "types", "layer": "of_layers", "category": "categories"}
"""What `--by` names besides `kernel`, and the field of `LayerStats` that has it."""

METHODS = {
    "module": "module calls",
    "annotation": "annotations",
    "graph-node": "annotated graph nodes",
    "capture": "the capture trace",
    "sequence": "the kernel sequence",
}
"""By what layers are found, in words."""

SECTION_NAMES = {
    "prologue": "prologue",
    "epilogue": "epilogue",
    "between": "between steps",
    None: "not attributed",
}

LEVELS = "▁▂▃▄▅▆▇█"
NOTHING = "·"
"""A cell of the map without any time; also where a layer is missing."""
_MAX_CELLS = 48
"""Of the map: with its other columns it fits 80 cells."""
_MAX_ROWS = 7
_TOLD_TYPES = 4
"""In a sentence; the others are counted."""
_SLOWEST = 5


@dataclass(frozen=True)
class View:
    """How much is shown: one table (`by`) or all, names cut or whole."""

    by: str | None = None
    full_names: bool = False


# --- the headline ---


def layers_line(stats: LayerStats) -> str | None:
    """How many layers a step has, of which types, in one sentence; None where none are found.

    `78 layers a step: 3 × attention + mlp 0.96 ms, 75 × attention + moe 1.08 ms`. Figures are means.
    """
    return _line(stats) if stats.types.height else None


def _line(stats: LayerStats) -> str:
    several = f" in {stats.types.height} types" if stats.types.height > _TOLD_TYPES else ""
    return f"{_number_of_layers(stats)}{several}: {', '.join(_types_told(stats))}"


def _number_of_layers(stats: LayerStats) -> str:
    number = words.total(stats.types["n_layers"]) / stats.counted.height
    return f"{fmt.count(number)} {'layer' if number == 1 else 'layers'} a step"


def _types_told(stats: LayerStats) -> list[str]:
    """Each type with its layers a step and the mean time of one; those with most time where there are many."""
    n_types = stats.types.height
    told = stats.types.top_k(_TOLD_TYPES, by=_time(stats, "{}_ns")).sort("layer_type")
    per_layer = _time(stats, "{}_ns_per_layer")
    texts = [
        f"{fmt.count(row['layers_per_step'])} × {_blocks_of(row['label'])} {_short(row[per_layer])}"
        for row in told.iter_rows(named=True)
    ]
    return [*texts, f"{n_types - told.height} more"] if told.height < n_types else texts


def _blocks_of(label: str) -> str:
    """The label without the module class, which a table has room for."""
    return fmt.visible(label.rsplit(": ", 1)[-1])


def _time(stats: LayerStats, column: str) -> str:
    """A column of walls; of kernel time where steps have no windows."""
    return column.format("wall" if stats.has_walls else "kernel")


def _short(ns: float | None) -> str:
    """With two decimals of a ms where it has as much."""
    return f"{ns / 1e6:,.2f} ms" if ns is not None and ns >= 100_000 else fmt.duration(ns)


def _found_by(stats: LayerStats) -> str:
    methods = [name for texts in stats.types["method"].to_list() for name in texts.split(", ")]
    named = " and ".join(METHODS[name] for name in dict.fromkeys(methods))
    confidences = stats.types["confidence"].to_list()
    least, most = f"{min(confidences):.2f}", f"{max(confidences):.2f}"
    return f"found by {named}, confidence {least}{'' if least == most else f' to {most}'}"


# --- the page ---

SectionMaker = Callable[[LayerStats, View], Section | None]


def layers_page(stats: LayerStats, view: View, kernels: pl.DataFrame | None = None) -> list[Section]:
    """The sections of the page: all, or the headline, the losses and the table that `view.by` names.

    With kernels (table `layer_kernels`) it is about that layer, unless `view.by` names another table.
    """
    if kernels is not None and view.by in (None, "kernel"):
        return kernels_page(stats, view, kernels)
    makers = OVERVIEW if view.by is None else (headline, losses, SECTIONS[view.by])
    if not stats.types.height:
        makers = (headline, losses, unattributed)
    sections = (maker(stats, view) for maker in makers)
    return [section for section in sections if section is not None]


def headline(stats: LayerStats, view: View) -> Section:  # noqa: ARG001 - all sections are called alike
    """How many layers, what they take of the step, and how they were found."""
    return Section(lines=(headline_text(stats),))


def headline_text(stats: LayerStats) -> str:
    """The answer in a sentence."""
    if not stats.types.height:
        return _without_layers(stats)
    n_types = stats.types.height
    types = f"{_number_of_layers(stats)} in {fmt.plural(n_types, 'type')}: {', '.join(_types_told(stats))}"
    return "; ".join((types, _part_of_step(stats), _found_by(stats)))


def _without_layers(stats: LayerStats) -> str:
    if stats.chosen.is_empty():
        return "No steps found: layers are told within steps."
    which = "the step" if stats.chosen.height == 1 else f"the {stats.chosen.height} steps"
    return f"No layers found in {which} looked at."


def _part_of_step(stats: LayerStats) -> str:
    """`83.9 ms of 84.1 ms a step`; kernel time is said to be that."""
    n, walls = stats.counted.height, stats.has_walls
    spent = words.total(stats.types[_time(stats, "{}_ns")]) / n
    whole = words.total(stats.counted[_time(stats, "{}_ns")]) / n
    form = _tenths if whole >= 10e6 else _short
    return f"{form(spent)} of {form(whole)}{'' if walls else ' kernel time'} a step"


def _tenths(ns: float) -> str:
    return f"{ns / 1e6:,.1f} ms"


def losses(stats: LayerStats, view: View) -> Section | None:  # noqa: ARG001
    """What of the file could not be read: the figures miss it."""
    lost = [quirk for quirk in stats.quirks if quirk.effect == "lost"]
    if not lost:
        return None
    return Section("Incomplete: parts of this trace are lost", lines=words.quirk_lines(lost), is_warning=True)


def types(stats: LayerStats, view: View) -> Section:  # noqa: ARG001
    """The types of layers and what is around the layers: with them the rows add up to the wall."""
    columns = (
        Column("type", "right"),
        Column("what", fit="wrap"),
        Column("layers", fit="end", drop=5),
        Column("layers/step", "right"),
        Column("ms/layer", "right"),
        Column("median", "right", drop=3),
        Column("kernels", "right", drop=1),
        Column("ms/step", "right"),
        Column("share of wall", "right"),
        Column("busy ms/step", "right", drop=4),
        Column("kernel time ms/step", "right", drop=6),
    )
    around = stats.sections.filter(pl.col("section").ne_missing("layer"))
    rows = (
        *(_type_cells(stats, row) for row in stats.types.iter_rows(named=True)),
        *(_section_cells(row) for row in around.iter_rows(named=True)),
        _wall_cells(stats),
    )
    return Section("Layer types", table=TextTable(columns, rows, 1), notes=_about_types(stats))


def _type_cells(stats: LayerStats, row: Row) -> tuple[str, ...]:
    return (
        str(row["layer_type"]),
        fmt.visible(row["label"]),
        _which(stats.of_layers.filter(layer_type=row["layer_type"])),
        fmt.count(row["layers_per_step"]),
        fmt.ms(row["wall_ns_per_layer"]),
        fmt.ms(row["median_wall_ns"]),
        fmt.count(row["kernels_per_layer"]),
        *_step_cells(row),
    )


def _which(layers: pl.DataFrame) -> str:
    """The numbers of some layers, by pass where there are several: `0 to 2`."""
    passes = layers.group_by("model_pass", maintain_order=True).agg("layer").rows()
    texts = [(number, in_words(set(numbers))) for number, numbers in passes]
    return "; ".join(f"pass {number}: {text}" if number else text for number, text in texts)


def _section_cells(row: Row) -> tuple[str, ...]:
    return ("", SECTION_NAMES[row["section"]], "", "", "", "", "", *_step_cells(row))


def _step_cells(row: Row) -> tuple[str, ...]:
    names = ("busy_ns_per_step", "kernel_ns_per_step")
    return fmt.ms(row["wall_ns_per_step"]), fmt.percent(row["share"]), *(fmt.ms(row[name]) for name in names)


def _wall_cells(stats: LayerStats) -> tuple[str, ...]:
    n, wall_ns = stats.counted.height, stats.wall_ns
    share = None if wall_ns is None else 1.0
    busy, kernel = (None if name == "busy_ns" and wall_ns is None else words.total(stats.sections[name]) / n
                    for name in ("busy_ns", "kernel_ns"))  # fmt: skip
    wall = None if wall_ns is None else wall_ns / n
    return ("", "wall", "", "", "", "", "", fmt.ms(wall), fmt.percent(share), fmt.ms(busy), fmt.ms(kernel))


def _about_types(stats: LayerStats) -> tuple[str, ...]:
    kind = "complete step" if _is_complete(stats) else "incomplete step"
    notes = [
        f"Means over {fmt.plural(stats.counted.height, kind)}{_of_ranks(stats)}; median: of one layer.",
        "Prologue and epilogue: before the first and after the last layer.",
    ]
    without = stats.looked_at.height - stats.counted.height
    if without > 0:
        notes.append(f"{fmt.plural(without, 'step')} without layers do not count.")
    if not stats.has_walls:
        notes.append("These steps overlap: only kernel time can be told.")
    return tuple(notes)


def _is_complete(stats: LayerStats) -> bool:
    return stats.counted.height > 0 and bool((stats.counted["is_complete"] & stats.counted["separable"]).all())


def _of_ranks(stats: LayerStats) -> str:
    n_ranks = stats.counted.select("rank", "device").n_unique()
    return f" of {n_ranks} ranks (each rank's steps count)" if n_ranks > 1 else ""


# --- the map ---


@dataclass(frozen=True)
class _Grid:
    """The cells of a map: one a layer, or a few layers where there are many."""

    n_layers: int

    @property
    def per_cell(self) -> int:
        """Layers of a cell."""
        return math.ceil(self.n_layers / _MAX_CELLS)

    def cells(self, times: pl.DataFrame, column: str) -> list[float]:
        """The mean time of a layer in each cell."""
        sums = [0.0] * math.ceil(self.n_layers / self.per_cell)
        for layer, ns in times.select("layer", column).iter_rows():
            sums[layer // self.per_cell] += ns or 0
        sizes = (min(self.per_cell, self.n_layers - cell * self.per_cell) for cell in range(len(sums)))
        return [ns / size for ns, size in zip(sums, sizes, strict=True)]


def heat_map(stats: LayerStats, view: View) -> Section | None:  # noqa: ARG001
    """Time by layer and category: a row of blocks for each category, those with most time first."""
    number = _longest_pass(stats)
    layers = stats.of_layers.filter(model_pass=number)
    grid = _Grid(1 + max(layers["layer"].to_list()))
    column = _time(stats, "{}_ns_per_step")
    in_all = grid.cells(layers, column)
    top_ns = max(in_all)
    if not top_ns:
        return None
    totals = [("all", layers.select("layer", ns=column))]
    if stats.has_walls:
        totals.insert(0, ("idle", layers.select("layer", ns=pl.col(column) - pl.col("busy_ns_per_step"))))
    rows = [
        (name, _blocks(grid.cells(times, "ns"), top_ns), fmt.ms(words.total(times["ns"])))
        for name, times in (*_map_rows(stats, number), *totals)
    ]
    numbers = Column(f"layers 0 to {grid.n_layers - 1}", is_code=True, is_heat=True)
    table = TextTable((Column("category"), numbers, Column("ms/step", "right")), tuple(rows), len(totals))
    title = "Layers by category" + (f", pass {number}" if _n_passes(stats) > 1 else "")
    return Section(title, table=table, notes=(_legend(top_ns, grid.per_cell),))


def _map_rows(stats: LayerStats, model_pass: int) -> list[tuple[str, pl.DataFrame]]:
    """Categories with their time by layer (layer, ns), most time first; the last ones taken together."""
    kind = "exclusive" if stats.has_walls else "kernel"
    times = stats.categories.filter(model_pass=model_pass).select("category", "layer", ns=f"{kind}_ns_per_step")
    sums = times.group_by("category").agg(pl.sum("ns")).filter(pl.col("ns") > 0)
    names = sums.sort("ns", "category", descending=[True, False])["category"].to_list()
    rows = [(fmt.visible(name), times.filter(category=name)) for name in names[:_MAX_ROWS]]
    rest = names[_MAX_ROWS:]
    return [*rows, (f"{len(rest)} more", times.filter(pl.col("category").is_in(rest)))] if rest else rows


def _longest_pass(stats: LayerStats) -> int:
    """The forward pass with most time."""
    column = _time(stats, "{}_ns")
    times = stats.of_layers.group_by("model_pass").agg(pl.sum(column))
    return times.sort(column, "model_pass", descending=[True, False])["model_pass"][0]


def _n_passes(stats: LayerStats) -> int:
    return stats.of_layers["model_pass"].n_unique()


def _blocks(cells: Sequence[float], top_ns: float) -> str:
    """A block a cell, the full one for `top_ns`."""
    levels = (min(math.ceil(ns / top_ns * len(LEVELS)), len(LEVELS)) for ns in cells)
    return "".join(LEVELS[level - 1] if level > 0 else NOTHING for level in levels)


def _legend(top_ns: float, per_cell: int) -> str:
    cell = "One cell a layer" if per_cell == 1 else f"One cell {per_cell} layers"
    first, last = fmt.ms(top_ns / len(LEVELS)), fmt.ms(top_ns)
    return f"{cell}. A layer: {LEVELS[0]} up to {first} ms, {LEVELS[-1]} up to {last} ms, {NOTHING} nothing."


# --- single layers ---


def slowest(stats: LayerStats, view: View) -> Section:  # noqa: ARG001
    """The layers with most time, and their longest."""
    column = _time(stats, "{}_ns")
    ordered = stats.of_layers.sort(column, "model_pass", "layer", descending=[True, False, False])
    shown = ordered.head(_SLOWEST)
    return _layer_section(stats, shown, f"Slowest layers: top {shown.height} of {ordered.height}")


def all_layers(stats: LayerStats, view: View) -> Section:  # noqa: ARG001
    """Every layer, in order."""
    return _layer_section(stats, stats.of_layers, "Layers")


def _layer_section(stats: LayerStats, layers: pl.DataFrame, title: str) -> Section:
    has_passes = _n_passes(stats) > 1
    has_ranks = stats.counted["rank"].n_unique() > 1
    columns = (
        *((Column("pass", "right"),) if has_passes else ()),
        Column("layer", "right"),
        Column("type", "right", drop=5),
        Column("ms/layer", "right"),
        Column("median", "right", drop=1),
        Column("longest", "right", drop=2),
        *((Column("on rank", "right", drop=3),) if has_ranks else ()),
        Column("in step", "right", drop=3),
        Column("share of wall", "right"),
        Column("busy ms", "right", drop=4),
        Column("kernel time ms", "right", drop=6),
        Column("kernels", "right", drop=7),
    )
    rows = tuple(
        (
            *((str(row["model_pass"]),) if has_passes else ()),
            str(row["layer"]),
            str(row["layer_type"]),
            *(fmt.ms(row[name]) for name in ("wall_ns_per_layer", "median_wall_ns", "max_wall_ns")),
            *((fmt.count(row["max_rank"]),) if has_ranks else ()),
            fmt.count(row["max_step"]),
            fmt.percent(row["share"]),
            *(fmt.ms(row[name]) for name in ("busy_ns_per_layer", "kernel_ns_per_layer")),
            fmt.count(row["kernels_per_layer"]),
        )
        for row in layers.iter_rows(named=True)
    )
    return Section(title, table=TextTable(columns, rows))


def odd(stats: LayerStats, view: View) -> Section | None:  # noqa: ARG001
    """The layers that are far from the median of their type."""
    if stats.odd.is_empty():
        return None
    labels = dict(stats.types.select("layer_type", "label").rows())
    lines = tuple(_odd_line(stats, row, labels) for row in stats.odd.head(2 * _SLOWEST).iter_rows(named=True))
    hidden = stats.odd.height - len(lines)
    notes = ("Far from the median of their type: by 5 % and by three deviations (median absolute deviation).",)
    return Section("Odd layers", lines, notes=(*notes, *([f"{hidden} more are not named."] if hidden else ())))


def _odd_line(stats: LayerStats, row: Row, labels: dict[int, str]) -> str:
    where = f"layer {row['layer']}" + (f" of pass {row['model_pass']}" if _n_passes(stats) > 1 else "")
    parts = [
        f"{what} {fmt.duration(row[f'median_{name}_ns'])}, {row[f'{name}_ratio']:.2f} × the median of its type"
        for name, what in (("wall", "wall"), ("kernel", "kernel time"))
        if row[f"{name}_ratio"] is not None and abs(row[f"{name}_ratio"] - 1) > 0.005
    ]
    return f"{where} ({fmt.visible(labels[row['layer_type']])}): {'; '.join(parts)}"


def categories(stats: LayerStats, view: View) -> Section:  # noqa: ARG001
    """Exclusive time by section, layer type and category."""
    typed = stats.of_layers.unique(["model_pass", "layer"], keep="first", maintain_order=True)
    typed = typed.select("model_pass", "layer", "layer_type")
    rows = stats.categories.join(typed, on=["model_pass", "layer"], how="left", validate="m:1")
    totals = rows.group_by("section", "layer_type", "category").agg(
        pl.sum("exclusive_ns_per_step", "kernel_ns_per_step", "n_kernels")
    )
    totals = totals.sort("layer_type", "section", "exclusive_ns_per_step", "kernel_ns_per_step", "category",
                         descending=[False, False, True, True, False], nulls_last=True)  # fmt: skip
    columns = (
        Column("of"),
        Column("category"),
        Column("ms/step", "right"),
        Column("kernel time ms/step", "right", drop=1),
        Column("kernels/step", "right", drop=2),
    )
    texts = tuple(
        (
            SECTION_NAMES[row["section"]] if row["layer_type"] is None else f"layer type {row['layer_type']}",
            fmt.visible(row["category"]),
            fmt.ms(row["exclusive_ns_per_step"]) if stats.has_walls else fmt.UNKNOWN,
            fmt.ms(row["kernel_ns_per_step"]),
            fmt.count(row["n_kernels"] / stats.counted.height),
        )
        for row in totals.iter_rows(named=True)
    )
    return Section("Categories", table=TextTable(columns, texts), notes=("Exclusive time; csv has it by layer.",))


def unattributed(stats: LayerStats, view: View) -> Section | None:  # noqa: ARG001
    """What belongs to no layer and to nothing around layers, and why."""
    found = stats.unattributed
    if not found.n_kernels and (not found.notes or stats.chosen.is_empty()):
        return None
    return Section("Not attributed", (*_amount(found), *(fmt.visible(note) for note in found.notes)))


def _amount(found: Unattributed) -> tuple[str, ...]:
    if not found.n_kernels:
        return ()
    kernels = fmt.plural(found.n_kernels, "GPU activity", "GPU activities")
    return (f"{fmt.percent(found.share)} of the kernel time ({fmt.duration(found.kernel_ns)}, {kernels}).",)


OVERVIEW: tuple[SectionMaker, ...] = (headline, losses, types, heat_map, slowest, odd, unattributed)
SECTIONS: dict[str, SectionMaker] = {"type": types, "layer": all_layers, "category": categories}


# --- one layer ---


def kernels_page(stats: LayerStats, view: View, kernels: pl.DataFrame) -> list[Section]:
    """The kernel sequence of one layer (table `layer_kernels`, not empty) in one step."""
    first = kernels.row(0, named=True)
    columns = (
        Column("#", "right", drop=2),
        Column("at µs", "right"),
        Column("µs", "right"),
        Column("median", "right", drop=1),
        Column("stream", "right", drop=3),
        Column("block", drop=4),
        Column("category", drop=5),
        Column("kernel", fit="open" if view.full_names else "middle", is_code=True),
    )
    rows = tuple(_kernel_cells(row, view) for row in kernels.iter_rows(named=True))
    n_steps = fmt.plural(first["n_alike"], "step")
    notes = (
        f"Of this layer's steps the one with the median wall. Medians: {n_steps} in which it runs the same kernels.",
        "A negative start: on a side stream, before the layer begins on the main stream.",
    )
    notes = notes if any((ns or 0) < 0 for ns in kernels["offset_ns"].to_list()) else notes[:1]
    table = Section("Kernels", table=TextTable(columns, rows), notes=notes)
    sections = (Section(lines=(_layer_line(stats, first, kernels),)), losses(stats, view), table)
    return [section for section in sections if section is not None]


def _kernel_cells(row: Row, view: View) -> tuple[str, ...]:
    return (
        str(row["position"]),
        fmt.us(row["offset_ns"]),
        fmt.us(row["dur_ns"]),
        fmt.us(row["median_dur_ns"]),
        str(row["stream"]),
        row["block"],
        fmt.visible(row["category"]),
        fmt.visible(row["name"] if view.full_names else row["short_name"]),
    )


def _layer_line(stats: LayerStats, first: Row, kernels: pl.DataFrame) -> str:
    """`layer 12 (attention + moe) of decode step 15: 1.077 ms, 30 kernels, ...`."""
    key = {name: first[name] for name in ("rank", "device", "step", "model_pass", "layer")}
    layer = stats.layers.filter(**key).row(0, named=True)
    label = stats.types.filter(layer_type=layer["layer_type"])["label"][0]
    n_devices = stats.counted.select("rank", "device").n_unique()
    place = f" of rank {key['rank']}" if n_devices > 1 else ""
    place += f", device {key['device']}" if n_devices > stats.counted["rank"].n_unique() else ""
    numbered = f" of pass {key['model_pass']}" if _n_passes(stats) > 1 else ""
    times = f"wall {fmt.duration(layer['wall_ns'])}, kernel time {fmt.duration(layer['kernel_ns'])}"
    return (
        f"layer {key['layer']}{numbered} ({fmt.visible(label)}) in step {key['step']}{place}: {times}, "
        f"{fmt.plural(kernels.height, 'kernel')}; found by {METHODS[layer['method']]}, "
        f"confidence {layer['confidence']:.2f}"
    )


# --- data ---


def table_of(stats: LayerStats, by: str | None, kernels: pl.DataFrame | None = None) -> pl.DataFrame:
    """The table that `by` names; by default that of the kernels, where there is one, else that of the types."""
    if kernels is not None and by in (None, "kernel"):
        return kernels
    return getattr(stats, TABLES[by or "type"])


def to_json(stats: LayerStats, kernels: pl.DataFrame | None = None) -> bytes:
    """The document described above, indented."""
    return orjson.dumps(layers_document(stats, kernels), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def layers_document(stats: LayerStats, kernels: pl.DataFrame | None = None) -> dict[str, Any]:
    """The document as plain data."""
    return {
        "trace": msgspec.to_builtins(stats.trace),
        "selection": {
            "first_step": stats.selection.first_step,
            "end_step": stats.selection.end_step,
            "stage": stats.selection.stage,
        },
        "headline": headline_text(stats),
        "n_steps": stats.chosen.height,
        "n_steps_counted": stats.counted.height,
        "is_complete": _is_complete(stats),
        "wall_ns": stats.wall_ns,
        "layer_types": plain_rows(stats.types),
        "sections": plain_rows(stats.sections),
        "odd": plain_rows(stats.odd),
        "unattributed": {
            "kernel_ns": stats.unattributed.kernel_ns,
            "share": stats.unattributed.share,
            "n_kernels": stats.unattributed.n_kernels,
            "notes": list(stats.unattributed.notes),
        },
        "layer_stats": plain_rows(stats.of_layers),
        "layers": plain_rows(stats.layers),
        "categories": plain_rows(stats.categories),
        "kernels": [] if kernels is None else plain_rows(kernels),
        "quirks": msgspec.to_builtins(stats.quirks),
    }
