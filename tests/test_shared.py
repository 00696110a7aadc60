"""The product on every file of the trace collection beside the checkout, against independent numbers.

The numbers were counted by other scripts, with decimals, from files that stay out of this repository. Times
are in ms, rounded to three decimals.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
import reference
from conftest import SHARED
from test_truth import check_against_reference, check_invariants

import traceql
from traceql.analyses import kernel_steps, step_categories, steps, summarize

pytestmark = pytest.mark.shared

HALF_OF_LAST_DIGIT_MS = 0.000_5 + 1e-9


@dataclass(frozen=True)
class Medians:
    """Of one trace, over its complete steps: medians in ms, GPU activities inside and between."""

    n_complete: int
    wall: float
    busy: float
    kernel: float
    n_inside: int
    n_between: int


MEDIANS = {
    "sglang/before-graph-TP-0.trace.json.zst": Medians(29, 84.025, 83.364, 84.394, 2323, 12),
    "sglang/after-graph-TP-0.trace.json.zst": Medians(29, 18.896, 18.208, 19.308, 2323, 12),
    "sglang/before-eager-TP-0.trace.json.zst": Medians(29, 179.479, 85.410, 85.458, 2324, 12),
    "sglang/after-eager-TP-0.trace.json.zst": Medians(29, 166.941, 23.553, 23.566, 2403, 12),
    "glm5/glm5-pool-graph-TP-0.json.gz": Medians(29, 87.715, 86.634, 86.690, 4256, 0),
    "glm5/glm5-gather-graph-TP-0.json.gz": Medians(19, 19.980, 18.758, 18.807, 4256, 0),
    "glm5/glm5-pool-eager-TP-0.json.gz": Medians(9, 153.554, 111.600, 111.600, 4256, 0),
    "glm5/glm5-gather-eager-TP-0.json.gz": Medians(9, 150.912, 135.063, 135.064, 4256, 0),
}


@dataclass(frozen=True)
class Facts:
    """Of one public file; times in ms."""

    n_events: int
    n_profiler_steps: int
    n_kernels: int
    kernel_ms: float
    n_gpu: int
    busy_ms: float
    n_streams: int
    rank: int | None
    world_size: int | None
    n_devices: int
    device: str | None
    stacks: bool


# fmt: off
PUBLIC: dict[str, Facts] = {
    "hta-ns/*.json.gz":
        Facts(68692, 5, 4350, 468.154, 6095, 472.454, 1, 0, 1, 8, "Tesla V100-SXM2-32GB", False),
    "hta-diff-pair/control.json.gz":
        Facts(109123, 6, 8568, 446.813, 9450, 388.587, 4, 3, 8, 8, "NVIDIA A100-PG509-200", False),
    "hta-diff-pair/test.json.gz":
        Facts(105167, 6, 9876, 801.858, 15632, 717.943, 4, 1, 2, 2, "Tesla V100-SXM2-16GB", False),
    "hta-cpu-only/*.json.gz":
        Facts(7604, 5, 0, 0.000, 0, 0.000, 0, 34, 300, 0, None, False),
    "hta-amd-mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz":
        Facts(220, 2, 14, 0.111, 16, 0.149, 1, None, None, 4, "AMD Radeon Graphics", False),
    "hta-event-sync/event_sync_trace.json.gz":
        Facts(149, 0, 3, 0.369, 6, 0.372, 3, 0, None, 8, "NVIDIA A100-PG509-200", False),
    "hta-nccl/nccl_data.json.gz":
        Facts(40573, 3, 2700, 162.532, 3774, 157.500, 2, 0, 2, 8, "NVIDIA A100-PG509-200", False),
    "hta-a100-graphs/rank0.json.gz":
        Facts(108936, 5, 6080, 401.445, 7747, 438.424, 6, 0, 16, 8, "NVIDIA A100-SXM4-80GB", False),
    "hta-mtia/mtia_inference_rank_0.json.gz":
        Facts(16158, 0, 0, 0.000, 0, 0.000, 0, None, None, 1, "ARTEMIS", False),
    "hta-no-rank/rank_not_found.json.gz":
        Facts(2467, 1, 0, 0.000, 0, 0.000, 0, None, None, 0, None, False),
    "hta-old-inference/inference_rank_1.json.gz":
        Facts(54, 0, 4, 0.030, 4, 0.030, 1, 1, None, 0, None, False),
    "hta-triton/triton_example.json.gz":
        Facts(71, 1, 1, 0.002, 1, 0.002, 1, None, None, 8, "NVIDIA A100-PG509-200", False),
    "tracelens-b200-vllm/eager_trace.json.gz":
        Facts(24656, 0, 768, 10.863, 929, 11.596, 1, 0, 8, 8, "NVIDIA B200", True),
    "tracelens-qwen-h100-mi300/h100_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz":
        Facts(18221, 1, 1465, 45.433, 1707, 45.647, 1, None, None, 1, "NVIDIA H100 80GB HBM3", True),
    "tracelens-qwen-h100-mi300/mi300_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz":
        Facts(18090, 1, 1516, 43.062, 1517, 43.063, 1, None, None, 1, "AMD Instinct MI300X VF", True),
    "tracelens-sglang-decode/sglang_Qwen3-8B_decode.json.gz":
        Facts(2058, 0, 555, 9.765, 558, 9.773, 2, 0, 1, 1, "AMD Instinct MI300X", True),
    "tracelens-sglang-decode/capture_traces/bs_32_rank0.json.gz":
        Facts(61713, 1, 2, 0.011, 2, 0.011, 1, 0, 1, 1, "AMD Instinct MI300X", True),
    "tracelens-sglang-prefill/sglang_Qwen3-8B_prefilldecode.json.gz":
        Facts(60315, 0, 527, 492.774, 534, 492.807, 2, 0, 1, 1, "AMD Instinct MI300X", True),
    "tracelens-vllm-piecewise/graph_execution.json.gz":
        Facts(19289, 0, 413, 156.009, 423, 156.086, 1, 0, 1, 8, "", True),
    "tracelens-vllm-piecewise/capture_traces/*.json.gz":
        Facts(122257, 0, 99, 0.841, 100, 0.843, 1, 0, 1, 8, "", True),
    "tracelens-xdit-flux/profile_trace_rank_0.json.gz":
        Facts(229459, 1, 7830, 201.152, 7866, 201.352, 1, 0, 1, 1, "AMD Instinct MI300X", True),
    "tracelens-mi210-gpu-only/gpu_only_trace.json.gz":
        Facts(2443, 0, 562, 5.343, 562, 5.343, 1, None, None, 4, "AMD Instinct MI210", False),
    "tracelens-mi300-ddp-resnet/resnet_act_checkpoint.json.gz":
        Facts(56451, 3, 2995, 97.256, 3653, 84.002, 2, 0, 8, 8, "AMD Instinct MI300X", True),
    "tracelens-mi300-compile-triton/trace.json.gz":
        Facts(246, 0, 12, 12.549, 12, 12.549, 1, None, None, 1, "AMD Instinct MI300X", False),
    "kineto-tb2021/*.json.gz":
        Facts(75718, 6, 8772, 591.532, 9096, 603.558, 1, None, None, 4, "Tesla V100-DGXS-32GB", False),
    "kineto-tb2020-array/worker0.pt.trace.json.gz":
        Facts(82276, 6, 9538, 635.237, 9927, 649.472, 1, None, None, 0, None, False),
    "kineto-counters/gpu_metrics_expected.json":
        Facts(418, 1, 30, 0.048, 32, 0.050, 1, None, None, 0, None, False),
    "param-dlrm-8ranks/worker0_*.json.gz":
        Facts(3290, 1, 245, 6.832, 261, 6.590, 4, 0, 8, 8, "Tesla V100-SXM2-32GB", False),
    "param-dlrm-8ranks/worker1_*.json.gz":
        Facts(3424, 1, 310, 12.582, 326, 12.321, 4, 1, 8, 8, "Tesla V100-SXM2-32GB", False),
    "param-dlrm-8ranks/worker2_*.json.gz":
        Facts(3268, 1, 246, 4.560, 262, 4.304, 4, 2, 8, 8, "Tesla V100-SXM2-32GB", False),
    "param-dlrm-8ranks/worker3_*.json.gz":
        Facts(3474, 1, 315, 11.014, 337, 10.708, 4, 3, 8, 8, "Tesla V100-SXM2-32GB", False),
    "param-dlrm-8ranks/worker4_*.json.gz":
        Facts(3310, 1, 251, 7.713, 273, 7.702, 4, 4, 8, 8, "Tesla V100-SXM2-32GB", False),
    "param-dlrm-8ranks/worker5_*.json.gz":
        Facts(3250, 1, 245, 7.292, 261, 7.271, 4, 5, 8, 8, "Tesla V100-SXM2-32GB", False),
    "param-dlrm-8ranks/worker6_*.json.gz":
        Facts(3272, 1, 246, 4.609, 262, 4.359, 4, 6, 8, 8, "Tesla V100-SXM2-32GB", False),
    "param-dlrm-8ranks/worker7_*.json.gz":
        Facts(3250, 1, 246, 2.805, 262, 2.659, 4, 7, 8, 8, "Tesla V100-SXM2-32GB", False),
    "deepseek-train/train.json.gz":
        Facts(14240, 1, 963, 244.041, 983, 128.515, 3, 0, 64, 8, "NVIDIA H800", False),
    "kernelforge-gh200/*.json.gz":
        Facts(2062, 3, 48, 1.239, 48, 1.239, 1, None, None, 1, "NVIDIA GH200 480GB", True),
    "samfast-a100/amg_example_trace.json.gz":
        Facts(20446, 0, 2514, 488.524, 2788, 500.038, 2, None, None, 8, "NVIDIA A100-SXM4-40GB", False),
    "zoology-a100-no-kernels/trace.json.gz":
        Facts(1784, 0, 0, 0.000, 0, 0.000, 0, None, None, 8, "NVIDIA A100 80GB PCIe", False),
    "gpumodel-a100/trace2.json":
        Facts(104, 0, 5, 585.359, 5, 585.359, 1, None, None, 1, "NVIDIA A100-SXM4-80GB", False),
    "catapult/nanoseconds.json":
        Facts(16, 0, 0, 0.000, 0, 0.000, 0, None, None, 0, None, False),
    "catapult/nestable_async.json":
        Facts(20, 0, 0, 0.000, 0, 0.000, 0, None, None, 0, None, False),
    "catapult/instant_events.json":
        Facts(5, 0, 0, 0.000, 0, 0.000, 0, None, None, 0, None, False),
    "catapult/x_event_trace.json.gz":
        Facts(4027, 0, 0, 0.000, 0, 0.000, 0, None, None, 0, None, False),
    "catapult/simple_trace_gz.gz":
        Facts(35, 0, 0, 0.000, 0, 0.000, 0, None, None, 0, None, False),
}
# ProfilerStep -> host duration ms, kernels, kernel ms; None -> kernels without a host call, their ms
STEPS: dict[str, dict[int | None, tuple[float, ...]]] = {
    "hta-ns/*.json.gz": {
        101: (35.116, 870, 93.697), 102: (72.077, 870, 93.734), 103: (95.697, 870, 93.602),
        104: (95.551, 870, 93.705), 105: (95.699, 870, 93.416), None: (0, 0.000),
    },
    "hta-nccl/nccl_data.json.gz": {
        4: (222.442, 900, 50.495), 5: (219.727, 900, 50.729), 6: (224.936, 900, 61.307), None: (0, 0.000),
    },
    "hta-diff-pair/control.json.gz": {
        1009: (75.473, 1428, 61.702), 1010: (76.940, 1428, 68.229), 1011: (76.212, 1428, 80.000),
        1012: (76.727, 1428, 76.802), 1013: (78.473, 1428, 81.786), 1014: (81.120, 1428, 78.294),
        None: (0, 0.000),
    },
    "hta-diff-pair/test.json.gz": {
        1009: (100.298, 1555, 122.197), 1010: (122.149, 1555, 124.354), 1011: (166.403, 1555, 124.911),
        1012: (81.971, 1555, 126.297), 1013: (107.230, 1555, 123.500), 1014: (166.350, 1555, 124.528),
        None: (546, 56.071),
    },
    "hta-a100-graphs/rank0.json.gz": {
        550: (209.748, 1075, 67.982), 551: (216.483, 1075, 72.301), 552: (216.119, 1075, 67.641),
        553: (215.467, 1075, 74.147), 554: (216.216, 1075, 63.024), None: (705, 56.350),
    },
    "hta-amd-mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz": {
        1: (9.288, 14, 0.111), 2: (0.049, 0, 0.000), None: (0, 0.000),
    },
    "tracelens-mi300-ddp-resnet/resnet_act_checkpoint.json.gz": {
        15: (16.799, 746, 22.299), 16: (15.951, 746, 22.264), 17: (15.887, 746, 21.871),
        None: (757, 30.821),
    },
    "tracelens-qwen-h100-mi300/h100_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": {
        6: (47.151, 1029, 31.760), None: (436, 13.673),
    },
    "kernelforge-gh200/*.json.gz": {
        7: (1.281, 16, 0.414), 8: (1.128, 16, 0.413), 9: (1.096, 16, 0.412), None: (0, 0.000),
    },
    "kineto-tb2021/*.json.gz": {
        5: (176.078, 1462, 98.598), 6: (173.992, 1462, 98.570), 7: (176.918, 1462, 98.596),
        8: (181.259, 1462, 98.623), 9: (176.468, 1462, 98.504), 10: (164.261, 1462, 98.641),
        None: (0, 0.000),
    },
    "kineto-tb2020-array/worker0.pt.trace.json.gz": {
        5: (211.206, 1467, 99.075), 6: (211.112, 1467, 99.445), 7: (210.811, 1467, 99.251),
        8: (216.799, 1467, 99.376), 9: (220.457, 1467, 99.254), 10: (212.280, 1467, 99.163),
        None: (736, 39.673),
    },
    "deepseek-train/train.json.gz": {
        1: (112.202, 963, 244.041), None: (0, 0.000),
    },
    "param-dlrm-8ranks/worker0_*.json.gz": {
        10: (14.455, 245, 6.832), None: (0, 0.000),
    },
    "param-dlrm-8ranks/worker1_*.json.gz": {
        10: (19.901, 246, 12.379), None: (64, 0.203),
    },
    "param-dlrm-8ranks/worker2_*.json.gz": {
        10: (13.017, 246, 4.560), None: (0, 0.000),
    },
    "param-dlrm-8ranks/worker3_*.json.gz": {
        10: (19.313, 251, 10.838), None: (64, 0.176),
    },
    "param-dlrm-8ranks/worker4_*.json.gz": {
        10: (17.979, 251, 7.713), None: (0, 0.000),
    },
    "param-dlrm-8ranks/worker5_*.json.gz": {
        10: (17.797, 245, 7.292), None: (0, 0.000),
    },
    "param-dlrm-8ranks/worker6_*.json.gz": {
        10: (13.091, 246, 4.609), None: (0, 0.000),
    },
    "param-dlrm-8ranks/worker7_*.json.gz": {
        10: (12.509, 246, 2.805), None: (0, 0.000),
    },
}
# innermost op -> kernels, kernel ms; in deepseek-train two launches begin in the µs in which an
# aten::empty ended: they are not in it
BY_OP: dict[str, dict[str, tuple[int, float]]] = {
    "tracelens-qwen-h100-mi300/h100_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": {
        "(no host call)": (436, 13.673), "aten::mul": (220, 6.753), "aten::mm": (96, 6.588),
        "aten::copy_": (197, 5.102), "aten::_flash_attention_forward": (24, 2.723),
        "aten::add": (145, 2.608),
    },
    "tracelens-qwen-h100-mi300/mi300_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": {
        "(no host call)": (463, 13.319), "aten::mm": (96, 8.664), "aten::mul": (220, 4.541),
        "aten::_flash_attention_forward": (24, 3.909), "aten::copy_": (197, 3.191),
        "aten::addmm": (72, 2.955),
    },
    "hta-diff-pair/control.json.gz": {
        "record_param_comms": (60, 163.535),
        "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>": (180, 58.684),
        "aten::mm": (1554, 41.925), "aten::addmm": (750, 24.151), "aten::bmm": (90, 16.653),
        "aten::add": (444, 16.218),
    },
    "hta-diff-pair/test.json.gz": {
        "record_param_comms": (60, 229.034), "CompiledFunctionBackward": (2574, 170.229),
        "CompiledFunction": (1890, 95.518),
        "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>": (180, 94.667),
        "(no host call)": (546, 56.071),
        "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function": (12, 27.460),
    },
    "samfast-a100/amg_example_trace.json.gz": {
        "aten::add": (141, 86.260), "Torch-Compiled Region": (554, 49.001),
        "aten::upsample_bilinear2d": (32, 37.908), "aten::addmm": (140, 37.359),
        "aten::copy_": (100, 35.442), "aten::bmm": (8, 29.565),
    },
    "kineto-tb2021/*.json.gz": {
        "aten::cudnn_convolution_backward_weight": (684, 141.933),
        "aten::cudnn_convolution_backward_input": (816, 130.967),
        "aten::cudnn_convolution": (606, 126.619), "aten::cudnn_batch_norm_backward": (318, 61.939),
        "aten::cudnn_batch_norm": (318, 34.245), "aten::threshold_backward": (294, 27.298),
    },
    "deepseek-train/train.json.gz": {
        "(no op)": (291, 188.766), "RopeLoraFlashAttnVarlenFuncBackward": (112, 26.926),
        "RopeLoraFlashAttnVarlenFunc": (44, 9.198), "LinearWithGradAccumulationFP8Backward": (76, 6.627),
        "LinearWithGradAccumulationFP8": (36, 5.170), "DropoutAddLayerNormFn": (32, 2.085),
    },
}
# (destination, source) -> aten::copy_ events, GPU ms
CONVERSIONS: dict[str, dict[Any, tuple[int, float]]] = {
    "tracelens-qwen-h100-mi300/h100_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": {
        ("c10::BFloat16", "float"): (51, 0.901), ("float", "c10::BFloat16"): (49, 1.432),
        ("float", "long int"): (1, 0.003), "same": (96, 2.766),
    },
    "tracelens-qwen-h100-mi300/mi300_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": {
        ("c10::BFloat16", "float"): (51, 0.685), ("float", "c10::BFloat16"): (49, 1.055),
        ("float", "long int"): (1, 0.003), "same": (96, 1.448),
    },
    "tracelens-xdit-flux/profile_trace_rank_0.json.gz": {
        ("c10::BFloat16", "float"): (85, 0.874), ("float", "c10::BFloat16"): (78, 0.853),
        ("float", "long int"): (3, 0.006), ("int", "long int"): (1, 0.005),
        ("long int", "bool"): (1, 0.007), ("long int", "float"): (1, 0.005), "same": (69, 0.482),
    },
    "samfast-a100/amg_example_trace.json.gz": {
        ("short int", "bool"): (32, 10.767), ("int", "short int"): (32, 0.097),
        ("float", "long int"): (22, 0.056), ("long int", "int"): (2, 0.006),
        ("c10::BFloat16", "double"): (2, 0.008), ("c10::BFloat16", "float"): (1, 0.015),
        ("long int", "bool"): (1, 5.600), ("double", "long int"): (1, 0.000),
        ("float", "bool"): (1, 0.000), ("float", "c10::BFloat16"): (1, 0.000),
        ("float", "double"): (1, 0.000), "same": (133, 30.096),
    },
    "hta-a100-graphs/rank0.json.gz": {
        ("double", "float"): (45, 0.276), ("long", "int"): (40, 0.374), ("int", "long"): (5, 0.000),
        "same": (1305, 46.653),
    },
    "tracelens-sglang-prefill/sglang_Qwen3-8B_prefilldecode.json.gz": {
        ("int", "long int"): (2, 0.007), ("long int", "int"): (1, 0.006),
        ("float", "c10::BFloat16"): (1, 0.010), "same": (77, 3.416),
    },
    "param-dlrm-8ranks/worker0_*.json.gz": {
        ("float", "long int"): (16, 0.000), ("long int", "int"): (6, 0.024), ("float", "int"): (1, 0.004),
        "same": (31, 0.051),
    },
    "tracelens-b200-vllm/eager_trace.json.gz": {
        ("long int", "int"): (1, 0.003), "same": (235, 1.183),
    },
}
# fmt: on


def files() -> list[str]:
    """Every trace of the collection, relative to it."""
    folders = ("sglang", "sglang-tp2", "glm5", "public", "cases")
    paths = [path for folder in folders for path in sorted((SHARED / folder).rglob("*"))]
    return [str(path.relative_to(SHARED)) for path in paths if path.is_file() and path.suffix != ".md"]


def public(shared: Path, pattern: str) -> Any:
    """Loads the one public file of that name or pattern."""
    (path,) = (shared / "public").glob(pattern)
    return traceql.load(path, cache=False)


def is_ms(ns: int, expected_ms: float) -> bool:
    """Whether ns, in ms, is the number of three decimals."""
    return abs(ns / 1e6 - expected_ms) <= HALF_OF_LAST_DIGIT_MS


def same_table(found: dict[Any, tuple[int, int]], expected: dict[Any, tuple[int, float]]) -> None:
    """Counts are equal and times equal to the last digit, for each row expected."""
    assert {key: found.get(key, (0, 0))[0] for key in expected} == {k: row[0] for k, row in expected.items()}
    wrong = {
        key: (found[key][1], row[1]) for key, row in expected.items() if row[0] and not is_ms(found[key][1], row[1])
    }
    assert not wrong


@pytest.mark.parametrize("name", MEDIANS)
def test_step_medians(shared: Path, name: str) -> None:
    """The founding table: what a step of each recording takes."""
    trace = traceql.load(shared / name, cache=False)
    complete = steps(trace).filter("is_complete")
    inside = complete["n_kernels"] - complete["n_kernels_between"]
    found = Medians(
        complete.height,
        *(
            round(reference.median(complete[column].to_list()) / 1e6, 3)
            for column in ("wall_ns", "busy_ns", "kernel_ns")
        ),
        n_inside=int(reference.median(inside.to_list())),
        n_between=int(reference.median(complete["n_kernels_between"].to_list())),
    )
    assert found == MEDIANS[name]


CASTS_MS = {
    "sglang/before-graph-TP-0.trace.json.zst": (66.671, 0.0),
    "sglang/after-graph-TP-0.trace.json.zst": (0.472, 0.0),
    "sglang/before-eager-TP-0.trace.json.zst": (68.192, 0.0),
    "sglang/after-eager-TP-0.trace.json.zst": (4.841, 0.0),
    "glm5/glm5-pool-graph-TP-0.json.gz": (68.190, 1.197),
    "glm5/glm5-gather-graph-TP-0.json.gz": (0.836, 1.203),
    "glm5/glm5-pool-eager-TP-0.json.gz": (68.202, 26.324),
    "glm5/glm5-gather-eager-TP-0.json.gz": (0.804, 117.820),
}
"""Kernel time of casts and of NCCL a step, in ms: medians over complete steps, from a slow script."""


@pytest.mark.parametrize("name", CASTS_MS)
def test_cast_and_communication_of_a_step(shared: Path, name: str) -> None:
    trace = traceql.load(shared / name, cache=False)
    complete = steps(trace).filter("is_complete").select("step")
    spent = step_categories(trace)

    def median_ms(category: str) -> float:
        of_step = complete.join(spent.filter(category=category), on="step", how="left")["kernel_ns"].fill_null(0)
        return round(reference.median(of_step.to_list()) / 1e6, 3)

    assert (median_ms("cast"), median_ms("comm")) == CASTS_MS[name]


def test_the_fused_gather_and_cast_is_no_cast(shared: Path) -> None:
    trace = traceql.load(shared / "sglang" / "after-graph-TP-0.trace.json.zst", cache=False)
    (row,) = (row for row in summarize(trace).kernels.to_dicts() if "gather_cast_kernel" in row["name"])
    assert row["category"] == "kv_cache"
    placed = kernel_steps(trace).join(trace.kernels.filter(name=row["name"]).collect(), on="kernel_id")
    of_step = placed.filter(pl.col("step") < 29).group_by("step").agg(pl.sum("dur_ns"))["dur_ns"]
    assert round(reference.median(of_step.to_list()) / 1e6, 3) == 1.145


@pytest.mark.parametrize("name", [name for name in MEDIANS if "graph" in name])
def test_every_step_against_the_slow_count(shared: Path, name: str) -> None:
    check_against_reference(shared / name)


@pytest.mark.parametrize("name", files())
def test_parts_add_up(shared: Path, name: str) -> None:
    """Whatever the file: exclusive time and idle make up wall, windows and outside make up the span."""
    check_invariants(traceql.load(shared / name, cache=False))


@pytest.mark.parametrize("pattern", PUBLIC)
def test_public_files_are_read_whole(shared: Path, pattern: str) -> None:
    """Counts, sums and unions of every public file."""
    trace, facts = public(shared, pattern), PUBLIC[pattern]
    kernels = trace.kernels.collect()
    found = kernels.filter(kind="kernel")
    intervals = [(start, start + dur) for start, dur in kernels.select("start_ns", "dur_ns").iter_rows()]
    assert trace.meta.n_events == facts.n_events
    assert (found.height, kernels.height) == (facts.n_kernels, facts.n_gpu)
    assert is_ms(found["dur_ns"].sum(), facts.kernel_ms)
    assert is_ms(reference.union(intervals), facts.busy_ms)
    assert kernels.select("device", "stream").unique().height == facts.n_streams
    assert [quirk.id for quirk in trace.quirks if quirk.effect == "lost"] in ([], ["unclosed-span"])


@pytest.mark.parametrize("pattern", PUBLIC)
def test_public_files_say_who_they_are(shared: Path, pattern: str) -> None:
    """Rank, devices and options, as the metadata gives them."""
    meta, facts = public(shared, pattern).meta, PUBLIC[pattern]
    if facts.rank is not None:
        assert meta.rank == facts.rank
    assert meta.world_size == facts.world_size
    assert len(meta.devices) == facts.n_devices
    assert {device.name or "" for device in meta.devices} <= {facts.device}
    assert bool(meta.with_stack) == facts.stacks


@pytest.mark.parametrize("pattern", STEPS)
def test_kernels_of_each_profiler_step(shared: Path, pattern: str) -> None:
    """Kernels and their time by launch, and the host's duration of each step."""
    trace = public(shared, pattern)
    table = steps(trace).with_columns(number=pl.col("label").str.extract(r"#(\d+)").cast(pl.Int64))
    kernels = (
        trace.kernels.filter(kind="kernel")
        .collect()
        .join(kernel_steps(trace).select("kernel_id", "step", "section"), on="kernel_id", how="left")
        .join(table.select("rank", "device", "step", "number"), on=["rank", "device", "step"], how="left")
    )
    unlaunched = kernels.filter(pl.col("launch_id").is_null())
    in_steps = kernels.filter(pl.col("step").is_not_null() & pl.col("section").is_null())
    expected = dict(STEPS[pattern])
    n_unlaunched, unlaunched_ms = expected.pop(None)
    assert unlaunched.height == n_unlaunched
    assert is_ms(unlaunched["dur_ns"].sum(), unlaunched_ms)
    assert unlaunched["step"].null_count() == unlaunched.height
    assert in_steps.height + unlaunched.height == kernels.height
    for number, (host_ms, n_kernels, kernel_ms) in expected.items():
        (annotation_ns,) = set(table.filter(number=number)["annotation_ns"])
        mine = in_steps.filter(number=number)
        assert is_ms(annotation_ns, host_ms)
        assert mine.height == n_kernels
        assert is_ms(mine["dur_ns"].sum(), kernel_ms)
    assert table["number"].n_unique() == len(expected)


