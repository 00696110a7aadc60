"""The extra tracks of a trace that is written: their numbers, names and places, and the events that move there."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from traceql.arrays import Bools
from traceql.slicing.events import EventColumns, Rows
from traceql.slicing.kinds import SLICES
from traceql.slicing.tracks import tracks

_MOST_TID = 2**31 - 2


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

    @classmethod
    def of(cls, rows: Rows, stays: Bools, columns: EventColumns) -> "ExtraTracks":
        """Those that the rows that stay need.

        Args:
            rows: all rows of one source.
            stays: which of them are written.
            columns: what made the rows.
        """
        kept = np.flatnonzero(stays)
        track = tracks(rows.at(kept))
        moved = np.flatnonzero(track)
        keys: list[tuple[int, int]] = list(zip(rows.thread[kept[moved]].tolist(), track[moved].tolist(), strict=True))
        free = _free_tids(columns)
        threads = list(columns.threads)
        tids = {key: _tid(threads[key[0]][1], key[1], free) for key in sorted(set(keys))}
        return cls(
            tids=dict(zip(kept[moved].tolist(), (tids[key] for key in keys), strict=True)),
            metadata=[event for key, tid in tids.items() for event in _described(columns, threads, *key, tid)],
            n_moved=int(np.isin(rows.kind[kept[moved]], SLICES).sum()),
            n_tracks=len(tids),
        )


def _free_tids(columns: EventColumns) -> Iterator[int]:
    """Thread numbers that the source does not use."""
    used = {tid for _, tid in columns.threads if isinstance(tid, int)}
    highest = max(used, default=0)
    first = highest + 1 if 0 <= highest < _MOST_TID - len(used) else 1
    return (number for number in count(first) if number not in used)


def _tid(tid: int | str, track: int, free: Iterator[int]) -> int | str:
    return next(free) if isinstance(tid, int) else f"overlap {track}, {tid}"


def _described(
    columns: EventColumns, threads: list[tuple[int | str, int | str]], thread: int, track: int, tid: int | str
) -> Iterator[dict[str, Any]]:
    pid, own_tid = threads[thread]
    name = columns.thread_names.get(thread, f"thread {own_tid}")
    yield _metadata("thread_name", pid, tid, {"name": f"{name} (overlap {track})"})
    place = columns.sort_indices.get(thread, own_tid)
    if isinstance(place, int):
        yield _metadata("thread_sort_index", pid, tid, {"sort_index": place})


def _metadata(name: str, pid: int | str, tid: int | str, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}
