"""Which files are to be ingested, and of which run and rank each is."""

import lzma
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import translate
from pathlib import Path, PurePosixPath
from typing import Protocol

import msgspec
import zstandard
from msgspec import structs

from traceql.capture.manifest import NAME as CAPTURE_NAME
from traceql.capture.manifest import read_manifest
from traceql.errors import InputError, MissingDataError
from traceql.fleet.hub import HubFolder
from traceql.fleet.manifest import MARK, Origin, checked_run
from traceql.fleet.storage import Found, RemoteStorage, is_hub, is_remote, place
from traceql.ingest.meta import TraceMeta
from traceql.ingest.ranks import ranks_in_names, without_rank
from traceql.ingest.trace_files import is_trace_name, natural, no_trace_in, trace_files

_JSON_PER_PACKED = 16
"""JSON per packed byte where that cannot be found out: gzip of real traces has 9 to 14, zstd to 45 at times."""
_SAMPLE_BYTES = 1 << 18
"""Of a file that does not say its size, to see how it unpacks."""
_HOST = re.compile(r"(?P<host>.+)_\d+\.\d{10,20}\.pt\.trace\.json(\.gz)?")
"""As torch.profiler.tensorboard_trace_handler names its files: host_pid.time.pt.trace.json."""
_SUFFIXES = re.compile(r"(\.pt)?(\.trace)?\.json(\.(gz|zst|xz))?$")
_EPOCH_NS = 10**18
"""Above this a time without a base is one since 1970, as in traceql.run."""
_PATTERN = "*?["


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A file to be ingested."""

    origin: Origin
    json_bytes: int
    """Its size as uncompressed JSON: what it says, else an estimate."""

    raw_path: bytes = b""
    """Path of a local file, as the system has it; empty for a remote one."""
    rank_in_name: int | None = None
    is_rank_told: bool = False
    """Whether only its name tells it apart from other files of the run."""

    @property
    def name(self) -> str:
        """Name of the file."""
        return PurePosixPath(self.origin.location).name

    @property
    def stem(self) -> str:
        """The name without what says that it is a trace."""
        return _SUFFIXES.sub("", self.name)

    @property
    def folder(self) -> str:
        """Where it is."""
        return self.origin.location.rpartition("/")[0]

    @property
    def folder_name(self) -> str:
        """The last part of that."""
        return self.folder.rpartition("/")[2]


class Remote(Protocol):
    """Files below a URL, to be fetched. Paths are relative to it, with `/`."""

    def files(self) -> Iterator[Found]:
        """All of them, in no order."""
        ...

    def head(self, path: str) -> Found:
        """What a listing says about one.

        Raises:
            InputError: there is none.
        """
        ...

    def download(self, path: str, target: Path) -> None:
        """Writes one into a file of this machine."""
        ...


def remote_at(location: str) -> Remote:
    """What is at the URL of a folder.

    Raises:
        InputError: there cannot be anything, or what reads it is not installed.
    """
    return HubFolder(location) if is_hub(location) else RemoteStorage(location)


@dataclass(frozen=True)
class Placed:
    """Of which run and rank a trace is."""

    run: str
    rank: int


def sources(given: Sequence[str]) -> list[Source]:
    """The files that paths, folders (with all below them), patterns and URLs name, each once, in order of name.

    The manifests of captures and what lies in stores is left out.

    Raises:
        InputError: nothing is named, or a folder, pattern or URL has no trace.
    """
    found: dict[str, Source] = {}
    local = [text for text in map(place, given) if not is_remote(text)]
    if "-" in local:
        raise InputError("standard input cannot be ingested", "Write it to a file first.")
    files = [file.path for file in trace_files([each for text in local for each in _folders(text)])] if local else []
    for file in files:
        if not _is_manifest(file):
            found.setdefault(str(file.absolute()), _local(file))
    for url in (text for text in map(place, given) if is_remote(text)):
        found |= {source.origin.location: source for source in _remote(url)}
    return sorted(with_ranks_of_names([*found.values()]), key=lambda source: natural(Path(source.origin.location)))


def _folders(text: str) -> list[str]:
    """A folder as itself and all below it that hold traces; anything else as it is."""
    if not Path(text).is_dir():
        return [text]
    found: list[str] = []
    for folder, below, names in os.walk(text):
        if Path(folder, MARK).is_file():
            below.clear()
            continue
        below[:] = sorted(name for name in below if not name.startswith("."))
        if any(is_trace_name(name) for name in names):
            found.append(folder)
    if not found:
        raise no_trace_in(text)
    return found


def _is_manifest(file: Path) -> bool:
    """Whether it is what a capture writes beside its traces."""
    if file.name != CAPTURE_NAME:
        return False
    with suppress(InputError, MissingDataError):
        read_manifest(file)
        return True
    return False


def origin_of(file: Path) -> Origin:
    """The file as it is now; one that is not there has no bytes."""
    location = os.fsencode(file.absolute()).decode("utf-8", "backslashreplace")
    try:
        stat = file.stat()
    except (OSError, ValueError):
        return Origin(location=location, n_bytes=0, state="")
    return Origin(location=location, n_bytes=stat.st_size, state=f"{stat.st_mtime_ns}-{stat.st_ino}")


def _local(file: Path) -> Source:
    return Source(origin=origin_of(file), json_bytes=json_bytes(file), raw_path=os.fsencode(file.absolute()))


def json_bytes(file: Path) -> int:
    """Size of a trace as uncompressed JSON: as the file tells it, else by how its beginning unpacks; 0 for no file."""
    try:
        n_bytes = file.stat().st_size
        with file.open("rb") as content:
            head = content.read(_SAMPLE_BYTES)
            content.seek(-min(n_bytes, 4), os.SEEK_END)
            tail = content.read(4)
    except OSError:
        return 0
    told = _told_bytes(head, tail)
    return told if told > n_bytes else int(n_bytes * _ratio(head))


def _told_bytes(head: bytes, tail: bytes) -> int:
    """The size that a packed file says it unpacks to; 0 where it does not. What gzip says is modulo 4 GB."""
    if head.startswith(b"\x1f\x8b") and len(tail) == 4:
        return struct.unpack("<I", tail)[0]
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        with suppress(zstandard.ZstdError):
            return max(zstandard.frame_content_size(head), 0)
    return 0


def _ratio(head: bytes) -> float:
    """JSON per packed byte, as the beginning of a file unpacks."""
    unpackers: dict[bytes, Callable[[bytes], bytes]] = {
        b"\x28\xb5\x2f\xfd": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
        b"\xfd7zXZ": lambda data: lzma.LZMADecompressor().decompress(data),
        b"\x1f\x8b": lambda data: zlib.decompressobj(31).decompress(data),
    }
    for magic, unpack in unpackers.items():
        if head.startswith(magic):
            with suppress(zstandard.ZstdError, lzma.LZMAError, zlib.error):
                return max(len(unpack(head)) / len(head), 1.0)
            return _JSON_PER_PACKED
    return 1.0


def _remote(url: str) -> Iterator[Source]:
    """The object at a URL, those below it, or those that a pattern in it matches.

    Raises:
        InputError: there is none.
    """
    wildcard = min((url.find(mark) for mark in _PATTERN if mark in url), default=-1)
    base = url if wildcard < 0 else url[:wildcard].rpartition("/")[0]
    matches = re.compile(translate(url)).match if wildcard >= 0 else None
    if matches is None and is_trace_name(PurePosixPath(url).name):
        folder, _, name = url.rpartition("/")
        found = remote_at(folder).head(name)
        yield _of_object(url, found.n_bytes, found.state)
        return
    n_found = 0
    for found in remote_at(base).files():
        location = f"{base}/{found.path}"
        name = PurePosixPath(found.path).name
        if is_trace_name(name) and name != CAPTURE_NAME and (matches is None or matches(location)):
            n_found += 1
            yield _of_object(location, found.n_bytes, found.state)
    if not n_found:
        raise InputError(f"{url} holds no trace", "A trace is named *.json, *.json.gz, *.json.zst or *.json.xz.")


def _of_object(location: str, n_bytes: int, state: str) -> Source:
    packed = 1 if location.endswith(".json") else _JSON_PER_PACKED
    return Source(origin=Origin(location=location, n_bytes=n_bytes, state=state), json_bytes=n_bytes * packed)


# --- whose it is ---


def with_ranks_of_names(found: Sequence[Source]) -> list[Source]:
    """The sources with the rank that their name tells among those of the same folder that are named alike."""
    alike: dict[tuple[str, str], list[Source]] = {}
    for source in found:
        alike.setdefault((source.folder, without_rank(source.stem)), []).append(source)
    ranked: list[Source] = []
    for together in alike.values():
        ranks = ranks_in_names([source.name for source in together])
        alone = [ranks_in_names([source.name])[0] for source in together]
        needs_others = len(set(alone)) < len(alone) == len(set(ranks))
        ranked += [
            structs.replace(source, rank_in_name=rank, is_rank_told=needs_others)
            for source, rank in zip(together, ranks, strict=True)
        ]
    return ranked


def placed(source: Source, meta: TraceMeta, capture: Path | None, run: str | None) -> Placed:
    """The run and rank of a trace.

    The rank is the recorded one, else that in the file's name, else 0; where only several numbers tell the names apart
    (TP-0-DP-1) the names decide, as in `traceql.ingest.ranks`. The run is named by the folder of the capture that made
    the file, else by the file's name without its rank. A name that is nothing but a rank, or that tells none although
    the trace is one of several ranks, is of the run of its folder.

    Args:
        source: the file.
        meta: what the trace says.
        capture: folder of the capture that made it.
        run: the name asked for, in which `{name}` stands for the above and `{folder}` for the file's folder.
    """
    rank = source.rank_in_name if source.is_rank_told or meta.rank is None else meta.rank
    own = without_rank(source.stem)
    if not own or (source.rank_in_name is None and (meta.world_size or 1) > 1):
        own = source.folder_name or own or source.name
    if capture is not None:
        own = capture.name
    name = own if run is None else run.replace("{folder}", source.folder_name).replace("{name}", own)
    return Placed(checked_run(name), rank or 0)


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


def host_of(name: str) -> str | None:
    """The host in a name as torch.profiler gives it; None in any other."""
    found = _HOST.fullmatch(name)
    return found["host"] if found else None
