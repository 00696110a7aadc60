"""The ranks of a run as one trace for the viewer: one clock, processes told apart, arrows within their rank.

A rank's processes get a prefix, `[RANK3] 1234`, as SGLang's own merger of traces writes it and traceql reads it, and
names that say the rank. Its times move by one amount, so that every length and distance within a rank stays as
recorded: what the clocks of table `clocks` drift is taken at the middle of what is written.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec
import numpy as np

from traceql.arrays import Array
from traceql.analyses.clocks import clock_offsets
from traceql.analyses.comm import collectives
from traceql.errors import MissingDataError
from traceql.ingest.event_text import NewValue, replaced
from traceql.ingest.meta import read_meta
from traceql.ingest.source import open_source
from traceql.ingest.texts import TextReader
from traceql.ingest.times import MISSING
from traceql.run import RunFile, file_shifts
from traceql.slicing.cut import Progress, Written, take
from traceql.slicing.document import joined
from traceql.slicing.events import EventColumns, Rows
from traceql.slicing.extra_tracks import ExtraTracks
from traceql.slicing.kinds import LINKED, Kind
from traceql.slicing.sieve import Sieve
from traceql.slicing.store import Store
from traceql.slicing.window import Window, Wish, find_window
from traceql.trace import Trace

_SORT_STEP = 1000
"""Processes that a rank may have before their order is that of the next rank's."""
_HEX = re.compile(rb'"0[xX]([0-9a-fA-F]{1,16})"')
_OWN_KEYS = ("traceEvents", "traceName")


@dataclass(frozen=True)
class RankClock:
    """How the times of a rank were moved, and how well that is known."""

    rank: int
    shift_ns: int
    """Added to every time of the file."""
    correction_ns: int
    """Of it, what the ends of collectives gave; 0 where the ranks share a clock."""
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
    left_out: dict[int, str] = field(default_factory=dict[int, str])
    """Ranks without anything in the window, and why."""


