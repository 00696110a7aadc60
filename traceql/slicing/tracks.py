"""Tracks for slices that overlap: viewers draw a thread as one stack, and drop what does not nest in it.

Two slices of a thread cross when they have time in common and neither holds the other. Perfetto drops the later one
(`slice_drop_overlapping_complete_event`). What crosses nothing stays where it is; of two that cross the later goes to
an extra track of the thread, as few of them as it takes. Slices cross when they do so in whole ns, or as Perfetto
reads them: a double of µs, times 1000 and rounded, which for absolute times is off by up to 250 ns.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from traceql.arrays import Array, Ints
from traceql.slicing.events import Rows
from traceql.slicing.kinds import SLICES, Kind

_EXACT_NS = 1 << 53
"""Below it a double holds every integer, so that dividing it rounds once, as reading the decimal does."""


@dataclass(frozen=True)
class Shown:
    """When slices begin and end: exactly, and as Perfetto reads it."""

    start: Ints
    end: Ints
    seen_start: Ints
    seen_end: Ints

    @classmethod
    def of(cls, start: Ints, dur: Ints, read: "Reading") -> "Shown":
        """Those of begins and lengths in ns."""
        seen = read(start)
        return cls(start, start + dur, seen, seen + read(dur))


def as_read(ns: Ints) -> Ints:
    """What Perfetto makes of a time that is written as decimal µs: whole ones it multiplies as integers."""
    whole = ns // 1000
    us = np.where(ns < _EXACT_NS, ns / 1000.0, whole + (ns - whole * 1000) / 1000.0)
    below = np.floor(us * 1000.0)
    rounded = below.astype(np.int64) + (us * 1000.0 - below >= 0.5)
    return np.where(us == np.floor(us), us.astype(np.int64) * 1000, rounded)


def exact(ns: Ints) -> Ints:
    """What Perfetto makes of a time that is written so that nothing is lost."""
    return ns


Reading = Callable[[Ints], Ints]


def lanes(thread: Array, start: Ints, dur: Ints, read: Reading = as_read) -> Array:
    """The track of each slice within its thread: 0 for the thread's own, from 1 on for the extra ones.

    Args:
        thread: any number for each thread.
        start: begins, in ns as they are written.
        dur: lengths.
        read: what Perfetto makes of them.
    """
    found = np.zeros(len(thread), np.int32)
    order = np.lexsort((-dur, start, thread))
    for here in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1):
        shown = Shown.of(start[here], dur[here], read)
        if _any_cross(shown.start, shown.end) or _any_cross(shown.seen_start, shown.seen_end):
            found[here] = list(_placed(shown))
    return found


def tracks(rows: Rows) -> Array:
    """The track of each row, as `lanes` has it; arrows go where the slice is that they land on, all others stay."""
    found = np.zeros(len(rows), np.int32)
    slices = np.flatnonzero(rows.of(*SLICES))
    found[slices] = lanes(rows.thread[slices], rows.start[slices], rows.dur[slices])
    for thread in np.unique(rows.thread[found > 0]):
        of_thread = rows.thread == thread
        here = np.flatnonzero(of_thread & rows.of(*SLICES))
        here = here[np.lexsort((-rows.dur[here], rows.start[here]))]
        ends = np.flatnonzero(of_thread & rows.of(Kind.FLOW))
        landed = _landed_on(rows.start[ends], rows.start[here], rows.end[here])
        found[ends] = found[here][landed]
    return found


def _any_cross(start: Ints, end: Ints) -> bool:
    """Whether any two intervals cross; they are sorted by start, and by length where these are equal.

    Each looks at the one before, and goes on to the one that this one rests on, until one ends late enough: whoever
    ends in between, after the start, is crossed.
    """
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    below = np.arange(-1, len(start) - 1)
    asking = np.flatnonzero(below >= 0)
    while len(asking):
        asking = asking[end[below[asking]] < end[asking]]
        if (end[below[asking]] > start[asking]).any():
            return True
        below[asking] = below[below[asking]]
        asking = asking[below[asking] >= 0]
    return False


_Slice = tuple[int, int, int, int]


def _placed(shown: Shown) -> Iterator[int]:
    """The track of each slice, in order of begin: the first on which it crosses nothing."""
    stacks: list[list[_Slice]] = [[]]
    columns = (shown.start, shown.end, shown.seen_start, shown.seen_end)
    for new in zip(*(column.tolist() for column in columns), strict=True):
        for track, stack in enumerate(stacks):  # noqa: B007 - used behind the loop
            while stack and stack[-1][1] <= new[0] and stack[-1][3] <= new[2]:
                stack.pop()
            if not _crosses_any(new, stack):
                break
        else:
            track = len(stacks)
            stacks.append(stack := list[_Slice]())
        stack.append(new)
        yield track


def _crosses_any(new: _Slice, stack: list[_Slice]) -> bool:
    start, end, seen_start, seen_end = new
    for old in reversed(stack):
        if start < old[1] < end or old[2] < seen_start < old[3] < seen_end or seen_start < old[2] < seen_end < old[3]:
            return True
        if end <= old[1] and old[2] <= seen_start and seen_end <= old[3]:
            return False  # it lies within this one, which lies within all below
    return False


def _landed_on(times: Ints, start: Ints, end: Ints) -> Ints:
    """Index of the slice that each arrow lands on: the one that begins last of those it lies in, else the first.

    The slices are in order of begin.
    """
    last = np.searchsorted(start, times, side="right") - 1
    found = np.maximum(last, 0)
    while len(asking := np.flatnonzero((last > 0) & (np.maximum(end[found], start[found] + 1) <= times))):
        last[asking] -= 1
        found[asking] = np.maximum(last[asking], 0)
    return found
