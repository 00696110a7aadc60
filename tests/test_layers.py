"""Layers of real traces: modules against the order of kernels, frames against the slow count, and the ladder."""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import reference_layers
from conftest import FIXTURES, SHARED
from polars.testing import assert_frame_equal
from test_truth import METAMORPHIC, REAL, SMALL, rewrite

import traceql
from traceql.analyses.attribution import Attribution
from traceql.analyses.layer_sequence import by_sequence
from traceql.analyses.layer_tables import KERNEL_LAYERS, LAYER_TYPES, LAYERS, STEP_LAYER_CATEGORIES, STEP_SECTIONS
from traceql.analyses.layering import METHODS, Layering
from traceql.analyses.main_line import with_main_line
from traceql.errors import InputError, MissingDataError
from traceql.run import load_run
from traceql.trace import Trace

TINY = FIXTURES / "glm5" / "tiny-pool-stack-TP-0.json.gz"
STEP = ["rank", "device", "step"]
PLACE = ["section", "model_pass", "layer"]
KEY = [*STEP, *PLACE]
Sizes = dict[int, list[int]]
"""Kernels of a layer -> the numbers of the layers that have so many."""


def loaded(path: Path) -> Trace:
    """The trace, from the cache where it is there; but what a cache kept of its layers is not looked at."""
    return replace(traceql.load(path, cache=path.is_relative_to(SHARED)))


@cache
def shared_trace(name: str) -> Trace:
    return loaded(SHARED / name)


def layers_of(trace: Trace, method: str = "auto") -> pl.DataFrame:
    """The activities in steps with what they belong to, in order of start."""
    placed = Layering.of(trace, method).placed
    activities = Attribution.of(trace).activities.drop("section")
    return activities.join(placed, on="kernel_id", validate="1:1").filter(pl.col("step").is_not_null()).sort(
        *STEP, "start_ns", "kernel_id"
    )  # fmt: skip


def sizes(frame: pl.DataFrame, step: Sequence[str] = STEP) -> Sizes:
    """The sizes of the layers, which must be the same in every step and pass."""
    counted = frame.filter(pl.col("layer").is_not_null()).group_by(*step, "model_pass", "layer").agg(n=pl.len())
    found: set[tuple[tuple[int, tuple[int, ...]], ...]] = set()
    for _, of_pass in counted.sort("layer").group_by(*step, "model_pass"):
        groups = of_pass.group_by("n").agg("layer").sort("n")
        found.add(tuple((n, tuple(layers)) for n, layers in groups.rows()))
    (only,) = found
    return {n: list(layers) for n, layers in only}


def sections(frame: pl.DataFrame) -> dict[str | None, int]:
    """Activities outside layers, by section, in each step; which must be the same in every step."""
    inside = pl.col("section").ne_missing("between") & pl.col("layer").is_null()
    counted = frame.filter(inside).group_by(STEP).agg(pl.col("section").value_counts())
    found = {tuple(sorted((row["section"] or "", row["count"]) for row in rows)) for rows in counted["section"]}
    (only,) = found or [()]
    return {name or None: n for name, n in only}


# --- what modules say, and what the order of kernels says


def check_against_modules(trace: Trace) -> None:
    columns = ["kernel_id", "section", "layer", "block", "model_pass"]
    by_order, by_modules = (Layering.of(trace, method) for method in ("sequence", "module"))
    assert by_modules.layers.height
    assert_frame_equal(by_order.placed.select(columns), by_modules.placed.select(columns))
    times = ["start_ns", "wall_ns", "busy_ns", "kernel_ns", "n_kernels", "layer_type"]
    assert_frame_equal(by_order.layers.select(times), by_modules.layers.select(times))


@pytest.mark.parametrize("rank", [0, 1])
def test_the_order_of_kernels_tells_what_modules_tell(rank):
    check_against_modules(loaded(FIXTURES / f"glm5/tiny-pool-stack-TP-{rank}.json.gz"))


