"""What goes wrong while capturing, and the optional packages that it needs."""

import importlib
from types import ModuleType

from traceql.errors import TraceqlError


class CaptureError(TraceqlError):
    """The server did not do what a capture needs, or cannot be asked to."""


def optional(name: str) -> ModuleType:
    """A package of the extra `capture`, imported now.

    Raises:
        CaptureError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CaptureError(f"{name} is not installed", "pip install 'traceql[capture]'") from error


def printable(text: str) -> str:
    """The text with every character that could act on a terminal replaced; lines stay lines."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
