"""What a file that is no trace looks like, told from its first bytes: the names of things, and what to do instead."""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import ijson  # pyright: ignore[reportMissingTypeStubs]
import orjson

from traceql.errors import InputError

_HEAD_BYTES = 1 << 16
"""How much of the content is looked at to tell what it is."""
BOM = b"\xef\xbb\xbf"
RECORD = "Give the JSON file that torch.profiler writes (export_chrome_trace, or the server's profiler folder)."
GZIP_MAGICS = (b"\x1f\x8b",)
ZSTD_MAGICS = (b"\x28\xb5\x2f\xfd", *(bytes((0x50 + n, 0x2A, 0x4D, 0x18)) for n in range(16)))
"""A frame, and the skippable ones."""
XZ_MAGICS = (b"\xfd7zXZ\0",)


@dataclass(frozen=True)
class _Look:
    """A kind of file that is no trace: what it is called, what to do instead, and how it is told.

    Binary and text files are told by how they begin, JSON objects by their keys, both also by bytes in them.
    """

    what: str
    hint: str = RECORD
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
    _Look("compressed twice", "Decompress it once.", begins=(*GZIP_MAGICS, *ZSTD_MAGICS, *XZ_MAGICS)),
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
    look = _binary_look(head) or _text_look(head.removeprefix(BOM).lstrip())
    return look.error(name) if look else None


def not_a_trace(head: bytes, name: str) -> InputError:
    """The best description of content in which no trace events were found, as an error to raise."""
    head = head[:_HEAD_BYTES]
    return looks_like(head, name) or InputError(f"{name} is no trace: {_Outline(head).description()}", RECORD)


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
        return _Look("a printed Python dictionary", "Write it with json.dump. " + RECORD)
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
            self._read(_NON_FINITE.sub(b" null", head.removeprefix(BOM)))
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
