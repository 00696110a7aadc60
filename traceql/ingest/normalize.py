"""Column arrays, as decoded, to the input tables: times since the first event, keys, links, null for unknown."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from traceql.ingest.assemble import Events
from traceql.ingest.decode import ARGS_SEPARATOR, CALL_APIS, GPU_KINDS, NO_TEXT, SPAN_SIDES, Array
from traceql.ingest.events import NameArgs, lenient_args
from traceql.ingest.links import link_kernels, nest, nest_frames
from traceql.ingest.quirks import QuirkCounter
from traceql.ingest.ranks import rank_of
from traceql.ingest.times import MISSING
from traceql.tables import LAUNCHES, MEMORY, OPS, PYTHON_CALLS, SPANS, SYNCS, THREADS

Frames = dict[str, pl.DataFrame]

_DAY_NS = 86_400 * 10**9
_LONGEST_NS = 30 * _DAY_NS
_PREFIX = re.compile(r"^\[([A-Z]+\d+(?:[-_ ,]*[A-Z]+\d+)*)\]")
_WAITS = r"(?:Device|Stream|Event|Ctx|Context)Synchronize"
_STEP_OP = r"^ProfilerStep#\d+"
_CUDA_DEVICE_TYPES = (1, 6)  # c10::DeviceType CUDA and HIP; 0 is the CPU


@dataclass(frozen=True)
class Normalized:
    """The input tables, and the extent of the trace in the file's own time."""

    tables: Frames
    first_event_ns: int | None
    span_ns: int | None


def normalize(events: Events, rank: int | None, quirks: QuirkCounter) -> Normalized:
    """The input tables of a trace; `kernels` without the columns that categories give.

    Args:
        events: all events of the file.
        rank: the rank that the file's metadata names.
        quirks: counts what is left out or repaired on the way.
    """
    for name, arrays in events.tables.items():
        _drop_unusable(events, name, arrays, quirks)
    untimed = _untimed(events.tables)
    first_ns = _first_event(events.tables, untimed)
    threads = _threads(events, rank, quirks)
    source = _Source(events, threads, first_ns or 0)
    with ThreadPoolExecutor(2) as pool:  # polars and numpy let go of the interpreter: two tables at a time
        python_calls = pool.submit(_python_calls, source, quirks)
        memory = pool.submit(_memory, source)
        ops, step_ops = _ops(source)
        launches = _launches(source, ops)
        kernels = link_kernels(_gpu(source, untimed, quirks), launches, ops, quirks)
        tables = {
            "threads": threads,
            "ops": ops,
            "launches": launches,
            "kernels": kernels,
            "python_calls": python_calls.result(),
            "spans": _spans(source, step_ops, quirks),
            "syncs": _syncs(source, launches),
            "memory": memory.result(),
        }
    ends = [t.select((pl.col("start_ns") + pl.col("dur_ns")).max()).item() for t in _timed(tables)]
    span_ns = max((end for end in ends if end is not None), default=None)
    return Normalized(tables, first_ns, span_ns if first_ns is not None else None)


def _timed(tables: Frames) -> list[pl.DataFrame]:
    return [frame for frame in tables.values() if "dur_ns" in frame.columns and frame.height]


def _drop_unusable(events: Events, table: str, arrays: dict[str, Array], quirks: QuirkCounter) -> None:
    """Leaves out events without a readable time and those whose duration cannot be."""
    unreadable = arrays["ts"] == MISSING
    if "dur" in arrays:
        unreadable |= arrays["dur"] == MISSING
        impossible = (arrays["dur"] > _LONGEST_NS) & ~unreadable
        negative = (arrays["dur"] < 0) & ~unreadable
    else:
        impossible = negative = np.zeros(len(unreadable), bool)
    drop = unreadable | impossible | negative
    if not drop.any():
        return
    quirks.add("unreadable-time", int(unreadable.sum()))
    quirks.add("impossible-duration", int(impossible.sum()))
    quirks.add("negative-duration", int(negative.sum()))
    for key, values in arrays.items():
        arrays[key] = values[~drop]
    if table == "ops":
        events.op_args = [_joined_where(events.op_args, ~drop)]


def _joined_where(blobs: list[bytes], keep: Array) -> bytes:
    texts = [text for blob in blobs for text in blob.split(ARGS_SEPARATOR)]
    return ARGS_SEPARATOR.join(text for text, kept in zip(texts, keep, strict=True) if kept)


