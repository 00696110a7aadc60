"""All that the HTML page of a trace or run is made of, worked out once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traceql.analyses.casts import CastReport, cast_report
from traceql.analyses.layer_stats import LayerStats, layer_stats
from traceql.analyses.pace import Pace, pace
from traceql.analyses.rank_stats import RunSummary, summarize_run
from traceql.analyses.summary import Selection, Summary
from traceql.report.figures.palette import palette
from traceql.report.rank_report import RankReport
from traceql.rules import Findings, built_in_rules, run_rules
from traceql.rules.model import Rule
from traceql.trace import Trace

Tell = Callable[[str], None]
"""Told what is being worked out."""


def _nobody(what: str) -> None:
    """Told, does nothing."""


@dataclass(frozen=True)
class Material:
    """All that the page is made of, worked out once."""

    trace: Trace
    selection: Selection
    summary: Summary
    layers: LayerStats
    pace: Pace
    casts: CastReport
    findings: Findings
    ranks: RankReport | None
    """Of a run only."""
    colors: dict[str, str]
    """Of each category."""

    @classmethod
    def of(
        cls,
        trace: Trace,
        selection: Selection | None = None,
        rules: Sequence[Rule] | None = None,
        tell: Tell | None = None,
    ) -> "Material":
        """Works it out.

        Args:
            trace: the trace or run.
            selection: the steps to look at, else all.
            rules: for the findings; the built-in ones unless given.
            tell: is told what comes next.

        Raises:
            MissingDataError: the selection names no step.
        """
        selection = selection or Selection()
        say = tell or _nobody
        say("steps")
        summary = summarize_run(trace, selection)
        say("layers")
        layers = layer_stats(trace, selection)
        say("idle time")
        found_pace = pace(trace, selection)
        say("casts")
        casts = cast_report(trace, selection)
        say("findings")
        findings = run_rules(trace, built_in_rules() if rules is None else rules, selection=selection)
        say("ranks")
        ranks = RankReport.of(trace, selection) if isinstance(summary, RunSummary) else None
        colors = palette(trace.categories.categories)
        return cls(trace, selection, summary, layers, found_pace, casts, findings, ranks, colors)

    @property
    def has_gpu_time(self) -> bool:
        """Whether there is a window to speak of."""
        return self.summary.n_windows > 0
