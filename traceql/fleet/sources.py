"""Which files are to be ingested."""

import lzma
import os
import re
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import translate
from pathlib import Path, PurePosixPath
from typing import Protocol

import zstandard

from traceql.capture.manifest import NAME as CAPTURE_NAME
from traceql.capture.manifest import read_manifest
from traceql.errors import InputError, MissingDataError, TraceqlError
from traceql.fleet.hub import HubFolder
from traceql.fleet.manifest import MARK, NOTES, Origin
from traceql.fleet.placing import with_names_told
from traceql.fleet.source import Source, as_text, rank_of_folder, stamp_of
from traceql.fleet.storage import Found, RemoteStorage, is_hub, is_remote, place
from traceql.ingest.trace_files import is_trace_name, natural, no_trace_in, trace_files

_JSON_PER_PACKED = 16
"""JSON per packed byte where that cannot be found out: gzip of real traces has 9 to 14, zstd to 45 at times."""
_SAMPLE_BYTES = 1 << 18
"""Of a file that does not say its size, to see how it unpacks."""
_MOST_PER_PACKED = 64
"""No more than this is unpacked of a packed byte to see that: what zeros are packed to fills any memory."""
_PATTERN = "*?["


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


def sources(given: Sequence[str]) -> list[Source]:
    """The files that paths, folders (with all below them), patterns and URLs name, each once, in order of name.

    The manifests of captures and what lies in stores are left out.

    Raises:
        InputError: nothing is named, a folder, pattern or URL has no trace, a folder cannot be listed,
            or what is named is a pipe or a device.
    """
    found: dict[str, Source] = {}
    local = [text for text in map(place, given) if not is_remote(text)]
    if "-" in local:
        raise InputError("standard input cannot be ingested", "Write it to a file first.")
    files = [file.path for file in trace_files([each for text in local for each in _folders(text)])] if local else []
    for source in (_local(file) for file in files if not _is_manifest(file) and NOTES not in file.parts):
        found.setdefault(source.origin.location, source)
    listed: dict[str, set[str]] = {}
    for url in (text for text in map(place, given) if is_remote(text)):
        found |= {source.origin.location: source for source in _remote(url, listed)}
    if not found:
        raise InputError(f"{', '.join(given)[:200]}: there is no trace", "Manifests of captures and stores are none.")
    told = with_names_told([*found.values()], lambda folder: _names_in(folder, listed))
    return sorted(told, key=lambda source: natural(Path(source.origin.location)))


def _names_in(folder: str, listed: Mapping[str, Collection[str]]) -> Iterator[str]:
    """The traces in a folder, and in the folders for ranks in it; of a URL those that were listed."""
    yield from listed.get(folder, ())
    if is_remote(folder):
        return
    with suppress(OSError, ValueError):
        for item in os.scandir(folder):
            if is_trace_name(item.name):
                yield as_text(Path(item.name))
            elif rank_of_folder(item.name) is not None:
                yield from (as_text(Path(item.name, name)) for name in _trace_names(item.path))


def _trace_names(folder: str) -> list[str]:
    with suppress(OSError):
        return [name for name in os.listdir(folder) if is_trace_name(name)]  # noqa: PTH208 - the names alone
    return []


def _folders(text: str) -> list[str]:
    """A folder as itself and all below it that hold traces; anything else as it is."""
    if not Path(text).is_dir():
        return [text]
    found: list[str] = []
    for folder, below, names in os.walk(text, onerror=_refuse):
        if Path(folder, MARK).is_file():
            below.clear()
            continue
        below[:] = sorted(name for name in below if not name.startswith("."))
        if any(is_trace_name(name) for name in names):
            found.append(folder)
    if not found:
        raise no_trace_in(text)
    return found


def _refuse(error: OSError) -> None:
    raise InputError(f"{error.filename} cannot be listed: {error.strerror}", "Check its permissions.") from error


