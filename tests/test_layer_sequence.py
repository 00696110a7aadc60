"""Layers by the order of kernels: random models with and without noise, and one small story for each difficulty."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import layer_model as made
import layer_noise
import numpy as np
import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from layer_model import Made, Noise, activities_of, model_of, step_of, with_noise

from traceql.analyses.layer_kinds import layer_types
from traceql.analyses.layer_roles import Vocabulary
from traceql.analyses.layer_sequence import MAX_CONFIDENCE, by_sequence
from traceql.analyses.main_line import main_line, with_main_line

NOT_ALIKE = "what repeats in it is too uneven to be layers"
NOTHING = "no sequence of kernels repeats in it as layers do"
LAYER = ["rank", "device", "step", "model_pass", "layer"]


def place(activities: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """The activities with what they belong to, and why steps were refused."""
    placed, refused = by_sequence(with_main_line(activities))
    named = activities.drop("section").join(placed, on="kernel_id", how="left", validate="1:1", maintain_order="left")
    check_well_formed(named)
    return named, refused


def placed(*steps: Sequence[Made]) -> pl.DataFrame:
    """The activities of the steps, none of which is refused."""
    found, refused = place(activities_of(steps))
    assert refused == {}
    return found


def check_well_formed(found: pl.DataFrame) -> None:
    """Layers are numbered without gaps, contiguous on the main line, and not surer than the method is."""
    inside = found.filter(pl.col("layer").is_not_null())
    assert set(inside["section"]) <= {"layer"}
    assert not set(found.filter(pl.col("layer").is_null())["section"]) & {"layer"}
    assert set(inside["block"]) <= {"attention", "mlp", "moe", "comm", "other"}
    assert found["confidence"].drop_nulls().is_between(0, MAX_CONFIDENCE).all()
    assert not found["confidence"].is_nan().any()
    for _, of_pass in inside.group_by("rank", "device", "step", "model_pass"):
        assert sorted(set(of_pass["layer"])) == list(range(of_pass["layer"].n_unique()))
    main = with_main_line(found.with_columns(section=pl.lit(None, pl.String))).filter("is_main").select("kernel_id")
    line = found.join(main, on="kernel_id", how="semi").sort("rank", "device", "step", "start_ns", "kernel_id")
    for _, of_step in line.group_by("rank", "device", "step"):
        places = of_step.select("model_pass", "layer").rows()
        runs = [b for a, b in pairwise([(None, None), *places]) if a != b and b != (None, None)]
        assert len(runs) == len(set(runs))


def wrong(found: pl.DataFrame) -> list[tuple[object, ...]]:
    """What is not where it was made: true pass and layer, those found, and the name."""
    is_wrong = [
        pl.col(f"true_{name}").ne_missing(pl.col(of)) for name, of in (("pass", "model_pass"), ("layer", "layer"))
    ]
    return found.filter(pl.any_horizontal(is_wrong)).select(
        "kernel_id", "true_pass", "true_layer", "model_pass", "layer", pl.col("name").str.head(40)
    ).rows()  # fmt: skip


def types_of(found: pl.DataFrame) -> list[int]:
    """The type of each layer of the first step and pass, by number of layer."""
    inside = found.filter(pl.col("layer").is_not_null())
    typed, _ = layer_types(inside, None)
    return typed.filter(step=0, model_pass=0).sort("layer")["layer_type"].to_list()


# --- random models

EACH = settings(derandomize=True, phases=[Phase.explicit, Phase.generate])


@settings(EACH, max_examples=70)
@given(seed=st.integers(0, 2**32))
def test_random_models_without_noise(seed):
    rng = random.Random(seed)
    assert wrong(placed(step_of(model_of(rng), rng))) == []


@settings(EACH, max_examples=35)
@given(seed=st.integers(0, 2**32), n_passes=st.integers(1, 3), n_layers=st.integers(1, 3))
def test_random_models_with_a_draft_model(seed, n_passes, n_layers):
    rng = random.Random(seed)
    model = model_of(rng)
    draft = (replace(model.layers[-1], feed=rng.choice(["dense", "moe"])),) * n_layers
    assert wrong(placed(step_of(replace(model, draft=draft, n_draft_passes=n_passes), rng))) == []


@pytest.mark.parametrize("kind", ["drop", "insert", "rename"])
def test_random_models_with_noise(kind):
    """Over one fixed set of models: nearly all kernels stay in their layer."""
    right, astray, none = layer_noise.scores(Noise(**{kind: 0.005}), 40)
    assert right > 0.97, f"{right:.2%} right, {astray:.2%} wrong, {none:.2%} in none"
    assert right + astray + none == pytest.approx(1)


@settings(EACH, max_examples=35)
@given(seed=st.integers(0, 2**32), drop=st.floats(0, 0.2), insert=st.floats(0, 0.2), rename=st.floats(0, 0.2))
def test_any_noise_gives_well_formed_layers(seed, drop, insert, rename):
    rng = random.Random(seed)
    noisy = with_noise(step_of(model_of(rng), rng), Noise(drop, insert, rename), rng)
    place(activities_of([noisy]))


@settings(EACH, max_examples=35)
@given(seed=st.integers(0, 2**32), n_kernels=st.integers(1, 300))
def test_kernels_in_no_order_are_no_layers_or_well_formed_ones(seed, n_kernels):
    rng = random.Random(seed)
    names = [made.FUSED_NORM, made.NORM, made.ADD, made.ROPE, made.SILU, made.MLA, made.EXPERTS, made.ARG_MAX, "gemm"]
    place(activities_of([[Made(rng.choice(names), None, None, rng.randint(7, 9)) for _ in range(n_kernels)]]))


def test_the_benchmark_of_noise_counts_every_kernel_of_a_layer():
    right, astray, none = layer_noise.scores(Noise(), 5)
    assert (right, astray, none) == (1, 0, 0)
    assert layer_noise.scores(Noise(drop=0.2), 5) == layer_noise.scores(Noise(drop=0.2), 5)
    assert layer_noise.scores(Noise(drop=0.2), 5)[0] < 1


# --- models in one line each

G = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
ATTENTION = [G, made.ROPE, made.KV_WRITE, made.FLASH.format(local="false"), G]
FLASH = ATTENTION[3]
LOCAL = [G, made.ROPE, made.KV_WRITE, made.FLASH.format(local="true"), G]
LINEAR = [G, made.CONVOLUTION, made.LINEAR_ATTENTION, G]
MLP = [G, made.SILU, G]
MOE = [G, made.TOP_K, made.ALIGN, made.EXPERTS, made.SILU, made.EXPERTS]
LONG_MOE = [*MOE, *[made.QUANTIZE, G] * 3, made.ALIGN, made.EXPERTS, made.SILU, made.EXPERTS, G, G, G]
UNNAMED = [G, made.UNKNOWN, "my_vendor_kernel_v3", G]
SCAN = "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<32, 4, c10::BFloat16, float> >(SSMParamsBase)"
HEAD = (made.POSITIONS, made.EMBEDDING)
TAIL = (made.FUSED_NORM, G, made.ARG_MAX)
Layers = list[list[str]]


def one_step(layers: Layers, head: Sequence[str] = HEAD, tail: Sequence[str] = TAIL) -> list[Made]:
    inside = [Made(name, 0, number) for number, names in enumerate(layers) for name in names]
    return [*(Made(name, None, None) for name in head), *inside, *(Made(name, None, None) for name in tail)]


def fused(*halves: list[str], n: int = 6) -> Layers:
    """Layers of these halves, with a norm before each that adds the residual; the very first adds nothing."""
    layer = [name for half in halves for name in (made.FUSED_NORM, *half)]
    return [[made.NORM, *layer[1:]], *[layer] * (n - 1)]


def mixed(*layers: Layers) -> Layers:
    """Layers of several models in turns."""
    return [kinds[number % len(kinds)] for number, kinds in enumerate(zip(*layers, strict=True))]


def in_norm_style(before: list[str], layer: list[str], n: int = 6) -> Layers:
    return [before, *[layer] * (n - 1)]


SANDWICH = [*ATTENTION, made.NORM, made.FUSED_NORM, *MLP, made.NORM]
ALL_REDUCED = [made.FUSED_ALL_REDUCE, *ATTENTION, made.FUSED_ALL_REDUCE, *MLP]
ENDED_BY_ADD = [made.LAYER_NORM, *ATTENTION, made.ADD, made.LAYER_NORM, *MLP, made.ADD]
BEGUN_BY_ADD = [made.ADD, made.LAYER_NORM, *ATTENTION, made.ADD, made.LAYER_NORM, *MLP]
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::"
TO_FLOAT = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4, "
    "TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, "
    "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int)"
)
NORM_IN_PARTS = [
    TO_FLOAT,
    f"{ELEMENTWISE}(anonymous namespace)::pow_tensor_scalar_kernel_impl<float, float>(float)::{{lambda(float)#1}}>",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>",
    f"{ELEMENTWISE}CUDAFunctorOnSelf_add<float>>",
    f"{ELEMENTWISE}rsqrt_kernel_cuda(at::TensorIteratorBase&)>",
    made.MULTIPLY,
]
TRITON_NORM = "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2"

RECOVERED: dict[str, list[Made]] = {
    "dense layers": one_step(fused(ATTENTION, MLP)),
    "layers of experts": one_step(fused(ATTENTION, MOE)),
    "two layers": one_step(fused(ATTENTION, MLP, n=2)),
    "500 layers": one_step(fused(ATTENTION, MLP, n=500)),
    "dense before experts": one_step([*fused(ATTENTION, MLP, n=3), *fused(ATTENTION, MOE, n=9)[1:]]),
    "short dense layers before long ones of experts": one_step(
        [*fused(ATTENTION, MLP, n=3), *fused(ATTENTION, LONG_MOE, n=30)[1:]]
    ),
    "few short layers among long ones": one_step(mixed(
        fused([G, made.CONVOLUTION, SCAN, G], MLP, n=48), *[fused(ATTENTION, LONG_MOE, n=48)] * 7
    )),
    "few layers of twice the length among short ones": one_step(mixed(
        *[fused(ATTENTION, MLP, n=48)] * 7, fused([*ATTENTION, *[made.QUANTIZE] * 10], MLP, n=48)
    )),
    "norms before and behind each half": one_step(
        in_norm_style([made.NORM, *SANDWICH], [made.FUSED_NORM, *SANDWICH])
    ),
    "both halves behind one norm": one_step(fused([*ATTENTION, *MLP])),
    "nothing but state space": one_step(fused([G, made.CONVOLUTION, SCAN, G])),
    "nothing but linear attention": one_step(fused(LINEAR)),
    "no name of the second half": one_step(fused(ATTENTION, [G, made.UNKNOWN, G])),
    "no name of the first half": one_step(fused(UNNAMED, MLP)),
    "norms fused with the all-reduce": one_step(
        in_norm_style([made.NORM, *ALL_REDUCED[1:]], ALL_REDUCED), tail=(made.FUSED_ALL_REDUCE, G, made.ARG_MAX)
    ),
    "an add ends each half": one_step([ENDED_BY_ADD] * 6, tail=(made.LAYER_NORM, G, made.ARG_MAX)),
    "an add begins each half": one_step([BEGUN_BY_ADD] * 6, tail=(made.ADD, made.LAYER_NORM, G, made.ARG_MAX)),
    "norms in parts": one_step(
        [[*NORM_IN_PARTS, *ATTENTION, made.ADD, *NORM_IN_PARTS, *MLP, made.ADD]] * 6, tail=(*NORM_IN_PARTS, G)
    ),
    "norms that a compiler made": one_step(
        in_norm_style(["triton_red_fused_mean_mul_pow_rsqrt_0", *ATTENTION, TRITON_NORM, *MLP],
                      [TRITON_NORM, *ATTENTION, TRITON_NORM, *MLP]), tail=(TRITON_NORM, G, made.ARG_MAX)
    ),
    "the step begins with the first layer": one_step(fused(ATTENTION, MLP), head=()),
    "the step ends with the last layer": one_step(fused(ATTENTION, MLP), tail=()),
    "a norm in the prologue": one_step(fused(ATTENTION, MLP), head=(*HEAD, made.NORM, G)),
    "two norms in a row": one_step(
        in_norm_style([made.NORM, made.NORM, *ATTENTION, made.FUSED_NORM, *MLP],
                      [made.FUSED_NORM, made.NORM, *ATTENTION, made.FUSED_NORM, *MLP])
    ),
    "norms of queries and keys": one_step(
        fused([G, made.NORM, made.NORM, *ATTENTION[1:]], MLP)
    ),
    "an all-reduce behind each half": one_step(fused([*ATTENTION, made.ALL_REDUCE], [*MLP, made.ALL_REDUCE])),
    "optional kernels in every third layer": one_step(
        mixed(*[fused([made.QUANTIZE] * (number == 2) + ATTENTION, MLP, n=9) for number in range(3)])
    ),
    "local and full attention in turns": one_step(mixed(fused(LOCAL, MLP, n=8), fused(ATTENTION, MLP, n=8))),
    "every fourth layer mixes differently": one_step(
        mixed(*[fused(LINEAR, MOE, n=12)] * 3, fused(ATTENTION, MOE, n=12))
    ),
    "attention and state space without a second half": one_step(
        mixed(fused([G, made.CONVOLUTION, SCAN, G], n=8), fused(ATTENTION, n=8))
    ),
    "a kernel of its own name in every layer": one_step(
        [[*layer, f"kernel_{number}"] for number, layer in enumerate(fused(ATTENTION, MLP, n=300))]
    ),
    "long and strange names": one_step(
        fused([G, "x" * 5000, "(*+?[^]$\\d{2,", *ATTENTION], ["a|b)(?P<layer", "", *MLP])
    ),
}  # fmt: skip


@pytest.mark.parametrize("story", RECOVERED)
def test_layers_as_they_were_made(story):
    step = RECOVERED[story]
    found = placed(step, step)
    assert wrong(found) == []
    assert found["section"].null_count() == 0


def test_norms_are_the_only_names_known():
    """They repeat, and more is not known: less confidence, and no block."""
    found = placed(one_step(fused(UNNAMED, [G, "my_vendor_kernel_v4", G])))
    assert wrong(found) == []
    assert (found["confidence"] < 0.6).all()
    assert set(found["block"].drop_nulls()) == {"other"}


def test_the_trust_in_layers_by_their_evidence():
    """Exact doubles are surest; a type of which there is one layer is as sure as it is like the others."""
    found = placed(one_step([*fused(ATTENTION, MLP, n=5), fused(ATTENTION, MOE)[1]]))
    sure = found.filter(pl.col("layer").is_not_null()).group_by("layer").agg(pl.min("confidence")).sort("layer")
    assert sure["confidence"].to_list()[1:5] == 4 * [MAX_CONFIDENCE]
    assert 0.5 < sure["confidence"][5] < 0.8


# --- what names say

ROLES = {
    "add": (
        [made.ADD, "triton_poi_fused_add_0", "triton_poi_fused_mul_add_3", "triton_poi_fused_add_mul_1"],
        [*NORM_IN_PARTS, "triton_poi_fused_padding_1", "triton_add", made.FUSED_NORM, made.SILU],
    ),
    "norm": (
        [made.NORM, made.FUSED_NORM, made.LAYER_NORM, made.FUSED_ALL_REDUCE, NORM_IN_PARTS[4], TRITON_NORM],
        [made.ADD, made.ALL_REDUCE, *NORM_IN_PARTS[:4], "fused_qk_norm_rope_kernel", "group_norm_kernel"],
    ),
    "adding_norm": ([made.FUSED_NORM, made.FUSED_ALL_REDUCE], [made.NORM, made.LAYER_NORM, made.ADD]),
    "norm_part": (NORM_IN_PARTS[:4], [made.ADD, made.NORM, made.ROPE]),
    "mixer": ([made.MLA, FLASH, made.ROPE, made.KV_WRITE, SCAN, made.LINEAR_ATTENTION], [made.SILU, G]),
    "feed_forward": ([made.SILU, made.EXPERTS, made.TOP_K, made.ALIGN], [made.MLA, G, made.NORM]),
    "no_layer": ([made.ARG_MAX], [made.NORM, G, made.TOP_K, made.ALIGN]),
    "training": (["at::native::softmax_warp_backward", "flash_bwd_kernel"], [made.MLA, G]),
}  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_roles_of_names(role):
    yes, no = ROLES[role]
    vocabulary = Vocabulary(activities_of([[Made(name, None, None) for name in (*yes, *no)]]))
    has = vocabulary.has(role)[vocabulary.numbers].tolist()
    assert [name for name, found in zip((*yes, *no), has, strict=True) if found] == yes


# --- what is no layer


UNEVEN = [
    [made.FUSED_NORM, *ATTENTION, made.FUSED_NORM, *MLP],
    [made.FUSED_NORM, *[f"kernel_{i}" for i in range(60)], made.MLA, made.FUSED_NORM, made.EXPERTS],
]
REFUSED: dict[str, tuple[list[Made], str]] = {
    "no norms": (one_step([UNNAMED] * 6, tail=(G,)), NOTHING),
    "no norms but attention and activations": (one_step([[*ATTENTION, *MLP]] * 6, tail=(G,)), NOTHING),
    "one layer": (one_step(fused(ATTENTION, MLP, n=1)), NOTHING),
    "nothing but norms": (one_step([], tail=(made.NORM,) * 3), NOTHING),
    "one kernel": (one_step([], head=(), tail=(G,)), NOTHING),
    "layers of which none is like another": (one_step(UNEVEN), NOT_ALIKE),
    "training": (
        one_step(fused(ATTENTION, MLP), tail=(*TAIL, "void at::native::layer_norm_backward_kernel<float>()")),
        "it trains: layers of backward passes are not looked for",
    ),
    "images": (
        one_step(fused(ATTENTION, MLP), head=["sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"] * 20),
        "it runs convolutions: no decoder alone",
    ),
}


@pytest.mark.parametrize("story", REFUSED)
def test_no_layers_and_the_reason(story):
    step, reason = REFUSED[story]
    found, refused = place(activities_of([step, step]))
    assert refused == {reason: 2}
    assert found["layer"].null_count() == found.height


def test_a_stray_kernel_of_the_second_half_in_the_first_makes_no_layer():
    """Nor one of a norm between kernels of the second half: where attention has no names, all rests on that half."""
    step = one_step(fused(UNNAMED, MOE, n=30))
    size = len(fused(UNNAMED, MOE)[0])
    for at, name in ((len(HEAD) + 7 * size + 3, made.SILU), (len(HEAD) + 9 * size + 10, made.FUSED_NORM)):
        noisy = [*step[:at], replace(step[at], name=name), *step[at:]]
        found = placed(noisy)
        assert found["layer"].max() == 29
        far = found.filter((pl.col("kernel_id") - at).abs() > size)
        assert wrong(far) == []


def test_a_lost_anchor_loses_no_layer():
    """All that shows a layer's second half is gone, its norms are not."""
    step = one_step(fused(UNNAMED, MLP, n=30))
    (at,) = [i for i, kernel in enumerate(step) if kernel.layer == 11 and kernel.name == made.SILU]
    assert wrong(placed([*step[:at], *step[at + 1 :]])) == []


