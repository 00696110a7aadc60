"""Made steps of language models, kernel by kernel, with the layer that each kernel belongs to: truth for layer methods.

Kernel names are those that real traces show. A model is a list of layer types in order; noise loses, adds and renames
kernels as profilers, graphs and auto-tuners do.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl

from traceql.categories import load_categories
from traceql.names import short_name

FUSED_NORM = "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)"
NORM = "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)"
LAYER_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int)"
ADD = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
MULTIPLY = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::BinaryFunctor<float, float, float, "
    "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int)"
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
FUSED_ALL_REDUCE = (
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1, __nv_bfloat16>()"
)
SPLIT_K = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(cublasSplitKParams<float>)"
ROPE = "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 128u, __nv_bfloat16>(__nv_bfloat16*)"
SILU = "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, silu>(__nv_bfloat16*)"
KV_WRITE = "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(__nv_bfloat16 const*)"
FLASH = "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128>, {local}, false>(Flash_fwd_params)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*, float const*)"
MLA = "void flashinfer::mla::hopper::BatchMLAPageAttentionHopperKernel<__nv_bfloat16, int>(int)"
LINEAR_ATTENTION = "fused_recurrent_gated_delta_rule_fwd_kernel"
CONVOLUTION = "_causal_conv1d_update_kernel"
EXPERTS = "fused_moe_kernel"
TOP_K = "void moe_fused_gate_kernel_dynamic<float>(void*, void*, float*, int*, long)"
ALIGN = "void moe_align_block_size_kernel<int>(int const*, int*, int*, int*, int, int, unsigned long)"
QUANTIZE = "void per_token_group_quant_8bit_kernel<__nv_bfloat16, __nv_fp8_e4m3>(void const*)"
EMBEDDING = (
    "void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>()"
)
ARG_MAX = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, int> >()"
POSITIONS = "compute_position_kernel"
UNKNOWN = "my_vendor_kernel_v2"


def gemm(rng: random.Random) -> str:
    """A dense GEMM with a tile that the library chose."""
    rows, columns, cluster = rng.choice([64, 128, 192]), rng.choice([8, 16, 64]), rng.choice([1, 2, 4])
    return f"nvjet_sm90_tst_{rows}x{columns}_64x16_{cluster}x1_v_bz_TNT"


@dataclass(frozen=True)
class Style:
    """What all layers of a model share."""

    norm: str
    """How a block's output enters the residual stream: fused (the next norm adds it), reduce (so does the next norm,
    fused with the all-reduce), add (an add ends the block) or carried (an add begins the next block, the first too).
    """
    has_comm: bool = False
    has_split_k: bool = False
    has_quantize: bool = False


@dataclass(frozen=True)
class LayerType:
    """The two halves of a layer."""

    mixer: str
    """gqa, local, mla, linear or plain (attention of GEMMs and a softmax)."""
    feed: str
    """dense or moe."""


@dataclass(frozen=True)
class Model:
    """A model: its layers in order; a draft model's after each pass of the main one."""

    style: Style
    layers: tuple[LayerType, ...]
    draft: tuple[LayerType, ...] = ()
    n_draft_passes: int = 0


@dataclass(frozen=True)
class Made:
    """A kernel of a made step, and the truth about it."""

    name: str
    model_pass: int | None
    layer: int | None
    stream: int = 7


@dataclass(frozen=True)
class Noise:
    """Probabilities, for each kernel."""

    drop: float = 0.0
    insert: float = 0.0
    rename: float = 0.0


STYLES = (
    Style("fused"),
    Style("fused", has_comm=True),
    Style("fused", has_split_k=True, has_quantize=True),
    Style("add"),
    Style("add", has_comm=True),
    Style("carried", has_comm=True),
    Style("reduce", has_comm=True),
)
MIXERS = ("gqa", "mla", "linear", "plain")


def model_of(rng: random.Random) -> Model:
    """A random model: uniform, dense layers before experts, alternating types, with or without a draft model."""
    style = rng.choice(STYLES)
    n_layers = rng.randint(4, 48)
    mixer = rng.choice(MIXERS)
    base = LayerType(mixer, "dense")
    moe = LayerType(mixer, "moe")
    shape = rng.choice(["uniform", "experts", "dense first", "alternating", "every n-th"])
    if shape == "uniform":
        layers = (base,) * n_layers
    elif shape == "experts":
        layers = (moe,) * n_layers
    elif shape == "dense first":
        n_dense = rng.randint(1, 3)
        layers = (base,) * n_dense + (moe,) * max(2, n_layers - n_dense)
    elif shape == "alternating":
        layers = tuple(replace(base, mixer="local" if number % 2 else "gqa") for number in range(n_layers))
    else:
        period = rng.randint(3, 6)
        layers = tuple(
            LayerType("gqa" if number % period == period - 1 else "linear", moe.feed) for number in range(n_layers)
        )
    return Model(style, layers)


