"""Which files are meant by paths, folders and patterns."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from traceql.errors import InputError

_TRACE_NAME = re.compile(r"[^.].*\.json(\.(gz|zst|xz))?", re.DOTALL)
_ENDING = re.compile(r"(\.pt)?(\.trace)?\.json(\.(gz|zst|xz))?\Z", re.IGNORECASE)


@dataclass(frozen=True)
class FoundFile:
    """A file that should be a trace, and the folder or pattern that named it; None: it was named itself."""

    path: Path
    found_by: str | None = None


def trace_files(paths: Sequence[str | Path]) -> list[FoundFile]:
    """The files that paths, folders and patterns name, each once, also when links or several paths lead to it.

    Raises:
        InputError: nothing is named, a folder holds no trace file, or a pattern matches none.
    """
    found: dict[object, FoundFile] = {}
    for file in (file for path in paths for file in _found(str(path))):
        key = _identity(file.path)
        if key not in found or file.found_by is None:
            found[key] = file
    if not found:
        raise InputError("no trace is named", "Name a file, a folder or a pattern.")
    if len(found) > 1 and any(str(file.path) == "-" for file in found.values()):
        raise InputError("standard input can only be read alone", "Name the files of a run.")
    return list(found.values())


def _found(text: str) -> list[FoundFile]:
    path = Path(text)
    if path.is_dir():
        files = _traces_in(path)
        if not files:
            raise no_trace_in(text)
        return [FoundFile(file, text) for file in files]
    if not any(mark in text for mark in "*?[") or path.exists():
        return [FoundFile(path)]
    matches = sorted(map(Path, glob(text, recursive=True)), key=natural)  # noqa: PTH207 - a Path's is relative only
    files = [file for match in matches for file in (_traces_in(match) if match.is_dir() else [match])]
    if not files:
        raise InputError(f"{text} matches no file", "Check the pattern; ** goes into sub-folders.")
    return [FoundFile(file, text) for file in files]


def _traces_in(folder: Path) -> list[Path]:
    """The files of a folder that are named like traces; files in its sub-folders are not."""
    try:
        return sorted((p for p in folder.iterdir() if is_trace_name(p.name) and p.is_file()), key=natural)
    except OSError as error:
        raise InputError(f"{folder} cannot be listed: {error.strerror}", "Check its permissions.") from error


def natural(path: Path) -> list[tuple[int, str]]:
    """Sorts by folder and name, numbers by value: TP-2 before TP-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def is_trace_name(name: str) -> bool:
    """Whether a file in a folder is taken for a trace, by its name."""
    return _TRACE_NAME.fullmatch(name) is not None


def stem_of(name: str) -> str:
    """The name of a file without what says that it is a trace."""
    return _ENDING.sub("", name)


def _identity(path: Path) -> object:
    """What is the same for two paths to one file."""
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return str(path)
    return (stat.st_dev, stat.st_ino) if path.is_file() else str(path)


def no_trace_in(folder: str) -> InputError:
    """The error that a folder has no trace, with the sub-folders that may have some."""
    hint = "A trace is named *.json, *.json.gz, *.json.zst or *.json.xz."
    below: list[str] = []
    with suppress(OSError, InputError):
        below = [path.name for path in sorted(Path(folder).iterdir()) if path.is_dir() and _traces_in(path)]
    if below:
        more = f" and {len(below) - 3} more" if len(below) > 3 else ""
        hint = f"Sub-folders hold some: {', '.join(below[:3])}{more}. Name one, or give a pattern with **."
    return InputError(f"{folder} holds no trace", hint)
