"""Why the GPU was idle: every gap of every step window with its one cause, and the host call behind it.

A gap is judged by the activity that ends it and by what the host had done when the gap began. The first that holds:

1. `unknown`: that activity's launch is not recorded (or no activity follows).
2. Launched after the gap had begun, and not held (see 3), so the GPU waited for the host. What the launching thread was
   about tells
   - `no_work`: the engine had no batch. Said only where it was recorded: between the gap's beginning and the launch the
     process wrote an idle annotation (`step[IDLE ...]`, `scheduler.*idle*`), or polled for requests twice
     (`scheduler.recv_requests`): a whole turn of its loop in which nothing was launched. A host that is merely silent
     may be at work in Python, so silence is not `no_work`.
   - `sync`: of the thread's launches and waits, the last that had begun when the gap began was a wait. So the host was
     still inside it, or had returned and not launched anything yet.
   - `launch`: anything else.
3. Launched before the gap began, or held: its call was over, and yet it did not start for most of the gap and for more
   than `HELD_NS`. So the GPU waited for itself, or for work of which nothing is recorded, as what was launched before
   the recording began:
   - `dependency`: the activity is a collective, or its stream was told to wait for an event after the previous
     activity of that stream was launched, and before this one was. The stream is the recorded one (`cuda_sync`);
     where a wait names none, it counts for what the same thread launches next.
   - `gpu_gap`: nothing recorded to wait for, as between the kernels of a graph.

Waits are the synchronising calls of table `syncs`, blocking copies (`cudaMemcpy`, `hipMemcpyWithStream`, ...) and
copies to pageable memory, whose call returns only when they are done.
"""

import numpy as np
import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.once import once
from traceql.arrays import Ints
from traceql.tables import DEVICE, RANK, Column, Table
from traceql.trace import Trace

HELD_NS = 100_000
"""An activity that has not started so long after its call waits for more than its launch. Of 193,345 that were launched
in a gap, in the traces at hand of NVIDIA GPUs, 99.9 % start within 4 µs of their call; of 392 on AMD GPUs 99 % within
25 µs."""
UNRECORDED_NS = 5_000_000
"""From this length on a gap whose next activity was launched in time, or held, is no gap between kernels: what the GPU
waits for, or does, is not recorded. As in the rule unrecorded-wait."""
CAUSES = ("no_work", "sync", "launch", "dependency", "gpu_gap", "unknown")
"""Every cause, in the order of design and pages."""

IDLE = Table(
    "idle",
    "One row per gap: a maximal stretch of a step's window in which its device runs nothing. The gaps of a step add up "
    "to its idle_ns. Sorted by rank, device, step, start.",
    RANK,
    DEVICE,
    Column("step", pl.Int64, "Step in whose window the gap lies"),
    Column("start_ns", pl.Int64, "Beginning: the end of the last activity, or of the window before"),
    Column("dur_ns", pl.Int64, "Length, above zero"),
    Column("cause", pl.String, "no_work, sync, launch, dependency, gpu_gap or unknown"),
    Column("next_kernel_id", pl.Int64, "The activity that ends the gap; null when none follows", nullable=True),
    Column("launch_id", pl.Int64, "The call that launched it; null when not recorded", nullable=True),
    Column("launched_ns", pl.Int64, "Start of that call", nullable=True),
    Column(
        "host_call",
        pl.String,
        "sync: the wait. Else the call that the launching thread was in when the gap began, if the launch came later; "
        "else the launch",
        nullable=True,
    ),
    Column("thread_id", pl.Int32, "The launching thread", nullable=True),
)