def _is_manifest(file: Path) -> bool:
    """Whether it is what a capture writes beside its traces."""
    if file.name != CAPTURE_NAME:
        return False
    with suppress(InputError, MissingDataError):
        read_manifest(file)
        return True
    return False


def origin_of(file: Path) -> Origin:
    """The file as it is now; one that is not there has no bytes. Its folder is told without links."""
    location = as_text(Path(os.path.realpath(file.parent), file.name))
    try:
        stat = file.stat()
    except (OSError, ValueError):
        return Origin(location=location, n_bytes=0, state="")
    return Origin(location=location, n_bytes=stat.st_size, state=f"{stat.st_mtime_ns}-{stat.st_ino}")


def still_there(origin: Origin) -> bool:
    """Whether the file or object is where it was, in the same state; also where nobody can tell."""
    location = origin.location
    if not is_remote(location):
        return origin_of(Path(location)) == origin
    folder, _, name = location.rpartition("/")
    try:
        return remote_at(folder).head(name).state == origin.state
    except InputError:
        return False
    except TraceqlError:
        return True


def _local(file: Path) -> Source:
    if file.exists() and not file.is_file():
        raise InputError(f"{file} is no file on a disk", "Write it to one first.")
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
    """JSON per packed byte, as the beginning of a file unpacks; at most `_MOST_PER_PACKED`."""
    unpackers: dict[bytes, Callable[[bytes, int], bytes]] = {
        b"\x28\xb5\x2f\xfd": lambda data, most: zstandard.ZstdDecompressor().stream_reader(data).read(most),
        b"\xfd7zXZ": lambda data, most: lzma.LZMADecompressor().decompress(data, most),
        b"\x1f\x8b": lambda data, most: zlib.decompressobj(31).decompress(data, most),
    }
    for magic, unpack in unpackers.items():
        if head.startswith(magic):
            with suppress(zstandard.ZstdError, lzma.LZMAError, zlib.error):
                return max(len(unpack(head, len(head) * _MOST_PER_PACKED)) / len(head), 1.0)
            return _JSON_PER_PACKED
    return 1.0


def _remote(url: str, listed: dict[str, set[str]]) -> Iterator[Source]:
    """The object at a URL, those below it, or those that a pattern in it matches.

    Args:
        url: of the object or folder, or the pattern.
        listed: takes the names of all traces that are seen on the way, by their job's folder.

    Raises:
        InputError: there is none.
    """
    wildcard = min((url.find(mark) for mark in _PATTERN if mark in url), default=-1)
    base = url if wildcard < 0 else url[:wildcard].rpartition("/")[0]
    matches = re.compile(translate(url)).match if wildcard >= 0 else None
    if matches is None and is_trace_name(PurePosixPath(url).name):
        folder, _, name = url.rpartition("/")
        found = remote_at(folder).head(name)
        if stamp_of(name):  # then those beside it tell when its recording began
            with suppress(TraceqlError):  # a web server has no listings
                _all_traces(folder, listed)
        yield _of_object(url, found)
        return
    n_found = 0
    for source in _all_traces(base, listed):
        if matches is None or matches(source.origin.location):
            n_found += 1
            yield source
    if not n_found:
        raise InputError(f"{url} holds no trace", "A trace is named *.json, *.json.gz, *.json.zst or *.json.xz.")


def _all_traces(url: str, listed: dict[str, set[str]]) -> list[Source]:
    """All traces below a URL."""
    found: list[Source] = []
    for each in remote_at(url).files():
        name = PurePosixPath(each.path).name
        if is_trace_name(name) and name != CAPTURE_NAME and NOTES not in PurePosixPath(each.path).parts:
            source = _of_object(f"{url}/{each.path}", each)
            listed.setdefault(source.job_folder, set()).add(source.name_in_job)
            found.append(source)
    return found


def _of_object(location: str, found: Found) -> Source:
    packed = 1 if location.endswith(".json") else _JSON_PER_PACKED
    origin = Origin(location=location, n_bytes=found.n_bytes, state=found.state)
    return Source(origin=origin, json_bytes=found.n_bytes * packed)
