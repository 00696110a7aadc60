"""What became of a step and of what a gate watches, in sentences."""

from typing import Any

import polars as pl

from traceql import fmt
from traceql.analyses.change import Interval
from traceql.analyses.diff import Diff
from traceql.analyses.diff_gates import STEP, Judgement
from traceql.analyses.diff_notes import hidden, idle_delta_ns

Row = dict[str, Any]

_MOST_TOLD = 4
_LEAST_TOLD = 0.005
"""Contributions to the change that the headline tells: as many, each at least this part of all changes added up."""
_BY_ONE_KERNEL = (0.8, 1.25)
"""A category's change is one kernel's where the kernel's is between these parts of it."""


def verdict_line(diff: Diff) -> str:
    """The answer in a sentence: what became of the median step, and the largest contributions to the mean one's change.

    A category goes by the name of a kernel where one new or gone kernel makes its change, unless it is an instance of
    a generic template, whose name says less than the category.
    """
    found = _answer(diff)
    parts = ", ".join(_contributions(diff))
    line = f"{found}; {parts} ms" if parts else found
    broken = ", ".join(diff.differences.filter("breaks")["fact"])
    return f"{line} (not comparable: {broken})" if broken else line


def _answer(diff: Diff) -> str:
    a_ns, b_ns = diff.before.median_wall_ns, diff.after.median_wall_ns
    times = f"{both_ms(a_ns, b_ns)} ms {_basis(diff)}"
    if diff.verdict in ("faster", "slower"):
        longer = "shorter" if diff.verdict == "faster" else "longer"
        ratio = _ratio(max(a_ns, b_ns), min(a_ns, b_ns))
        return f"{ratio}× {diff.verdict} {_step(diff)}, {_share(abs(b_ns / a_ns - 1))} {longer}: {times}"
    if diff.verdict == "same":
        return f"same {_step(diff)}: {times}{_bounds(diff)}"
    reason = diff.reason or ""
    missed = hidden(diff)
    if missed and _may_be_none(diff):
        return f"no {missed}: {_step(diff)} {times}{_bounds(diff)}; {reason}"
    return f"cannot tell whether the {_step(diff)} changed: {times}{_bounds(diff)}; {reason}"


def _may_be_none(diff: Diff) -> bool:
    """Whether no change at all is as likely as any other that the figures allow."""
    if diff.interval is None:
        return abs(diff.delta_ns) <= diff.options.min_effect * diff.before.median_wall_ns
    return diff.interval.low <= 0 <= diff.interval.high


def _basis(diff: Diff) -> str:
    a, b = len(diff.before.walls), len(diff.after.walls)
    return "within these two recordings" if a == b == 1 else f"(medians of {a} and {b} recordings)"


def _bounds(diff: Diff) -> str:
    if diff.interval is None or diff.interval == Interval(0.0, 0.0, 0.0):
        return ""
    digits = digits_of(diff.before.median_wall_ns)
    return f", changed by {signed_ms(diff.interval.low, digits)} to {signed_ms(diff.interval.high, digits)} ms"


def _contributions(diff: Diff) -> list[str]:
    """The largest changes of categories and of idle time, signed, in ms."""
    rows = [
        (_named(diff, row), row["delta_ns"]) for row in diff.waterfall.filter(kind="category").iter_rows(named=True)
    ]
    rows.append(("idle", idle_delta_ns(diff)))
    rows.sort(key=lambda row: (-abs(row[1]), row[0]))
    least_ns = _LEAST_TOLD * sum(abs(delta_ns) for _, delta_ns in rows)
    digits = digits_of(diff.before.median_wall_ns)
    told = [(name, signed_ms(ns, digits)) for name, ns in rows[:_MOST_TOLD] if abs(ns) >= least_ns and ns]
    return [f"{name} {text}" for name, text in told if text.strip("+−0.")]


def _named(diff: Diff, row: Row) -> str:
    """The category, or the name of the one kernel that makes its change."""
    least, most = _BY_ONE_KERNEL
    if row["delta_ns"]:
        share = pl.col("delta_ns") / row["delta_ns"]
        alone = diff.kernels.filter(
            pl.col("category") == row["name"], pl.col("status").is_in(["new", "gone"]), share.is_between(least, most)
        )
        if alone.height == 1 and "<" not in alone["short_name"].item():
            return fmt.visible(alone["short_name"].item())
    return fmt.visible(row["name"])


def _step(diff: Diff) -> str:
    return "step" if diff.stage == "unknown" else f"{fmt.visible(diff.stage)} step"


def digits_of(ns: float) -> int:
    """Decimals of a time in ms."""
    return 1 if abs(ns) >= 10e6 else 2 if abs(ns) >= 1e6 else 3


def both_ms(a_ns: float, b_ns: float) -> str:
    """`84.0 → 18.7`, with the decimals that the longer one deserves."""
    digits = digits_of(max(a_ns, b_ns))
    return f"{a_ns / 1e6:,.{digits}f} → {b_ns / 1e6:,.{digits}f}"


def signed_ms(ns: float, digits: int = 3) -> str:
    """A time in ms with a sign; what rounds to nothing has none."""
    text = f"{abs(ns) / 1e6:,.{digits}f}"
    return text if not text.strip("0.,") else fmt.signed(ns, text)


def _ratio(longer_ns: float, shorter_ns: float) -> str:
    if not shorter_ns:
        return "∞"
    ratio = longer_ns / shorter_ns
    return f"{ratio:,.1f}" if ratio >= 2 else f"{ratio:.2f}"


def _share(share: float) -> str:
    return f"{share * 100:,.0f} %" if share >= 0.0995 else fmt.percent(share)


def gate_line(gate: Judgement) -> str:
    """What a gate says, in a sentence."""
    name = "median step" if gate.gate.name == STEP else fmt.visible(gate.gate.name)
    digits = digits_of(gate.before_ns)
    words = {"passed": "passed", "failed": "failed", "cannot tell": "not failed, but not sure either"}
    allowed = f"{gate.gate.amount * 100:g} %" if gate.gate.is_share else f"{gate.gate.amount / 1e6:g} ms"
    text = f"gate {words[gate.status]}: {name} {both_ms(gate.before_ns, gate.after_ns)} ms, allowed +{allowed}"
    if gate.interval is None:
        return f"{text}; too few steps"
    return f"{text}; it changed by {signed_ms(gate.interval.low, digits)} to {signed_ms(gate.interval.high, digits)} ms"
