"""The user's cache folder, and data files remembered there in a form that is read in a millisecond.

Parsing the YAML of the kernel categories takes longer than summarizing a trace from the cache.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import platformdirs

MEMO_SUFFIX = ".traceql-memo"
_LAYOUT = b"1"
"""Raised when the same file is to be read into something else."""
_NOWHERE = Path(os.devnull) / "traceql"
"""Stands for the cache of a user without a home: below a file there can be no folder."""

Value = TypeVar("Value")


def cache_dir() -> Path:
    """The folder of the cache, which need not exist: TRACEQL_CACHE_DIR, else the user's cache folder."""
    if chosen := os.environ.get("TRACEQL_CACHE_DIR"):
        return Path(chosen)
    try:
        folder = Path(platformdirs.user_cache_dir("traceql"))
    except RuntimeError:  # no home; older releases give a path that begins with a literal ~
        return _NOWHERE
    return folder if folder.is_absolute() else _NOWHERE


def remembered(path: Path, shape: type[Value], make: Callable[[], Value]) -> Value:
    """What `make` makes of the data file at `path`, remembered by the file's content.

    Args:
        path: the file; a changed content is another memory.
        shape: the type of the value, which msgspec can write and read.
        make: reads the file.

    A memory that cannot be written or read is done without.
    """
    content = hashlib.sha256(_LAYOUT + path.read_bytes()).hexdigest()[:32]
    memo = cache_dir() / f"{path.stem}-{content}{MEMO_SUFFIX}"
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(memo.read_bytes(), type=shape)
    value = make()
    with suppress(OSError):
        _write(memo, msgspec.json.encode(value))
    return value


def _write(memo: Path, data: bytes) -> None:
    memo.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=memo.parent, suffix=".traceql-unfinished", delete=False) as file:
        try:
            file.write(data)
            file.close()
            Path(file.name).replace(memo)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise
