"""The main line of a step: the activities of the stream, or the chain of streams, that carry most of it."""

import numpy as np
import polars as pl

from traceql.arrays import Bools, Ints

_LEAST_PAUSE = 32
"""A stream in whose pause that many kernels ran elsewhere may have handed the main line on."""
_STEP = ["rank", "device", "step"]


def with_main_line(activities: pl.DataFrame) -> pl.DataFrame:
    """The activities launched inside steps, with `is_main`; sorted by rank, device, step, start, kernel_id.

    Args:
        activities: GPU activities with their step and section (`Attribution.activities`). What was launched between
            steps, or never timed, is left out.
    """
    inside = pl.col("step").is_not_null() & pl.col("section").is_null() & pl.col("start_ns").is_not_null()
    found = activities.filter(inside).sort(*_STEP, "start_ns", "kernel_id")
    lines = [
        main_line(step["stream"].to_numpy(), step["start_ns"].to_numpy())
        for _, step in found.select(*_STEP, "stream", "start_ns").group_by(_STEP, maintain_order=True)
    ]
    return found.with_columns(is_main=pl.Series(np.concatenate([np.zeros(0, bool), *lines]), dtype=pl.Boolean))


def main_line(stream: Ints, start_ns: Ints) -> Bools:
    """Which of a step's activities run on the main line: the stream with most of them, or streams that hand it on.

    Under CUDA graphs with NCCL the line moves to another stream at every collective. So: the streams (a stream with a
    long pause counts as several) that do not overlap in time and have the most activities together.

    Args:
        stream: of each activity, in order of start.
        start_ns: start of each.
    """
    order = np.lexsort((np.arange(len(stream)), stream))
    new_stream = np.diff(stream[order], prepend=stream[order[0]] - 1) != 0
    pause = np.diff(order, prepend=-1) > max(_LEAST_PAUSE, len(stream) // 50)
    burst = np.empty(len(stream), np.int64)
    burst[order] = np.cumsum(new_stream | pause) - 1
    first, last = np.full(burst.max() + 1, len(stream)), np.zeros(burst.max() + 1, np.int64)
    np.minimum.at(first, burst, np.arange(len(stream)))
    np.maximum.at(last, burst, np.arange(len(stream)))
    chosen = _heaviest_disjoint(start_ns[first], start_ns[last], np.bincount(burst))
    return np.isin(burst, chosen)


def _heaviest_disjoint(start: Ints, end: Ints, weight: Ints) -> list[int]:
    """Numbers of the intervals that do not overlap and weigh most together (weighted interval scheduling)."""
    order = np.argsort(end, kind="stable")
    ends = end[order]
    best = [0]
    before: list[int] = []
    for place, number in enumerate(order.tolist()):
        before.append(min(int(np.searchsorted(ends, start[number], side="left")), place))
        best.append(max(best[-1], best[before[-1]] + int(weight[number])))
    chosen: list[int] = []
    place = len(order)
    while place:
        if best[place] == best[place - 1]:
            place -= 1
        else:
            chosen.append(int(order[place - 1]))
            place = before[place - 1]
    return chosen