_PLACE = ["rank", "device"]
_STREAM = [*_PLACE, "stream"]
BLOCKING_COPY = pl.col("name").str.contains(r"^(?:cuda|cu|hip)Memcpy") & ~pl.col("name").str.contains("Async|Peer")
"""Calls that return only when the copy is done."""
_PAGEABLE_COPY = pl.col("name").str.contains(r"^Memcpy DtoH.*-> Pageable")
_STREAM_WAIT_CALL = pl.col("name").str.contains("StreamWaitEvent")
_STREAM_WAIT_EVENT = (pl.col("side") == "gpu") & pl.col("name").str.contains("Stream Wait Event")
_IDLE_SPAN = pl.col("name").str.contains(r"^step\[IDLE\b|^scheduler\.\w*idle")
_POLL_SPAN = pl.col("name").str.contains(r"^scheduler\.recv_requests\b")
_FAR = np.iinfo(np.int64).max


@once
def idle_gaps(trace: Trace) -> pl.DataFrame:
    """The `idle` table of a trace or run: why its GPUs had nothing to do within the steps.

    Empty where no step has a window. Worked out once.
    """
    return gaps_of(trace, Attribution.of(trace))


def gaps_of(trace: Trace, found: Attribution) -> pl.DataFrame:
    """The `idle` table of a trace or run, with its steps as they are given."""
    gaps = window_gaps(found.activities, found.steps)
    activities = _with_launch(found.activities, trace.launches)
    calls = trace.launches.select("launch_id", "thread_id", "start_ns", "dur_ns", "name").collect()
    gaps = _with_next(gaps, activities)
    gaps = _with_host(gaps, _thread_marks(activities, calls, trace.syncs), calls)
    gaps = _with_engine(gaps, trace.spans.filter(pl.col("side") == "cpu").collect())
    gaps = _with_stream_waits(gaps, trace.launches, trace.syncs)
    gaps = gaps.with_columns(_cause()).with_columns(_host_call())
    return IDLE.check(gaps.select(IDLE.names).sort(*_PLACE, "step", "start_ns"))


