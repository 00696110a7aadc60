"""The extra tracks of a trace that is written: their numbers, names and places, and the events that move there.

Threads that Perfetto would show as one get different numbers too: it knows numbers from 1 to 2³² − 1, and takes any
other, as of old threads of autograd or of streams, for that of the process, which its main thread has.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

import numpy as np

from traceql.arrays import Array, Bools
from traceql.slicing.events import EventColumns, Rows, Thread
from traceql.slicing.kinds import SLICES
from traceql.slicing.tracks import tracks

_MOST_TID = 2**31 - 2
_SEEN = range(1, 2**32)
"""Numbers that Perfetto takes as they are."""


@dataclass(frozen=True)
class ExtraTracks:
    """Where the events of one source go that cannot stay on their own track."""

    tids: dict[int, int | str] = field(default_factory=dict[int, int | str])
    """The new thread id of each row that moves."""
    metadata: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Events that name the new threads and put them beside the old ones."""
    n_moved: int = 0
    """Slices that move; arrows that move with them do not count."""
    n_tracks: int = 0
    """New threads."""
    n_renumbered: int = 0
    """Threads that move as a whole, to a number that viewers tell apart."""

    @classmethod
    def of(cls, rows: Rows, stays: Bools, columns: EventColumns) -> "ExtraTracks":
        """Those that the rows that stay need.

        Args:
            rows: all rows of one source.
            stays: which of them are written.
            columns: what made the rows.
        """
        kept = np.flatnonzero(stays)
        thread = rows.thread[kept]
        track = tracks(rows.at(kept))
        threads = list(columns.threads)
        drawn = {*thread[np.isin(rows.kind[kept], SLICES)].tolist(), *columns.thread_names}
        mistaken = _mistaken(threads, drawn)
        moved = np.flatnonzero((track > 0) | np.isin(thread, mistaken))
        keys: list[tuple[int, int]] = list(zip(thread[moved].tolist(), track[moved].tolist(), strict=True))
        free = _free_tids(threads)
        tids = {key: _tid(threads[key[0]][1], key[1], free) for key in sorted(set(keys))}
        extra = {key: tid for key, tid in tids.items() if key[1]}
        return cls(
            tids=dict(zip(kept[moved].tolist(), (tids[key] for key in keys), strict=True)),
            metadata=[event for key, tid in extra.items() for event in _described(columns, threads, *key, tid)],
            n_moved=_n_slices(rows, kept[track > 0]),
            n_tracks=len(extra),
            n_renumbered=len(tids) - len(extra),
        )


def _n_slices(rows: Rows, where: Array) -> int:
    return int(np.isin(rows.kind[where], SLICES).sum())


def _mistaken(threads: list[Thread], drawn: set[int]) -> list[int]:
    """Threads that Perfetto takes for another one of those that are drawn, which keeps its number."""
    seen: dict[Thread, int] = {}
    found: list[int] = []
    for code in sorted(drawn, key=lambda code: (not _is_seen(threads[code][1]), code)):
        pid, tid = threads[code]
        pid = pid if isinstance(pid, str) or pid in _SEEN else 0
        if seen.setdefault((pid, tid if _is_seen(tid) else pid), code) != code:
            found.append(code)
    return found


def _is_seen(tid: int | str) -> bool:
    return isinstance(tid, str) or tid in _SEEN


def _free_tids(threads: list[Thread]) -> Iterator[int]:
    """Thread numbers that the source does not use, nor for a process, whose number may stand for a thread."""
    used = {number for number in chain.from_iterable(threads) if isinstance(number, int)}
    highest = max(used, default=0)
    first = highest + 1 if 0 <= highest < _MOST_TID - len(used) else 1
    return (number for number in count(first) if number not in used)


def _tid(tid: int | str, track: int, free: Iterator[int]) -> int | str:
    return next(free) if isinstance(tid, int) else f"overlap {track}, {tid}"


def _described(
    columns: EventColumns, threads: list[Thread], thread: int, track: int, tid: int | str
) -> Iterator[dict[str, Any]]:
    pid, own_tid = threads[thread]
    name = columns.thread_names.get(thread, f"thread {own_tid}")
    yield _metadata("thread_name", pid, tid, {"name": f"{name} (overlap {track})"})
    place = columns.sort_indices.get(thread, own_tid)
    if isinstance(place, int):
        yield _metadata("thread_sort_index", pid, tid, {"sort_index": place})


def _metadata(name: str, pid: int | str, tid: int | str, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}
