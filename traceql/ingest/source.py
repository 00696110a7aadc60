"""Opens a trace, wherever it comes from and however it is compressed, and yields its bytes in blocks.

The format is told from the first bytes, never from the name, and nothing seeks: a pipe is as good as a file.
What is no trace is refused, with what it looks like; what is cut off or damaged is read as far as it goes.
"""

import csv
import io
import lzma
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, Protocol, Self

import ijson  # pyright: ignore[reportMissingTypeStubs]
import orjson
import zstandard
from isal import igzip_lib

from traceql.errors import InputError

_BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16
"""How much of the content is looked at to tell what it is."""
_SNIFF_BYTES = 1 << 13
"""Read before the compression is known, so no more than the least `_Codec.feed_bytes`."""
_PIECE_BYTES = 1 << 16
"""Most bytes a decompressor gives at once: what a damaged spot can take with it."""

_BOM = b"\xef\xbb\xbf"
_RECORD = "Give the JSON file that torch.profiler writes (export_chrome_trace, or the server's profiler folder)."
_COPY_AGAIN = "The file is damaged: copy or download it again."


class _Decoder(Protocol):
    """One member, frame or stream being decompressed; the interface of `lzma.LZMADecompressor`."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _ZstdFrame:
    """A zstd frame behind the interface of `_Decoder`; ignores `max_length`, so feed it in small bites."""

    needs_input = True

    def __init__(self) -> None:
        # `zstd --long=31` makes windows of 2 GB; the default limit is 128 MB.
        self._frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data

    def decompress(self, data: bytes, _max_length: int, /) -> bytes:
        return self._frame.decompress(data)


@dataclass(frozen=True)
class _Codec:
    """A compression: how it begins, how it is undone and what its decoder raises on damage."""

    name: str
    magics: tuple[bytes, ...]
    start: Callable[[], _Decoder]
    error: type[Exception]
    feed_bytes: int
    trailer_bytes: int
    """Length of the checksums at the end. They are fed apart, so that a wrong one costs no content."""


# On a 640 MB trace: gzip 3 GB/s, zstd 2 GB/s, xz 0.4 GB/s of content; a thread ahead gains little.
_CODECS = (
    _Codec(
        "gzip",
        (b"\x1f\x8b",),
        lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP),
        igzip_lib.IsalError,  # pyright: ignore[reportArgumentType] - the stub declares an instance
        feed_bytes=1 << 16,
        trailer_bytes=8,
    ),
    _Codec(
        "zstd",
        (
            b"\x28\xb5\x2f\xfd",
            *(bytes((0x50 + n, 0x2A, 0x4D, 0x18)) for n in range(16)),
        ),  # 0x50…: skippable frames
        _ZstdFrame,
        zstandard.ZstdError,
        feed_bytes=1 << 13,
        trailer_bytes=4,
    ),
    _Codec(
        "xz",
        (b"\xfd7zXZ\0",),
        lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
        lzma.LZMAError,
        feed_bytes=1 << 16,
        trailer_bytes=0,
    ),
)


class Source(AbstractContextManager["Source"]):
    """An opened trace: a context manager whose `blocks` can be walked once.

    Raises:
        InputError: what it holds is certainly no trace (from the constructor), or the disk gives an error.
    """

    name: str
    """File name without its folder; `-` for standard input."""
    stored_bytes: int | None
    """Size on disk, compressed or not; None for a pipe."""
    read_bytes: int
    """Bytes taken from the file so far, compressed or not: up to `stored_bytes`."""
    truncated: bool
    """The compressed data ended early or broke off, so the rest of the content is missing."""

    def __init__(self, file: BinaryIO, name: str, stored_bytes: int | None) -> None:
        self.name = name
        self.stored_bytes = stored_bytes
        self.read_bytes = 0
        self.truncated = False
        self._file = file
        self._title = "standard input" if name == "-" else name
        self._blocks = self._checked(_gathered(self._content()))

    def blocks(self) -> Iterator[bytes]:
        """Decompressed bytes without a byte order mark, about 1 MB at a time, none of them empty."""
        return self._blocks

    def close(self) -> None:
        """Closes the file; standard input stays open."""
        if self.name != "-":
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, n_bytes: int) -> bytes:
        try:
            data = self._file.read(n_bytes)
        except OSError as error:
            raise InputError(f"{self._title} cannot be read: {error.strerror}", "Check the disk.") from error
        self.read_bytes += len(data)
        return data

    def _content(self) -> Iterator[bytes]:
        """The decompressed content in pieces of any size."""
        head = self._read(_SNIFF_BYTES)
        for codec in _CODECS:
            if head.startswith(codec.magics):
                return self._inflated(codec, head)
        return chain((head,), iter(lambda: self._read(_BLOCK_BYTES), b""))

    def _inflated(self, codec: _Codec, head: bytes) -> Iterator[bytes]:
        """The content of all members, as far as it can be had; `truncated` is set where it breaks off."""
        feed = _without_trailer(chain((head,), iter(lambda: self._read(codec.feed_bytes), b"")), codec.trailer_bytes)
        has_content = False
        try:
            for piece in _members(codec, feed):
                has_content = has_content or bool(piece)
                yield piece
        except (codec.error, EOFError) as error:
            if not has_content:
                fault = "is cut off before any content" if isinstance(error, EOFError) else "cannot be inflated"
                raise InputError(f"{self._title} begins like {codec.name}, but {fault}", _COPY_AGAIN) from error
            self.truncated = True

    def _checked(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The same blocks without byte order mark, once the first does not look like something else."""
        first = next(blocks, b"").removeprefix(_BOM)
        if not first:
            raise InputError(f"{self._title} is empty", "Was the recording stopped, and the trace written whole?")
        while first.isspace():  # JSON may begin with any amount of it
            first = next(blocks, b"")
            if not first:
                raise InputError(f"{self._title} holds only white space", _RECORD)
        if error := looks_like(first, self._title):
            raise error
        return chain((first,), blocks)


