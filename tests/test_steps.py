"""How steps are found: by annotations, by graph launches, by repetition; and when they are not."""

import dataclasses
import json
import re
from pathlib import Path
from statistics import median

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import traceql
from traceql import analyses
from traceql.analyses.pace import idle_by_step
from traceql.analyses.step_marks import _annotations, _classify, repeating_groups
from traceql.trace import Trace


def small_trace(tmp_path: Path, events: list[dict]) -> Trace:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return traceql.load(path, cache=False)


def span(name: str, ts: float, dur: float, tid: int = 1) -> dict:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur}


def launch(correlation: int, call_ts: float, ts: float, dur: float, tid: int = 1, stream: int = 7) -> list[dict]:
    """A launch call of 1 µs and its kernel."""
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": tid, "ts": call_ts, "dur": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": stream, "ts": ts, "dur": dur}
    return [
        call | {"args": {"correlation": correlation}},
        kernel | {"args": {"device": 0, "stream": stream, "correlation": correlation}},
    ]


def without_annotations(trace: Trace) -> Trace:
    return dataclasses.replace(trace, spans=trace.spans.filter(pl.lit(False)))


def columns(frame: pl.DataFrame, *names: str) -> list[tuple]:
    return frame.select(names).rows()


@pytest.mark.parametrize("row", _annotations(), ids=lambda row: row.match)
def test_the_examples_of_an_annotation_match_it_first(row):
    for example in row.examples:
        assert next(r for r in _annotations() if re.search(r.match, example)) is row


@pytest.mark.parametrize(
    ("name", "stage", "batch_size"),
    [
        ("step[DECODE bs=8]", "decode", 8),
        ("step[EXTEND bs=2 toks=8192]", "prefill", 2),
        ("step[MIXED bs=3]", "mixed", 3),
        ("step[IDLE bs=0]", "unknown", None),
        ("execute_context_0(0)_generation_4(4)", "decode", 4),
        ("execute_context_1(888_788544)_generation_0(0)", "prefill", 1),
        ("execute_8192_context_9(sq8155sk8430)_generation_37(sq37sk34489)", "mixed", 46),
        ("ProfilerStep#3", "unknown", None),
    ],
)
def test_stage_and_batch_size(name, stage, batch_size):
    found = _classify(name)
    assert found is not None
    assert (found["stage"], found["batch_size"]) == (stage, batch_size)


@pytest.mark.parametrize("name", ["forward", "my step[DECODE bs=8]", "ProfilerStep", "executed_context_1"])
def test_other_annotations_are_no_steps(name):
    assert _classify(name) is None


def test_engine_annotations_win_over_the_profilers(tmp_path):
    trace = small_trace(
        tmp_path,
        [span("ProfilerStep#1", 0, 100), span("step[DECODE bs=2]", 10, 20), span("step[DECODE bs=2]", 40, 20)],
    )
    assert columns(analyses.steps(trace), "label", "annotation_ns") == [("step[DECODE bs=2]", 20_000)] * 2


def test_nested_annotations_make_one_step_that_knows_what_the_inner_one_says(tmp_path):
    events = [span("execute_model_3", 0, 50), span("step[DECODE bs=32]", 5, 30), *launch(1, 6, 10, 5)]
    steps = analyses.steps(small_trace(tmp_path, events))
    assert columns(steps, "label", "stage", "batch_size", "n_kernels") == [("execute_model_3", "decode", 32, 1)]


def test_drafting_passes_belong_to_the_step_before_them(tmp_path):
    events = []
    for i in range(3):
        events += [span("step[VERIFY bs=4]", 100 * i, 20), span("step[DRAFT bs=4]", 100 * i + 30, 10)]
        events += launch(2 * i + 1, 100 * i + 1, 100 * i + 5, 10) + launch(2 * i + 2, 100 * i + 32, 100 * i + 40, 10)
    steps = analyses.steps(small_trace(tmp_path, events))
    assert (
        columns(steps, "label", "n_kernels", "n_kernels_between", "annotation_ns")
        == [("step[VERIFY bs=4]", 2, 0, 40_000)] * 3
    )
    assert steps["wall_ns"].to_list() == [100_000, 100_000, 45_000]


def test_batches_at_once_get_launch_accounting_only(tmp_path):
    events = [span("step[DECODE bs=1]", 0, 50, tid=1), span("step[EXTEND bs=1 toks=9]", 10, 50, tid=2)]
    events += launch(1, 20, 30, 10, tid=1) + launch(2, 22, 35, 10, tid=2, stream=8) + launch(3, 5, 12, 3, tid=1)
    trace = small_trace(tmp_path, events)
    steps = analyses.steps(trace)
    assert columns(steps, "stage", "separable", "wall_ns", "busy_ns", "kernel_ns", "n_kernels") == [
        ("decode", False, None, None, 13_000, 2),
        ("prefill", False, None, None, 10_000, 1),
    ]