@pytest.mark.shared
@pytest.mark.parametrize("name", ["sglang/before-eager-stack-TP-0.trace.json.zst",
                                  "sglang/after-eager-stack-TP-0.trace.json.zst",
                                  "glm5/glm5-pool-eager-stack-TP-0.json.zst"])  # fmt: skip
def test_the_order_of_kernels_tells_what_modules_tell_of_whole_models(shared, name):
    check_against_modules(shared_trace(name))


def of_kinds(trace: Trace, step: int) -> dict[tuple[str, int], tuple[int, str]]:
    """(kind, n) -> (layer, category): of the layer kernels of a step the n-th of each kind, in order of start.

    Streams run beside each other in some recordings and not in others, but kernels of one name keep their order. GEMMs
    are one kind, since the library chooses other ones under graphs.
    """
    inside = layers_of(trace).filter((pl.col("step") == step) & pl.col("layer").is_not_null())
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], tuple[int, str]] = {}
    for name, category, layer in inside.select("short_name", "category", "layer").rows():
        kind = category if category == "gemm" else name
        found[kind, seen[kind]] = (layer, category)
        seen[kind] += 1
    return found


def share_alike(one: dict[Any, Any], other: dict[Any, Any]) -> float:
    """Of the kernels that either has, the share that both have in the same layer and category."""
    return sum(one[key] == other.get(key) for key in one) / len(one.keys() | other.keys())


BEFORE_EAGER = "sglang/before-eager-stack-TP-0.trace.json.zst"
POOL_EAGER = "glm5/glm5-pool-eager-stack-TP-0.json.zst"
PAIRS = [
    (BEFORE_EAGER, "sglang/before-eager-TP-0.trace.json.zst"),
    (BEFORE_EAGER, "sglang/before-graph-TP-0.trace.json.zst"),
    (BEFORE_EAGER, "sglang/after-graph-TP-0.trace.json.zst"),
    (POOL_EAGER, "glm5/glm5-pool-eager-TP-0.json.gz"),
    (POOL_EAGER, "glm5/glm5-pool-graph-TP-0.json.gz"),
]


@pytest.mark.shared
@pytest.mark.parametrize(("stack", "name"), PAIRS, ids=[name for _, name in PAIRS])
def test_one_model_recorded_in_two_ways_has_the_same_layers(shared, stack, name):
    """Kernel by kernel. In the fixed server one kernel gathers and casts, where there was a cast in each layer."""
    truth, found = of_kinds(shared_trace(stack), 2), shared_trace(name)
    if "after" in name:
        replaced = {"unrolled_elementwise_kernel<direct_copy, bf16>", "gather_cast_kernel"}
    else:
        replaced = set[str]()
    truth = {key: place for key, place in truth.items() if key[0] not in replaced}
    for step in Attribution.of(found).steps["step"]:
        kinds = of_kinds(found, step)
        share = share_alike(truth, {key: place for key, place in kinds.items() if key[0] not in replaced})
        assert share >= 0.995, f"step {step}: {share:.2%} in the same layer and category"
        assert Counter(layer for (kind, _), (layer, _) in kinds.items() if kind in replaced) == dict.fromkeys(
            range(78) if replaced else (), 1
        )


def test_the_comparison_sees_a_border_that_is_one_kernel_off():
    tiny = loaded(TINY)
    truth = of_kinds(tiny, 1)
    assert share_alike(truth, of_kinds(tiny, 2)) == 1
    shifted = {(kind, n + (kind == "gemm")): place for (kind, n), place in truth.items()}
    assert share_alike(truth, shifted) < 0.995


