"""The slow count of casts and copies: loops over the events of a file, nothing of traceql.

Only what ATen's own copy kernels do (`..._copy_kernel_cuda`), told by the launching `aten::copy_` where it is
recorded, else by the name and the launch grid.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reference
from reference import Activity, Span

DTYPES = {
    "float": "fp32", "double": "fp64", "c10::BFloat16": "bf16", "c10::Half": "fp16", "c10::Float8_e4m3fn": "fp8_e4m3",
    "int": "int32", "long": "int64", "long int": "int64", "short": "int16", "short int": "int16", "bool": "bool",
    "unsigned char": "uint8",
}  # fmt: skip
ATEN_COPY = re.compile(r"(direct|float8|bfloat16|float16)_copy_kernel_cuda.*?\{lambda\(([a-zA-Z][\w:]*)\)#(\d)\}")
LOOP = re.compile(r"(\w*elementwise_kernel\w*)<(?:(\d+), )?(?:(\d+), )?")


@dataclass(frozen=True)
class Cast:
    """One launch of an ATen copy kernel."""

    activity: Activity
    kind: str
    src: str | None
    dst: str | None
    least: int | None
    most: int | None

    @property
    def row(self) -> tuple[Any, ...]:
        return (self.activity.start, self.activity.name, self.kind, self.src, self.dst, self.least, self.most)


def casts(path: Path) -> list[Cast]:
    """Every launch of an ATen copy kernel in the file."""
    recording = reference.load(path)
    launch_args, op_args = _arguments(path)
    found: list[Cast] = []
    for activity in recording.activities:
        named = ATEN_COPY.search(activity.name)
        if activity.kind != "kernel" or named is None:
            continue
        args = launch_args[activity.start, activity.stream, activity.name]
        by_op = _by_op(op_args.get(_key(activity.op))) if activity.op and activity.op.name == "aten::copy_" else None
        kind, src, dst = by_op[:3] if by_op else _by_name(activity.name, named)
        least, most = _by_grid(activity.name, args)
        if by_op and (most is None or least is None or least <= by_op[3] <= most):
            least = most = by_op[3]
        found.append(Cast(activity, kind, src, dst, least, most))
    return found


def pool_ns_by_step(path: Path, found: list[Cast], least_elements: int) -> list[int]:
    """Time of casts to bf16 of at least so many elements in each complete step."""
    large = {
        cast.activity: cast.activity.dur
        for cast in found
        if cast.kind == "cast" and cast.dst == "bf16" and (cast.least or 0) >= least_elements
    }
    by_key = {(a.start, a.stream, a.name): dur for a, dur in large.items()}
    return [
        sum(by_key.get((a.start, a.stream, a.name), 0) for a in step.launched)
        for step in reference.steps(reference.load(path))
        if step.is_complete and step.is_separable
    ]


def _arguments(path: Path) -> tuple[dict[Any, dict[str, Any]], dict[Any, dict[str, Any]]]:
    """Arguments of kernels by (start, stream, name), of ops by thread, name, start and length."""
    kernels: dict[Any, dict[str, Any]] = {}
    ops: dict[Any, dict[str, Any]] = defaultdict(dict)
    for event in reference.read_events(path)[1]:
        if event.get("ph") != "X" or event.get("dur") is None:
            continue
        start, dur, args = (
            reference.nanoseconds(event["ts"]),
            reference.nanoseconds(event["dur"]),
            event.get("args") or {},
        )
        if event.get("cat") == "kernel":
            kernels[start, int(args["stream"]), event["name"]] = args
        elif event.get("cat") == "cpu_op":
            ops[(str(event["pid"]), str(event["tid"])), event["name"], start, dur] = args
    return kernels, ops


def _key(op: Span) -> Any:
    return op.thread, op.name, op.start, op.dur


def _by_op(args: dict[str, Any] | None) -> tuple[str, str, str, int] | None:
    """(kind, source, destination, elements) that an aten::copy_ records; None where it does not."""
    types, dims = (args or {}).get("Input type"), (args or {}).get("Input Dims")
    if not types or not dims or types[0] not in DTYPES or types[1] not in DTYPES:
        return None
    dst, src = DTYPES[types[0]], DTYPES[types[1]]
    n = 1
    for size in dims[0]:
        n *= int(size)
    return ("cast" if src != dst else "copy"), src, dst, n


def _by_name(name: str, named: re.Match[str]) -> tuple[str, str | None, str | None]:
    family, argument, overload = named[1], DTYPES[named[2]], named[3]
    if family == "float8" and not argument.startswith("fp8"):
        return "cast", argument, {"1": "fp8_e4m3"}.get(overload)
    if family in ("bfloat16", "float16"):
        return "cast", argument, {"bfloat16": "bf16", "float16": "fp16"}[family]
    if "LoadWithCast" in name or "gpu_kernel_impl<" in name:
        return "cast", None, argument
    return "copy", argument, argument


def _by_grid(name: str, args: dict[str, Any]) -> tuple[int | None, int | None]:
    """Least and most elements of a grid of blocks of 128 threads."""
    loop = LOOP.search(name)
    if loop is None or "grid" not in args or [int(n) for n in args["block"]] != [128, 1, 1]:
        return None, None
    blocks = 1
    for size in args["grid"]:
        blocks *= int(size)
    if loop[1] == "unrolled_elementwise_kernel":
        low = high = 512
    elif loop[1] == "vectorized_elementwise_kernel":
        low, high = (1024, 1024) if loop[2] == "8" else (512, 1024)
    else:
        low = high = int(loop[2]) * int(loop[3])
    return (blocks - 1) * low + 1, blocks * high
