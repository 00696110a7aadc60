"""Decimal microseconds, as text, to whole nanoseconds, exactly.

Kineto writes `"ts": 5126475014085.949`. A binary double of that is off by up to 250 ns for absolute times, so the
digits are read as an integer and scaled by the number of decimals.
"""

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

import numpy as np

from traceql.arrays import Ints

MISSING = -(2**63)
"""Stands for null in integer arrays on their way to a table; no id and no time can have this value."""

_MAX_WHOLE_DIGITS = 16
_NEWLINE, _DOT, _NINE = b"\n.9"
_SCALE = np.array([1000, 100, 10, 1])


def parse_us(texts: Sequence[bytes]) -> Ints:
    """Nanoseconds of each decimal number of microseconds; `MISSING` where the text is no finite number.

    A JSON string that holds a number counts as one. Digits below a nanosecond are rounded half to even.
    """
    if not texts:
        return np.empty(0, np.int64)
    joined = b"\n".join(texts)
    decimals = _decimals(joined, len(texts))
    if decimals is None:
        return np.array([_parse_one(bytes(text)) for text in texts], np.int64)
    return np.fromstring(joined.replace(b".", b""), np.int64, sep="\n") * _SCALE[decimals]


def _decimals(joined: bytes, n_texts: int) -> Ints | None:
    """Number of decimals of each line, 0 to 3; None unless all are plain numbers that fit 64 bits as ns."""
    if joined.translate(None, b"0123456789.\n"):
        return None
    chars = np.frombuffer(joined, np.uint8)
    ends = np.append(np.flatnonzero(chars == _NEWLINE), len(joined))
    lengths = np.diff(ends, prepend=-1) - 1
    if len(ends) != n_texts or lengths.min() < 1:
        return None
    if lengths.min() > 4 and joined.count(b".") == n_texts and (chars[ends - 4] == _DOT).all():
        decimals = np.full(n_texts, 3)  # as Kineto writes them
        whole = lengths - 4
    else:
        dots = np.flatnonzero(chars == _DOT)
        rows = np.searchsorted(ends, dots)
        if np.any(np.diff(rows) == 0):
            return None
        decimals = np.zeros(n_texts, np.int64)
        decimals[rows] = ends[rows] - dots - 1
        whole = lengths - decimals
        whole[rows] -= 1
    if whole.min() < 1 or whole.max() > _MAX_WHOLE_DIGITS or decimals.max() > 3:
        return None
    overflows = (whole == _MAX_WHOLE_DIGITS) & (chars[ends - lengths] == _NINE)
    return None if overflows.any() else decimals


def _parse_one(text: bytes) -> int:
    try:
        value = Decimal(text.strip(b'" \t\r\n').decode("ascii")) * 1000
    except (InvalidOperation, UnicodeDecodeError):
        return MISSING
    if not value.is_finite() or abs(value) >= -MISSING:
        return MISSING
    return int(value.to_integral_value(ROUND_HALF_EVEN))
