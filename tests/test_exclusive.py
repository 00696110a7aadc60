"""Exclusive time against a loop over every stretch."""

from itertools import pairwise

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from traceql.analyses.exclusive import exclusive_time

SCHEMA = {
    "kernel_id": pl.Int64,
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "stream": pl.Int64,
    "correlation": pl.Int64,
    "name": pl.String,
}
activity = st.tuples(
    st.integers(0, 40),
    st.integers(0, 25),
    st.integers(1, 3),
    st.sampled_from([None, 1, 2]),
    st.sampled_from("ab"),
)
activities = st.lists(activity, min_size=1, max_size=12)
borders = st.lists(st.integers(-5, 80), max_size=5, unique=True).map(sorted)


def frame(rows) -> pl.DataFrame:
    return pl.DataFrame([(i, *row) for i, row in enumerate(rows)], schema=SCHEMA, orient="row")


def slow_exclusive(rows, cuts) -> dict[tuple[int, int], int]:
    ordered = sorted(enumerate(rows), key=lambda r: (r[1][0], r[1][2], r[1][3] or 0, r[0]))
    edges = sorted({t for r in rows if r[1] for t in (r[0], r[0] + r[1])} | set(cuts))
    found: dict[tuple[int, int], int] = {}
    for left, right in pairwise(edges):
        running = [i for i, r in ordered if r[1] and r[0] <= left and r[0] + r[1] >= right]
        region = sum(cut <= left for cut in cuts)
        for position, i in enumerate(running):
            share = (right - left) // len(running) + (position < (right - left) % len(running))
            found[i, region] = found.get((i, region), 0) + share
    return {key: ns for key, ns in found.items() if ns}


def as_dict(result: pl.DataFrame) -> dict[tuple[int, int], int]:
    return {(kernel, region): ns for kernel, region, ns in result.rows() if ns}


@given(activities, borders)
def test_against_the_loop(rows, cuts):
    assert as_dict(exclusive_time(frame(rows), np.array(cuts, np.int64))) == slow_exclusive(rows, cuts)


@given(activities, borders, st.randoms())
def test_the_order_of_rows_changes_nothing(rows, cuts, random):
    table = frame(rows)
    shuffled = table.sample(fraction=1, shuffle=True, seed=random.randint(0, 10**6))
    cuts = np.array(cuts, np.int64)
    assert exclusive_time(table, cuts).equals(exclusive_time(shuffled, cuts))


def test_one_left_over_nanosecond_goes_to_the_first():
    rows = [(0, 3, 2, 1, "b"), (0, 3, 1, 9, "a")]
    assert as_dict(exclusive_time(frame(rows), np.empty(0, np.int64))) == {(0, 0): 1, (1, 0): 2}


def test_nothing_runs():
    assert exclusive_time(frame([]), np.array([3], np.int64)).is_empty()
