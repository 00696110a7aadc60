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
from typing import IO

from traceql.ingest.decode import Decoder
from traceql.ingest.pieces import Piece
from traceql.ingest.salvage import DecodedPiece, read_piece

_HEADER = struct.Struct("<qq?")
_END = _HEADER.pack(-1, 0, False)


class Decoded:
    """What one process decoded: pieces, and the dictionaries that their codes point into."""

    def __init__(self, decoder: Decoder, pieces: list[DecodedPiece]) -> None:
        self.names = list(decoder.names)
        self.threads = list(decoder.threads)
        self.pieces = pieces


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
        return Decoded(decoder, [read_piece(decoder, piece) for piece in pieces])


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


def main() -> None:
    """Runs one decoding process."""
    try:
        decoded = decode_pieces(receive_pieces(sys.stdin.buffer))
        with collector_off():
            pickle.dump(decoded, sys.stdout.buffer, protocol=5)
        sys.stdout.buffer.flush()
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)