def open_source(path: str | Path) -> Source:
    """Opens a trace file, or standard input for `-`; use it as a context manager.

    Raises:
        InputError: it cannot be opened, or is certainly no trace. The message says what it looks like.
    """
    if str(path) == "-":
        return Source(_stdin(), "-", None)
    path = Path(path)
    file = _opened(path)
    try:
        stat = os.fstat(file.fileno())
        name = os.fsencode(path.name).decode("utf-8", "replace")
        return Source(file, name, stat.st_size if S_ISREG(stat.st_mode) else None)
    except BaseException:
        file.close()
        raise


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder", _folder_hint(path)) from error
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist", "Check the path.") from error
    except PermissionError as error:
        raise InputError(f"{path} may not be read", "Ask its owner for read permission.") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{path} cannot be opened: {error}", "Check the path.") from error


def _folder_hint(folder: Path) -> str:
    try:
        names = sorted(found.name for found in folder.glob("*.json*") if found.is_file())
    except OSError:
        names = []
    examples = f", e.g. {', '.join(names[:3])}" if names else "; this one holds no .json file"
    return f"A folder is a run (traceql.load_run); to load one trace name a file inside it{examples}."


def _stdin() -> BinaryIO:
    if sys.stdin is None or sys.stdin.closed:  # pyright: ignore[reportUnnecessaryComparison]
        raise InputError("standard input is closed", "Pipe a trace in, or name a file.")
    if sys.stdin.isatty():
        raise InputError("standard input is a terminal", "Pipe a trace in, or name a file.")
    return sys.stdin.buffer