def test_a_step_without_layers_beside_one_with_them():
    found, refused = place(activities_of([one_step(fused(ATTENTION, MLP)), [Made(G, None, None)] * 3]))
    assert refused == {NOTHING: 1}
    assert wrong(found) == []


def test_no_activities():
    found, refused = by_sequence(with_main_line(activities_of([])))
    assert (found.height, refused) == (0, {})


# --- what was cut off


def cut(step: list[Made], n_ahead: int, n_behind: int) -> list[Made]:
    return step[n_ahead : len(step) - n_behind]


N_LAYER = len(fused(ATTENTION, MLP)[0])


@pytest.mark.parametrize("n_ahead", [len(HEAD) + 3, len(HEAD) + 7, len(HEAD) + N_LAYER - 2])
def test_the_first_layer_is_cut_off(n_ahead):
    """What is left of it is not attributed, and the whole layers are counted from the first."""
    found = placed(cut(one_step(fused(ATTENTION, MLP)), n_ahead, 0))
    part = found.filter(true_layer=0)
    assert set(part["layer"]) == {None}
    assert set(part["section"]) == {None}
    whole = found.filter(pl.col("true_layer") > 0)
    assert whole["layer"].to_list() == (whole["true_layer"] - 1).to_list()
    assert set(found.filter(pl.col("true_layer").is_null())["section"]) == {"epilogue"}


