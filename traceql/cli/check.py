"""`traceql check`: what is wrong in a trace, by rules; the exit status says whether it is bad."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceql.cli.request import Request, takes_request
from traceql.errors import RuleError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceql.rules import Finding, Rule, Suppression
    from traceql.trace import Trace

SEVERITIES = ("info", "warning", "critical")
"""As `traceql.rules.SEVERITIES`, which would import polars."""
FORMATS = {"table": None, "json": ".json", "sarif": ".sarif", "junit": ".xml", "markdown": ".md", "github": None}
"""Forms of output, and the suffix of a file's name that implies each."""


@click.command("check", epilog="Example: traceql check trace.json.gz --fail-on critical")
@click.option("--rules", "rule_paths", type=click.Path(path_type=Path), multiple=True, metavar="PATH",
              help="Rules of your own beside the built-in ones: a YAML file or a folder of them.")  # fmt: skip
@click.option("--select", multiple=True, metavar="ID", help="Only this rule; may be given several times.")
@click.option("--ignore", multiple=True, metavar="ID", help="Not this rule; may be given several times.")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE",
              help="Project file with suppressions. [default: traceql.toml here or in a folder above]")  # fmt: skip
@click.option("--fail-on", type=click.Choice([*SEVERITIES, "never"]), default="warning", show_default=True,
              help="Exit with 1 when a finding is at least this severe.")  # fmt: skip
@click.option("--evidence", is_flag=True, help="Show the costliest rows of each finding; json always has them.")
@takes_request(FORMATS)
def command(
    request: Request,
    *,
    rule_paths: tuple[Path, ...],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    config: Path | None,
    fail_on: str,
    evidence: bool,
) -> None:
    """What is wrong in a trace, what it costs and what to do, by rules.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Several, a folder or a pattern are the ranks of a run (--force: even if they look like different jobs).
    A rule that needs what the trace does not hold says so instead of judging. Exit status: 0 fine, 1 a finding
    at or above --fail-on, 2 could not run.
    """
    request.check_output()

    from traceql.categories import load_categories  # noqa: PLC0415 - polars: only when it is used
    from traceql.report.check_formats import FORMATS as WRITERS  # noqa: PLC0415
    from traceql.report.check_page import check_page  # noqa: PLC0415
    from traceql.rules import load_rules, run_rules  # noqa: PLC0415
    from traceql.rules.savings import with_savings  # noqa: PLC0415

    known = load_rules(rule_paths, categories=load_categories(request.loading.categories))
    chosen = chosen_rules(known, select, ignore)
    trace = request.trace()
    selection = request.selection()
    findings = run_rules(trace, chosen, _suppressions(config, known, trace), selection)
    findings = with_savings(trace, findings, selection)
    request.write(
        page=lambda: check_page(findings, with_evidence=evidence),
        table=lambda: findings.table,
        document=lambda: WRITERS[request.form](findings, request.traces),
    )
    click.get_current_context().exit(int(is_failure(findings.found, fail_on)))


def chosen_rules(rules: "Sequence[Rule]", select: "Sequence[str]", ignore: "Sequence[str]") -> "list[Rule]":
    """The rules selected (all unless any is), without those ignored.

    Raises:
        RuleError: there is no rule of that name.
    """
    known = [rule.id for rule in rules]
    for name in (*select, *ignore):
        if name not in known:
            raise RuleError(f"unknown rule {name[:80]!r}", nearest(name, known))
    return [rule for rule in rules if rule.id not in ignore and (not select or rule.id in select)]


def is_failure(findings: "Sequence[Finding]", fail_on: str) -> bool:
    """Whether a finding is at least as severe as `fail_on`; `never` is more than any."""
    ranks = [*SEVERITIES, "never"]
    return any(ranks.index(finding.rule.severity) >= ranks.index(fail_on) for finding in findings)


def _suppressions(config: Path | None, rules: "Sequence[Rule]", trace: "Trace") -> "tuple[Suppression, ...]":
    from traceql.rules import find_config, load_suppressions  # noqa: PLC0415

    path = config or find_config(Path.cwd())
    return load_suppressions(path, rules, trace.categories) if path else ()
