"""Bars on a common axis: the mean step of both sides, what makes its change, and time in collectives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from traceql import fmt
from traceql.analyses import comm
from traceql.analyses.diff import Diff
from traceql.report.diff_words import signed_ms
from traceql.report.figures.axis import Axis, of_all, shown_name

MAX_SPANS = 16
"""Changes that have a bar of their own."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Bar:
    """A stretch of a row, in percent of its width."""

    start: float
    width: float
    tone: str
    """less, more, idle, or nothing: it has a colour."""
    color: str
    about: str
    """Shown when it is pointed at."""


@dataclass(frozen=True)
class SpanRow:
    """A row: what it is about, its bars, and what they come to."""

    label: str
    color: str
    is_idle: bool
    is_total: bool
    bars: tuple[Bar, ...]
    value: str


@dataclass(frozen=True)
class Spans:
    """Rows of bars on a common axis."""

    kind: ClassVar[str] = "spans"
    title: str
    rows: tuple[SpanRow, ...]
    value_title: str
    ends: tuple[str, str]
    """Where the axis begins and ends."""
    keys: tuple[tuple[str, str], ...] = ()
    """(name, colour) of what bars are of."""


def _bar(axis: Axis, start: float, end: float, about: str, *, tone: str = "", color: str = "") -> Bar:
    low, high = sorted((axis.percent(start), axis.percent(end)))
    return Bar(low, round(high - low, 3), tone, color, about)


def mean_steps(diff: Diff, colors: Mapping[str, str]) -> Spans | None:
    """The mean step of both sides, by category and idle; None where both have no length."""
    most_ns = max(diff.before.mean_wall_ns, diff.after.mean_wall_ns)
    if most_ns <= 0:
        return None
    axis = Axis(0, most_ns)
    ordered = _in_order(diff.waterfall, colors)
    rows = tuple(
        SpanRow(side, "", is_idle=False, is_total=False, bars=_stack(axis, ordered, side, colors), value=fmt.ms(whole))
        for side, whole in (("before", diff.before.mean_wall_ns), ("after", diff.after.mean_wall_ns))
    )
    here = [row["name"] for row in ordered if row["kind"] != "idle"]
    keys = tuple((shown_name(name), colors.get(name, "")) for name in here)
    return Spans("The mean step by category, and idle (hatched)", rows, "ms", axis.ends, (*keys, ("idle", "")))


def _in_order(waterfall: pl.DataFrame, colors: Mapping[str, str]) -> list[Row]:
    """Categories that take time on a side in the order of all pages, then idle."""
    places = {name: place for place, name in enumerate(colors)}
    rows = [row for row in waterfall.iter_rows(named=True) if row["before_total_ns"] or row["after_total_ns"]]
    return sorted(rows, key=lambda row: (row["kind"] == "idle", places.get(row["name"], len(places)), row["name"]))


def _stack(axis: Axis, rows: Sequence[Row], side: str, colors: Mapping[str, str]) -> tuple[Bar, ...]:
    bars: list[Bar] = []
    at_ns = 0.0
    for row in rows:
        ns = row[f"{side}_ns_per_step"]
        is_idle = row["kind"] == "idle"
        about = f"{'idle: ' if is_idle else ''}{shown_name(row['name'])} {fmt.ms(ns)} ms"
        bars.append(
            _bar(axis, at_ns, at_ns + ns, about, tone="idle" if is_idle else "", color=colors.get(row["name"], ""))
        )
        at_ns += ns
    return tuple(bar for bar in bars if bar.width)