@pytest.mark.parametrize("n_behind", [len(TAIL) + 2, len(TAIL) + 5, len(TAIL) + N_LAYER - 4])
def test_the_last_layer_is_cut_off(n_behind):
    found = placed(cut(one_step(fused(ATTENTION, MLP)), 0, n_behind))
    part = found.filter(true_layer=5)
    assert set(part["layer"]) == {None}
    assert set(part["section"]) == {None}
    assert wrong(found.filter(pl.col("true_layer") < 5)) == []


def test_a_whole_type_of_layer_is_missing():
    """Three dense layers before experts, of which nothing was recorded: no layer is invented for them."""
    found = placed(one_step(fused(ATTENTION, MLP, n=3)))
    assert wrong(found) == []
    assert types_of(found) == [0, 0, 0]


# --- types


TYPES: dict[str, tuple[Layers, list[int]]] = {
    "tiles and dtypes differ": (
        [[*fused([G.replace("64x8", tile), *ATTENTION[1:]], MLP)[1][:2],
          *[name.replace("__nv_bfloat16", dtype) for name in fused(ATTENTION, MLP)[1][2:]]]
         for tile, dtype in [("64x8", "__half"), ("128x8", "__nv_bfloat16"), ("192x16", "float")] * 2],
        6 * [0],
    ),
    "optional kernels": (mixed(*[fused([made.QUANTIZE] * (n == 2) + ATTENTION, MLP, n=9) for n in range(3)]), 9 * [0]),
    "template arguments of attention": (mixed(fused(LOCAL, MLP, n=8), fused(ATTENTION, MLP, n=8)), 4 * [0, 1]),
    "every third layer mixes differently": (
        mixed(*[fused(LINEAR, MOE, n=9)] * 2, fused(ATTENTION, MOE, n=9)), 3 * [0, 0, 1],
    ),
    "dense before experts": ([*fused(ATTENTION, MLP, n=2), *fused(ATTENTION, MOE, n=5)[1:]], [0, 0, 1, 1, 1, 1]),
    "one layer of experts": ([*fused(ATTENTION, MLP, n=5), fused(ATTENTION, MOE)[1]], [0, 0, 0, 0, 0, 1]),
}  # fmt: skip


