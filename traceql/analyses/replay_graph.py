"""What waits for what in a recording: the graph that a replay runs through.

Nodes are moments: a host call begins (`CALL`), a host wait returns (`RETURN`), a GPU activity starts (`START`), the
last rank has come to a collective (`JOIN`). An edge says that one moment comes at least so long after another;
`replay_edges` describes their kinds.

A moment that was recorded later than all of its edges ask for owes the rest to the edge that held it up longest. So a
replay with nothing changed gives the recording back, by construction; how near one with typical delays alone comes
(`Costs.typical`) says how much of the recording these edges explain.
"""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.comm import CATEGORY, collectives
from traceql.analyses.once import once
from traceql.analyses.replay_delays import AFTER_END, LAUNCH, UNKNOWN_NS, Timed, delays
from traceql.analyses.replay_edges import (
    Edges,
    Rows,
    after_graph_edges,
    arrival_edges,
    event_edges,
    graph_edges,
    guessed_edges,
    host_edges,
    ints,
    launch_edges,
    stream_edges,
    wait_edges,
)
from traceql.analyses.replay_waits import host_waits
from traceql.arrays import Bools, Ints
from traceql.trace import Trace

CALL, START, JOIN, RETURN = range(4)
"""Kinds of nodes, in the order of those that are recorded at one time."""


@dataclass(frozen=True, eq=False)
class ReplayGraph:
    """The nodes in order of recorded time, and the edges in order of their target; all times in ns."""

    activities: pl.DataFrame
    """GPU activities with a time: kernel_id, rank, device, stream, step, section, names, launch_id, `node`."""
    calls: pl.DataFrame
    """Host calls that launch or wait: launch_id, rank, thread_id, name, start_ns, `node` (begin), `return_node`."""
    time_ns: Ints
    """Of each node as recorded, on the clock of the lowest rank."""
    kind: Ints
    length_ns: Ints
    """Of each activity: what it takes by itself; its duration, of a matched collective from the last arrival on."""
    source: Ints
    target: Ints
    edge_kind: Ints
    activity: Ints
    """Of each edge: the activity whose length is part of it, a row of `activities`; -1 for none."""
    delay_ns: Ints
    """Of each edge beside that length: host work, latency or gap. Below 0 where activities of a stream overlap."""
    typical_ns: Ints
    """What the delay is for edges of its kind: the same, but where an edge held its target up."""
    n_dropped: int
    """Edges left out since the record contradicts them: an activity that starts before its launch."""
    n_inferred: int = 0
    """Edges inside graphs that rest on recorded times."""
    inferred_confidence: float | None = None
    """Mean share of the graphs' replays in which those were seen."""
    n_guessed: int = 0
    """Edges of activities that began long after all that they are known to wait for."""

    @classmethod
    def of(cls, trace: Trace) -> "ReplayGraph":
        """That of a trace or run, kept while the trace is."""
        return _graph(trace)


@once
def _graph(trace: Trace) -> ReplayGraph:
    """The graph of a trace or run. Activities without a time are left out, and calls that neither launch nor wait."""
    found = Attribution.of(trace)
    activities = _activities(trace, found)
    calls, waits = host_waits(trace, activities)
    joins = (
        activities.filter(pl.col("collective_id").is_not_null())
        .group_by("collective_id")
        .agg(time_ns=pl.max("start_ns"))
        .sort("collective_id")
    )
    rows = Rows(activities, calls, joins)
    inside, confidence = graph_edges(activities)
    ordered = [stream_edges(activities), inside, after_graph_edges(activities), event_edges(trace, activities)]
    guessed = guessed_edges(activities, ordered)
    edges = [
        host_edges(rows),
        launch_edges(rows),
        *ordered,
        guessed,
        wait_edges(rows, waits),
        arrival_edges(rows),
    ]
    graph = _assembled(rows, edges)
    return replace(
        graph,
        n_inferred=len(inside.source),
        inferred_confidence=confidence,
        n_guessed=len(guessed.source),
    )


# --- rows


def _activities(trace: Trace, found: Attribution) -> pl.DataFrame:
    """GPU activities in order of start, with their launch and their collective; times on the lowest rank's clock."""
    matched = collectives(trace).select(
        "kernel_id",
        "collective_id",
        offset_ns=pl.col("start_ns") - pl.col("recorded_start_ns"),
        comm_bytes=pl.max_horizontal("in_bytes", "out_bytes"),
    )
    calls = trace.launches.select("launch_id", "thread_id", call_ns="start_ns", call="name").collect()
    timed = found.activities.filter(pl.col("start_ns").is_not_null()).with_columns(pl.col("dur_ns").fill_null(0))
    rows = timed.join(calls, on="launch_id", how="left", validate="m:1")
    rows = rows.join(matched, on="kernel_id", how="left", validate="1:1")
    offset = pl.col("offset_ns").median().over("rank").fill_null(0).cast(pl.Int64)
    rows = rows.with_columns(offset_ns=offset).with_columns(
        pl.col("start_ns") + pl.col("offset_ns"), pl.col("call_ns") + pl.col("offset_ns")
    )
    in_graph = pl.len().over("launch_id") > 1
    rows = rows.sort("start_ns", "stream", "correlation", "kernel_id").with_columns(
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        in_graph=pl.col("launch_id").is_not_null() & in_graph,
        is_comm=pl.col("category") == CATEGORY,
    )
    return rows.with_row_index("activity").with_columns(pl.col("activity").cast(pl.Int64))