DENSE_FIRST = [0, 1, 2], list(range(3, 78))
OWN = [
    ("sglang/before-eager-TP-0.trace.json.zst", (20, 30), {"prologue": 11, "epilogue": 3}),
    ("sglang/after-eager-TP-0.trace.json.zst", (21, 31), {"prologue": 12, "epilogue": 3}),
    ("sglang/before-graph-TP-0.trace.json.zst", (20, 30), {"prologue": 10, "epilogue": 3}),
    ("sglang/after-graph-TP-0.trace.json.zst", (20, 30), {"prologue": 10, "epilogue": 3}),
    *[
        (f"sglang-tp2/{name}-graph-TP-{rank}.trace.json.zst", (22, 32), {"prologue": 13, "epilogue": 6})
        for name in ("before", "after")
        for rank in (0, 1)
    ],
    *[
        (f"glm5/glm5-{name}-TP-{rank}.json.gz", (41, 55), {"prologue": 2, "epilogue": 6})
        for name in ("pool-eager", "pool-graph", "gather-eager", "gather-graph")
        for rank in (0, 1)
    ],
]


@pytest.mark.shared
@pytest.mark.parametrize(("name", "of_layer", "outside"), OWN, ids=[row[0] for row in OWN])
def test_layers_of_whole_models_by_sequence(shared, name, of_layer, outside):
    trace = shared_trace(name)
    frame = layers_of(trace)
    assert sizes(frame) == dict(zip(of_layer, DENSE_FIRST, strict=True))
    assert sections(frame) == outside
    found = Layering.of(trace)
    assert found.notes == ()
    assert set(found.layers["method"]) == {"sequence"}
    assert found.types["label"].to_list() == ["attention + mlp", "attention + moe"]
    assert found.types["n_layers"].to_list() == [3, 75]


@pytest.mark.shared
def test_the_main_line_moves_to_another_stream_at_every_collective(shared):
    main = with_main_line(Attribution.of(shared_trace(OWN[4][0])).activities).filter("is_main")
    assert (main.group_by("step").agg(pl.n_unique("stream"))["stream"] > 150).all()


@pytest.mark.parametrize("path", [p for p in REAL if p.name.startswith("tiny")], ids=lambda path: path.name)
def test_a_layer_of_experts_that_never_repeats(path):
    """Its attention half does, which makes it a layer that is less sure than the others."""
    trace = loaded(path)
    frame = layers_of(trace, "sequence")
    assert sizes(frame) == {41: [0, 1, 2], 55: [3]}
    assert sections(frame) == {"prologue": 2, "epilogue": 6}
    sure = Layering.of(trace, "sequence").layers.group_by("layer").agg(pl.max("confidence")).sort("layer")["confidence"]
    assert sure.to_list()[:3] == 3 * [0.9]
    assert 0.6 < sure[3] < 0.8


# --- public traces, each of which was looked at by eye

PUBLIC: dict[str, tuple[Sizes, dict[str | None, int]]] = {
    "tracelens-b200-vllm/eager_trace.json.gz": ({25: list(range(36))}, {"prologue": 24, "epilogue": 5}),
    "tracelens-sglang-prefill/sglang_Qwen3-8B_prefilldecode.json.gz": (
        {14: list(range(36))}, {"prologue": 18, "epilogue": 11, None: 1},
    ),
    "tracelens-sglang-decode/sglang_Qwen3-8B_decode.json.gz": (
        {15: list(range(36))}, {"prologue": 11, "epilogue": 6, None: 1},
    ),
    "tracelens-vllm-piecewise/graph_execution.json.gz": (
        {16: [0], 17: list(range(1, 24))}, {"prologue": 12, "epilogue": 4},
    ),
    "tracelens-qwen-h100-mi300/h100_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (
        {49: list(range(24))}, {"prologue": 14, "epilogue": 8},
    ),
    "tracelens-qwen-h100-mi300/mi300_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (
        {43: list(range(24))}, {"prologue": 14, "epilogue": 8},
    ),
}  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("name", PUBLIC)
def test_public_traces_by_sequence(shared, name):
    trace = shared_trace(f"public/{name}")
    frame = layers_of(trace, "sequence")
    assert (sizes(frame), sections(frame)) == PUBLIC[name]