def _gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks of at least `_BLOCK_BYTES`; the last may be shorter, none is empty."""
    held: list[bytes] = []
    n_bytes = 0
    for piece in pieces:
        held.append(piece)
        n_bytes += len(piece)
        if n_bytes >= _BLOCK_BYTES:
            yield b"".join(held)
            held.clear()
            n_bytes = 0
    if n_bytes:
        yield b"".join(held)


def _without_trailer(pieces: Iterable[bytes], n_bytes: int) -> Iterator[bytes]:
    """The same bytes, the last `n_bytes` of all of them as a piece of their own."""
    held = b""
    for piece in pieces:
        held += piece
        border = len(held) - n_bytes
        if border > 0:
            yield held[:border]
            held = held[border:]
    if held:
        yield held


def _members(codec: _Codec, feed: Iterator[bytes]) -> Iterator[bytes]:
    """The content of all members, frames or streams in turn; foreign bytes after the last do no harm.

    Raises:
        EOFError: the input ends within a member.
        Exception: the codec's `error`, where the input is damaged.
    """
    data = next(feed, b"")
    while data:
        decoder = codec.start()
        yield from _member(decoder, data, feed)
        data = _next_member(decoder.unused_data, feed, codec.magics)


def _member(decoder: _Decoder, data: bytes, feed: Iterator[bytes]) -> Iterator[bytes]:
    while True:
        yield decoder.decompress(data, _PIECE_BYTES)
        if decoder.eof:
            return
        data = b""
        if decoder.needs_input:
            data = next(feed, b"")
            if not data:
                raise EOFError


def _next_member(rest: bytes, feed: Iterator[bytes], magics: tuple[bytes, ...]) -> bytes:
    """The beginning of the member after this one, or nothing where padding or foreign bytes end the file."""
    rest = rest.lstrip(b"\0")
    longest = max(map(len, magics))
    while len(rest) < longest and (more := next(feed, b"")):
        rest = (rest + more).lstrip(b"\0")
    return rest if rest.startswith(magics) else b""


# What a file that is no trace looks like.


@dataclass(frozen=True)
class _Look:
    """A kind of file that is no trace: what it is called, what to do instead, and how it is told.

    Binary and text files are told by how they begin, JSON objects by their keys, both also by bytes in them.
    """

    what: str
    hint: str = _RECORD
    begins: tuple[bytes, ...] = ()
    keys: frozenset[str] = field(default_factory=frozenset[str])
    marks: tuple[bytes, ...] = ()

    def fits_start(self, head: bytes) -> bool:
        return head.startswith(self.begins) and all(mark in head for mark in self.marks)

    def fits_keys(self, keys: Iterable[str], head: bytes) -> bool:
        return self.keys.issubset(keys) and all(mark in head for mark in self.marks)

    def error(self, name: str) -> InputError:
        return InputError(f"{name} is {self.what}, not a trace", self.hint)


_UNPACK = "Unpack it and name the JSON file inside."
_MEMORY_VIZ = "A memory snapshot opens at pytorch.org/memory_viz; traceql reads what torch.profiler writes."
_SQLITE = b"SQLite format 3\0"

_BINARY_LOOKS = (
    _Look(
        "UTF-16 text",
        "Convert it: iconv -f UTF-16 -t UTF-8 (PowerShell's > writes UTF-16).",
        begins=(b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0{", b"[\0", b"\0["),
    ),
    _Look("an Nsight Systems export (SQLite)", begins=(_SQLITE,), marks=(b"CUPTI_",)),
    _Look("a rocprof database (SQLite)", begins=(_SQLITE,), marks=(b"rocpd_",)),
    _Look("a SQLite database, perhaps an export of nsys or rocprof", begins=(_SQLITE,)),
    _Look("an Nsight Systems report", begins=(b"NVIDIA Tegra Profiler Report", b"QDSTRM")),
    _Look("a PyTorch checkpoint (zip)", begins=(b"PK\x03\x04",), marks=(b"/data.pkl",)),
    _Look("a zip archive", _UNPACK, begins=(b"PK\x03\x04", b"PK\x05\x06")),
    _Look("a Python pickle", _MEMORY_VIZ, begins=tuple(bytes((0x80, protocol)) for protocol in range(2, 6))),
    _Look("compressed twice", "Decompress it once.", begins=tuple(m for codec in _CODECS for m in codec.magics)),
    _Look("compressed with bzip2", "Decompress it: bzip2 -d.", begins=(b"BZh",)),
    _Look("compressed with lz4", "Decompress it: lz4 -d.", begins=(b"\x04\x22\x4d\x18",)),
    _Look("a 7z archive", _UNPACK, begins=(b"7z\xbc\xaf\x27\x1c",)),
    _Look("a Parquet file", begins=(b"PAR1",)),
    _Look("a PDF document", begins=(b"%PDF",)),
)

_TEXT_LOOKS = (  # compared with lower-case text without white space before it
    _Look(
        "an HTML page",
        "Was a login or error page downloaded in its place? Fetch the raw file.",
        begins=(b"<!doctype html", b"<html"),
    ),
    _Look("XML", begins=(b"<?xml",)),
    _Look("a Git LFS pointer", "Fetch the file itself: git lfs pull.", begins=(b"version https://git-lfs",)),
    _Look(
        "the table that key_averages() prints",
        "Export the trace as well: profiler.export_chrome_trace(path).",
        begins=(b"---",),
        marks=(b"self cpu",),
    ),
)

_JSON_LOOKS = (
    _Look("a memory snapshot", _MEMORY_VIZ, keys=frozenset({"device_traces"})),
    _Look("a memory snapshot", _MEMORY_VIZ, keys=frozenset({"segments"}), marks=(b'"blocks"', b'"total_size"')),
    _Look(
        "rocprofv3's own JSON",
        "Record with torch.profiler, which runs on ROCm too.",
        keys=frozenset({"rocprofiler-sdk-tool"}),
    ),
    _Look(
        "an execution trace (Chakra ET), which has no times of the GPU",
        "Give the profiler's trace of the same run.",
        keys=frozenset({"schema", "nodes"}),
    ),
    _Look("a speedscope profile (py-spy)", keys=frozenset({"$schema"}), marks=(b"speedscope.app",)),
    *(
        _Look("the result of a serving benchmark", keys=frozenset({key}))
        for key in ("mean_ttft_ms", "median_ttft_ms", "output_throughput", "request_throughput")
    ),
    _Look("a model's config.json", keys=frozenset({"model_type", "architectures"})),
)

_LOG_LINE = re.compile(rb"\[\s*(?:\d{4}-\d\d-\d\d\b|(?!true|false|null|nan|inf)[a-z])", re.IGNORECASE)
_NON_FINITE = re.compile(rb"(?<=[:,\[])\s*-?(?:Infinity|NaN)\b")
"""Numbers that Python's json writes (a request rate without limit, say) and no JSON parser reads."""
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Bytes that no text has; 0x1b colours terminal output."""


def looks_like(head: bytes, name: str = "the input") -> InputError | None:
    """What else than a trace the content certainly is, as an error to raise; None when it may be a trace.

    Args:
        head: the first bytes of the decompressed content, 64 KB or all of it; more is not looked at.
        name: what the message calls it.
    """
    head = head[:_HEAD_BYTES]
    look = _binary_look(head) or _text_look(head.removeprefix(_BOM).lstrip())
    return look.error(name) if look else None


def not_a_trace(head: bytes, name: str) -> InputError:
    """The best description of content in which no trace events were found, as an error to raise."""
    head = head[:_HEAD_BYTES]
    return looks_like(head, name) or InputError(f"{name} is no trace: {_Outline(head).description()}", _RECORD)


def _binary_look(head: bytes) -> _Look | None:
    for look in _BINARY_LOOKS:
        if look.fits_start(head):
            return look
    if head[257:262] == b"ustar":
        return _Look("a tar archive", _UNPACK)
    if not _CONTROL.search(head[:1024]):
        return None
    if _is_perfetto(head):
        return _Look("a binary Perfetto trace", "Only the JSON form is read: record with torch.profiler.")
    return None if head.lstrip()[:1] in (b"{", b"[") else _Look("binary data")


def _is_perfetto(head: bytes) -> bool:
    """Whether it begins with three TracePackets, or is fewer: the byte 0x0a, a length, so many bytes."""
    at = 0
    for _ in range(3):
        if head[at : at + 1] != b"\n":
            return False
        length, at = _varint(head, at + 1)
        at += length
        if at == len(head):
            break
    return at <= len(head)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The protobuf number at `at` (seven bits a byte, low ones first), and where it ends."""
    number = 0
    for n, byte in enumerate(data[at : at + 10]):
        number |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            return number, at + n + 1
    return number, at + 10


