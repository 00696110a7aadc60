"""Idle time, its causes and the pace: against the slow count of `reference_idle.py`, and in small stories."""

import dataclasses
import json
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import polars as pl
import pytest
import reference_idle
from click.testing import CliRunner
from conftest import FIXTURES
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from test_truth import METAMORPHIC, REAL, SMALL, rewrite

import traceql
from traceql import analyses
from traceql.analyses.idle import CAUSES, UNRECORDED_NS, gaps_of, idle_gaps
from traceql.analyses.pace import (
    LAUNCH_STATS,
    STEP_PACE,
    Pace,
    idle_by_step,
    launch_stats,
    pace,
    pace_of_steps,
    queue_depth,
    step_pace,
)
from traceql.analyses.step_comm import step_comm
from traceql.analyses.summary import Selection
from traceql.cli.idle import command
from traceql.errors import MissingDataError
from traceql.report.idle_document import TABLES
from traceql.report.idle_page import MEANINGS, idle_page
from traceql.report.idle_words import VERDICTS as VERDICTS_IN_WORDS
from traceql.report.idle_words import pace_line, verdicts
from traceql.report.page import View
from traceql.report.text import render_text
from traceql.run import load_run
from traceql.trace import Trace

STEP = ["rank", "device", "step"]
EAGER = FIXTURES / "glm5" / "tiny-pool-eager-TP-0.json.gz"


def loaded(path: Path) -> Trace:
    return traceql.load(path, cache=False)


def named_gaps(trace: Trace) -> pl.DataFrame:
    """The `idle` table with names in place of ids."""
    kernels = trace.kernels.select(pl.col("kernel_id").alias("next_kernel_id"), next="name").collect()
    columns = (*STEP, "start_ns", "dur_ns", "cause", "next", "launched_ns", "host_call")
    return idle_gaps(trace).join(kernels, on="next_kernel_id", how="left", validate="m:1").select(columns).sort(columns)


def check_sums(trace: Trace) -> None:
    """Gaps add up to idle, causes to idle, and every launch outstanding starts some time, whatever the trace."""
    found = analyses.Attribution.of(trace)
    steps = found.steps.filter(pl.col("wall_ns").is_not_null())
    gaps, depth = idle_gaps(trace), queue_depth(trace, found)
    sums = gaps.group_by(STEP).agg(gap_ns=pl.sum("dur_ns"))
    both = steps.join(sums, on=STEP, how="left").with_columns(pl.col("gap_ns").fill_null(0))
    assert both["gap_ns"].to_list() == both["idle_ns"].to_list()
    table = pace_of_steps(found.steps, gaps, depth, step_comm(trace))
    assert table.height == steps.height
    by_cause = table.select(pl.sum_horizontal(f"{cause}_ns" for cause in CAUSES)).to_series()
    assert by_cause.to_list() == table["idle_ns"].to_list()
    assert not depth.height or depth["n_outstanding"].min() == 0
    assert depth.group_by("rank", "device").agg(pl.last("n_outstanding"))["n_outstanding"].sum() == 0


def check_against_reference(path: Path) -> None:
    """Every gap equals the slow count: bounds, cause, what ends it and the host call."""
    trace = loaded(path)
    check_sums(trace)
    expected, expected_steps = reference_idle.gaps(path)
    table = analyses.steps(trace)
    if not expected_steps and table.height:
        return  # found without annotations, which the slow count does not do
    # Which windows there are is the business of test_truth.py; here the gaps in those that both find.
    windowed = table.filter(pl.col("wall_ns").is_not_null()).select(STEP).rows()
    agreed = {(s.rank, s.device, s.number) for s in expected_steps if s.end is not None}.intersection(windowed)
    zero = trace.meta.first_event_ns or 0
    rows = [row for row in (gap.row(zero) for gap in expected) if row[:3] in agreed]
    assert sorted(row for row in named_gaps(trace).rows() if row[:3] in agreed) == sorted(rows)


@pytest.mark.parametrize("path", [p for p in REAL if "tiny" in p.name] + SMALL, ids=lambda path: path.name)
def test_every_gap_against_the_slow_count(path):
    check_against_reference(path)


def test_the_slow_count_meets_most_causes():
    found = {gap.cause for path in FIXTURES.glob("glm5/*") for gap in reference_idle.gaps(path)[0]}
    assert {"sync", "launch", "dependency", "gpu_gap"} <= found


# --- random traces

NAMES = ["gemm", "ncclDevKernel_AllReduce", "Memcpy DtoH (Device -> Pageable)"]
CALLS = ["cudaLaunchKernel", "cudaLaunchKernel", "cudaMemcpy", "cudaMemcpyAsync"]
OTHERS = ["cudaStreamSynchronize", "cudaEventQuery", "cudaStreamWaitEvent", "cudaMalloc"]
SPANS = ["scheduler.on_idle", "scheduler.recv_requests", "scheduler.recv_requests", "scheduler.run_batch"]


