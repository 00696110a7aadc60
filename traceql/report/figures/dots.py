"""Step times as dots on a common axis: each step of both sides."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from traceql import fmt
from traceql.analyses.diff import Diff
from traceql.analyses.diff_sides import Side
from traceql.analyses.recording import Recording
from traceql.arrays import Floats
from traceql.report.figures.axis import Axis, of_all

MAX_LANES = 8
"""Recordings of a side whose steps are drawn."""
MAX_DOTS = 1000
"""Steps of a recording that are drawn."""

Say = Callable[[float], str]
"""A place on an axis in words."""


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
    left_out = of_all(MAX_LANES, max(len(diff.before.walls), len(diff.after.walls)))
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
    return text if text == "0.00 %" else fmt.signed(share, text)


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
    axis = Axis(least - room, most + room)
    lanes = tuple(
        _lane(axis, steps, np.clip(values, least, most), [say(float(each)) for each in values], value)
        for steps, values, value in recorded
    )
    return Dots(title, lanes, value_title, (say(axis.least), say(axis.most)))


def _lane(axis: Axis, steps: _Steps, places: Floats, said: list[str], value: str) -> Lane:
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
