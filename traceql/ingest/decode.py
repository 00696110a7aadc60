"""Bytes of a piece of the event array to column arrays: the innermost loop, behind one function.

`Decoder.decode` is all that the rest of traceql knows of it, so a compiled one can take its place.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import GenericAlias
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct

from traceql.arrays import Array, Ints, Ints32
from traceql.ingest.events import (
    CallArgs,
    Event,
    GpuArgs,
    MemoryArgs,
    PythonArgs,
    SyncArgs,
    decode_events,
    lenient_args,
)
from traceql.ingest.times import MISSING, parse_us

Key = TypeVar("Key")

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises on text that is not what it should be."""

ARGS_SEPARATOR = b"\x1e"
"""Stands between the argument texts of a blob; no valid JSON text holds it."""

GPU_KINDS = ("kernel", "memcpy", "memset")
SPAN_SIDES = ("cpu", "gpu", "overhead")
CALL_APIS = ("runtime", "driver")


@dataclass(frozen=True)
class Route:
    """Where the complete (X) events of a category go, and which kind of row they are there."""

    table: str
    code: int = 0


ROUTES: dict[str, Route] = {
    "kernel": Route("gpu", 0),
    "gpu_memcpy": Route("gpu", 1),
    "memcpy": Route("gpu", 1),
    "gpu_memset": Route("gpu", 2),
    "memset": Route("gpu", 2),
    "cpu_op": Route("ops"),
    "operator": Route("ops"),
    "cuda_runtime": Route("calls", 0),
    "hip_runtime": Route("calls", 0),
    "runtime": Route("calls", 0),
    "xpu_runtime": Route("calls", 0),
    "mtia_runtime": Route("calls", 0),
    "cuda_driver": Route("calls", 1),
    "hip_driver": Route("calls", 1),
    "python_function": Route("python"),
    "user_annotation": Route("spans", 0),
    "gpu_user_annotation": Route("spans", 1),
    "overhead": Route("spans", 2),
    "cuda_sync": Route("syncs"),
}


