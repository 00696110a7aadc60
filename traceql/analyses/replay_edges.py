"""The edges of a replay's graph: what waits for what, by kind.

- `HOST`: a thread makes its calls in order; what lies between two of them is the host's own work.
- `LAUNCH`: an activity starts after its launch; of a graph only the first one.
- `STREAM`: after the end of what ran before it on its stream.
- `CROSS`: after the end of an activity of another stream. Recorded for streams told to wait for an event, and for what
  follows a graph; inside a graph inferred: an activity that began right when another stream's had ended, in at least
  half of the graph's replays.
- `WAIT`: a host wait returns after the end of what it waits for.
- `ARRIVAL`: a collective has all ranks once the last has started; from there on it takes its transfer.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl

from traceql.analyses.replay_delays import ARRIVAL, CROSS, FAR_NS, HOST, LAUNCH, STREAM, UNKNOWN_NS, WAIT
from traceql.arrays import Ints
from traceql.trace import Trace

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
class Edges:
    """Edges between rows: activities, calls, their returns, collectives, numbered one after the other."""

    kind: int
    source: Ints
    target: Ints
    activity: Ints
    typical_ns: Ints | None = None
    """What the delay is at least, of each; None where it is what other edges of the kind show."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows that nodes are made of, and where each kind begins."""

    activities: pl.DataFrame
    calls: pl.DataFrame
    joins: pl.DataFrame
    """One per matched collective: collective_id, time_ns."""

    @property
    def first_call(self) -> int:
        """Number of the first call."""
        return self.activities.height

    @property
    def first_return(self) -> int:
        """Number of the return of the first call."""
        return self.first_call + self.calls.height

    @property
    def first_join(self) -> int:
        """Number of the first collective."""
        return self.first_return + self.calls.height


# --- edges of the host


def host_edges(rows: Rows) -> Edges:
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
    return Edges(HOST, ints(moments["before"]), ints(moments["call"]), none, ints(moments.select(typical).to_series()))


def launch_edges(rows: Rows) -> Edges:
    """From a launch to its activity, of a graph to its first one."""
    first = rows.activities.filter(pl.col("launch_id").is_not_null()).unique(
        "launch_id", keep="first", maintain_order=True
    )
    joined = first.select("activity", "launch_id").join(
        rows.calls.select("launch_id", "call"), on="launch_id", validate="1:1", maintain_order="left"
    )
    none = np.full(joined.height, -1)
    return Edges(LAUNCH, ints(joined["call"]) + rows.first_call, ints(joined["activity"]), none)


def wait_edges(rows: Rows, waits: pl.DataFrame) -> Edges:
    """From an activity to the return of the call that waits for it.

    Args:
        rows: the rows that nodes are made of.
        waits: numbers of the activity and of the call.
    """
    activity = ints(waits["activity"])
    return Edges(WAIT, activity, rows.first_return + ints(waits["call"]), activity)


# --- edges of the GPU


def _ended(activities: pl.DataFrame, key: list[str], name: str) -> pl.DataFrame:
    """Adds what, of the activities with the same key that started before, ended last."""
    latest = pl.col("end_ns").cum_max().over(key)
    holder = pl.when(pl.col("end_ns") == latest).then("activity").forward_fill().over(key)
    return activities.with_columns(holder.alias(name)).with_columns(pl.col(name).shift().over(key))


def _between(kind: int, pairs: pl.DataFrame, source: str = "before", target: str = "activity") -> Edges:
    """Edges from the end of one activity to the start of another."""
    known = pairs.filter(pl.col(source).is_not_null())
    before = ints(known[source])
    return Edges(kind, before, ints(known[target]), before)


def stream_edges(activities: pl.DataFrame) -> Edges:
    """From what ended last on a stream to what starts next on it."""
    return _between(STREAM, _ended(activities, _STREAM_KEY, "before").select("before", "activity"))


def graph_edges(activities: pl.DataFrame) -> tuple[Edges, float | None]:
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


def guessed_edges(activities: pl.DataFrame, edges: list[Edges]) -> Edges:
    """What began long after all that it is known to wait for follows what had ended last on its device.

    Seen where a kernel that was launched beside a graph waits for a free hardware queue, and where the streams of a
    graph join.
    """
    end = ints(activities["end_ns"])
    freed = np.full(activities.height, UNKNOWN_NS)
    for part in edges:
        np.maximum.at(freed, part.target, end[part.source])
    first = activities.filter(pl.col("launch_id").is_not_null()).unique("launch_id", keep="first")
    np.maximum.at(freed, ints(first["activity"]), ints(first["call_ns"]))
    late = activities.with_columns(freed_ns=pl.Series(freed)).filter(pl.col("start_ns") - pl.col("freed_ns") > FAR_NS)
    found = _with_last_ended(late, activities, ["rank", "device"])
    is_near = pl.col("start_ns") - pl.col("before_end_ns") <= FAR_NS
    return _between(CROSS, found.filter(is_near & (pl.col("before_end_ns") > pl.col("freed_ns"))))


def after_graph_edges(activities: pl.DataFrame) -> Edges:
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


def event_edges(trace: Trace, activities: pl.DataFrame) -> Edges:
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


def arrival_edges(rows: Rows) -> Edges:
    """From the start of each rank's part to the moment at which all ranks have come."""
    members = rows.activities.filter(pl.col("collective_id").is_not_null())
    number = rows.joins.with_row_index("join").select("collective_id", pl.col("join").cast(pl.Int64))
    joined = members.select("activity", "collective_id").join(number, on="collective_id", validate="m:1")
    none = np.full(joined.height, -1)
    return Edges(ARRIVAL, ints(joined["activity"]), ints(joined["join"]) + rows.first_join, none)


def ints(column: pl.Series) -> Ints:
    """A column of whole numbers as an array."""
    return column.cast(pl.Int64).to_numpy()
