"""The ranks of a run as one trace for the viewer: one clock, processes told apart, arrows within their rank.

The times of a rank move by one amount, so that every length and distance within it stays as recorded: of a clock that
drifts (table `clocks`) the offset at the middle of what is written is taken.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec
import numpy as np

from traceql.analyses.clocks import clock_offsets
from traceql.analyses.comm import collectives
from traceql.errors import MissingDataError
from traceql.ingest.meta import read_meta
from traceql.ingest.source import open_source
from traceql.ingest.texts import TextReader
from traceql.run import RunFile, file_shifts
from traceql.slicing.cut import Progress, Written, take
from traceql.slicing.document import joined
from traceql.slicing.editing import Editor, Place, ProcessNames
from traceql.slicing.events import EventColumns
from traceql.slicing.extra_tracks import ExtraTracks
from traceql.slicing.kinds import Kind
from traceql.slicing.sieve import Sieve
from traceql.slicing.store import Store
from traceql.slicing.window import Window, Wish, find_window
from traceql.trace import Trace

_OWN_KEYS = ("traceEvents", "traceName")
"""What a file says of itself alone."""


@dataclass(frozen=True)
class RankClock:
    """How the times of a rank were moved, and how well that is known."""

    rank: int
    shift_ns: int
    """Added to every time of the file."""
    correction_ns: int
    """What its clock was ahead by the ends of collectives; 0 where the ranks share a clock."""
    spread_ns: float | None
    """Median absolute deviation of these ends; null when nothing tells."""
    drift_ns: float
    """By how much more the clock is off at the ends of what is written than in its middle."""
    n_collectives: int
    """Matched collectives whose ends were compared."""


@dataclass
class Merged(Written):
    """What was written of a run."""

    clocks: list[RankClock] = field(default_factory=list[RankClock])
    """Of the ranks that were written."""
    left_out: dict[int, str] = field(default_factory=dict[int, str])
    """Ranks without anything in the window, and why."""


def merge(
    files: Sequence[RunFile], run: Trace, wish: Wish | None, written: Merged, *, progress: Progress | None = None
) -> Iterator[bytes]:
    """The document of a run, in blocks: rank by rank, the events of one at a time.

    Args:
        files: the files, in order of rank.
        run: the trace of all of them.
        wish: what is wanted of each rank, all when None; a time counts from the run's first event.
        written: filled in on the way.
        progress: called with the bytes read so far of a file, and its size.

    Raises:
        InputError: a file cannot be read any more.
        MissingDataError: nothing is in the window of any rank.
    """
    parts = list(_wanted(_parts(files, run), wish, written))
    if not parts:
        rank, reason = next(iter(written.left_out.items()))
        raise MissingDataError("nothing of any rank lies in the window", f"Rank {rank}: {reason}")
    written.clocks = [part.clock() for part in parts]
    head = _head_keys(files[0])
    keys = dict(head)

    def events() -> Iterator[bytes]:
        for part, clock in zip(parts, written.clocks, strict=True):
            place = Place(clock.rank, part.number, len(files), clock.shift_ns)
            with Store() as store:
                columns = EventColumns()
                sieve = Sieve(part.file.trace, part.window, columns) if part.window else None
                reader = take(part.file.path, part.file.trace, columns, sieve, written, into=store, progress=progress)
                if part.number == 0 and reader.is_wrapped:
                    keys.update(_shared(read_meta(reader.header, reader.after_events)[0]))
                yield from _edited(place, store, columns, sieve, written)

    def behind() -> bytes:
        names = {file.rank: file.path.name for file in files}
        ranks = [{"file": names[clock.rank]} | msgspec.to_builtins(clock) for clock in written.clocks]
        late = {key: value for key, value in keys.items() if key not in head}
        return _behind(late | {"traceql": {"merged": ranks}})

    yield from written.counted(joined(_before(head), events(), behind))


def _edited(
    place: Place, store: Store, columns: EventColumns, sieve: Sieve | None, written: Written
) -> Iterator[bytes]:
    """The events of a rank that stay, as they are written."""
    rows = store.rows()
    stays = sieve.together(rows) if sieve else np.ones(len(rows), bool)
    extra = ExtraTracks.of(rows, stays, columns)
    written.note(stays, extra)
    editor = Editor(place, columns, rows, extra)
    names = ProcessNames(place, columns)
    is_metadata = rows.of(Kind.METADATA)
    for numbers, texts in store.texts(stays):
        for i in np.flatnonzero(is_metadata[numbers]):
            texts[i] = names.renamed(texts[i])
        yield from editor.edited(numbers, texts)
    for event in (*extra.metadata, *names.missing()):
        yield json.dumps(event | {"pid": place.pid(event["pid"])}).encode()


# --- clocks and windows


@dataclass(frozen=True)
class _Part:
    """One file of the run, and what of it is wanted."""

    number: int
    file: RunFile
    begin_ns: int
    """How much later than the run it begins."""
    base_ns: int
    """The run's begin, in ns of the first file's own times."""
    found: dict[str, Any] | None
    """Its row of table `clocks`."""
    window: Window | None = None
    """Null when all of it is wanted."""

    @property
    def drift(self) -> float:
        """How much faster its clock runs, as far as that is to be corrected."""
        return self.found["drift_ppm"] / 1e6 if self.found and self.found["is_drift_applied"] else 0.0

    def ahead_ns(self, at_ns: int) -> int:
        """What its clock is ahead at a moment of the run."""
        if not self.found or not self.found["is_offset_applied"]:
            return 0
        return round((self.drift * at_ns + self.found["offset_ns"]) / (1 + self.drift))

    def clock(self) -> RankClock:
        """How its times move, for what is written of it."""
        begin, end = self._extent()
        ahead = self.ahead_ns(self.begin_ns + (begin + end) // 2)
        return RankClock(
            rank=self.file.rank,
            shift_ns=self.base_ns + self.begin_ns - _first_ns(self.file) - ahead,
            correction_ns=ahead,
            spread_ns=self.found["spread_ns"] if self.found and self.found["n_collectives"] else None,
            drift_ns=abs(self.drift) * (end - begin) / 2,
            n_collectives=self.found["n_collectives"] if self.found else 0,
        )

    def _extent(self) -> tuple[int, int]:
        """From when to when something is written, in the file's time since its first event."""
        span_ns = self.file.trace.meta.span_ns or 0
        if self.window is None:
            return 0, span_ns
        stretches = [self.window.both(rank).within(0, span_ns + 1) for rank in self.window.host]
        begins = [int(each.start[0]) for each in stretches if len(each.start)]
        ends = [int(each.end[-1]) for each in stretches if len(each.end)]
        return min(begins, default=0), max(ends, default=span_ns)