def merge(
    files: Sequence[RunFile], run: Trace, wish: Wish | None, written: Merged, *, progress: Progress | None = None
) -> Iterator[bytes]:
    """The document of a run, in blocks: rank by rank, the texts of one at a time.

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
    clocks = {row["rank"]: row for row in clock_offsets(collectives(run)).iter_rows(named=True)}
    shifts = file_shifts([file.trace.meta for file in files]) or [0] * len(files)
    base_ns = _first_ns(files[0]) - shifts[0]
    parts = [
        _Part(i, file, shift, base_ns, clocks.get(file.rank))
        for i, (file, shift) in enumerate(zip(files, shifts, strict=True))
    ]
    windows = [_window(part, wish, written) for part in parts]
    if all(window is None for window in windows) and wish:
        raise MissingDataError("nothing of any rank lies in the window", next(iter(written.left_out.values()), ""))
    chosen = [(part, window) for part, window in zip(parts, windows, strict=True) if window or wish is None]
    written.clocks = [part.clock(window) for part, window in chosen]
    head = _head_keys(files[0])
    keys: dict[str, Any] = {}
    ranks = [(part, window, clock) for (part, window), clock in zip(chosen, written.clocks, strict=True)]

    def events() -> Iterator[bytes]:
        for part, window, clock in ranks:
            with Store() as store:
                columns = EventColumns()
                sieve = Sieve(part.file.trace, window, columns) if window else None
                reader = take(part.file.path, store, columns, sieve, written, progress)
                if part.number == 0 and reader.is_wrapped:
                    keys.update(_shared(read_meta(reader.header, reader.after_events)[0]))
                yield from _edited(part, store, columns, sieve, clock.shift_ns, len(files), written)

    def behind() -> bytes:
        names = {file.rank: file.path.name for file in files}
        ranks = [{"file": names[clock.rank]} | msgspec.to_builtins(clock) for clock in written.clocks]
        late = {key: value for key, value in keys.items() if key not in head}
        return _behind(late | {"traceql": {"merged": ranks}})

    yield from written.counted(joined(_before(head), events(), behind))


@dataclass(frozen=True)
class _Part:
    """One file of the run."""

    number: int
    file: RunFile
    begin_ns: int
    """How much later than the run it begins."""
    base_ns: int
    """The run's begin, in ns of the first file's own times."""
    found: dict[str, Any] | None
    """Its row of table `clocks`."""

    @property
    def prefix(self) -> str:
        return f"[RANK{self.file.rank}] "

    def correction_ns(self, at_ns: int) -> int:
        """What its clock is ahead at a moment of the run."""
        if not self.found or not self.found["is_offset_applied"]:
            return 0
        drift = self._drift()
        return round((drift * at_ns + self.found["offset_ns"]) / (1 + drift))

    def _drift(self) -> float:
        return self.found["drift_ppm"] / 1e6 if self.found and self.found["is_drift_applied"] else 0.0

    def clock(self, window: Window | None) -> RankClock:
        """How its times move, for what is written of it."""
        begin, end = _extent(window, self.file.trace)
        correction = self.correction_ns(self.begin_ns + (begin + end) // 2)
        return RankClock(
            rank=self.file.rank,
            shift_ns=self.base_ns + self.begin_ns - _first_ns(self.file) - correction,
            correction_ns=correction,
            spread_ns=self.found["spread_ns"] if self.found and self.found["n_collectives"] else None,
            drift_ns=abs(self._drift()) * (end - begin) / 2,
            n_collectives=self.found["n_collectives"] if self.found else 0,
        )


def _first_ns(file: RunFile) -> int:
    return file.trace.meta.first_event_ns or 0


def _extent(window: Window | None, trace: Trace) -> tuple[int, int]:
    """From when to when something is written, in the file's time since its first event."""
    span_ns = trace.meta.span_ns or 0
    if window is None:
        return 0, span_ns
    parts = [window.both(rank).within(0, span_ns + 1) for rank in window.host]
    starts = [int(part.start[0]) for part in parts if len(part.start)]
    ends = [int(part.end[-1]) for part in parts if len(part.end)]
    return min(starts, default=0), max(ends, default=span_ns)


def _window(part: _Part, wish: Wish | None, written: Merged) -> Window | None:
    """The window of a rank; None when nothing is in it, which is noted, or all is wanted."""
    if wish is None:
        return None
    if wish.time is not None:
        middle = sum(time or 0 for time in wish.time) // 2
        later = part.correction_ns(middle) - part.begin_ns
        wish = replace(wish, time=tuple(None if time is None else time + later for time in wish.time))
    try:
        return find_window(part.file.trace, wish)
    except MissingDataError as error:
        written.left_out[part.file.rank] = f"{error.message}. {error.hint}"
        return None


# --- the events of a rank


def _edited(
    part: _Part,
    store: Store,
    columns: EventColumns,
    sieve: Sieve | None,
    shift_ns: int,
    n_ranks: int,
    written: Written,
) -> Iterator[bytes]:
    """The events of a rank that stay, as they are written."""
    rows = store.rows()
    stays = sieve.together(rows) if sieve else np.ones(len(rows), bool)
    extra = ExtraTracks.of(rows, stays, columns)
    written.note(stays, extra)
    editor = _Editor(part, columns, rows, extra, shift_ns, n_ranks)
    names = _ProcessNames(part, columns)
    is_metadata = rows.of(Kind.METADATA)
    for numbers, texts in store.texts(stays):
        for i in np.flatnonzero(is_metadata[numbers]):
            texts[i] = names.renamed(texts[i])
        yield from editor.edited(numbers, texts)
    for event in (*extra.metadata, *names.missing()):
        yield json.dumps(event | {"pid": f"{part.prefix}{event['pid']}"}).encode()


