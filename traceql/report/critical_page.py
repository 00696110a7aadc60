"""The page of `traceql critical-path`: one function a section, in the order of the page."""

from collections.abc import Callable

import polars as pl

from traceql import fmt
from traceql.analyses.critical_path import KINDS, LIMITS, CriticalPath
from traceql.report import numbers
from traceql.report.critical_words import path_line
from traceql.report.page import Column, Section, TextTable, View, made, top_title
from traceql.report.quirks import losses
from traceql.report.stage_words import several_stages

SectionMaker = Callable[[CriticalPath, View], Section | None]


def critical_page(found: CriticalPath, view: View) -> list[Section]:
    """The sections of the page: all, or the headline, the losses and the table that `view.by` names."""
    makers = OVERVIEW if view.by is None else (headline, losses, SECTIONS[view.by])
    return made(makers, found, view)


def headline(found: CriticalPath, view: View) -> Section:  # noqa: ARG001 - all sections are called alike
    """What the path is spent in."""
    return Section(lines=tuple(filter(None, [path_line(found), several_stages("Means", found.steps)])))


def kinds(found: CriticalPath, view: View) -> Section:  # noqa: ARG001
    """The path by kind of stretch, with the wall that the shares are of."""
    columns = (
        Column("spent in"),
        Column("kind"),
        Column("mean ms/step", "right"),
        Column("share", "right"),
        Column("number/step", "right", drop=1),
        Column("meaning", fit="wrap", drop=2),
    )
    sums = found.parts.group_by("limit", "kind").agg(pl.sum("ns_per_step", "share", "n_per_step"))
    sums = sums.sort("ns_per_step", "kind", descending=[True, False])
    rows = tuple(
        (
            row["limit"],
            row["kind"],
            fmt.ms(row["ns_per_step"]),
            fmt.percent(row["share"]),
            fmt.count(row["n_per_step"]),
            KINDS[row["kind"]][1],
        )
        for row in sums.iter_rows(named=True)
    )
    n_steps = found.steps.height
    wall_ns = numbers.total(found.steps["wall_ns"]) / n_steps
    total = ("wall", "", fmt.ms(wall_ns), fmt.percent(1.0 if wall_ns else None), "", "")
    notes = (f"Means over {fmt.plural(n_steps, 'complete step')}; the path of a step is as long as its wall.",)
    return Section("The critical path", table=TextTable(columns, (*rows, total), 1), notes=notes)


def parts(found: CriticalPath, view: View) -> Section:
    """Which kernels and calls are on the path."""
    return parts_table("On the path", found.parts, view.top, full_names=view.full_names)


def parts_table(title: str, frame: pl.DataFrame, top: int | None, *, full_names: bool) -> Section:
    """The first rows of a `path_parts` table as a section."""
    columns = (
        Column("spent in"),
        Column("kind", drop=2),
        Column("category", drop=3),
        Column("ms/step", "right"),
        Column("share", "right"),
        Column("number/step", "right", drop=1),
        Column("name", fit="open" if full_names else "middle", is_code=True),
    )
    shown = frame if top is None else frame.head(top)
    rows = tuple(
        (
            row["limit"],
            row["kind"],
            row["category"] or "",
            fmt.ms(row["ns_per_step"]),
            fmt.percent(row["share"]),
            fmt.count(row["n_per_step"]),
            fmt.visible(row["name"] or ""),
        )
        for row in shown.iter_rows(named=True)
    )
    return Section(
        top_title(title, len(rows), frame.height),
        () if rows else ("Nothing.",),
        TextTable(columns, rows) if rows else None,
    )


def steps(found: CriticalPath, view: View) -> Section:  # noqa: ARG001
    """Every step counted, with what its path is spent in."""
    columns = (
        Column("rank", "right"),
        Column("device", "right", drop=4),
        Column("step", "right"),
        Column("stage", drop=3),
        Column("wall ms", "right"),
        Column("host", "right"),
        Column("gpu", "right"),
        Column("communication", "right"),
        Column("dependency", "right", drop=1),
        Column("unknown", "right", drop=2),
        Column("on another rank", "right", drop=2),
        Column("limited by"),
    )
    times = ("wall_ns", *(f"{limit}_ns" for limit in LIMITS), "other_rank_ns")
    rows = tuple(
        (
            str(row["rank"]),
            str(row["device"]),
            str(row["step"]),
            row["stage"],
            *(fmt.ms(row[name]) for name in times),
            row["limited_by"],
        )
        for row in found.steps.iter_rows(named=True)
    )
    return Section("Steps", table=TextTable(columns, rows))


def basis(found: CriticalPath, view: View) -> Section | None:  # noqa: ARG001
    """What the path rests on besides what was recorded."""
    return Section("This rests on", found.notes) if found.notes else None


OVERVIEW: tuple[SectionMaker, ...] = (headline, losses, kinds, parts, basis)
SECTIONS: dict[str, SectionMaker] = {"part": parts, "step": steps}
