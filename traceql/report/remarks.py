"""One sentence each about what sets the pace (the host, the other ranks), and about the layers."""

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from traceql import fmt
from traceql.analyses.layer_stats import LayerStats, layer_stats
from traceql.analyses.pace import idle_by_step
from traceql.analyses.rank_stats import RunSummary
from traceql.analyses.step_comm import step_comm
from traceql.analyses.summary import Summary
from traceql.report.idle_words import pace_lines
from traceql.report.layers_words import layers_line
from traceql.report.stage_words import stage_name
from traceql.report.summary_words import has_stages
from traceql.trace import Trace


def remarks(trace: Trace, summary: Summary, layers: LayerStats) -> tuple[str, ...]:
    """Sentences for the head of a summary, of the steps that it covers; none where no step has a window.

    Of steps that are not complete only the pace is told. Waiting is told from transfer only where there are several
    ranks.
    """
    steps = idle_by_step(trace).join(summary.steps, on=["rank", "device", "step"], how="semi")
    pace = pace_lines(steps, step_comm(trace))
    if summary.scope != "steps":
        return pace
    lines = [*pace, *_layers_lines(trace, summary, layers)]
    communication = summary.groups.filter(pl.col("group") == "nccl")
    if communication.height:
        lines.append(_waiting(trace, summary, communication["kernel_ns"].item() / summary.n_windows))
    return tuple(line for line in lines if line)


def _layers_lines(trace: Trace, summary: Summary, layers: LayerStats) -> Iterator[str | None]:
    """The layers of a step; of each stage apart, whose layers may be of different kernels."""
    if not has_stages(summary):
        yield layers_line(layers)
        return
    for stage in summary.stages["stage"]:
        line = layers_line(layer_stats(trace, replace(summary.selection, stage=stage)))
        yield line and f"{stage_name(stage)}: {line}"


def _waiting(trace: Trace, summary: Summary, comm_ns_per_step: float) -> str | None:
    if isinstance(summary, RunSummary):
        from traceql.report.rank_report import RankReport  # noqa: PLC0415 - not needed for one rank
        from traceql.report.ranks_words import comm_line  # noqa: PLC0415

        return comm_line(RankReport.of(trace, summary.selection))
    amount = fmt.duration(comm_ns_per_step)
    return f"communication: {amount} a step; of one rank alone, waiting cannot be told from transfer"
