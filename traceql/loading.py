"""How the files of a trace or run are read; light, so that a command can say it before polars is imported."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[int, int | None], None]
"""Called with the bytes read so far of all files, and their size where it is known."""


@dataclass(frozen=True)
class Loading:
    """How files are read; `traceql.load_run` says what each of it means."""

    force: bool = False
    categories: Path | None = None
    cache: bool = True
    strict: bool = False
    progress: Progress | None = None
