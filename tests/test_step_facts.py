"""Facts about steps: against the slow count of `reference_facts.py`, and in small stories."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs
import pytest
import reference_facts
from conftest import FIXTURES
from polars.testing import assert_frame_equal
from test_truth import METAMORPHIC, REAL, rewrite

import traceql
from traceql.analyses.attention_fallbacks import attention_fallbacks
from traceql.analyses.attribution import Attribution
from traceql.analyses.cast_pairs import cast_pairs
from traceql.analyses.comm_tails import comm_tails
from traceql.analyses.concurrency import comm_overlap
from traceql.analyses.gemms import gemms
from traceql.analyses.host_waits import host_waits
from traceql.analyses.pace import step_pace
from traceql.analyses.pool_casts import pool_casts
from traceql.analyses.step_facts import TINY_NS, step_facts, typical_steps
from traceql.analyses.summary import Selection
from traceql.errors import MissingDataError
from traceql.run import load_run
from traceql.trace import Trace

TABLES = (step_facts, typical_steps, host_waits, comm_tails, cast_pairs, gemms, attention_fallbacks, pool_casts)
EAGER = FIXTURES / "glm5" / "tiny-pool-eager-TP-0.json.gz"
GRAPH = FIXTURES / "glm5" / "tiny-pool-graph-TP-0.json.gz"
ANNOTATED = [path for path in REAL if "tiny" in path.name and "nomark" not in path.name]
STEP = ["rank", "device", "step"]


def loaded(path: Path) -> Trace:
    return traceql.load(path, cache=False)


# --- against other counts


def check_against_reference(path: Path) -> None:
    expected = reference_facts.facts(path)
    rows = {tuple(row[name] for name in STEP): row for row in step_facts(loaded(path)).iter_rows(named=True)}
    assert expected.keys() == {key for key, row in rows.items() if row["wall_ns"] is not None}
    for key, facts in expected.items():
        assert {name: rows[key][name] for name in facts} == facts


@pytest.mark.parametrize("path", ANNOTATED, ids=lambda path: path.name)
def test_every_step_against_the_slow_count(path):
    check_against_reference(path)


def test_the_slow_count_meets_waits_copies_and_stacks():
    every = [row for path in ANNOTATED for row in reference_facts.facts(path).values()]
    assert any(row["n_host_waits"] for row in every)
    assert any(row["n_python_calls"] for row in every)
    assert any(row["exposed_comm_ns"] for row in every)


@pytest.mark.parametrize("path", [EAGER, GRAPH], ids=lambda path: path.name)
def test_times_are_those_of_the_other_analyses(path):
    trace = loaded(path)
    facts = step_facts(trace)
    of_pace = ["launch_ns", "sync_ns", "dependency_ns", "gpu_gap_ns", "host_idle_ns", "n_gaps", "is_host_bound"]
    assert_frame_equal(facts.select(*STEP, *of_pace), step_pace(trace).select(*STEP, *of_pace))
    of_overlap = comm_overlap(trace).select(*STEP, "comm_ns", exposed_comm_ns="exposed_ns")
    assert_frame_equal(facts.select(of_overlap.columns), of_overlap)
    of_steps = ["stage", "wall_ns", "busy_ns", "idle_ns", "kernel_ns", "n_kernels", "is_complete"]
    assert_frame_equal(facts.select(*STEP, *of_steps), Attribution.of(trace).steps.select(*STEP, *of_steps))


# --- what must not matter


@pytest.mark.parametrize("path", METAMORPHIC, ids=lambda path: path.name)
@pytest.mark.parametrize("change", [{"seed": 5}, {"shift_us": "1751328000123456.789"}], ids=str)
def test_order_and_clock_do_not_matter(path, change, tmp_path):
    other = loaded(rewrite(path, tmp_path / path.name, **change))
    trace = loaded(path)
    for table in TABLES:
        assert_frame_equal(table(other).drop(cs.ends_with("_id")), table(trace).drop(cs.ends_with("_id")))


@pytest.mark.parametrize("name", ["31-empty-events.json", "71-no-kernels.json", "17-bleeding-runtime-call.json"])
def test_traces_with_little_in_them(name):
    trace = loaded(FIXTURES / "cases" / name)
    for table in TABLES:
        frame = table(trace)
        if table not in (step_facts, host_waits):
            assert frame.is_empty()
    assert step_facts(trace).height == Attribution.of(trace).steps.height


def test_only_the_steps_selected():
    trace = loaded(EAGER)
    assert typical_steps(trace)["n_steps_counted"].to_list() == [2]
    assert typical_steps(trace, Selection(first_step=1))["n_steps_counted"].to_list() == [1]
    assert gemms(trace, Selection(first_step=1))["n_gemms"].sum() * 2 == gemms(trace)["n_gemms"].sum()
    with pytest.raises(MissingDataError):
        comm_tails(trace, Selection(first_step=99))


# --- small stories: decode steps, 1000 µs apart, on one device


def event(cat: str, name: str, pid: int, tid: int, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


@dataclasses.dataclass
class Story:
    """A trace in the making: what is launched lies one after the other on one stream."""

    path: Path
    events: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    n_launched: int = 0

    def step(self, number: int, label: str = "step[DECODE bs=1]", dur: float = 900) -> None:
        self.events.append(event("user_annotation", label, 9, 1, number * 1000, dur))

    def call(self, name: str, ts: float, dur: float = 2, **args: Any) -> None:
        self.events.append(event("cuda_runtime", name, 9, 1, ts, dur, **args))

    def op(self, name: str, ts: float, dur: float, **args: Any) -> None:
        self.events.append(event("cpu_op", name, 9, 1, ts, dur, **args))

    def kernel(
        self, name: str, ts: float, dur: float = 10, call: str = "cudaLaunchKernel", cat: str = "kernel"
    ) -> None:
        """A launch at ts and its kernel 5 µs later."""
        self.n_launched += 1
        self.call(call, ts, 2, correlation=self.n_launched)
        self.events.append(event(cat, name, 0, 7, ts + 5, dur, device=0, stream=7, correlation=self.n_launched))

    def trace(self) -> Trace:
        document = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}
        self.path.write_text(json.dumps(document | {"traceEvents": self.events}))
        return loaded(self.path)


@pytest.fixture
def story(tmp_path) -> Story:
    return Story(tmp_path / "story.json")


def three_steps(story: Story, *labels: str) -> None:
    for number, label in enumerate(labels or ["step[DECODE bs=1]"] * 3):
        story.step(number, label)
        story.kernel("gemm", number * 1000 + 10, 50)


def test_a_kernel_is_tiny_below_the_limit(story):
    three_steps(story)
    story.kernel("norm", 100, TINY_NS / 1000)
    story.kernel("norm", 200, TINY_NS / 1000 - 0.001)
    story.kernel("Memset (Device)", 300, 1, cat="gpu_memset")
    row = step_facts(story.trace()).row(0, named=True)
    assert (row["n_kernels"], row["n_tiny_kernels"], row["tiny_kernel_ns"]) == (4, 1, TINY_NS - 1)


def test_what_kernels_without_a_telling_name_take(story):
    three_steps(story)
    story.kernel("mystery", 100, 30)
    assert step_facts(story.trace())["unclassified_ns"].to_list() == [30_000, 0, 0]


def test_waits_inside_the_annotation_and_outside(story):
    three_steps(story)
    story.call("cudaStreamSynchronize", 100, 20)
    story.call("cudaDeviceSynchronize", 950, 20)
    story.kernel("Memcpy DtoH (Device -> Pageable)", 200, call="cudaMemcpyAsync", cat="gpu_memcpy")
    story.kernel("Memcpy HtoD (Pinned -> Device)", 300, call="cudaMemcpyAsync", cat="gpu_memcpy")
    story.kernel("Memcpy DtoH (Device -> Pinned)", 1300, call="cudaMemcpy", cat="gpu_memcpy")
    trace = story.trace()
    facts = step_facts(trace)
    assert facts["n_host_waits"].to_list() == [2, 1, 0]
    assert facts["host_wait_ns"].to_list() == [22_000, 2_000, 0]
    assert facts["n_pageable_copies"].to_list() == [1, 0, 0]
    assert facts["n_blocking_copies"].to_list() == [0, 1, 0]
    assert host_waits(trace)["kind"].to_list() == ["synchronise", "pageable copy", "synchronise", "blocking copy"]


def test_what_is_not_recorded_is_unknown(story):
    three_steps(story)
    row = step_facts(story.trace()).row(0, named=True)
    assert (row["n_ops"], row["n_python_calls"], row["comm_waiting_ns"]) == (None, None, None)
    assert row["n_host_waits"] == 0


def test_training_is_told_by_its_backward_pass(story):
    three_steps(story)
    assert not step_facts(story.trace())["is_training"].any()
    story.op("autograd::engine::evaluate_function: MmBackward0", 100, 20)
    assert step_facts(story.trace())["is_training"].all()


def test_prefill_between_decodes(story):
    labels = ["step[EXTEND bs=1 toks=9]", "step[DECODE bs=1]", "step[EXTEND bs=1 toks=9]", "step[DECODE bs=1]"]
    three_steps(story, *labels)
    assert step_facts(story.trace())["is_between_decodes"].to_list() == [False, False, True, False]


def test_outliers_and_the_median_of_their_kind(story):
    story.events += [event("user_annotation", "step[DECODE bs=1]", 9, 1, start, 5) for start in OUTLIER_STARTS]
    for start in OUTLIER_STARTS:
        story.kernel("gemm", start + 1, 1)
    facts = step_facts(story.trace())
    assert facts["is_outlier"].to_list() == [False, True, False, False, False, False]
    assert facts["median_wall_ns"].unique().to_list() == [100_000]


OUTLIER_STARTS = (0, 100, 400, 500, 600, 700)


def test_without_a_complete_step_the_last_one_counts(story):
    story.step(0)
    story.kernel("gemm", 10, 50)
    row = step_facts(story.trace()).row(0, named=True)
    assert (row["is_complete"], row["is_counted"]) == (False, True)
    assert typical_steps(story.trace())["wall_ns"].to_list() == [50_000]


# --- communication


def test_the_tail_is_what_is_beyond_the_fastest_tenth(story):
    three_steps(story)
    for i in range(11):
        story.kernel("ncclDevKernel_AllReduce_Sum", 100 + 50 * i, 10 if i < 9 else 40)
    row = comm_tails(story.trace()).row(0, named=True)
    assert (row["n_kernels"], row["p10_dur_ns"], row["median_dur_ns"], row["p90_dur_ns"]) == (11, 1e4, 1e4, 4e4)
    assert row["tail_ns"] == 60_000
    assert row["tail_share"] == pytest.approx(60_000 / 2_000_000)


def test_waiting_for_other_ranks():
    run = load_run([FIXTURES / "glm5" / f"tiny-gather-eager-TP-{rank}.json.gz" for rank in (0, 1)], cache=False)
    waiting = step_facts(run).group_by("rank").agg(pl.sum("comm_waiting_ns", "comm_ns")).sort("rank")
    assert (waiting["comm_waiting_ns"] <= waiting["comm_ns"]).all()
    assert (waiting["comm_waiting_ns"] > 0).all()


# --- casts


def cast_op(story: Story, ts: float, src: str, dst: str, n: int = 4096) -> None:
    story.op("aten::copy_", ts - 1, 5, **{"Input type": [dst, src, ""], "Input Dims": [[n], [n], []]})
    story.kernel("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", ts)


BF16, FP32 = "c10::BFloat16", "float"


def test_a_cast_there_and_back(story):
    three_steps(story)
    cast_op(story, 100, BF16, FP32)
    story.kernel("softmax", 120)
    cast_op(story, 140, FP32, BF16)
    row = cast_pairs(story.trace()).row(0, named=True)
    assert (row["src_dtype"], row["dst_dtype"], row["n_elements"]) == ("bf16", "fp32", 4096)
    assert (row["n_between"], row["n_pairs"], row["kernel_ns"], row["n_per_step"]) == (1, 1, 20_000, 0.5)


@pytest.mark.parametrize(
    ("second", "ts"),
    [((FP32, "c10::Half"), 140), ((BF16, FP32), 140), ((FP32, BF16, 2048), 140), ((FP32, BF16), 1140)],
    ids=["to another dtype", "the same again", "of another size", "in the next step"],
)
def test_what_is_no_way_back(second, ts, story):
    three_steps(story)
    cast_op(story, 100, BF16, FP32)
    cast_op(story, ts, *second)
    assert cast_pairs(story.trace()).is_empty()


def test_in_a_chain_every_other_cast_begins_a_pair(story):
    three_steps(story)
    for i in range(5):
        cast_op(story, 100 + 20 * i, *((BF16, FP32) if i % 2 == 0 else (FP32, BF16)))
    assert cast_pairs(story.trace()).select("src_dtype", "n_pairs").rows() == [("bf16", 2)]


def test_pool_casts_are_the_rows_of_whole_pool_groups():
    rows = pool_casts(loaded(EAGER))
    assert rows.height == 4 * 3
    assert rows["n_elements_max"].unique().to_list() == [34_560_000]
    assert rows["moved_bytes"].unique().to_list() == [3 * 34_560_000]
    assert pool_casts(loaded(FIXTURES / "glm5" / "tiny-gather-eager-TP-0.json.gz")).is_empty()


# --- matrix products


def gemm_op(story: Story, ts: float, name: str, types: list[str], dims: list[list[int]], dur: float = 10) -> None:
    story.op(name, ts - 1, 40, **{"Input type": types, "Input Dims": dims})
    story.kernel("nvjet_tst_64x8", ts, dur)


def test_the_shape_and_floor_of_a_product(story):
    three_steps(story)
    gemm_op(story, 100, "aten::mm", [BF16, BF16], [[8, 4096], [4096, 2048]])
    story.kernel("splitKreduce_kernel", 116, 5)
    row = gemms(story.trace()).row(0, named=True)
    assert (row["batch"], row["m"], row["n"], row["k"], row["dtype"]) == (1, 8, 2048, 4096, "bf16")
    assert (row["n_gemms"], row["kernel_ns"], row["short_name"]) == (1, 15_000, "nvjet_tst_64x8")
    assert row["weight_bytes"] == 2 * 4096 * 2048
    assert row["moved_bytes"] == 2 * (8 * 4096 + 4096 * 2048 + 8 * 2048)
    assert row["floor_ns"] == pytest.approx(row["moved_bytes"] / 4.8e12 * 1e9)
    assert row["peak_frac"] == pytest.approx(row["floor_ns"] / 15_000)


def test_products_of_other_operators(story):
    three_steps(story)
    gemm_op(story, 100, "aten::addmm", [BF16, BF16, BF16], [[16], [2, 8], [8, 16]])
    gemm_op(story, 200, "aten::bmm", [BF16, BF16], [[4, 2, 8], [4, 8, 16]])
    gemm_op(story, 300, "aten::_scaled_mm", ["c10::Float8_e4m3fn", "c10::Float8_e4m3fn"], [[2, 8], [8, 16]])
    rows = gemms(story.trace()).sort("op").select("op", "batch", "m", "n", "k", "weight_bytes", "moved_bytes").rows()
    assert rows == [
        ("aten::_scaled_mm", 1, 2, 16, 8, 128, 16 + 128 + 64),
        ("aten::addmm", 1, 2, 16, 8, 256, 32 + 256 + 64),
        ("aten::bmm", 4, 2, 16, 8, 1024, 128 + 1024 + 256),
    ]


@pytest.mark.parametrize(
    ("types", "dims"),
    [
        ([BF16, BF16], [[2, 8], [9, 16]]),
        ([BF16, BF16], [[2, 8]]),
        ([BF16, BF16], [[], []]),
        ([BF16, BF16], [[2, 0], [0, 16]]),
        ([BF16, BF16], [[2**40, 2**40], [2**40, 16]]),
        ([BF16], [[2, 8], [8, 16]]),
    ],
    ids=["do not fit", "one alone", "scalars", "empty", "impossible", "one dtype"],
)
def test_what_is_no_product(types, dims, story):
    three_steps(story)
    gemm_op(story, 100, "aten::mm", types, dims)
    assert gemms(story.trace()).is_empty()


def test_a_product_of_an_unknown_dtype_has_no_bytes(story):
    three_steps(story)
    gemm_op(story, 100, "aten::mm", ["made_up", "made_up"], [[2, 8], [8, 16]])
    row = gemms(story.trace()).row(0, named=True)
    assert (row["m"], row["dtype"], row["moved_bytes"], row["peak_frac"]) == (2, None, None, None)


# --- attention

SOFTMAX = "softmax_warp_forward"
MUL = "vectorized_elementwise_kernel<Mul>"


@pytest.mark.parametrize(
    ("names", "n_kernels"),
    [
        (["gemm", SOFTMAX, "gemm"], 3),
        (["gemm", MUL, "void direct_copy_kernel_cuda", SOFTMAX, MUL, "gemm"], 6),
        (["gemm", SOFTMAX, "gatherTopK", "gemm"], None),
        (["gemm", SOFTMAX], None),
        (["gemm", *[MUL] * 9, SOFTMAX, "gemm"], None),
        (["gemm", "rms_norm", SOFTMAX, "gemm"], None),
    ],
    ids=["bare", "with pointwise kernels", "a router", "the last of a step", "far away", "after something else"],
)
def test_a_softmax_between_two_products(names, n_kernels, story):
    story.step(0)
    for i, name in enumerate(names):
        story.kernel(name, 100 + 20 * i)
    story.step(1)
    story.kernel("gemm", 1010)
    rows = attention_fallbacks(story.trace()).select("kind", "n_kernels", "n_attentions", "kernel_ns").rows()
    assert rows == ([] if n_kernels is None else [("unfused", n_kernels, 1, 10_000 * n_kernels)])


def test_the_mathematical_form_of_sdpa(story):
    three_steps(story)
    story.op("aten::_scaled_dot_product_attention_math", 90, 90)
    story.op("aten::_softmax", 118, 10)
    for ts, name in ((100, "gemm"), (120, SOFTMAX), (140, "gemm")):
        story.kernel(name, ts)
    assert attention_fallbacks(story.trace())["kind"].to_list() == ["math SDPA"]


def test_the_generic_decode_kernel(story):
    three_steps(story)
    story.kernel("_fwd_grouped_kernel_stage1", 100, 30)
    story.kernel("_fwd_kernel_stage2", 140, 5)
    row = attention_fallbacks(story.trace()).row(0, named=True)
    assert (row["kind"], row["n_attentions"], row["n_kernels"]) == ("generic decode kernel", 1, 2)
    assert (row["kernel_ns"], row["example"]) == (35_000, "_fwd_grouped_kernel_stage1")


# --- real figures


@pytest.mark.shared
def test_a_step_of_an_engine_against_the_slow_count(shared):
    check_against_reference(shared / "sglang/after-graph-stack-TP-0.trace.json.zst")


@pytest.mark.shared
def test_attention_of_every_layer(shared):
    for name in ("pool-eager", "pool-graph", "gather-eager", "gather-graph"):
        rows = attention_fallbacks(loaded(shared / "glm5" / f"glm5-{name}-TP-0.json.gz"))
        assert rows.select("kind", "n_per_step").rows() == [("unfused", 78.0)]
    assert attention_fallbacks(loaded(shared / "sglang/before-graph-TP-0.trace.json.zst")).is_empty()


@pytest.mark.shared
def test_norms_of_qwen_cast_there_and_back(shared):
    """48 norms of 24 layers and the last one, each in fp32 between two casts."""
    folder = shared / "public" / "tracelens-qwen-h100-mi300"
    for path in sorted(folder.iterdir()):
        rows = cast_pairs(loaded(path)).select("src_dtype", "dst_dtype", "n_between", "n_pairs").rows()
        assert rows == [("bf16", "fp32", 5, 49)]


@pytest.mark.shared
def test_products_of_a_decode_step(shared):
    rows = gemms(loaded(shared / "glm5/glm5-pool-eager-TP-0.json.gz"))
    first = rows.row(0, named=True)
    assert (first["m"], first["n"], first["k"], first["n_per_step"]) == (1, 2624, 6144, 78)
    assert first["peak_frac"] == pytest.approx(0.55, abs=0.02)
    assert (rows["peak_frac"].drop_nulls() < 1).all()
