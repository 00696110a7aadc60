"""The page of `traceql casts`: one function a section, in the order of the page."""

from collections.abc import Callable
from typing import Any

import polars as pl

from traceql import fmt
from traceql.analyses.casts import CastReport
from traceql.analyses.summary import Selection
from traceql.report.casts_document import table_of
from traceql.report.casts_words import casts_lines, speed
from traceql.report.page import Column, Section, TextTable, View, made, top_title
from traceql.report.quirks import losses
from traceql.report.stage_words import of_all_stages

Row = dict[str, Any]

_CLOSE = 1.01
"""A range of element counts that is narrower is shown as one figure."""

SectionMaker = Callable[[CastReport, View], Section | None]


def casts_page(report: CastReport, view: View) -> list[Section]:
    """The sections of the page: all, or the headline, the losses and the table that `view.by` names."""
    makers = OVERVIEW if view.by is None else (headline, losses, SECTIONS[view.by])
    if report.windows.is_empty():
        makers = (headline, losses)
    return made(makers, report, view)


def headline(report: CastReport, view: View) -> Section:  # noqa: ARG001 - all sections are called alike
    """What casts cost, and whether one converts a whole KV pool."""
    return Section(lines=casts_lines(report) or ("No GPU activity: casts are unknown.",))


def groups(report: CastReport, view: View) -> Section:
    """Casts and copies by kernel, dtypes, size and role."""
    found = report.groups.filter(pl.col("kind") != "custom")
    if found.is_empty():
        return Section("Casts and copies", ("None.",))
    return _group_section("Casts and copies", found, report, view, (*_unknowns(found, report), *_verdicts(found)))


def custom(report: CastReport, view: View) -> Section | None:
    """Kernels that quantise, or fuse a cast with other work: no casts, counted apart."""
    title, found = "Custom (de)quantise and cast kernels", report.groups.filter(kind="custom")
    if found.is_empty():
        return None if view.by is None else Section(title, ("None.",))
    lines = ("Their dtypes and sizes are not known.",)
    return _group_section(title, found, report, view, lines, without=_UNKNOWN_OF_CUSTOM)


_UNKNOWN_OF_CUSTOM = ("kind", "elements", "moved", "speed", "of peak", "dtypes")


def _group_section(
    title: str,
    found: pl.DataFrame,
    report: CastReport,
    view: View,
    lines: tuple[str, ...],
    *,
    without: tuple[str, ...] = (),
) -> Section:
    """A table of groups, most time first.

    Args:
        title: of the section.
        found: rows of `cast_groups`.
        report: what they are part of.
        view: how much is shown.
        lines: what stands above the table.
        without: titles of columns to leave out.
    """
    per = "step" if report.scope == "steps" else "trace"
    columns = (
        *_place_columns(report),
        Column("kind", drop=6),
        Column(f"a {per}", "right"),
        Column(f"ms/{per}", "right"),
        Column("of wall", "right", drop=1),
        Column("median µs", "right", drop=5),
        Column("elements", "right", drop=5),
        Column("moved", "right", drop=3),
        Column("speed", "right", drop=2),
        Column("of peak", "right", drop=4),
        Column("dtypes"),
        Column("where", drop=7),
        Column("kernel", fit="open" if view.full_names else "middle", is_code=True, drop=1),
    )
    ordered = found.sort("kernel_ns", "group_id", descending=[True, False])
    shown = ordered if view.top is None else ordered.head(view.top)
    rows = tuple((*_place(report, row), *_group_cells(row)) for row in shown.iter_rows(named=True))
    return Section(
        top_title(title, len(rows), found.height),
        lines,
        _without(TextTable(columns, rows), without),
        () if without else _notes(report),
    )


def _without(table: TextTable, titles: tuple[str, ...]) -> TextTable:
    """The table without some of its columns."""
    kept = [number for number, column in enumerate(table.columns) if column.title not in titles]
    rows = tuple(tuple(row[number] for number in kept) for row in table.rows)
    return TextTable(tuple(table.columns[number] for number in kept), rows)


def _group_cells(row: Row) -> tuple[str, ...]:
    return (
        "whole pool" if row["is_whole_pool"] else row["kind"],
        fmt.count(row["n_per_step"]),
        fmt.ms(row["ns_per_step"]),
        fmt.percent(row["share"]),
        fmt.us(row["median_dur_ns"]),
        _elements(row),
        _moved(row),
        speed(row["gb_per_s"]),
        fmt.percent(row["peak_frac"]),
        _dtypes(row),
        _where(row),
        fmt.visible(row["short_name"]),
    )


_GUESSED_SOURCE = "A source with `?` is not recorded: it is what the same steps cast to, at least as often."
_NO_SOURCE = "`?`: the source dtype is not recorded, nor how much is read."
_FROM_GRID = "Sizes not recorded come from the launch grid, as a range; speeds from its lower end."


