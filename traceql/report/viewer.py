"""One step with its critical path as a small Chrome trace, for Perfetto's UI and chrome://tracing.

Rows: a process for each rank with its host threads (calls of the runtime) and its GPU streams
(activities), and one that holds the critical path. What lies on the path has `on_critical_path` in
its arguments. Times are µs since the begin of what is shown, with the nanoseconds as decimals.
Activities of a stream that overlap are in extra rows, as in slices (`traceql.slicing.tracks`).
"""

from collections.abc import Iterator
from typing import Any

import orjson
import polars as pl

from traceql.analyses.critical_path import KINDS, CriticalPath
from traceql.errors import MissingDataError
from traceql.slicing.tracks import exact, lanes
from traceql.trace import Trace

Event = dict[str, Any]

_HOST, _GPU = 1, 2
"""A rank's process ids: ten times (the rank and one), plus one of these."""
_PATH_PID = 0
_STEP = ["rank", "device", "step"]


def shown_step(found: CriticalPath) -> pl.DataFrame:
    """The step to show (one row of table `path_steps`): of those selected the one with the median wall.

    Raises:
        MissingDataError: there is none.
    """
    if not found.steps.height:
        raise MissingDataError(
            "no complete step is selected, so there is no path to show", "Choose others with --steps."
        )
    ordered = found.steps.sort("wall_ns", *_STEP)
    return ordered.slice((ordered.height - 1) // 2, 1)


def viewer_trace(trace: Trace, found: CriticalPath, step: pl.DataFrame) -> bytes:
    """The Chrome trace of a step: JSON.

    Args:
        trace: the trace or run.
        found: its critical paths, as recorded.
        step: one row of table `path_steps`.
    """
    path = found.path.join(step, on=_STEP, how="semi").sort("start_ns")
    begin = int(path["start_ns"].min() or 0)  # pyright: ignore[reportArgumentType] - of integers it is one
    end = begin + int(path["dur_ns"].sum())
    events = [
        *_names(trace),
        *_path_events(path, begin),
        *_calls(trace, path, begin, end),
        *_kernels(trace, path, begin, end),
    ]
    document = {
        "displayTimeUnit": "ns",
        "traceql": {"step": step.select(_STEP).row(0, named=True), "begin_ns": begin, "end_ns": end},
        "traceEvents": events,
    }
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def _names(trace: Trace) -> Iterator[Event]:
    ranks = trace.kernels.select(pl.col("rank").unique().sort()).collect()["rank"].to_list()
    names = {_PATH_PID: "critical path"}
    for rank in ranks:
        names |= {10 * (rank + 1) + _HOST: f"rank {rank}, host", 10 * (rank + 1) + _GPU: f"rank {rank}, GPU"}
    for number, (pid, name) in enumerate(names.items()):
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": number}}


def _path_events(path: pl.DataFrame, begin: int) -> Iterator[Event]:
    for row in path.iter_rows(named=True):
        args = {"limit": row["limit"], "meaning": KINDS[row["kind"]][1], "on_rank": row["on_rank"]}
        ids = {name: row[name] for name in ("kernel_id", "launch_id") if row[name] is not None}
        yield _event(row["kind"], row["limit"], _PATH_PID, 0, row["start_ns"] - begin, row["dur_ns"], args | ids)


def _calls(trace: Trace, path: pl.DataFrame, begin: int, end: int) -> Iterator[Event]:
    on_path = set(path["launch_id"].drop_nulls().to_list())
    calls = _inside(trace.launches.select("launch_id", "rank", "thread_id", "name", "start_ns", "dur_ns"), begin, end)
    for row in calls.iter_rows(named=True):
        args = {"launch_id": row["launch_id"], "on_critical_path": row["launch_id"] in on_path}
        pid = 10 * (row["rank"] + 1) + _HOST
        yield _event(row["name"], "call", pid, row["thread_id"], row["start_ns"] - begin, row["dur_ns"], args)


def _kernels(trace: Trace, path: pl.DataFrame, begin: int, end: int) -> Iterator[Event]:
    runs = path.filter(pl.col("kind").is_in(["kernel", "communication"]))
    on_path = set(runs["kernel_id"].drop_nulls().to_list())
    columns = ("kernel_id", "rank", "device", "stream", "short_name", "category", "start_ns", "dur_ns")
    kernels = _inside(trace.kernels.select(columns), begin, end)
    place = ("rank", "device", "stream")
    numbers = kernels.select(pl.struct(place).rank("dense")).to_series().to_numpy()
    lane = lanes(numbers, kernels["start_ns"].to_numpy(), kernels["dur_ns"].to_numpy(), exact)
    kernels = kernels.with_columns(lane=lane)
    rows = {row: number for number, row in enumerate(kernels.select(*place, "lane").unique().sort(pl.all()).rows())}
    for (rank, device, stream, number), tid in rows.items():
        overlap = f" (overlap {number})" if number else ""
        yield {
            "ph": "M", "name": "thread_name", "pid": 10 * (rank + 1) + _GPU, "tid": tid,
            "args": {"name": f"device {device}, stream {stream}{overlap}"},
        }  # fmt: skip
    for row in kernels.iter_rows(named=True):
        args = {name: row[name] for name in ("kernel_id", "category", "device")}
        args["on_critical_path"] = row["kernel_id"] in on_path
        pid = 10 * (row["rank"] + 1) + _GPU
        tid = rows[row["rank"], row["device"], row["stream"], row["lane"]]
        yield _event(row["short_name"], row["category"], pid, tid, row["start_ns"] - begin, row["dur_ns"], args)


def _inside(rows: pl.LazyFrame, begin: int, end: int) -> pl.DataFrame:
    ends_after = pl.col("start_ns") + pl.col("dur_ns") > begin
    return rows.filter((pl.col("start_ns") < end) & ends_after).sort("start_ns").collect()


def _event(name: str, category: str, pid: int, tid: int, start_ns: int, dur_ns: int, args: Event) -> Event:  # noqa: PLR0917
    return {
        "ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid,
        "ts": _us(start_ns), "dur": _us(dur_ns), "args": args,
    }  # fmt: skip


def _us(ns: int) -> float:
    """Decimal µs; a tenth of a ns more, as Perfetto multiplies by 1000 and drops the fraction."""
    return (ns + 0.1) / 1000
