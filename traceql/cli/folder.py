"""A folder of results that appears whole or not at all."""

import contextlib
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from traceql.errors import OutputError


def check_folder(folder: Path, *, force: bool, is_own: Callable[[Path], bool], sources: Sequence[Path]) -> None:
    """Finds out before the work whether results may be put into a folder of that name.

    Args:
        folder: the folder; missing or empty it may always be made.
        force: whether one that holds earlier results may be replaced.
        is_own: whether a folder holds earlier results and nothing else.
        sources: what is read, which may not lie in what is replaced.

    Raises:
        OutputError: its parent is missing, it is a file, or it holds something that may not be replaced.
    """
    if not folder.resolve().parent.is_dir():
        raise OutputError(f"{folder.parent} is not a folder", "Create it first, or name another folder.")
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise OutputError(f"{folder} exists and is not a folder", "Name another folder.")
    if not any(folder.iterdir()):
        return
    if not force:
        raise OutputError(
            f"{folder} exists and is not empty", "Replace an earlier export with --force, or name another."
        )
    if not is_own(folder):
        raise OutputError(
            f"{folder} holds more than an earlier export", "Only an export is replaced; name another folder."
        )
    if any(folder.resolve() in source.resolve().parents for source in sources if source.exists()):
        raise OutputError(f"{folder} holds the trace itself", "Name another folder.")


@contextlib.contextmanager
def whole_folder(folder: Path) -> Generator[Path]:
    """A folder to write into, which takes the place of `folder` at the end; after a fault all is as it was.

    Raises:
        OutputError: it cannot be written.
    """
    target = folder.resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.mkdir()
        yield part
        _replace(part, target)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror or error}", "Name another folder.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _replace(part: Path, target: Path) -> None:
    """Puts the new folder where the old one is, which comes back if that fails."""
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    if not target.exists():
        part.rename(target)
        return
    target.rename(old)
    try:
        part.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
