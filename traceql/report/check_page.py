"""The page of `traceql check`, and a finding in one line: what fired, what it costs, what to do.

Order: the headline, the findings (the costliest first), what was suppressed, what could not be judged.
"""

from collections import Counter
from collections.abc import Iterator

from traceql import fmt
from traceql.report.page import Column, Section, TextTable
from traceql.rules import SEVERITIES, Finding, Findings, Row, Rule

_NOUNS = {"info": ("info", "infos"), "warning": ("warning", "warnings"), "critical": ("critical", "critical")}


def heading(finding: Finding) -> str:
    """`critical whole-pool-kv-cast, 64.600 ms a step (69.3 %)`."""
    text = f"{finding.rule.severity} {finding.rule.id}"
    return f"{text}, {cost(finding)}" if finding.cost_ns_per_step is not None else text


def cost(finding: Finding) -> str:
    """What a finding costs a step, and the share of its wall."""
    return f"{fmt.duration(finding.cost_ns_per_step)} a step ({fmt.percent(finding.share)})"


def check_page(findings: Findings, *, with_evidence: bool = False) -> list[Section]:
    """The sections of the page."""
    return [
        headline(findings),
        *(finding_section(finding, with_evidence=with_evidence) for finding in findings.found),
        *_suppressed(findings),
        *_abstained(findings),
    ]


def headline(findings: Findings) -> Section:
    """How many findings of which severity, and of how many rules."""
    counts = Counter(finding.rule.severity for finding in findings.found)
    kinds = [f"{counts[name]} {_NOUNS[name][counts[name] != 1]}" for name in reversed(SEVERITIES) if counts[name]]
    text = fmt.plural(len(findings.found), "finding") if findings.found else "No findings"
    text += f": {', '.join(kinds)}" if kinds else ""
    others = [f"{fmt.plural(len(findings.passed), 'rule')} found nothing"]
    others += [f"{fmt.plural(len(findings.abstained), 'rule')} could not judge"] if findings.abstained else []
    return Section(lines=(f"{text} ({', '.join(others)})",), notes=findings.notes)


def finding_section(finding: Finding, *, with_evidence: bool = False) -> Section:
    """One finding: what is wrong, why it matters, what to do, where it was seen."""
    worth = [f"Worth: {finding.saved.text} (by replay)."] if finding.saved else []
    notes = [*worth, f"Why: {finding.rule.why}", f"Fix: {finding.fix}", f"Seen in {', '.join(_extent(finding))}."]
    notes += [f"See {link}" for link in finding.rule.links]
    return Section(
        heading(finding),
        lines=(finding.message,),
        table=_evidence(finding) if with_evidence else None,
        notes=tuple(notes),
        is_warning=finding.rule.severity == "critical",
    )


def _extent(finding: Finding) -> Iterator[str]:
    yield fmt.plural(finding.n_rows, "row") + f" of table {finding.rule.table}"
    if finding.n_steps:
        yield fmt.plural(finding.n_steps, "step")
    if finding.n_layers:
        yield fmt.plural(finding.n_layers, "layer")


def _evidence(finding: Finding) -> TextTable:
    """The costliest rows, with the columns of which something is known."""
    known = [name for name in finding.evidence.columns if finding.evidence[name].null_count() < finding.evidence.height]
    columns = tuple(_COLUMNS[name] for name in known)
    rows = finding.evidence.select(known).iter_rows(named=True)
    return TextTable(columns, tuple(tuple(_cell(name, row[name]) for name in known) for row in rows))


_COLUMNS = {
    "rank": Column("rank", "right", drop=1),
    "device": Column("device", "right", drop=2),
    "step": Column("step", "right"),
    "layer": Column("layer", "right"),
    "kernel_id": Column("kernel_id", "right", drop=3),
    "name": Column("name", fit="middle", is_code=True),
    "ns": Column("cost", "right"),
}
"""How the columns of table `evidence` are shown."""


def _cell(name: str, value: float | str | None) -> str:
    if value is None:
        return fmt.UNKNOWN
    if isinstance(value, str):
        return fmt.visible(value)
    return fmt.duration(value) if name == "ns" else str(value)


def rule_page(rule: Rule) -> list[Section]:
    """One rule, whole: `traceql rules show`."""
    facts = {
        "table": rule.table,
        "when": _sql(rule.when),
        "group by": ", ".join(rule.group_by),
        "cost": _sql(rule.cost),
        "order by": _sql(rule.order_by),
        "needs": ", ".join(rule.needs),
        "message": rule.message,
        "why": rule.why,
        "fix": rule.fix,
        "saving": _saving(rule),
        "links": " ".join(rule.links),
        "fires on": "\n".join(map(_example, rule.fires)),
        "silent on": "\n".join(map(_example, rule.silent)),
    }
    rows = tuple((name, text) for name, text in facts.items() if text)
    return [Section(f"{rule.id} ({rule.severity})", table=TextTable((Column(""), Column("", fit="wrap")), rows))]


def _sql(text: str | None) -> str:
    return fmt.visible(" ".join((text or "").split()))


def _saving(rule: Rule) -> str:
    saving = rule.saving
    if saving is None:
        return ""
    if saving.factor is not None:
        return f"{_sql(saving.kernels)}: times {saving.factor:g}"
    amount = f"{_sql(saving.bytes)} bytes" if saving.bytes is not None else f"{_sql(saving.rows)} rows"
    rate = saving.bandwidth_bytes_per_s
    return f"{_sql(saving.kernels)}: {amount} instead" + (f" at {fmt.value('bytes_per_s', rate)}" if rate else "")


def _example(row: Row) -> str:
    texts = (f"{name} {'null' if value is None else fmt.visible(str(value))}" for name, value in row.items())
    return ", ".join(texts) or "(all null)"


def _suppressed(findings: Findings) -> Iterator[Section]:
    if findings.suppressed:
        rows = tuple((each.finding.rule.id, fmt.visible(each.reason)) for each in findings.suppressed)
        title = f"Suppressed: {fmt.plural(len(rows), 'finding')}"
        yield Section(title, table=TextTable((Column("rule"), Column("reason", fit="wrap")), rows))


def _abstained(findings: Findings) -> Iterator[Section]:
    if findings.abstained:
        rules_by_reason: dict[str, list[str]] = {}
        for each in findings.abstained:
            rules_by_reason.setdefault(fmt.visible(each.reason), []).append(each.rule.id)
        rows = tuple((reason, ", ".join(rules)) for reason, rules in rules_by_reason.items())
        title = f"Not judged: {fmt.plural(len(findings.abstained), 'rule')}"
        yield Section(title, table=TextTable((Column("because", fit="wrap"), Column("rules", fit="wrap")), rows))