def _unknowns(found: pl.DataFrame, report: CastReport) -> tuple[str, ...]:
    """What is not known, each said once."""
    has_no_source = pl.col("dst_dtype").is_not_null() & pl.coalesce("src_dtype", "likely_src_dtype").is_null()
    facts = (
        (found["likely_src_dtype"].count() > 0, _GUESSED_SOURCE),
        (found.filter(has_no_source).height > 0, _NO_SOURCE),
        (found.filter(size_evidence="grid").height > 0, _FROM_GRID),
        (report.devices["spec"].null_count() > 0, f"Peak bandwidth is not known: {_unknown_devices(report)}."),
        (not report.layers_known, "Layers are not known."),
    )
    return tuple(text for applies, text in facts if applies)


def _unknown_devices(report: CastReport) -> str:
    names = report.devices.filter(pl.col("spec").is_null())["name"].unique().sort().to_list()
    return ", ".join(fmt.visible(name) if name else "the trace does not name the GPU" for name in names)


def _verdicts(found: pl.DataFrame) -> tuple[str, ...]:
    """Why a group is a whole-pool cast."""
    pools = found.filter(pl.col("is_whole_pool"))
    return tuple(
        f"Whole pool (confidence {row['whole_pool_confidence']:.2f}): {row['whole_pool_reason']}."
        for row in pools.unique(["whole_pool_confidence", "whole_pool_reason"], maintain_order=True).iter_rows(
            named=True
        )
    )


def _notes(report: CastReport) -> tuple[str, ...]:
    """What the figures are of, and what the peak is."""
    counted = fmt.plural(report.windows.height, "complete step") + of_all_stages(report.windows)
    if report.scope != "steps":
        counted = f"the whole trace: no complete step{'' if report.selection == Selection() else ' selected'}"
    peaks = report.devices.drop_nulls("spec").unique(["name", "spec"], maintain_order=True).iter_rows(named=True)
    return (
        f"Over {counted}. Bytes moved are read and written.",
        *(
            f"Peak of {fmt.visible(row['name'])}: {speed(row['peak_bytes_per_s'] / 1e9)} ({row['source']})."
            for row in peaks
        ),
    )


def _elements(row: Row) -> str:
    least, most = row["n_elements_min"], row["n_elements_max"]
    if least is None or least == most:
        return fmt.count(least)
    if most <= least * _CLOSE:
        return f"~{most / 1e6:,.1f} M" if most >= 1e6 else f"~{fmt.count(most)}"
    return f"{fmt.count(least)}–{fmt.count(most)}"


def _moved(row: Row) -> str:
    ends = [
        row[f"read_bytes_{end}"] and row[f"read_bytes_{end}"] + row[f"written_bytes_{end}"] for end in ("min", "max")
    ]
    if ends[0] is None or ends[1] is None:
        return fmt.UNKNOWN
    return fmt.size(ends[0]) if ends[1] <= ends[0] * _CLOSE else f"{fmt.size(ends[0])}–{fmt.size(ends[1])}"


def _dtypes(row: Row) -> str:
    src = row["src_dtype"] or (f"{row['likely_src_dtype']}?" if row["likely_src_dtype"] else "?")
    if row["dst_dtype"] is None:
        return fmt.UNKNOWN
    return row["dst_dtype"] if row["kind"] == "copy" else f"{src} → {row['dst_dtype']}"


def _where(row: Row) -> str:
    if row["n_layers"] is not None:
        of_all = row["in_every_layer"] and row["n_layers"] > 1
        return f"{'each of ' if of_all else ''}{fmt.plural(row['n_layers'], 'layer')}"
    return row["section"] or ""


def longest(report: CastReport, view: View) -> Section:
    """The longest casts and copies."""
    columns = (
        *_place_columns(report),
        Column("step", "right"),
        Column("layer", "right", drop=3),
        Column("kind", drop=4),
        Column("µs", "right"),
        Column("elements", "right", drop=1),
        Column("speed", "right", drop=2),
        Column("dtypes"),
        Column("shape", drop=5),
        Column("op", fit="end", is_code=True, drop=4),
        Column("kernel", fit="open" if view.full_names else "middle", is_code=True, drop=3),
    )
    found = table_of(report, "cast")
    shown = found if view.top is None else found.head(view.top)
    rows = tuple(
        (
            *_place(report, row),
            fmt.count(row["step"]),
            fmt.count(row["layer"]),
            row["kind"],
            fmt.us(row["dur_ns"]),
            _elements(row),
            speed(row["gb_per_s"]),
            _dtypes(row),
            row["shape"] or fmt.UNKNOWN,
            fmt.visible(row["outer_op"] or row["op"] or fmt.UNKNOWN),
            fmt.visible(row["short_name"]),
        )
        for row in shown.iter_rows(named=True)
    )
    title = top_title("Longest casts and copies", len(rows), found.height)
    lines = _unknowns(shown, report) if rows else ("None.",)
    return Section(title, lines, TextTable(columns, rows) if rows else None)


OVERVIEW: tuple[SectionMaker, ...] = (headline, losses, groups, custom)
SECTIONS: dict[str, SectionMaker] = {"group": groups, "cast": longest, "custom": custom}


def _is_several(report: CastReport) -> bool:
    return report.devices.height > 1


def _place_columns(report: CastReport) -> tuple[Column, ...]:
    return (Column("rank", "right"), Column("device", "right", drop=6)) if _is_several(report) else ()


def _place(report: CastReport, row: Row) -> tuple[str, ...]:
    return (str(row["rank"]), str(row["device"])) if _is_several(report) else ()