def test_a_window_that_a_later_step_begins_in_is_none(tmp_path):
    events = []
    for i, start in enumerate([111, None, 134, 125]):  # the second step launches nothing
        events.append(span(f"ProfilerStep#{i}", 20 * i, 10))
        events += launch(i + 1, 20 * i + 1, start, 5) if start else []
    steps = analyses.steps(small_trace(tmp_path, events))
    assert columns(steps, "step", "separable", "wall_ns") == [
        (0, False, None),
        (1, True, None),
        (2, False, None),
        (3, False, None),
    ]


def test_what_is_launched_between_annotations_opens_no_window(tmp_path):
    events = []
    for i in range(3):
        events += [span("step[DECODE bs=1]", 100 * i, 20), *launch(2 * i + 1, 100 * i + 5, 100 * i + 60, 10)]
        events += launch(2 * i + 2, 100 * i + 30, 100 * i + 31, 1, stream=8)  # runs before the pass it follows
    steps = analyses.steps(small_trace(tmp_path, events))
    assert columns(steps, "start_ns", "wall_ns", "n_kernels", "n_kernels_between") == [
        (60_000, 100_000, 2, 1),
        (160_000, 100_000, 2, 1),
        (260_000, 10_000, 2, 1),
    ]


def test_what_is_kept_with_a_cached_trace_is_what_is_worked_out(fixtures, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEQL_CACHE_DIR", str(tmp_path))
    path = fixtures / "glm5" / "tiny-pool-eager-TP-0.json.gz"
    fresh = analyses.Attribution.of(traceql.load(path, cache=False))
    for _ in range(2):  # worked out and kept, then read
        trace = traceql.load(path)
        kept = analyses.Attribution.of(trace)
        assert all(getattr(kept, name).equals(getattr(fresh, name)) for name in ("marks", "placed", "steps", "times"))
        assert kept.activities.equals(fresh.activities)
        assert idle_by_step(trace).equals(idle_by_step(traceql.load(path, cache=False)))
    assert len([file for file in tmp_path.iterdir() if file.suffix == ".traceql-cache"]) == 3
    changed = without_annotations(traceql.load(path))  # a changed copy is another trace: nothing kept is taken for it
    assert analyses.steps(changed)["method"].unique().to_list() == ["repetition"]


def test_graph_launches_give_the_steps_that_annotations_give(fixtures):
    trace = traceql.load(fixtures / "sglang" / "before-graph-TP-0.trace.json.zst", cache=False)
    annotated, found = analyses.steps(trace), analyses.steps(without_annotations(trace))
    assert found["method"].unique().to_list() == ["graph_launch"]
    assert found["n_kernels"].to_list()[1:-1] == annotated["n_kernels"].to_list()[1:-1]
    # a graph is launched a few kernels after the annotation begins, so windows shift, by less than 0.1 ms
    shifts = (found["start_ns"] - annotated["start_ns"]).to_list()[1:]
    assert all(0 <= shift < 100_000 for shift in shifts)
    assert abs(median(found["wall_ns"].to_list()) - median(annotated["wall_ns"].to_list())) < 5_000


@pytest.mark.parametrize("name", ["tiny-pool-graph-TP-0", "tiny-gather-eager-TP-1", "tiny-pool-stack-TP-0"])
def test_steps_without_annotations_are_the_annotated_ones(fixtures, name):
    trace = traceql.load(fixtures / "glm5" / f"{name}.json.gz", cache=False)
    same = ("step", "start_ns", "wall_ns", "busy_ns", "kernel_ns", "n_kernels")
    assert columns(analyses.steps(without_annotations(trace)), *same) == columns(analyses.steps(trace), *same)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_trace_recorded_without_marks(fixtures, rank):
    trace = traceql.load(fixtures / "glm5" / f"tiny-pool-nomark-TP-{rank}.json.gz", cache=False)
    steps = analyses.steps(trace)
    assert columns(steps, "method", "confidence", "n_kernels", "annotation_ns") == [("repetition", 0.5, 186, None)] * 3


def test_no_steps_are_invented_where_nothing_repeats(tmp_path):
    events = [event for i in range(30) for event in launch(i + 1, 10 * i, 10 * i + 5, 2)]
    assert analyses.steps(small_trace(tmp_path, events)).is_empty()


@given(st.integers(1, 6), st.integers(3, 12), st.integers(0, 5), st.randoms())
def test_a_repeated_group_is_found_at_its_true_length(length, repeats, lead, random):
    group = random.sample(range(1000), length)
    sequence = random.sample(range(1000, 2000), min(lead, (repeats - 1) * length // 9)) + group * repeats
    found = repeating_groups(sequence)
    assert found is not None
    assert found[0] == length
    assert len(found[1]) == repeats


@given(st.lists(st.integers(0, 2**63), max_size=20, unique=True))
def test_what_never_repeats_has_no_group(sequence):
    assert repeating_groups(sequence) is None


def test_steps_far_from_the_median_are_named(tmp_path):
    events = []
    starts = [100 * i for i in range(12)]
    starts[6:] = [start + 40 for start in starts[6:]]
    for i, start in enumerate(starts):
        events += [span("step[DECODE bs=1]", start, 20), *launch(i + 1, start + 1, start + 5, 50)]
    summary = analyses.summarize(small_trace(tmp_path, events))
    assert columns(summary.outliers, "step", "wall_ns") == [(5, 140_000)]
    assert summary.n_windows == 11
