"""Decides which events of a file lie in a window: first each by itself, then what only makes sense together.

By itself: GPU activities are those that traceql attributes; on the host what has time in common with the window, or
with a call that launched one of these activities, on the thread of that call: so every launch keeps the operators and
frames around it. Together: arrows with both ends, the parts of asynchronous events, begin and end marks, and
annotations on the GPU with an activity kept below them.
"""

import re
from collections import defaultdict
from itertools import islice
from typing import Any, TypeVar

import msgspec
import numpy as np
import polars as pl

from traceql.arrays import Array, Bools, Ints
from traceql.ingest.decode import DECODE_ERRORS
from traceql.ingest.events import Event, GpuArgs, SyncArgs, lenient_args
from traceql.ingest.times import MISSING
from traceql.slicing.events import EventColumns, Rows
from traceql.slicing.kinds import Kind
from traceql.slicing.stretches import Stretches
from traceql.slicing.window import Window
from traceql.trace import Trace

LONGEST_NS = 30 * 86_400 * 10**9
"""As in reading: what claims to last longer is of no use."""
_NUMBER_AT_END = re.compile(r"(-?\d+)\s*$")
_MOST_DIGITS = 20
"""Of a number of 64 bits, with its sign."""
_NOWHERE = Stretches.union([])
_THREAD = ["pid", "tid"]
Shape = TypeVar("Shape", bound=msgspec.Struct)


