"""The exceptions traceql raises on purpose: each says what and where, and what to do about it."""

import difflib
from collections.abc import Collection


class TraceqlError(Exception):
    """Base of every error that is the input's or the caller's, not a defect of traceql.

    Args:
        message: what is wrong, and where.
        hint: what to do about it, one sentence; empty when there is nothing to advise.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class InputError(TraceqlError):
    """The input cannot be read as a trace, or (in strict mode) not without loss."""


class MissingDataError(TraceqlError):
    """The trace is fine, but does not hold what was asked for."""


class RuleError(TraceqlError):
    """A rule or category file is wrong."""


class QueryError(TraceqlError):
    """A query is not one, or names what is not there."""


class OutputError(TraceqlError):
    """The result cannot be written where it was asked for."""


def nearest(name: str, known: Collection[str]) -> str:
    """Advice for a name that is not known: the nearest one, or all."""
    close = difflib.get_close_matches(name[:80], known, n=1, cutoff=0.5)
    return f"Did you mean {close[0]}?" if close else f"Known: {', '.join(known)}."
