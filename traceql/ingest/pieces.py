"""Cuts a stream of JSON text into pieces of whole events.

In valid JSON `}` `,` `{` `"x` (white space anywhere between; x none of white space `: , ] }`) is always structural: it
cannot lie inside a string, whose quotes would be escaped. So a regular expression finds a place to cut. It may lie in
an event's nested arguments; such a piece does not parse alone, and `salvage` puts the halves together again.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

PIECE_BYTES = 1 << 19
"""Least size: pieces of 0.5 to 1 MB stay in the cache while they are decoded."""

_WINDOW_BYTES = 1 << 13
_HEAD_BYTES = 1 << 16
_MAX_HEADER_BYTES = 1 << 28

BOUNDARY = re.compile(rb'\}\s*,\s*\{\s*"[^\s:,\]}]')
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)


@dataclass(frozen=True)
class Piece:
    """A stretch of the event array; the last one may hold the array's end and what follows it."""

    index: int
    data: bytes
    is_last: bool


class PieceReader:
    """Iterates the pieces of one trace."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self.header = b""
        """Everything before the event array; empty for a bare array."""
        self.is_wrapped = False
        """The events stand in an object, under `traceEvents`."""
        self.n_bytes = 0
        """Bytes of JSON read so far."""
        self.head = b""
        """The first bytes of the file, to describe it by when it is no trace."""

    def __iter__(self) -> Iterator[Piece]:
        """The pieces in order. Nothing is yielded when no event array is found."""
        carried = self._find_events()
        if carried is None:
            return
        index = 0
        for block in self._counted_blocks():
            cut = _last_cut(block) if len(carried) + len(block) >= PIECE_BYTES else None
            if cut is None:
                carried += block
                continue
            end, next_start = cut
            yield Piece(index, b"".join((carried, memoryview(block)[:end])), is_last=False)
            carried = block[next_start:]
            index += 1
        yield Piece(index, carried, is_last=True)

    def _counted_blocks(self) -> Iterator[bytes]:
        for block in self._blocks:
            self.n_bytes += len(block)
            yield block

    def _find_events(self) -> bytes | None:
        """Reads up to the event array; returns what was read of it."""
        text = b""
        for block in self._counted_blocks():
            text += block
            self.head = self.head or text[:_HEAD_BYTES]
            if text.lstrip()[:1] == b"[":
                return text.lstrip()[1:]
            found = _events_start(text)
            if found or len(text) > _MAX_HEADER_BYTES:
                break
        found = _events_start(text, anywhere=True)
        if found is None:
            return None
        self.is_wrapped = True
        self.header = text[:found]
        return text[found + 1 :]


def _events_start(text: bytes, *, anywhere: bool = False) -> int | None:
    """Offset of the bracket that opens the event array: a key of the outermost object, else any such key."""
    matches = list(_EVENTS_KEY.finditer(text))
    for match in matches:
        if depth(text[: match.start()]) == 1:
            return match.end() - 1
    return matches[0].end() - 1 if matches and anywhere else None


def depth(text: bytes) -> int:
    """Brackets and braces opened minus those closed, outside strings (one that is not closed ends with the text)."""
    bare = _STRING.sub(b"", text)
    return bare.count(b"{") + bare.count(b"[") - bare.count(b"}") - bare.count(b"]")


def _last_cut(block: bytes) -> tuple[int, int] | None:
    """End of one event and start of the next: the last such pair in the block."""
    for window_start in (max(len(block) - _WINDOW_BYTES, 0), 0):
        found = deque(BOUNDARY.finditer(block, window_start), maxlen=1)
        if found:
            end = found[0].start() + 1
            return end, block.index(b"{", end)
    return None
