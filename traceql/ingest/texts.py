"""The events of a trace together with their texts: a second pass over a file, for what writes events as they stand.

The same events as the reader finds, in the order of the file. Of a file that needs mending each text is the mended
one, so that it is JSON.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from traceql.ingest.decode import DECODE_ERRORS
from traceql.ingest.events import Event, decode_events, decode_texts
from traceql.ingest.pieces import Piece, PieceReader
from traceql.ingest.salvage import repair, salvage

_phase = attrgetter("ph")


@dataclass(frozen=True)
class Batch:
    """Some events that follow each other."""

    events: list[Event]
    _array: bytes
    """The events as a JSON array, where their texts were not taken from it yet."""
    _texts: list[bytes] | None = None

    def texts(self) -> Sequence[bytes]:
        """The text of each event, from its brace to its brace: bytes, or views that are as good."""
        return decode_texts(self._array) if self._texts is None else self._texts


class TextReader:
    """Iterates the events of one trace in batches; what stands around them is known when they have all been seen."""

    def __init__(self, blocks: Iterator[bytes], far: Container[Piece] = ()) -> None:
        """Args: the bytes of the file, and pieces whose events nobody wants: they are not decoded."""
        self._pieces = PieceReader(blocks)
        self._far = far
        self.after_events: bytes | None = None
        """What follows the event array, from its closing bracket; None where the file ends before."""

    @property
    def header(self) -> bytes:
        """Everything before the event array's bracket; empty for a bare array."""
        return self._pieces.header

    @property
    def is_wrapped(self) -> bool:
        """The events stand in an object, under `traceEvents`."""
        return self._pieces.is_wrapped

    def __iter__(self) -> Iterator[Batch]:
        """The events, in order."""
        carried = b""
        for piece in self._pieces:
            is_far = piece in self._far
            whole = None if piece.is_last or is_far else _whole(piece.data)
            if is_far or whole is not None:
                if carried:
                    yield self._mended(carried)[0]
                    carried = b""
                if whole is not None:
                    yield whole
                continue
            batch, carried = self._mended(b",".join((carried, piece.data)) if carried else piece.data)
            yield batch
            if self.after_events is not None:
                return

    def _mended(self, text: bytes) -> tuple[Batch, bytes]:
        """The events of a text that is not all whole events, and the beginning of the one that it does not end."""
        found = salvage(text)
        self.after_events = found.after_events
        return Batch(found.events, b"", list(map(_utf8, found.texts))), found.tail


def _whole(text: bytes) -> Batch | None:
    """The events of a text of nothing but whole events; None where it is none, or has to be mended."""
    array = b"[" + text + b"]"
    try:
        if not array.isascii():
            array.decode()
        events = decode_events(array)
    except DECODE_ERRORS:
        return None
    is_odd = "" in set(map(_phase, events)) and not all(event.ph or event.cat for event in events)
    return None if is_odd else Batch(events, array)


def _utf8(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError:
        return repair(text)[0]
    return text
