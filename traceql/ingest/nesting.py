"""Which interval truly contains which, on one thread: parents of ops and frames, the op around a launch.

Recorded intervals do not always nest: a launch may outlast the op it began in, a frame its caller. Only what lies
inside another one whole counts as nested, so equal ends in the file must be equal ends here: times are whole ns.
"""

from dataclasses import dataclass

import numpy as np

from traceql.arrays import Ints, Ints32

NONE = -1


@dataclass(frozen=True)
class Intervals:
    """Intervals [start, end) on threads, as parallel arrays."""

    thread: Ints
    start: Ints
    end: Ints


def parents(intervals: Intervals) -> Ints:
    """Row of the innermost interval that contains each one whole, on its thread; `NONE` without one.

    Of equal intervals the earlier row is the outer one. Near-linear: pointers to the interval before are doubled
    until each rests on one that ends late enough.
    """
    order = np.lexsort((-intervals.end, intervals.start, intervals.thread))
    thread, end = intervals.thread[order], intervals.end[order]
    candidate = np.arange(-1, len(order) - 1)
    new_thread = np.flatnonzero(np.diff(thread, prepend=np.iinfo(np.int64).min))
    candidate[new_thread] = NONE
    open_rows = np.flatnonzero(candidate != NONE)
    while len(open_rows):
        open_rows = open_rows[end[candidate[open_rows]] < end[open_rows]]
        candidate[open_rows] = candidate[candidate[open_rows]]
        open_rows = open_rows[candidate[open_rows] != NONE]
    found = np.full(len(order), NONE)
    inside = candidate != NONE
    found[order[inside]] = order[candidate[inside]]
    return found


def innermost(containers: Intervals, container_parents: Ints, items: Intervals) -> Ints:
    """Row of the innermost container that contains each item whole, on its thread; `NONE` without one.

    A container that begins and ends with the item contains it.
    """
    if not len(containers.start):
        return np.full(len(items.start), NONE)
    order = np.lexsort((-containers.end, containers.start, containers.thread))
    keys = _Key(containers.thread[order], containers.start[order])
    position = keys.last_at_or_before(items.thread, items.start)
    candidate = np.where(position == NONE, NONE, order[position])
    open_rows = np.flatnonzero(candidate != NONE)
    while len(open_rows):
        open_rows = open_rows[containers.end[candidate[open_rows]] < items.end[open_rows]]
        candidate[open_rows] = container_parents[candidate[open_rows]]
        open_rows = open_rows[candidate[open_rows] != NONE]
    return candidate


class _Key:
    """Sorted (thread, start) pairs, searched together."""

    def __init__(self, thread: Ints, start: Ints) -> None:
        self._start = start
        self._threads, self._firsts = np.unique(thread, return_index=True)
        self._lasts = np.append(self._firsts[1:], len(thread))

    def last_at_or_before(self, thread: Ints, start: Ints) -> Ints:
        """Index of the last pair of the same thread that starts no later; `NONE` without one."""
        found = np.full(len(start), NONE)
        for key, first, last in zip(self._threads, self._firsts, self._lasts, strict=True):
            rows = np.flatnonzero(thread == key)
            position = np.searchsorted(self._start[first:last], start[rows], side="right") - 1
            found[rows] = np.where(position >= 0, first + position, NONE)
        return found


def depths(parent: Ints) -> Ints32:
    """Number of intervals around each one."""
    depth = np.zeros(len(parent), np.int32)
    ancestor = parent.copy()
    open_rows = np.flatnonzero(ancestor != NONE)
    while len(open_rows):
        depth[open_rows] += 1
        ancestor[open_rows] = parent[ancestor[open_rows]]
        open_rows = open_rows[ancestor[open_rows] != NONE]
    return depth
