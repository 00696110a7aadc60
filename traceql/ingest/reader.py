"""Reads one trace file: its input tables, what it says about itself, and the oddities met."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from traceql.errors import InputError
from traceql.ingest import parallel
from traceql.ingest.assemble import Events, assemble
from traceql.ingest.looks import not_a_trace
from traceql.ingest.meta import TraceMeta, distributed_rank, read_meta, trace_meta
from traceql.ingest.normalize import normalize
from traceql.ingest.pieces import Piece, PieceReader
from traceql.ingest.quirks import Quirk, QuirkCounter
from traceql.ingest.source import Source, open_source

Progress = Callable[[int, int | None], None]

_ENGINES = (
    ("sglang", r"^sglang::|sglang/srt/|^step\[(?:DECODE|EXTEND|PREFILL|MIXED|IDLE|TARGET_VERIFY|DRAFT)"),
    ("vllm", r"^VLLM|vllm/(?:v1|worker|model_executor)/|^execute_(?:model|context|\d+_context)"),
    ("tensorrt-llm", r"tensorrt_llm/|^\[Executor\]"),
)


@dataclass(frozen=True)
class ReadTrace:
    """A trace as read: tables by name (`kernels` without what categories give; `pieces`), facts, oddities."""

    tables: dict[str, pl.DataFrame]
    meta: TraceMeta
    quirks: tuple[Quirk, ...]


def read_trace(path: str | Path, *, progress: Progress | None = None, n_workers: int | None = None) -> ReadTrace:
    """Reads a trace file, or standard input for `-`.

    Raises:
        InputError: it is not a trace, or cannot be read.
    """
    try:
        return _read(path, progress, n_workers)
    except parallel.WorkerDiedError as error:
        if str(path) == "-":
            raise InputError(error.message, "Is there enough memory? Write the trace to a file.") from error
        return _read(path, progress, 1)


def _read(path: str | Path, progress: Progress | None, n_workers: int | None) -> ReadTrace:
    quirks = QuirkCounter()
    with open_source(path) as source:
        reader = PieceReader(source.blocks())
        decoded = parallel.decode(_watched(reader, source, progress), n_workers)
        truncated, name = source.truncated, source.name
        if not any(part.pieces for part in decoded):
            raise not_a_trace(reader.head, name)
    events = assemble(decoded, quirks)
    del decoded
    if not events.event_counts and not reader.is_wrapped and reader.n_bytes > len(b"[]\n"):
        raise not_a_trace(reader.head, name)
    keys, is_whole = read_meta(reader.header, events.after_events) if reader.is_wrapped else ({}, True)
    if (truncated or not is_whole) and not quirks.has("truncated"):
        quirks.add("truncated")  # a bare array need not be closed: the trace event format allows that
    normalized = normalize(events, distributed_rank(keys), quirks)
    _note_missing(events, quirks)
    meta = trace_meta(
        keys,
        name=name,
        size_bytes=reader.n_bytes,
        n_events=events.event_counts.total(),
        first_event_ns=normalized.first_event_ns,
        span_ns=normalized.span_ns,
        engine=_engine(events, normalized.tables["threads"]),
        event_counts={f"{phase} {category}".strip(): n for (phase, category), n in events.event_counts.most_common()},
    )
    return ReadTrace(normalized.tables | {"pieces": events.pieces}, meta, quirks.quirks())


def _watched(reader: PieceReader, source: Source, progress: Progress | None) -> Iterator[Piece]:
    for piece in reader:
        if progress:
            progress(source.read_bytes, source.stored_bytes)
        yield piece


def _note_missing(events: Events, quirks: QuirkCounter) -> None:
    counts: dict[Any, int] = dict(events.event_counts)
    if "gpu" not in events.tables and "calls" in events.tables:
        quirks.add("no-kernels")
    quirks.add("not-a-gpu", sum(n for (_, category), n in counts.items() if category.startswith("mtia_ccp")))


def _engine(events: Events, threads: pl.DataFrame) -> str | None:
    """The serving engine: by its processes' names, else by names of annotations and Python files."""
    processes = threads["process_name"].drop_nulls().unique().to_list()
    for names in (processes, events.names):
        for engine, pattern in _ENGINES:
            search = re.compile(pattern).search
            if any(search(name) for name in names):
                return engine
    return None