def step_of(model: Model, rng: random.Random) -> list[Made]:
    """The kernels of one step, without noise."""
    kernels = [Made(name, None, None) for name in (POSITIONS, EMBEDDING)]
    kernels += _pass(model.style, model.layers, 0, rng)
    for number in range(1, model.n_draft_passes + 1):
        kernels += [Made(EMBEDDING, None, None), *_pass(model.style, model.draft, number, rng)]
    return kernels


def _pass(style: Style, layers: Sequence[LayerType], model_pass: int, rng: random.Random) -> Iterator[Made]:
    for number, layer in enumerate(layers):
        for name in _layer(style, layer, rng, is_first=number == 0):
            yield Made(name, model_pass, number)
    for name in (*_norm(style), gemm(rng), ARG_MAX):
        yield Made(name, None, None)


def _layer(style: Style, layer: LayerType, rng: random.Random, *, is_first: bool) -> Iterator[str]:
    yield from _norm(style, is_first=is_first)
    yield from _mixer(style, layer.mixer, rng)
    yield from _output(style, rng)
    yield from _norm(style)
    yield from _feed(style, layer.feed, rng)
    yield from _output(style, rng)


def _norm(style: Style, *, is_first: bool = False) -> Iterator[str]:
    if style.norm == "carried":
        yield ADD
    if style.norm in ("add", "carried"):
        yield LAYER_NORM
    elif is_first:
        yield NORM
    else:
        yield FUSED_NORM if style.norm == "fused" else FUSED_ALL_REDUCE


def _output(style: Style, rng: random.Random) -> Iterator[str]:
    yield from _gemm(style, rng)
    if style.has_comm and style.norm != "reduce":
        yield ALL_REDUCE
    if style.norm == "add":
        yield ADD


def _gemm(style: Style, rng: random.Random) -> Iterator[str]:
    if style.has_quantize:
        yield QUANTIZE
    yield gemm(rng)
    if style.has_split_k:
        yield SPLIT_K


def _mixer(style: Style, mixer: str, rng: random.Random) -> Iterator[str]:
    yield from _gemm(style, rng)
    if mixer in ("gqa", "local"):
        yield from (ROPE, KV_WRITE, FLASH.format(local=str(mixer == "local").lower()))
    elif mixer == "mla":
        yield from (NORM, NORM, gemm(rng), gemm(rng), ROPE, KV_WRITE, MLA, gemm(rng))
    elif mixer == "linear":
        yield from (CONVOLUTION, LINEAR_ATTENTION, NORM, MULTIPLY)
    else:
        yield from (MULTIPLY, ADD, gemm(rng), SOFTMAX, gemm(rng))


def _feed(style: Style, feed: str, rng: random.Random) -> Iterator[str]:
    if feed == "dense":
        yield from _gemm(style, rng)
        yield SILU
    else:
        yield from (gemm(rng), TOP_K, ALIGN, EXPERTS, SILU, EXPERTS)


def with_noise(kernels: Sequence[Made], noise: Noise, rng: random.Random) -> list[Made]:
    """The kernels with some lost, some added from the same step, and some renamed beyond recognition."""
    found: list[Made] = []
    for kernel in kernels:
        if rng.random() < noise.insert:
            found.append(replace(kernel, name=rng.choice(kernels).name))
        if rng.random() >= noise.drop:
            name = UNKNOWN if rng.random() < noise.rename else kernel.name
            found.append(replace(kernel, name=name))
    return found


def activities_of(steps: Sequence[Sequence[Made]]) -> pl.DataFrame:
    """Made steps as GPU activities with their step, as `Attribution.activities` has them, and true_pass, true_layer."""
    rows = [
        (step, kernel.stream, kernel.name, kernel.model_pass, kernel.layer)
        for step, kernels in enumerate(steps)
        for kernel in kernels
    ]
    schema = {"step": pl.Int64, "stream": pl.Int64, "name": pl.String, "true_pass": pl.Int64, "true_layer": pl.Int64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    names = frame["name"].unique(maintain_order=True).to_list()
    facts = pl.DataFrame(
        {
            "name": names,
            "short_name": [short_name(name) for name in names],
            "category": load_categories().classify(names, ["kernel"] * len(names)),
        },
        schema={"name": pl.String, "short_name": pl.String, "category": pl.String},
    )
    return frame.join(facts, on="name", validate="m:1", maintain_order="left").with_columns(
        kernel_id=pl.int_range(pl.len(), dtype=pl.Int64),
        rank=pl.lit(0, pl.Int16),
        device=pl.lit(0, pl.Int16),
        section=pl.lit(None, pl.String),
        start_ns=pl.int_range(pl.len(), dtype=pl.Int64) * 10_000,
        dur_ns=pl.lit(9_000, pl.Int64),
    )
