"""The events of a file as arrays, beside their texts: what is decided about them is decided on whole columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct

from traceql.arrays import Array, Ints, Ints32
from traceql.ingest.decode import ALONE, Codes
from traceql.ingest.events import Event, lenient_args
from traceql.ingest.times import MISSING, parse_us
from traceql.slicing.kinds import LINKED, Kind, Kinds
from traceql.slicing.stretches import Stretches

Item = TypeVar("Item")
Thread = tuple[int | str, int | str]
NONE = -1

METADATA, SLICE = "M", "X"

_phase = attrgetter("ph")
_phase_and_category = attrgetter("ph", "cat")
_thread = attrgetter("pid", "tid")


@dataclass(frozen=True)
class Rows:
    """Events, a column each; times are ns of the file's own clock, `MISSING` where there is none to read."""

    kind: Array
    phase: Array
    """As a byte, of flows, asynchronous events and brackets; 0 for others."""
    thread: Ints32
    """Code of (pid, tid)."""
    start: Ints
    dur: Ints
    """0 for what has no length."""
    link: Ints32
    """Code of what a flow or asynchronous event shares with those it belongs to; `NONE` for others."""

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def end(self) -> Ints:
        """When they end."""
        return self.start + self.dur

    def at(self, where: Array) -> "Rows":
        """Some of the rows, by index or mask."""
        return Rows(*(getattr(self, name)[where] for name in _COLUMNS))

    def of(self, *kinds: Kind) -> Array:
        """Which rows are of these kinds."""
        return np.isin(self.kind, kinds)

    @classmethod
    def joined(cls, parts: "list[Rows]") -> "Rows":
        """The rows of all parts."""
        return cls(*(np.concatenate([getattr(part, name) for part in (_NO_ROWS, *parts)]) for name in _COLUMNS))


_COLUMNS = ("kind", "phase", "thread", "start", "dur", "link")
_NO_ROWS = Rows(
    np.empty(0, np.int8), np.empty(0, np.uint8), np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64),
    np.empty(0, np.int32),
)  # fmt: skip


def at(items: Sequence[Item], index: Array) -> list[Item]:
    """Some of the items."""
    numbers: list[int] = index.tolist()
    return [items[i] for i in numbers]


class _Link(Struct, gc=False):
    """What of an event names those it belongs to."""

    id: Raw = Raw()
    id2: Raw = Raw()
    scope: Raw = Raw()


class _ThreadArgs(Struct, gc=False):
    """Arguments of thread_name and thread_sort_index metadata."""

    name: str | None = None
    sort_index: int | None = None


_links = msgspec.json.Decoder(_Link)


class EventColumns:
    """Makes columns of events; threads and links are numbered in order of appearance over all of them."""

    def __init__(self) -> None:
        self.threads: Codes[Thread] = Codes()
        self.thread_names: dict[int, str] = {}
        self.sort_indices: dict[int, int] = {}
        """Of threads that have one; by thread code."""
        self.process_sort_indices: set[int] = set()
        self._links: Codes[tuple[object, ...]] = Codes()
        self._kinds = Kinds()

    def rows(self, events: list[Event], near: Stretches | None = None) -> tuple[Array, Rows]:
        """The columns of events, without links, and the index of each.

        Args:
            events: the events.
            near: leave out what has no time in common with these stretches, if it makes sense by itself.
        """
        phases = list(map(_phase, events))
        start, dur = _times(events, phases)
        index = np.arange(len(events))
        if near is not None:
            stays = near.meet(start, np.where(dur == MISSING, start, start + dur))
            if set(phases) - ALONE:
                stays |= np.fromiter((phase not in ALONE for phase in phases), bool, len(phases))
            index = np.flatnonzero(stays)
        chosen = at(events, index)
        kind = np.fromiter(map(self._kinds.__getitem__, map(_phase_and_category, chosen)), np.int8, len(index))
        thread = np.fromiter(map(self.threads.__getitem__, map(_thread, chosen)), np.int32, len(index))
        phase = np.zeros(len(index), np.uint8)
        for i in np.flatnonzero(np.isin(kind, (*LINKED, Kind.BRACKET))):
            phase[i] = ord(chosen[i].ph)
        for i in np.flatnonzero(kind == Kind.METADATA):
            self._describe(int(thread[i]), chosen[i])
        return index, Rows(kind, phase, thread, start[index], dur[index], np.full(len(index), NONE, np.int32))

    def _describe(self, thread: int, event: Event) -> None:
        args = lenient_args(_ThreadArgs, bytes(event.args))
        if event.name == "thread_name" and args.name:
            self.thread_names[thread] = args.name.strip()
        elif event.name == "thread_sort_index" and args.sort_index is not None:
            self.sort_indices[thread] = args.sort_index
        elif event.name == "process_sort_index" and args.sort_index is not None:
            self.process_sort_indices.add(args.sort_index)

    def link(self, event: Event, text: bytes) -> int:
        """The code of what is the same for the events that belong together, as viewers have it."""
        try:
            found = _links.decode(text)
        except msgspec.MsgspecError:
            return self._links[(event.ph, text)]
        local = event.pid if b'"local"' in bytes(found.id2) else None
        return self._links[event.cat, event.name, bytes(found.id), bytes(found.id2), bytes(found.scope), local]


def _times(events: list[Event], phases: list[str]) -> tuple[Ints, Ints]:
    """Start and length of each event, `MISSING` where it cannot be read; 0 is the length of what is no slice."""
    start, dur = np.full(len(events), MISSING), np.zeros(len(events), np.int64)
    if METADATA in phases:
        timed = np.array([i for i, phase in enumerate(phases) if phase != METADATA], np.int64)
        start[timed] = parse_us([event.ts for event in at(events, timed)])
    else:
        start = parse_us([event.ts for event in events])
    long = np.array([i for i, phase in enumerate(phases) if phase == SLICE], np.int64)
    dur[long] = parse_us([event.dur for event in at(events, long)])
    return start, dur
