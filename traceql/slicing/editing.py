"""What merging changes of an event: its process, its time, its track, and the number that arrows share."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from traceql.arrays import Ints
from traceql.ingest.event_text import NewValue, replaced
from traceql.ingest.times import MISSING
from traceql.slicing.events import EventColumns, Rows
from traceql.slicing.extra_tracks import ExtraTracks
from traceql.slicing.kinds import LINKED, Kind

_SORT_STEP = 1000
"""Processes that a rank may have before their order is that of the next rank's."""
_HEX = re.compile(rb'"0[xX]([0-9a-fA-F]{1,16})"')


@dataclass(frozen=True)
class Place:
    """Where a rank stands in the trace of all."""

    rank: int
    number: int
    """Of the file, from 0."""
    n_files: int
    shift_ns: int
    """Added to every time of the file."""

    def pid(self, pid: int | str) -> str:
        """The process: as SGLang's own merger of traces writes it, and traceql reads it."""
        return f"[RANK{self.rank}] {pid}"

    def link(self, old: bytes) -> bytes:
        """The id of an arrow or asynchronous event, another one for each file."""
        if old.isdigit():
            return b"%d" % (int(old) * self.n_files + self.number)
        if found := _HEX.fullmatch(old):
            return b'"0x%x"' % (int(found[1], 16) * self.n_files + self.number)
        return json.dumps(self.pid("")).encode()[:-1] + old.strip(b'"') + b'"'

    def name(self, pid: int | str, name: str) -> str:
        """What people see of a process."""
        return " ".join(filter(None, (f"rank {self.rank} ·", name, str(pid))))


class Editor:
    """Changes the events of one file."""

    def __init__(self, place: Place, columns: EventColumns, rows: Rows, extra: ExtraTracks) -> None:
        self._place, self._rows = place, rows
        self._pids = [json.dumps(place.pid(pid)).encode() for pid, _ in columns.threads]
        self._tids = {row: json.dumps(tid).encode() for row, tid in extra.tids.items()}
        self._is_timed = (rows.kind != Kind.METADATA) & (rows.start != MISSING) & (place.shift_ns != 0)
        self._is_linked = rows.of(*LINKED)

    def edited(self, numbers: Ints, texts: Sequence[bytes]) -> Iterator[bytes]:
        """The texts of some events as they are written.

        Args:
            numbers: the row of each.
            texts: their texts.
        """
        columns = (self._rows.thread, self._is_timed, self._is_linked)
        threads, is_timed, is_linked = (column[numbers].tolist() for column in columns)
        times = (self._rows.start[numbers] + self._place.shift_ns).tolist()
        for row, text, thread, time, timed, linked in zip(
            numbers.tolist(), texts, threads, times, is_timed, is_linked, strict=True
        ):
            values: dict[bytes, NewValue] = {b"pid": self._pids[thread]}
            if timed:
                values[b"ts"] = _us(time)
            if row in self._tids:
                values[b"tid"] = self._tids[row]
            if linked:
                values[b"id"] = self._place.link
            yield replaced(text, values)


def _us(ns: int) -> bytes:
    """Decimal µs, as Kineto writes them."""
    whole, rest = divmod(abs(ns), 1000)
    return b"%s%d.%03d" % (b"-" if ns < 0 else b"", whole, rest)


class ProcessNames:
    """Names the processes of a rank after it, and puts them in order behind those of the rank before."""

    def __init__(self, place: Place, columns: EventColumns) -> None:
        self._place = place
        self._pids = dict.fromkeys(pid for pid, _ in columns.threads)
        self._orders = {index: order for order, index in enumerate(sorted(columns.process_sort_indices))}
        self._named: set[int | str] = set()

    def renamed(self, text: bytes) -> bytes:
        """The metadata event of a process with its new name or order; any other as it is."""
        try:
            event: dict[str, Any] = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return text
        given = event.get("args")
        args = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        pid = event.get("pid", 0)
        if event.get("name") == "process_name":
            self._named.add(pid)
            args["name"] = self._place.name(pid, str(args.get("name") or "").strip())
        elif event.get("name") == "process_sort_index" and args.get("sort_index") in self._orders:
            args["sort_index"] = self._place.number * _SORT_STEP + self._orders[args["sort_index"]]
        else:
            return text
        return json.dumps(event | {"args": args}).encode()

    def missing(self) -> Iterator[dict[str, Any]]:
        """Names of the processes that the file does not name."""
        for pid in self._pids:
            if pid not in self._named and pid != "":
                name = self._place.name(pid, "")
                yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
