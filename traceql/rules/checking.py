"""`traceql.check`: what the rules find in a trace, and what mending it would save."""

from collections.abc import Sequence
from pathlib import Path

from traceql.analyses.summary import Selection
from traceql.rules.loading import load_rules
from traceql.rules.model import Findings
from traceql.rules.running import run_rules
from traceql.rules.savings import with_savings
from traceql.trace import Trace


def check(trace: Trace, *, rules: Sequence[str | Path] = (), selection: Selection | None = None) -> Findings:
    """What the built-in rules and those of your own find in a trace or run, as `traceql check` does.

    Args:
        trace: the trace or run.
        rules: files of rules, or folders of them, beside the built-in ones.
        selection: the steps that are judged.

    `table` of the result has a row for each finding, the costliest first. Suppressions are not applied.

    Raises:
        RuleError: a rule is wrong; the message begins with file:line:column.
        MissingDataError: the selection names no step.
    """
    known = load_rules([Path(path) for path in rules], categories=trace.categories)
    return with_savings(trace, run_rules(trace, known, selection=selection), selection or Selection())
