"""The built-in rules on real traces: on which they fire, on which they must be silent, and what they say."""

import json
import runpy
from functools import cache
from pathlib import Path

import polars as pl
import pytest
import reference
from conftest import FIXTURES
from test_step_facts import BF16, Story, cast_op, gemm_op, three_steps

import traceql
from traceql.categories import load_categories
from traceql.resources import resource
from traceql.rules import Findings, built_in_rules, run_rules
from traceql.rules.examples import failures
from traceql.run import load_run

RULES = {rule.id: rule for rule in built_in_rules()}
FILES = sorted(resource("rules", "findings").glob("*.yaml"))

WHOLE_POOL = "whole-pool-kv-cast"
HOST_BOUND = {"host-bound-step", "decode-without-graph"}
POOL = {WHOLE_POOL, "slow-cast-kernel"}


@cache
def findings(path: Path, *others: Path) -> Findings:
    trace = load_run([path, *others], cache=False) if others else traceql.load(path, cache=False)
    return run_rules(trace, built_in_rules())


def fired(*paths: Path) -> set[str]:
    return {finding.rule.id for finding in findings(*paths).found}


# --- the files


def test_one_rule_a_file():
    assert [path.stem for path in FILES] == list(RULES)
    assert len(RULES) >= 20


@pytest.mark.parametrize("name", RULES)
def test_the_examples_of_a_rule(name):
    assert [failure.text for failure in failures(RULES[name], load_categories())] == []


@pytest.mark.parametrize("name", RULES)
def test_what_a_rule_says_is_finished_text(name):
    rule = RULES[name]
    assert rule.why.endswith(".")
    assert rule.fix.endswith(".")
    assert len(rule.why) > 40
    assert len(rule.fix) > 40


def test_only_what_has_a_known_fix_is_critical():
    assert {name for name, rule in RULES.items() if rule.severity == "critical"} == {WHOLE_POOL}


def test_the_page_of_rules():
    written = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "generate.py"))
    page: str = written["rules_page"]()
    assert all(f"\n## {name}\n" in page for name in RULES)
    assert "{% if src_dtype is none %}" in page


# --- what fires on the fixtures: all of it, so that a rule that fires on everything shows

TINY = {
    "gather-eager": {*HOST_BOUND, "exposed-communication"},
    "gather-graph": {
        "host-bound-step",
        "tiny-kernels",
        "host-sync-in-step",
        "attention-fallback",
        "cast-in-every-layer",
    },
    "pool-eager": {*HOST_BOUND, *POOL},
    "pool-graph": {*POOL, "tiny-kernels", "host-sync-in-step", "attention-fallback"},
    "pool-stack": {*HOST_BOUND, *POOL, "exposed-communication"},
}


@pytest.mark.parametrize("name", TINY)
def test_a_small_model(name):
    assert fired(FIXTURES / "glm5" / f"tiny-{name}-TP-0.json.gz") == TINY[name]


def test_both_ranks_of_a_small_model():
    ranks = [FIXTURES / "glm5" / f"tiny-gather-eager-TP-{rank}.json.gz" for rank in (0, 1)]
    assert "rank-skew" in fired(*ranks)
    skew = next(each for each in findings(*ranks).found if each.rule.id == "rank-skew")
    assert skew.share is not None
    assert skew.share > 0.05


AFTER = {"tiny-kernels", "launch-gaps", "step-outliers", "cast-in-every-layer"}
"""What remains once the whole-pool cast is gone."""


@pytest.mark.parametrize(("name", "expected"), [("before", POOL), ("after", AFTER)])
def test_the_founding_case(name, expected):
    assert fired(FIXTURES / "sglang" / f"{name}-graph-TP-0.trace.json.zst") == expected


def test_the_first_finding_of_the_founding_case():
    first = findings(FIXTURES / "sglang" / "before-graph-TP-0.trace.json.zst").found[0]
    assert first.rule.id == WHOLE_POOL
    assert (first.n_rows, first.n_steps, first.n_layers) == (78 * 30, 30, 78)
    assert first.share == pytest.approx(0.787, abs=0.001)
    assert first.message == (
        "The whole KV pool is cast 78 times a step, 855 MB each: → bf16, source dtype not recorded (likely fp8_e4m3), "
        "285,121,024 elements, 66.222 ms a step"
    )


def test_one_finding_for_a_pool_that_prefill_and_decode_cast():
    """The prompt's eager step names the source's dtype, the decode steps under graphs do not: the same pool."""
    prefill = FIXTURES / "capture" / "prefill-and-decode-TP-0.trace.json.zst"
    assert fired(prefill) == {*POOL, "host-bound-step", "step-outliers"}
    first = findings(prefill).found[0]
    assert (first.n_rows, first.n_steps, first.n_layers) == (78 * 8, 8, 78)
    assert first.message.startswith("The whole KV pool is cast 78 times a step, 855 MB each: ")
    assert first.message.endswith("67.518 ms a step")
    complete = [step for step in reference.steps(reference.load(prefill)) if step.is_complete]
    pool = [a.dur for step in complete for a in step.launched if "direct_copy_kernel" in a.name and a.dur > 500_000]
    assert (len(pool), first.cost_ns_per_step) == (78 * 7, sum(pool) / 7)


