"""What steps would take if some costs were others: a replay of the recording with these changed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from traceql.analyses.critical_path import LIMITS, check_steps, counted_windows, graph_notes, path_parts, paths
from traceql.analyses.replay import Costs, Replay
from traceql.analyses.replay_costs import GRAPH_GAP_NS, GRAPH_LATENCY_NS, GRAPH_LAUNCH_NS, Changes, changed, may_wait
from traceql.analyses.replay_graph import ReplayGraph
from traceql.analyses.summary import Selection
from traceql.ingest.meta import TraceMeta
from traceql.ingest.quirks import Quirk
from traceql.tables import BATCH_SIZE, DEVICE, RANK, STAGE, STEP, Column, Table
from traceql.trace import Trace

LEAST_HOST_FACTOR = 0.05
"""A host is not slowed more than that by a profiler."""
NO_GAIN_FRAC = 0.01
"""A change of the wall below this is none: steps of one recording differ by more."""
RANGE_FRAC = 0.05
"""A part of the step that may be waiting for ranks not given, from which on a prediction is a range."""

WHATIF_STEPS = Table(
    "whatif_steps",
    "One row per complete, separable step counted. Sorted by rank, device, step.",
    RANK,
    DEVICE,
    STEP,
    STAGE,
    BATCH_SIZE,
    Column("recorded_wall_ns", pl.Int64, "Wall as recorded"),
    Column("replayed_wall_ns", pl.Int64, "Wall of the replay with nothing changed"),
    Column("predicted_wall_ns", pl.Int64, "Wall of the replay with the changes"),
    Column("recorded_kernel_ns", pl.Int64, "Kernel time of what the step launched, as recorded"),
    Column("predicted_kernel_ns", pl.Int64, "The same with the changes; of a matched collective only its transfer"),
)

WHATIF_LIMITS = Table(
    "whatif_limits",
    "One row per limit: its part of the critical paths, as recorded and with the changes.",
    Column("limit", pl.String, ", ".join(LIMITS)),
    Column("recorded_ns_per_step", pl.Float64, "Time on the path as recorded: mean over the steps counted"),
    Column("recorded_share", pl.Float64, "The same as a share of the wall", nullable=True),
    Column("predicted_ns_per_step", pl.Float64, "Time on the path with the changes"),
    Column("predicted_share", pl.Float64, "The same as a share of the wall", nullable=True),
)

_STEP = ["rank", "device", "step"]


@dataclass(frozen=True)
class WhatIf:
    """What the steps counted take as recorded, and with changes. Walls are medians over those steps, of all ranks."""

    trace: TraceMeta
    selection: Selection
    changes: Changes
    recorded_wall_ns: float
    replayed_wall_ns: float
    """With nothing changed: how well the replay gives the recording back."""
    predicted_wall_ns: float
    least_wall_ns: float | None
    """The same if no collective waited for a rank that is not given; None where all ranks are, or nothing changes."""
    kernel_saved_ns: float
    """How much shorter the activities that a step launches get by the scalings, added up: mean over the steps."""
    batch_size: float | None
    """Median over the steps, where all tell it."""
    steps: pl.DataFrame
    """Table `whatif_steps`: the decode steps among those selected; all where none is one."""
    limits: pl.DataFrame
    """Table `whatif_limits`."""
    recorded_parts: pl.DataFrame
    """Table `path_parts` as recorded."""
    bottlenecks: pl.DataFrame
    """Table `path_parts` with the changes: what to look at next."""
    notes: tuple[str, ...]
    quirks: tuple[Quirk, ...]

    @property
    def saved_ns(self) -> float:
        """How much shorter a step gets; negative: longer."""
        return self.recorded_wall_ns - self.predicted_wall_ns

    @property
    def is_gain(self) -> bool:
        """Whether the step gets shorter by more than steps differ anyway."""
        return self.saved_ns >= NO_GAIN_FRAC * self.recorded_wall_ns

    @property
    def is_range(self) -> bool:
        """Whether what collectives would wait, which is not known, makes a difference: from least to predicted wall."""
        least_ns = self.least_wall_ns
        return least_ns is not None and self.predicted_wall_ns - least_ns >= RANGE_FRAC * self.recorded_wall_ns

    @property
    def recorded_limit(self) -> str:
        """What the critical path is spent in most, as recorded."""
        return _most(self.limits, "recorded_ns_per_step")

    @property
    def limit(self) -> str:
        """What it is spent in most with the changes."""
        return _most(self.limits, "predicted_ns_per_step")

    @property
    def recorded_tokens_per_s(self) -> float | None:
        """Batch size over wall: of an engine that gives each request one token a step."""
        return _rate(self.batch_size, self.recorded_wall_ns)

    @property
    def predicted_tokens_per_s(self) -> float | None:
        """The same with the changes."""
        return _rate(self.batch_size, self.predicted_wall_ns)

    @property
    def most_tokens_per_s(self) -> float | None:
        """The same if no collective waited."""
        return None if self.least_wall_ns is None else _rate(self.batch_size, self.least_wall_ns)


def _most(limits: pl.DataFrame, column: str) -> str:
    return limits.sort(column, descending=True, maintain_order=True)["limit"][0]


def _rate(batch_size: float | None, wall_ns: float) -> float | None:
    return None if batch_size is None or wall_ns <= 0 else batch_size / wall_ns * 1e9


def what_if(trace: Trace, changes: Changes, selection: Selection | None = None) -> WhatIf:
    """What the steps of a trace or run would take with changes: of those selected the decode steps, if there are any.

    Raises:
        MissingDataError: the selection names no step, or no complete one.
    """
    selection = selection or Selection()
    check_steps(trace, selection)
    graph = ReplayGraph.of(trace)
    before, after = Replay(graph, Costs.recorded(graph)), Replay(graph, changed(graph, changes))
    replayed = _decode(counted_windows(trace, before, selection))
    predicted = counted_windows(trace, after, selection).join(replayed, on=_STEP, how="semi", maintain_order="left")
    parts = {name: path_parts(paths(replay, steps), steps, graph)
             for name, replay, steps in (("recorded", before, replayed), ("predicted", after, predicted))}  # fmt: skip
    steps = _steps(graph, replayed, predicted, after.costs)
    is_known = steps.height > 0 and not steps["batch_size"].null_count()
    scaled = changed(graph, Changes(changes.scalings))
    least_ns = _least_wall(trace, graph, changes, selection)
    return WhatIf(
        trace=trace.meta,
        selection=selection,
        changes=changes,
        recorded_wall_ns=_median(steps["recorded_wall_ns"]),
        replayed_wall_ns=_median(steps["replayed_wall_ns"]),
        predicted_wall_ns=_median(steps["predicted_wall_ns"]),
        least_wall_ns=least_ns,
        kernel_saved_ns=_kernel_saved(graph, scaled, steps),
        batch_size=_median(steps["batch_size"]) if is_known else None,
        steps=steps,
        limits=_limits(parts),
        recorded_parts=parts["recorded"],
        bottlenecks=parts["predicted"],
        notes=(*graph_notes(trace, graph), *_waiting_notes(least_ns), *_change_notes(changes)),
        quirks=trace.quirks,
    )


def predicted_wall(trace: Trace, changes: Changes, selection: Selection | None = None) -> float:
    """`predicted_wall_ns` of `what_if`, without all the rest.

    Raises:
        MissingDataError: as `what_if`.
    """
    selection = selection or Selection()
    check_steps(trace, selection)
    graph = ReplayGraph.of(trace)
    replay = Replay(graph, changed(graph, changes))
    return _median(_decode(counted_windows(trace, replay, selection))["wall_ns"])


def host_factor(trace: Trace, unprofiled_wall_ns: float, selection: Selection | None = None) -> float:
    """The factor of the host's own work with which the replayed step takes as long as without the profiler.

    1 where the recorded step is no longer than that. By bisection down to `LEAST_HOST_FACTOR`, to 1 %; where the step
    stays longer even so, because the host does not set the pace, that is the answer.

    Raises:
        MissingDataError: as `what_if`.
    """

    def excess(factor: float) -> float:
        return predicted_wall(trace, Changes(host_factor=factor), selection) - unprofiled_wall_ns

    low, high = LEAST_HOST_FACTOR, 1.0
    if excess(high) <= 0:
        return high
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    return (low + high) / 2


def _decode(steps: pl.DataFrame) -> pl.DataFrame:
    decode = steps.filter(pl.col("stage") == "decode")
    return decode if decode.height else steps


def _median(column: pl.Series) -> float:
    return column.cast(pl.Float64).median()  # pyright: ignore[reportReturnType] - of floats that are there it is one


def _steps(graph: ReplayGraph, replayed: pl.DataFrame, predicted: pl.DataFrame, costs: Costs) -> pl.DataFrame:
    kernels = graph.activities.select(*_STEP, "dur_ns", length_ns=pl.Series(costs.length_ns))
    sums = kernels.group_by(_STEP).agg(recorded_kernel_ns=pl.sum("dur_ns"), predicted_kernel_ns=pl.sum("length_ns"))
    walls = predicted.select(*_STEP, predicted_wall_ns="wall_ns")
    rows = replayed.rename({"wall_ns": "replayed_wall_ns"}).join(walls, on=_STEP, validate="1:1")
    rows = rows.join(sums, on=_STEP, validate="1:1")
    return WHATIF_STEPS.check(rows.select(WHATIF_STEPS.names).sort(_STEP))


def _kernel_saved(graph: ReplayGraph, scaled: Costs, steps: pl.DataFrame) -> float:
    saved = graph.activities.select(*_STEP, saved=pl.Series(graph.length_ns - scaled.length_ns))
    return float(saved.join(steps, on=_STEP, how="semi")["saved"].sum()) / steps.height


def _limits(parts: dict[str, pl.DataFrame]) -> pl.DataFrame:
    rows = pl.DataFrame({"limit": LIMITS})
    for name, frame in parts.items():
        sums = frame.group_by("limit").agg(
            pl.sum("ns_per_step").alias(f"{name}_ns_per_step"), pl.sum("share").alias(f"{name}_share")
        )
        rows = rows.join(sums, on="limit", how="left", validate="1:1", maintain_order="left")
    rows = rows.with_columns(pl.exclude("limit").fill_null(0.0))
    return WHATIF_LIMITS.check(rows)


def _least_wall(trace: Trace, graph: ReplayGraph, changes: Changes, selection: Selection) -> float | None:
    """The wall predicted without waiting in collectives that are not matched; None where there is none to take out."""
    is_nothing = not changes.scalings and not changes.graph and changes.host_factor == 1
    if is_nothing or trace.meta.world_size == 1 or not may_wait(graph.activities).any():
        return None
    return predicted_wall(trace, replace(changes, no_waiting=True), selection)


def _waiting_notes(least_ns: float | None) -> Sequence[str]:
    if least_ns is None:
        return ()
    took = "each taking what the shortest tenth of its name and size took"
    return (f"If no collective waited, {took}, the step would take {least_ns / 1e6:,.3f} ms.",)


def _change_notes(changes: Changes) -> Sequence[str]:
    if not changes.graph:
        return ()
    costs = (
        f"As graphs: {GRAPH_GAP_NS} ns between two activities of a stream, {GRAPH_LATENCY_NS / 1e3:.0f} µs from the "
        f"launch to the first one, {GRAPH_LAUNCH_NS / 1e3:.1f} µs of the host an activity, as measured in graph traces "
        "of H200."
    )
    return (costs, "Whether all of a step can be captured is not known; host waits inside it are taken out.")
