"""What waits for what in a recording: the graph that a replay runs through.

Nodes are moments: a host call begins (`CALL`), a host wait returns (`RETURN`), a GPU activity starts (`START`), the
last rank has come to a collective (`JOIN`). An edge says that one moment comes at least so long after another:

- `HOST`: a thread makes its calls in order; what lies between two of them is the host's own work.
- `LAUNCH`: an activity starts after its launch; of a graph only the first one.
- `STREAM`: after the end of what ran before it on its stream.
- `CROSS`: after the end of an activity of another stream. Recorded for streams told to wait for an event, and for what
  follows a graph; inside a graph inferred: an activity that began right when another stream's had ended, in at least
  half of the graph's replays.
- `WAIT`: a host wait returns after the end of what it waits for.
- `ARRIVAL`: a collective has all ranks once the last has started; from there on it takes its transfer.

A moment that was recorded later than all of its edges ask for owes the rest to the edge that held it up longest. So a
replay with nothing changed gives the recording back, by construction; how near one with typical delays alone comes
(`Costs.typical`) says how much of the recording these edges explain.
"""

from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.comm import CATEGORY, collectives_of
from traceql.analyses.replay_delays import (
    AFTER_END,
    ARRIVAL,
    CROSS,
    FAR_NS,
    HOST,
    LAUNCH,
    STREAM,
    UNKNOWN_NS,
    WAIT,
    Timed,
    delays,
)
from traceql.analyses.replay_waits import host_waits
from traceql.arrays import Bools, Ints
from traceql.trace import Trace

CALL, START, JOIN, RETURN = range(4)
"""Kinds of nodes, in the order of those that are recorded at one time."""
_NEAR_NS = 3_000
"""How soon after the end of what it waited for an activity of a graph begins: seen are 0 to 2 µs."""
_OVERLAP_NS = 2_000
"""How much an activity may overlap what it follows: programmatic launches do, by up to 1.7 µs."""
_LEAST_REPLAYS = 0.5
"""Share of a graph's replays in which a dependency must be seen."""
_STREAM_KEY = ["rank", "device", "stream"]
_GRAPH = ["rank", "device", "size"]
"""What tells the replays of one graph, which is not recorded: those of as many activities."""
_NODE = [*_GRAPH, "stream", "place"]
_PAIR = [*_NODE, "before_stream", "before_place"]


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
        if trace not in _known:
            _known[trace] = build(trace)
        return _known[trace]


_known: WeakKeyDictionary[Trace, ReplayGraph] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class _Edges:
    """Edges between rows: activities, calls, their returns, collectives, numbered one after the other."""

    kind: int
    source: Ints
    target: Ints
    activity: Ints
    typical_ns: Ints | None = None
    """What the delay is at least, of each; None where it is what other edges of the kind show."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows that nodes are made of, and where each kind begins."""

    activities: pl.DataFrame
    calls: pl.DataFrame
    joins: pl.DataFrame
    """One per matched collective: collective_id, time_ns."""

    @property
    def first_call(self) -> int:
        return self.activities.height

    @property
    def first_return(self) -> int:
        return self.first_call + self.calls.height

    @property
    def first_join(self) -> int:
        return self.first_return + self.calls.height


def build(trace: Trace) -> ReplayGraph:
    """The graph of a trace or run. Activities without a time are left out, and calls that neither launch nor wait."""
    found = Attribution.of(trace)
    collectives = collectives_of(trace, found)
    activities = _activities(trace, found, collectives)
    calls, waits = host_waits(trace, activities)
    joins = (
        activities.filter(pl.col("collective_id").is_not_null())
        .group_by("collective_id")
        .agg(time_ns=pl.max("start_ns"))
        .sort("collective_id")
    )
    rows = _Rows(activities, calls, joins)
    inside, confidence = _graph_edges(activities)
    ordered = [_stream_edges(activities), inside, _after_graph_edges(activities), _event_edges(trace, activities)]
    guessed = _guessed_edges(activities, ordered)
    edges = [
        _host_edges(rows),
        _launch_edges(rows),
        *ordered,
        guessed,
        _Edges(
            WAIT,
            waits["activity"].to_numpy(),
            rows.first_return + waits["call"].to_numpy(),
            waits["activity"].to_numpy(),
        ),
        _arrival_edges(rows),
    ]
    graph = _assembled(rows, edges)
    return replace(
        graph,
        n_inferred=len(inside.source),
        inferred_confidence=confidence,
        n_guessed=len(guessed.source),
    )


