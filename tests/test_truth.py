"""The product against the slow count of `reference.py`, to the nanosecond, on real and on random traces."""

import gzip
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import reference
from conftest import FIXTURES
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import traceql
from traceql.analyses import kernel_steps, step_categories, steps, summarize

REAL = sorted(FIXTURES.glob("glm5/*")) + sorted(FIXTURES.glob("sglang/*"))
WITH_STEPS = ("19-", "22-", "23-", "38-", "67-", "68-", "69-", "70-", "72-")
WITHOUT_STEPS = (
    "09-",
    "12-",
    "15-",
    "16-",
    "17-",
    "25-",
    "28-",
    "29-",
    "33-",
    "39-",
    "42-",
    "51-",
    "53-",
    "58-",
)
SMALL = [path for path in sorted(FIXTURES.glob("cases/*")) if path.name.startswith(WITH_STEPS + WITHOUT_STEPS)]

STEP_COLUMNS = [
    "rank",
    "device",
    "step",
    "annotation_ns",
    "start_ns",
    "wall_ns",
    "busy_ns",
    "idle_ns",
    "kernel_ns",
    "n_kernels",
    "n_kernels_between",
    "is_complete",
    "separable",
]


def activities(trace: Any) -> pl.DataFrame:
    """The product's GPU activities in the reference's order, with op name, step and section."""
    ops = trace.ops.select("op_id", op="name").collect()
    kernels = trace.kernels.collect()
    return (
        kernels.join(ops, on="op_id", how="left", validate="m:1")
        .join(kernel_steps(trace).select("kernel_id", "step", "section"), on="kernel_id", how="left")
        .with_columns(start_ns=pl.col("start_ns") + (trace.meta.first_event_ns or 0))
        .with_columns(correlation=pl.col("correlation").fill_null(0))
        .sort("rank", "device", "start_ns", "stream", "correlation", "dur_ns", "name", "kernel_id")
    )


def check_against_reference(path: Path) -> None:
    """Every activity, step, window and share equals the slow count, where annotations tell the steps."""
    trace = traceql.load(path, cache=False)
    recording = reference.load(path)
    expected_steps = reference.steps(recording)
    expected = sorted(recording.activities, key=lambda a: (a.rank, a.device, a.order))
    found = activities(trace)
    check_activities(found, expected)
    check_invariants(trace)
    if expected_steps or steps(trace).is_empty():
        check_launched(found, expected, expected_steps)
        check_steps(trace, expected_steps)
        check_shares(trace, dict(zip(expected, found["category"], strict=True)), expected_steps)
    else:
        assert "annotation" not in set(steps(trace)["method"])


def check_activities(found: pl.DataFrame, expected: list[reference.Activity]) -> None:
    columns = ["rank", "device", "stream", "kind", "name", "start_ns", "dur_ns", "correlation", "op"]
    assert found.select(columns).rows() == [
        (
            *(a.rank, a.device, a.stream, a.kind, a.name, a.start, a.dur, a.correlation),
            a.op.name if a.op else None,
        )
        for a in expected
    ]


def check_launched(
    found: pl.DataFrame, expected: list[reference.Activity], expected_steps: list[reference.Step]
) -> None:
    step_of: dict[reference.Activity, tuple[int, str | None]] = {}
    for step in expected_steps:
        step_of |= dict.fromkeys(step.inside, (step.number, None))
        step_of |= dict.fromkeys(step.between, (step.number, "between"))
    assert found.select("step", "section").rows() == [step_of.get(a, (None, None)) for a in expected]


def check_steps(trace: Any, expected_steps: list[reference.Step]) -> None:
    expected: list[tuple[Any, ...]] = []
    for step in expected_steps:
        start_ns = None if step.start is None else step.start - (trace.meta.first_event_ns or 0)
        window: tuple[int | None, ...] = (None, None, None)
        if step.end is not None:
            window = (step.wall, step.busy, step.wall - step.busy)
        counts = (step.kernel_ns, len(step.launched), len(step.between))
        expected.append(
            (
                *(step.rank, step.device, step.number, step.annotation.dur, start_ns, *window, *counts),
                *(step.is_complete, step.is_separable),
            )
        )
    assert steps(trace).select(STEP_COLUMNS).rows() == expected


