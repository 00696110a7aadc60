"""Which stretch of time each piece of a file is about: a second pass need not decode what is far from a window."""

from collections.abc import Callable

import polars as pl

from traceql.arrays import Bools, Ints
from traceql.ingest.pieces import Piece
from traceql.ingest.salvage import DecodedPiece
from traceql.tables import Column, Table

PIECES = Table(
    "pieces",
    "One row per piece of the file (`ingest/pieces.py`), in order. Of the reader alone: no result is made from it.",
    Column("n_bytes", pl.Int64, "Length of its text"),
    Column("first_ns", pl.Int64, "Start of its first event, by the file's clock", nullable=True),
    Column("last_ns", pl.Int64, "End of its last event; both are null where the piece must be read", nullable=True),
)


def piece_extents(pieces: list[DecodedPiece]) -> pl.DataFrame:
    """The `pieces` table.

    Args:
        pieces: all pieces, in order.
    """
    extents = [piece.extent_ns or (None, None) for piece in pieces]
    columns = {
        "n_bytes": [piece.n_bytes for piece in pieces],
        "first_ns": [first for first, _ in extents],
        "last_ns": [last for _, last in extents],
    }
    return PIECES.check(pl.DataFrame(columns, schema=PIECES.schema))


class FarPieces:
    """The pieces of a file that have nothing in common with some stretches of time.

    Args:
        pieces: the `pieces` table of the file.
        meet: which intervals, given by their starts and ends, have time in common with the stretches.
    """

    def __init__(self, pieces: pl.DataFrame, meet: Callable[[Ints, Ints], Bools]) -> None:
        known = pieces.with_row_index("index").drop_nulls()
        ends = (known[name].to_numpy() for name in ("first_ns", "last_ns"))
        self._n_bytes = dict(
            known.filter(~pl.Series(meet(*ends), dtype=pl.Boolean)).select("index", "n_bytes").iter_rows()
        )

    def __contains__(self, piece: Piece) -> bool:
        """Whether it is one of them; no piece of a file that changed its length is."""
        return not piece.is_last and self._n_bytes.get(piece.index) == len(piece.data)
