"""Running rules over a trace: which rows of which table are at fault, and what they cost."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import polars as pl

from traceql import fmt
from traceql.analyses.attribution import Attribution
from traceql.analyses.needs import DID_NOT_OCCUR, NEEDS, timed_steps
from traceql.analyses.results import RESULTS, STEP
from traceql.analyses.summary import Selection, selected_steps
from traceql.categories import Categories
from traceql.errors import MissingDataError, RuleError
from traceql.rules.conditions import POLARS_FAULTS, first_line
from traceql.rules.loading import Frame
from traceql.rules.messages import rendered
from traceql.rules.model import EVIDENCE, SEVERITIES, Abstained, Finding, Findings, Row, Rule, Suppressed
from traceql.rules.suppressions import Suppression
from traceql.trace import Trace

N_EVIDENCE = 10
"""Rows that a finding carries with it."""
MAX_FINDINGS = 50
"""Of one rule, the costliest; a `group_by` of a key would give one a kernel."""

_COST, _ORDER = "cost of the row", "order of the row"
"""Columns beside those of the table, which have no spaces."""


def run_rules(
    trace: Trace,
    rules: Sequence[Rule],
    suppressions: Sequence[Suppression] = (),
    selection: Selection | None = None,
) -> Findings:
    """What the rules find in a trace or run, in the steps selected.

    Raises:
        MissingDataError: the selection names no step.
        RuleError: a suppression cannot be applied.
    """
    selection = selection or Selection()
    chosen = selected_steps(Attribution.of(trace).steps, selection)
    bench = _Bench(trace, selection, timed_steps(chosen))
    found: list[Finding] = []
    abstained: list[Abstained] = []
    passed: list[Rule] = []
    notes: list[str] = []
    for rule in rules:
        reason = bench.unmet(rule)
        if reason is not None:
            abstained.append(Abstained(rule, reason))
            continue
        mine = sorted(bench.findings(rule), key=_order)
        if len(mine) > MAX_FINDINGS:
            notes.append(f"{rule.id}: {len(mine) - MAX_FINDINGS:,} more findings of this rule are not shown")
        found += mine[:MAX_FINDINGS]
        if not mine:
            passed.append(rule)
    n_ranks = bench.steps["rank"].n_unique()
    if found and n_ranks > 1:
        notes.append(f"Costs are means over the steps of {n_ranks} ranks; a message is about the rank with most of it")
    ordered = Findings(tuple(sorted(found, key=_order)), tuple(abstained), (), tuple(passed), tuple(notes))
    return _suppressed(ordered, suppressions)


def _order(finding: Finding) -> tuple[Any, ...]:
    cost = finding.cost_ns_per_step
    severity = -SEVERITIES.index(finding.rule.severity)
    return (cost is None, -(cost or 0), severity, finding.rule.id, finding.message, repr(finding.group))


def _suppressed(findings: Findings, suppressions: Sequence[Suppression]) -> Findings:
    found: list[Finding] = []
    accepted: list[Suppressed] = []
    for finding in findings.found:
        reasons = [each.reason for each in suppressions if not each.is_expired and each.covers(finding)]
        if reasons:
            accepted.append(Suppressed(finding, reasons[0]))
        else:
            found.append(finding)
    expired = tuple(each.expired_note for each in suppressions if each.is_expired)
    return replace(findings, found=tuple(found), suppressed=tuple(accepted), notes=findings.notes + expired)


def fired(rows: pl.DataFrame, rule: Rule, frame: Frame) -> pl.DataFrame:
    """The rows of the rule's table on which it fires."""
    with faults_of(rule):
        return rows.filter(frame.condition(rule.when).expr.fill_null(False))


@contextmanager
def faults_of(rule: Rule) -> Generator[None]:
    """What goes wrong on the rows of a trace, and did not on a row of nulls, is an error of the rule."""
    try:
        yield
    except POLARS_FAULTS as error:
        message = f"rule {rule.id} fails on this table: {first_line(error)}"
        raise RuleError(message, "Leave it out with --ignore.") from error