def test_why_a_rule_cannot_judge():
    found = findings(FIXTURES / "sglang" / "before-graph-TP-0.trace.json.zst")
    reasons = {each.rule.id: each.reason for each in found.abstained}
    assert reasons["rank-skew"] == "only one rank is loaded"
    assert reasons["profiler-distortion"].startswith("no Python frame is recorded")


def test_a_copy_that_blocks_is_a_wait_too(story):
    """`.item()` on an AMD GPU: hipMemcpyWithStream, and no call that only synchronises."""
    for number in range(3):
        story.kernel("Memcpy DtoH (Device -> Host)", number * 1000 + 70, 20, "hipMemcpyWithStream", "gpu_memcpy")
        story.kernel("norm", number * 1000 + 400, 20)
    found = run_rules(story.trace(), built_in_rules())
    (wait,) = (each for each in found.found if each.rule.id == "host-sync-in-step")
    assert wait.message == (
        "The GPU idles 310.0 µs of a decode step of 1.000 ms because the host waited for it (waits inside a step: 1)"
    )


def test_nothing_recorded_is_not_nothing_found(tmp_path):
    """Without GPU activity, or without steps, rules on what the GPU did in steps have judged nothing."""
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 5, "dur": 5}
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 20}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20, "dur": 5}
    args = {"correlation": 1, "device": 0, "stream": 7}
    span = {"ph": "X", "cat": "user_annotation", "name": "step[DECODE bs=1]", "pid": 1, "tid": 1, "ts": 0, "dur": 30}
    of_steps = {"host-bound-step", "launch-gaps", "tiny-kernels", "unrecorded-wait", "exposed-communication"}

    def reasons(*events):
        path = tmp_path / "made.json"
        path.write_text(json.dumps({"traceEvents": [{**event, "args": args} for event in events]}))
        found = run_rules(traceql.load(path, cache=False), built_in_rules())
        assert not found.found
        return {each.rule.id: each.reason for each in found.abstained}, {rule.id for rule in found.passed}

    why, passed = reasons(launch, op, span)
    assert {why[rule] for rule in of_steps} == {"no GPU activity is recorded"}
    assert not passed
    why, passed = reasons(launch, op, kernel)
    assert {why[rule] for rule in of_steps} == {"no step was found"}
    assert "slow-cast-kernel" in passed
    # an incomplete step is judged, as far as it goes; that nothing communicates is no reason not to judge
    why, passed = reasons(launch, op, kernel, span)
    assert of_steps | {"slow-tail-collectives"} <= passed


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("cases/*.json"))[:60], ids=lambda path: path.name)
def test_damaged_and_odd_traces_are_judged_too(path):
    try:
        trace = traceql.load(path, cache=False)
    except traceql.TraceqlError:
        return
    found = run_rules(trace, built_in_rules())
    expected = {"host-bound-step", "exposed-communication", "step-outliers", "unknown-kernels"}
    assert {each.rule.id for each in found.found} <= expected


# --- made traces, for what no recording at hand shows


@pytest.fixture
def story(tmp_path) -> Story:
    made = Story(tmp_path / "story.json")
    three_steps(made)
    return made


def fired_on(story: Story) -> dict[str, str]:
    return {each.rule.id: each.message for each in run_rules(story.trace(), built_in_rules()).found}


def test_a_slow_product_of_few_tokens(story):
    for step in range(3):
        gemm_op(story, step * 1000 + 100, "aten::mm", [BF16, BF16], [[8, 8192], [8192, 8192]], dur=200)
    message = fired_on(story)["slow-small-batch-gemm"]
    assert message.startswith("A 8 × 8192 × 8192 product (bf16) reaches 14.0 % of the memory bandwidth: 200.0 µs where")


def test_a_good_product_of_few_tokens(story):
    for step in range(3):
        gemm_op(story, step * 1000 + 100, "aten::mm", [BF16, BF16], [[8, 8192], [8192, 8192]], dur=40)
    assert "slow-small-batch-gemm" not in fired_on(story)


def test_a_cache_dequantised_whole(story):
    for step in range(3):
        for layer in range(4):
            story.kernel("_dequantize_k_cache_fast_kernel", step * 1000 + 100 + 50 * layer, 40)
    assert "4 times and 160.0 µs a step" in fired_on(story)["dequantize-whole-cache"]


def test_a_pool_of_moderate_size(story):
    """Two million elements, a thousandth of the founding case."""
    for step in range(3):
        for layer in range(6):
            cast_op(story, step * 1000 + 100 + 50 * layer, "c10::Float8_e4m3fn", BF16, 2_000_000)
    assert "6 times a step, 6.00 MB each: fp8_e4m3 → bf16, 2,000,000 elements" in fired_on(story)[WHOLE_POOL]