@pytest.mark.shared
@pytest.mark.parametrize("name", [name for name in PUBLIC if "b200" in name or "h100" in name or "prefill" in name])
def test_public_traces_by_modules(shared, name):
    trace = shared_trace(f"public/{name}")
    by_modules, by_order = layers_of(trace, "module"), layers_of(trace, "sequence")
    assert by_modules["layer"].n_unique() > 24
    inside = ["kernel_id", "model_pass", "layer"]
    assert_frame_equal(by_modules.select(inside), by_order.select(inside))


@pytest.mark.shared
def test_a_module_called_mlp_that_runs_experts_is_of_experts(shared):
    """gpt-oss calls it MLPBlock; 18 layers attend in a window, 18 to everything."""
    found = Layering.of(shared_trace("public/tracelens-b200-vllm/eager_trace.json.gz"), "module")
    assert found.types["label"].to_list() == [f"TransformerBlock: attention + moe, kind {kind}" for kind in (1, 2)]


@pytest.mark.shared
def test_a_replay_by_sequence_is_what_its_capture_says(shared):
    folder = "public/tracelens-sglang-decode"
    trace, capture = (shared_trace(f"{folder}/{name}") for name in
                      ("sglang_Qwen3-8B_decode.json.gz", "capture_traces/bs_32_rank0.json.gz"))  # fmt: skip
    by_capture, by_order = Layering.of(trace, "capture", capture=capture), Layering.of(trace, "sequence")
    columns = ["kernel_id", "model_pass", "layer"]
    assert by_capture.layers.height == 36
    assert_frame_equal(by_capture.placed.select(columns), by_order.placed.select(columns))


TRAINS = "it trains"
REFUSED = {
    "deepseek-train/train.json.gz": TRAINS,
    "tracelens-xdit-flux/profile_trace_rank_0.json.gz": "convolutions",
    "tracelens-mi300-ddp-resnet/resnet_act_checkpoint.json.gz": TRAINS,
    "hta-ns/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": TRAINS,
    "hta-nccl/nccl_data.json.gz": TRAINS,
    "hta-diff-pair/control.json.gz": TRAINS,
    "hta-diff-pair/test.json.gz": TRAINS,
    "hta-a100-graphs/rank0.json.gz": TRAINS,
    "hta-amd-mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz": TRAINS,
    "hta-cpu-only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz": "no steps",
    "kineto-tb2021/worker0.1623143089861.pt.trace.json.gz": TRAINS,
    "tracelens-mi210-gpu-only/gpu_only_trace.json.gz": "no steps",
}


@pytest.mark.shared
@pytest.mark.parametrize("name", REFUSED)
def test_no_layers_are_invented(shared, name):
    found = Layering.of(shared_trace(f"public/{name}"))
    assert found.layers.is_empty()
    assert found.types.is_empty()
    assert found.placed["layer"].null_count() == found.placed.height
    (note,) = found.notes
    assert REFUSED[name] in note


@pytest.mark.shared
def test_one_layer_cannot_repeat_but_its_module_tells(shared):
    (path,) = (shared / "public/kernelforge-gh200").glob("*")
    trace = loaded(path)
    assert Layering.of(trace).layers["layer"].to_list() == 3 * [0]
    with pytest.raises(MissingDataError, match="3 of 3 steps"):
        Layering.of(trace, "sequence")


@pytest.mark.shared
def test_every_public_trace_is_answered_or_refused(shared):
    paths = [path for path in sorted((shared / "public").rglob("*")) if path.is_file() and path.suffix != ".md"]
    answered: list[str] = []
    for path in paths:
        trace = loaded(path)
        found = Layering.of(trace)
        check_frames_agree(trace)
        assert found.layers.height or found.notes
        answered += [path.parent.name] * bool(found.layers.height)
    assert len(paths) == 45
    assert sorted(answered) == [
        "kernelforge-gh200", "tracelens-b200-vllm", "tracelens-qwen-h100-mi300", "tracelens-qwen-h100-mi300",
        "tracelens-sglang-decode", "tracelens-sglang-prefill", "tracelens-vllm-piecewise",
    ]  # fmt: skip