@dataclass(frozen=True, eq=False)
class _Bench:
    """A trace with the tables that rules have asked for, each made once."""

    trace: Trace
    selection: Selection
    steps: pl.DataFrame
    """The steps selected that costs are counted over."""

    @cached_property
    def _tables(self) -> dict[str, pl.DataFrame | str]:
        """Made so far; the reason where one cannot be made."""
        return {}

    @cached_property
    def _reasons(self) -> dict[str, str | None]:
        return {}

    @property
    def categories(self) -> Categories:
        return self.trace.categories

    def unmet(self, rule: Rule) -> str | None:
        """Why the rule cannot judge the trace; None where it can."""
        result = RESULTS[rule.table]
        reason = self._first_unmet((*rule.needs, *result.needs))
        if reason is not None:
            return reason
        rows = self._table(rule.table)
        if isinstance(rows, str):
            return rows
        # no row because nothing was recorded to make one from is not the same as nothing found
        why_empty = ("kernels", *(need for need in result.empty_without if need not in DID_NOT_OCCUR))
        return self._first_unmet(why_empty) if rows.is_empty() else None

    def _first_unmet(self, needs: Iterable[str]) -> str | None:
        for need in needs:
            if need not in self._reasons:
                reason = NEEDS[need](self.trace)
                self._reasons[need] = reason and fmt.visible(reason)
            if self._reasons[need] is not None:
                return self._reasons[need]
        return None

    def _table(self, name: str) -> pl.DataFrame | str:
        if name not in self._tables:
            try:
                self._tables[name] = RESULTS[name].make(self.trace, self.selection)
            except MissingDataError as error:
                self._tables[name] = error.message
        return self._tables[name]

    def findings(self, rule: Rule) -> Iterator[Finding]:
        """What the rule finds: one finding for all rows, or one a group."""
        rows = self._table(rule.table)
        assert isinstance(rows, pl.DataFrame), "asked before whether the rule can judge"  # noqa: S101 - for the checker
        frame = Frame.of(RESULTS[rule.table].table, self.categories)
        at_fault = fired(rows, rule, frame)
        if at_fault.is_empty():
            return
        at_fault = self._ordered(at_fault, rule, frame)
        groups = at_fault.partition_by(rule.group_by, maintain_order=True) if rule.group_by else [at_fault]
        for group in groups:
            yield self._finding(rule, group)

    def _ordered(self, rows: pl.DataFrame, rule: Rule, frame: Frame) -> pl.DataFrame:
        """The rows with their cost, the worst first; ties are broken by all columns, so that order in is no matter."""
        unknown = pl.lit(None, pl.Float64)
        cost = frame.figure(rule.cost).expr if rule.cost else unknown
        order = frame.figure(rule.order_by).expr if rule.order_by else cost
        plain = [name for name in rows.columns if not rows.schema[name].is_nested()]
        with faults_of(rule):
            rows = rows.with_columns(cost.alias(_COST), order.alias(_ORDER))
        return rows.sort(_ORDER, *plain, descending=[True, *[False] * len(plain)], nulls_last=True)

    def _finding(self, rule: Rule, rows: pl.DataFrame) -> Finding:
        cost_ns, share = self._cost(rows)
        figures: Row = {
            "n_rows": rows.height,
            "n_steps": _distinct(rows, "step"),
            "n_layers": _distinct(rows, "layer"),
            "cost_ns_per_step": cost_ns,
            "share": share,
        }
        worst = rows.drop(_COST, _ORDER).row(0, named=True)
        values = _values(worst, figures, has_cost=rule.cost is not None) | {"per": self._per}
        return Finding(
            rule=rule,
            worst=worst,
            message=rendered(rule.message, values),
            fix=rendered(rule.fix, values),
            evidence=_evidence(rows),
            **figures,
        )

    @property
    def _per(self) -> str:
        """What figures a step of casts are over; those of other tables are of incomplete steps if none is complete."""
        return "in the whole trace" if self.steps.is_empty() else "a step"

    def _cost(self, rows: pl.DataFrame) -> tuple[float | None, float | None]:
        """The cost of the rows, mean over the complete steps, in ns and as a share of their wall; null without."""
        keys = [name for name in STEP if name in rows.columns]
        counted = rows.join(self.steps, on=keys, how="semi") if "step" in keys else rows
        costs = counted[_COST].drop_nulls()
        if costs.is_empty() or self.steps.is_empty():
            return None, None
        total = float(costs.sum())
        return total / self.steps.height, total / float(self.steps["wall_ns"].sum())


def _values(worst: Row, figures: Row, *, has_cost: bool) -> Row:
    """What a message may name. A column called `share` is the row's, unless the rule says what a row costs."""
    return {**figures, **worst} | (figures if has_cost else {})


def _distinct(rows: pl.DataFrame, column: str) -> int | None:
    return rows[column].drop_nulls().n_unique() if column in rows.columns else None


def _evidence(rows: pl.DataFrame) -> pl.DataFrame:
    """The costliest rows as table `evidence`, without `finding`."""
    names = [name for name in ("short_name", "name", "op", "category") if name in rows.columns]
    sources = {"ns": _COST, **({"name": names[0]} if names else {})}
    columns = [
        (pl.col(source) if source in rows.columns else pl.lit(None)).cast(column.dtype).alias(column.name)
        for column in EVIDENCE
        if column.name != "finding"
        for source in [sources.get(column.name, column.name)]
    ]
    costliest = rows.sort(_COST, descending=True, nulls_last=True, maintain_order=True)
    return costliest.head(N_EVIDENCE).select(columns)
