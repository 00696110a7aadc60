"""The page of `traceql layers`: one function a section, in the order of the page."""

from collections.abc import Callable
from typing import Any

import polars as pl

from traceql import fmt
from traceql.analyses.layer_stats import LayerStats, Unattributed
from traceql.ingest.ranks import in_words
from traceql.report import numbers
from traceql.report.layers_map import heat_map
from traceql.report.layers_words import METHODS, headline_text, stages_text, time_column
from traceql.report.page import Column, Section, TextTable, View, made, top_title
from traceql.report.quirks import losses

Row = dict[str, Any]

SECTION_NAMES = {
    "prologue": "prologue",
    "epilogue": "epilogue",
    "between": "between steps",
    None: "not attributed",
}

_SLOWEST = 5

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
    return made(makers, stats, view)


def headline(stats: LayerStats, view: View) -> Section:  # noqa: ARG001 - all sections are called alike
    """How many layers, what they take of the step, and how they were found."""
    return Section(lines=tuple(filter(None, [headline_text(stats), stages_text(stats)])))


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
    busy, kernel = (None if name == "busy_ns" and wall_ns is None else numbers.total(stats.sections[name]) / n
                    for name in ("busy_ns", "kernel_ns"))  # fmt: skip
    wall = None if wall_ns is None else wall_ns / n
    return ("", "wall", "", "", "", "", "", fmt.ms(wall), fmt.percent(share), fmt.ms(busy), fmt.ms(kernel))


def _about_types(stats: LayerStats) -> tuple[str, ...]:
    kind = "complete step" if stats.is_complete else "incomplete step"
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


def _of_ranks(stats: LayerStats) -> str:
    n_ranks = stats.counted.select("rank", "device").n_unique()
    return f" of {n_ranks} ranks (each rank's steps count)" if n_ranks > 1 else ""


# --- single layers ---


def slowest(stats: LayerStats, view: View) -> Section:  # noqa: ARG001
    """The layers with most time, and their longest."""
    column = time_column(stats, "{}_ns")
    ordered = stats.of_layers.sort(column, "model_pass", "layer", descending=[True, False, False])
    shown = ordered.head(_SLOWEST)
    return _layer_section(stats, shown, top_title("Slowest layers", shown.height, ordered.height))


def all_layers(stats: LayerStats, view: View) -> Section:  # noqa: ARG001
    """Every layer, in order."""
    return _layer_section(stats, stats.of_layers, "Layers")


def _layer_section(stats: LayerStats, layers: pl.DataFrame, title: str) -> Section:
    has_passes = stats.n_passes > 1
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
    where = f"layer {row['layer']}" + (f" of pass {row['model_pass']}" if stats.n_passes > 1 else "")
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
    numbered = f" of pass {key['model_pass']}" if stats.n_passes > 1 else ""
    times = f"wall {fmt.duration(layer['wall_ns'])}, kernel time {fmt.duration(layer['kernel_ns'])}"
    return (
        f"layer {key['layer']}{numbered} ({fmt.visible(label)}) in step {key['step']}{place}: {times}, "
        f"{fmt.plural(kernels.height, 'kernel')}; found by {METHODS[layer['method']]}, "
        f"confidence {layer['confidence']:.2f}"
    )
