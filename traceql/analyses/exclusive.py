"""Exclusive time: each nanosecond in which a device works, given to one of the activities that run in it.

A stretch of L ns in which k activities run gives each L // k; the L mod k left over go one each to the first by
(start, stream, correlation). So exclusive times add up to the busy time exactly, whatever the order of rows.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceql.arrays import Ints
from traceql.tables import KERNEL_ID, Column, Table

EXCLUSIVE = Table(
    "exclusive",
    "One row per GPU activity that takes time and region that it runs in. Sorted by kernel_id, region.",
    KERNEL_ID,
    Column("region", pl.Int64, "Number of the region, between two borders, on the activity's device"),
    Column("exclusive_ns", pl.Int64, "Its exclusive time there"),
)


def exclusive_time(kernels: pl.DataFrame, borders: Ints) -> pl.DataFrame:
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
    activity, stretch = _left_over(timeline)
    region = np.searchsorted(borders, timeline.edges[stretch], side="right")
    one_more = np.bincount(shares.row_of(activity, region), minlength=len(shares.region))
    found = {
        "kernel_id": kernels["kernel_id"].to_numpy()[shares.activity],
        "region": shares.region,
        "exclusive_ns": shares.even_ns + one_more,
    }
    return EXCLUSIVE.check(pl.DataFrame(found, schema=EXCLUSIVE.schema).sort("kernel_id", "region"))


@dataclass(frozen=True)
class _Timeline:
    """The stretches between consecutive edges (starts, ends, borders), and the activities as ranges of them."""

    edges: Ints
    length: Ints
    """Of each stretch; one fewer than edges."""
    n_running: Ints
    """Activities running in each stretch."""
    first: Ints
    """First stretch of each activity."""
    end: Ints
    """Stretch behind its last."""


def _timeline(start: Ints, end: Ints, borders: Ints) -> _Timeline:
    inside = borders[(borders > start.min()) & (borders < end.max())]
    edges = np.sort(np.concatenate([start, end, inside]))
    edges = edges[np.diff(edges, prepend=edges[0] - 1) > 0]
    first, last = np.searchsorted(edges, start), np.searchsorted(edges, end)
    n_edges = len(edges)
    change = np.bincount(first, minlength=n_edges) - np.bincount(last, minlength=n_edges)
    return _Timeline(edges, np.diff(edges), np.cumsum(change)[:-1], first, last)


@dataclass(frozen=True)
class _Shares:
    """Even shares (L // k summed): a row for each activity and region that it runs in, by activity and region."""

    activity: Ints
    region: Ints
    even_ns: Ints
    first_row: Ints
    """Of each activity."""
    first_region: Ints
    """Of each activity."""

    def row_of(self, activity: Ints, region: Ints) -> Ints:
        """The rows of activities in regions that they run in."""
        return self.first_row[activity] + region - self.first_region[activity]


def _by_region(timeline: _Timeline, borders: Ints) -> _Shares:
    even = np.where(timeline.n_running > 0, timeline.length // np.maximum(timeline.n_running, 1), 0)
    total = np.concatenate([[0], np.cumsum(even)])
    first_region = np.searchsorted(borders, timeline.edges[timeline.first], side="right")
    last_region = np.searchsorted(borders, timeline.edges[timeline.end - 1], side="right")
    n_regions = last_region - first_region + 1
    activity = np.repeat(np.arange(len(n_regions)), n_regions)
    region = np.repeat(first_region, n_regions) + _positions(n_regions)
    region_first = np.searchsorted(timeline.edges, np.concatenate([timeline.edges[:1], borders]))
    region_end = np.searchsorted(timeline.edges, np.concatenate([borders, timeline.edges[-1:]]))
    low = np.maximum(timeline.first[activity], region_first[region])
    high = np.minimum(timeline.end[activity], region_end[region])
    return _Shares(activity, region, total[high] - total[low], np.cumsum(n_regions) - n_regions, first_region)


def _left_over(timeline: _Timeline) -> tuple[Ints, Ints]:
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


def _positions(counts: Ints) -> Ints:
    """0, 1, ... within each of the groups of these sizes."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