def _text_look(text: bytes) -> _Look | None:
    """What a text without white space before it is, if certainly no trace."""
    match text[:1]:
        case b"{" | b"[":
            return _json_look(text)
        case b"":
            return None
        case _:
            lower = text.lower()
            known = (look for look in _TEXT_LOOKS if look.fits_start(lower))
            return next(known, None) or _scalar_look(text) or _csv_look(text) or _Look(_plain_text(text))


def _json_look(text: bytes) -> _Look | None:
    if _LOG_LINE.match(text):
        return _Look(_plain_text(text))
    if text.startswith(b"{'"):
        return _Look("a printed Python dictionary", "Write it with json.dump. " + _RECORD)
    if _is_json_lines(text):
        return _Look("a file of one JSON value a line (NDJSON: logs, benchmark results, nsys export)")
    if b'"traceEvents"' in text:
        return None
    outline = _Outline(text)
    if outline.kind == "array":
        return outline.array_look()
    return next((look for look in _JSON_LOOKS if look.fits_keys(outline.keys, text)), None)


def _is_json_lines(text: bytes) -> bool:
    first, _, rest = text.partition(b"\n")
    return rest.lstrip()[:1] in (b"{", b"[") and _loaded(first) is not None


def _scalar_look(text: bytes) -> _Look | None:
    return None if _loaded(text) is None and text.strip() != b"null" else _Look("a single JSON value")