@pytest.mark.parametrize("pattern", BY_OP)
def test_kernel_time_by_innermost_op(shared: Path, pattern: str) -> None:
    """The op around the launch call owns the kernel; without either, that is what it says."""
    trace = public(shared, pattern)
    op = (
        pl.when(pl.col("launch_id").is_null())
        .then(pl.lit("(no host call)"))
        .otherwise(pl.col("op").fill_null("(no op)"))
    )
    kernels = trace.kernels.filter(kind="kernel").join(trace.ops.select("op_id", op="name"), on="op_id", how="left")
    table = kernels.group_by(op.alias("owner")).agg(pl.len(), pl.col("dur_ns").sum()).collect()
    same_table({owner: (n, ns) for owner, n, ns in table.iter_rows()}, BY_OP[pattern])


@pytest.mark.parametrize("pattern", CONVERSIONS)
def test_conversions_are_counted_once(shared: Path, pattern: str) -> None:
    """dtypes from the arguments of aten::copy_, GPU time through launch and op."""
    trace = public(shared, pattern)
    copies: dict[int, Any] = {}
    found: dict[Any, tuple[int, int]] = {}
    parent: dict[int, int | None] = {}
    for op_id, parent_id, name, args in trace.ops.select("op_id", "parent_id", "name", "args").collect().iter_rows():
        parent[op_id] = parent_id
        if name == "aten::copy_" and args and "Input type" in args:
            destination, source = orjson.loads(args)["Input type"][:2]
            copies[op_id] = "same" if destination == source else (destination, source)
            n, ns = found.get(copies[op_id], (0, 0))
            found[copies[op_id]] = (n + 1, ns)
    for op_id, dur_ns in trace.kernels.select("op_id", "dur_ns").collect().iter_rows():
        owner = op_id
        while owner is not None:
            if owner in copies:  # copies nest, and the numbers count the time for the outer one too
                n, ns = found[copies[owner]]
                found[copies[owner]] = (n, ns + dur_ns)
            owner = parent[owner]
    same_table(found, CONVERSIONS[pattern])
    assert set(found) == set(CONVERSIONS[pattern])
