"""The figures of the page that compares two sides: bars from before to after, step times as dots, changes as shades.

All is worked out here and printed as HTML and SVG, so that it is there without a script, prints, and follows the
colours of the page. Less is blue and more is orange wherever a change is drawn, and a sign says the same.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl

from traceql import fmt
from traceql.analyses.diff import COMMUNICATION, Diff, Side
from traceql.analyses.recording import Recording
from traceql.arrays import Floats
from traceql.report.text import cut

MAX_SPANS = 16
"""Changes that have a bar of their own."""
MAX_LANES = 8
"""Recordings of a side whose steps are drawn."""
MAX_DOTS = 1000
"""Steps of a recording that are drawn."""
MAX_ROLES = 12
MAX_CATEGORIES = 20
LEVELS = 5
MAX_NAME = 60

Row = dict[str, Any]
Say = Callable[[float], str]
"""A place on an axis in words."""


def signed_ms(ns: float) -> str:
    """A change in ms with its sign; what rounds to nothing has none."""
    text = fmt.ms(abs(ns))
    return text if not text.strip("0.,") else f"{'−' if ns < 0 else '+'}{text}"


def _name(text: str) -> str:
    return cut(fmt.visible(text), MAX_NAME, "middle")


# --- bars on one axis


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


@dataclass(frozen=True)
class _Axis:
    least: float
    most: float

    def percent(self, value: float) -> float:
        return round(100 * (value - self.least) / (self.most - self.least), 3)

    def bar(self, start: float, end: float, about: str, tone: str = "", color: str = "") -> Bar:
        low, high = sorted((self.percent(start), self.percent(end)))
        return Bar(low, round(high - low, 3), tone, color, about)

    @property
    def ends(self) -> tuple[str, str]:
        return f"{fmt.ms(self.least)} ms", f"{fmt.ms(self.most)} ms"


def mean_steps(diff: Diff, colors: Mapping[str, str]) -> Spans | None:
    """The mean step of both sides, by category and idle; None where both have no length."""
    most_ns = max(diff.before.mean_wall_ns, diff.after.mean_wall_ns)
    if most_ns <= 0:
        return None
    axis = _Axis(0, most_ns)
    ordered = _in_order(diff.waterfall, colors)
    rows = tuple(
        SpanRow(side, "", is_idle=False, is_total=False, bars=_stack(axis, ordered, side, colors), value=fmt.ms(whole))
        for side, whole in (("before", diff.before.mean_wall_ns), ("after", diff.after.mean_wall_ns))
    )
    here = [row["name"] for row in ordered if row["kind"] != "idle"]
    keys = tuple((_name(name), colors.get(name, "")) for name in here)
    return Spans("The mean step by category, and idle (hatched)", rows, "ms", axis.ends, (*keys, ("idle", "")))


def _in_order(waterfall: pl.DataFrame, colors: Mapping[str, str]) -> list[Row]:
    """Categories that take time on a side in the order of all pages, then idle."""
    places = {name: place for place, name in enumerate(colors)}
    rows = [row for row in waterfall.iter_rows(named=True) if row["before_total_ns"] or row["after_total_ns"]]
    return sorted(rows, key=lambda row: (row["kind"] == "idle", places.get(row["name"], len(places)), row["name"]))


def _stack(axis: _Axis, rows: Sequence[Row], side: str, colors: Mapping[str, str]) -> tuple[Bar, ...]:
    bars: list[Bar] = []
    at_ns = 0.0
    for row in rows:
        ns = row[f"{side}_ns_per_step"]
        is_idle = row["kind"] == "idle"
        about = f"{'idle: ' if is_idle else ''}{_name(row['name'])} {fmt.ms(ns)} ms"
        bars.append(axis.bar(at_ns, at_ns + ns, about, "idle" if is_idle else "", colors.get(row["name"], "")))
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
    return f"idle: {row['name']}" if row["kind"] == "idle" else _name(row["name"])


def _change(axis: _Axis, start_ns: float, end_ns: float, label: str) -> Bar:
    tone = "less" if end_ns < start_ns else "more"
    return axis.bar(start_ns, end_ns, f"{label} {signed_ms(end_ns - start_ns)} ms", tone)


def _whole(axis: _Axis, label: str, ns: float) -> SpanRow:
    bar = axis.bar(axis.least, ns, f"{label} {fmt.ms(ns)} ms", "whole")
    return SpanRow(label, "", is_idle=False, is_total=True, bars=(bar,), value=fmt.ms(ns))


def _cut_axis(sums: Sequence[float]) -> _Axis:
    """From 0, or from near the least where changes would be short: they take up a third of it at least."""
    least, most = min(sums), max(sums)
    start = least - (most - least) / 2
    return _Axis(start if start > most / 2 else 0, most)


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
    axis = _Axis(0, most_ns)
    color = colors.get(COMMUNICATION, "")
    rows = tuple(_collective(axis, row, side, color) for side, row in sides)
    title = f"Time in collectives of a mean step; waiting for other ranks is hatched{_of(MAX_SPANS, changes.height)}"
    return Spans(title, rows, "ms", axis.ends, (("transfer", color), ("waiting", "")))


def _collective(axis: _Axis, row: Row, side: str, color: str) -> SpanRow:
    ns, waiting_ns = row[f"{side}_ns_per_step"], row[f"{side}_waiting_ns_per_step"]
    transfer_ns = ns if waiting_ns is None else ns - waiting_ns
    what = "waiting not known" if waiting_ns is None else "transfer"
    bars = (
        axis.bar(0, transfer_ns, f"{what}: {fmt.ms(transfer_ns)} ms", "", color),
        axis.bar(transfer_ns, ns, f"waiting: {fmt.ms(waiting_ns)} ms", "idle"),
    )
    where = "" if row["rank"] is None else f"rank {row['rank']} "
    label = f"{where}{side}, {_name(row['kind'])}"  # where there is little room, its end is cut
    return SpanRow(label, "", is_idle=False, is_total=False, bars=tuple(b for b in bars if b.width), value=fmt.ms(ns))


def _of(most: int, n: int) -> str:
    """What a title says where not all is shown."""
    return f"; {most} of {fmt.count(n)}" if n > most else ""


# --- step times as dots


@dataclass(frozen=True)
class Lane:
    """The steps of a recording: the axis goes from 0 to 1000, time from the top (0) to the bottom (100)."""

    side: str
    label: str
    dots: tuple[tuple[int, float, float, str], ...]
    """(step, place on the axis, place in time, what it says)."""
    middle: float
    """Place of the median."""
    value: str

    @property
    def path(self) -> str:
        """SVG path of the dots: lines without length, whose round ends are seen."""
        return "".join(f"M{x:g} {y:g}h0" for _, x, y, _ in self.dots)


@dataclass(frozen=True)
class Dots:
    """The steps of both sides on one axis, a dot each."""

    kind: ClassVar[str] = "dots"
    title: str
    lanes: tuple[Lane, ...]
    value_title: str
    ends: tuple[str, str]


@dataclass(frozen=True)
class _Steps:
    """The steps of a recording, in order of time."""

    side: str
    label: str
    numbers: list[int]
    walls: Floats


def step_dots(diff: Diff) -> list[Dots]:
    """Each step's wall, mean over ranks: on one axis of ms, and on one of shares of its recording's median."""
    recorded = [
        steps for name, side in (("before", diff.before), ("after", diff.after)) for steps in _steps(name, side)
    ]
    several = len({*diff.before.ranks, *diff.after.ranks}) > 1
    mean = ", mean over ranks" if several else ""
    left_out = _of(MAX_LANES, max(len(diff.before.walls), len(diff.after.walls)))
    wall = f"Wall of each step{mean}; the line is the median, time goes down{left_out}"
    in_ms = [(steps, steps.walls, fmt.ms(_median(steps.walls))) for steps in recorded]
    shares = [
        (steps, steps.walls / middle - 1, _spread(steps.walls / middle - 1))
        for steps in recorded
        if (middle := _median(steps.walls))
    ]
    near = _near([each for _, each, _ in shares])
    against = "The same, each against its median; farther ones stand at the edge"
    made = (
        _dots(wall, in_ms, "median ms", _in_ms),
        _dots(against, shares, "10 to 90 %", _signed_percent, limits=(-near, near)),
    )
    return [dots for dots in made if dots is not None]


def _near(shares: Sequence[Floats]) -> float:
    """How far from the median the axis goes: three times as far as most steps, at least half a percent."""
    most = max((abs(part) for values in shares for part in _quantiles(values)), default=0.0)
    return max(3 * most, 0.005)


def _steps(name: str, side: Side) -> list[_Steps]:
    several = len(side.walls) > 1
    recorded = zip(side.recordings, side.walls, strict=True)
    return [
        _Steps(name, f"{name} {number}" if several else name, _numbers(recording), walls)
        for number, (recording, walls) in enumerate(recorded, start=1)
    ][:MAX_LANES]


def _numbers(recording: Recording) -> list[int]:
    return recording.steps["step"].unique().sort().to_list()


def _in_ms(ns: float) -> str:
    return f"{fmt.ms(ns)} ms"


def _median(values: Floats) -> float:
    return float(np.median(values))


def _spread(shares: Floats) -> str:
    low, high = _quantiles(shares)
    return f"{_signed_percent(low)} to {_signed_percent(high)}"


def _quantiles(values: Floats) -> tuple[float, float]:
    low, high = np.quantile(values, (0.1, 0.9))
    return float(low), float(high)


def _signed_percent(share: float) -> str:
    text = f"{abs(share) * 100:.{1 if abs(share) >= 0.01 else 2}f} %"
    return text if text == "0.00 %" else f"{'−' if share < 0 else '+'}{text}"


def _dots(
    title: str,
    recorded: list[tuple[_Steps, Floats, str]],
    value_title: str,
    say: Say,
    limits: tuple[float, float] | None = None,
) -> Dots | None:
    """The dots of (recording, value of each step, what they come to); without limits the axis holds all."""
    if not recorded:
        return None
    walls = np.concatenate([values for _, values, _ in recorded])
    least, most = limits or (float(walls.min()), float(walls.max()))
    room = (most - least) / 50 or max(abs(most) / 100, 1e-3)
    axis = _Axis(least - room, most + room)
    lanes = tuple(
        _lane(axis, steps, np.clip(values, least, most), [say(float(each)) for each in values], value)
        for steps, values, value in recorded
    )
    return Dots(title, lanes, value_title, (say(axis.least), say(axis.most)))


def _lane(axis: _Axis, steps: _Steps, places: Floats, said: list[str], value: str) -> Lane:
    """The lane of a recording; `places` are values on the axis, of each step in order of time."""
    n = len(places)
    kept = _thinned(places)
    dots = tuple(
        (
            steps.numbers[number],
            round(10 * axis.percent(float(places[number])), 1),
            round(6 + 88 * number / max(n - 1, 1), 1),
            said[number],
        )
        for number in kept
    )
    left_out = f" ({fmt.count(len(kept))} of {fmt.plural(n, 'step')} drawn)" if len(kept) < n else ""
    return Lane(steps.side, f"{steps.label}{left_out}", dots, round(10 * axis.percent(_median(places)), 1), value)


def _thinned(places: Floats) -> list[int]:
    """Numbers of the steps drawn: every so many, and in any case the shortest and the longest."""
    every = math.ceil(len(places) / MAX_DOTS)
    return sorted({*range(0, len(places), every), int(places.argmin()), int(places.argmax())})


# --- changes as shades


@dataclass(frozen=True)
class DeltaCell:
    """A change: its text, how strong its shade is (below 0: less), and both figures that it comes from."""

    text: str
    level: int
    about: str

    @property
    def tone(self) -> str:
        """The class of its shade."""
        return "" if not self.level else f"{'less' if self.level < 0 else 'more'}{abs(self.level)}"


@dataclass(frozen=True)
class DeltaRow:
    """Changes of a category, or of all."""

    label: str
    color: str
    cells: tuple[DeltaCell, ...]
    is_total: bool = False


@dataclass(frozen=True)
class DeltaMap:
    """Changes by row and column, as shades. The scale is that of square roots, so that small changes are seen."""

    kind: ClassVar[str] = "deltas"
    title: str
    columns: tuple[str, ...]
    rows: tuple[DeltaRow, ...]
    levels: ClassVar[tuple[int, ...]] = tuple(range(1, LEVELS + 1))


def layer_deltas(diff: Diff, colors: Mapping[str, str]) -> DeltaMap | None:
    """Change of kernel time by category and layer type or section, and of their wall; None without layers on a side."""
    roles = diff.roles
    if not (roles["before_n_layers_per_step"].sum() and roles["after_n_layers_per_step"].sum()):
        return None
    is_section = (pl.col("before_n_layers_per_step") == 0) & (pl.col("after_n_layers_per_step") == 0)
    columns = roles.sort(is_section, maintain_order=True).head(MAX_ROLES).rows(named=True)
    times = [_by_role(side) for side in (diff.before, diff.after)]
    names = _most_changed({name for side in times for _, name in side}, [row["role"] for row in columns], times)
    made = [(_name(name), colors.get(name, ""), [_pair(times, row["role"], name) for row in columns]) for name in names]
    kernel = [(row["before_kernel_ns_per_step"], row["after_kernel_ns_per_step"]) for row in columns]
    walls = [(row["before_ns_per_step"], row["after_ns_per_step"]) for row in columns]
    most_ns = max((abs(b - a) for _, _, pairs in made for a, b in pairs), default=0.0)
    most_total_ns = max(abs(b - a) for pairs in (kernel, walls) for a, b in pairs)
    rows = [DeltaRow(label, color, _cells(pairs, most_ns)) for label, color, pairs in made]
    totals = (("all kernels", kernel), ("wall, with idle", walls))
    rows += [DeltaRow(label, "", _cells(pairs, most_total_ns), is_total=True) for label, pairs in totals]
    title = f"Change in ms a step: kernel time by category and layer type (mean step){_of(MAX_ROLES, roles.height)}"
    return DeltaMap(title, tuple(map(_role_title, columns)), tuple(rows))


_Times = dict[tuple[str, str], float]
"""Kernel time of a mean step by role and category."""


def _pair(times: Sequence[_Times], role: str, category: str) -> tuple[float, float]:
    before, after = (side.get((role, category), 0.0) for side in times)
    return before, after


def _by_role(side: Side) -> _Times:
    sums = side.frame("kernels").group_by("role", "category").agg(pl.sum("kernel_ns"))
    return {(role, name): ns / side.n_steps for role, name, ns in sums.iter_rows()}


def _most_changed(names: set[str], roles: list[str], times: Sequence[_Times]) -> list[str]:
    """The categories that changed anywhere by what can be shown, the most changed first."""
    before, after = times
    changes = {
        name: max(abs(after.get((role, name), 0.0) - before.get((role, name), 0.0)) for role in roles) for name in names
    }
    return sorted((n for n in names if changes[n] >= 0.5e3), key=lambda n: (-changes[n], n))[:MAX_CATEGORIES]


def _cells(pairs: Sequence[tuple[float, float]], most_ns: float) -> tuple[DeltaCell, ...]:
    return tuple(
        DeltaCell(signed_ms(b - a) if a or b else "", delta_level(b - a, most_ns), f"{fmt.ms(a)} → {fmt.ms(b)} ms")
        for a, b in pairs
    )


def delta_level(delta: float, most: float) -> int:
    """How strong the shade of a change is: −`LEVELS` to `LEVELS`, 0 for what is nothing beside the largest."""
    if most <= 0 or abs(delta) / most < 1e-3:
        return 0
    return int(math.copysign(min(math.ceil(LEVELS * math.sqrt(abs(delta) / most) - 1e-9), LEVELS), delta))


def _role_title(row: Row) -> str:
    a, b = (fmt.count(row[f"{side}_n_layers_per_step"]) for side in ("before", "after"))
    if a == b == "0":
        return _name(row["role"])
    return f"{_name(row['role'])}\u00a0×\u00a0{a if a == b else f'{a} → {b}'}"