# --- the frames


def check_frames_agree(trace: Trace) -> None:
    """What must hold of the frames of any trace: all that is there is in them once, and sums are those of the steps."""
    found, attribution = Layering.of(trace), Attribution.of(trace)
    for name, table in {"placed": KERNEL_LAYERS, "layers": LAYERS, "sections": STEP_SECTIONS,
                        "categories": STEP_LAYER_CATEGORIES, "types": LAYER_TYPES}.items():  # fmt: skip
        table.check(getattr(found, name))
    assert found.placed["kernel_id"].to_list() == attribution.activities["kernel_id"].sort().to_list()
    totals = found.sections.group_by(STEP).agg(pl.sum("wall_ns", "busy_ns", "kernel_ns", "n_kernels"))
    steps = attribution.steps.filter((pl.col("n_kernels") > 0) | pl.col("wall_ns").is_not_null())
    columns = [*STEP, "wall_ns", "busy_ns", "kernel_ns", "n_kernels"]
    expected = steps.select(columns).with_columns(pl.col("wall_ns", "busy_ns").fill_null(0))
    assert_frame_equal(totals.select(columns).sort(STEP), expected.sort(STEP))
    assert found.layers.select(*STEP, "model_pass", "layer").is_unique().all()
    assert found.sections.select(KEY).is_unique().all()
    of_category = found.categories.group_by(KEY).agg(pl.sum("exclusive_ns", "kernel_ns", "n_kernels"))
    both = found.sections.join(of_category, on=KEY, how="full", nulls_equal=True, validate="1:1", suffix="_sum")
    for one, other in (("busy_ns", "exclusive_ns"), ("kernel_ns", "kernel_ns_sum"), ("n_kernels", "n_kernels_sum")):
        assert both[one].fill_null(0).to_list() == both[other].fill_null(0).to_list()
    check_nulls(found)


def check_nulls(found: Layering) -> None:
    """Null is what is not known, and only that."""
    placed = found.placed
    inside = placed.filter(section="layer")
    in_layer = ["model_pass", "layer", "layer_type", "block", "method", "confidence"]
    assert not inside.select(in_layer).null_count().sum_horizontal().sum()
    outside = placed.filter(pl.col("section").ne_missing("layer"))
    assert outside.select(in_layer[:4]).null_count().row(0) == 4 * (outside.height,)
    told = placed.filter(pl.col("section").is_in(["prologue", "epilogue"]))
    assert not told.select("method", "confidence").null_count().sum_horizontal().sum()
    assert placed["confidence"].drop_nulls().is_between(0, 1).all()
    assert not placed["confidence"].is_nan().any()
    between = placed.filter(section="between")
    assert between.select("method", "confidence").null_count().row(0) == 2 * (between.height,)


