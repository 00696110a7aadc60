"""A trace as it is written: what stands before the events, the events, what stands behind; packed as its name says."""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import zstandard

from traceql.ingest.salvage import repair
from traceql.ingest.texts import TextReader

_BLOCK_BYTES = 1 << 20
_GZIP_LEVEL, _ZSTD_LEVEL = 6, 3
_BARE = (b"[\n", b"\n]\n")
_WRAPPED = (b'{"traceEvents": [\n', b"\n]}\n")


def frame_of(reader: TextReader) -> tuple[bytes, bytes]:
    """What stands before and behind the events of a file that was read: as it stands there, mended if it is no JSON."""
    if not reader.is_wrapped:
        return _BARE
    before, behind = reader.header + b"[\n", b"\n  " + (reader.after_events or b"]\n}").rstrip() + b"\n"
    for mended in ((before, behind), (repair(before)[0], repair(behind)[0]), (before, _WRAPPED[1])):
        if _keys(*mended) is not None:
            return mended
    return _WRAPPED


def _keys(before: bytes, behind: bytes) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(before + behind)
    except (ValueError, RecursionError):
        return None
    keys = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return keys if keys.get("traceEvents") == [] else None


def joined(before: bytes, events: Iterable[bytes], behind: Callable[[], bytes]) -> Iterator[bytes]:
    """The document's bytes, in blocks.

    Args:
        before: what stands before the events, with the bracket.
        events: their texts.
        behind: what stands behind them, asked for when all are written.
    """
    held, size = [before], 0
    separator = b"  "
    for event in events:
        held += (separator, event)
        separator = b",\n  "
        size += len(event)
        if size >= _BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    held.append(behind())
    yield b"".join(held)


class _Packer(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


class _Plain:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


def _gzip() -> _Packer:
    return zlib.compressobj(_GZIP_LEVEL, wbits=zlib.MAX_WBITS | 16)


def _zstd() -> _Packer:
    return zstandard.ZstdCompressor(_ZSTD_LEVEL).compressobj()


_PACKERS: dict[str, Callable[[], _Packer]] = {".gz": _gzip, ".zst": _zstd}


def packed(blocks: Iterable[bytes], output: Path | None) -> Iterator[bytes]:
    """The blocks as the file's name has it: gzip for `.gz`, zstd for `.zst`."""
    packer = _PACKERS.get(output.suffix.lower() if output else "", _Plain)()
    for block in blocks:
        yield packer.compress(block)
    yield packer.flush()