@pytest.mark.parametrize("story", TYPES)
def test_types_of_layers(story):
    layers, expected = TYPES[story]
    found = placed(one_step(layers))
    assert wrong(found) == []
    assert types_of(found) == expected


@pytest.mark.parametrize("stray", [made.UNKNOWN, "extra_kernel_of_the_vendor"])
def test_a_stray_kernel_makes_no_type(stray):
    steps = [one_step(fused([*ATTENTION, *ATTENTION], [*MLP, *MLP], n=12)) for _ in range(4)]
    at = len(HEAD) + 5 * 18 + 4
    steps[2][at] = replace(steps[2][at], name=stray)
    assert types_of(placed(*steps)) == 12 * [0]


def test_types_have_a_label_and_a_size():
    found = placed(one_step([*fused(ATTENTION, MLP, n=2), *fused(ATTENTION, MOE, n=5)[1:]]))
    _, types = layer_types(found.filter(pl.col("layer").is_not_null()), None)
    assert types.rows() == [(0, "attention + mlp", 2, 10), (1, "attention + moe", 4, 13)]


# --- blocks


@pytest.mark.parametrize(("feed", "block"), [(MLP, "mlp"), (MOE, "moe")])
def test_blocks_of_a_layer(feed, block):
    """The halves begin at their norms, and communication is none of them."""
    found = placed(one_step(fused([*ATTENTION, made.ALL_REDUCE], [*feed, made.ALL_REDUCE])))
    expected = ["attention"] * (1 + len(ATTENTION)) + ["comm"] + [block] * (1 + len(feed)) + ["comm"]
    assert found.filter(layer=2)["block"].to_list() == expected