def check_against_reference(trace: Trace, steps: Sequence[int] | None = None) -> int:
    """Every row of the frames equals the slow count; gives the number of layers compared."""
    found, attribution = Layering.of(trace), Attribution.of(trace)
    main = with_main_line(attribution.activities).select("kernel_id", "is_main")
    wanted = pl.lit(True) if steps is None else pl.col("step").is_in(steps)
    known = attribution.activities.drop("section")
    if steps is not None:
        known = known.filter(near_steps(attribution.steps.filter(wanted)))
    activities = known.join(found.placed, on="kernel_id", validate="1:1").join(
        main, on="kernel_id", how="left", validate="1:1"
    )
    expected = reference_layers.sections(activities.to_dicts(), attribution.steps.filter(wanted).to_dicts())
    expected = {key: section for key, section in expected.items() if steps is None or key[2] in steps}
    names = ("start_ns", "wall_ns", "busy_ns", "kernel_ns", "n_kernels")
    rows = {
        key: (section.start, section.wall, section.busy, section.kernel_ns, section.n_kernels)
        for key, section in expected.items()
    }
    of_steps = found.sections.filter(wanted)
    assert {row[:6]: row[6:] for row in of_steps.select(*KEY, *names).rows()} == rows
    layers = found.layers.filter(wanted).select(*STEP, pl.lit("layer"), "model_pass", "layer", *names)
    assert {row[:6]: row[6:] for row in layers.rows()} == {k: row for k, row in rows.items() if k[3] == "layer"}
    shares = {
        (*key, category): (section.exclusive.get(category, 0), *section.launched.get(category, (0, 0)))
        for key, section in expected.items()
        for category in {*section.exclusive, *section.launched}
    }
    categories = found.categories.filter(wanted).select(*KEY, "category", "exclusive_ns", "kernel_ns", "n_kernels")
    assert {row[:7]: row[7:] for row in categories.rows()} == shares
    return layers.height


def near_steps(steps: pl.DataFrame) -> pl.Expr:
    """Whether an activity belongs to the steps or can run in their windows."""
    start_ns, end_ns = steps["start_ns"].min(), (steps["start_ns"] + steps["wall_ns"]).max()
    runs_there = (pl.col("start_ns") < end_ns) & (pl.col("start_ns") + pl.col("dur_ns") > start_ns)
    return pl.col("step").is_in(steps["step"].implode()) | runs_there


@pytest.mark.parametrize("path", [p for p in REAL if "tiny" in p.name] + SMALL, ids=lambda path: path.name)
def test_every_row_against_the_slow_count(path):
    trace = loaded(path)
    check_frames_agree(trace)
    assert check_against_reference(trace) == Layering.of(trace).layers.height


@pytest.mark.parametrize("path", [p for p in REAL if "sglang" in str(p.parent)], ids=lambda path: path.name)
def test_every_row_of_a_server_against_the_slow_count(path):
    """Side streams run beside the main one, and the last step has no next."""
    trace = loaded(path)
    frame = layers_of(trace)
    assert sizes(frame) == {20: DENSE_FIRST[0], 30: DENSE_FIRST[1]}
    assert sections(frame) == {"prologue": 10, "epilogue": 3}
    check_frames_agree(trace)
    assert check_against_reference(trace, [29]) == 78


SEVERAL = [
    "sglang/before-eager-stack-TP-0.trace.json.zst",
    "sglang-tp2/after-graph-TP-1.trace.json.zst",
    "glm5/glm5-gather-eager-TP-0.json.gz",
    "public/tracelens-b200-vllm/eager_trace.json.gz",
    "public/tracelens-vllm-piecewise/graph_execution.json.gz",
    "public/hta-a100-graphs/rank0.json.gz",
]


@pytest.mark.shared
@pytest.mark.parametrize("name", SEVERAL)
def test_every_row_of_large_traces_against_the_slow_count(shared, name):
    trace = shared_trace(name)
    check_frames_agree(trace)
    first = Attribution.of(trace).steps["step"].to_list()[:2]
    assert check_against_reference(trace, first) == Layering.of(trace).layers.filter(pl.col("step").is_in(first)).height


def test_a_run_has_the_layers_of_each_rank():
    paths = sorted(FIXTURES.glob("glm5/tiny-pool-eager-TP-*"))
    run = load_run(paths, cache=False)
    check_frames_agree(run)
    assert check_against_reference(run) == 2 * 3 * 4
    for rank, path in enumerate(paths):
        columns = ["step", "model_pass", "layer", "layer_type", "wall_ns", "busy_ns", "kernel_ns", "n_kernels"]
        alone = Layering.of(loaded(path)).layers.select(columns)
        assert_frame_equal(Layering.of(run).layers.filter(rank=rank).select(columns), alone)


# --- what must not matter


