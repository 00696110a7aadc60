"""What the name of an ATen copy kernel proves about the dtypes that it converts."""

import re
from dataclasses import dataclass

from traceql.names.dtypes import torch_dtype
from traceql.names.limits import MAX_READ


@dataclass(frozen=True)
class CopyDtypes:
    """What the name of an ATen copy kernel proves; null where it proves nothing."""

    is_cast: bool | None
    """Reads one dtype and writes another."""
    src: str | None
    dst: str | None


_LAMBDAS = r"(?:\([^()]{0,99}\))?(?:::[{\[]lambda\(\)[^}\]]{1,20}[}\]](?:::operator ?\(\) ?\(\) ?const)?)*"
_COPY = re.compile(
    r"\b(?P<family>(?:direct|float8|(?:b?float16)(?:tofloat32)?)_copy_kernel_cuda|copy_device_to_device)\b"
    rf"(?:{_LAMBDAS}::[{{\[]lambda\((?P<argument>[\w:<> ]+)\)(?:#| \(instance )(?P<overload>\d))?"
)
_CONVERTING = {
    "bfloat16_copy_kernel_cuda": ("fp32", "bf16"),
    "float16_copy_kernel_cuda": ("fp32", "fp16"),
    "bfloat16tofloat32_copy_kernel_cuda": ("bf16", "fp32"),
    "float16tofloat32_copy_kernel_cuda": ("fp16", "fp32"),
}
_FP8_BY_OVERLOAD = ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz", "fp8_e8m0")
"""`float8_copy_kernel_cuda` holds one lambda per source dtype and destination, numbered in this order."""


def copy_dtypes(name: str) -> CopyDtypes | None:
    """What the name of an ATen copy kernel proves about its dtypes; null for every other name."""
    name = name[:MAX_READ]
    found = _COPY.search(name)
    if found is None:
        return None
    family, argument = found["family"], torch_dtype(found["argument"] or "")
    if family in _CONVERTING:
        src, dst = _CONVERTING[family]
        return CopyDtypes(is_cast=True, src=argument or src, dst=dst)
    if family == "float8_copy_kernel_cuda" and argument and not argument.startswith("fp8"):
        overload = int(found["overload"]) - 1
        dst = _FP8_BY_OVERLOAD[overload] if 0 <= overload < len(_FP8_BY_OVERLOAD) else None
        return CopyDtypes(is_cast=True, src=argument, dst=dst)
    is_cast = _converts(name)
    return CopyDtypes(is_cast=is_cast, src=argument if is_cast is False else None, dst=argument)


_OLD_LAMBDA = re.compile(r"direct_copy_kernel_cuda(?:\([^()]{0,99}\))?::[{\[]lambda\(\)(?:#| \(instance )[12]\b")
_INDEX_LAMBDA_2 = re.compile(r"[{\[]lambda\(int\)(?:#2\}| \(instance 2\)\])>?\(")
_TWO_PER_THREAD = re.compile(r"elementwise_kernel<(?:\(int\))?128, ?(?:\(int\))?2,")


def _converts(name: str) -> bool | None:
    """Whether an ATen kernel converts while it loads and stores, from the loop around the functor.

    Before PyTorch 2.0 `gpu_kernel_impl<` held both loops: the same-dtype one (its first lambda; two elements
    per thread for dtypes of 4 bytes and more) and the converting one (its second). Later the first moved to
    `gpu_kernel_impl_nocast<`. The age shows in the number of the lambda around the dtype switch.
    """
    if "LoadWithCast<" in name:
        return True
    if "LoadWithoutCast" in name or "gpu_kernel_impl_nocast<" in name or "vectorized_elementwise_kernel<" in name:
        return False
    if "gpu_kernel_impl<" not in name:
        return None
    if _TWO_PER_THREAD.search(name):
        return False
    if _OLD_LAMBDA.search(name):
        return True if _INDEX_LAMBDA_2.search(name) else None
    return True
