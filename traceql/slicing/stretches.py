"""Stretches of time: half-open intervals in order, none of which touches another."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from traceql.arrays import Bools, Ints

FOREVER = 1 << 62


@dataclass(frozen=True)
class Stretches:
    """Stretches of time, in ns."""

    start: Ints
    end: Ints

    @classmethod
    def of(cls, start: Ints, end: Ints) -> Self:
        """The union of intervals; one without length counts as 1 ns."""
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum(end, start + 1)[order]
        reach = np.maximum.accumulate(end) if len(end) else end
        first = np.flatnonzero(np.append(True, start[1:] > reach[:-1])) if len(start) else np.empty(0, np.int64)
        last = np.append(first[1:] - 1, len(start) - 1) if len(start) else first
        return cls(start[first], reach[last])

    @classmethod
    def one(cls, start: int, end: int) -> Self:
        """A single stretch; none where it would be empty."""
        return cls.of(
            np.array([start] if end > start else [], np.int64), np.array([end] if end > start else [], np.int64)
        )

    @classmethod
    def union(cls, parts: Iterable[Self]) -> Self:
        """All time that is in any of them."""
        parts = [cls(np.empty(0, np.int64), np.empty(0, np.int64)), *parts]
        return cls.of(np.concatenate([part.start for part in parts]), np.concatenate([part.end for part in parts]))

    def within(self, start: int, end: int) -> "Stretches":
        """What of them lies in an interval."""
        cut_start, cut_end = np.maximum(self.start, start), np.minimum(self.end, end)
        left = cut_end > cut_start
        return Stretches(cut_start[left], cut_end[left])

    def later(self, shift_ns: int) -> "Stretches":
        """The same, moved."""
        return Stretches(self.start + shift_ns, self.end + shift_ns)

    def meet(self, start: Ints, end: Ints) -> Bools:
        """Which intervals have time in common with any stretch; one without length counts as 1 ns."""
        if not len(self.start):
            return np.zeros(len(start), bool)
        last = np.searchsorted(self.start, np.maximum(end, start + 1), side="left") - 1
        return (last >= 0) & (self.end[last] > start)