def waterfall(diff: Diff, colors: Mapping[str, str]) -> Spans | None:
    """From the mean step before to that after, a bar for each change; they add up. None where nothing changed.

    The axis begins near the smallest sum on the way, so that small changes of a long step are seen.
    """
    changed = diff.waterfall.filter(pl.col("delta_ns").abs() >= 0.5e3)  # what is not 0.000 ms
    if changed.is_empty():
        return None
    before_ns, after_ns = diff.before.mean_wall_ns, diff.after.mean_wall_ns
    place = pl.col("delta_ns").abs().rank("ordinal", descending=True)
    shown = changed.filter(place <= MAX_SPANS).rows(named=True)
    rest_ns = after_ns - before_ns - sum(row["delta_ns"] for row in shown)
    steps = [(_label(row), colors.get(row["name"], ""), row["kind"] == "idle", row["delta_ns"]) for row in shown]
    steps += [("all others", "", False, rest_ns)] if abs(rest_ns) >= 0.5e3 else []
    sums = [before_ns]
    for *_, delta_ns in steps:
        sums.append(sums[-1] + delta_ns)
    axis = _cut_axis([*sums, after_ns])
    rows = (
        SpanRow(label, color, is_idle, False, (_change(axis, at, at + ns, label),), signed_ms(ns))
        for (label, color, is_idle, ns), at in zip(steps, sums, strict=False)
    )
    ends = (_whole(axis, label, ns) for label, ns in (("before", before_ns), ("after", after_ns)))
    title = "From before to after: the change of the mean step, and what makes it"
    return Spans(title, (next(ends), *rows, next(ends)), "ms", axis.ends)


def _label(row: Row) -> str:
    return f"idle: {row['name']}" if row["kind"] == "idle" else shown_name(row["name"])


def _change(axis: Axis, start_ns: float, end_ns: float, label: str) -> Bar:
    tone = "less" if end_ns < start_ns else "more"
    return _bar(axis, start_ns, end_ns, f"{label} {signed_ms(end_ns - start_ns)} ms", tone=tone)


def _whole(axis: Axis, label: str, ns: float) -> SpanRow:
    bar = _bar(axis, axis.least, ns, f"{label} {fmt.ms(ns)} ms", tone="whole")
    return SpanRow(label, "", is_idle=False, is_total=True, bars=(bar,), value=fmt.ms(ns))


def _cut_axis(sums: Sequence[float]) -> Axis:
    """From 0, or from near the least where changes would be short: they take up a third of it at least."""
    least, most = min(sums), max(sums)
    start = least - (most - least) / 2
    return Axis(start if start > most / 2 else 0, most)


# --- collectives


def waiting_bars(diff: Diff, colors: Mapping[str, str]) -> Spans | None:
    """Time in collectives of a mean step on both sides, by rank where there are several; waiting is hatched.

    Where waiting cannot be told from transfer all of it is filled. None where no time is spent in them.
    """
    several = diff.collectives["rank"].is_not_null().any()
    changes = diff.collectives.filter(pl.col("rank").is_not_null() if several else pl.lit(value=True))
    sides = [(side, row) for row in changes.head(MAX_SPANS).iter_rows(named=True) for side in ("before", "after")]
    most_ns = max((row[f"{side}_ns_per_step"] for side, row in sides), default=0.0)
    if most_ns <= 0:
        return None
    axis = Axis(0, most_ns)
    color = colors.get(comm.CATEGORY, "")
    rows = tuple(_collective(axis, row, side, color) for side, row in sides)
    title = f"Time in collectives of a mean step; waiting for other ranks is hatched{of_all(MAX_SPANS, changes.height)}"
    return Spans(title, rows, "ms", axis.ends, (("transfer", color), ("waiting", "")))


def _collective(axis: Axis, row: Row, side: str, color: str) -> SpanRow:
    ns, waiting_ns = row[f"{side}_ns_per_step"], row[f"{side}_waiting_ns_per_step"]
    transfer_ns = ns if waiting_ns is None else ns - waiting_ns
    what = "waiting not known" if waiting_ns is None else "transfer"
    bars = (
        _bar(axis, 0, transfer_ns, f"{what}: {fmt.ms(transfer_ns)} ms", color=color),
        _bar(axis, transfer_ns, ns, f"waiting: {fmt.ms(waiting_ns)} ms", tone="idle"),
    )
    where = "" if row["rank"] is None else f"rank {row['rank']} "
    label = f"{where}{side}, {shown_name(row['kind'])}"  # where there is little room, its end is cut
    return SpanRow(label, "", is_idle=False, is_total=False, bars=tuple(b for b in bars if b.width), value=fmt.ms(ns))
