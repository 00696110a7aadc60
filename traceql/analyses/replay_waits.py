"""Host calls that a replay knows: those that launch, and those that wait for the GPU, with what they wait for.

A wait for the device waits for all that was launched before it; for a stream, for what was launched before on the
streams of the thread's last launch; a blocking copy, or one to pageable memory, for itself. Which event a wait for an
event means is not recorded. Where its rank copies results to pinned memory, it is taken to guard such a copy: the last
one launched before it, or, where the recorded waits show that, one some copies earlier. If no wait of the recording
was held up, nothing shows that; then it is the last copy, but for SGLang's overlapped scheduler, which reads a step's
result after it has launched the next step. Without such copies it guards what was launched before the last recorded
event.

A wait that was held up and returned long after all that must have waited for something else: for what had ended last.
"""

import numpy as np
import polars as pl

from traceql.analyses.idle import BLOCKING_COPY
from traceql.arrays import Ints
from traceql.trace import Trace

_HELD_UP_NS = 50_000
"""A wait this long was for the GPU, not the cost of the call (2 to 35 µs in all traces seen)."""
_AT_ONCE_NS = 100_000
"""How soon after what it waits for a wait returns at the latest."""
_MOST_BEHIND = 3
_LEAST_QUANTILE = 0.1
_USUAL_LEAST_NS = 5_000
"""Cost of a wait for nothing, where all of its name were held up."""
_PAGEABLE = pl.col("short_name").str.contains("-> Pageable", literal=True)
_PINNED = pl.col("short_name").str.contains("DtoH", literal=True) & ~_PAGEABLE
_STREAM = ["rank", "device", "stream"]
_PAIR = {"call": pl.Int64, "activity": pl.Int64}


