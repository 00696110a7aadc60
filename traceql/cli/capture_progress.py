"""How far a capture is, told on standard error: as lines in a log, as a status on a terminal."""

import contextlib
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.status import Status

PLAIN_INTERVAL_S = 15.0
"""How often a wait is told where standard error is no terminal."""


class _Lines:
    """Progress as lines, for a log."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        self._last = time.monotonic()
        click.echo(self._prefix + text, err=True)

    def wait(self, text: str) -> None:
        if time.monotonic() - self._last >= PLAIN_INTERVAL_S:
            self.say(text)


class _Terminal:
    """Progress for a person: what is done stays, what is waited for is replaced."""

    def __init__(self, prefix: str, status: "Status") -> None:
        self._prefix = prefix
        self._status = status

    def say(self, text: str) -> None:
        self._status.console.print(self._prefix + text, markup=False, highlight=False)

    def wait(self, text: str) -> None:
        from rich.text import Text  # noqa: PLC0415 - only on a terminal

        self._status.update(Text(self._prefix + text))


@contextlib.contextmanager
def told_progress(prefix: str = "") -> Generator[_Lines | _Terminal]:
    """Who tells the user how far a capture is, with that prefix: on a terminal as a status, else as lines."""
    if not sys.stderr.isatty():
        yield _Lines(prefix)
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal

    with Console(stderr=True).status("") as status:
        yield _Terminal(prefix, status)