def check_shares(trace: Any, category: dict[reference.Activity, str], expected_steps: list[reference.Step]) -> None:
    """Exclusive time, kernel time and count per step and category."""
    expected: dict[tuple[int, int, int, str], list[int]] = {}
    for step in expected_steps:
        for activity, share in step.exclusive.items():
            expected.setdefault(key_of(step, category[activity]), [0, 0, 0])[0] += share
        for activity in step.launched:
            totals = expected.setdefault(key_of(step, category[activity]), [0, 0, 0])
            totals[1] += activity.dur
            totals[2] += 1
    found = step_categories(trace).select(
        "rank", "device", "step", "category", "exclusive_ns", "kernel_ns", "n_kernels"
    )
    assert {row[:4]: list(row[4:]) for row in found.rows() if any(row[4:])} == {
        key: totals for key, totals in expected.items() if any(totals)
    }


def key_of(step: reference.Step, category: str) -> tuple[int, int, int, str]:
    return (step.rank, step.device, step.number, category)


def check_invariants(trace: Any) -> None:
    """`wall = exclusive + idle` per step and `span = windows + outside`, to the nanosecond."""
    table = steps(trace).filter(pl.col("wall_ns").is_not_null() & pl.col("separable"))
    exclusive = step_categories(trace).group_by("rank", "device", "step").agg(pl.col("exclusive_ns").sum())
    joined = table.join(exclusive, on=["rank", "device", "step"], how="left").with_columns(
        pl.col("exclusive_ns").fill_null(0)
    )
    assert joined.filter(pl.col("wall_ns") != pl.col("exclusive_ns") + pl.col("idle_ns")).is_empty()
    assert joined.filter(pl.col("wall_ns") != pl.col("busy_ns") + pl.col("idle_ns")).is_empty()
    summary = summarize(trace)
    assert summary.wall_ns == summary.busy_ns + summary.idle_ns
    assert summary.categories["exclusive_ns"].sum() == summary.busy_ns
    assert summary.groups["exclusive_ns"].sum() == summary.busy_ns
    kernels = trace.kernels.collect()
    end = pl.col("start_ns") + pl.col("dur_ns")
    spans = kernels.group_by("rank", "device").agg(span_ns=end.max() - pl.col("start_ns").min())
    assert summary.n_kernels_total == kernels.height
    if summary.scope == "steps":
        assert spans["span_ns"].sum() == table["wall_ns"].sum() + summary.outside_wall_ns
    else:
        assert spans["span_ns"].sum() == summary.wall_ns
        assert summary.outside_wall_ns == 0


@pytest.mark.parametrize("path", REAL + SMALL, ids=lambda path: path.name)
def test_the_product_counts_what_the_slow_script_counts(path: Path) -> None:
    check_against_reference(path)


def test_the_reference_finds_the_steps_it_is_here_for() -> None:
    """A reference without steps would agree with anything."""
    tiny = sorted(FIXTURES.glob("glm5/*"))
    found = {path.name: len(reference.steps(reference.load(path))) for path in tiny}
    assert found == {path.name: 0 if "nomark" in path.name else 3 for path in tiny}


# --- what must not matter

METAMORPHIC = [
    FIXTURES / "glm5" / "tiny-pool-eager-TP-0.json.gz",
    FIXTURES / "glm5" / "tiny-gather-graph-TP-1.json.gz",
    FIXTURES / "cases" / "67-step-windows.json",
    FIXTURES / "cases" / "69-odd-nanoseconds.json",
    FIXTURES / "cases" / "33-merged-ranks.json",
]


def rewrite(path: Path, target: Path, *, shift_us: str = "0", seed: int | None = None, minified: bool = False) -> Path:
    """The same trace with events shuffled, all times shifted, or another layout."""
    document = json.loads(reference.read_text(path), parse_float=str)
    events = document["traceEvents"]
    for event in events:
        for field in ("ts", "dur"):
            if field in event:
                event[field] = float_free(event[field], shift_us if field == "ts" and event["ph"] != "M" else "0")
    if seed is not None:
        random.Random(seed).shuffle(events)
    text = json.dumps(document, separators=(",", ":") if minified else None, indent=None if minified else 1)
    target.write_text(text.replace('"@', "").replace('@"', ""))
    return target