def host_waits(trace: Trace, activities: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The calls that launch or wait, in order of their begin; and which activities each wait waits for.

    Args:
        trace: the trace or run.
        activities: rows of `ReplayGraph.activities` before they have a node.

    The first frame has call (a number), launch_id, rank, thread_id, name, start_ns, return_ns, is_wait and least_ns
    (what waits of that name take that wait for nothing); the second the pairs call, activity.
    """
    calls = _calls(trace, activities)
    waits = calls.filter("is_wait")
    if waits.is_empty():
        return calls, pl.DataFrame(schema=_PAIR)
    launched = activities.filter(pl.col("launch_id").is_not_null()).sort("call_ns", "end_ns", "activity")
    kinds = waits.select("call", kind=_kind()).with_columns(pl.col("kind"))
    waits = waits.join(kinds, on="call", validate="1:1", maintain_order="left")
    pairs = pl.concat(
        [
            pl.DataFrame(schema=_PAIR),
            _own(waits.filter(pl.col("kind") == "copy"), launched),
            _of_streams(waits.filter(pl.col("kind") == "device"), launched, _all_streams(launched)),
            _of_streams(waits.filter(pl.col("kind") == "stream"), launched, _last_streams(waits, launched)),
            _of_events(waits.filter(pl.col("kind") == "event"), trace, launched),
        ]
    )
    return calls, _believable(pairs, waits, activities)


def _calls(trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """Calls that launch an activity or wait, on the lowest rank's clock."""
    launching = activities.filter(pl.col("launch_id").is_not_null()).group_by("launch_id").agg(
        copies_to_pageable=_PAGEABLE.any()
    )  # fmt: skip
    key = ["rank", "thread_id", "start_ns", "name"]
    syncs = trace.syncs.filter(pl.col("side") == "cpu").select(key).unique().with_columns(is_sync=pl.lit(True))
    offsets = activities.select("rank", "offset_ns").unique()
    calls = trace.launches.select("launch_id", *key, "dur_ns").join(syncs, on=key, how="left").collect()
    calls = calls.join(launching, on="launch_id", how="left", validate="1:1")
    launches = pl.col("copies_to_pageable").is_not_null()
    is_wait = pl.col("is_sync").fill_null(False) | (
        launches & (BLOCKING_COPY | pl.col("copies_to_pageable").fill_null(False))
    )
    calls = calls.with_columns(is_wait=is_wait).filter(launches | pl.col("is_wait"))
    calls = calls.join(offsets, on="rank", how="left", validate="m:1")
    start = pl.col("start_ns") + pl.col("offset_ns").fill_null(0)
    calls = calls.with_columns(start_ns=start, return_ns=start + pl.col("dur_ns"))
    at_once = pl.col("dur_ns").filter(pl.col("dur_ns") < _HELD_UP_NS)
    least = at_once.quantile(_LEAST_QUANTILE, "lower").over("rank", "name").cast(pl.Int64).fill_null(_USUAL_LEAST_NS)
    calls = calls.with_columns(least_ns=pl.min_horizontal(least, "dur_ns"))
    calls = calls.sort("start_ns", "launch_id").with_row_index("call").with_columns(pl.col("call").cast(pl.Int64))
    return calls.select(
        "call", "launch_id", "rank", "thread_id", "name", "start_ns", "return_ns", "is_wait", "least_ns"
    )


def _kind() -> pl.Expr:
    name = pl.col("name").str
    return (
        pl.when(name.contains("Device|Ctx|Context")).then(pl.lit("device"))
        .when(name.contains("Event")).then(pl.lit("event"))
        .when(name.contains("Stream")).then(pl.lit("stream"))
        .otherwise(pl.lit("copy"))
    )  # fmt: skip


def _own(waits: pl.DataFrame, launched: pl.DataFrame) -> pl.DataFrame:
    return (
        waits.select("call", "launch_id").join(launched.select("launch_id", "activity"), on="launch_id").select(*_PAIR)
    )


def _all_streams(launched: pl.DataFrame) -> pl.DataFrame:
    """Which streams a wait of a rank may be for."""
    return launched.select(_STREAM).unique()


def _of_streams(waits: pl.DataFrame, launched: pl.DataFrame, streams: pl.DataFrame) -> pl.DataFrame:
    """What ends last on each of the streams, of what was launched before the wait began.

    Args:
        waits: the waits.
        launched: activities in order of launch.
        streams: those of a rank, or, with a column `call`, of a wait.
    """
    key = [name for name in ("rank", "call") if name in streams.columns]
    each = waits.select("rank", "call", "start_ns").join(streams, on=key).sort("start_ns")
    latest = pl.col("end_ns").cum_max().over(_STREAM)
    holder = pl.when(pl.col("end_ns") == latest).then("activity").forward_fill().over(_STREAM)
    lasts = launched.select(*_STREAM, "call_ns", activity=holder)
    found = each.join_asof(lasts, left_on="start_ns", right_on="call_ns", by=_STREAM, check_sortedness=False)
    return found.filter(pl.col("activity").is_not_null()).select(*_PAIR)


def _last_streams(waits: pl.DataFrame, launched: pl.DataFrame) -> pl.DataFrame:
    """The streams of the thread's last launch before each wait for a stream."""
    lasts = launched.select("thread_id", "call_ns", "launch_id")
    waits = waits.filter(pl.col("kind") == "stream").select("rank", "call", "thread_id", "start_ns")
    found = waits.join_asof(lasts, left_on="start_ns", right_on="call_ns", by="thread_id", check_sortedness=False)
    streams = launched.select("launch_id", "device", "stream").unique()
    return found.join(streams, on="launch_id").select("rank", "call", "device", "stream")


# --- waits for events


def _of_events(waits: pl.DataFrame, trace: Trace, launched: pl.DataFrame) -> pl.DataFrame:
    """What each wait for an event guards, rank by rank."""
    parts = [pl.DataFrame(schema=_PAIR)]
    for (rank,), mine in waits.group_by("rank", maintain_order=True):
        here = launched.filter(pl.col("rank") == rank)
        guarded = here.filter(_PINNED)
        if guarded.is_empty():
            guarded = _before_records(trace, here)
        if not guarded.is_empty():
            parts.append(_guarding(mine, guarded, is_behind=_runs_behind(trace, here)))
    return pl.concat(parts)


def _before_records(trace: Trace, launched: pl.DataFrame) -> pl.DataFrame:
    """What the thread had launched last at each recorded event."""
    records = trace.launches.filter(pl.col("name").str.contains("EventRecord")).select("rank", "thread_id", "start_ns")
    offset = launched.select("rank", "offset_ns").unique()
    known = (
        records.collect().join(offset, on="rank", validate="m:1").with_columns(pl.col("start_ns") + pl.col("offset_ns"))
    )
    lasts = launched.select("thread_id", "call_ns", "activity", "end_ns")
    found = known.sort("start_ns").join_asof(
        lasts, left_on="start_ns", right_on="call_ns", by="thread_id", check_sortedness=False
    )
    found = found.filter(pl.col("activity").is_not_null())
    return found.select("activity", "end_ns", call_ns="start_ns")


def _runs_behind(trace: Trace, launched: pl.DataFrame) -> bool:
    """Whether this is SGLang's overlapped scheduler: between the steps it launches on another stream than in them."""
    if trace.meta.engine != "sglang":
        return False
    streams = launched.group_by("stream").agg(
        inside=pl.col("section").is_null().sum(), between=(pl.col("section") == "between").sum()
    )
    return bool(streams.select(((pl.col("between") > 0) & (pl.col("between") > pl.col("inside"))).any()).item())


def _guarding(waits: pl.DataFrame, guarded: pl.DataFrame, *, is_behind: bool) -> pl.DataFrame:
    """The pairs under the number of copies behind that the recorded waits fit best."""
    begin, back = waits["start_ns"].to_numpy(), waits["return_ns"].to_numpy()
    copy_call, end = guarded["call_ns"].to_numpy(), guarded["end_ns"].to_numpy()
    last = np.searchsorted(copy_call, begin) - 1
    is_held_up = back - begin >= _HELD_UP_NS
    behind = _behind(last[is_held_up], back[is_held_up], end) if is_held_up.any() else int(is_behind)
    chosen = last - behind
    known = chosen >= 0
    activity = guarded["activity"].to_numpy()[chosen[known]]
    return pl.DataFrame({"call": waits["call"].to_numpy()[known], "activity": activity}, _PAIR)


def _behind(last: Ints, back: Ints, end: Ints) -> int:
    """How many copies before the last one: those that had ended when the waits returned, and the latest of them."""

    def late_ns(behind: int) -> float:
        known = last - behind >= 0
        if not known.any():
            return np.inf
        late = back[known] - end[last[known] - behind]
        return float(np.median(np.where(late >= 0, late, np.inf)))

    return min(range(_MOST_BEHIND + 1), key=late_ns)


# --- what the record contradicts


def _believable(pairs: pl.DataFrame, waits: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    """The pairs whose activity had ended when the wait returned; a wait held up for none follows what ended last."""
    times = waits.select("call", "rank", "start_ns", "return_ns")
    ends = activities.select("activity", "end_ns")
    known = pairs.join(times, on="call", validate="m:1").join(ends, on="activity", validate="m:1")
    known = known.filter(pl.col("end_ns") <= pl.col("return_ns"))
    latest = times.join(known.group_by("call").agg(pl.max("end_ns")), on="call", how="left", validate="1:1")
    is_held_up = pl.col("return_ns") - pl.col("start_ns") >= _HELD_UP_NS
    is_explained = pl.col("return_ns") - pl.col("end_ns") <= _AT_ONCE_NS
    lost = latest.filter(is_held_up & ~is_explained.fill_null(False)).drop("end_ns")
    by_end = activities.sort("end_ns", "activity").select("rank", "activity", "end_ns", "call_ns")
    found = lost.sort("return_ns").join_asof(
        by_end, left_on="return_ns", right_on="end_ns", by="rank", check_sortedness=False
    )
    found = found.filter(
        (pl.col("end_ns") > pl.col("start_ns")) & ~(pl.col("call_ns") > pl.col("start_ns")).fill_null(False)
    )
    return pl.concat([known.select(*_PAIR), found.select(*_PAIR)]).sort("call", "activity")