@st.composite
def random_traces(draw: st.DrawFn) -> str:
    """A small trace in a narrow range of time, with waits, stream waits and what an engine writes.

    Of up to 300 ns, or of up to 2 ms: there some activities are held longer than any launch takes.
    """
    numbers = st.integers
    scale = draw(st.sampled_from([1, 7000]))
    events: list[dict[str, Any]] = []

    def event(cat: str, name: str, pid: int, tid: int, start_ns: int, dur_ns: int, **args: int) -> None:
        times = {"ts": f"{scale * start_ns / 1000:.3f}", "dur": f"{scale * dur_ns / 1000:.3f}"}
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": args})

    for number in range(draw(numbers(1, 4))):
        event("user_annotation", f"ProfilerStep#{number}", 9, 9, number * 40, draw(numbers(20, 40)))
    for _ in range(draw(numbers(0, 4))):
        event("user_annotation", draw(st.sampled_from(SPANS)), 9, 9, draw(numbers(0, 200)), draw(numbers(0, 15)))
    for correlation in range(1, draw(numbers(3, 10))):
        tid, name = draw(numbers(9, 10)), draw(st.sampled_from(CALLS))
        start = draw(numbers(0, 170))
        event("cuda_runtime", name, 9, tid, start, draw(numbers(0, 20)), correlation=correlation)
        if draw(st.booleans()):
            device, stream, kernel_start = 0, draw(numbers(1, 2)), start + draw(numbers(-5, 60))
            args = {"device": device, "stream": stream, "correlation": correlation}
            event("kernel", draw(st.sampled_from(NAMES)), device, stream, kernel_start, draw(numbers(0, 20)), **args)
    for correlation in range(20, 20 + draw(numbers(0, 6))):
        tid, name, start = draw(numbers(9, 10)), draw(st.sampled_from(OTHERS)), draw(numbers(0, 200))
        event("cuda_runtime", name, 9, tid, start, draw(numbers(0, 40)), correlation=correlation)
        if name == "cudaStreamWaitEvent" and draw(st.booleans()):
            args = {"device": 0, "stream": draw(numbers(1, 2)), "correlation": correlation}
            event("cuda_sync", "Stream Wait Event", 0, args["stream"], start + 1, 1, **args)
    for _ in range(draw(numbers(0, 8))):
        device, stream = draw(numbers(0, 1)), draw(numbers(1, 2))
        args = {"device": device, "stream": stream, "correlation": draw(numbers(0, 10))}
        start, dur = draw(numbers(0, 220)), draw(numbers(0, 20))
        event("kernel", draw(st.sampled_from(NAMES)), device, stream, start, dur, **args)
    return json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=1)


@settings(
    max_examples=40,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=random_traces())
def test_random_traces(text, tmp_path):
    path = tmp_path / "random.json"
    path.write_text(text)
    walls = analyses.steps(loaded(path))["wall_ns"].drop_nulls()
    assume((walls >= 0).all())  # what window there is, is not the question here
    check_against_reference(path)


# --- what must not matter


def everything(path: Path) -> dict[str, pl.DataFrame]:
    trace = loaded(path)
    return {
        "gaps": named_gaps(trace),
        "pace": step_pace(trace),
        "launches": launch_stats(trace),
        "depth": queue_depth(trace),
    }


@pytest.mark.parametrize("path", METAMORPHIC, ids=lambda path: path.name)
@pytest.mark.parametrize("change", [{"seed": 5}, {"shift_us": "1751328000123456.789"}], ids=str)
def test_order_and_clock_do_not_matter(path, change, tmp_path):
    found, expected = everything(rewrite(path, tmp_path / path.name, **change)), everything(path)
    for name, frame in expected.items():
        assert_frame_equal(found[name], frame)


# --- small stories: two steps, 1000 µs apart, on one device


def span(name: str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur}


def call(name: str, ts: float, dur: float, correlation: int = 0, tid: int = 1) -> dict[str, Any]:
    args = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(correlation: int, ts: float, dur: float, name: str = "gemm", stream: int = 7) -> dict[str, Any]:
    args = {"device": 0, "stream": stream, "correlation": correlation}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}


def launched(correlation: int, call_ts: float, ts: float, dur: float, **about: Any) -> list[dict[str, Any]]:
    """A launch call of 5 µs and its kernel."""
    return [call("cudaLaunchKernel", call_ts, 5, correlation), kernel(correlation, ts, dur, **about)]


def story(tmp_path: Path, *events: dict[str, Any], mark: str = "step[DECODE bs=1]") -> Trace:
    """A step with kernels at 100 to 150 µs and from 300 µs on, and what happened between; then another step."""
    path = tmp_path / "story.json"
    frame = [span(mark, 0, 900), *launched(1, 10, 100, 50), span(mark, 1000, 100), *launched(2, 1010, 1100, 50)]
    # 700 µs of work, which was queued before 150 µs, leave the gap from 150 to 300 µs as the only one
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [*frame, *events]}))
    return loaded(path)


def the_gap(trace: Trace) -> tuple[Any, ...]:
    (row,) = idle_gaps(trace).select("start_ns", "dur_ns", "cause", "host_call").rows()
    start = analyses.steps(trace)["start_ns"][0]
    return (row[0] - start, row[1], *row[2:])


LATE = launched(3, 200, 300, 800)
"""Launched 50 µs after the gap began."""
EARLY = launched(3, 50, 300, 800)