def _untimed(tables: dict[str, dict[str, Array]]) -> Array:
    """Which GPU activities were never timed: at 0, for no time, in a trace that counts from 1970."""
    gpu = tables.get("gpu")
    if gpu is None:
        return np.zeros(0, bool)
    zero = (gpu["ts"] == 0) & (gpu["dur"] == 0)
    others = [a["ts"][~zero] if a is gpu else a["ts"] for a in tables.values()]
    earliest = min((int(ts.min()) for ts in others if len(ts)), default=0)
    return zero if earliest > _DAY_NS else np.zeros(len(zero), bool)


def _first_event(tables: dict[str, dict[str, Array]], untimed: Array) -> int | None:
    starts = [a["ts"][~untimed] if name == "gpu" else a["ts"] for name, a in tables.items()]
    return min((int(ts.min()) for ts in starts if len(ts)), default=None)


class _Source:
    """Turns column arrays into frames with the columns that all tables share."""

    def __init__(self, events: Events, threads: pl.DataFrame, first_ns: int) -> None:
        self.events = events
        self.names = pl.Series("name", events.names, pl.String)
        self._ranks = threads["rank"]
        self.tids = threads["tid"]
        self.pids = threads["pid"]
        self._first_ns = first_ns

    def has(self, table: str) -> bool:
        return table in self.events.tables and len(self.events.tables[table]["ts"]) > 0

    def frame(self, table: str, *extra: str) -> pl.DataFrame:
        """rank, thread_id, name, start_ns, dur_ns (where there is one), code, and extra columns with nulls."""
        arrays = self.events.tables[table]
        columns: dict[str, Any] = {
            "rank": self._ranks.gather(arrays["thread"]),
            "thread_id": arrays["thread"],
            "name": self.names.gather(arrays["name"]),
            "start_ns": arrays["ts"] - self._first_ns,
            "code": arrays["code"],
        }
        if "dur" in arrays:
            columns["dur_ns"] = arrays["dur"]
        columns |= {name: arrays[name] for name in extra}
        frame = pl.DataFrame(columns)
        return frame.with_columns(pl.when(pl.col(n) != MISSING).then(pl.col(n)).alias(n) for n in extra)

    def texts(self, table: str, column: str) -> pl.Series:
        """A column of codes as texts, null where there is none."""
        codes = pl.Series(self.events.tables[table][column])
        return self.names.gather(codes.set(codes == NO_TEXT, None))


def _with_key(frame: pl.DataFrame, key: str, time: str = "start_ns") -> pl.DataFrame:
    """The frame in order of time, an outer interval before those in it, rows numbered."""
    longest_first = [-pl.col("dur_ns")] if "dur_ns" in frame.columns else []
    ordered = frame.sort("rank", time, "thread_id", *longest_first, maintain_order=True)
    return ordered.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(key))


def _threads(events: Events, rank: int | None, quirks: QuirkCounter) -> pl.DataFrame:
    pids = [str(pid) for pid, _ in events.threads]
    prefixes = sorted({m.group(1) for m in map(_PREFIX.match, pids) if m})
    quirks.add("merged-ranks", max(len(prefixes) - 1, 0))
    ranks = _merged_ranks(prefixes)
    process_names: dict[str, str] = {}
    thread_names: dict[int, str] = {}
    for name, thread, args in events.metadata:
        text = lenient_args(NameArgs, args).name
        if text and name == "process_name":
            process_names[pids[thread]] = text.strip()
        elif text and name == "thread_name":
            thread_names[thread] = text.strip()
    matches = [_PREFIX.match(pid) for pid in pids]
    return pl.DataFrame(
        {
            "thread_id": range(len(pids)),
            "rank": [ranks[m.group(1)] if m else rank or 0 for m in matches],
            "pid": pids,
            "tid": [str(tid) for _, tid in events.threads],
            "process_name": [process_names.get(pid) for pid in pids],
            "thread_name": [thread_names.get(i) for i in range(len(pids))],
        },
        schema=THREADS.schema,
    )


def _merged_ranks(prefixes: list[str]) -> dict[str, int]:
    """Rank of each process prefix of a merged file: its number, where only one kind of number is used."""
    numbers = [rank_of(re.sub(r"\D", "", p)) for p in prefixes if re.fullmatch(r"[A-Z]+\d+", p)]
    ranks = [number for number in numbers if number is not None]
    kinds = {re.sub(r"\d", "", p) for p in prefixes}
    if len(kinds) == 1 and len(set(ranks)) == len(prefixes):
        return dict(zip(prefixes, ranks, strict=True))
    return {prefix: i for i, prefix in enumerate(prefixes)}


