"""What one decode step of the founding case consists of: its parts, their time, and its kernels in order.

Plain data: `make_trace.py` gives it times and writes it. A GLM-5-like model with tensor parallelism over 8
GPUs and one running request. The backend casts the whole FP8 KV pool to BF16 in every layer. All matrix
products, the experts' too, run as (batched) GEMMs: the part `gemm` is the GEMM row of the founding table.
"""

import json
from dataclasses import dataclass
from functools import cached_property

FOUNDING_LAYERS = 78
N_DENSE_LAYERS = 3
"""The first layers have a dense MLP, all others a mixture of experts."""

FOUNDING_NS = {
    "cast": 64_600_000,
    "gemm": 13_900_000,
    "all_reduce": 7_650_000,
    "attention": 2_500_000,
    "moe_routing": 1_100_000,
    "norm": 1_000_000,
    "kv_write": 400_000,
    "activation": 260_000,
    "sampling": 240_000,
    "rope": 160_000,
    "embedding": 10_000,
    "idle": 1_380_000,
}
"""Nanoseconds of each part in a step of 78 layers; together 93.2 ms."""

HIDDEN = 6144
KV_WIDTH = 576
POOL_ROWS = 495_001
"""Slots of the KV pool, with the padding slot."""
VOCABULARY_SHARD = 19_360
BF16, FP8, FLOAT = "c10::BFloat16", "c10::Float8_e4m3fn", "float"


@dataclass(frozen=True)
class Arg:
    """One input of an operator as torch records it: four JSON-ready texts."""

    type: str
    dims: str = "[]"
    strides: str = "[]"
    concrete: str = ""


@dataclass(frozen=True)
class Op:
    """A CPU operator and the operators it calls. The innermost of the last ones launches the kernel."""

    name: str
    inputs: tuple[Arg, ...]
    children: tuple["Op", ...] = ()
    pattern: str = (
        '"Concrete Inputs": {concrete}, "Input type": {types}, '
        '"Input Strides": {strides}, "Input Dims": {dims}, "Ev Idx": %d'
    )
    """The order in which the arguments are recorded."""

    @cached_property
    def args(self) -> str:
        """The recorded arguments after `Record function id`, JSON text with %d for the `Ev Idx`."""
        return self.pattern.format(
            concrete=json.dumps([arg.concrete for arg in self.inputs]),
            types=json.dumps([arg.type for arg in self.inputs]),
            strides=f"[{', '.join(arg.strides for arg in self.inputs)}]",
            dims=f"[{', '.join(arg.dims for arg in self.inputs)}]",
        )


@dataclass(frozen=True)
class Kernel:
    """A GPU kernel: the part of the step whose time it takes, its weight in that part, and how it runs."""

    part: str
    name: str
    weight: float = 1.0
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 32
    shared_bytes: int = 0
    op: Op | None = None
    api: str = "cudaLaunchKernel"
    extra: str = ""
    """More arguments, JSON text that begins with a comma and a space."""


def tensor(dtype: str, *dims: int) -> Arg:
    """A contiguous tensor."""
    strides = [1]
    for dim in reversed(dims[1:]):
        strides.insert(0, strides[0] * dim)
    return Arg(dtype, str(list(dims)), str(strides))


def scalar(value: object) -> Arg:
    """A number, a flag or a dtype code."""
    return Arg("Scalar", concrete=str(value))


def ints(*values: int) -> Arg:
    """A list of integers."""
    return Arg("ScalarList", concrete=str(list(values)))


ABSENT = Arg("")
"""An optional input that was not given."""


def linear(n_in: int, n_out: int) -> Op:
    """A linear layer without bias on one row."""
    row, weight = tensor(BF16, 1, n_in), tensor(BF16, n_out, n_in)
    turned = Arg(BF16, f"[{n_in}, {n_out}]", f"[1, {n_in}]")
    strided = Op("aten::as_strided", (weight, ints(n_in, n_out), ints(1, n_in), ABSENT))
    transpose = Op("aten::transpose", (weight, scalar(0), scalar(1)), (strided,))
    product = Op("aten::matmul", (row, turned), (Op("aten::mm", (row, turned)),))
    return Op("aten::linear", (row, weight, ABSENT), (Op("aten::t", (weight,), (transpose,)), product))


