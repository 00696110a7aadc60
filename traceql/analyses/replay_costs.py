"""What changes in a replay: kernels that take longer or shorter, a faster host, steps launched as graphs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceql.analyses.replay import NEVER_NS, Costs
from traceql.analyses.replay_delays import CROSS, HOST, LAUNCH, STREAM, WAIT
from traceql.analyses.replay_graph import ReplayGraph
from traceql.arrays import Bools, Ints

GRAPH_GAP_NS = 250
"""From the end of an activity of a graph to the next one. Measured: a mean of 245 ns (glm5, 4,256 activities a step)
and 284 ns (sglang, 2,323) on H200, CUDA graphs of torch 2.11 and SGLang 0.5.11."""
GRAPH_LATENCY_NS = 120_000
"""From the call that launches a graph to its first activity. Measured: medians of 85 to 165 µs (glm5)."""
GRAPH_LAUNCH_NS = 1_100
"""Host time of that call, for each activity of the graph. Measured: 1.03 µs (sglang) to 2 µs (glm5, two processes)."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Kernels whose length is multiplied, or set."""

    kernels: pl.Series
    """kernel_id of those that change."""
    factor: float | None = None
    length_ns: float | None = None
    """What replaces each of them takes."""
    text: str = ""
    """Which they are, as it was asked for."""


@dataclass(frozen=True, eq=False)
class Changes:
    """What is changed, in this order: each scaling after the one before it, then graphs, then the host."""

    scalings: Sequence[Scaling] = ()
    graph: bool = False
    """Each step that launches no graph is launched as one."""
    host_factor: float = 1.0
    """The host's own work between its calls is multiplied by this."""
    no_waiting: bool = False
    """Collectives not matched with those of the other ranks are as short as if nobody was late, before all else."""


def changed(graph: ReplayGraph, changes: Changes) -> Costs:
    """The costs of a recording with changes made to it."""
    length = _without_waiting(graph.activities, graph.length_ns) if changes.no_waiting else graph.length_ns
    for scaling in changes.scalings:
        length = _scaled(graph.activities, length, scaling)
    delay = graph.delay_ns.copy()
    if changes.graph:
        delay = _as_graphs(graph, delay)
    if changes.host_factor != 1.0:
        is_host = graph.edge_kind == HOST
        delay[is_host] = np.rint(delay[is_host] * changes.host_factor).astype(np.int64)
    return Costs(length, delay)


def may_wait(activities: pl.DataFrame) -> pl.Series:
    """Which activities are collectives that are not matched across the ranks: their length may be waiting."""
    return activities.select(pl.col("is_comm") & pl.col("collective_id").is_null()).to_series()


def _without_waiting(activities: pl.DataFrame, length: Ints) -> Ints:
    """Of such collectives at most the 10th percentile of their name and size, as in `comm_tails`."""
    rows = activities.select("rank", "device", "short_name", "comm_bytes", "dur_ns", waits=may_wait(activities))
    least = pl.col("dur_ns").quantile(0.1, "lower").over("rank", "device", "short_name", "comm_bytes", "waits")
    most = rows.select(pl.when("waits").then(least)).to_series()
    return np.where(rows["waits"], np.minimum(length, most.fill_null(0).to_numpy()), length)


def _scaled(activities: pl.DataFrame, length: Ints, scaling: Scaling) -> Ints:
    chosen = activities["kernel_id"].is_in(scaling.kernels.implode()).to_numpy()
    new = np.full(len(length), scaling.length_ns) if scaling.factor is None else length * scaling.factor
    return np.where(chosen, np.rint(new), length).astype(np.int64)


def _as_graphs(graph: ReplayGraph, delay: Ints) -> Ints:
    """The delays when all that a step launches inside its annotation is one graph, launched at the first call.

    What the host did up to the step's last launch is gone, waits for the GPU included: a graph cannot hold any.
    """
    step = _graphed_step(graph.activities)
    spans = _spans(graph, step)
    n_nodes = len(graph.time_ns)
    step_of_node = np.full(n_nodes, -1)
    step_of_node[graph.activities["node"].to_numpy()] = step
    target = step_of_node[graph.target]
    before = np.where(graph.activity >= 0, step[graph.activity], -1)
    between = (target >= 0) & (target == before) & np.isin(graph.edge_kind, (STREAM, CROSS))
    of_launch = (graph.edge_kind == LAUNCH) & (target >= 0)
    skipped = _in_spans(graph, spans)
    delay = np.where(between, GRAPH_GAP_NS, delay)
    delay = np.where(of_launch, GRAPH_LATENCY_NS, delay)
    delay = np.where(skipped & (graph.edge_kind == HOST), 0, delay)
    delay = np.where(skipped & (graph.edge_kind == WAIT), NEVER_NS, delay)
    launching = np.full(n_nodes, 0)
    launching[spans["last"].to_numpy()] = spans["n"].to_numpy() * GRAPH_LAUNCH_NS
    return delay + np.where(graph.edge_kind == HOST, launching[graph.source], 0)


def _graphed_step(activities: pl.DataFrame) -> Ints:
    """Of each activity a number of its step, where that would become a graph; else -1."""
    inside = pl.col("step").is_not_null() & pl.col("section").is_null() & pl.col("launch_id").is_not_null()
    of_step = ["rank", "step"]
    has_graph = (pl.col("in_graph") & inside).any().over(of_step)
    number = pl.struct(of_step).rank("dense").cast(pl.Int64)
    return activities.select(pl.when(inside & ~has_graph).then(number).otherwise(-1)).to_series().to_numpy()


def _spans(graph: ReplayGraph, step: Ints) -> pl.DataFrame:
    """Of each step that becomes a graph: rank, thread, nodes of its first and last launch, number of activities.

    A step launched by several threads has one span for each.
    """
    calls = graph.calls.select("launch_id", "thread_id", "node")
    rows = graph.activities.select("launch_id", "rank", step=pl.Series(step)).filter(pl.col("step") >= 0)
    joined = rows.join(calls, on="launch_id", validate="m:1")
    return joined.group_by("rank", "thread_id", "step").agg(
        first=pl.min("node"), last=pl.max("node"), n=pl.len().cast(pl.Int64)
    )


def _in_spans(graph: ReplayGraph, spans: pl.DataFrame) -> Bools:
    """Which edges lead to a host moment of a span's thread after its first launch, up to its last."""
    n_nodes = len(graph.time_ns)
    thread = np.full(n_nodes, -1)
    calls = graph.calls
    thread[calls["node"].to_numpy()] = calls["thread_id"].to_numpy()
    waits = calls.filter("is_wait")
    thread[waits["return_node"].to_numpy()] = waits["thread_id"].to_numpy()
    inside = np.zeros(n_nodes, np.bool_)
    for mine in spans.partition_by("thread_id"):
        depth = np.zeros(n_nodes + 1, np.int64)
        np.add.at(depth, mine["first"].to_numpy() + 1, 1)
        np.add.at(depth, mine["last"].to_numpy() + 1, -1)
        inside |= (np.cumsum(depth)[:-1] > 0) & (thread == mine["thread_id"][0])
    return inside[graph.target]