def _gpu(source: _Source, untimed: Array, quirks: QuirkCounter) -> pl.DataFrame:
    fields = ("device", "stream", "correlation", "external_id", "graph_id", "graph_node_id", "bytes")
    shape = tuple(f"{name}_{axis}" for name in ("grid", "block") for axis in "xyz")
    if not source.has("gpu"):
        columns = ("rank", "thread_id", "start_ns", "dur_ns", *fields, *shape)
        texts = ("name", "kind", "annotation")
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64) | dict.fromkeys(texts, pl.String))
    quirks.add("untimed", int(untimed.sum()))
    frame = source.frame("gpu", *fields, *shape).with_columns(annotation=source.texts("gpu", "annotation"))
    thread = pl.col("thread_id").cast(pl.UInt32)
    number = r"(-?\d+)\s*$"
    pid = pl.lit(source.pids).gather(thread).str.extract(number).cast(pl.Int16, strict=False)
    tid = pl.lit(source.tids).gather(thread).str.extract(number).cast(pl.Int64, strict=False)
    device = pl.col("device").cast(pl.Int16, strict=False)  # a number that no GPU has is none
    place = frame.select(
        device=pl.coalesce(device, pid, pl.lit(0, pl.Int16)), stream=pl.coalesce("stream", tid, pl.lit(0))
    )
    kinds = pl.Series(GPU_KINDS)
    timed = pl.Series(~untimed)
    return frame.with_columns(
        place["device"],
        place["stream"],
        kinds.gather(frame["code"].cast(pl.UInt32)).alias("kind"),
        pl.when(timed).then("start_ns").alias("start_ns"),
        pl.when(timed).then("dur_ns").alias("dur_ns"),
    ).drop("code")


def _launches(source: _Source, ops: pl.DataFrame) -> pl.DataFrame:
    if not source.has("calls"):
        return LAUNCHES.empty()
    frame = source.frame("calls", "correlation", "external_id")
    api = pl.Series("api", CALL_APIS).gather(frame["code"].cast(pl.UInt32))
    frame = frame.with_columns(api, pl.when(pl.col("correlation") != 0).then("correlation").alias("correlation"))
    frame = _with_key(frame, "launch_id")
    return LAUNCHES.check(frame.drop("code").with_columns(nest(frame, ops)))


def _ops(source: _Source) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The ops but for external_id, and apart from them the steps that the profiler of 2021 recorded as operators."""
    if not source.has("ops"):
        return OPS.empty().drop("external_id"), pl.DataFrame()
    blobs = [blob.decode(errors="replace") for blob in source.events.op_args]
    args = pl.Series("args", blobs).str.split(ARGS_SEPARATOR.decode()).explode()
    frame = source.frame("ops").drop("code").with_columns(args.set(args == "{}", None))
    is_step = _matches(source, "ops", _STEP_OP)
    step_ops = frame.filter(is_step) if is_step.any() else frame.clear()
    frame = frame.filter(~is_step) if is_step.any() else frame
    frame = _with_key(frame, "op_id")
    return frame.with_columns(*nest_frames(frame)), step_ops


def _matches(source: _Source, table: str, pattern: str) -> pl.Series:
    """Which rows' names match, by looking at each name once."""
    return source.names.str.contains(pattern).gather(source.events.tables[table]["name"])


def _python_calls(source: _Source, quirks: QuirkCounter) -> pl.DataFrame:
    if not source.has("python"):
        return PYTHON_CALLS.empty()
    module = r"^nn\.Module: (.+)_(\d+)$"
    codes = source.events.tables["python"]["name"]
    frame = source.frame("python", "python_id", "parent_id").with_columns(
        source.names.str.extract(module, 1).gather(codes).alias("module_class"),
        source.names.str.extract(module, 2).cast(pl.Int64, strict=False).gather(codes).alias("module_instance"),
    )
    frame = _with_key(frame.drop("code"), "python_call_id")
    parents, durations = _callers(frame, quirks)
    frame = frame.drop("python_id", "parent_id").with_columns(parents, durations)
    return PYTHON_CALLS.check(frame)


