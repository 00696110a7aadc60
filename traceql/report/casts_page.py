"""The page and the data of `traceql casts`: one function a section, in the order of the page.

The JSON document (`to_json`); times in ns, shares 0 to 1, null is unknown:

- `trace`: what the file says about itself; `selection`: first_step, end_step, stage.
- `headline`: the answer in a sentence; null without GPU activity.
- `scope`: `steps` (the complete ones are counted) or `trace` (there is none: one window a device); `n_steps_counted`.
- `device`: what the GPU can do at most, as table `device_peaks`; null where devices differ; `devices[]`: each.
- `groups[]`: casts and copies of the steps counted, as table `cast_groups`.
- `casts[]`: the longest casts and copies of the steps selected (`--top`, all with `--all`), as table `casts`;
  `n_casts` is the number of all.
- `custom[]`: (de)quantise and fused cast kernels, as table `cast_groups`.
- `quirks[]`: oddities of the file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import orjson
import polars as pl

from traceql import fmt
from traceql.analyses.casts import CastReport
from traceql.analyses.pool_verdicts import POOL_FRAC
from traceql.report import words
from traceql.report.page import Column, Section, TextTable
from traceql.report.plain import plain_rows

Row = dict[str, Any]

TABLES = ("group", "cast", "custom")
"""What `--by` names."""
_CLOSE = 1.01
"""A range of element counts that is narrower is shown as one figure."""


@dataclass(frozen=True)
class View:
    """How much is shown: one table (`by`) or all, the first `top` rows (None: all), names cut or whole."""

    by: str | None = None
    top: int | None = 15
    full_names: bool = False


# --- the headline ---


def casts_line(report: CastReport) -> str | None:
    """What casts and copies cost, in one sentence; of several devices that one where it is most.

    Figures are medians over the steps counted. None without GPU activity.
    """
    if report.windows.is_empty():
        return None
    places = [_Place(report, rank, device) for rank, device in report.windows.select("rank", "device").unique().rows()]
    place = max(places, key=lambda place: (place.pool_ns, place.cast_ns, -place.rank, -place.device))
    line = place.pool_line() if place.pools.height else place.plain_line()
    return f"{line} (rank {place.rank}, device {place.device}: the most of {len(places)})" if len(places) > 1 else line


class _Place:
    """The figures of one device."""

    def __init__(self, report: CastReport, rank: int, device: int) -> None:
        self.rank, self.device = rank, device
        self._windows = report.windows.filter(rank=rank, device=device)
        self._groups = report.groups.filter(rank=rank, device=device)
        self._casts = report.casts.filter(rank=rank, device=device)
        self._scope = report.scope
        self.pools = self._groups.filter(pl.col("is_whole_pool"))
        self.pool_ns = self._per_step(self._casts.filter(pl.col("group_id").is_in(self.pools["group_id"].implode())))
        self.cast_ns = self._per_step(self._casts.filter(kind="cast"))

    def pool_line(self) -> str:
        """`78 casts a step of the whole KV pool to bf16 take 66.2 of 84.0 ms (79 %), 855 MB each at 1.0 TB/s, ...`."""
        pool = self.pools.row(0, named=True)
        number = fmt.count(float(self.pools["n_per_step"].sum()))
        return (
            f"{number} casts a step of the whole KV pool {_dtypes_in_words(pool)} take "
            f"{self._of_wall(self.pool_ns)}{_speed_in_words(pool)}"
        )

    def plain_line(self) -> str:
        """`casts take 4.8 of 168.1 ms a step (3 %), copies 0.0 of ...; none converts a whole KV pool`."""
        copy_ns = self._per_step(self._casts.filter(kind="copy"))
        what = "a step" if self._scope == "steps" else "in the whole trace"
        costs = f"casts take {self._of_wall(self.cast_ns)} {what}, copies {self._share(copy_ns)}"
        open_cases = self._groups.filter(
            (pl.col("kind") == "cast") & pl.col("is_whole_pool").is_null() & (pl.col("work_frac") >= POOL_FRAC)
        )
        if not self._groups.filter(kind="cast").height:
            return f"no casts; copies take {self._of_wall(copy_ns)} {what}"
        if open_cases.height:
            return f"{costs}; whether one converts a whole KV pool: {open_cases['whole_pool_reason'][0]}"
        return f"{costs}; none converts a whole KV pool"

    def _per_step(self, rows: pl.DataFrame) -> float:
        """Their time in a step: median; in the whole trace where no step is counted."""
        if self._scope != "steps":
            return words.total(rows["dur_ns"])
        spent = rows.group_by("step").agg(pl.sum("dur_ns"))
        known = self._windows.select("step").join(spent, on="step", how="left", validate="1:1")
        return _median(known["dur_ns"].fill_null(0)) or 0.0

    @property
    def _wall_ns(self) -> float:
        return _median(self._windows["wall_ns"]) or 0.0

    def _of_wall(self, ns: float) -> str:
        wall_ns = self._wall_ns
        if wall_ns < 1e6:
            return f"{fmt.duration(ns)} of {fmt.duration(wall_ns)} ({self._share(ns)})"
        digits = 1 if wall_ns >= 10e6 else 2
        return f"{ns / 1e6:,.{digits}f} of {wall_ns / 1e6:,.{digits}f} ms ({self._share(ns)})"

    def _share(self, ns: float) -> str:
        share = words.ratio(ns, self._wall_ns)
        return f"{share * 100:.0f} %" if share is not None and share >= 0.0995 else fmt.percent(share)


def _dtypes_in_words(pool: Row) -> str:
    known = f"from {pool['src_dtype']} " if pool["src_dtype"] else ""
    return f"{known}to {pool['dst_dtype']}"


def _speed_in_words(pool: Row) -> str:
    written, read = pool["written_bytes_min"], pool["read_bytes_min"]
    if read is None:
        return f", {fmt.size(written)} written each; its source dtype is not known"
    guess = f" (if it holds {pool['likely_src_dtype']}, as its writes do)" if pool["likely_src_dtype"] else ""
    speed = "" if pool["gb_per_s"] is None else f" at {_rate(pool['gb_per_s'])}"
    peak = "" if pool["peak_frac"] is None else f", {pool['peak_frac'] * 100:.0f} % of this GPU's peak"
    return f", {fmt.size(read + written)} each{speed}{peak}{guess}"


def _rate(gb_per_s: float | None) -> str:
    if gb_per_s is None:
        return fmt.UNKNOWN
    return f"{gb_per_s / 1000:.1f} TB/s" if gb_per_s >= 999.5 else f"{gb_per_s:.{0 if gb_per_s >= 9.95 else 2}f} GB/s"


def _median(column: pl.Series) -> float | None:
    return cast("float | None", column.cast(pl.Float64).median())


# --- the page ---

SectionMaker = Callable[[CastReport, View], Section | None]


def casts_page(report: CastReport, view: View) -> list[Section]:
    """The sections of the page: all, or the headline, the losses and the table that `view.by` names."""
    makers = OVERVIEW if view.by is None else (headline, losses, SECTIONS[view.by])
    if report.windows.is_empty():
        makers = (headline, losses)
    sections = (maker(report, view) for maker in makers)
    return [section for section in sections if section is not None]


def headline(report: CastReport, view: View) -> Section:  # noqa: ARG001 - all sections are called alike
    """What casts cost, and whether one converts a whole KV pool."""
    return Section(lines=(casts_line(report) or "No GPU activity: casts are unknown.",))


def losses(report: CastReport, view: View) -> Section | None:  # noqa: ARG001
    """What of the file could not be read: the figures miss it."""
    lost = [quirk for quirk in report.quirks if quirk.effect == "lost"]
    if not lost:
        return None
    return Section("Incomplete: parts of this trace are lost", lines=words.quirk_lines(lost), is_warning=True)


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
        Column("kind", drop=5),
        Column(f"a {per}", "right"),
        Column(f"ms/{per}", "right"),
        Column("of wall", "right"),
        Column("median µs", "right", drop=4),
        Column("elements", "right", drop=4),
        Column("moved", "right", drop=2),
        Column("speed", "right", drop=1),
        Column("of peak", "right", drop=3),
        Column("dtypes"),
        Column("where", drop=6),
        Column("kernel", fit="open" if view.full_names else "middle", is_code=True, drop=1),
    )
    ordered = found.sort("kernel_ns", "group_id", descending=[True, False])
    shown = ordered if view.top is None else ordered.head(view.top)
    rows = tuple((*_place(report, row), *_group_cells(row)) for row in shown.iter_rows(named=True))
    full = title if len(rows) == found.height else f"{title}: top {len(rows)} of {found.height}"
    return Section(full, lines, _without(TextTable(columns, rows), without), () if without else _notes(report))


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
        _rate(row["gb_per_s"]),
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
    counted = fmt.plural(report.windows.height, "complete step")
    if report.scope != "steps":
        counted = f"the whole trace: no complete step{'' if report.selection == words.OPEN else ' selected'}"
    peaks = report.devices.drop_nulls("spec").unique(["name", "spec"], maintain_order=True).iter_rows(named=True)
    return (
        f"Over {counted}. Bytes moved are read and written.",
        *(
            f"Peak of {fmt.visible(row['name'])}: {_rate(row['peak_bytes_per_s'] / 1e9)} ({row['source']})."
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
        return f"{'every of ' if row['in_every_layer'] else ''}{fmt.plural(row['n_layers'], 'layer')}"
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
            _rate(row["gb_per_s"]),
            _dtypes(row),
            row["shape"] or fmt.UNKNOWN,
            fmt.visible(row["outer_op"] or row["op"] or fmt.UNKNOWN),
            fmt.visible(row["short_name"]),
        )
        for row in shown.iter_rows(named=True)
    )
    title = "Longest casts and copies"
    title = title if len(rows) == found.height else f"{title}: top {len(rows)} of {fmt.count(found.height)}"
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


# --- data ---


def table_of(report: CastReport, by: str, top: int | None = None) -> pl.DataFrame:
    """The table that `by` names, all rows or the first `top`; casts the longest first."""
    if by == "cast":
        frame = report.casts.filter(pl.col("kind") != "custom")
        frame = frame.sort("dur_ns", "kernel_id", descending=[True, False], nulls_last=True)
    else:
        frame = report.groups.filter((pl.col("kind") == "custom") == (by == "custom"))
    return frame if top is None else frame.head(top)


def to_json(report: CastReport, top: int | None) -> bytes:
    """The document described above, indented; `top` shortens `casts` only."""
    return orjson.dumps(casts_document(report, top), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def casts_document(report: CastReport, top: int | None) -> dict[str, Any]:
    """The document as plain data."""
    devices = plain_rows(report.devices)
    kinds = [{name: row[name] for name in ("name", "spec", "peak_bytes_per_s", "source")} for row in devices]
    return {
        "trace": msgspec.to_builtins(report.trace),
        "selection": {
            "first_step": report.selection.first_step,
            "end_step": report.selection.end_step,
            "stage": report.selection.stage,
        },
        "headline": casts_line(report),
        "scope": report.scope,
        "n_steps_counted": report.windows.height if report.scope == "steps" else 0,
        "device": kinds[0] if kinds and all(kind == kinds[0] for kind in kinds) else None,
        "devices": devices,
        "groups": plain_rows(table_of(report, "group")),
        "n_casts": table_of(report, "cast").height,
        "casts": plain_rows(table_of(report, "cast", top)),
        "custom": plain_rows(table_of(report, "custom")),
        "quirks": msgspec.to_builtins(report.quirks),
    }
