"""A decoding process: pieces on standard input, column arrays on standard output.

It is started as a plain subprocess, so nothing of the caller's program runs in it a second time, and it imports no
polars, so it is ready at once.
"""

import gc
import pickle
import struct
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

from traceql.ingest.decode import Decoder
from traceql.ingest.pieces import Piece
from traceql.ingest.salvage import DecodedPiece, read_piece

_HEADER = struct.Struct("<qq?")
_END = _HEADER.pack(-1, 0, False)


class Decoded(NamedTuple):
    """What one process decoded: pieces, and the dictionaries that their codes point into."""

    pieces: list[DecodedPiece]
    names: list[str]
    threads: list[tuple[int | str, int | str]]

    @classmethod
    def of(cls, decoder: Decoder, pieces: list[DecodedPiece]) -> "Decoded":
        """The pieces with the dictionaries of their decoder."""
        return cls(pieces, list(decoder.names), list(decoder.threads))


@contextmanager
def collector_off() -> Generator[None]:
    """The cyclic garbage collector off: events hold no cycles, and walking millions of them costs seconds."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def decode_pieces(pieces: Iterable[Piece]) -> Decoded:
    """Decodes pieces one after the other, in this process."""
    decoder = Decoder()
    with collector_off():
        return Decoded.of(decoder, [read_piece(decoder, piece) for piece in pieces])


def send_piece(pipe: IO[bytes], piece: Piece) -> None:
    """Writes a piece for `receive_pieces`."""
    pipe.write(_HEADER.pack(piece.index, len(piece.data), piece.is_last))
    pipe.write(piece.data)
    pipe.flush()


def send_end(pipe: IO[bytes]) -> None:
    """Says that no more pieces come."""
    pipe.write(_END)
    pipe.flush()


def receive_pieces(pipe: IO[bytes]) -> Iterator[Piece]:
    """Pieces until the end mark.

    Raises:
        EOFError: the other side went away in the middle.
    """
    while True:
        header = pipe.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise EOFError
        index, length, is_last = _HEADER.unpack(header)
        if index < 0:
            return
        yield Piece(index, pipe.read(length), is_last)


def send_decoded(pieces: Iterable[Piece], pipe: IO[bytes]) -> None:
    """Writes each piece as soon as it is decoded, and at last the dictionaries, for `receive_decoded`."""
    decoder = Decoder()
    with collector_off():
        for piece in pieces:
            pickle.dump(read_piece(decoder, piece), pipe, protocol=5)
        pickle.dump(Decoded.of(decoder, []), pipe, protocol=5)
    pipe.flush()


def receive_decoded(pipe: IO[bytes]) -> Decoded:
    """What another process decoded, all of it.

    Raises:
        EOFError: the other side went away in the middle.
    """
    pieces: list[DecodedPiece] = []
    while isinstance(item := pickle.load(pipe), DecodedPiece):  # noqa: S301 - our own process wrote it
        pieces.append(item)
    return item._replace(pieces=pieces)


def main() -> None:
    """Runs one decoding process."""
    try:
        send_decoded(receive_pieces(sys.stdin.buffer), sys.stdout.buffer)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)
