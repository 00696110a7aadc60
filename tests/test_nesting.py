"""Innermost containing intervals, against a search through all of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceql.ingest.nesting import NONE, Intervals, depths, innermost, parents

interval = st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 15))
intervals = st.lists(interval, min_size=1, max_size=40)


def as_arrays(rows) -> Intervals:
    thread, start, length = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Intervals(thread, start, start + length)


def outer_first(row: tuple[int, tuple[int, int, int]]) -> tuple[int, int, int]:
    number, (_, start, length) = row
    return start, -(start + length), number


def slow_innermost(rows, thread: int, start: int, end: int, before=None) -> int:
    around = [
        (i, r)
        for i, r in enumerate(rows)
        if r[0] == thread and r[1] <= start and r[1] + r[2] >= end and (before is None or outer_first((i, r)) < before)
    ]
    return max(around, key=outer_first)[0] if around else NONE


@given(intervals)
def test_parents(rows):
    expected = [slow_innermost(rows, t, s, s + n, before=outer_first((i, rows[i]))) for i, (t, s, n) in enumerate(rows)]
    assert parents(as_arrays(rows)).tolist() == expected


@given(intervals, intervals)
def test_innermost(containers, items):
    arrays = as_arrays(containers)
    found = innermost(arrays, parents(arrays), as_arrays(items))
    assert found.tolist() == [slow_innermost(containers, t, s, s + n) for t, s, n in items]


@given(intervals)
def test_depth_counts_the_ancestors(rows):
    parent = parents(as_arrays(rows))
    for row, depth in enumerate(depths(parent)):
        n, ancestor = 0, parent[row]
        while ancestor != NONE:
            n, ancestor = n + 1, parent[ancestor]
        assert depth == n


def test_no_containers():
    nothing = Intervals(*(np.empty(0, np.int64) for _ in range(3)))
    assert innermost(nothing, np.empty(0, np.int64), as_arrays([(0, 1, 2)])).tolist() == [NONE]


def test_a_long_row_of_siblings_takes_few_rounds():
    n = 200_000
    starts = np.arange(n, dtype=np.int64) * 10 + 1
    thread = np.zeros(n + 1, np.int64)
    rows = Intervals(thread, np.append(0, starts), np.append(10 * n + 10, starts + 5))
    assert parents(rows).tolist() == [NONE] + [0] * n