# --- several steps, ranks, devices, passes


def test_steps_of_different_layer_counts():
    found = placed(*[one_step(fused(ATTENTION, MLP, n=n)) for n in (6, 9, 6, 2)])
    assert wrong(found) == []
    counts = found.group_by("step").agg(pl.col("layer").drop_nulls().n_unique()).sort("step")
    assert counts["layer"].to_list() == [6, 9, 6, 2]


def test_ranks_and_devices_are_apart():
    one = activities_of([one_step(fused(ATTENTION, MLP)), one_step(fused(ATTENTION, MOE))])
    everywhere = [
        one.with_columns(
            kernel_id=pl.col("kernel_id") + number * one.height,
            rank=pl.lit(number // 2, pl.Int16),
            device=pl.lit(number % 2, pl.Int16),
        )
        for number in range(6)
    ]
    found, refused = place(pl.concat(everywhere).sample(fraction=1, shuffle=True, seed=3))
    assert refused == {}
    assert wrong(found) == []
    assert found.group_by("rank", "device").len()["len"].to_list() == 6 * [one.height]


def test_a_draft_model_of_one_layer_runs_three_times():
    rng = random.Random(1)
    layer = made.LayerType("gqa", "moe")
    model = made.Model(made.Style("fused"), (layer,) * 8, (made.LayerType("gqa", "dense"),), 3)
    found = placed(step_of(model, rng), step_of(model, rng))
    assert wrong(found) == []
    passes = found.filter(pl.col("layer").is_not_null()).group_by("step", "model_pass").agg(pl.n_unique("layer"))
    assert Counter(passes["layer"]) == {8: 2, 1: 6}


# --- streams


@dataclass
class Beside:
    """Runs kernels on another stream, at the same time as the kernel of the main line at a position."""

    activities: pl.DataFrame

    def run(self, positions: Sequence[int], names: Sequence[str], stream: int = 20) -> pl.DataFrame:
        """The activities with one more for each position, 100 ns behind the start of the kernel there."""
        more = self.activities[list(positions)].with_columns(
            stream=pl.lit(stream, pl.Int64),
            start_ns=pl.col("start_ns") + 100,
            name=pl.Series(names),
            short_name=pl.Series(names),
            category=pl.lit("other"),
            kernel_id=pl.int_range(pl.len(), dtype=pl.Int64) + self.activities.height,
        )
        return pl.concat([self.activities, more]).sort("step", "start_ns", "kernel_id")


def positions_of(activities: pl.DataFrame, kernel: int) -> list[int]:
    """Of each layer, the kernel of this number."""
    inside = activities.with_row_index("at").filter(pl.col("true_layer").is_not_null())
    return inside.group_by("true_layer").agg(pl.col("at").sort().get(kernel)).sort("true_layer")["at"].to_list()


def test_a_side_stream_in_every_layer_belongs_to_them_by_time():
    activities = activities_of([one_step(fused(ATTENTION, MOE, n=12))])
    found, _ = place(Beside(activities).run(positions_of(activities, 7), ["shared_expert"] * 12))
    assert wrong(found) == []
    assert found.filter(stream=20)["layer"].to_list() == list(range(12))


def test_a_side_stream_that_runs_beside_a_layer_by_chance_belongs_to_none():
    activities = activities_of([one_step(fused(ATTENTION, MOE, n=30))])
    found, _ = place(Beside(activities).run(positions_of(activities, 7)[4:6], ["prefetch"] * 2))
    beside = found.filter(stream=20)
    assert set(beside["layer"]) == {None}
    assert set(beside["section"]) == {None}
    assert wrong(found.filter(stream=7)) == []


def test_kernels_of_two_streams_at_the_same_time():
    """Equal starts: the main line's border decides, and a side kernel at it belongs to the layer that begins."""
    activities = activities_of([one_step(fused(ATTENTION, MLP, n=8))])
    beside = Beside(activities).run(positions_of(activities, 0), ["side"] * 8)
    beside = beside.with_columns(start_ns=pl.when(stream=20).then(pl.col("start_ns") - 100).otherwise("start_ns"))
    found, _ = place(beside.sort("start_ns", "kernel_id"))
    assert found.filter(stream=20).sort("start_ns")["layer"].to_list() == list(range(8))
    assert wrong(found) == []


def test_kernels_that_all_start_at_the_same_time():
    """Nothing tells their order but the keys, and nothing crashes."""
    activities = activities_of([one_step(fused(ATTENTION, MLP))]).with_columns(start_ns=pl.lit(5, pl.Int64))
    found, _ = place(activities)
    assert found.height == activities.height


def test_the_main_line_is_handed_over_at_every_collective():
    """Under CUDA graphs the kernels behind an all-reduce run on another stream than those before it."""
    step = one_step(fused([*ATTENTION, made.ALL_REDUCE], [*MLP * 3, made.ALL_REDUCE], n=40))
    stream, handed = 100, list[Made]()
    for kernel in step:
        handed.append(replace(kernel, stream=stream))
        stream += kernel.name == made.ALL_REDUCE
    found = placed(handed)
    assert with_main_line(activities_of([handed]))["is_main"].all()
    assert wrong(found) == []


def test_the_main_line_of_streams_that_overlap_is_the_busiest():
    stream = np.array([1, 2, 1, 1, 2, 1, 1])
    assert main_line(stream, np.arange(7) * 10).tolist() == (stream == 1).tolist()


def test_a_stream_with_a_long_pause_can_hand_the_line_on_and_take_it_back():
    stream = np.array([1] * 40 + [2] * 40 + [1] * 40)
    assert main_line(stream, np.arange(120) * 10).all()


def test_the_main_line_of_one_activity():
    assert main_line(np.array([3]), np.array([0])).tolist() == [True]


def test_what_was_launched_between_steps_or_never_timed_is_on_no_line():
    activities = activities_of([one_step(fused(ATTENTION, MLP))]).with_columns(
        section=pl.when(pl.col("kernel_id") == 3).then(pl.lit("between")),
        start_ns=pl.when(pl.col("kernel_id") != 4).then("start_ns"),
    )
    assert set(activities["kernel_id"]) - set(with_main_line(activities)["kernel_id"]) == {3, 4}
