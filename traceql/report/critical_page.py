"""The page and the data of `traceql critical-path`: one function a section, in the order of the page.

The JSON document (`to_json`); times in ns, shares 0 to 1, null is unknown:

- `trace`: what the file says about itself; `selection`: first_step, end_step, stage.
- `headline`: the answer in a sentence.
- `n_steps_counted`; `limits[]`: limit, ns_per_step, share.
- `parts[]`: what is on the paths (`--top`, all with `--all`), as table `path_parts`; `n_parts` is the number of all.
- `steps[]`: as table `path_steps`.
- `notes[]`: what this rests on; `quirks[]`: oddities of the file.

Every stretch of every path (table `critical_path`) is data for csv and parquet, with `--by stretch`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
import polars as pl

from traceql import fmt
from traceql.analyses.critical_path import KINDS, LIMITS, CriticalPath
from traceql.report import words
from traceql.report.page import Column, Section, TextTable
from traceql.report.plain import plain_rows

Row = dict[str, Any]

TABLES = {"part": "parts", "step": "steps", "stretch": "path"}
"""What `--by` names, and the field of `CriticalPath` that has it."""
_IN_WORDS = {
    "host": "the host",
    "gpu": "the GPU's work",
    "communication": "communication",
    "dependency": "waits between streams",
    "unknown": "what is not recorded",
}


@dataclass(frozen=True)
class View:
    """How much is shown: one table (`by`) or all, the first `top` parts (None: all), names cut or whole."""

    by: str | None = None
    top: int | None = 15
    full_names: bool = False


# --- the headline ---


def path_line(found: CriticalPath) -> str:
    """`the critical path of a step: 99.7 % the GPU's work, 0.2 % waits between streams, 0.1 % the host`."""
    shares = sorted(((row["share"] or 0, row["limit"]) for row in limit_rows(found)), key=lambda each: -each[0])
    told = ", ".join(f"{fmt.percent(part)} {_IN_WORDS[limit]}" for part, limit in shares if part > 0)
    other_ns, wall_ns = words.total(found.steps["other_rank_ns"]), words.total(found.steps["wall_ns"])
    line = f"the critical path of a step: {told or fmt.UNKNOWN}"
    if other_ns and wall_ns:
        line += f"; {share(other_ns / wall_ns)} of it on another rank"
    return line


def limit_rows(found: CriticalPath) -> list[Row]:
    """Each limit with its time on the paths."""
    sums = {
        limit: (float(part["ns_per_step"].sum()), float(part["share"].sum()))
        for (limit,), part in found.parts.group_by("limit")
    }
    rows = [(limit, *sums.get(limit, (0.0, 0.0))) for limit in LIMITS]
    return [{"limit": limit, "ns_per_step": ns, "share": part} for limit, ns, part in rows]


def share(fraction: float) -> str:
    """A percentage without decimals where it has two digits before them."""
    return f"{fraction * 100:.0f} %" if fraction >= 0.0995 else fmt.percent(fraction)


# --- the page ---

SectionMaker = Callable[[CriticalPath, View], Section | None]


def critical_page(found: CriticalPath, view: View) -> list[Section]:
    """The sections of the page: all, or the headline, the losses and the table that `view.by` names."""
    makers = OVERVIEW if view.by is None else (headline, losses, SECTIONS[view.by])
    sections = (maker(found, view) for maker in makers)
    return [section for section in sections if section is not None]


def headline(found: CriticalPath, view: View) -> Section:  # noqa: ARG001 - all sections are called alike
    """What the path is spent in."""
    return Section(lines=(path_line(found),))


def losses(found: CriticalPath, view: View) -> Section | None:  # noqa: ARG001
    """What of the file could not be read: the figures miss it."""
    lost = [quirk for quirk in found.quirks if quirk.effect == "lost"]
    if not lost:
        return None
    return Section("Incomplete: parts of this trace are lost", lines=words.quirk_lines(lost), is_warning=True)


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
    wall_ns = words.total(found.steps["wall_ns"]) / n_steps
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
    whole = len(rows) == frame.height
    return Section(
        title if whole else f"{title}: top {len(rows)} of {frame.height}",
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


# --- data ---


def table_of(found: CriticalPath, by: str, top: int | None = None) -> pl.DataFrame:
    """The table that `by` names, all rows or the first `top`."""
    frame: pl.DataFrame = getattr(found, TABLES[by])
    return frame if top is None else frame.head(top)


def to_json(found: CriticalPath, top: int | None) -> bytes:
    """The document described above, indented; `top` shortens `parts` only."""
    return orjson.dumps(critical_document(found, top), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def critical_document(found: CriticalPath, top: int | None) -> dict[str, Any]:
    """The document as plain data."""
    return {
        "trace": msgspec.to_builtins(found.trace),
        "selection": {
            "first_step": found.selection.first_step,
            "end_step": found.selection.end_step,
            "stage": found.selection.stage,
        },
        "headline": path_line(found),
        "n_steps_counted": found.steps.height,
        "limits": limit_rows(found),
        "n_parts": found.parts.height,
        "parts": plain_rows(table_of(found, "part", top)),
        "steps": plain_rows(found.steps),
        "notes": list(found.notes),
        "quirks": msgspec.to_builtins(found.quirks),
    }