STORIES = {
    "launched late": (LATE, "launch", "cudaLaunchKernel"),
    "launched late, in another call when the gap began": (
        [*LATE, call("cudaMalloc", 120, 70)], "launch", "cudaMalloc"),
    "still waiting when the gap began": (
        [*LATE, call("cudaStreamSynchronize", 60, 95)], "sync", "cudaStreamSynchronize"),
    "returned from the wait, and not launched yet": (
        [*LATE, call("cudaDeviceSynchronize", 60, 30)], "sync", "cudaDeviceSynchronize"),
    "waited only after the gap had begun": (
        [*LATE, call("cudaDeviceSynchronize", 160, 30)], "launch", "cudaLaunchKernel"),
    "waited, then launched something else": (
        [*LATE, call("cudaDeviceSynchronize", 60, 20), *launched(4, 90, 120, 30, stream=8)],
        "launch", "cudaLaunchKernel"),
    "another thread waited": (
        [*LATE, call("cudaDeviceSynchronize", 60, 95, tid=2)], "launch", "cudaLaunchKernel"),
    "a blocking copy": (
        [*LATE, call("hipMemcpyWithStream", 60, 92, 4), kernel(4, 120, 30)], "sync", "hipMemcpyWithStream"),
    "a copy to pageable memory": (
        [*LATE, call("cudaMemcpyAsync", 60, 92, 4), kernel(4, 120, 30, "Memcpy DtoH (Device -> Pageable)")],
        "sync", "cudaMemcpyAsync"),
    "a copy to pinned memory does not wait": (
        [*LATE, call("cudaMemcpyAsync", 60, 92, 4), kernel(4, 120, 30, "Memcpy DtoH (Device -> Pinned)")],
        "launch", "cudaMemcpyAsync"),
    "the engine idles": (
        [*LATE, span("scheduler.on_idle", 160, 20)], "no_work", "cudaLaunchKernel"),
    "the engine idled before": (
        [*LATE, span("scheduler.on_idle", 110, 20)], "launch", "cudaLaunchKernel"),
    "the engine polls once a turn": (
        [*LATE, span("scheduler.recv_requests", 160, 5)], "launch", "cudaLaunchKernel"),
    "the engine polls again, having launched nothing": (
        [*LATE, span("scheduler.recv_requests", 160, 5), span("scheduler.recv_requests", 180, 5)],
        "no_work", "cudaLaunchKernel"),
    "work that is queued already outlasts an idle engine": (
        [*EARLY, span("scheduler.on_idle", 140, 50)], "gpu_gap", "cudaLaunchKernel"),
    "launched before the gap began": (EARLY, "gpu_gap", "cudaLaunchKernel"),
    "launched at the very moment": (launched(3, 150, 300, 800), "gpu_gap", "cudaLaunchKernel"),
    "launched late, and held": (launched(3, 160, 300, 800), "gpu_gap", "cudaLaunchKernel"),
    "held by a wait of its stream": (
        [*launched(3, 160, 300, 800), call("cudaStreamWaitEvent", 155, 2)], "dependency", "cudaLaunchKernel"),
    "held for as long as a launch may take": (launched(3, 195, 300, 800), "launch", "cudaLaunchKernel"),
    "held for longer": (launched(3, 194.999, 300, 800), "gpu_gap", "cudaLaunchKernel"),
    "the call itself takes long": (
        [call("cudaLaunchKernel", 160, 130, 3), kernel(3, 300, 800)], "launch", "cudaLaunchKernel"),
    "a blocking copy is held": (
        [call("hipMemcpyWithStream", 160, 940, 3), kernel(3, 300, 800)], "gpu_gap", "hipMemcpyWithStream"),
    "a copy to pageable memory is held": (
        [call("cudaMemcpyAsync", 160, 940, 3), kernel(3, 300, 800, "Memcpy DtoH (Device -> Pageable)")],
        "gpu_gap", "cudaMemcpyAsync"),
    "a collective": (
        launched(3, 50, 300, 800, name="ncclDevKernel_AllReduce_Sum"), "dependency", "cudaLaunchKernel"),
    "its stream was told to wait": (
        [*EARLY, call("cudaStreamWaitEvent", 40, 2)], "dependency", "cudaLaunchKernel"),
    "the wait was for what ran before": (
        [*EARLY, call("cudaStreamWaitEvent", 5, 2)], "gpu_gap", "cudaLaunchKernel"),
    "the wait is for what comes after": (
        [*EARLY, call("cudaStreamWaitEvent", 60, 2)], "gpu_gap", "cudaLaunchKernel"),
    "another stream was told to wait": (
        [*EARLY, call("cudaStreamWaitEvent", 40, 2, 9),
         kernel(9, 40, 1, "Stream Wait Event", stream=8) | {"cat": "cuda_sync"}], "gpu_gap", "cudaLaunchKernel"),
    "this stream is recorded to wait": (
        [*EARLY, call("cudaStreamWaitEvent", 40, 2, 9),
         kernel(9, 40, 1, "Stream Wait Event", stream=7) | {"cat": "cuda_sync"}], "dependency", "cudaLaunchKernel"),
    "no launch is recorded": ([kernel(0, 300, 800)], "unknown", None),
}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_one_gap_has_one_cause(name, tmp_path):
    events, cause, host_call = STORIES[name]
    assert the_gap(story(tmp_path, *events)) == (50_000, 150_000, cause, host_call)


def test_an_idle_pass_of_the_engine(tmp_path):
    """Under DP attention a rank without requests runs an idle pass along with the others."""
    trace = story(tmp_path, *LATE, mark="step[IDLE bs=0]")
    assert the_gap(trace)[2] == "no_work"


def test_only_the_first_activity_of_a_graph_can_wait_for_an_event(tmp_path):
    graph = [call("cudaGraphLaunch", 50, 20, 3), *(kernel(3, ts, 90) for ts in (300, 400, 500))]
    filler = launched(4, 80, 590, 600)
    trace = story(tmp_path, *graph, *filler, call("cudaStreamWaitEvent", 40, 2))
    assert idle_gaps(trace).select("dur_ns", "cause").rows() == [
        (150_000, "dependency"),
        (10_000, "gpu_gap"),
        (10_000, "gpu_gap"),
    ]