def _callers(frame: pl.DataFrame, quirks: QuirkCounter) -> tuple[pl.Series, pl.Series]:
    """Each frame's caller, and its length, cut where it would outlast the caller."""
    known = frame.filter(pl.col("python_id").is_not_null()).select(
        "rank", pl.col("python_id").alias("parent_id"), pl.col("python_call_id").alias("caller")
    )
    known = known.unique(["rank", "parent_id"], keep="first", maintain_order=True)
    caller = frame.select("rank", "parent_id").join(
        known, on=["rank", "parent_id"], how="left", validate="m:1", maintain_order="left"
    )["caller"]
    start = frame["start_ns"].to_numpy()
    end = start + frame["dur_ns"].to_numpy()
    rows = np.flatnonzero(caller.is_not_null().to_numpy())
    callers = caller.drop_nulls().to_numpy()
    cut = end.copy()
    while len(over := np.flatnonzero(cut[rows] > cut[callers])):
        cut[rows[over]] = cut[callers[over]]
    quirks.add("python-frame-overrun", int((cut < end).sum()))
    return caller.alias("parent_id"), pl.Series("dur_ns", np.maximum(cut - start, 0))


def _spans(source: _Source, step_ops: pl.DataFrame, quirks: QuirkCounter) -> pl.DataFrame:
    parts: list[pl.DataFrame] = []
    columns = ("rank", "side", "thread_id", "name", "start_ns", "dur_ns")
    if source.has("spans"):
        frame = source.frame("spans")
        side = pl.Series("side", SPAN_SIDES).gather(frame["code"].cast(pl.UInt32))
        parts.append(frame.with_columns(side).select(columns))
    if step_ops.height:
        parts.append(step_ops.with_columns(side=pl.lit("cpu")).select(columns))
    if source.has("begin_end"):
        parts.append(_paired(source.frame("begin_end"), quirks).select(columns))
    if not parts:
        return SPANS.empty()
    return SPANS.check(_with_key(pl.concat(parts), "span_id"))


def _paired(marks: pl.DataFrame, quirks: QuirkCounter) -> pl.DataFrame:
    """Spans from begin and end marks, matched like brackets on each thread."""
    spans: list[dict[str, Any]] = []
    open_marks: dict[int, list[dict[str, Any]]] = {}
    n_unmatched = 0
    for mark in marks.sort("start_ns", maintain_order=True).iter_rows(named=True):
        stack = open_marks.setdefault(mark["thread_id"], [])
        if mark["code"] == 0:
            stack.append(mark)
        elif stack:
            begin = stack.pop()
            spans.append(begin | {"side": "cpu", "dur_ns": mark["start_ns"] - begin["start_ns"]})
        else:
            n_unmatched += 1
    quirks.add("unclosed-span", n_unmatched + sum(map(len, open_marks.values())))
    schema = marks.schema | {"side": pl.String(), "dur_ns": pl.Int64()}
    return pl.DataFrame(spans, schema=schema, orient="row")


def _syncs(source: _Source, launches: pl.DataFrame) -> pl.DataFrame:
    waits = launches.lazy().filter(pl.col("name").str.contains(_WAITS)).select(
        "rank", "name", "thread_id", "start_ns", "dur_ns", "correlation",
        side=pl.lit("cpu"), device=pl.lit(None, pl.Int16), stream=pl.lit(None, pl.Int64),
    )  # fmt: skip
    parts = [waits.collect()]
    if source.has("syncs"):
        frame = source.frame("syncs", "device", "stream", "correlation")
        stream = pl.when(pl.col("stream") >= 0).then("stream")
        parts.append(
            frame.drop("code").with_columns(
                pl.col("device").cast(pl.Int16, strict=False), stream.alias("stream"), side=pl.lit("gpu")
            )
        )
    return SYNCS.check(_with_key(pl.concat(parts, how="diagonal"), "sync_id"))


def _memory(source: _Source) -> pl.DataFrame:
    if not source.has("memory"):
        return MEMORY.empty()
    fields = ("bytes", "addr", "device_type", "device_id", "total_allocated", "total_reserved")
    on_gpu = pl.col("device_type").is_in(_CUDA_DEVICE_TYPES)
    frame = source.frame("memory", *fields).with_columns(
        pl.when(on_gpu).then("device_id").cast(pl.Int16, strict=False).alias("device"),
        pl.col("addr").cast(pl.UInt64, strict=False),
    )
    frame = frame.rename(
        {
            "start_ns": "time_ns",
            "total_allocated": "total_allocated_bytes",
            "total_reserved": "total_reserved_bytes",
        }
    )
    return MEMORY.check(_with_key(frame, "memory_id", "time_ns").select(MEMORY.names))