@cache
def results(path: Path) -> dict[str, pl.DataFrame]:
    """What must not depend on order or clock: by content, without keys."""
    trace = loaded(path)
    found = Layering.of(trace)
    activities = Attribution.of(trace).activities.drop("section").join(found.placed, on="kernel_id", validate="1:1")
    columns = [*STEP, "start_ns", "stream", "name", *KERNEL_LAYERS.names[1:]]
    placed = activities.select(columns).sort(columns)
    return {"placed": placed, "layers": found.layers, "sections": found.sections,
            "categories": found.categories, "types": found.types}  # fmt: skip


METAMORPHIC_LAYERS = [*METAMORPHIC, TINY]


@pytest.mark.parametrize("path", METAMORPHIC_LAYERS, ids=lambda path: path.name)
@pytest.mark.parametrize("change", [{"seed": 1}, {"shift_us": "1751328000123456.789"}], ids=str)
def test_neither_order_nor_clock_matters(path, change, tmp_path):
    expected = results(path)
    for name, frame in results(rewrite(path, tmp_path / path.name, **change)).items():
        assert_frame_equal(frame, expected[name])


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("31-empty-events.json", "no steps were found"),
        ("31-metadata-only.json", "no steps were found"),
        ("71-no-kernels.json", "no steps were found"),
        ("21-no-profiler-step.json", "no steps were found"),
        ("42-two-devices.json", "no steps were found"),
        ("67-step-windows.json", "no sequence of kernels repeats"),
        ("38-step-order.json", "no sequence of kernels repeats"),
    ],
)
def test_a_trace_without_layers_says_so(name, note):
    trace = loaded(FIXTURES / "cases" / name)
    found = Layering.of(trace)
    check_frames_agree(trace)
    assert found.layers.is_empty()
    assert found.types.is_empty()
    assert found.placed.height == Attribution.of(trace).activities.height
    assert any(note in text for text in found.notes)


# --- the ladder


@pytest.mark.parametrize("method", METHODS[:-1])
def test_a_method_that_does_not_apply_is_refused(method):
    with pytest.raises(MissingDataError, match=f"method {method} finds no layers: 3 of 3 steps") as caught:
        Layering.of(loaded(FIXTURES / "glm5/tiny-pool-graph-TP-0.json.gz"), method)
    assert caught.value.hint


@pytest.mark.parametrize("method", METHODS)
def test_no_method_applies_without_steps(method):
    with pytest.raises(MissingDataError, match="no steps were found"):
        Layering.of(loaded(FIXTURES / "cases/31-empty-events.json"), method)


def test_modules_go_before_the_order_of_kernels():
    trace = loaded(TINY)
    for method in ("auto", "module", "sequence"):
        methods = set(Layering.of(trace, method).layers["method"])
        assert methods == {"module" if method == "auto" else method}


def test_each_step_by_the_first_method_that_applies():
    """Module calls of the last step are lost, so the order of kernels tells its layers."""
    trace = loaded(TINY)
    last_ns = Attribution.of(trace).marks["start_ns"][-1]
    cut = replace(trace, python_calls=trace.python_calls.filter(pl.col("start_ns") < last_ns))
    found = Layering.of(cut)
    methods = found.layers.group_by("step", maintain_order=True).agg(pl.col("method").unique())["method"]
    assert methods.to_list() == [["module"], ["module"], ["sequence"]]
    columns = ["kernel_id", *PLACE, "layer_type", "block"]
    assert_frame_equal(found.placed.select(columns), Layering.of(trace).placed.select(columns))


def test_a_number_of_layers_that_no_step_has_is_refused_with_what_was_found():
    trace = loaded(TINY)
    assert Layering.of(trace, n_layers=4) is Layering.of(trace)
    with pytest.raises(MissingDataError, match=r"no step has 5 layers: 4 layers in 3 passes") as caught:
        Layering.of(trace, n_layers=5)
    assert "--layers" in (caught.value.hint or "")
    with pytest.raises(MissingDataError, match="no layers at all"):
        Layering.of(loaded(FIXTURES / "cases/31-empty-events.json"), n_layers=5)