# --- all together


def _assembled(rows: Rows, edges: list[Edges]) -> ReplayGraph:
    time = np.concatenate(
        [
            ints(rows.activities["start_ns"]),
            ints(rows.calls["start_ns"]),
            ints(rows.calls["return_ns"]),
            ints(rows.joins["time_ns"]),
        ]
    )
    sizes = (rows.activities.height, rows.calls.height, rows.calls.height, rows.joins.height)
    kind = np.repeat([START, CALL, RETURN, JOIN], sizes)
    is_node = np.ones(len(time), np.bool_)
    is_node[rows.first_return : rows.first_join] = rows.calls["is_wait"].to_numpy()
    order = np.lexsort((np.arange(len(time)), kind, time))
    order = order[is_node[order]]
    node = np.full(len(time), -1)
    node[order] = np.arange(len(order))
    length, end_node = _ends(rows, node)
    source, target, edge_kind, activity, typical = _together(edges)
    in_graph = _in_graph(rows.activities, edge_kind, target, activity)
    after = np.isin(edge_kind, AFTER_END)
    source = np.where(after, end_node[activity], node[source])
    target = node[target]
    work = np.where(after, length[activity], 0)
    kept = np.flatnonzero((source >= 0) & (source < target))
    kept = kept[np.lexsort((edge_kind[kept], target[kept]))]
    times = time[order]
    timed = Timed(
        kind=edge_kind[kept],
        target=target[kept],
        free_ns=times[source[kept]] + work[kept],
        reached_ns=times[target[kept]],
        typical_ns=typical[kept],
        in_graph=in_graph[kept],
    )
    delay, typical = delays(timed, len(times))
    return ReplayGraph(
        activities=rows.activities.with_columns(node=pl.Series(node[: rows.first_call])),
        calls=rows.calls.with_columns(
            node=pl.Series(node[rows.first_call : rows.first_return]),
            return_node=pl.Series(node[rows.first_return : rows.first_join]),
        ),
        time_ns=times,
        kind=kind[order],
        length_ns=length,
        source=source[kept],
        target=target[kept],
        edge_kind=edge_kind[kept],
        activity=np.where(after, activity, -1)[kept],
        delay_ns=delay,
        typical_ns=typical,
        n_dropped=len(source) - len(kept),
    )


def _in_graph(activities: pl.DataFrame, kind: Ints, target: Ints, source: Ints) -> Bools:
    """Which edges lead from one activity of a graph to another of it, or from its launch; before rows are nodes."""
    launch = ints(activities["launch_id"].fill_null(-1))
    is_activity = target < len(launch)
    row = np.where(is_activity, target, 0)
    found = is_activity & activities["in_graph"].to_numpy()[row]
    return found & ((kind == LAUNCH) | (launch[row] == launch[source]))


def _ends(rows: Rows, node: Ints) -> tuple[Ints, Ints]:
    """Of each activity what it takes, and the node from which on it does: its start, or that all ranks have come."""
    start, end = ints(rows.activities["start_ns"]), ints(rows.activities["end_ns"])
    number = rows.joins.with_row_index("join").select("collective_id", pl.col("join").cast(pl.Int64), "time_ns")
    joined = rows.activities.select("collective_id").join(
        number, on="collective_id", how="left", validate="m:1", maintain_order="left"
    )
    join = ints(joined["join"].fill_null(-1))
    since = np.where(join >= 0, ints(joined["time_ns"].fill_null(0)), start)
    return np.maximum(end - since, 0), np.where(join >= 0, node[rows.first_join + join], node[: len(start)])


def _together(edges: list[Edges]) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """source, target, kind, activity and typical delay of all edges, those of a kind together."""
    sizes = [len(part.source) for part in edges]
    typical = [
        np.full(size, UNKNOWN_NS) if part.typical_ns is None else part.typical_ns
        for part, size in zip(edges, sizes, strict=True)
    ]
    return (
        np.concatenate([part.source for part in edges]),
        np.concatenate([part.target for part in edges]),
        np.repeat([part.kind for part in edges], sizes),
        np.concatenate([part.activity for part in edges]),
        np.concatenate(typical),
    )
