"""What the critical path of a step is spent in, in one sentence and by what limits it."""

from typing import Any

import polars as pl

from traceql import fmt
from traceql.analyses.critical_path import LIMITS, CriticalPath
from traceql.report import numbers

Row = dict[str, Any]

_IN_WORDS = {
    "host": "the host",
    "gpu": "the GPU's work",
    "communication": "communication",
    "dependency": "waits between streams",
    "unknown": "what is not recorded",
}
_GAPS = "gaps between the GPU's activities"
"""In which it does nothing that is recorded, so that they are not its work."""


def path_line(found: CriticalPath) -> str:
    """`the critical path of a step: 99.7 % the GPU's work, 0.2 % waits between streams, 0.1 % the host`."""
    is_gap = pl.col("kind") == "gap"
    words = pl.when(is_gap).then(pl.lit(_GAPS)).otherwise(pl.col("limit").replace_strict(_IN_WORDS))
    shares = found.parts.group_by(words=words).agg(pl.sum("share")).sort("share", "words", descending=[True, False])
    told = ", ".join(f"{fmt.percent(part)} {words}" for words, part in shares.iter_rows() if part and part > 0)
    other_ns, wall_ns = numbers.total(found.steps["other_rank_ns"]), numbers.total(found.steps["wall_ns"])
    line = f"the critical path of a step: {told or fmt.UNKNOWN}"
    if other_ns and wall_ns:
        line += f"; {fmt.rounded_percent(other_ns / wall_ns)} of it on another rank"
    return line


def limit_rows(found: CriticalPath) -> list[Row]:
    """Each limit with its time on the paths."""
    sums = {
        limit: (float(part["ns_per_step"].sum()), float(part["share"].sum()))
        for (limit,), part in found.parts.group_by("limit")
    }
    rows = [(limit, *sums.get(limit, (0.0, 0.0))) for limit in LIMITS]
    return [{"limit": limit, "ns_per_step": ns, "share": part} for limit, ns, part in rows]