def test_a_gap_is_split_at_the_border_of_windows(tmp_path):
    """A window can begin with an activity that takes no time; then the gap goes on in it."""
    zero = [span("step[DECODE bs=1]", 2000, 100), *launched(8, 2010, 2100, 0), *launched(9, 2020, 2400, 10)]
    path = tmp_path / "zero.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [
        span("step[DECODE bs=1]", 0, 900), *launched(1, 10, 100, 50), *zero]}))  # fmt: skip
    trace = loaded(path)
    assert idle_gaps(trace).select("step", "dur_ns").rows() == [(0, 1_950_000), (1, 300_000)]
    check_sums(trace)
    check_against_reference(path)


# --- pace, launches, queue


def test_the_pace_of_a_step(tmp_path):
    row = step_pace(story(tmp_path, *LATE)).row(0, named=True)
    assert row == {
        "rank": 0, "device": 0, "step": 0, "stage": "decode", "is_complete": True,
        "wall_ns": 1_000_000, "idle_ns": 150_000,
        "no_work_ns": 0, "sync_ns": 0, "launch_ns": 150_000, "dependency_ns": 0, "gpu_gap_ns": 0, "unknown_ns": 0,
        "unrecorded_ns": 0, "exposed_comm_ns": 0, "comm_waiting_ns": None,
        "host_idle_ns": 150_000, "host_idle_frac": 0.15, "is_host_bound": True, "n_gaps": 1,
        # outstanding: the first launch is over when the window begins; the next from 200 to 300 µs, and the last 90
        "max_outstanding": 1, "mean_outstanding": pytest.approx((100 + 90) / 1000),
    }  # fmt: skip


@pytest.mark.parametrize(("gap_us", "bound"), [(100, True), (99, False)])
def test_a_tenth_of_the_wall_is_host_bound(gap_us, bound, tmp_path):
    trace = story(tmp_path, *launched(3, 151, 150 + gap_us, 1000))
    assert step_pace(trace)["is_host_bound"][0] is bound


def test_launches_outstanding(tmp_path):
    """Two are on their way at 50 µs; a kernel without a launch and one that starts too early do not count."""
    events = [*launched(3, 50, 300, 10), kernel(0, 320, 10), *launched(4, 700, 690, 10)]
    depth = queue_depth(story(tmp_path, *events))
    moments = [(time - 10_000, n) for time, n in depth.select("time_ns", "n_outstanding").rows()]
    assert moments == [(0, 1), (40_000, 2), (90_000, 1), (290_000, 0), (1_000_000, 1), (1_090_000, 0)]


def test_orphans_do_not_count_as_outstanding():
    depth = queue_depth(loaded(FIXTURES / "cases" / "28-orphan-gpu-ops.json"))
    assert depth["n_outstanding"].to_list() == [1, 0]


def test_a_graph_launch_is_one_launch(tmp_path):
    graph = [call("cudaGraphLaunch", 50, 20, 3), *(kernel(3, ts, 90) for ts in (300, 400, 500))]
    stats = launch_stats(story(tmp_path, *graph))
    assert stats.filter(name="cudaGraphLaunch").row(0, named=True) == {
        "rank": 0, "device": 0, "name": "cudaGraphLaunch", "n_launches": 1, "n_kernels": 3,
        "kernels_per_launch": 3.0, "call_ns": 20_000, "call_ns_per_kernel": pytest.approx(20_000 / 3),
        "median_call_ns": 20_000.0, "p90_call_ns": 20_000.0,
        "median_delay_ns": 250_000.0, "p10_delay_ns": 250_000.0, "p90_delay_ns": 250_000.0,
    }  # fmt: skip
    assert stats.filter(name="cudaLaunchKernel")["n_launches"].to_list() == [2]


def test_mean_outstanding_against_a_loop():
    trace = loaded(EAGER)
    depth, steps = queue_depth(trace).rows(), analyses.steps(trace)
    for row, start in zip(step_pace(trace).iter_rows(named=True), steps["start_ns"], strict=True):
        end, area, most = start + row["wall_ns"], 0, 0
        for (_, _, begin, n), (_, _, until, _) in zip(depth, [*depth[1:], (0, 0, end, 0)], strict=True):
            overlap = min(until, end) - max(begin, start)
            if overlap > 0:
                area, most = area + n * overlap, max(most, n)
        assert row["max_outstanding"] == most
        assert row["mean_outstanding"] == pytest.approx(area / row["wall_ns"])


# --- nothing to tell

WITHOUT = ["31-empty-events", "31-metadata-only", "71-no-kernels", "21-no-profiler-step"]


@pytest.mark.parametrize("name", WITHOUT)
def test_nothing_recorded_gives_empty_tables(name):
    trace = loaded(FIXTURES / "cases" / f"{name}.json")
    found = pace(trace)
    assert found.gaps.is_empty()
    assert found.causes.is_empty()
    assert_frame_equal(found.steps, STEP_PACE.empty())
    assert pace_line(found.steps) is None
    assert len(page_lines(found)) == 1