def batched(n_batch: int, n_in: int, n_out: int) -> Op:
    """A batched product of one row per batch element."""
    return Op("aten::bmm", (tensor(BF16, n_batch, 1, n_in), tensor(BF16, n_batch, n_in, n_out)))


def cast(source: str, target: str, target_code: int, *dims: int) -> Op:
    """`tensor.to(dtype)` of a contiguous tensor; `target_code` is torch's number of the dtype."""
    old, new = tensor(source, *dims), tensor(target, *dims)
    code, no = scalar(target_code), scalar(False)
    strides = Arg("ScalarList", concrete=new.strides)
    empty = Op("aten::empty_strided", (ints(*dims), strides, code, scalar(0), ABSENT, no))
    copy = Op("aten::copy_", (new, old, no))
    to_copy = Op("aten::_to_copy", (old, code, ABSENT, ABSENT, ABSENT, no, ABSENT), (empty, copy))
    return Op("aten::to", (old, code, no, no, ABSENT), (to_copy,))


_GEMV_PARAMS = (
    "cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<__nv_bfloat16 const>, "
    "cublasGemvTensorStridedBatched<__nv_bfloat16 const>, "
    "cublasGemvTensorStridedBatched<__nv_bfloat16>, float>"
)
_GEMV = (
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, "
    f"__nv_bfloat16, float, false, true, true, false, 7, false, {_GEMV_PARAMS} >({_GEMV_PARAMS})"
)
_BMM = "void cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8"
_LAMBDA = (
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::"
    "{lambda()#12}::operator()() const::{lambda(c10::BFloat16)#1}"
)
_OFFSETS = "TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>"
_WITH_CAST = "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1>"
_CAST = (
    f"void at::native::unrolled_elementwise_kernel<{_LAMBDA}, std::array<char*, 2ul>, 4, {_OFFSETS}, "
    f"{_WITH_CAST} >(int, {_LAMBDA}, std::array<char*, 2ul>, {_OFFSETS}, {_WITH_CAST})"
)
_NORM_ARGS = "(__nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, unsigned int, unsigned int, unsigned int, float, float)"
_NORM = f"void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>{_NORM_ARGS}"
_ADD_NORM = f"void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>{_NORM_ARGS}"
_MLA_PARAMS = "flashinfer::MLAParams<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, int>"
_ATTENTION = (
    "void flashinfer::mla::BatchMLAPagedAttentionKernel<flashinfer::mla::KernelTraits<true, 2u, 512u, 64u, "
    f"64u, 16u, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, int>, {_MLA_PARAMS} >({_MLA_PARAMS})"
)
_ROPE = (
    "void (anonymous namespace)::fused_rope_kernel<false, 64l, true, __nv_bfloat16, long, 8u>"
    "((anonymous namespace)::FusedRopeParams)"
)
_ACTIVATION = (
    "void (anonymous namespace)::act_and_mul_kernel<__nv_bfloat16, ((anonymous namespace)::ActivationKind)0, "
    "true, false>((anonymous namespace)::ActivationParams)"
)
_GATE = (
    "void moe_fused_gate_kernel_dynamic<float>"
    "(void*, void*, float*, int*, long, long, long, long, long, long, double, bool)"
)
_ALIGN = (
    "void moe_align_block_size_small_batch_expert_kernel<int, 256>"
    "(int const*, int*, int*, int*, int, int, unsigned long, bool, int)"
)
_INFO = "at::cuda::detail::TensorInfo"
_EMBEDDING = (
    "void at::native::(anonymous namespace)::indexSelectSmallIndex"
    f"<c10::BFloat16, long, unsigned int, 2, 2, -2>({_INFO}<c10::BFloat16, unsigned int>, "
    f"{_INFO}<c10::BFloat16 const, unsigned int>, "
    f"{_INFO}<long const, unsigned int>, int, int, unsigned int, long)"
)
_SOFTMAX = (
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, "
    "at::native::(anonymous namespace)::SoftMaxForwardEpilogue>(float*, float const*, int)"
)
_SAMPLE = (
    "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, (cub::BlockScanAlgorithm)2, "
    "(cub::BlockReduceAlgorithm)2, 4u, false, float, int>(float*, int*, float*, int*, int*, int, float, "
    "unsigned int, unsigned long, unsigned long)"
)


