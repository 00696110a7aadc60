"""Numbers to text, by the unit suffix of the column they come from. Unknown is `—`, never 0."""

import math
import re
from collections.abc import Callable

Number = int | float
Formatter = Callable[[Number], str]

UNKNOWN = "—"
ELLIPSIS = "…"


def value(column: str, number: Number | str | bool | None) -> str:
    """The text of one value of a column, with its unit: `value("wall_ns", 84_025_000)` is `84.025 ms`.

    Null, NaN and infinity are unknown; a text stays as it is, with control characters made visible.
    """
    if isinstance(number, bool):
        return "yes" if number else "no"
    if isinstance(number, str):
        return visible(number)
    return _known(number, _formatter(column))


def ms(ns: Number | None) -> str:
    """Nanoseconds as milliseconds to the microsecond, without unit: for a column that has it in its title."""
    return _known(ns, lambda known: f"{known / 1e6:,.3f}")


def us(ns: Number | None) -> str:
    """Nanoseconds as microseconds with one decimal, without unit."""
    return _known(ns, lambda known: f"{known / 1e3:,.1f}")


def duration(ns: Number | None) -> str:
    """Nanoseconds with the unit that suits their size: `950 ns`, `12.3 µs`, `84.025 ms`, `12.500 s`."""
    return _known(ns, _duration)


def part_of(part_ns: Number, whole_ns: Number) -> str:
    """A time as a part of another: `64.6 of 93.2 ms`."""
    if whole_ns < 1e6:
        return f"{duration(part_ns)} of {duration(whole_ns)}"
    digits = 1 if whole_ns >= 10e6 else 2
    return f"{part_ns / 1e6:,.{digits}f} of {whole_ns / 1e6:,.{digits}f} ms"


def percent(share: Number | None) -> str:
    """A fraction (0 to 1) as a percentage with one decimal; what would round to zero is `<0.1 %`."""
    return _known(share, _percent)


def rounded_percent(share: Number | None) -> str:
    """The same without decimals where it has two digits before them: for sentences."""
    return _known(share, lambda known: f"{known * 100:.0f} %" if known >= 0.0995 else _percent(known))


def signed(number: Number, text: str) -> str:
    """The text of a number's size with the number's sign."""
    return f"{'−' if number < 0 else '+'}{text}"


def count(number: Number | None) -> str:
    """A count with thousands separators; one decimal only where it is not whole."""
    return _known(number, _count)


def size(n_bytes: Number | None) -> str:
    """Bytes in decimal units, three digits: `512 B`, `5.24 kB`, `856 MB`."""
    return _known(n_bytes, lambda known: _scaled(known, "B"))


def plural(number: int, noun: str, nouns: str = "") -> str:
    """A count and its noun: `1 step`, `29 steps`, `2 batches`."""
    return f"{count(number)} {noun if number == 1 else nouns or noun + 's'}"


def _known(number: Number | None, form: Formatter) -> str:
    return UNKNOWN if number is None or not math.isfinite(number) else form(number)


def _duration(ns: Number) -> str:
    size_ns = abs(ns)
    if size_ns >= 10e9:
        return f"{ns / 1e9:,.3f} s"
    if size_ns >= 999_950:
        return f"{ns / 1e6:,.3f} ms"
    return f"{ns / 1e3:.1f} µs" if size_ns >= 1000 else f"{_count(ns)} ns"


def _percent(share: Number) -> str:
    sign = "-" if share < 0 else ""
    return f"{sign}<0.1 %" if 0 < abs(share) < 0.0005 else f"{share * 100:,.1f} %"


def _count(number: Number) -> str:
    return f"{round(number, 1):,}".removesuffix(".0")


def _scaled(number: Number, unit: str) -> str:
    prefixes = ("", "k", "M", "G", "T", "P")
    power = 0
    while abs(number) >= 999.5 and power < len(prefixes) - 1:
        number, power = number / 1000, power + 1
    digits = 0 if power == 0 or abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:,.{digits}f} {prefixes[power]}{unit}"


_BY_SUFFIX: tuple[tuple[str, Formatter], ...] = (
    ("bytes_per_s", lambda rate: _scaled(rate, "B/s")),
    ("tokens_per_s", lambda rate: f"{rate:,.1f} tokens/s"),
    ("_ns", _duration),
    ("ns_per_step", _duration),
    ("bytes", lambda n_bytes: _scaled(n_bytes, "B")),
    ("share", _percent),
    ("_frac", _percent),
)


def _formatter(column: str) -> Formatter:
    return next((form for suffix, form in _BY_SUFFIX if column.endswith(suffix)), _count)


# C0 and C1 controls, line separators, and the marks that reorder or hide text: in a name they could rewrite
# the screen (ANSI escapes) or show another name than the one recorded.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with control characters and ANSI escapes spelled out, on one line: a newline becomes `\n`."""
    return _INVISIBLE.sub(lambda match: ascii(match[0])[1:-1], text)