def test_layers_are_worked_out_once():
    trace = loaded(TINY)
    assert Layering.of(trace) is Layering.of(trace)
    assert Layering.of(trace, "sequence") is not Layering.of(trace)


def test_layers_are_kept_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEQL_CACHE_DIR", str(tmp_path / "cache"))
    path = Path(shutil.copy(TINY, tmp_path))
    first = Layering.of(traceql.load(path))
    kept = set((tmp_path / "cache").rglob("*"))

    def not_again(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("traceql.analyses.layering._frames", not_again)
    second = Layering.of(traceql.load(path))
    assert second is not first
    for name in ("placed", "layers", "sections", "categories", "types"):
        assert_frame_equal(getattr(second, name), getattr(first, name))
    assert second.notes == first.notes
    assert set((tmp_path / "cache").rglob("*")) == kept


def test_what_was_kept_is_not_that_of_other_categories(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEQL_CACHE_DIR", str(tmp_path / "cache"))
    mine = tmp_path / "mine.yaml"
    mine.write_text("rows:\n  - {category: cast, match: roll_cuda, examples: [roll_cuda_kernel]}\n")
    path = Path(shutil.copy(TINY, tmp_path))
    counts = {
        name: Layering.of(traceql.load(path, categories=categories)).categories.filter(category=name)["n_kernels"].sum()
        for name, categories in (("copy", None), ("cast", mine))
    }
    built_in = Layering.of(loaded(TINY)).categories
    assert counts["cast"] > built_in.filter(category="cast")["n_kernels"].sum()
    assert counts["copy"] == built_in.filter(category="copy")["n_kernels"].sum()


@pytest.mark.parametrize("name", ["eager", "graph"])
def test_the_only_layer_of_a_type_was_not_recorded(name):
    """Three dense layers are left: they are found as before, and no fourth."""
    trace = loaded(FIXTURES / f"glm5/tiny-pool-{name}-TP-0.json.gz")
    whole = Layering.of(trace).placed
    lost = whole.filter(layer=3)["kernel_id"]
    cut = replace(trace, kernels=trace.kernels.filter(~pl.col("kernel_id").is_in(lost.implode())))
    found = Layering.of(cut).placed
    assert sorted(found["layer"].drop_nulls().unique()) == [0, 1, 2]
    columns = ["kernel_id", *PLACE, "layer_type", "block"]
    of_dense = pl.col("layer") < 3
    assert_frame_equal(found.filter(of_dense).select(columns), whole.filter(of_dense).select(columns))
    check_frames_agree(cut)


def test_refused_steps_are_counted():
    trace = loaded(FIXTURES / "cases" / "67-step-windows.json")
    activities = with_main_line(Attribution.of(trace).activities)
    placed, refused = by_sequence(activities)
    assert placed.is_empty()
    assert sum(refused.values()) == activities.select(STEP).unique().height
    assert Counter(Layering.of(trace).notes).total() == len(refused)


def test_an_unknown_method_is_refused():
    with pytest.raises(InputError, match="nonsense"):
        Layering.of(loaded(TINY), "nonsense")


def test_annotated_layers_of_a_real_server_have_blocks():
    """An eager SGLang server with spans `layers.N` by `traceql capture --patch annotate-layers`, on an H200."""
    trace = loaded(FIXTURES / "capture" / "annotated-eager-TP-0.trace.json.zst")
    found, read = Layering.of(trace), Layering.of(trace, "sequence")
    assert found.layers["method"].unique().to_list() == ["annotation"]
    columns = ("kernel_id", "section", "model_pass", "layer", "layer_type", "block")
    assert_frame_equal(found.placed.select(columns), read.placed.select(columns))
    assert found.layers.group_by("step").len()["len"].unique().to_list() == [78]
