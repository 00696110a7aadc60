"""Changes for a replay from SQL over kernels, and what the fix of a finding would save."""

from dataclasses import dataclass, replace

import polars as pl

from traceql import fmt
from traceql.analyses.device_peaks import device_peaks
from traceql.analyses.layering import Layering
from traceql.analyses.replay_costs import Changes, Scaling
from traceql.analyses.replay_graph import ReplayGraph
from traceql.analyses.results import RESULTS
from traceql.analyses.summary import Selection
from traceql.analyses.whatif import NO_GAIN_FRAC, WhatIf, predicted_wall, what_if
from traceql.errors import MissingDataError, RuleError
from traceql.rules.conditions import condition
from traceql.rules.loading import Frame
from traceql.rules.model import Finding, Findings, Row, Saved, Saving
from traceql.rules.running import faults_of
from traceql.rules.values import closed_values
from traceql.tables import KERNELS
from traceql.trace import Trace

_STEP_COLUMNS = {"step": pl.Int64()}
_LAYER_COLUMNS = {
    "section": pl.String(),
    "model_pass": pl.Int64(),
    "layer": pl.Int64(),
    "layer_type": pl.Int64(),
    "block": pl.String(),
}
LIMIT_WORDS = {
    "host": "the host sets the pace",
    "gpu": "the GPU sets the pace",
    "communication": "communication sets the pace",
    "dependency": "waits between streams set the pace",
    "unknown": "what sets the pace is unknown",
}
"""What limits a step, as the end of a sentence."""


# --- predicates over kernels


def matching_kernels(trace: Trace, text: str) -> pl.Series:
    """kernel_id of the GPU activities for which SQL over a row of `kernels` is true.

    Args:
        trace: the trace or run.
        text: SQL of one row, as in rules. Besides the columns of `kernels` it may name step, and section, model_pass,
            layer, layer_type and block, as in `kernel_layers`.

    Raises:
        RuleError: it is not such SQL, or fails on these rows.
        MissingDataError: it is true for none.
    """
    schema = {**KERNELS.schema, **_STEP_COLUMNS, **_LAYER_COLUMNS}
    wanted = condition(text, schema, closed_values("kernels", trace.categories))
    names = wanted.expr.meta.root_names()
    rows = _rows(trace, set(names))
    try:
        found = rows.filter(wanted.expr.fill_null(False))["kernel_id"]
    except pl.exceptions.PolarsError as error:
        raise RuleError(
            f"{text[:80]!r} fails on these kernels", "Compare columns with values of their type."
        ) from error
    if found.is_empty():
        raise MissingDataError(
            f"no kernel of the trace meets {text[:80]!r}", "See the categories and names of `traceql summarize`."
        )
    return found


def _rows(trace: Trace, names: set[str]) -> pl.DataFrame:
    """The kernels with those of the columns that are asked for."""
    rows = trace.kernels.select("kernel_id", *sorted(names & set(KERNELS.names) - {"kernel_id"})).collect()
    if "step" in names:
        placed = ReplayGraph.of(trace).activities.select("kernel_id", "step")
        rows = rows.join(placed, on="kernel_id", how="left", validate="1:1")
    layers = sorted(names & set(_LAYER_COLUMNS))
    if layers:
        placed = Layering.of(trace).placed.select("kernel_id", *layers)
        rows = rows.join(placed, on="kernel_id", how="left", validate="1:1")
    return rows


def moved_ns(trace: Trace, n_bytes: float, bandwidth_bytes_per_s: float | None = None) -> float:
    """How long it takes to move bytes, at a bandwidth or at the peak of the trace's slowest device.

    Raises:
        MissingDataError: no bandwidth is given, and a device is unknown.
    """
    rate = bandwidth_bytes_per_s if bandwidth_bytes_per_s is not None else peak_bytes_per_s(trace)
    return n_bytes / rate * 1e9


def peak_bytes_per_s(trace: Trace) -> float:
    """The peak memory bandwidth of the trace's devices, of several kinds the least.

    Raises:
        MissingDataError: it is not known of one of them.
    """
    peaks = device_peaks(trace)["peak_bytes_per_s"]
    if peaks.is_empty() or peaks.null_count():
        raise MissingDataError("the memory bandwidth of the device is not known", "Give one with --bandwidth, in GB/s.")
    return float(peaks.min())  # pyright: ignore[reportArgumentType] - of floats that are there it is one


