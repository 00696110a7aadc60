"""The costliest findings of the built-in rules, kept with a cached trace: for a summary that must come at once."""

import hashlib
from functools import cache
from pathlib import Path

import polars as pl

from traceql.analyses.summary import Selection
from traceql.errors import TraceqlError
from traceql.resources import resource
from traceql.rules.loading import built_in_rules
from traceql.rules.model import FINDINGS
from traceql.rules.running import run_rules
from traceql.trace import Trace


def top_findings(trace: Trace, selection: Selection | None = None, n: int = 3) -> pl.DataFrame:
    """Table `findings`: the first n rows, in the steps selected; none where the trace cannot be judged."""
    selection = selection or Selection()

    def worked_out() -> dict[str, pl.DataFrame]:
        try:
            return {"findings": run_rules(trace, built_in_rules(), selection=selection).table}
        except TraceqlError:
            return {"findings": FINDINGS.empty()}

    if not n:
        return FINDINGS.empty()
    if selection != Selection():
        return worked_out()["findings"].head(n)
    name = f"findings-{_code()}-{trace.categories.fingerprint}"
    return trace.kept(name, worked_out)["findings"].head(n)


@cache
def _code() -> str:
    """Another text for every other code and rules: a finding depends on nearly all of both."""
    files = [*Path(__file__).parents[1].rglob("*.py"), *resource("rules").rglob("*.yaml")]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
