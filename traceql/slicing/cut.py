"""Cuts a window out of a trace: reads the file a second time, and writes the window's events as they stand there."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traceql.arrays import Bools, Ints
from traceql.errors import MissingDataError
from traceql.ingest.event_text import replaced
from traceql.ingest.piece_extents import FarPieces
from traceql.ingest.source import open_source
from traceql.ingest.texts import TextReader
from traceql.ingest.worker import collector_off
from traceql.slicing.document import frame_of, joined
from traceql.slicing.events import EventColumns, at
from traceql.slicing.extra_tracks import ExtraTracks
from traceql.slicing.kinds import LINKED, Kind
from traceql.slicing.sieve import Sieve
from traceql.slicing.store import Store
from traceql.slicing.window import Window
from traceql.trace import Trace

Progress = Callable[[int, int | None], None]


@dataclass
class Written:
    """What was written, told when all of it is."""

    n_events: int = 0
    """Events of the source that were kept, metadata too."""
    n_source: int = 0
    """Events of the source."""
    n_moved: int = 0
    """Slices put on an extra track."""
    n_tracks: int = 0
    """Extra tracks."""
    n_renumbered: int = 0
    """Threads that were given a number of their own."""
    json_bytes: int = 0
    """Length of the document, unpacked."""

    def note(self, stays: Bools, extra: ExtraTracks) -> None:
        """Adds what is written of one source."""
        self.n_events += int(stays.sum())
        self.n_moved += extra.n_moved
        self.n_tracks += extra.n_tracks
        self.n_renumbered += extra.n_renumbered

    def counted(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The blocks, their length added up."""
        for block in blocks:
            self.json_bytes += len(block)
            yield block


def cut(
    path: Path, trace: Trace, window: Window, written: Written, *, progress: Progress | None = None
) -> Iterator[bytes]:
    """The document of a window, in blocks; the file is read to its end before the first of them.

    Args:
        path: the file.
        trace: what it holds.
        window: what is wanted of it.
        written: filled in on the way.
        progress: called with the bytes read so far and the size of the file.

    Raises:
        InputError: the file cannot be read any more.
        MissingDataError: no event is in the window.
    """
    columns = EventColumns()
    sieve = Sieve(trace, window, columns)
    with Store() as store:
        reader = take(path, trace, columns, sieve, written, into=store, progress=progress)
        rows = store.rows()
        stays = sieve.together(rows)
        if not (stays & ~rows.of(Kind.METADATA)).any():
            raise MissingDataError(f"no event lies in {', '.join(window.words)}", "Choose a longer window.")
        extra = ExtraTracks.of(rows, stays, columns)
        written.note(stays, extra)
        before, behind = frame_of(reader)
        events = _events(store.texts(stays), extra)
        yield from written.counted(joined(before, events, lambda: behind))


def take(
    path: Path,
    trace: Trace,
    columns: EventColumns,
    sieve: Sieve | None,
    written: Written,
    *,
    into: Store,
    progress: Progress | None,
) -> TextReader:
    """Puts the events of a file into a store, those that the sieve takes or all; returns what read it."""
    written.n_source += trace.meta.n_events
    far = FarPieces(trace.pieces.collect(), sieve.near.meet) if sieve and trace.pieces is not None else ()
    with open_source(path) as source, collector_off():
        reader = TextReader(source.blocks(), far)
        for batch in reader:
            index, rows = columns.rows(batch.events, sieve.near if sieve else None)
            if sieve:
                taken = sieve.taken(at(batch.events, index), rows)
                index, rows = index[taken], rows.at(taken)
            if len(index):
                texts = at(batch.texts(), index)
                if sieve:
                    for i in np.flatnonzero(rows.of(*LINKED)):
                        rows.link[i] = columns.link(batch.events[int(index[i])], bytes(texts[int(i)]))
                into.add(rows, texts)
            if progress:
                progress(source.read_bytes, source.stored_bytes)
    return reader


def _events(texts: Iterable[tuple[Ints, list[bytes]]], extra: ExtraTracks) -> Iterator[bytes]:
    tids = {row: json.dumps(tid).encode() for row, tid in extra.tids.items()}
    for numbers, block in texts:
        for row, text in zip(numbers.tolist(), block, strict=True):
            yield replaced(text, {b"tid": tids[row]}) if row in tids else text
    for event in extra.metadata:
        yield json.dumps(event).encode()