def _parts(files: Sequence[RunFile], run: Trace) -> Iterator[_Part]:
    clocks = {row["rank"]: row for row in clock_offsets(collectives(run)).iter_rows(named=True)}
    shifts = file_shifts([file.trace.meta for file in files]) or [0] * len(files)
    base_ns = _first_ns(files[0]) - shifts[0]
    for number, (file, shift) in enumerate(zip(files, shifts, strict=True)):
        yield _Part(number, file, shift, base_ns, clocks.get(file.rank))


def _first_ns(file: RunFile) -> int:
    return file.trace.meta.first_event_ns or 0


def _wanted(parts: Iterator[_Part], wish: Wish | None, written: Merged) -> Iterator[_Part]:
    """The parts with their windows; those with nothing in it are left out, and noted."""
    for part in parts:
        if wish is None:
            yield part
            continue
        try:
            window = find_window(part.file.trace, _own_wish(part, wish))
        except MissingDataError as error:
            written.left_out[part.file.rank] = f"{error.message}. {error.hint}"
        else:
            yield replace(part, window=window)


def _own_wish(part: _Part, wish: Wish) -> Wish:
    """The wish with its time on the file's own clock."""
    if wish.time is None:
        return wish
    known = [time for time in wish.time if time is not None]
    later = part.ahead_ns(sum(known) // len(known)) - part.begin_ns
    start, end = (None if time is None else time + later for time in wish.time)
    return replace(wish, time=(start, end))


# --- what stands around the events


def _head_keys(file: RunFile) -> dict[str, Any]:
    """What the file says before its events."""
    with open_source(file.path) as source:
        reader = TextReader(source.blocks())
        next(iter(reader), None)
        return _shared(read_meta(reader.header, b"]}")[0]) if reader.is_wrapped else {}


def _shared(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys that hold for the other ranks too."""
    distributed = keys.get("distributedInfo")
    if isinstance(distributed, dict):
        known = {key: value for key, value in cast("dict[str, Any]", distributed).items() if key != "rank"}
        keys = keys | {"distributedInfo": known}
    return {key: value for key, value in keys.items() if key not in _OWN_KEYS}


def _before(keys: dict[str, Any]) -> bytes:
    separator = ",\n" if keys else ""
    return f'{{\n{_members(keys)}{separator}  "traceEvents": [\n'.encode()


def _behind(keys: dict[str, Any]) -> bytes:
    return f"\n  ],\n{_members(keys)}\n}}\n".encode()


def _members(keys: dict[str, Any]) -> str:
    return ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in keys.items())
