"""Of which recording a trace is: the name of its run, and its rank.

Both are told by the trace, its place and its name. A run's name is a path, so recordings that are alike in all but
their folder stay apart, and a file has the same run whatever else is ingested, now or later.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from urllib.parse import quote

from msgspec import structs

from traceql.errors import InputError
from traceql.fleet.manifest import RUN_BYTES, checked_run, short_hash
from traceql.fleet.source import Source, Stamp, rank_of_folder, stamp_of
from traceql.ingest.meta import TraceMeta
from traceql.ingest.ranks import ranks_in_names, without_rank
from traceql.ingest.trace_files import stem_of

_HOST = re.compile(r"(?P<host>.+)_\d+")
"""The worker's name where torch.profiler makes it."""
_VLLM_PLACES = re.compile(r"dp\d+_pp\d+_tp\d+(_[a-z]+\d+)*(?=_rank\d)")
"""In the names of vLLM's workers before their rank: dp0_pp0_tp3_dcp0_ep3_rank3."""
_LAST_NUMBER = re.compile(r"(^|[-_.]|gpu|cuda|device)(\d+)$")
_PAUSE_NS = 300 * 10**9
"""Between the files of one recording lies less, since all ranks stop at once."""
_EPOCH_NS = 10**18
"""Above this a time without a base is one since 1970, as in traceql.run."""
_FIELD = re.compile(r"\{(\w*)\}")
_FIELDS = ("name", "folder", "path")
"""What `--run` knows."""


@dataclass(frozen=True)
class Placed:
    """Of which run and rank a trace is."""

    run: str
    rank: int


def placed(
    source: Source, meta: TraceMeta, *, capture: str | None = None, run: str | None = None, base: str = ""
) -> Placed:
    """The run and rank of a trace.

    The rank is the recorded one, else that in the file's or folder's name, else 0; where only several numbers tell the
    names apart (TP-0-DP-1) the names decide, as in `traceql.ingest.ranks`.

    Args:
        source: the file.
        meta: what the trace says.
        capture: folder of the capture that made it.
        run: the name asked for, in which `{path}` stands for the usual one, `{name}` for the last part of that and
            `{folder}` for the name of the folder that the file is in, or the capture that made it.
        base: the folder from which the path counts, where the file is below it.

    Raises:
        InputError: the name cannot be one.
    """
    rank = source.rank_in_name if source.is_rank_told or meta.rank is None else meta.rank
    folder = source.folder if capture is None else capture.rpartition("/")[0]
    recording = _recording(source, meta) if capture is None else capture
    name = recording.rpartition("/")[2]
    path = name if recording == base else recording.removeprefix(f"{base}/")
    fields = {"name": name, "folder": folder.rpartition("/")[2], "path": _short(path)}
    return Placed(checked_run(_filled(run or "{path}", fields)), rank or 0)


def _recording(source: Source, meta: TraceMeta) -> str:
    """What all files of a recording have in common: their folder, and their name without rank and time."""
    folder = source.job_folder if meta.rank in (None, rank_of_folder(source.folder)) else source.folder
    stamp = stamp_of(source.name)
    name = _own_name(source, meta) if stamp is None else _stamped_name(source, meta, stamp)
    return folder if name in ("", folder.rpartition("/")[2]) else f"{folder}/{name}"


def _own_name(source: Source, meta: TraceMeta) -> str:
    if (meta.world_size or 1) > 1 and source.rank_in_name is None:
        number = _LAST_NUMBER.search(source.stem)
        if number and int(number[2]) == meta.rank:
            return source.stem[: number.start()].strip()
    return without_rank(source.stem).strip()


def _stamped_name(source: Source, meta: TraceMeta, stamp: Stamp) -> str:
    """The time alone where a process has no name but its number; of one rank that names no other it is its own."""
    if source.rank_in_name is None and (meta.world_size or 1) == 1:
        return f"{stamp.worker}.{_moment(stamp.time_ns)}"
    worker = _worker_key(stamp)
    began = _moment(source.begun_ns or stamp.time_ns)
    return f"{worker}.{began}" if worker else began


def _worker_key(stamp: Stamp) -> str:
    """What the names of all workers of a job have in common; nothing where each is named after its process."""
    return "" if _host(stamp.worker) else without_rank(_VLLM_PLACES.sub("", stamp.worker))