def window_gaps(activities: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """The gaps of each window: rank, device, step, start_ns, dur_ns, next_kernel_id.

    Args:
        activities: kernel_id, rank, device, stream, start_ns, dur_ns, correlation. What takes no time ends no gap.
        windows: rank, device, step, start_ns, wall_ns; null is no window. They do not overlap on a device.
    """
    working = activities.filter(pl.col("dur_ns") > 0).sort("start_ns", "stream", "correlation", "kernel_id")
    schema = {name: IDLE.schema[name] for name in (*_PLACE, "step", "start_ns", "dur_ns", "next_kernel_id")}
    parts = [pl.DataFrame(schema=schema)]
    known = windows.filter(pl.col("wall_ns") > 0).sort("start_ns")
    for (rank, device), of_place in known.group_by(_PLACE, maintain_order=True):
        here = working.filter((pl.col("rank") == rank) & (pl.col("device") == device))
        parts.append(_device_gaps(here, of_place))
    return pl.concat(parts)


def _device_gaps(working: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    start = working["start_ns"].to_numpy()
    busy_until = np.maximum.accumulate(start + working["dur_ns"].to_numpy())
    # Stretch i lies before activity i, the last one behind all of them.
    low, high = np.concatenate([[-_FAR], busy_until]), np.concatenate([start, [_FAR]])
    following = np.flatnonzero(low < high)
    low, high = low[following], high[following]
    window_start = windows["start_ns"].to_numpy()
    window_end = window_start + windows["wall_ns"].to_numpy()
    first, last = np.searchsorted(high, window_start, side="right"), np.searchsorted(low, window_end)
    window, stretch = _ranges(first, last)
    begin = np.maximum(low[stretch], window_start[window])
    end = np.minimum(high[stretch], window_end[window])
    activity = pl.Series(following[stretch], dtype=pl.Int64)
    return windows.select(*_PLACE, "step")[window].with_columns(
        start_ns=pl.Series(begin, dtype=pl.Int64),
        dur_ns=pl.Series(end - begin, dtype=pl.Int64),
        next_kernel_id=working["kernel_id"].gather(activity.replace(working.height, None), null_on_oob=True),
    )


def _ranges(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """(i, number) for each number from first[i] up to last[i], without it."""
    sizes = np.maximum(last - first, 0)
    ends = np.cumsum(sizes)
    position = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    return np.repeat(np.arange(len(sizes)), sizes), np.repeat(first, sizes) + position


def _with_launch(activities: pl.DataFrame, launches: pl.LazyFrame) -> pl.DataFrame:
    """Adds thread_id, launched_ns, returned_ns, call, and previous_ns: the latest launch that ran before on the stream.

    A call that waits for its copy says nothing by its end; what it launches counts as launched at its beginning.
    """
    calls = launches.select(
        "launch_id", "thread_id", launched_ns="start_ns", call="name",
        returned_ns=pl.col("start_ns") + pl.when(BLOCKING_COPY).then(0).otherwise("dur_ns"),
    ).collect()  # fmt: skip
    columns = ("kernel_id", *_STREAM, "name", "group", "start_ns", "correlation", "launch_id")
    joined = activities.select(columns).join(calls, on="launch_id", how="left", validate="m:1", maintain_order="left")
    return joined.sort("start_ns", "correlation", "kernel_id").with_columns(
        previous_ns=pl.col("launched_ns").cum_max().shift().over(_STREAM),
        returned_ns=pl.when(_PAGEABLE_COPY).then("launched_ns").otherwise("returned_ns"),
    )


def _with_next(gaps: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    """Adds what is known of the activity that ends each gap."""
    names = ("launch_id", "thread_id", "launched_ns", "returned_ns", "call", "previous_ns", "stream", "group")
    known = activities.select(pl.col("kernel_id").alias("next_kernel_id"), *names)
    return gaps.join(known, on="next_kernel_id", how="left", validate="m:1").sort("start_ns")


def _thread_marks(activities: pl.DataFrame, calls: pl.DataFrame, syncs: pl.LazyFrame) -> pl.DataFrame:
    """Waits and launches of each thread: thread_id, mark_ns, and wait, the name of the call that waits."""
    launched = calls.join(activities, on="launch_id", how="semi")
    pageable = activities.filter(_PAGEABLE_COPY)
    copies = calls.filter(BLOCKING_COPY | pl.col("launch_id").is_in(pageable["launch_id"].drop_nulls().implode()))
    waits = syncs.filter(pl.col("side") == "cpu").select("thread_id", "start_ns", "name").collect()
    mark = ("thread_id", pl.col("start_ns").alias("mark_ns"))
    marks = pl.concat(
        [
            launched.select(*mark, wait=pl.lit(None, pl.String)),
            *(frame.select(*mark, wait="name") for frame in (copies, waits)),
        ]
    )
    # Of what begins at once the wait counts: a blocking copy is a launch too.
    return marks.sort("mark_ns", "wait", nulls_last=False)


def _with_host(gaps: pl.DataFrame, marks: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds wait: what the launching thread waited in, and inside: the call that it was in, when the gap began."""
    running = calls.select(
        "thread_id", call_ns="start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"), inside="name"
    ).sort("call_ns", "end_ns", "inside", descending=[False, True, False])  # the innermost of what begins at once
    gaps = _latest(gaps, marks, "start_ns", "mark_ns", ["thread_id"])
    gaps = _latest(gaps, running, "start_ns", "call_ns", ["thread_id"])
    return gaps.with_columns(inside=pl.when(pl.col("end_ns") > pl.col("start_ns")).then("inside"))


def _with_engine(gaps: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Adds has_no_batch: between the gap's beginning and the launch the engine said that it had none."""
    idle = spans.filter(_IDLE_SPAN).sort("start_ns").select(
        "rank", idle_ns="start_ns", idle_end_ns=(pl.col("start_ns") + pl.col("dur_ns")).cum_max().over("rank")
    )  # fmt: skip
    polls = spans.filter(_POLL_SPAN).sort("start_ns").select(
        "rank", poll_ns="start_ns", earlier_poll_ns=pl.col("start_ns").shift().over("rank")
    )  # fmt: skip
    gaps = gaps.sort("launched_ns", nulls_last=True)
    gaps = _latest(gaps, idle, "launched_ns", "idle_ns", ["rank"])
    gaps = _latest(gaps, polls, "launched_ns", "poll_ns", ["rank"])
    said = pl.col("idle_end_ns") > pl.col("start_ns")
    polled = pl.col("earlier_poll_ns") >= pl.col("start_ns")
    return gaps.with_columns(has_no_batch=said.fill_null(False) | polled.fill_null(False))


def _with_stream_waits(gaps: pl.DataFrame, launches: pl.LazyFrame, syncs: pl.LazyFrame) -> pl.DataFrame:
    """Adds is_awaited: since the previous launch on its stream, the stream was told to wait for an event."""
    has_stream = pl.col("device").is_not_null() & pl.col("stream").is_not_null()
    recorded = syncs.filter(_STREAM_WAIT_EVENT & has_stream).collect()
    calls = launches.filter(_STREAM_WAIT_CALL).collect()
    calls = calls.join(recorded.filter(pl.col("correlation").is_not_null()), on=["rank", "correlation"], how="anti")
    of_stream = recorded.select(*_STREAM, stream_wait_ns="start_ns").sort("stream_wait_ns")
    of_thread = calls.select("thread_id", thread_wait_ns="start_ns").sort("thread_wait_ns")
    gaps = _latest(gaps, of_stream, "launched_ns", "stream_wait_ns", _STREAM)
    gaps = _latest(gaps, of_thread, "launched_ns", "thread_wait_ns", ["thread_id"])
    latest = pl.max_horizontal("stream_wait_ns", "thread_wait_ns")
    is_new = pl.col("previous_ns").is_null() | (latest > pl.col("previous_ns"))
    return gaps.with_columns(is_awaited=latest.is_not_null() & is_new)


def _latest(gaps: pl.DataFrame, events: pl.DataFrame, at: str, event_at: str, by: list[str]) -> pl.DataFrame:
    """The gaps with the last event that began at or before a time of theirs; both are sorted by those times."""
    known = gaps.filter(pl.col(at).is_not_null())
    joined = known.join_asof(
        events,
        left_on=at,
        right_on=event_at,
        by=by,
        check_sortedness=False,  # sorted by the caller; polars cannot tell within groups
    )
    return pl.concat([joined, gaps.filter(pl.col(at).is_null())], how="diagonal")


def _is_late() -> pl.Expr:
    """Whether the host was late: the call came after the gap had begun, and the activity soon after the call."""
    end_ns = pl.col("start_ns") + pl.col("dur_ns")
    held_ns = end_ns - pl.max_horizontal("returned_ns", "start_ns")
    is_held = (held_ns > HELD_NS) & (2 * held_ns > pl.col("dur_ns"))
    return (pl.col("launched_ns") > pl.col("start_ns")) & ~is_held


def _cause() -> pl.Expr:
    is_late = _is_late()
    return (
        pl.when(pl.col("launched_ns").is_null()).then(pl.lit("unknown"))
        .when(is_late & pl.col("has_no_batch")).then(pl.lit("no_work"))
        .when(is_late & pl.col("wait").is_not_null()).then(pl.lit("sync"))
        .when(is_late).then(pl.lit("launch"))
        .when(pl.col("is_awaited") | (pl.col("group") == "nccl")).then(pl.lit("dependency"))
        .otherwise(pl.lit("gpu_gap"))
        .alias("cause")
    )  # fmt: skip


def _host_call() -> pl.Expr:
    return (
        pl.when(pl.col("cause") == "sync").then("wait")
        .when(_is_late()).then(pl.coalesce("inside", "call"))
        .otherwise("call")
        .alias("host_call")
    )  # fmt: skip