def test_a_trace_without_launches(tmp_path):
    """The windows of another trace, its launches gone: nobody knows why the GPU was idle."""
    trace = loaded(EAGER)
    bare = dataclasses.replace(
        trace, kernels=trace.kernels.with_columns(launch_id=pl.lit(None, pl.Int64), op_id=pl.lit(None, pl.Int64))
    )
    windows = analyses.Attribution.of(trace)
    gaps = gaps_of(bare, dataclasses.replace(windows, activities=windows.activities.drop("launch_id").join(
        bare.kernels.select("kernel_id", "launch_id").collect(), on="kernel_id")))  # fmt: skip
    assert set(gaps["cause"]) == {"unknown"}
    assert gaps["dur_ns"].sum() == windows.steps["idle_ns"].sum()
    assert idle_gaps(bare).is_empty()  # without launches no activity belongs to a step
    assert_frame_equal(launch_stats(bare), LAUNCH_STATS.empty())
    assert queue_depth(bare).is_empty()


def test_a_step_that_is_not_there():
    with pytest.raises(MissingDataError, match="no step"):
        pace(loaded(EAGER), Selection(first_step=7))


# --- words


def page_lines(found: Pace, **view: Any) -> list[str]:
    return render_text(idle_page(found, View(**view)), width=200).splitlines()


def a_pace(*rows: dict[str, Any]) -> pl.DataFrame:
    """Steps of 10 ms, all idle time of which is between kernels unless said."""
    times = {f"{cause}_ns": 0 for cause in CAUSES}
    full = []
    for row in rows:
        step = {**dict.fromkeys(STEP, 0), "stage": "decode", "is_complete": True, "wall_ns": 10_000_000, **times}
        step |= {"unrecorded_ns": 0, "exposed_comm_ns": 0, "comm_waiting_ns": None}
        step |= {"n_gaps": 5, "max_outstanding": 2, "mean_outstanding": 1.0, **row}
        step["idle_ns"] = sum(step[name] for name in times)
        step["host_idle_ns"] = step["launch_ns"] + step["sync_ns"]
        step["host_idle_frac"] = step["host_idle_ns"] / step["wall_ns"]
        step["is_host_bound"] = step["host_idle_frac"] >= 0.1
        full.append(step)
    return STEP_PACE.check(pl.DataFrame(full, schema=STEP_PACE.schema))


UNRECORDED = (
    "in long gaps before work already launched, which waits for what is not recorded: neither host-bound nor GPU-bound"
)
COMMUNICATION = "Nothing but communication runs for {} % of the step: communication-bound, or it waits for another rank"
BETWEEN = "all of it between kernels already launched"
WORST = "worst rank 1, whose GPU waits for the host 20 % of the step"
LINES = [
    ([{"launch_ns": 5_100_000, "sync_ns": 60_000}],
     "GPU waits for the host 52 % of the step: host-bound; 5.2 of 10.0 ms"),
    ([{"gpu_gap_ns": 80_000}], "GPU-bound: idle 0.8 % of the step, all of it between kernels already launched"),
    ([{"gpu_gap_ns": 80_000, "sync_ns": 40_000}], "GPU-bound: idle 1.2 % of the step, 0.4 % waiting for the host"),
    ([{}], "GPU-bound: never idle in the step"),
    ([{"unknown_ns": 3_000_000, "gpu_gap_ns": 1}],
     "GPU idle 30 % of the step, 30 % of unknown cause: launches are not recorded"),
    ([{"dependency_ns": 5_000_000, "launch_ns": 100_000}],
     "GPU idle 51 % of the step, 50 % waiting for another stream or a collective: neither host-bound nor GPU-bound"),
    ([{"no_work_ns": 6_000_000}],
     "GPU idle 60 % of the step, 60 % without a batch to work on: neither host-bound nor GPU-bound"),
    # launched in time, but idle for long: no shorter kernel makes that shorter
    ([{"gpu_gap_ns": 6_000_000, "launch_ns": 100_000}],
     "GPU mostly idle: idle 61 % of the step, 60 % between kernels already launched"),
    # what is launched and does not start for milliseconds waits for what is not recorded, whatever the cause says
    ([{"gpu_gap_ns": 6_000_000, "unrecorded_ns": 5_000_000}], f"GPU idle 60 % of the step, 50 % {UNRECORDED}"),
    ([{"dependency_ns": 5_000_000, "unrecorded_ns": 5_000_000}], f"GPU idle 50 % of the step, 50 % {UNRECORDED}"),
    # a rank that waits for another inside its collectives is busy, and yet its kernels do not set the pace
    ([{"exposed_comm_ns": 7_700_000, "gpu_gap_ns": 300_000, "launch_ns": 900_000}],
     f"{COMMUNICATION.format(77)}; idle 12 %, 9.0 % waiting for the host"),
    ([{"exposed_comm_ns": 5_000_000, "gpu_gap_ns": 300_000}], f"{COMMUNICATION.format(50)}; idle 3.0 %"),
    ([{"exposed_comm_ns": 4_900_000, "gpu_gap_ns": 80_000}],
     f"GPU-bound: idle 0.8 % of the step, {BETWEEN}; nothing but communication runs for 49 % of it"),
    ([{"exposed_comm_ns": 900_000, "gpu_gap_ns": 80_000}], f"GPU-bound: idle 0.8 % of the step, {BETWEEN}"),
    ([{"exposed_comm_ns": 6_000_000, "launch_ns": 2_000_000}],
     "GPU waits for the host 20 % of the step: host-bound; 2.0 of 10.0 ms"),
    ([{"gpu_gap_ns": 4_900_000}], "GPU-bound: idle 49 % of the step, all of it between kernels already launched"),
    ([{"wall_ns": 200_000, "launch_ns": 40_000}],
     "GPU waits for the host 20 % of the step: host-bound; 40.0 µs of 200.0 µs"),
    # an incomplete step does not count where there is a complete one, and does where there is none
    ([{"gpu_gap_ns": 80_000}, {"step": 1, "launch_ns": 9_000_000, "is_complete": False}],
     "GPU-bound: idle 0.8 % of the step, all of it between kernels already launched"),
    ([{"launch_ns": 9_000_000, "is_complete": False}],
     "GPU waits for the host 90 % of the step: host-bound; 9.0 of 10.0 ms"),
    # a run: the median rank, the worst beside it
    ([{"rank": 0, "launch_ns": 200_000}, {"rank": 1, "launch_ns": 2_000_000}, {"rank": 2, "gpu_gap_ns": 1_000}],
     f"GPU-bound: idle 2.0 % of the step, 2.0 % waiting for the host (rank 0, the median of 3; {WORST})"),
    ([{"rank": 0, "device": 0}, {"rank": 0, "device": 1}],
     "GPU-bound: never idle in the step (rank 0 device 0, the median of 2)"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "line"), LINES, ids=lambda value: value if isinstance(value, str) else "")