# --- rows


def _activities(trace: Trace, found: Attribution, collectives: pl.DataFrame) -> pl.DataFrame:
    """GPU activities in order of start, with their launch and their collective; times on the lowest rank's clock."""
    matched = collectives.select(
        "kernel_id", "collective_id", offset_ns=pl.col("start_ns") - pl.col("recorded_start_ns")
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


# --- edges of the host


def _host_edges(rows: _Rows) -> _Edges:
    """From moment to moment of each thread; its first one follows the latest of the rank's other threads.

    A wait returns at the earliest as long after it began as waits of its name take that wait for nothing.
    """
    calls = rows.calls
    begins = calls.select("rank", "thread_id", pl.col("call") + rows.first_call, time_ns="start_ns", is_return=False)
    returns = calls.filter("is_wait").select(
        "rank", "thread_id", pl.col("call") + rows.first_return, time_ns="return_ns", is_return=True
    )
    moments = pl.concat(
        [
            begins.with_columns(begin_ns=pl.col("time_ns"), least_ns=pl.lit(0, pl.Int64)),
            returns.with_columns(
                begin_ns=calls.filter("is_wait")["start_ns"], least_ns=calls.filter("is_wait")["least_ns"]
            ),
        ]
    ).sort("time_ns", "is_return", "call")
    moments = moments.with_columns(
        before=pl.col("call").shift().over("rank", "thread_id"),
        before_ns=pl.col("time_ns").shift().over("rank", "thread_id"),
        other=pl.col("call").shift().over("rank"),
        other_ns=pl.col("time_ns").shift().over("rank"),
    )
    moments = moments.with_columns(pl.coalesce("before", "other"), before_ns=pl.coalesce("before_ns", "other_ns"))
    moments = moments.filter(pl.col("before").is_not_null())
    typical = (pl.col("begin_ns") - pl.col("before_ns")).clip(lower_bound=0) + pl.col("least_ns")
    none = np.full(moments.height, -1)
    return _Edges(
        HOST, _ints(moments["before"]), _ints(moments["call"]), none, _ints(moments.select(typical).to_series())
    )


def _launch_edges(rows: _Rows) -> _Edges:
    """From a launch to its activity, of a graph to its first one."""
    first = rows.activities.filter(pl.col("launch_id").is_not_null()).unique(
        "launch_id", keep="first", maintain_order=True
    )
    joined = first.select("activity", "launch_id").join(
        rows.calls.select("launch_id", "call"), on="launch_id", validate="1:1", maintain_order="left"
    )
    none = np.full(joined.height, -1)
    return _Edges(LAUNCH, _ints(joined["call"]) + rows.first_call, _ints(joined["activity"]), none)


# --- edges of the GPU


def _ended(activities: pl.DataFrame, key: list[str], name: str) -> pl.DataFrame:
    """Adds what, of the activities with the same key that started before, ended last."""
    latest = pl.col("end_ns").cum_max().over(key)
    holder = pl.when(pl.col("end_ns") == latest).then("activity").forward_fill().over(key)
    return activities.with_columns(holder.alias(name)).with_columns(pl.col(name).shift().over(key))


def _between(kind: int, pairs: pl.DataFrame, source: str = "before", target: str = "activity") -> _Edges:
    """Edges from the end of one activity to the start of another."""
    known = pairs.filter(pl.col(source).is_not_null())
    before = _ints(known[source])
    return _Edges(kind, before, _ints(known[target]), before)


def _stream_edges(activities: pl.DataFrame) -> _Edges:
    return _between(STREAM, _ended(activities, _STREAM_KEY, "before").select("before", "activity"))


def _graph_edges(activities: pl.DataFrame) -> tuple[_Edges, float | None]:
    """Dependencies between the streams of a graph, and the mean share of replays in which they were seen.

    An activity follows what of the graph had ended last when it began, if that ran on another stream, had just ended,
    and no replay contradicts it.
    """
    graph = activities.filter("in_graph").with_columns(
        place=pl.int_range(pl.len()).over("launch_id", "stream"),
        size=pl.len().over("launch_id"),
        n_streams=pl.col("stream").n_unique().over("launch_id"),
    )
    graph = graph.filter(pl.col("n_streams") > 1)
    found = _in_all_replays(_seen(graph), graph)
    share = found["share"].mean() if found.height else None
    return _between(CROSS, found), share  # pyright: ignore[reportReturnType] - of floats it is one


def _seen(graph: pl.DataFrame) -> pl.DataFrame:
    """Pairs of places of a graph, and the share of its replays in which one began when the other had just ended."""
    places = graph.select(before="activity", before_place="place")
    pairs = _with_last_ended(graph, graph, ["launch_id"]).join(places, on="before", validate="m:1")
    is_near = pl.col("start_ns") - pl.col("before_end_ns") <= _NEAR_NS
    seen = pairs.filter(is_near & (pl.col("before_stream") != pl.col("stream"))).group_by(_PAIR).agg(n=pl.len())
    n_replays = graph.group_by(_GRAPH).agg(n_replays=pl.col("launch_id").n_unique())
    seen = seen.join(n_replays, on=_GRAPH, validate="m:1")
    return seen.with_columns(share=pl.col("n") / pl.col("n_replays")).filter(pl.col("share") >= _LEAST_REPLAYS)


def _in_all_replays(seen: pl.DataFrame, graph: pl.DataFrame) -> pl.DataFrame:
    """The pairs of activities of each replay, but for those that some replay contradicts."""
    targets = graph.select("launch_id", *_NODE, "activity", "start_ns")
    sources = graph.select(
        "launch_id", before_stream="stream", before_place="place", before="activity", before_end_ns="end_ns"
    )
    found = seen.join(targets, on=_NODE, validate="m:m").join(
        sources, on=["launch_id", "before_stream", "before_place"], validate="m:1"
    )
    comes_after = pl.col("start_ns") - pl.col("before_end_ns") >= -_OVERLAP_NS
    return found.filter(comes_after.all().over(_PAIR))


def _with_last_ended(rows: pl.DataFrame, among: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Adds what, of the activities with the same key, had ended last when each row started: before, before_end_ns."""
    ends = among.select(*key, "stream", before="activity", before_end_ns="end_ns").sort("before_end_ns", "before")
    return rows.sort("start_ns").join_asof(
        ends.rename({"stream": "before_stream"}),
        left_on="start_ns",
        right_on="before_end_ns",
        by=key,
        check_sortedness=False,
    )


def _guessed_edges(activities: pl.DataFrame, edges: list[_Edges]) -> _Edges:
    """What began long after all that it is known to wait for follows what had ended last on its device.

    Seen where a kernel that was launched beside a graph waits for a free hardware queue, and where the streams of a
    graph join.
    """
    end = _ints(activities["end_ns"])
    freed = np.full(activities.height, UNKNOWN_NS)
    for part in edges:
        np.maximum.at(freed, part.target, end[part.source])
    first = activities.filter(pl.col("launch_id").is_not_null()).unique("launch_id", keep="first")
    np.maximum.at(freed, _ints(first["activity"]), _ints(first["call_ns"]))
    late = activities.with_columns(freed_ns=pl.Series(freed)).filter(pl.col("start_ns") - pl.col("freed_ns") > FAR_NS)
    found = _with_last_ended(late, activities, ["rank", "device"])
    is_near = pl.col("start_ns") - pl.col("before_end_ns") <= FAR_NS
    return _between(CROSS, found.filter(is_near & (pl.col("before_end_ns") > pl.col("freed_ns"))))


def _after_graph_edges(activities: pl.DataFrame) -> _Edges:
    """What is launched on a graph's stream after it waits for all streams of the graph."""
    lasts = (
        activities.filter("in_graph").sort("end_ns").unique(["launch_id", "stream"], keep="last", maintain_order=True)
    )
    of_first = (
        activities.filter("in_graph")
        .unique("launch_id", keep="first", maintain_order=True)
        .select("launch_id", home="stream")
    )
    following = activities.with_columns(earlier=pl.col("launch_id").shift().over(_STREAM_KEY)).filter(
        pl.col("earlier").is_not_null() & (pl.col("launch_id") != pl.col("earlier"))
    )
    following = following.select("activity", "stream", launch_id="earlier")
    pairs = lasts.select("launch_id", "stream", before="activity").join(of_first, on="launch_id", validate="m:1")
    pairs = (
        pairs.filter(pl.col("stream") != pl.col("home"))
        .drop("stream")
        .join(following, left_on=["launch_id", "home"], right_on=["launch_id", "stream"], how="inner")
    )
    return _between(CROSS, pairs)


def _event_edges(trace: Trace, activities: pl.DataFrame) -> _Edges:
    """What is launched on another stream after a wait for an event follows what was launched before that event.

    The event is taken to be the thread's latest recorded one, and the waiting stream that of its next launch.
    """
    offsets = activities.select("rank", "offset_ns").unique()
    names = pl.col("name").str
    calls = trace.launches.filter(names.contains("StreamWaitEvent|EventRecord")).collect()
    calls = calls.join(offsets, on="rank", validate="m:1").with_columns(pl.col("start_ns") + pl.col("offset_ns"))
    calls = calls.sort("start_ns")
    launched = activities.filter(pl.col("launch_id").is_not_null()).sort("call_ns", "end_ns")
    launched = launched.select("thread_id", "call_ns", "stream", "activity")
    asof = partial(pl.DataFrame.join_asof, by="thread_id", check_sortedness=False)
    waits = calls.filter(pl.col("name").str.contains("Wait")).select("thread_id", wait_ns="start_ns")
    records = calls.filter(pl.col("name").str.contains("Record")).select("thread_id", record_ns="start_ns")
    waits = asof(waits, records, left_on="wait_ns", right_on="record_ns").filter(pl.col("record_ns").is_not_null())
    before = launched.rename({"stream": "before_stream", "activity": "before"})
    after = launched.unique(["thread_id", "call_ns"], keep="first", maintain_order=True)
    waits = asof(waits.sort("record_ns"), before, left_on="record_ns", right_on="call_ns").drop("call_ns")
    pairs = asof(waits.sort("wait_ns"), after, left_on="wait_ns", right_on="call_ns", strategy="forward")
    return _between(CROSS, pairs.filter(pl.col("stream") != pl.col("before_stream")))


def _arrival_edges(rows: _Rows) -> _Edges:
    members = rows.activities.filter(pl.col("collective_id").is_not_null())
    number = rows.joins.with_row_index("join").select("collective_id", pl.col("join").cast(pl.Int64))
    joined = members.select("activity", "collective_id").join(number, on="collective_id", validate="m:1")
    none = np.full(joined.height, -1)
    return _Edges(ARRIVAL, _ints(joined["activity"]), _ints(joined["join"]) + rows.first_join, none)


def _ints(column: pl.Series) -> Ints:
    return column.cast(pl.Int64).to_numpy()


# --- all together


def _assembled(rows: _Rows, edges: list[_Edges]) -> ReplayGraph:
    time = np.concatenate(
        [
            _ints(rows.activities["start_ns"]),
            _ints(rows.calls["start_ns"]),
            _ints(rows.calls["return_ns"]),
            _ints(rows.joins["time_ns"]),
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
    launch = _ints(activities["launch_id"].fill_null(-1))
    is_activity = target < len(launch)
    row = np.where(is_activity, target, 0)
    found = is_activity & activities["in_graph"].to_numpy()[row]
    return found & ((kind == LAUNCH) | (launch[row] == launch[source]))


def _ends(rows: _Rows, node: Ints) -> tuple[Ints, Ints]:
    """Of each activity what it takes, and the node from which on it does: its start, or that all ranks have come."""
    start, end = _ints(rows.activities["start_ns"]), _ints(rows.activities["end_ns"])
    number = rows.joins.with_row_index("join").select("collective_id", pl.col("join").cast(pl.Int64), "time_ns")
    joined = rows.activities.select("collective_id").join(
        number, on="collective_id", how="left", validate="m:1", maintain_order="left"
    )
    join = _ints(joined["join"].fill_null(-1))
    since = np.where(join >= 0, _ints(joined["time_ns"].fill_null(0)), start)
    return np.maximum(end - since, 0), np.where(join >= 0, node[rows.first_join + join], node[: len(start)])


def _together(edges: list[_Edges]) -> tuple[Ints, Ints, Ints, Ints, Ints]:
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
