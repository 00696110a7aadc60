"""A run: the trace files of all ranks of one job, as one trace.

The tables of the ranks are put below each other, on one clock (each file's absolute time, where it says it), with keys
that are unique in the run. Every analysis goes by rank and device, so it takes a run as it takes a trace.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl
from msgspec import structs

from traceql.errors import InputError, MissingDataError
from traceql.ingest.meta import TraceMeta
from traceql.ingest.quirks import KINDS, Quirk
from traceql.ingest.ranks import found_ranks, in_words, listed, note
from traceql.ingest.trace_files import FoundFile, natural, no_trace_in, trace_files
from traceql.loading import Loading, Progress
from traceql.trace import Trace, load

_KEYS: Mapping[str, Mapping[str, str]] = {
    "kernels": {"kernel_id": "kernels", "launch_id": "launches", "op_id": "ops"},
    "launches": {"launch_id": "launches", "op_id": "ops", "thread_id": "threads"},
    "ops": {"op_id": "ops", "parent_id": "ops", "thread_id": "threads"},
    "python_calls": {"python_call_id": "python_calls", "parent_id": "python_calls", "thread_id": "threads"},
    "spans": {"span_id": "spans", "thread_id": "threads"},
    "syncs": {"sync_id": "syncs", "thread_id": "threads"},
    "memory": {"memory_id": "memory", "thread_id": "threads"},
    "threads": {"thread_id": "threads"},
}
"""Key columns of each table, and the table whose rows they name; a table's own keys count its rows from 0."""

_APART_NS = 3600 * 10**9
_EPOCH_NS = 10**18
"""Above this a time without a base is one since 1970 (it was 2001); older profilers write such."""
_ALIKE = (
    "world_size", "record_shapes", "with_stack", "profile_memory", "with_flops", "cuda_driver_version",
    "cuda_runtime_version", "torch_version", "nccl_version", "engine", "trace_id",
)  # fmt: skip
"""Facts of a run that all of its files must say alike; else they are unknown."""

_PROCESSES_PER_FILE = 4
"""In how many processes `load` decodes a file. On two cores files one by one take 3.1 s, two at once 4.4 s."""
_JSON_PER_PACKED = 16
_MEMORY_PER_JSON = 1.5
_LEAST_BYTES = 64 << 20


@dataclass(frozen=True)
class RunFile:
    """A file of a run, and the rank it was given."""

    path: Path
    trace: Trace
    rank: int


def load_run(
    paths: Sequence[str | Path],
    *,
    force: bool = False,
    cache: bool = True,
    strict: bool = False,
    categories: Path | None = None,
    progress: Progress | None = None,
) -> Trace:
    """The trace of a run: of one file as `load` gives it, of several files with the tables of all ranks.

    Args:
        paths: files, folders (their *.json, *.json.gz, *.json.zst, *.json.xz) or patterns with `*`, `?` or `[`.
        force: take files together although they look like those of different jobs, or are of one rank.
        cache: as for `load`, and so the following.
        strict: refuse files of which anything was lost.
        categories: kernel categories that go before the built-in ones.
        progress: called with the bytes read so far of all files, and their size.

    The ranks come from `distributedInfo`, else from the names of the files, else from their order. A file in a folder
    that is no trace is left out; that, and whatever else is odd about the run, is a quirk.

    Raises:
        InputError: a file is no trace, or (without `force`) two files are of one rank or of different jobs.
    """
    return as_run(*run_files(paths, Loading(force, categories, cache, strict, progress)))


def as_run(files: Sequence[RunFile], notes: Sequence[Quirk]) -> Trace:
    """The trace of what `run_files` found: of one file as it is, of several with the tables of all."""
    if len(files) > 1:
        return merged(files, notes)
    trace = files[0].trace
    return replace(trace, quirks=(*trace.quirks, *notes)) if notes else trace


def run_files(paths: Sequence[str | Path], loading: Loading) -> tuple[list[RunFile], list[Quirk]]:
    """The files of a run, each with its trace, in order of rank, and what is odd about the run.

    Raises what `load_run` does. The rank of a file that is alone is the one it records, else 0.
    """
    files = trace_files(paths)
    read_files = list(zip(files, _read_all(files, partial(_read, loading=loading), loading.progress), strict=True))
    traces = [(file.path, trace) for file, trace in read_files if trace is not None]
    notes = _skipped([file for file, trace in read_files if trace is None])
    if not traces:
        raise no_trace_in(files[0].found_by or "")
    if len(traces) == 1:
        path, trace = traces[0]
        return [RunFile(path, trace, trace.meta.rank or 0)], notes
    ranked, rank_notes = with_ranks(traces, force=loading.force)
    return ranked, [*notes, *rank_notes, *_strangers(ranked, force=loading.force)]