def test_the_headline(rows, line):
    assert pace_line(a_pace(*rows)) == line


NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


@pytest.mark.parametrize(("rest_us", "unrecorded_ns"), [(4_999.999, 0), (5_000, 5_000_000)])
def test_a_step_that_waits_for_what_is_not_recorded_or_in_a_collective(rest_us, unrecorded_ns, tmp_path):
    """A kernel, its successor held up; then a collective of 1 ms, of which another stream's kernel covers 0.3 ms."""
    held = 150 + rest_us
    events = [
        *launched(1, 10, 100, 50),
        *launched(2, 20, held, 50),
        *launched(3, 30, held + 50, 1_000, name=NCCL),
        *launched(4, 40, held + 750, 300, stream=8),
        *launched(5, 12_010, 12_100, 50),
    ]
    path = tmp_path / "story.json"
    marks = [span("step[DECODE bs=1]", 0, 900), span("step[DECODE bs=1]", 12_000, 100)]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [*marks, *events]}))
    trace = loaded(path)
    check_sums(trace)
    row = step_pace(trace).row(0, named=True)
    assert (row["unrecorded_ns"], row["exposed_comm_ns"]) == (unrecorded_ns, 700_000)
    assert idle_by_step(trace).select("unrecorded_ns", "exposed_comm_ns").row(0) == (unrecorded_ns, 700_000)
    # the last gap ends where the next step was launched late: the host's
    assert row["launch_ns"] > UNRECORDED_NS


def test_every_verdict_has_its_own_words():
    named = {verdict.name: verdict for rows, _ in LINES for verdict in verdicts(a_pace(*rows))}
    assert set(named) == set(VERDICTS_IN_WORDS)
    (unrecorded,) = verdicts(a_pace({"gpu_gap_ns": 6_000_000, "unrecorded_ns": 5_000_000}))
    (no_work,) = verdicts(a_pace({"no_work_ns": 6_000_000}))
    assert unrecorded.name == no_work.name == "neither"
    assert unrecorded.meaning == "host-bound nor GPU-bound: launched work waits for what is not recorded"
    assert no_work.meaning == "host-bound nor GPU-bound: the engine has no batch to work on"


LATE_HOST = [{"rank": 0, "launch_ns": 900_000}, {"rank": 1, "launch_ns": 8_000_000}]
COMM_LINES = [
    # the one keeps up and waits in collectives for the other, whose host is late: the host sets the pace of both
    (LATE_HOST, [(7_000_000, 6_900_000), (100_000, 0)],
     ("GPU waits for the host 80 % of the step: host-bound; 8.0 of 10.0 ms "
     "(rank 1, the worst of 2; rank 0, the median, waits for other ranks 69 % of it)")),
    # nobody waits for the rank whose host is late: they are replicas
    (LATE_HOST, [(400_000, 300_000), (100_000, 0)],
     ("GPU-bound: idle 9.0 % of the step, 9.0 % waiting for the host "
     "(rank 0, the median of 2; worst rank 1, whose GPU waits for the host 80 % of the step)")),
    # the other's GPU is late
    ([{"rank": 0, "gpu_gap_ns": 100_000}, {"rank": 1}], [(5_000_000, 4_000_000), (100_000, 0)],
     ("GPU waits for other ranks 40 % of the step: neither host-bound nor GPU-bound; idle 1.0 % "
     "(rank 0, the median of 2)")),
    # waiting beside other work is none of the GPU
    ([{}], [(500_000, 4_000_000)], "GPU-bound: never idle in the step"),
    # nobody waits: it is transfer
    ([{"gpu_gap_ns": 100_000}], [(6_000_000, 100_000)],
     "Nothing but communication runs for 60 % of the step: communication-bound; idle 1.0 %"),
    # of one rank alone it is not known
    ([{"gpu_gap_ns": 100_000}], [(6_000_000, None)], f"{COMMUNICATION.format(60)}; idle 1.0 %"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "comm", "line"), COMM_LINES, ids=range(len(COMM_LINES)))
def test_a_gpu_that_waits_in_a_collective_is_not_what_a_step_waits_for(rows, comm, line):
    """Of each device nothing but communication runs for the first time, of which it waits for the second."""
    times = ({"exposed_comm_ns": exposed, "comm_waiting_ns": waiting} for exposed, waiting in comm)
    assert pace_line(a_pace(*(row | time for row, time in zip(rows, times, strict=True)))) == line