def gemm(op: Op, million_weights: float, *, name: str = _GEMV, n_blocks: int = 376) -> Kernel:
    """A product of one row: its time goes by the weights it reads, plus a fixed cost."""
    return Kernel("gemm", name, million_weights + 2, (n_blocks, 1, 1), (128, 1, 1), 96, op=op)


def norm(width: int, *, name: str = _NORM) -> Kernel:
    """An RMS norm of one row, with or without the residual add."""
    return Kernel("norm", name, 1 + width / HIDDEN, (1, 1, 1), (32, 24, 1), 31, 24_672, api="cudaLaunchKernelExC")


def activation(width: int, n_rows: int = 1) -> Kernel:
    """SiLU and product of the two halves of an MLP's first product."""
    op = Op(
        "sglang::_run_activation_inplace",
        (ABSENT, tensor(BF16, n_rows, 2 * width), tensor(BF16, n_rows, width)),
    )
    return Kernel("activation", _ACTIVATION, 1.0, (n_rows, 1, 1), (256, 1, 1), 27, op=op)


def all_reduce(rank: int, n_ranks: int) -> Kernel:
    """The sum of one hidden row over all ranks, through NCCL."""
    size = f'"Group size": {n_ranks}'
    ranks = f'"Process Group Ranks": "{list(range(n_ranks))}"'
    name = '"Process Group Name": "0"'
    row = Arg("TensorList", f"[[1, {HIDDEN}]]", f"[[{HIDDEN}, 1]]")
    params = (row, ABSENT, ABSENT, scalar(0), ABSENT, ints(), ints(), scalar(0), scalar(1), scalar(n_ranks))
    pattern = (
        '"Collective name": "allreduce", "Process Group Description": "default_pg", "dtype": "BFloat16", '
        f'"Rank": {rank}, "Input Strides": {{strides}}, "Concrete Inputs": {{concrete}}, '
        f'"Out msg nelems": {HIDDEN}, {name}, "Input type": {{types}}, "Global rank stride": 1, '
        f'"Out split size": "[]", "In split size": "[]", {ranks}, {size}, "Input Dims": {{dims}}, '
        f'"Global rank start": 0, "Ev Idx": %d, "In msg nelems": {HIDDEN}'
    )
    record = Op("record_param_comms", params, pattern=pattern)
    op = Op("c10d::allreduce_", (row, ABSENT, ABSENT, ABSENT, scalar(False), scalar(-1)), (record,))
    return Kernel(
        "all_reduce",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        grid=(4, 1, 1),
        block=(512, 1, 1),
        registers=96,
        shared_bytes=83_168,
        op=op,
        api="cudaLaunchKernelExC",
        extra=f', "Collective name": "allreduce", "In msg nelems": {HIDDEN}, "Out msg nelems": {HIDDEN}, '
        f'{size}, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", {name}, '
        f'"Process Group Description": "default_pg", {ranks}',
    )


ATTENTION = (
    gemm(linear(HIDDEN, 2624), 16.1),
    norm(2048),
    norm(512),
    gemm(linear(2048, 2048), 4.2),
    gemm(batched(8, 192, 512), 0.8, name=_BMM, n_blocks=256),
    Kernel(
        "rope",
        _ROPE,
        registers=30,
        op=Op("sglang::apply_rope_inplace", (tensor(BF16, 1, 8, 64), tensor(BF16, 1, 1, 64))),
    ),
    Kernel("kv_write", "set_mla_kv_buffer_fp8_quant_kernel", grid=(1, 5, 1), registers=24, api="cuLaunchKernelEx"),
    Kernel("cast", _CAST, grid=(556_877, 1, 1), op=cast(FP8, BF16, 15, POOL_ROWS, 1, KV_WIDTH)),
    Kernel(
        "attention",
        _ATTENTION,
        grid=(1, 188, 1),
        registers=255,
        shared_bytes=98_304,
        api="cudaLaunchCooperativeKernel",
    ),
    gemm(batched(8, 512, 256), 1.0, name=_BMM, n_blocks=128),
    gemm(linear(2048, HIDDEN), 12.6),
)
"""From the first projection to the output projection of a layer's attention."""

