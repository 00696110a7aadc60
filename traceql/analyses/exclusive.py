"""Exclusive time: each nanosecond in which a device works, given to one of the activities that run in it.

A stretch of L ns in which k activities run gives each L // k; the L mod k left over go one each to the first by
(start, stream, correlation). So exclusive times add up to the busy time exactly, whatever the order of rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceql.tables import Column, Table

Int = NDArray[np.int64]

EXCLUSIVE = Table(
    "exclusive",
    "One row per GPU activity that takes time and region that it runs in. Sorted by kernel_id, region.",
    Column("kernel_id", pl.Int64, "GPU activity"),
    Column("region", pl.Int64, "Number of the region, between two borders, on the activity's device"),
    Column("exclusive_ns", pl.Int64, "Its exclusive time there"),
)


def exclusive_time(kernels: pl.DataFrame, borders: Int) -> pl.DataFrame:
    """The `exclusive` table of the activities of one device.

    Args:
        kernels: kernel_id, start_ns, dur_ns, stream, correlation of timed activities of one device.
        borders: sorted times at which activities are cut. Region 0 lies before the first, region i after the i-th.
    """
    kernels = kernels.filter(pl.col("dur_ns") > 0)  # what takes no time ends no stretch
    if not kernels.height:
        return EXCLUSIVE.empty()
    kernels = kernels.sort("start_ns", "stream", "correlation", "kernel_id")
    start = kernels["start_ns"].to_numpy()
    timeline = _timeline(start, start + kernels["dur_ns"].to_numpy(), borders)
    shares = _by_region(timeline, borders)
    rest_activity, rest_segment = _left_over(timeline)
    rest_region = np.searchsorted(borders, timeline.edges[rest_segment], side="right")
    ids = kernels["kernel_id"].to_numpy()
    rest = {"kernel_id": ids[rest_activity], "region": rest_region, "exclusive_ns": np.ones_like(rest_region)}
    shares["kernel_id"] = ids[shares.pop("activity")]
    both = pl.concat([pl.DataFrame(shares, schema=EXCLUSIVE.schema), pl.DataFrame(rest, schema=EXCLUSIVE.schema)])
    both = both.group_by("kernel_id", "region").agg(pl.sum("exclusive_ns"))
    return EXCLUSIVE.check(both.sort("kernel_id", "region"))


@dataclass(frozen=True)
class _Timeline:
    """The stretches between consecutive edges (starts, ends, borders), and the activities as ranges of them."""

    edges: Int
    length: Int
    """Of each stretch; one fewer than edges."""
    n_running: Int
    """Activities running in each stretch."""
    first: Int
    """First stretch of each activity."""
    end: Int
    """Stretch behind its last."""


def _timeline(start: Int, end: Int, borders: Int) -> _Timeline:
    inside = borders[(borders > start.min()) & (borders < end.max())]
    edges = np.sort(np.concatenate([start, end, inside]))
    edges = edges[np.diff(edges, prepend=edges[0] - 1) > 0]
    first, last = np.searchsorted(edges, start), np.searchsorted(edges, end)
    n_edges = len(edges)
    change = np.bincount(first, minlength=n_edges) - np.bincount(last, minlength=n_edges)
    return _Timeline(edges, np.diff(edges), np.cumsum(change)[:-1], first, last)


def _by_region(timeline: _Timeline, borders: Int) -> dict[str, Any]:
    """Even shares (L // k summed), an activity that crosses borders once for each region."""
    even = np.where(timeline.n_running > 0, timeline.length // np.maximum(timeline.n_running, 1), 0)
    total = np.concatenate([[0], np.cumsum(even)])
    region_of_first = np.searchsorted(borders, timeline.edges[timeline.first], side="right")
    last_stretch = np.maximum(timeline.end - 1, timeline.first)
    region_of_last = np.searchsorted(borders, timeline.edges[last_stretch], side="right")
    n_regions = region_of_last - region_of_first + 1
    activity = np.repeat(np.arange(len(n_regions)), n_regions)
    region = np.repeat(region_of_first, n_regions) + _positions(n_regions)
    region_start = np.concatenate([[timeline.edges[0]], np.maximum(borders, timeline.edges[0])])
    region_end = np.concatenate([np.minimum(borders, timeline.edges[-1]), [timeline.edges[-1]]])
    low = np.maximum(timeline.first[activity], np.searchsorted(timeline.edges, region_start[region]))
    high = np.minimum(timeline.end[activity], np.searchsorted(timeline.edges, region_end[region]))
    return {"activity": activity, "region": region, "exclusive_ns": total[np.maximum(high, low)] - total[low]}


def _left_over(timeline: _Timeline) -> tuple[Int, Int]:
    """(activity, stretch) pairs that get one nanosecond more: the first L mod k of each stretch."""
    running = np.maximum(timeline.n_running, 1)
    uneven = np.flatnonzero((timeline.n_running > 1) & (timeline.length % running > 0))
    low, high = np.searchsorted(uneven, timeline.first), np.searchsorted(uneven, timeline.end)
    counts = np.maximum(high - low, 0)
    activity = np.repeat(np.arange(len(counts)), counts)
    stretch = uneven[np.repeat(low, counts) + _positions(counts)]
    order = np.argsort(stretch, kind="stable")
    activity, stretch = activity[order], stretch[order]
    _, sizes = np.unique(stretch, return_counts=True)
    gets_one = _positions(sizes) < (timeline.length % running)[stretch]
    return activity[gets_one], stretch[gets_one]


def _positions(counts: Int) -> Int:
    """0, 1, ... within each of the groups of these sizes."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