def _loaded(text: bytes) -> object:
    """The JSON value, or None when it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _csv_look(text: bytes) -> _Look | None:
    """A table: two lines of the same three or more cells (commas in quoted kernel names do not count)."""
    lines = text.decode("utf-8", "replace").splitlines()[:3]
    try:
        widths = [len(row) for row in csv.reader(lines[:2])]
    except csv.Error:
        return None
    if len(lines) < 2 or len(widths) < 2 or widths[0] < 3 or widths[0] != widths[1]:
        return None
    return _Look("a CSV table, perhaps a summary of nsys or rocprof")


def _plain_text(text: bytes) -> str:
    line = text.partition(b"\n")[0].decode("utf-8", "replace").strip()
    shown = "".join(char if char.isprintable() else "·" for char in line)
    return f"text that begins with “{shown[:40]}{'…' if len(shown) > 40 else ''}”"


def _json_events(head: bytes) -> Iterator[tuple[str, str, object]]:
    """(path of the parent, kind of event, value), as ijson gives them; an error loses what is in its bite."""
    return ijson.parse(io.BytesIO(head), buf_size=512)


class _Outline:
    """What is at the top of a JSON text that may be cut off or damaged further on.

    Attributes:
        kind: object, array, or an empty string where nothing can be read.
        keys: the keys of the object, or of an array's first element, and the kind of value each has.
        element: the kind of an array's first element: map, array, number, string...; empty for none.
        is_whole: whether it could be read to the end, of an array to the end of the first element.
    """

    def __init__(self, head: bytes) -> None:
        self.kind = ""
        self.element = ""
        self.keys: dict[str, str] = {}
        self.is_whole = False
        with suppress(ijson.JSONError, UnicodeDecodeError):  # cut off or damaged: what was read before stands
            self._read(_NON_FINITE.sub(b" null", head.removeprefix(_BOM)))
            self.is_whole = True

    def _read(self, head: bytes) -> None:
        key = None
        top = ""
        for prefix, event, value in _json_events(head):
            what = event.removeprefix("start_")
            if not self.kind:
                self.kind = "object" if what == "map" else what
                top = "" if what == "map" else "item"
            elif prefix == "item" and self.kind == "array" and not self.element:
                self.element = what
            elif key is not None:
                self.keys[key] = what
                key = None
            if prefix == top and event == "map_key":
                key = str(value)
            elif prefix == "item" and self.kind == "array" and event in ("end_map", "end_array"):
                return

    def array_look(self) -> _Look | None:
        """What an array is whose elements cannot be events."""
        if self.element == "array":
            return _Look("a JSON list of lists, perhaps a memory timeline")
        return _Look(f"a JSON list of {self.element}s") if self.element in ("number", "string") else None

    def description(self) -> str:
        """What it is, to follow a colon."""
        keys = ", ".join(list(self.keys)[:5])
        if not (keys or self.element or self.is_whole):
            return "JSON was expected, and this is none"
        if "traceEvents" in self.keys and self.keys["traceEvents"] != "array":
            return f"its traceEvents is no list but a {self.keys['traceEvents']}"
        if self.kind == "array":
            return f"a JSON list of objects with {keys or 'nothing in them'}" if self.element else "an empty JSON list"
        return f"a JSON object with {keys}, without traceEvents" if keys else "an empty JSON object"
