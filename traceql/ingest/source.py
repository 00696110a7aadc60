"""Opens a trace, wherever it comes from and however it is compressed, and yields its bytes in blocks.

The format is told from the first bytes, never from the name, and nothing seeks: a pipe is as good as a file.
What is no trace is refused, with what it looks like; what is cut off or damaged is read as far as it goes.
"""

import lzma
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, Protocol, Self

import zstandard
from isal import igzip_lib

from traceql.errors import InputError
from traceql.ingest.looks import BOM, GZIP_MAGICS, RECORD, XZ_MAGICS, ZSTD_MAGICS, looks_like

_BLOCK_BYTES = 1 << 20
_SNIFF_BYTES = 1 << 13
"""Read before the compression is known, so no more than the least `_Codec.feed_bytes`."""
_PIECE_BYTES = 1 << 16
"""Most bytes a decompressor gives at once: what a damaged spot can take with it."""

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
        GZIP_MAGICS,
        lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP),
        igzip_lib.IsalError,  # pyright: ignore[reportArgumentType] - the stub declares an instance
        feed_bytes=1 << 16,
        trailer_bytes=8,
    ),
    _Codec(
        "zstd",
        ZSTD_MAGICS,
        _ZstdFrame,
        zstandard.ZstdError,
        feed_bytes=1 << 13,
        trailer_bytes=4,
    ),
    _Codec(
        "xz",
        XZ_MAGICS,
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
        first = next(blocks, b"").removeprefix(BOM)
        if not first:
            raise InputError(f"{self._title} is empty", "Was the recording stopped, and the trace written whole?")
        while first.isspace():  # JSON may begin with any amount of it
            first = next(blocks, b"")
            if not first:
                raise InputError(f"{self._title} holds only white space", RECORD)
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