class Sieve:
    """Which events of a file lie in a window of it.

    Args:
        trace: the file's trace.
        window: what is wanted of it.
        columns: what makes the rows that are asked about.
    """

    def __init__(self, trace: Trace, window: Window, columns: EventColumns) -> None:
        first_ns = trace.meta.first_event_ns or 0
        threads = trace.threads.collect()
        self._columns = columns
        self._rank_of = {(pid, tid): rank for pid, tid, rank in threads.select(*_THREAD, "rank").iter_rows()}
        self._rank_of_process = {pid: rank for (pid, _), rank in self._rank_of.items()}
        self._first_rank = min(window.host, default=0)
        self._names: list[tuple[str, str]] = []
        """(pid, tid) of each thread code, as the table `threads` has them."""
        self._ranks: list[int] = []
        """Rank of each thread code; -1 for threads of ranks that are not wanted."""
        self._host = {rank: stretches.later(first_ns) for rank, stretches in window.host.items()}
        self._both = {rank: window.both(rank).later(first_ns) for rank in window.host}
        self._gpu = {rank: _extent(window, rank).later(first_ns) for rank in window.host}
        self._calls = _by_thread(window.calls.join(threads, on="thread_id", how="left"), first_ns)
        self._kernels = _kernel_keys(window.kernels, first_ns)
        self._kernel_starts = np.unique(np.array([key[3] for key in self._kernels], np.int64))
        self._foreign = _foreign_correlations(trace, window)
        starts = Stretches.of(self._kernel_starts, self._kernel_starts)
        self.near = Stretches.union([*self._both.values(), *self._calls.values(), starts])
        """All time in which anything of the window may lie."""

    def taken(self, events: list[Event], rows: Rows) -> Array:
        """Index of the events that lie in the window each by itself, or may do so together with others."""
        rank = self._rank(rows)
        found = rows.of(Kind.METADATA)
        usable = (rows.start != MISSING) & (rows.dur >= 0) & (rows.dur <= LONGEST_NS)
        for number in np.unique(rank):
            if number >= 0:
                where = np.flatnonzero(usable & (rank == number))
                found[where] = self._may_be_in(int(number), rows.at(where))
        for i in np.flatnonzero(found & rows.of(Kind.GPU)):
            found[i] = _kernel_key(events[i], int(rank[i]), int(rows.start[i]), int(rows.dur[i])) in self._kernels
        for i in np.flatnonzero(found & rows.of(Kind.SYNC)):
            found[i] = (int(rank[i]), _arguments(SyncArgs, events[i]).correlation) not in self._foreign
        return np.flatnonzero(found)

    def _rank(self, rows: Rows) -> Ints:
        for pid, tid in islice(self._columns.threads, len(self._names), None):
            name = (str(pid), str(tid))
            rank = self._rank_of.get(name, self._rank_of_process.get(name[0], self._first_rank))
            self._names.append(name)
            self._ranks.append(rank if rank in self._host else -1)
        return np.array(self._ranks, np.int64)[rows.thread]

    def _may_be_in(self, rank: int, rows: Rows) -> Bools:
        """Which of the rows of a rank are in the window, as far as time tells."""
        host, both = self._host[rank].meet(rows.start, rows.end), self._both[rank].meet(rows.start, rows.end)
        starts_kernel = np.isin(rows.start, self._kernel_starts)
        found = (
            rows.of(Kind.METADATA, Kind.BRACKET, Kind.ASYNC)
            | (rows.of(Kind.HOST) & host)
            | (rows.of(Kind.GPU, Kind.FLOW) & starts_kernel)
            | (rows.of(Kind.GPU_SPAN) & self._gpu[rank].meet(rows.start, rows.end))
            | (rows.of(Kind.SYNC, Kind.OTHER, Kind.MOMENT, Kind.FLOW) & both)
        )
        for thread in np.unique(rows.thread):
            calls = self._calls.get(self._names[int(thread)], _NOWHERE)
            here = np.flatnonzero((rows.thread == thread) & rows.of(Kind.HOST, Kind.FLOW))
            found[here] |= calls.meet(rows.start[here], rows.end[here])
        return found

    def together(self, rows: Rows) -> Bools:
        """Which of the taken rows stay, now that all are known."""
        stays = np.ones(len(rows), bool)
        stays &= ~rows.of(Kind.GPU_SPAN) | _above(rows, rows.of(Kind.GPU))
        stays &= ~rows.of(Kind.BRACKET) | self._brackets(rows)
        stays &= ~rows.of(Kind.ASYNC) | self._parts(rows)
        stays &= ~rows.of(Kind.FLOW) | _whole_arrows(rows, stays & rows.of(Kind.GPU, Kind.HOST, Kind.SYNC, Kind.OTHER))
        return stays

    def _brackets(self, rows: Rows) -> Bools:
        """Which begin and end marks are of a pair in the window; they pair like brackets on each thread."""
        stays = np.zeros(len(rows), bool)
        open_marks: defaultdict[int, list[int]] = defaultdict(list)
        where = np.flatnonzero(rows.of(Kind.BRACKET))
        ranks = self._rank(rows)
        for i in where[np.argsort(rows.start[where], kind="stable")]:
            marks = open_marks[int(rows.thread[i])]
            if rows.phase[i] == ord("B"):
                marks.append(int(i))
            elif marks:
                begin = marks.pop()
                both = self._both[int(ranks[i])]
                stays[[begin, i]] = both.meet(rows.start[[begin]], rows.start[[i]])[0]
        return stays

    def _parts(self, rows: Rows) -> Bools:
        """Which asynchronous events have, from their first part to their last, time in common with the window."""
        stays = np.zeros(len(rows), bool)
        where = np.flatnonzero(rows.of(Kind.ASYNC))
        ranks = self._rank(rows)
        by_link: defaultdict[int, list[int]] = defaultdict(list)
        for i in where:
            by_link[int(rows.link[i])].append(int(i))
        for parts in by_link.values():
            times = rows.start[parts]
            both = self._both[int(ranks[parts[0]])]
            stays[parts] = both.meet(times.min(keepdims=True), times.max(keepdims=True))[0]
        return stays


# --- what is wanted


def _extent(window: Window, rank: int) -> Stretches:
    gpu = window.gpu(rank)
    return Stretches.one(*gpu) if gpu else _NOWHERE