def _moment(time_ns: int) -> str:
    seconds, rest_ns = divmod(time_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns // 10**6:03}"


def _short(path: str) -> str:
    """The path; of one that is too long for a folder's name the end, after a hash of it all."""
    if len(quote(path, safe="")) <= RUN_BYTES:
        return path
    end = path
    while len(quote(end, safe="")) > RUN_BYTES - 10:
        end = end[1:]
    return f"{short_hash(path.encode())[:8]}-{end}"


def checked_pattern(run: str) -> str:
    """The name asked for runs, if it can be one and has no placeholder but the known.

    Raises:
        InputError: it cannot, or has.
    """
    for found in _FIELD.finditer(run):
        if found[1] not in _FIELDS:
            known = ", ".join(f"{{{name}}}" for name in _FIELDS)
            raise InputError(f"{found[0][:80]} stands for nothing in the name of a run", f"Known: {known}.")
    return checked_run(run)


def _filled(run: str, fields: Mapping[str, str]) -> str:
    return _FIELD.sub(lambda found: fields.get(found[1], found[0]), run)


def host_of(name: str) -> str | None:
    """The host in a name as torch.profiler gives it; None in any other."""
    stamp = stamp_of(name)
    return _host(stamp.worker) if stamp else None


def _host(worker: str) -> str | None:
    found = _HOST.fullmatch(worker) if ranks_in_names([worker]) == [None] else None
    return found["host"] if found else None


def recorded_at(meta: TraceMeta) -> datetime | None:
    """When the recording began, UTC; None where the trace does not say, or says what cannot be."""
    first_ns = meta.first_event_ns
    if first_ns is None:
        return None
    moment_ns = first_ns if meta.base_time_ns is None else meta.base_time_ns + first_ns
    if moment_ns < _EPOCH_NS:
        return None
    try:
        return datetime.fromtimestamp(moment_ns // 10**9, UTC).replace(microsecond=moment_ns % 10**9 // 1000)
    except (OverflowError, ValueError, OSError):
        return None


# --- what names tell together ---


def with_names_told(found: Sequence[Source], names_in: Callable[[str], Iterable[str]]) -> list[Source]:
    """The sources with what their names tell among all that are in their folder.

    Args:
        found: the files.
        names_in: the traces in a folder and in the folders for ranks in it, whether they are to be ingested or not.
    """
    of_folder: dict[str, dict[str, Source]] = {}
    for source in found:
        of_folder.setdefault(source.job_folder, {})[source.name_in_job] = source
    told: dict[str, Source] = {}
    for folder, sources in of_folder.items():
        for names in _recordings({*names_in(folder), *sources}):
            told |= _told(names, sources)
    return [told[source.origin.location] for source in found]


def _recordings(names: Iterable[str]) -> Iterator[list[str]]:
    """The names of the files of each recording: alike but for rank and time, and written at one time."""
    alike: dict[tuple[bool, bool, str], list[str]] = {}
    for name in sorted(names):
        file = PurePosixPath(name).name
        stamp = stamp_of(file)
        key = without_rank(stem_of(file)) if stamp is None else _worker_key(stamp)
        alike.setdefault((stamp is not None, host_of(file) is not None, key), []).append(name)
    for (is_stamped, _, _), together in alike.items():
        yield from _at_one_time(together) if is_stamped else [together]


def _at_one_time(names: Sequence[str]) -> Iterator[list[str]]:
    """Splits names with a time where a worker comes again, or after a pause."""
    stamps = [(stamp.time_ns, name, stamp.worker) for name in names if (stamp := stamp_of(name))]
    here: list[str] = []
    workers, last_ns = set[str](), 0
    for time_ns, name, worker in sorted(stamps):
        if here and (worker in workers or time_ns - last_ns > _PAUSE_NS):
            yield here
            here, workers = [], set[str]()
        here.append(name)
        workers.add(worker)
        last_ns = time_ns
    yield here


def _told(names: Sequence[str], sources: Mapping[str, Source]) -> dict[str, Source]:
    """Those of a recording's files that are to be ingested, by location, with what all its names tell."""
    ranks = ranks_in_names(names)
    alone = [ranks_in_names([name])[0] for name in names]
    needs_others = len(set(alone)) < len(alone) == len(set(ranks))
    times_ns = [stamp.time_ns for name in names if (stamp := stamp_of(name))]
    begun_ns = min(times_ns, default=None)
    return {
        source.origin.location: structs.replace(
            source, rank_in_name=rank, is_rank_told=needs_others, begun_ns=begun_ns
        )
        for name, rank in zip(names, ranks, strict=True) if (source := sources.get(name))
    }  # fmt: skip