def test_gathered_rows_are_no_pool(story):
    for step in range(3):
        for layer in range(6):
            story.kernel("vectorized_gather_kernel<int64>", step * 1000 + 85 + 50 * layer, 10)
            cast_op(story, step * 1000 + 100 + 50 * layer, "c10::Float8_e4m3fn", BF16, 2_000_000)
    assert WHOLE_POOL not in fired_on(story)


def test_kernels_without_a_telling_name(story):
    for step in range(3):
        story.kernel("mystery", step * 1000 + 100, 60)
    assert fired_on(story)["unknown-kernels"].startswith("60.0 µs of a decode step of 1.000 ms go to kernels")


# --- the recordings

EAGER = {*HOST_BOUND, "blocking-copy-in-decode", "step-outliers"}
RECORDED = {
    "sglang/before-eager-TP-0.trace.json.zst": {*EAGER, *POOL},
    "sglang/after-eager-TP-0.trace.json.zst": {*EAGER, "cast-in-every-layer"},
    "sglang/before-eager-stack-TP-0.trace.json.zst": {*EAGER, *POOL, "profiler-distortion"},
    "sglang/before-graph-stack-TP-0.trace.json.zst": POOL,
    "sglang-tp2/before-graph-TP-0.trace.json.zst": POOL,
    "sglang-tp2/after-graph-TP-0.trace.json.zst": {"tiny-kernels", "launch-gaps", "step-outliers"},
    "glm5/glm5-pool-eager-TP-0.json.gz": {*HOST_BOUND, *POOL, "exposed-communication", "slow-tail-collectives"},
    "glm5/glm5-gather-eager-TP-0.json.gz": {"exposed-communication", "slow-tail-collectives"},
    "glm5/glm5-pool-graph-TP-0.json.gz": {*POOL, "attention-fallback"},
    "glm5/glm5-gather-graph-TP-0.json.gz": {
        "tiny-kernels", "attention-fallback", "host-sync-in-step", "step-outliers", "cast-in-every-layer"
    },
    "public/tracelens-qwen-h100-mi300/h100_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": {
        "cast-in-every-layer", "cast-there-and-back", "copy-instead-of-view", "launch-gaps"
    },
    "public/tracelens-vllm-piecewise/graph_execution.json.gz": {"prefill-between-decodes"},
    "public/tracelens-xdit-flux/profile_trace_rank_0.json.gz": {
        "attention-fallback", "host-bound-step", "profiler-distortion"
    },
    "public/tracelens-sglang-prefill/sglang_Qwen3-8B_prefilldecode.json.gz": {"unrecorded-wait"},
    "public/tracelens-sglang-decode/sglang_Qwen3-8B_decode.json.gz": {"unrecorded-wait", "blocking-copy-in-decode"},
    # its send/receives have no recorded size, and take 0.1 to 25 ms by their place in the step: no tail
    "public/hta-a100-graphs/rank0.json.gz": {"unrecorded-wait", "exposed-communication"},
    "public/deepseek-train/train.json.gz": set(),
    "public/hta-ns/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": set(),
    "public/hta-nccl/nccl_data.json.gz": {"host-bound-step"},
    "public/tracelens-mi300-ddp-resnet/resnet_act_checkpoint.json.gz": {"exposed-communication"},
}  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("name", RECORDED)
def test_all_that_fires_on_a_recording(name, shared):
    assert fired(shared / name) == RECORDED[name]


@pytest.mark.shared
def test_the_pool_cast_where_operators_are_recorded(shared):
    for name, n_steps in (("sglang/before-eager-TP-0.trace.json.zst", 30), ("glm5/glm5-pool-eager-TP-0.json.gz", 10)):
        (found,) = (each for each in findings(shared / name).found if each.rule.id == WHOLE_POOL)
        assert (found.n_rows, found.n_steps, found.n_layers) == (78 * n_steps, n_steps, 78)
        assert found.message.startswith(
            "The whole KV pool is cast 78 times a step, 855 MB each: fp8_e4m3 → bf16, 285,120,"
        )
        assert found.group == {"dst_dtype": "bf16"}


@pytest.mark.shared
def test_ranks_that_wait_for_each_other(shared):
    ranks = [shared / "glm5" / f"glm5-gather-eager-TP-{rank}.json.gz" for rank in (0, 1)]
    (skew,) = (each for each in findings(*ranks).found if each.rule.id == "rank-skew")
    assert skew.worst["rank"] == 0
    assert skew.message.startswith("Rank 0 waits in collectives for slower ranks 116.668 ms of a step of 150.912 ms")
    graph = [shared / "glm5" / f"glm5-pool-graph-TP-{rank}.json.gz" for rank in (0, 1)]
    assert "rank-skew" not in fired(*graph)


@pytest.mark.shared
def test_every_rule_is_silent_on_most_recordings(shared):
    """A rule that fires on everything says nothing."""
    counts = pl.Series([name for each in RECORDED for name in fired(shared / each)]).value_counts()
    assert (counts["count"] <= len(RECORDED) // 2).all()
