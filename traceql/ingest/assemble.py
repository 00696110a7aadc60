"""Puts what several processes decoded together again, in the order of the file."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from traceql.ingest.decode import NO_TEXT, Array, Decoder
from traceql.ingest.piece_extents import PIECES, piece_extents
from traceql.ingest.pieces import depth
from traceql.ingest.quirks import QuirkCounter
from traceql.ingest.salvage import DecodedPiece, salvage
from traceql.ingest.worker import Decoded


@dataclass
class Events:
    """All events of a trace as column arrays, by table; `name`, `annotation` and `thread` are indices of its lists."""

    tables: dict[str, dict[str, Array]] = field(default_factory=dict[str, dict[str, Array]])
    op_args: list[bytes] = field(default_factory=list[bytes])
    names: list[str] = field(default_factory=list[str])
    threads: list[tuple[int | str, int | str]] = field(default_factory=list[tuple[int | str, int | str]])
    metadata: list[tuple[str, int, bytes]] = field(default_factory=list[tuple[str, int, bytes]])
    event_counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    pieces: pl.DataFrame = field(default_factory=PIECES.empty)
    """Table `pieces`."""
    after_events: bytes | None = None
    """What follows the event array; None when its end was not seen."""


@dataclass(frozen=True)
class _Part:
    """One piece, with the maps from its process's codes to the common ones."""

    piece: DecodedPiece
    names: Array
    threads: Array


def assemble(decoded: list[Decoded], quirks: QuirkCounter) -> Events:
    """All events, in the order of the file; what follows the event array is left out, and losses are counted."""
    events = Events()
    names: dict[str, int] = {}
    threads: dict[tuple[int | str, int | str], int] = {}

    def parts_of(source: Decoded) -> list[_Part]:
        name_codes = np.array([names.setdefault(name, len(names)) for name in source.names], np.int32)
        thread_codes = np.array([threads.setdefault(t, len(threads)) for t in source.threads], np.int32)
        return [_Part(piece, name_codes, thread_codes) for piece in source.pieces]

    parts = [part for source in decoded for part in parts_of(source)]
    parts.sort(key=lambda p: p.piece.index)
    events.pieces = piece_extents([part.piece for part in parts])
    joined = _Joiner(Decoder())
    for i, part in enumerate(parts):
        joined.add(part.piece)
        if joined.after_events is not None:
            parts = parts[: i + 1]
            break
    joined.finish(quirks)
    events.after_events = joined.after_events
    parts += parts_of(Decoded.of(joined.decoder, joined.pieces))
    for part in parts:
        quirks.merge(part.piece.quirks.items())
        quirks.add("odd-arguments", part.piece.columns.n_odd_args)
    events.names = list(names)
    events.threads = list(threads)
    _concatenate(parts, events)
    return events


class _Joiner:
    """Puts together events that were cut in two or more, and finds the end of the array."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.pieces: list[DecodedPiece] = []
        self.after_events: bytes | None = None
        self._open: list[bytes] = []
        self._depth = 0

    def add(self, piece: DecodedPiece) -> None:
        """Takes the next piece in the order of the file."""
        text = piece.tail if piece.raw is None else piece.raw
        if piece.raw is None and self._open:
            self._read(is_whole=True)
        if text:
            self._open.append(text)
            self._depth += depth(text)
        if piece.raw is not None and self._depth <= 0:
            self._read()

    def finish(self, quirks: QuirkCounter) -> None:
        """Takes note that no piece follows."""
        if self.after_events is None and self._open:
            self._read()
            quirks.add("truncated", bool(self._open))

    def _read(self, *, is_whole: bool = False) -> None:
        found = salvage(b",".join(self._open))
        self.pieces.append(DecodedPiece(-1, self.decoder.columns(found.events), quirks=found.quirks))
        self.after_events = found.after_events
        found.quirks["broken-event"] += is_whole and bool(found.tail)
        self._open = [found.tail] if found.tail and not is_whole else []
        self._depth = depth(found.tail) if self._open else 0


def _concatenate(parts: list[_Part], events: Events) -> None:
    for table in dict.fromkeys(name for p in parts for name in p.piece.columns.tables):
        have = [p for p in parts if table in p.piece.columns.tables]
        arrays = [p.piece.columns.tables[table] for p in have]
        events.tables[table] = {key: np.concatenate([a[key] for a in arrays]) for key in arrays[0]}
        for key in ("name", "thread"):
            remapped = [getattr(p, key + "s")[a[key]] for p, a in zip(have, arrays, strict=True)]
            events.tables[table][key] = np.concatenate(remapped)
        if "annotation" in arrays[0]:
            codes = [np.append(p.names, NO_TEXT)[a["annotation"]] for p, a in zip(have, arrays, strict=True)]
            events.tables[table]["annotation"] = np.concatenate(codes)
    for p in parts:
        columns = p.piece.columns
        if "ops" in columns.tables:
            events.op_args.append(columns.op_args)
        events.metadata += [(name, int(p.threads[code]), args) for name, code, args in columns.metadata]
        events.event_counts += columns.event_counts