def test_every_cause_has_a_meaning():
    assert tuple(MEANINGS) == CAUSES


def test_the_page(tmp_path):
    waiting = "the GPU waits for the host 15.0 % of the step (median; 15.0 % to 15.0 %)"
    assert page_lines(pace(story(tmp_path, *LATE))) == [
        "GPU waits for the host 15 % of the step: host-bound; 0.15 of 1.00 ms",
        "",
        "Idle time",
        "cause   median ms/step  mean ms/step  share of wall  gaps/step  median gap  meaning",
        "-" * 120,
        f"launch           0.150         0.150         15.0 %          1    150.0 µs  {MEANINGS['launch']}",
        "-" * 120,
        "idle             0.150         0.150         15.0 %          1",
        "wall             1.000         1.000        100.0 %",
        "Over 1 complete step. Every gap has one cause, by the launch of the activity that ends it.",
        "",
        "Host-bound or GPU-bound",
        f"1 of 1 step host-bound; {waiting}; launches outstanding: 0.2 in the mean, at most 1",
        "Host-bound: the GPU waits for the host (launch + sync) at least 10 % of the wall.",
        "Then a shorter kernel shortens the step little or not at all.",
        "Outstanding: launch calls begun of which no activity has started.",
        "",
        "Longest gaps",
        "step  at ms       gap  cause   launch late by  host was in       launched by       op  next activity",
        "-" * 100,
        "   0  0.150  150.0 µs  launch         50.0 µs  cudaLaunchKernel  cudaLaunchKernel  —   gemm",
        "",
        "Launches",
        "call              calls/step  activities/call  µs a call  p90  µs an activity  µs to start   p10   p90",
        "-" * 102,
        "cudaLaunchKernel           2                1        5.0  5.0             5.0         95.0  91.0  99.0",
        "Medians. To start: from the beginning of the call to the start of its first activity.",
    ]


def test_a_run_names_the_rank():
    found = pace(load_run(sorted(FIXTURES.glob("glm5/tiny-pool-eager-TP-*")), cache=False))
    lines = page_lines(found, by="step")
    assert "worst rank 0, whose GPU waits for the host 91 % of the step" in lines[0]
    assert lines[3].split()[:3] == ["rank", "device", "step"]
    steps = [line.split() for line in lines[5:]]
    assert [row[:3] for row in steps] == [[r, r, s] for r in "01" for s in "012"]


# --- the command


def run(*arguments: object) -> Any:
    return CliRunner().invoke(command, [*map(str, arguments), "--no-cache"])


def test_json_has_all_of_it():
    result = run(EAGER, "--format", "json", "--top", 3)
    assert result.exit_code == 0
    document, found = orjson.loads(result.stdout), pace(loaded(EAGER))
    assert document["headline"] == pace_line(found.steps)
    assert len(document["gaps"]) == 3
    assert document["n_gaps"] == found.gaps.height
    assert [step["host_idle_ns"] for step in document["steps"]] == found.steps["host_idle_ns"].to_list()
    assert sum(cause["idle_ns"] for cause in document["causes"]) == found.counted["idle_ns"].sum()
    assert len(orjson.loads(run(EAGER, "--format", "json", "--all").stdout)["gaps"]) == found.gaps.height


@pytest.mark.parametrize("by", TABLES)
def test_csv_has_one_table(by):
    result = run(EAGER, "--format", "csv", "--by", by)
    frame: pl.DataFrame = getattr(pace(loaded(EAGER)), TABLES[by])
    lines = result.stdout.splitlines()
    assert lines[0].split(",") == frame.columns
    assert len(lines) - 1 == frame.height


def test_parquet_and_markdown(tmp_path):
    assert run(EAGER, "-o", tmp_path / "gaps.parquet", "--by", "gap").exit_code == 0
    assert_frame_equal(pl.read_parquet(tmp_path / "gaps.parquet"), pace(loaded(EAGER)).gaps)
    text = run(EAGER, "--format", "markdown", "--steps", "1").stdout
    assert text.startswith("**GPU waits for the host 91 % of the step: host-bound; 11.2 of 12.3 ms**")


def test_only_one_rank_of_a_run():
    result = run(FIXTURES / "glm5" / "tiny-pool-eager-TP-*", "--rank", 1, "--format", "csv", "--by", "step")
    assert pl.read_csv(result.stdout.encode())["rank"].unique().to_list() == [1]


def test_wrong_calls():
    assert run(EAGER, "--all", "--top", 3).exit_code == 2
    assert run().exit_code == 2


# --- real figures


@dataclasses.dataclass(frozen=True)
class Medians:
    """Of a step, over the complete ones: ms idle, of it ms in which the GPU waits for the host; number of gaps."""

    idle: float
    host: float
    n_gaps: float


MEDIANS = {
    "sglang/before-eager-TP-0.trace.json.zst": Medians(94.064, 92.742, 2234),
    "sglang/after-eager-TP-0.trace.json.zst": Medians(143.387, 142.199, 2306),
    "sglang/before-graph-TP-0.trace.json.zst": Medians(0.669, 0.000, 1666),
    "sglang/after-graph-TP-0.trace.json.zst": Medians(0.688, 0.000, 1656),
    "glm5/glm5-pool-graph-TP-0.json.gz": Medians(1.084, 0.375, 3740),
    "glm5/glm5-pool-eager-TP-0.json.gz": Medians(41.459, 38.073, 4201),
}
VERDICTS = {
    "sglang/before-eager-TP-0.trace.json.zst": "GPU waits for the host 52 % of the median step: host-bound; 92.7 of "
    "179.5 ms",
    "sglang/before-graph-TP-0.trace.json.zst": "GPU-bound: idle 0.8 % of the median step, all of it between kernels "
    "already launched",
    "glm5/glm5-pool-graph-TP-0.json.gz": "GPU-bound: idle 1.2 % of the median step, 0.4 % waiting for the host",
}