def _skipped(files: Sequence[FoundFile]) -> list[Quirk]:
    names = sorted(file.path.name for file in files)
    return [note("not-a-trace", len(names), f" {listed(names)}.")] if names else []


# --- reading them ---


def _read(file: FoundFile, progress: Progress, loading: Loading) -> Trace | None:
    """The trace in a file; None where a folder or pattern named it and it is none."""
    read = partial(load, file.path, cache=loading.cache, categories=loading.categories, progress=progress)
    if file.found_by is None:
        return read(strict=loading.strict)
    try:
        trace = read()
    except InputError:
        if not os.access(file.path, os.R_OK):  # it may well be one
            raise
        return None
    if set(trace.meta.event_counts) == {""}:  # a list of objects, none of which says that it is an event
        return None
    is_damaged = any(quirk.effect == "lost" for quirk in trace.quirks)
    return read(strict=True) if loading.strict and is_damaged else trace


class _Told:
    """The progress of each file of several, told as that of all; ends the reading of all when it is stopped."""

    def __init__(self, tell: Progress | None, files: Sequence[FoundFile]) -> None:
        self._tell = tell
        self._done = [0] * len(files)
        self._total = sum(map(_stored_bytes, files)) if str(files[0].path) != "-" else None
        self.is_stopped = False

    def of(self, number: int) -> Progress:
        def tell(n_bytes: int, _: int | None) -> None:
            if self.is_stopped:
                raise CancelledError
            self._done[number] = n_bytes
            if self._tell:
                self._tell(sum(self._done), self._total)

        return tell