class _Editor:
    """Changes the events of a rank: process, time, track, and the number that arrows share."""

    def __init__(
        self, part: _Part, columns: EventColumns, rows: Rows, extra: ExtraTracks, shift_ns: int, n_ranks: int
    ) -> None:
        self._number, self._n_ranks, self._prefix = part.number, n_ranks, part.prefix
        self._rows, self._shift_ns = rows, shift_ns
        self._pids = [json.dumps(f"{part.prefix}{pid}").encode() for pid, _ in columns.threads]
        self._tids = {row: json.dumps(tid).encode() for row, tid in extra.tids.items()}
        self._is_timed = (rows.kind != Kind.METADATA) & (rows.start != MISSING) & (shift_ns != 0)
        self._is_linked = rows.of(*LINKED)

    def edited(self, numbers: Array, texts: Sequence[bytes]) -> Iterator[bytes]:
        """The texts of some events as they are written.

        Args:
            numbers: the row of each.
            texts: their texts.
        """
        threads, is_timed, is_linked = (
            column[numbers].tolist() for column in (self._rows.thread, self._is_timed, self._is_linked)
        )
        times = (self._rows.start[numbers] + self._shift_ns).tolist()
        for row, text, thread, time, timed, linked in zip(
            numbers.tolist(), texts, threads, times, is_timed, is_linked, strict=True
        ):
            values: dict[bytes, NewValue] = {b"pid": self._pids[thread]}
            if timed:
                values[b"ts"] = _us(time)
            if row in self._tids:
                values[b"tid"] = self._tids[row]
            if linked:
                values[b"id"] = self._link
            yield replaced(text, values)

    def _link(self, old: bytes) -> bytes:
        """Another id for each rank."""
        if old.isdigit():
            return b"%d" % (int(old) * self._n_ranks + self._number)
        if found := _HEX.fullmatch(old):
            return b'"0x%x"' % (int(found[1], 16) * self._n_ranks + self._number)
        return json.dumps(self._prefix).encode()[:-1] + old.strip(b'"') + b'"'


def _us(ns: int) -> bytes:
    """Decimal µs, as Kineto writes them."""
    whole, rest = divmod(abs(ns), 1000)
    return b"%s%d.%03d" % (b"-" if ns < 0 else b"", whole, rest)


class _ProcessNames:
    """Names the processes of a rank after it, and puts them in order behind those of the rank before."""

    def __init__(self, part: _Part, columns: EventColumns) -> None:
        self._part = part
        self._pids = dict.fromkeys(pid for pid, _ in columns.threads)
        self._places = {index: place for place, index in enumerate(sorted(columns.process_sort_indices))}
        self._named: set[int | str] = set()

    def renamed(self, text: bytes) -> bytes:
        """The metadata event of a process with its new name or place; any other as it is."""
        try:
            event: dict[str, Any] = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return text
        given = event.get("args")
        args = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        pid = event.get("pid", 0)
        if event.get("name") == "process_name":
            self._named.add(pid)
            args["name"] = self._name(pid, str(args.get("name") or "").strip())
        elif event.get("name") == "process_sort_index" and args.get("sort_index") in self._places:
            args["sort_index"] = self._part.number * _SORT_STEP + self._places[args["sort_index"]]
        else:
            return text
        return json.dumps(event | {"args": args}).encode()

    def missing(self) -> Iterator[dict[str, Any]]:
        """Names of the processes that the file does not name."""
        for pid in self._pids:
            if pid not in self._named and pid != "":
                yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": self._name(pid, "")}}

    def _name(self, pid: int | str, name: str) -> str:
        return " ".join(filter(None, (f"rank {self._part.file.rank} ·", name, str(pid))))


# --- what stands around them


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
    return (_members(keys, "{\n") + ('  "traceEvents": [\n' if not keys else ',\n  "traceEvents": [\n')).encode()


def _behind(keys: dict[str, Any]) -> bytes:
    return (_members(keys, "\n  ],\n") + "\n}\n").encode()


def _members(keys: dict[str, Any], begin: str) -> str:
    return begin + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in keys.items())