@pytest.mark.shared
@pytest.mark.parametrize("name", MEDIANS)
def test_idle_of_the_recorded_steps(shared, name):
    trace = loaded(shared / name)
    check_sums(trace)
    found = pace(trace)
    idle, host = (round(median(found.counted[f"{what}_ns"].to_list()) / 1e6, 3) for what in ("idle", "host_idle"))
    assert Medians(idle, host, median(found.counted["n_gaps"].to_list())) == MEDIANS[name]
    if name in VERDICTS:
        assert pace_line(found.steps) == VERDICTS[name]


@pytest.mark.shared
def test_a_rank_that_waits_for_a_late_host_is_not_gpu_bound(shared):
    """Rank 0 is busy 90 % of the step, with all-reduces that wait for rank 1, launched late."""
    paths = [shared / f"glm5/glm5-gather-eager-TP-{rank}.json.gz" for rank in (0, 1)]
    both, one = pace(load_run(paths)), pace(loaded(paths[0]))
    assert pace_line(both.steps) == (
        "GPU waits for the host 87 % of the median step: host-bound; 131.0 of 150.9 ms "
        "(rank 1, the worst of 2; rank 0, the median, waits for other ranks 77 % of it)"
    )
    line = pace_line(one.steps)
    assert str(line).startswith(
        "Nothing but communication runs for 78 % of the median step: communication-bound, or it"
    )


@pytest.mark.shared
@pytest.mark.parametrize("name", [name for name in MEDIANS if "graph" in name])
def test_every_gap_of_a_recording_against_the_slow_count(shared, name):
    check_against_reference(shared / name)


@pytest.mark.shared
def test_the_gaps_inside_a_graph(shared):
    """50,025 gaps in the recording, 1,668 for each of its 30 graphs; most are shorter than a microsecond."""
    found = pace(loaded(shared / "sglang/before-graph-TP-0.trace.json.zst"))
    main = found.causes.row(0, named=True)
    assert main["cause"] == "gpu_gap"
    assert main["median_gap_ns"] == 416
    assert round(main["gaps_per_step"]) == 1666


HELD = {
    "public/tracelens-sglang-decode/sglang_Qwen3-8B_decode.json.gz": 463_295_405,
    "public/tracelens-sglang-prefill/sglang_Qwen3-8B_prefilldecode.json.gz": 493_283_729,
}
"""Recordings that begin in the middle of a step. Their first activity waits for what is not recorded: a wait for an
event stands before its launch, which comes 40 µs after the gap has begun."""


@pytest.mark.shared
@pytest.mark.parametrize("name", HELD)
def test_what_waits_for_work_before_the_recording_does_not_wait_for_the_host(shared, name):
    check_against_reference(shared / name)
    found = pace(loaded(shared / name))
    longest = found.gaps.row(0, named=True)
    assert (longest["cause"], longest["dur_ns"]) == ("dependency", HELD[name])
    assert longest["launched_ns"] - longest["start_ns"] < 40_000
    assert not found.counted["is_host_bound"].any()
    assert found.counted["unrecorded_ns"].to_list() == [HELD[name]]
    assert UNRECORDED in (pace_line(found.steps) or "")


PACES = {
    # a rank that waits in its collectives for the host of another; a whole step of a training job is 15.9 ms of them
    "glm5/glm5-gather-eager-TP-0.json.gz": "Nothing but communication runs for 78 % of the median step: "
    "communication-bound, or it waits for another rank; idle 12 %, 9.5 % waiting for the host",
    "public/tracelens-mi300-ddp-resnet/resnet_act_checkpoint.json.gz": "Nothing but communication runs for 62 % of the "
    "median step: communication-bound, or it waits for another rank; idle 0.5 %",
    # in each step 64 ms before the first node of a graph that is recorded, launched 66 ms before
    "public/hta-a100-graphs/rank0.json.gz": f"GPU idle 63 % of the median step, 50 % {UNRECORDED}",
    # its communication is overlapped
    "public/deepseek-train/train.json.gz": "GPU-bound: idle 0.4 % of the step, <0.1 % waiting for the host",
}


@pytest.mark.shared
@pytest.mark.parametrize("name", PACES)
def test_neither_waiting_ranks_nor_missing_records_are_work_of_the_gpu(shared, name):
    assert pace_line(pace(loaded(shared / name)).steps) == PACES[name]


@pytest.mark.shared
def test_after_the_synchronisation_of_each_step(shared):
    found = pace(loaded(shared / "glm5/glm5-pool-graph-TP-0.json.gz"))
    late = found.gaps.filter(pl.col("cause").is_in(["sync", "launch"]))
    assert late.select("cause", "host_call", "launch").unique().rows() == [
        ("sync", "cudaDeviceSynchronize", "cudaGraphLaunch")
    ]
    assert late.height == found.counted.height


@pytest.mark.shared
def test_gaps_add_up_in_every_file(shared):
    for path in sorted(shared.glob("public/*/*.gz")):
        check_sums(loaded(path))
