"""Texts of events on disk, in a file without a name, while it is found out which of them stay and how they change."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Self

import numpy as np

from traceql.arrays import Bools, Ints
from traceql.slicing.events import Rows

_MEMORY_BYTES = 64 << 20
"""Up to this size no disk is used."""
_BLOCK_EVENTS = 4096


class Store(AbstractContextManager["Store"]):
    """Events that were taken: their texts, and a row for each."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115 - closed by __exit__
        self._rows: list[Rows] = []
        self._lengths: list[Ints] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, rows: Rows, texts: Sequence[bytes]) -> None:
        """Takes events."""
        self._rows.append(rows)
        self._lengths.append(np.fromiter((memoryview(text).nbytes for text in texts), np.int64, len(texts)))
        self._file.write(b"".join(texts))

    def rows(self) -> Rows:
        """A row for each event, in order."""
        self._rows = [Rows.joined(self._rows)]
        return self._rows[0]

    def texts(self, stays: Bools) -> Iterator[tuple[Ints, list[bytes]]]:
        """The rows and the texts of the events that stay, in order, some thousand at a time."""
        lengths = np.concatenate([np.empty(0, np.int64), *self._lengths])
        self._file.seek(0)
        for first in range(0, len(lengths), _BLOCK_EVENTS):
            ends = np.cumsum(lengths[first : first + _BLOCK_EVENTS])
            block = self._file.read(int(ends[-1]))
            chosen = np.flatnonzero(stays[first : first + _BLOCK_EVENTS])
            starts = (ends - lengths[first : first + _BLOCK_EVENTS])[chosen].tolist()
            yield first + chosen, [block[a:b] for a, b in zip(starts, ends[chosen].tolist(), strict=True)]
