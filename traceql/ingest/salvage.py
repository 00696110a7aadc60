"""Reads pieces that do not parse: repairs what can be repaired, keeps every whole event, counts the rest."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from traceql.ingest.decode import DECODE_ERRORS, Columns, Decoder
from traceql.ingest.events import Event, decode_events, decode_texts, lenient_event
from traceql.ingest.pieces import Piece, depth

_NEXT_EVENT = re.compile(rb'\}\s*,?\s*\{\s*"[^\s:,\]}]')
_MERGE_BUDGET = 8
"""Stretches are put together for at most this many times the length of the text, so that time stays linear."""


@dataclass
class DecodedPiece:
    """The columns of one piece, or the piece itself where only its neighbours tell how to read it."""

    index: int
    columns: Columns
    raw: bytes | None = None
    """The whole piece, undecoded: it may begin inside an event, or hold the end of the array."""
    tail: bytes = b""
    """The beginning of an event whose end lies in the next piece."""
    quirks: Counter[str] = field(default_factory=Counter[str])
    n_bytes: int = 0
    extent_ns: tuple[int, int] | None = None
    """Of a sound piece, as in `Columns`."""


@dataclass
class Salvaged:
    """What could be read of a text that begins between two events."""

    events: list[Event] = field(default_factory=list[Event])
    texts: list[bytes] = field(default_factory=list[bytes])
    """The text of each event, as it could be read: JSON, mended where it was not."""
    tail: bytes = b""
    """The beginning of an event that the text does not end."""
    after_events: bytes | None = None
    """What follows the event array, from its closing bracket; None while the array goes on."""
    closes_more: bool = False
    """More was closed than opened: the text began inside an event, or the array ends in it."""
    quirks: Counter[str] = field(default_factory=Counter[str])

    def add(self, found: "_Found") -> None:
        """Takes more events."""
        self.events += found.events
        self.texts += found.texts


class _Found(NamedTuple):
    """Events, and the text of each."""

    events: list[Event]
    texts: list[bytes]


def read_piece(decoder: Decoder, piece: Piece) -> DecodedPiece:
    """The columns of a piece, by the strict decoder if it parses, else with repairs."""
    if piece.is_last:
        return DecodedPiece(piece.index, Columns(), raw=piece.data)
    for text, quirks in _attempts(piece.data):
        try:
            columns = decoder.decode(text)
        except DECODE_ERRORS:
            continue
        if ("", "") in columns.event_counts:  # objects that are no events, so the piece may lie inside one
            return DecodedPiece(piece.index, Columns(), raw=piece.data)
        extent_ns = None if quirks else columns.extent_ns
        return DecodedPiece(piece.index, columns, quirks=quirks, n_bytes=len(piece.data), extent_ns=extent_ns)
    found = salvage(piece.data)
    is_inside = found.closes_more or (bool(found.tail) and not _begins_event(found.tail))
    if is_inside or any(not event.ph for event in found.events):
        return DecodedPiece(piece.index, Columns(), raw=piece.data)
    return DecodedPiece(piece.index, decoder.columns(found.events), tail=found.tail, quirks=found.quirks)


def _attempts(text: bytes) -> Iterator[tuple[bytes, Counter[str]]]:
    yield text, Counter()
    yield repair(text)


def salvage(text: bytes) -> Salvaged:
    """All whole events of a text that begins between two events; what makes none is counted as broken."""
    result = Salvaged()
    borders = list(_NEXT_EVENT.finditer(text))
    result.quirks["missing-comma"] += sum(b"," not in border.group() for border in borders)
    starts = [0, *(text.index(b"{", border.start()) for border in borders), len(text)]
    budget = _MERGE_BUDGET * len(text)
    i = 0
    while i < len(starts) - 1:
        end = i + 1
        found = _events(text[starts[i] : starts[end]], result.quirks)
        opened = depth(text[starts[i] : starts[end]]) if found is None else 0
        if opened > 0 and budget > 0:
            end, opened = _balanced_end(text, starts, i, opened)
            budget -= starts[end] - starts[i]
            found = _events(text[starts[i] : starts[end]], result.quirks) if opened == 0 else None
        if found is not None:
            result.add(found)
        elif opened > 0 and end == len(starts) - 1:
            result.tail = text[starts[i] :]
        elif (offset := _finish(text[starts[i] : starts[end]], result)) is not None:
            result.after_events = text[starts[i] + offset :]
            break
        else:
            end = i + 1
            result.add(_objects(text[starts[i] : starts[end]], result.quirks))
        i = end
    return result


def _objects(text: bytes, quirks: Counter[str]) -> _Found:
    """The events among what is no event; the rest, if there is any, is one broken event."""
    found = _Found([], [])
    if not text.strip(b" \t\r\n,"):
        return found
    quirks["broken-event"] += 1
    opened = start = 0
    for token in _STRUCTURE.finditer(text):
        if token.group() in _OPENING:
            start = token.start() if opened == 0 else start
            opened += 1
        elif token.group() in _CLOSING:
            opened -= 1
            if opened == 0 and (inside := _events(text[start : token.end()], quirks)):
                for event, event_text in zip(*inside, strict=True):
                    if event.ph:
                        found.events.append(event)
                        found.texts.append(event_text)
    return found


def _balanced_end(text: bytes, starts: list[int], first: int, opened: int) -> tuple[int, int]:
    """The stretch behind the one in which what the first leaves open is closed, and what is open there."""
    end = first + 1
    while opened > 0 and end < len(starts) - 1:
        opened += depth(text[starts[end] : starts[end + 1]])
        end += 1
    return end, opened


def _events(text: bytes, quirks: Counter[str]) -> _Found | None:
    """The events in a text of whole events; None when it is none. Repairs are counted only if they worked."""
    stripped = text.strip(b" \t\r\n,")
    try:
        return _strict_events(stripped)
    except DECODE_ERRORS:
        pass
    repaired, repairs = repair(stripped)
    try:
        found = _strict_events(repaired)
    except DECODE_ERRORS:
        found = _lenient_events(repaired)
        if found is None:
            return None
        repairs["odd-arguments"] += 1
    quirks += repairs
    return found


def _strict_events(text: bytes) -> _Found:
    array = b"[" + text + b"]"
    return _Found(decode_events(array), [bytes(each) for each in decode_texts(array)])


def _lenient_events(text: bytes) -> _Found | None:
    try:
        values: Any = _json.decode(f"[{text.decode(errors='replace')}]")
    except (ValueError, RecursionError):
        return None
    events = list(map(lenient_event, values))
    found = [(event, each) for event, each in zip(events, _lenient_texts(text, values), strict=True) if event]
    return _Found([event for event, _ in found], [each for _, each in found])


def _lenient_texts(text: bytes, values: list[Any]) -> list[bytes]:
    """The text of each value: as it stands where it is JSON but for its types, else written anew."""
    try:
        return [bytes(each) for each in decode_texts(b"[" + text + b"]")]
    except DECODE_ERRORS:
        return [json.dumps(value, default=lambda digits: float(bytes(digits))).encode() for value in values]


def _finish(text: bytes, result: Salvaged) -> int | None:
    """Reads the last events of the array; the offset of its closing bracket, None where that is not in the text."""
    offset = _unmatched(text)
    result.closes_more |= offset is not None
    if offset is None or text[offset : offset + 1] != b"]":
        return None
    before = text[:offset].rstrip()
    found = _events(before, result.quirks)
    if found is None:
        return None
    result.add(found)
    result.quirks["stray-comma"] += before.endswith(b",")
    return offset


def _unmatched(text: bytes) -> int | None:
    """Offset of the first bracket or brace that closes what was opened before the text, outside strings."""
    opened = 0
    for token in _STRUCTURE.finditer(text):
        if token.group() in _OPENING:
            opened += 1
        elif token.group() in _CLOSING:
            opened -= 1
            if opened < 0:
                return token.start()
    return None


def _begins_event(text: bytes) -> bool:
    """Whether a text is the beginning of an event, as far as that can be seen; else it began inside one."""
    opened, has_phase = 0, False
    for token in _STRUCTURE.finditer(text):
        if opened == 0 and token.start() > 0:
            return False  # an event goes on to the end of the text
        has_phase |= opened == 1 and token.group() == b'"ph"'
        opened += (token.group() in _OPENING) - (token.group() in _CLOSING)
    return has_phase


_STRUCTURE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
_OPENING, _CLOSING = (b"{", b"["), (b"}", b"]")
_json = json.JSONDecoder(strict=False, parse_float=lambda digits: msgspec.Raw(digits.encode()))

_TOKEN = re.compile(
    rb'(?P<string>"[^"\\]*(?:\\.[^"\\]*)*")'
    rb"|(?P<number>-?\b(?:inf|infinity|nan)\b)"
    rb"|(?P<stray>,(?=\s*(?:[,\]}]|$)))"
    rb"|(?P<missing>\}(?=\s*\{))",
    re.IGNORECASE | re.DOTALL,
)
_ESCAPE = re.compile(
    rb"""\\(?:(?P<legal>["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}
    |u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})
    |(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|)""",
    re.VERBOSE,
)
"""An escape of a string: as JSON allows it, half of a surrogate pair, which no encoding can hold, or neither."""
_CONTROL = re.compile(rb"[\x00-\x1f]")


def repair(text: bytes) -> tuple[bytes, Counter[str]]:
    """The text with the faults mended that profilers are known to write, and how many of each were met.

    Bytes that are not UTF-8, halves of surrogate pairs, backslashes that JSON does not allow, raw control characters
    in strings, inf and nan, stray and missing commas.
    """
    quirks: Counter[str] = Counter()
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
        quirks["non-utf8"] += 1

    def escape(match: re.Match[bytes]) -> bytes:
        if match["legal"]:
            return match[0]
        if match["half"]:
            quirks["non-utf8"] += 1
            return b"\\ufffd"
        quirks["illegal-escape"] += 1
        return b"\\\\"

    def control(match: re.Match[bytes]) -> bytes:
        quirks["control-character"] += 1
        return b"\\u%04x" % match.group()[0]

    def mend(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if match.lastgroup == "string":
            token = _ESCAPE.sub(escape, token) if b"\\" in token else token
            return _CONTROL.sub(control, token)
        if match.lastgroup == "number":
            quirks["non-finite-number"] += 1
            return b"null"
        quirks["stray-comma" if match.lastgroup == "stray" else "missing-comma"] += 1
        return b"" if match.lastgroup == "stray" else b"},"

    return _TOKEN.sub(mend, text), quirks
