"""Lengths of time as text."""

import re

UNITS_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)")


def parse_duration(text: str) -> int:
    """Nanoseconds of a text such as `12.5ms`.

    Raises:
        ValueError: it is none; the message says what one looks like.
    """
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a time such as 12.5ms, 300us or 1s")
    whole, _, decimals = found[1].partition(".")
    scale = UNITS_NS[found[2]]
    return int(whole) * scale + (int(decimals) * scale // 10 ** len(decimals) if decimals else 0)