DENSE_MLP = (
    gemm(linear(HIDDEN, 3072), 18.9),
    activation(1536),
    gemm(linear(1536, HIDDEN), 9.4),
)

MOE_MLP = (
    gemm(linear(HIDDEN, 512), 3.1),
    activation(256),
    gemm(linear(256, HIDDEN), 1.6),
    gemm(linear(HIDDEN, 256), 1.6),
    Kernel(
        "moe_routing",
        _GATE,
        2.0,
        block=(32, 6, 1),
        op=Op("sgl_kernel::moe_fused_gate", (tensor(FLOAT, 1, 256), tensor(FLOAT, 256), scalar(1), scalar(1))),
    ),
    Kernel(
        "moe_routing",
        _ALIGN,
        1.2,
        block=(289, 1, 1),
        registers=31,
        shared_bytes=4_624,
        op=Op("sgl_kernel::moe_align_block_size", (tensor("int", 1, 8), scalar(257), scalar(16))),
    ),
    gemm(batched(8, HIDDEN, 512), 25.2, name=_BMM, n_blocks=256),
    activation(256, 8),
    gemm(batched(8, 256, HIDDEN), 12.6, name=_BMM, n_blocks=768),
    Kernel("moe_routing", "_moe_sum_reduce_kernel", 1.0, grid=(1, 3, 1), api="cuLaunchKernelEx"),
)
"""The shared expert, the routing, and the eight routed experts of one token."""

PROLOGUE = (
    Kernel(
        "embedding",
        _EMBEDDING,
        grid=(48, 1, 1),
        op=Op(
            "aten::embedding",
            (
                tensor(BF16, VOCABULARY_SHARD, HIDDEN),
                tensor("long int", 1),
                scalar(-1),
                scalar(False),
                scalar(False),
            ),
            (
                Op(
                    "aten::index_select",
                    (tensor(BF16, VOCABULARY_SHARD, HIDDEN), scalar(0), tensor("long int", 1)),
                ),
            ),
        ),
    ),
)

EPILOGUE = (norm(HIDDEN, name=_ADD_NORM), gemm(linear(HIDDEN, VOCABULARY_SHARD), 119.0))
"""The final norm and the logits."""

SAMPLING = (
    Kernel(
        "sampling",
        _SOFTMAX,
        1.0,
        block=(1024, 1, 1),
        op=Op(
            "aten::softmax",
            (tensor(FLOAT, 1, 154_880), scalar(-1), ABSENT),
            (Op("aten::_softmax", (tensor(FLOAT, 1, 154_880), scalar(-1), scalar(False))),),
        ),
    ),
    Kernel(
        "sampling",
        _SAMPLE,
        3.0,
        block=(1024, 1, 1),
        op=Op(
            "sgl_kernel::top_k_top_p_sampling_from_probs",
            (
                tensor(FLOAT, 1, 154_880),
                tensor("int", 1),
                ABSENT,
                scalar(0),
                ABSENT,
                scalar(1.0),
                scalar(True),
            ),
        ),
    ),
)
"""Launched after the forward pass, outside its annotation, as SGLang does."""


def layer(index: int, rank: int, n_ranks: int) -> tuple[Kernel, ...]:
    """The kernels of one decoder layer in order; it begins with the residual add and norm."""
    first = norm(HIDDEN) if index == 0 else norm(HIDDEN, name=_ADD_NORM)
    mlp = DENSE_MLP if index < N_DENSE_LAYERS else MOE_MLP
    summed = all_reduce(rank, n_ranks)
    return (first, *ATTENTION, summed, norm(HIDDEN, name=_ADD_NORM), *mlp, summed)