@dataclass
class Columns:
    """Column arrays of one piece, by table. `name`, `annotation`, `thread` hold codes of the decoder's dictionaries."""

    tables: dict[str, dict[str, Array]] = field(default_factory=dict[str, dict[str, Array]])
    op_args: bytes = b""
    metadata: list[tuple[str, int, bytes]] = field(default_factory=list[tuple[str, int, bytes]])
    """(name, thread code, arguments) of metadata events."""
    event_counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Events by (phase, category)."""
    n_odd_args: int = 0
    extent_ns: tuple[int, int] | None = None
    """From the start of the first event to the end of the last, by the file's clock; None where an event may belong
    together with others elsewhere, or none has a time."""


NO_TEXT = -1
"""In place of the code of a text that is not there."""


class Codes(dict[Key, int]):
    """Numbers keys in order of appearance: looking up a new key gives it the next number."""

    def __missing__(self, key: Key) -> int:
        code = self[key] = len(self)
        return code


_WITHOUT_DUR = ("memory", "begin_end")
_OTHER_PHASES = (("memory", 0, "i", "[memory]"), ("begin_end", 0, "B", None), ("begin_end", 1, "E", None))
"""(table, code, phase, name or any) of events that are no complete (X) ones."""

ALONE = frozenset("XiICstf")
"""Phases of events that one by one lie in a stretch of time or do not: both ends of an arrow lie in it."""

_phase: Callable[[Event], str] = attrgetter("ph")
_name: Callable[[Event], str] = attrgetter("name")
_thread: Callable[[Event], tuple[int | str, int | str]] = attrgetter("pid", "tid")


class Decoder:
    """Decodes pieces; names and threads are numbered in order of appearance over all of its pieces."""

    def __init__(self) -> None:
        self.names: Codes[str] = Codes()
        self.threads: Codes[tuple[int | str, int | str]] = Codes()

    def decode(self, piece: bytes) -> Columns:
        """The columns of a piece: events separated by commas, without the array's brackets.

        Raises:
            msgspec.MsgspecError: the piece is no list of events. `UnicodeDecodeError` for bytes that are no text.
        """
        return self.columns(decode_events(b"[" + piece + b"]"))

    def columns(self, events: Sequence[Event]) -> Columns:
        """The columns of events."""
        columns = Columns()
        by_table, others = self._routed(events, columns)
        ordered = sorted(by_table, key=_WITHOUT_DUR.__contains__)
        kept = [event for table in ordered for _, group in by_table[table] for event in group]
        n_timed = sum(len(group) for table in ordered if table not in _WITHOUT_DUR for _, group in by_table[table])
        shared: dict[str, Array] = {
            "name": _codes(self.names, map(_name, kept), len(kept)),
            "thread": _codes(self.threads, map(_thread, kept), len(kept)),
            "ts": parse_us([e.ts for e in kept]),
            "dur": parse_us([e.dur for e in kept[:n_timed]]),
        }
        start = 0
        for table in ordered:
            codes, sizes = zip(*((code, len(group)) for code, group in by_table[table]), strict=True)
            end = start + sum(sizes)
            arrays = {name: values[start:end] for name, values in shared.items()}
            if table in _WITHOUT_DUR:
                del arrays["dur"]
            arrays["code"] = np.repeat(np.array(codes, np.int8), sizes)
            columns.tables[table] = arrays | self._arguments(table, [e.args for e in kept[start:end]], columns)
            start = end
        if all(phase in ALONE for phase, _ in columns.event_counts):
            columns.extent_ns = _extent(shared["ts"], shared["dur"], others)
        return columns

    def _routed(
        self, events: Sequence[Event], columns: Columns
    ) -> tuple[dict[str, list[tuple[int, list[Event]]]], list[Event]]:
        """The events that become rows, by table, in groups that share a code, and those that may not.

        All are counted.
        """
        others: list[Event] = []
        by_category: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            by_category[event.cat].append(event)
        by_table: defaultdict[str, list[tuple[int, list[Event]]]] = defaultdict(list)
        for category, group in by_category.items():
            phases = set(map(_phase, group))
            counts = Counter(map(_phase, group)) if len(phases) > 1 else dict.fromkeys(phases, len(group))
            columns.event_counts.update({(phase, category): count for phase, count in counts.items()})
            route = ROUTES.get(category.lower())
            if not route or phases != {"X"}:
                others += group
            if route and "X" in phases:
                complete = group if len(phases) == 1 else [e for e in group if e.ph == "X"]
                by_table[route.table].append((route.code, complete))
            if phases - {"X", "s", "t", "f"}:
                for table, code, phase, name in _OTHER_PHASES:
                    found = [e for e in group if e.ph == phase and name in (None, e.name)]
                    if found:
                        by_table[table].append((code, found))
                columns.metadata += [(e.name, self.threads[_thread(e)], bytes(e.args)) for e in group if e.ph == "M"]
        return by_table, others

    def _arguments(self, table: str, raws: list[Raw], columns: Columns) -> dict[str, Array]:
        """The columns of the arguments that a table needs; those of ops stay text, beside the arrays."""
        if table == "ops":
            columns.op_args = _joined(raws)
        if table not in _TYPED_ARGS:
            return {}
        shape, extract = _TYPED_ARGS[table]
        args, n_odd = _decode_args(shape, raws)
        columns.n_odd_args += n_odd
        found = extract(args)
        if table == "gpu":
            texts = map(attrgetter("annotation"), args)
            found["annotation"] = np.array([NO_TEXT if t is None else self.names[t] for t in texts], np.int32)
        return found


def _extent(start: Ints, dur: Ints, others: list[Event]) -> tuple[int, int] | None:
    """From the first start to the last end.

    Args:
        start: of events that have a length, then of some without.
        dur: of the first of these.
        others: more events.
    """
    long, short = ([event for event in others if (event.ph == "X") is is_long] for is_long in (True, False))
    begin = np.concatenate((start[: len(dur)], parse_us([event.ts for event in long])))
    length = np.concatenate((dur, parse_us([event.dur for event in long])))
    starts = np.concatenate((begin, start[len(dur) :], parse_us([event.ts for event in short])))
    known = starts[starts != MISSING]
    if not len(known):
        return None
    last = max(int(known.max()) + 1, int((begin + np.maximum(length, 1)).max(initial=MISSING)))
    return int(known.min()), min(last, -MISSING - 1)


def _codes(codes: Codes[Any], keys: Iterable[Any], n_keys: int) -> Ints32:
    return np.fromiter(map(codes.__getitem__, keys), np.int32, n_keys)


def _joined(texts: list[Raw]) -> bytes:
    joined = ARGS_SEPARATOR.join(texts)
    if joined.count(ARGS_SEPARATOR) >= len(texts):  # a control character in a string, which JSON forbids
        joined = ARGS_SEPARATOR.join(bytes(text).replace(ARGS_SEPARATOR, b" ") for text in texts)
    return joined


def integers(values: Sequence[int | None]) -> Ints:
    """A column of integers; `MISSING` for null and for what does not fit 64 bits."""
    try:
        return np.fromiter(values, np.int64, len(values))  # pyright: ignore[reportArgumentType]
    except (TypeError, OverflowError):
        fits = [v if v is not None and MISSING < v < -MISSING else MISSING for v in values]
        return np.array(fits, np.int64)


def _decode_args(shape: type[Struct], raws: list[Raw]) -> tuple[list[Any], int]:
    """The arguments of many events, and how many of them had to be read leniently."""
    try:
        return _decoders[shape].decode(b"[" + b",".join(raws) + b"]"), 0
    except DECODE_ERRORS:
        pass
    args: list[Any] = []
    n_odd = 0
    for raw in raws:
        try:
            args.append(msgspec.json.decode(raw, type=shape))
        except DECODE_ERRORS:
            args.append(lenient_args(shape, bytes(raw)))
            n_odd += 1
    return args, n_odd


def _gpu_columns(args: list[GpuArgs]) -> dict[str, Array]:
    columns = _plain_columns("device", "stream", "correlation", "graph_id", "graph_node_id", "bytes")(args)
    columns["external_id"] = _external_ids(args)
    for name in ("grid", "block"):
        shapes = [shape if shape and len(shape) == 3 else _NO_SHAPE for shape in map(attrgetter(name), args)]
        columns |= {
            f"{name}_{axis}": integers(sizes) for axis, sizes in zip("xyz", zip(*shapes, strict=True), strict=True)
        }
    return columns


_NO_SHAPE = [MISSING, MISSING, MISSING]


def _external_ids(args: Sequence[GpuArgs | CallArgs]) -> Array:
    new, old = (integers(list(map(attrgetter(name), args))) for name in ("external_id", "external_id_2021"))
    return np.where(new == MISSING, old, new)


def _call_columns(args: list[CallArgs]) -> dict[str, Array]:
    return _plain_columns("correlation")(args) | {"external_id": _external_ids(args)}


def _plain_columns(*names: str) -> Callable[[list[Any]], dict[str, Array]]:
    return lambda args: {name: integers(list(map(attrgetter(name), args))) for name in names}


_TYPED_ARGS: dict[str, tuple[type[Struct], Callable[[list[Any]], dict[str, Array]]]] = {
    "gpu": (GpuArgs, _gpu_columns),
    "calls": (CallArgs, _call_columns),
    "python": (PythonArgs, _plain_columns("python_id", "parent_id")),
    "syncs": (SyncArgs, _plain_columns("device", "stream", "correlation")),
    "memory": (
        MemoryArgs,
        _plain_columns("bytes", "addr", "device_type", "device_id", "total_allocated", "total_reserved"),
    ),
}
_decoders: dict[type[Struct], msgspec.json.Decoder[Any]] = {
    shape: msgspec.json.Decoder(GenericAlias(list, (shape,))) for shape, _ in _TYPED_ARGS.values()
}
