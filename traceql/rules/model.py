"""What a rule is, and what running rules finds."""

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from traceql.tables import Column, Table

SEVERITIES = ("info", "warning", "critical")
"""From the least to the most severe."""

Row = dict[str, Any]

FINDINGS = Table(
    "findings",
    "One row per finding, the costliest first.",
    Column("rule", pl.String, "The rule that fired"),
    Column("severity", pl.String, ", ".join(SEVERITIES)),
    Column("message", pl.String, "What is wrong, in a sentence about its worst row"),
    Column("why", pl.String, "Why it matters"),
    Column("fix", pl.String, "What to do about it"),
    Column("cost_ns_per_step", pl.Float64, "What it costs a step: mean over the complete steps", nullable=True),
    Column("share", pl.Float64, "The same as a share of their wall", nullable=True),
    Column("n_rows", pl.Int64, "Rows of the rule's table that fired"),
    Column("n_steps", pl.Int64, "Step numbers that they are in", nullable=True),
    Column("n_layers", pl.Int64, "Layers that they are in", nullable=True),
    Column("links", pl.List(pl.String), "Where to read more"),
)

EVIDENCE = Table(
    "evidence",
    "The rows behind a finding, the costliest first; null where the rule's table has no such column.",
    Column("finding", pl.Int64, "Row of `findings`, 0-based"),
    Column("rank", pl.Int64, "Process rank", nullable=True),
    Column("device", pl.Int64, "GPU ordinal", nullable=True),
    Column("step", pl.Int64, "Step", nullable=True),
    Column("layer", pl.Int64, "Layer", nullable=True),
    Column("kernel_id", pl.Int64, "GPU activity", nullable=True),
    Column("name", pl.String, "Name of the kernel, call or category", nullable=True),
    Column("ns", pl.Float64, "What the row costs", nullable=True),
)


@dataclass(frozen=True)
class Saving:
    """What the fix would change: kernels that get shorter, or that others replace. Kept for a replay."""

    kernels: str
    """SQL over a row of `kernels`: those that change."""
    factor: float | None = None
    """Their durations are multiplied by this."""
    bytes: str | None = None
    """SQL over the rule's worst row: bytes that what replaces a kernel moves."""
    rows: str | None = None
    """The same in rows, of the size that the kernel handles now."""
    bandwidth_bytes_per_s: float | None = None
    """At which they are moved; null is the device's."""


@dataclass(frozen=True)
class Rule:
    """One rule, as its file has it. Conditions are SQL over one row of the table."""

    id: str
    severity: str
    table: str
    when: str
    message: str
    why: str
    fix: str
    fires: tuple[Row, ...]
    """Examples: rows on which it fires. Columns that they leave out are null."""
    silent: tuple[Row, ...]
    group_by: tuple[str, ...] = ()
    cost: str | None = None
    order_by: str | None = None
    needs: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    saving: Saving | None = None


@dataclass(frozen=True)
class Saved:
    """What the fix of a finding would save of a step, as a replay of the recording says."""

    text: str
    kernel_saved_ns: float
    """GPU time a step that the fix takes away, whether or not the step gets shorter."""
    saved_ns: float
    """How much shorter the median step gets, as recorded."""
    graph_saved_ns: float | None
    """How much shorter it gets where steps are launched as graphs before and after; null where they are."""
    limit: str
    """What sets the pace then: host, gpu, communication, dependency or unknown."""


@dataclass(frozen=True, eq=False)
class Finding:
    """A rule that fired, on one group of rows."""

    rule: Rule
    worst: Row
    """The row that the message is about."""
    message: str
    fix: str
    n_rows: int
    n_steps: int | None
    n_layers: int | None
    cost_ns_per_step: float | None
    share: float | None
    evidence: pl.DataFrame
    """Table `evidence` without `finding`: the costliest rows."""
    saved: Saved | None = None
    """What its fix would save; None unless it was worked out, and where the rule does not say."""

    @property
    def group(self) -> Row:
        """What its rows have in common: the columns of the rule's `group_by`."""
        return {name: self.worst[name] for name in self.rule.group_by}

    def row(self) -> Row:
        """Its row of table `findings`."""
        own = ("message", "fix", "cost_ns_per_step", "share", "n_rows", "n_steps", "n_layers")
        of_rule = {"rule": self.rule.id, "severity": self.rule.severity, "why": self.rule.why}
        return of_rule | {name: getattr(self, name) for name in own} | {"links": list(self.rule.links)}


@dataclass(frozen=True)
class Abstained:
    """A rule that could not judge the trace, and why."""

    rule: Rule
    reason: str


@dataclass(frozen=True, eq=False)
class Suppressed:
    """A finding that somebody has accepted, and why."""

    finding: Finding
    reason: str


@dataclass(frozen=True, eq=False)
class Findings:
    """What running rules over a trace gave."""

    found: tuple[Finding, ...]
    """The costliest first; without a cost last, the most severe first."""
    abstained: tuple[Abstained, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    passed: tuple[Rule, ...] = ()
    """Rules that judged the trace and found nothing."""
    notes: tuple[str, ...] = field(default=())
    """What else is to be said: suppressions that have expired, findings left out, what the costs of a run are."""

    @property
    def table(self) -> pl.DataFrame:
        """Table `findings`."""
        return FINDINGS.check(pl.DataFrame([finding.row() for finding in self.found], schema=FINDINGS.schema))

    @property
    def evidence(self) -> pl.DataFrame:
        """Table `evidence`."""
        parts = [
            finding.evidence.with_columns(finding=pl.lit(number, pl.Int64)).select(EVIDENCE.names)
            for number, finding in enumerate(self.found)
        ]
        return EVIDENCE.check(pl.concat([EVIDENCE.empty(), *parts]))
