"""Gates: whether a comparison shows a regression beyond a limit. Only a sure one fails: its interval lies beyond."""

import re
from dataclasses import dataclass

from traceql.analyses import change
from traceql.analyses.change import Interval
from traceql.analyses.diff import Diff, interval_of, median_of
from traceql.units import UNITS_NS

STEP, IDLE = "step", "idle"
"""What else a gate can be about than a kernel category."""

_LIMIT = re.compile(r"\+?(\d+(?:\.\d+)?)\s*(%|ns|us|µs|ms|s)")


@dataclass(frozen=True)
class Gate:
    """A limit for the growth of the median step, or of what a category or idle time takes of a step."""

    name: str
    """`step`, `idle` or a kernel category."""
    amount: float
    """As a share of before, or in ns."""
    is_share: bool

    @classmethod
    def parse(cls, limit: str, name: str = STEP) -> "Gate":
        """The gate of a limit such as `5%` or `+1ms`.

        Raises:
            ValueError: it is no limit; the message says what one looks like.
        """
        found = _LIMIT.fullmatch(limit.strip())
        if not found:
            raise ValueError(f"{limit!r} is not a limit such as 5%, +1ms or 200us")
        amount, unit = float(found[1]), found[2]
        return cls(name, amount / 100, True) if unit == "%" else cls(name, amount * UNITS_NS[unit], False)

    @classmethod
    def parse_named(cls, text: str) -> "Gate":
        """The gate of a text such as `cast:+1ms`.

        Raises:
            ValueError: it is none; the message says what one looks like.
        """
        name, colon, limit = text.rpartition(":")
        if not colon or not name:
            raise ValueError(f"{text!r} is not a gate such as cast:+1ms or idle:+5%")
        return cls.parse(limit, name)


@dataclass(frozen=True)
class Judgement:
    """What a gate says of a comparison."""

    gate: Gate
    before_ns: float
    """Median of a step before."""
    after_ns: float
    limit_ns: float
    """By how much it may grow."""
    interval: Interval | None
    """Of its change, in ns; None where a side has too few steps."""

    @property
    def is_failed(self) -> bool:
        """Whether it surely grew by more than the limit."""
        return self.interval is not None and self.interval.low > self.limit_ns

    @property
    def status(self) -> str:
        """passed, failed, or cannot tell: the interval holds the limit, or there is none."""
        if self.is_failed:
            return "failed"
        return "passed" if self.interval is not None and self.interval.high <= self.limit_ns else "cannot tell"


def judged(diff: Diff, gate: Gate) -> Judgement:
    """What the gate says of the comparison. A category that neither side has did not grow."""
    if gate.name == STEP:
        before, after, interval = diff.before.walls, diff.after.walls, diff.interval
    else:
        key = ("idle", None) if gate.name == IDLE else ("category", gate.name)
        before, after = diff.before.times(*key), diff.after.times(*key)
        has_enough = min(sum(map(len, before)), sum(map(len, after))) >= change.MIN_STEPS
        interval = interval_of(before, after) if has_enough else None
    before_ns = median_of(before)
    limit_ns = gate.amount * before_ns if gate.is_share else gate.amount
    return Judgement(gate, before_ns, median_of(after), limit_ns, interval)


__all__ = ["IDLE", "STEP", "Gate", "Judgement", "judged"]