def _read_all(
    files: Sequence[FoundFile],
    read: Callable[[FoundFile, Progress], Trace | None],
    progress: Progress | None,
) -> list[Trace | None]:
    """What `read` makes of each file, several at a time; the first error ends it all."""
    told = _Told(progress, files)
    n_at_once = files_at_once([_json_bytes(file) for file in files], cores(), free_bytes())
    if n_at_once == 1:
        return [read(file, told.of(number)) for number, file in enumerate(files)]
    with ThreadPoolExecutor(n_at_once) as pool:
        futures = [pool.submit(read, file, told.of(number)) for number, file in enumerate(files)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            told.is_stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def files_at_once(json_bytes: Sequence[int], n_cores: int, free_bytes: int) -> int:
    """How many files to read at a time: no more processes than cores, and half of the free memory at most.

    Args:
        json_bytes: size of each file when unpacked, estimated.
        n_cores: cores that may be used.
        free_bytes: memory that may be had.
    """
    each_bytes = max(max(json_bytes, default=0) * _MEMORY_PER_JSON, _LEAST_BYTES)
    return max(1, min(n_cores // _PROCESSES_PER_FILE, int(free_bytes / 2 / each_bytes), len(json_bytes)))


def _stored_bytes(file: FoundFile) -> int:
    return file.path.stat().st_size if file.path.is_file() else 0


def _json_bytes(file: FoundFile) -> int:
    return _stored_bytes(file) * (1 if file.path.suffix == ".json" else _JSON_PER_PACKED)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_bytes() -> int:
    """Memory that can be had without swapping; where the system does not tell, 4 GB."""
    with suppress(OSError):
        if known := re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text()):
            return int(known.group(1)) << 10
    return 4 << 30


# --- whose they are ---


def with_ranks(traces: Sequence[tuple[Path, Trace]], *, force: bool = False) -> tuple[list[RunFile], list[Quirk]]:
    """The files with their ranks, in order of rank, and what is odd about these.

    Args:
        traces: the file, and the trace in it.
        force: number files of one rank instead of refusing them.

    Raises:
        InputError: two files are of one rank, or a file of several holds several ranks.
    """
    _refuse_merged(traces)
    traces = sorted(traces, key=lambda read: natural(read[0]))
    metas = [trace.meta for _, trace in traces]
    ranks, notes = found_ranks(
        [path.name for path, _ in traces], [m.rank for m in metas], [m.world_size for m in metas], force=force
    )
    files = [RunFile(path, trace, rank) for (path, trace), rank in zip(traces, ranks, strict=True)]
    return sorted(files, key=lambda file: file.rank), notes


def _refuse_merged(traces: Sequence[tuple[Path, Trace]]) -> None:
    for path, trace in traces:
        if any(quirk.id == "merged-ranks" for quirk in trace.quirks):
            raise InputError(
                f"{path.name} holds several ranks itself", "Give it alone, or the files it was merged from."
            )


def _strangers(files: Sequence[RunFile], *, force: bool) -> list[Quirk]:
    """A note where files look like those of different jobs: other GPU, size, engine, or recorded at another time.

    Raises:
        InputError: they do, and `force` is not set.
    """
    metas = [file.trace.meta for file in files]
    sizes = {meta.world_size for meta in metas if meta.world_size is not None}
    engines = {meta.engine for meta in metas if meta.engine is not None}
    gpus = [names for meta in metas if (names := {device.name for device in meta.devices if device.name})]
    clocks = [clock for meta in metas if (clock := _clock_ns(meta)) is not None]
    faults: list[str] = []
    if gpus and not gpus[0].intersection(*gpus):
        faults.append(f"GPUs {listed(sorted(gpus[0].union(*gpus)))}")
    if len(sizes) > 1:
        faults.append(f"world sizes {listed(sorted(map(str, sizes)))}")
    if len(engines) > 1:
        faults.append(f"engines {listed(sorted(engines))}")
    if clocks and max(clocks) - min(clocks) > _APART_NS:
        faults.append("recorded more than an hour apart")
    if faults and not force:
        raise InputError(f"files of different jobs: {'; '.join(faults)}", "Take them together anyway with --force.")
    return [note("mixed-jobs", 1, f" {'; '.join(faults)}.")] if faults else _elsewhen(files)


def _elsewhen(files: Sequence[RunFile]) -> list[Quirk]:
    """A note of the files that have no moment in common with the first: ranks of a job are recorded together."""
    times = {
        file.rank: (clock, clock + (file.trace.meta.span_ns or 0))
        for file in files
        if (clock := _clock_ns(file.trace.meta)) is not None
    }
    if files[0].rank not in times:
        return []
    first_begin, first_end = times[files[0].rank]
    apart = [rank for rank, (begin, end) in times.items() if begin > first_end or end < first_begin]
    return [note("other-times", len(apart), f" {in_words(apart)}.")] if apart else []


# --- one trace of them ---


def merged(files: Sequence[RunFile], notes: Sequence[Quirk] = ()) -> Trace:
    """One trace of all files: rank set, keys unique, time since the first event of any file.

    Where a file does not say its absolute time, all begin at zero, and a quirk says so.
    """
    metas = [structs.replace(file.trace.meta, rank=file.rank) for file in files]
    shifts = file_shifts(metas)
    offsets = dict.fromkeys(_KEYS, 0)
    parts: dict[str, list[pl.LazyFrame]] = {table: [] for table in _KEYS}
    for file, shift in zip(files, shifts or [0] * len(files), strict=True):
        tables: dict[str, pl.LazyFrame] = {table: getattr(file.trace, table) for table in _KEYS}
        for table, frame in tables.items():
            parts[table].append(_moved(frame, file.rank, shift, {k: offsets[of] for k, of in _KEYS[table].items()}))
        for table, frame in tables.items():
            offsets[table] += frame.select(pl.len()).collect().item()
    clocks = [] if shifts else [note("no-common-clock", len(files))]
    return replace(
        files[0].trace,
        meta=_run_meta(metas),
        parts=tuple(metas),
        quirks=_all_quirks(files, [*notes, *clocks]),
        **{table: pl.concat(frames) for table, frames in parts.items()},
    )


def only_ranks(trace: Trace, ranks: Iterable[int]) -> Trace:
    """The trace with the rows of some ranks only; keys and times stay as they are.

    Raises:
        MissingDataError: a rank has no file, and none of the rows.
    """
    wanted = sorted(set(ranks))
    parts = [part for part in trace.parts if part.rank in wanted] if len(trace.parts) > 1 else list(trace.parts)
    here = trace.threads.select("rank").unique().collect()["rank"].to_list()
    have = {rank for rank in (*here, *(part.rank for part in trace.parts)) if rank is not None}
    if missing := sorted(set(wanted) - have):
        raise MissingDataError(f"there is no rank {in_words(missing)}", f"The ranks are {in_words(have)}.")
    meta = parts[0] if len(parts) == 1 else _run_meta(parts)
    meta = structs.replace(meta, base_time_ns=trace.meta.base_time_ns, first_event_ns=trace.meta.first_event_ns)
    tables: dict[str, pl.LazyFrame] = {
        table: getattr(trace, table).filter(pl.col("rank").is_in(wanted)) for table in _KEYS
    }
    return replace(trace, meta=meta, parts=tuple(parts), **tables)


def _clock_ns(meta: TraceMeta) -> int | None:
    """When the first event was, in ns since 1970; None where the file does not say."""
    first_ns = meta.first_event_ns
    if first_ns is None or meta.base_time_ns is not None:
        return None if first_ns is None else (meta.base_time_ns or 0) + first_ns
    return first_ns if first_ns > _EPOCH_NS else None


def file_shifts(metas: Sequence[TraceMeta]) -> list[int] | None:
    """How much later than the run each file begins; None where that is not known. Without any event it is 0."""
    clocks = [_clock_ns(meta) for meta in metas]
    known = [clock for clock in clocks if clock is not None]
    if len(known) < sum(meta.first_event_ns is not None for meta in metas):
        return None
    return [0 if clock is None else clock - min(known) for clock in clocks]


def _moved(frame: pl.LazyFrame, rank: int, shift_ns: int, offsets: Mapping[str, int]) -> pl.LazyFrame:
    """The table of one rank with its rank, on the run's clock, with keys that go on where those before it ended."""
    schema = frame.collect_schema()
    keys = [(pl.col(key) + offset).cast(schema[key]) for key, offset in offsets.items() if key in schema]
    times = [pl.col(time) + shift_ns for time in ("start_ns", "time_ns") if time in schema]
    return frame.with_columns(*keys, *times, pl.lit(rank, pl.Int16).alias("rank"))


def _run_meta(metas: Sequence[TraceMeta]) -> TraceMeta:
    """The run as a whole: what all files say alike, sums of sizes and counts, and its first event."""
    counts: Counter[str] = Counter()
    for meta in metas:
        counts.update(meta.event_counts)
    shifts = file_shifts(metas)
    first = metas[shifts.index(0)] if shifts else metas[0]
    ends = [meta.span_ns + shift for meta, shift in zip(metas, shifts or [0] * len(metas), strict=True) if meta.span_ns]
    differing = dict.fromkeys((name for name in _ALIKE if len({getattr(m, name) for m in metas}) > 1), None)
    return structs.replace(
        metas[0],
        **differing,
        name=f"{metas[0].name} and {len(metas) - 1} more",
        size_bytes=sum(meta.size_bytes for meta in metas),
        n_events=sum(meta.n_events for meta in metas),
        base_time_ns=first.base_time_ns if shifts else None,
        first_event_ns=first.first_event_ns if shifts else None,
        span_ns=max(ends, default=None),
        rank=None,
        devices=max((meta.devices for meta in metas), key=len),
        event_counts=dict(counts.most_common()),
    )


def _all_quirks(files: Sequence[RunFile], notes: Sequence[Quirk]) -> tuple[Quirk, ...]:
    """The quirks of all files, each kind once, with the ranks it was met in where these are not all; and notes."""
    met: dict[str, list[tuple[int, Quirk]]] = {}
    for file in files:
        for quirk in file.trace.quirks:
            met.setdefault(quirk.id, []).append((file.rank, quirk))
    of_files = [_summed([rank for rank, _ in where], [q for _, q in where], len(files)) for where in met.values()]
    kinds = list(KINDS)
    order = ("lost", "repaired", "note")
    return tuple(sorted([*of_files, *notes], key=lambda quirk: (order.index(quirk.effect), kinds.index(quirk.id))))


def _summed(ranks: Sequence[int], quirks: Sequence[Quirk], n_files: int) -> Quirk:
    text = quirks[0].text
    if len(ranks) < n_files:
        text = f"{'Rank' if len(ranks) == 1 else 'Ranks'} {in_words(ranks)}: {text}"
    return structs.replace(quirks[0], count=sum(quirk.count for quirk in quirks), text=text)