def float_free(number: str | int, shift_us: str) -> str:
    """The exact decimal as a bare number of the text, marked so that no float comes between."""
    return f"@{Decimal(number) + Decimal(shift_us)}@"


def results(path: Path) -> dict[str, pl.DataFrame]:
    """What must not depend on order, clock or layout: ids left out, rows sorted by content."""
    trace = traceql.load(path, cache=False)
    kernels = activities(trace).with_columns(start_ns=pl.col("start_ns") - (trace.meta.first_event_ns or 0))
    kernels = kernels.drop("kernel_id", "launch_id", "op_id")
    return {"kernels": kernels.sort(kernels.columns), "steps": steps(trace), "shares": step_categories(trace)}


def assert_same(found: dict[str, pl.DataFrame], expected: dict[str, pl.DataFrame]) -> None:
    for name, frame in expected.items():
        assert_frame_equal(found[name], frame)


@pytest.mark.parametrize("path", METAMORPHIC, ids=lambda path: path.name)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_events_in_the_file_does_not_matter(path: Path, seed: int, tmp_path: Path) -> None:
    assert_same(results(rewrite(path, tmp_path / path.name, seed=seed)), results(path))


@pytest.mark.parametrize("path", METAMORPHIC, ids=lambda path: path.name)
@pytest.mark.parametrize("shift_us", ["0.001", "1751328000123456.789", "-123.456"])
def test_the_clock_does_not_matter(path: Path, shift_us: str, tmp_path: Path) -> None:
    assert_same(results(rewrite(path, tmp_path / path.name, shift_us=shift_us)), results(path))


@pytest.mark.parametrize("path", METAMORPHIC, ids=lambda path: path.name)
def test_the_layout_does_not_matter(path: Path, tmp_path: Path) -> None:
    plain = rewrite(path, tmp_path / "minified.json", minified=True)
    assert_same(results(plain), results(path))
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert_same(results(packed), results(path))


# --- random traces


@st.composite
def random_traces(draw: st.DrawFn) -> str:
    """A small trace in a narrow range of time: many ties, overlaps and odd remainders."""
    numbers = st.integers
    events: list[dict[str, Any]] = []

    def event(cat: str, name: str, pid: int, tid: int, start_ns: int, dur_ns: int, **args: int) -> None:
        ts, dur = f"@{Decimal(start_ns) / 1000}@", f"@{Decimal(dur_ns) / 1000}@"
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args})

    for number in range(draw(numbers(0, 4))):
        event("user_annotation", f"ProfilerStep#{number}", 9, 9, number * 40, draw(numbers(1, 40)))
    for _ in range(draw(numbers(0, 6))):
        start = draw(numbers(0, 150))
        event("cpu_op", f"aten::op_{start}", 9, draw(numbers(9, 10)), start, draw(numbers(0, 60)))
    for correlation in range(1, draw(numbers(1, 9))):
        event(
            "cuda_runtime", "cudaLaunchKernel", 9, draw(numbers(9, 10)), draw(numbers(0, 170)),
            draw(numbers(0, 6)), correlation=correlation,
        )  # fmt: skip
    names = st.sampled_from(["gemm", "ncclDevKernel_AllReduce", "rms_norm_kernel"])
    for _ in range(draw(numbers(0, 14))):
        device, stream = draw(numbers(0, 1)), draw(numbers(1, 3))
        event(
            "kernel", draw(names), device, stream, 50 + draw(numbers(0, 120)), draw(numbers(0, 30)),
            device=device, stream=stream, correlation=draw(numbers(0, 10)),
        )  # fmt: skip
    text = json.dumps({"traceEvents": events}, indent=1)
    return text.replace('"@', "").replace('@"', "")


@settings(
    max_examples=40,
    derandomize=True,
    phases=[
        Phase.explicit,
        Phase.generate,
    ],  # the traces are small enough to read without minutes of shrinking
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=random_traces())
def test_random_traces_are_counted_to_the_nanosecond(text: str, tmp_path: Path) -> None:
    path = tmp_path / "random.json"
    path.write_text(text)
    check_against_reference(path)