# --- what a finding's fix saves


@dataclass(frozen=True)
class FindingSaving:
    """What the fix of a finding saves of a step, as recorded and if steps were launched as CUDA graphs."""

    as_recorded: WhatIf
    graph_saved_ns: float | None
    """How much shorter it gets where steps are launched as graphs before and after the fix; null where they are."""

    @property
    def kernel_saved_ns(self) -> float:
        """GPU time a step that the fix takes away, whether or not the step gets shorter."""
        return self.as_recorded.kernel_saved_ns

    @property
    def saved_ns(self) -> float:
        """How much shorter the median step gets, as recorded."""
        return self.as_recorded.saved_ns

    @property
    def text(self) -> str:
        """`66.0 ms of GPU time a step; the host sets the pace: saves 2.0 ms as recorded, 65.0 ms under CUDA graphs`."""
        found = self.as_recorded
        gain = self.saved_ns >= NO_GAIN_FRAC * found.recorded_wall_ns
        saves = f"saves {fmt.duration(self.saved_ns)}" if gain else "saves nothing"
        line = f"{fmt.duration(self.kernel_saved_ns)} of GPU time a step; {LIMIT_WORDS[found.limit]}: {saves}"
        line += f" of {fmt.duration(found.recorded_wall_ns)}" if self.graph_saved_ns is None else " as recorded"
        if self.graph_saved_ns is not None:
            line += f", {fmt.duration(self.graph_saved_ns)} under CUDA graphs"
        return line


def saving_of(trace: Trace, finding: Finding, selection: Selection | None = None) -> FindingSaving | None:
    """What the fix of a finding saves; null where its rule does not say, or it cannot be replayed.

    Raises:
        RuleError: a condition or figure of the rule fails on these rows.
    """
    saving = finding.rule.saving
    if saving is None:
        return None
    try:
        scaling = _scaling(trace, saving, finding)
        if scaling is None:
            return None
        as_recorded = what_if(trace, Changes((scaling,)), selection)
        if not _is_eager(trace):
            return FindingSaving(as_recorded, None)
        walls = [predicted_wall(trace, Changes(fix, graph=True), selection) for fix in ((), (scaling,))]
        return FindingSaving(as_recorded, walls[0] - walls[1])
    except MissingDataError:
        return None


def with_savings(trace: Trace, findings: Findings, selection: Selection | None = None) -> Findings:
    """The findings, with what the fix of each would save where its rule says.

    Raises:
        RuleError: as `saving_of`.
    """

    def with_saving(finding: Finding) -> Finding:
        found = saving_of(trace, finding, selection)
        if found is None:
            return finding
        limit = found.as_recorded.limit
        saved = Saved(found.text, found.kernel_saved_ns, found.saved_ns, found.graph_saved_ns, limit)
        return replace(finding, saved=saved)

    return replace(findings, found=tuple(map(with_saving, findings.found)))


def _scaling(trace: Trace, saving: Saving, finding: Finding) -> Scaling | None:
    kernels = matching_kernels(trace, saving.kernels)
    if saving.factor is not None:
        return Scaling(kernels, factor=saving.factor, text=saving.kernels)
    n_bytes = _figure(trace, saving.bytes, finding) if saving.bytes is not None else None
    if n_bytes is None:  # rows of the size that the kernel handles now: that size is recorded nowhere
        return None
    return Scaling(kernels, length_ns=moved_ns(trace, n_bytes, saving.bandwidth_bytes_per_s), text=saving.kernels)


def _figure(trace: Trace, text: str, finding: Finding) -> float | None:
    """SQL over the rule's worst row; null where that does not tell."""
    table = RESULTS[finding.rule.table].table
    frame = Frame.of(table, trace.categories)
    row: Row = finding.worst
    rows = pl.DataFrame({name: [row.get(name)] for name in table.names}, schema=table.schema)
    with faults_of(finding.rule):
        return rows.select(frame.figure(text).expr.alias("value"))["value"].item()


def _is_eager(trace: Trace) -> bool:
    """Whether a step of the trace is launched without a graph."""
    inside = ReplayGraph.of(trace).activities.filter(pl.col("step").is_not_null() & pl.col("section").is_null())
    by_step = inside.group_by("rank", "step").agg(pl.col("in_graph").any())
    return bool((~by_step["in_graph"]).any())