def _by_thread(calls: pl.DataFrame, first_ns: int) -> dict[tuple[str, str], Stretches]:
    """The time of the calls of each thread."""
    found: dict[tuple[str, str], Stretches] = {}
    for (pid, tid), rows in calls.group_by(_THREAD):
        start = rows["start_ns"].to_numpy() + first_ns
        found[str(pid), str(tid)] = Stretches.of(start, start + rows["dur_ns"].to_numpy())
    return found


def _kernel_keys(kernels: pl.DataFrame, first_ns: int) -> set[tuple[Any, ...]]:
    """What tells each of the activities from all others; of those never timed the time is 0, as in the file."""
    timed = (pl.col("start_ns") + first_ns).fill_null(0)
    keys = kernels.select(
        "rank", "device", "stream", timed.alias("start_ns"), pl.col("dur_ns").fill_null(0),
        "correlation", "name",
    )  # fmt: skip
    return set(keys.iter_rows())


def _kernel_key(event: Event, rank: int, start: int, dur: int) -> tuple[Any, ...]:
    """The same of an event."""
    args = _arguments(GpuArgs, event)
    device = _number(args.device, event.pid, n_bits=16)
    stream = _number(args.stream, event.tid, n_bits=64)
    correlation = None if args.correlation in (None, MISSING, 0) else args.correlation
    return rank, device, stream, start, dur, correlation, event.name


def _number(recorded: int | None, place: int | str, *, n_bits: int) -> int:
    """What is recorded, else the number that the place ends with, else 0, as the reader takes them."""
    found = _NUMBER_AT_END.search(str(place))
    named = int(found[1]) if found and len(found[1]) <= _MOST_DIGITS else None
    fitting = range(-(1 << (n_bits - 1)), 1 << (n_bits - 1))
    known = (number for number in (recorded, named) if number is not None and number != MISSING)
    return next((number for number in known if number in fitting), 0)


def _arguments(shape: type[Shape], event: Event) -> Shape:
    try:
        return msgspec.json.decode(event.args, type=shape)
    except DECODE_ERRORS:
        return lenient_args(shape, bytes(event.args))


def _foreign_correlations(trace: Trace, window: Window) -> set[tuple[int, int]]:
    """(rank, correlation) of the calls that are not in the window: what they wait for is not either."""
    calls = trace.launches.filter(pl.col("correlation").is_not_null())
    rows = calls.select("rank", "correlation", "start_ns", "dur_ns").collect()
    outside: set[tuple[int, int]] = set()
    inside = set(window.kernels.filter(pl.col("correlation").is_not_null()).select("rank", "correlation").iter_rows())
    for rank, stretches in window.host.items():
        of_rank = rows.filter(pl.col("rank") == rank)
        start = of_rank["start_ns"].to_numpy()
        is_inside = pl.Series(stretches.meet(start, start + of_rank["dur_ns"].to_numpy()), dtype=pl.Boolean)
        inside |= set(of_rank.filter(is_inside).select("rank", "correlation").iter_rows())
        outside |= set(of_rank.filter(~is_inside).select("rank", "correlation").iter_rows())
    return outside - inside


# --- what belongs together


def _above(rows: Rows, below: Bools) -> Bools:
    """Which rows have time in common with one of those below, on their thread."""
    found = np.zeros(len(rows), bool)
    for thread in np.unique(rows.thread[below]):
        mine = np.flatnonzero(below & (rows.thread == thread))
        here = np.flatnonzero(rows.thread == thread)
        found[here] = Stretches.of(rows.start[mine], rows.end[mine]).meet(rows.start[here], rows.end[here])
    return found


def _whole_arrows(rows: Rows, slices: Bools) -> Bools:
    """Which ends of arrows land on a slice that stays, while the other end does so too."""
    lands = rows.of(Kind.FLOW) & _above(rows, slices)
    begins, ends = lands & (rows.phase == ord("s")), lands & (rows.phase == ord("f"))
    whole = np.intersect1d(rows.link[begins], rows.link[ends])
    return lands & np.isin(rows.link, whole)
