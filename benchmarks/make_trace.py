"""Writes synthetic torch.profiler traces of any size, in the layout in which Kineto writes them.

    python benchmarks/make_trace.py OUT_DIR --ranks 8 --steps 30
    python benchmarks/make_trace.py OUT_DIR --ranks 1 --stack --size-mb 640 --zst

The content is `decode_model.py`: a decode step of 93.2 ms on each of 8 GPUs, 69.3 % of it a cast of the whole
KV pool. Every figure is known beforehand, to the nanosecond (`part_times`). As a module:
`make_rank(Case(ranks=2, steps=4, layers=6), rank, file)`.

Times. All parts are in proportion to the number of layers; a part without kernels (no routing in a dense-only
model) is left out. Kernels of a part share its time by weight, with a jitter that leaves the sum alone and is
the same on every rank. Idle time is spread over the gaps between kernels. The host is one step ahead.

Ranks. Rank r of n comes to every all-reduce `skew_us * r / (n - 1)` late, after an idle gap; it ends on all
ranks together, its own time after the last one came. So a step takes skew_us longer for each all-reduce, the
last rank's all-reduces are the plain ones, and the others wait in theirs. The clock of rank r shows
`t + r * offset_us + t * r * drift_ppm / 10**6` at the true time t since the beginning of the recording.
"""

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal, Protocol, get_args

import click
import zstandard
from decode_model import (
    EPILOGUE,
    FOUNDING_LAYERS,
    FOUNDING_NS,
    PROLOGUE,
    SAMPLING,
    Kernel,
    Op,
    layer,
)
from isal import igzip

Mode = Literal["eager", "graph"]

GPU_NAME = "NVIDIA RTX PRO 6000 Blackwell"
N_SMS = 188
N_GPU_ROWS = 16
"""Kineto names this many GPU rows, whatever the machine has."""
BASE_TIME_NS = 1_767_225_600_000_000_000
FIRST_NS = 5_184_000_000_000_000
"""`ts` of the beginning of the recording, counted from `baseTimeNanoseconds`."""

HOST_PID = 4242
STREAM = 7
FIRST_CORRELATION = 5_649

LEAD_IN_NS = 100_000
"""From the beginning of the recording to the first host event."""
SLOT_NS = 30_000
"""What the host takes for one launch, with the operators around it."""
OP_MARGIN_NS = 1_000
"""Distance of an operator from what it is called by."""
JITTER = 0.02
"""Greatest deviation of a kernel's weight, as a share."""

CALLS = {
    "cudaLaunchKernel": ("cuda_runtime", 211),
    "cudaLaunchKernelExC": ("cuda_runtime", 430),
    "cudaLaunchCooperativeKernel": ("cuda_runtime", 269),
    "cudaGraphLaunch": ("cuda_runtime", 311),
    "cudaEventSynchronize": ("cuda_runtime", 137),
    "cudaDeviceSynchronize": ("cuda_runtime", 165),
    "cuLaunchKernelEx": ("cuda_driver", 652),
}
"""Category and callback id of each runtime or driver call."""

FRAMES = (
    "torch/nn/modules/module.py(1783): _call_impl",
    "sglang/srt/layers/linear.py(1312): forward",
    "sglang/srt/layers/quantization/unquant.py(124): apply",
    "torch/_ops.py(1244): __call__",
    "<built-in function isinstance>",
    "torch/nn/modules/module.py(1955): __getattr__",
    "<built-in function getattr>",
    "sglang/srt/server_args.py(7258): get_global_server_args",
)
"""Python frames around a launch, over and over."""


@dataclass(frozen=True)
class Case:
    """What to write. The defaults are the founding case."""

    ranks: int = 8
    steps: int = 30
    layers: int = FOUNDING_LAYERS
    mode: Mode = "eager"
    stack: bool = False
    frames_per_launch: int = 16
    """Python frames around each launch, where `stack` is set."""
    seed: int = 0
    skew_us: float = 0.0
    offset_us: float = 0.0
    drift_ppm: float = 0.0
    minified: bool = False


@dataclass(frozen=True)
class Launch:
    """A call on the host that starts kernels: one, or all of a CUDA graph."""

    api: str
    op: Op | None
    kernels: tuple[Kernel, ...]
    layer: int | None = None
    in_forward: bool = True


@dataclass(frozen=True)
class Placed:
    """Something at a time, in ns since the beginning of what it lies in."""

    start_ns: int
    dur_ns: int


@dataclass(frozen=True)
class PlacedOp(Placed):
    """An operator at a time, its arguments as JSON text with %d for the `Ev Idx`."""

    name: str
    args: str


@dataclass(frozen=True)
class Slot:
    """A launch and the operators around it, placed in the `SLOT_NS` that the host takes for them."""

    launch: Launch
    call: Placed
    ops: tuple[PlacedOp, ...]
    first_id: int
    """Place of its first operator among the operators of the step, from 1: 0 is the annotation."""

    @property
    def own_id(self) -> int | None:
        """Place of the operator that launches; None outside any."""
        return self.first_id + len(self.ops) - 1 if self.ops else None


def eager_launches(case: Case, rank: int) -> list[Launch]:
    """The launches of a step without CUDA graphs: one for each kernel."""
    layers = [(index, kernel) for index in range(case.layers) for kernel in layer(index, rank, case.ranks)]
    forward = [(None, k) for k in PROLOGUE] + layers + [(None, k) for k in EPILOGUE]
    return [Launch(k.api, k.op, (k,), index) for index, k in forward] + sampling_launches()


def graph_launches(case: Case, rank: int) -> list[Launch]:
    """The launches of a step whose forward pass is one CUDA graph: its operators are not recorded."""
    forward = [launch for launch in eager_launches(case, rank) if launch.in_forward]
    kernels = tuple(replace(kernel, extra="") for launch in forward for kernel in launch.kernels)
    return [Launch("cudaGraphLaunch", None, kernels), *sampling_launches()]


def sampling_launches() -> list[Launch]:
    """The launches after the forward pass."""
    return [Launch(kernel.api, kernel.op, (kernel,), in_forward=False) for kernel in SAMPLING]


def place_slots(launches: Iterable[Launch]) -> list[Slot]:
    """The launches of a step, each with times since the beginning of its own slot, operators numbered."""
    slots: list[Slot] = []
    next_id = 1
    for launch in launches:
        ops, call = place_op(launch.op, OP_MARGIN_NS, SLOT_NS - 3 * OP_MARGIN_NS)
        slots.append(Slot(launch, call, ops, next_id))
        next_id += len(ops)
    return slots


def place_op(op: Op | None, start_ns: int, dur_ns: int) -> tuple[tuple[PlacedOp, ...], Placed]:
    """The operators of a tree, callers first, and the launch inside the last of them."""
    if op is None:
        return (), Placed(start_ns, dur_ns // 3)
    inner_ns = dur_ns - 2 * OP_MARGIN_NS
    ops = (PlacedOp(start_ns, dur_ns, op.name, op.args),)
    call = Placed(start_ns + OP_MARGIN_NS, inner_ns)
    for index, child in enumerate(op.children):
        child_ns = inner_ns // len(op.children)
        child_ops, call = place_op(child, start_ns + OP_MARGIN_NS + index * child_ns, child_ns)
        ops += child_ops
    return ops, call


def split_exactly(total: int, weights: Iterable[float]) -> list[int]:
    """Whole numbers in proportion to the weights; they add up to the total."""
    sums = [0.0, *accumulate(weights)]
    return [end - start for start, end in pairwise(round(total * part / sums[-1]) for part in sums)]


def part_times(case: Case, rank: int = 0) -> dict[str, int]:
    """The answer: ns of each part in every step of a rank, on a true clock; together the step's wall time."""
    parts = {kernel.part for launch in eager_launches(case, rank) for kernel in launch.kernels} | {"idle"}
    times = {part: ns * case.layers // FOUNDING_LAYERS for part, ns in FOUNDING_NS.items() if part in parts}
    n_collectives = 2 * case.layers
    times["idle"] += n_collectives * late_ns(case, rank)
    times["all_reduce"] += n_collectives * (late_ns(case, case.ranks - 1) - late_ns(case, rank))
    return times


def late_ns(case: Case, rank: int) -> int:
    """How much later than rank 0 a rank comes to each all-reduce."""
    return round(case.skew_us * 1000 * rank / max(case.ranks - 1, 1))


def clock_ns(case: Case, rank: int, true_ns: int) -> int:
    """What the clock of a rank shows, in ns of `ts`, at a true time since the beginning of the recording."""
    offset_ns = round(case.offset_us * 1000 * rank)
    return FIRST_NS + true_ns + offset_ns + round(true_ns * rank * case.drift_ppm / 1_000_000)


def us(ns: int) -> str:
    """Nanoseconds as Kineto writes them: microseconds with three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


class RankTrace:
    """The trace of one rank, as pieces of text. Holds one step's layout, however long the trace."""

    def __init__(self, case: Case, rank: int) -> None:
        self.case = case
        self.rank = rank
        launches = eager_launches(case, rank) if case.mode == "eager" else graph_launches(case, rank)
        self.slots = place_slots(launches)
        self.kernels = [kernel for launch in launches for kernel in launch.kernels]
        self.n_ids = 1 + sum(len(slot.ops) for slot in self.slots)
        self.plain_ns = part_times(replace(case, skew_us=0.0))
        self.wall_ns = sum(part_times(case, rank).values())
        self.forward_ns = SLOT_NS * sum(slot.launch.in_forward for slot in self.slots)
        self.end_ns = LEAD_IN_NS + (case.steps + 1) * self.wall_ns + 2 * SLOT_NS

    @cached_property
    def name(self) -> str:
        """`traceName`, and the file's name without its endings."""
        return f"synthetic-{self.case.mode}-TP-{self.rank}"

    def pieces(self) -> Iterator[str]:
        """The whole file, cut between tokens of JSON."""
        steps = range(self.case.steps)
        yield self.header()
        for step in steps:
            yield from self.op_events(step)
        if self.case.stack:
            yield self.root_frame()
            for step in steps:
                yield from self.frame_events(step)
        for step in steps:
            yield from self.gpu_events(step)
        yield self.last_wait()
        for step in steps:
            yield self.gpu_annotation(step)
        yield from self.process_names()
        yield self.footer()

    def gpu_ns(self, step: int) -> int:
        """True time at which the GPU begins a step; the host begins it one step earlier."""
        return LEAD_IN_NS + (step + 1) * self.wall_ns

    def host_ns(self, step: int) -> int:
        """True time of a step's first slot: the step before the last has just ended on the GPU."""
        return self.gpu_ns(step) - self.wall_ns + SLOT_NS

    def slot_ns(self, step: int, slot: int) -> int:
        """True time of a slot of a step, with less than `OP_MARGIN_NS` of jitter."""
        return self.host_ns(step) + slot * SLOT_NS + (7_919 * step + 104_729 * slot) % (OP_MARGIN_NS - 1)

    def kernel_times(self, step: int) -> list[Placed]:
        """When each kernel of a step runs, in ns since the GPU began the step."""
        rng = random.Random(f"{self.case.seed}/{step}")
        late = late_ns(self.case, self.rank)
        wait = late_ns(self.case, self.case.ranks - 1) - late
        times: list[Placed] = []
        now = 0
        for kernel, dur, gap in zip(self.kernels, self.durations(rng), self.gaps(rng), strict=True):
            is_collective = kernel.part == "all_reduce"
            now += late * is_collective
            times.append(Placed(now, dur + wait * is_collective))
            now += times[-1].dur_ns + gap
        return times

    def durations(self, rng: random.Random) -> list[int]:
        """ns of each kernel of a step, as if all ranks came at once."""
        weights = [kernel.weight * (1 + rng.uniform(-JITTER, JITTER)) for kernel in self.kernels]
        durations = [0] * len(self.kernels)
        for part, members in self.members.items():
            shares = split_exactly(self.plain_ns[part], [weights[index] for index in members])
            for index, share in zip(members, shares, strict=True):
                durations[index] = share
        return durations

    def gaps(self, rng: random.Random) -> list[int]:
        """Idle ns after each kernel of a step, as if all ranks came at once."""
        return split_exactly(self.plain_ns["idle"], [rng.uniform(1, 2) for _ in self.kernels])

    @cached_property
    def members(self) -> dict[str, list[int]]:
        """Which kernels of a step make up each part."""
        members: dict[str, list[int]] = defaultdict(list)
        for index, kernel in enumerate(self.kernels):
            members[kernel.part].append(index)
        return members

    def span(self, start_ns: int, dur_ns: int) -> str:
        """The line with `ts` and `dur` on this rank's clock."""
        start = clock_ns(self.case, self.rank, start_ns)
        end = clock_ns(self.case, self.rank, start_ns + dur_ns)
        return f'"ts": {us(start)}, "dur": {us(end - start)}'

    def event(self, cat: str, name: str, row: str, span: str, args: str) -> str:
        """A complete event."""
        return (
            f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", {row},\n'
            f'    {span},\n    "args": {{\n      {args}\n    }}\n  }},\n'
        )

    def flow(self, phase: str, correlation: int, row: str, start_ns: int) -> str:
        """One end of the arrow from a launch (s) to what it launched (f)."""
        ts = us(clock_ns(self.case, self.rank, start_ns))
        binding = ', "bp": "e"' if phase == "f" else ""
        return (
            f'  {{\n    "ph": "{phase}", "id": {correlation}, {row}, "ts": {ts},\n'
            f'    "cat": "ac2g", "name": "ac2g"{binding}\n  }},\n'
        )

    host_row = f'"pid": {HOST_PID}, "tid": {HOST_PID}'

    @property
    def gpu_row(self) -> str:
        """Where the events of the GPU's stream stand."""
        return f'"pid": {self.rank}, "tid": {STREAM}'

    def external_id(self, step: int, own_id: int) -> int:
        """`External id` of an operator or annotation; `Ev Idx` is one less."""
        return 1 + step * self.n_ids + own_id

    def correlation(self, step: int, slot: int) -> int:
        """Correlation id of a launch; the last of a step is its wait."""
        return FIRST_CORRELATION + 3 * (step * (len(self.slots) + 1) + slot)

    def op_events(self, step: int) -> Iterator[str]:
        """The annotation of a step and its operators."""
        number = self.external_id(step, 0)
        yield self.event(
            "user_annotation",
            "step[DECODE bs=1]",
            self.host_row,
            self.span(self.host_ns(step) - OP_MARGIN_NS, self.forward_ns + OP_MARGIN_NS),
            f'"External id": {number},"Record function id": 0, "Ev Idx": {number - 1}',
        )
        for index, slot in enumerate(self.slots):
            start = self.slot_ns(step, index)
            for number, op in enumerate(slot.ops, self.external_id(step, slot.first_id)):
                args = f'"External id": {number},"Record function id": 0, {op.args % (number - 1)}'
                span = self.span(start + op.start_ns, op.dur_ns)
                yield self.event("cpu_op", op.name, self.host_row, span, args)

    def gpu_events(self, step: int) -> Iterator[str]:
        """The kernels of a step, each launch after its kernels, and the host's wait at the end."""
        gpu = self.gpu_ns(step)
        kernels = iter(zip(self.kernel_texts, self.kernel_times(step), strict=True))
        for index, slot in enumerate(self.slots):
            correlation = self.correlation(step, index)
            own = "" if slot.own_id is None else f'"External id": {self.external_id(step, slot.own_id)},'
            for _ in slot.launch.kernels:
                (name, before, after), time = next(kernels)
                start = gpu + time.start_ns
                args = f"{own}      {before}{correlation}{after}"
                yield self.event("kernel", name, self.gpu_row, self.span(start, time.dur_ns), args)
                yield self.flow("f", correlation, self.gpu_row, start)
            start = self.slot_ns(step, index) + slot.call.start_ns
            yield self.call(slot.launch.api, start, slot.call.dur_ns, own, correlation)
            yield self.flow("s", correlation, self.host_row, start)
        end = self.host_ns(step) + len(self.slots) * SLOT_NS
        yield self.call("cudaEventSynchronize", end, gpu - end, "", self.correlation(step, len(self.slots)))

    @cached_property
    def kernel_texts(self) -> list[tuple[str, str, str]]:
        """Of each kernel its name and its arguments before and after the correlation."""
        return [(kernel.name, *kernel_args(kernel, self.rank)) for kernel in self.kernels]

    def call(self, api: str, start_ns: int, dur_ns: int, own: str, correlation: int) -> str:
        """A call of the runtime or driver."""
        cat, callback = CALLS[api]
        args = f'{own}      "cbid": {callback}, "correlation": {correlation}'
        return self.event(cat, api, self.host_row, self.span(start_ns, dur_ns), args)

    def last_wait(self) -> str:
        """The host waits for the last step before it ends the recording."""
        start = self.gpu_ns(self.case.steps - 1) + SLOT_NS
        end = self.gpu_ns(self.case.steps)
        return self.call("cudaDeviceSynchronize", start, end - start, "", self.correlation(self.case.steps, 0))

    def gpu_annotation(self, step: int) -> str:
        """The copy of the annotation over the kernels launched in it."""
        n_forward = len(self.kernels) - len(SAMPLING)
        last = self.kernel_times(step)[n_forward - 1]
        return self.event(
            "gpu_user_annotation",
            "step[DECODE bs=1]",
            self.gpu_row,
            self.span(self.gpu_ns(step), last.start_ns + last.dur_ns),
            f'"External id": {self.external_id(step, 0)}',
        )

    @property
    def frames_per_step(self) -> int:
        """Python frames of a step: two around it all, one for each layer, and those around the launches."""
        n_layers = self.case.layers if self.case.mode == "eager" else 0
        return 2 + n_layers + self.case.frames_per_launch * len(self.slots)

    def frame(self, number: int, parent: int | None, name: str, start_ns: int, end_ns: int, module: str = "") -> str:
        """A Python frame; `module` is empty or names the instance of an nn.Module."""
        above = "null" if parent is None else parent
        index = self.case.steps * self.n_ids + number - 1
        args = f'"Python parent id": {above}, "Python id": {number}, {module}"Ev Idx": {index}'
        return self.event("python_function", name, self.host_row, self.span(start_ns, end_ns - start_ns), args)

    def root_frame(self) -> str:
        """The engine's loop, open all the time."""
        return self.frame(1, None, "sglang/srt/managers/scheduler.py(1069): event_loop_overlap", 0, self.end_ns)

    def frame_events(self, step: int) -> Iterator[str]:
        """The Python frames of a step."""
        begin = self.host_ns(step) - 3 * OP_MARGIN_NS
        end = self.host_ns(step) + self.forward_ns
        run = 2 + step * self.frames_per_step
        yield self.frame(run, 1, "sglang/srt/managers/scheduler.py(2258): run_batch", begin, self.gpu_ns(step))
        name = "sglang/srt/model_executor/model_runner.py(2417): forward"
        yield self.frame(run + 1, run, name, begin + OP_MARGIN_NS, end)
        number = run + 2
        above: dict[int | None, int] = {None: run + 1}
        for index, slot in enumerate(self.slots):
            launch, start = slot.launch, self.host_ns(step) + index * SLOT_NS
            if launch.layer not in above:
                end = start + self.slots_of_layer[launch.layer] * SLOT_NS
                yield self.layer_frame(number, run + 1, launch.layer, start, end)
                above[launch.layer] = number
                number += 1
            parent = above[launch.layer] if launch.in_forward else run
            yield self.launch_frames(number, parent, self.slot_ns(step, index))
            number += self.case.frames_per_launch

    @cached_property
    def slots_of_layer(self) -> Counter[int | None]:
        """How many launches each layer has."""
        return Counter(slot.launch.layer for slot in self.slots)

    def layer_frame(self, number: int, parent: int, index: int | None, start_ns: int, end_ns: int) -> str:
        """The frame of a decoder layer, as torch records a module."""
        name, module = f"nn.Module: DeepseekV2DecoderLayer_{index}", f'"Python module id": {index}, '
        return self.frame(number, parent, name, start_ns, end_ns, module)

    def launch_frames(self, number: int, parent: int, start_ns: int) -> str:
        """The frames around one launch, each called by the one before."""
        n_frames = self.case.frames_per_launch
        inset = OP_MARGIN_NS // (n_frames + 1)
        return "".join(
            self.frame(
                number + depth,
                parent if depth == 0 else number + depth - 1,
                FRAMES[depth % len(FRAMES)],
                start_ns + inset * (depth + 1),
                start_ns + SLOT_NS - OP_MARGIN_NS - inset * (depth + 1),
            )
            for depth in range(n_frames)
        )

    def header(self) -> str:
        """All that stands before the first event."""
        devices = ",\n".join(device_properties(gpu) for gpu in range(self.case.ranks))
        trace_id = random.Random(f"{self.case.seed}/{self.name}").getrandbits(128)
        stack = '      "with_stack": 1,\n' if self.case.stack else ""
        return (
            f'\n  {{\n    "schemaVersion": 1,\n    "deviceProperties": [\n{devices}\n    ],\n'
            f'      "trace_id": "{trace_id:032X}",\n{stack}      "record_shapes": 1,\n'
            f'      "distributedInfo": {self.distributed_info()},\n'
            '      "cuda_driver_version": 13000,\n      "cuda_runtime_version": 13000,\n'
            '      "cupti_version": 130001,\n'
            f'      "synthetic": "traceql benchmarks/make_trace.py: {describe(self.case)}",\n'
            f'  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {BASE_TIME_NS},\n  "traceEvents": [\n'
        )

    def distributed_info(self) -> str:
        """The job as torch.distributed sees it: one group of all ranks."""
        size = self.case.ranks
        group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": size}
        return json.dumps(
            {
                "backend": "nccl",
                "rank": self.rank,
                "world_size": size,
                "pg_count": 1,
                "pg_config": [{**group, "ranks": list(range(size))}],
                "nccl_version": "2.28.9",
            }
        )

    def process_names(self) -> Iterator[str]:
        """The metadata events: names and places of processes, GPUs and streams."""
        yield from self.process_name(HOST_PID, "CPU", HOST_PID)
        for gpu in range(N_GPU_ROWS):
            yield from self.process_name(gpu, f"GPU {gpu}", 5_000_000 + gpu)
        rows = (
            (self.rank, STREAM, f"stream {STREAM} "),
            (HOST_PID, HOST_PID, f"thread {HOST_PID} (sglang::schedul)"),
        )
        for pid, tid, name in rows:
            yield self.metadata("thread_name", pid, tid, f'"name": "{name}"')
            yield self.metadata("thread_sort_index", pid, tid, f'"sort_index": {tid}')

    def process_name(self, pid: int, label: str, place: int) -> Iterator[str]:
        """Name, label and place of one process row."""
        yield self.metadata("process_name", pid, 0, '"name": "sglang::scheduler"')
        yield self.metadata("process_labels", pid, 0, f'"labels": "{label}"')
        yield self.metadata("process_sort_index", pid, 0, f'"sort_index": {place}')

    def metadata(self, name: str, pid: int, tid: int, args: str) -> str:
        """A metadata event."""
        ts = us(clock_ns(self.case, self.rank, LEAD_IN_NS // 2))
        return (
            f'  {{\n    "name": "{name}", "ph": "M", "ts": {ts}, "pid": {pid}, "tid": {tid},\n'
            f'    "args": {{\n      {args}\n    }}\n  }},\n'
        )

    def footer(self) -> str:
        """The span of the recording, its two marks, and the trace's name."""
        begin, end = (us(clock_ns(self.case, self.rank, ns)) for ns in (0, self.end_ns))
        return (
            f'  {{\n    "ph": "X", "cat": "Trace", {self.span(0, self.end_ns)},\n'
            '    "pid": "Spans", "tid": "PyTorch Profiler",\n    "name": "PyTorch Profiler (0)",\n'
            '    "args": {\n      "Op count": 0\n    }\n  },\n'
            f'  {{\n    "name": "process_sort_index", "ph": "M", "ts": {begin},\n'
            '    "pid": "Spans", "tid": 0,\n'
            '    "args": {\n      "sort_index": 536870912\n    }\n  },\n'
            '  {\n    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",\n'
            f'    "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": {begin}\n  }},\n'
            '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
            f'    "pid": "", "tid": "", "ts": {end}\n  }}\n  ],\n  "traceName": "{self.name}.json"\n}}'
        )


def kernel_args(kernel: Kernel, device: int) -> tuple[str, str]:
    """A kernel's arguments before and after its correlation id, as JSON text."""
    n_blocks = kernel.grid[0] * kernel.grid[1] * kernel.grid[2]
    n_warps = n_blocks * -(-kernel.block[0] * kernel.block[1] * kernel.block[2] // 32)
    warps_per_sm = n_warps / N_SMS
    before = f'"queued": 0, "device": {device}, "context": 1,      "stream": {STREAM}, "correlation": '
    after = (
        f',      "registers per thread": {kernel.registers},      "shared memory": {kernel.shared_bytes},'
        f'      "blocks per SM": {n_blocks / N_SMS:.6f},      "warps per SM": {warps_per_sm:.6f},'
        f'      "grid": {list(kernel.grid)},      "block": {list(kernel.block)},'
        f'      "est. achieved occupancy %": {min(100, round(100 * warps_per_sm / 48))}{kernel.extra}'
    )
    return before, after


def device_properties(gpu: int) -> str:
    """One GPU as Kineto lists it, without the line end after it."""
    return (
        f'    {{\n      "id": {gpu}, "name": "{GPU_NAME}", "totalGlobalMem": 102641958912,\n'
        '      "computeMajor": 12, "computeMinor": 0,\n'
        '      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 1536,\n'
        '      "regsPerBlock": 65536, "warpSize": 32,\n'
        f'      "sharedMemPerBlock": 49152, "numSms": {N_SMS}\n'
        '    , "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 101376, '
        '"sharedMemPerMultiprocessor": 102400\n'
        "    }"
    )


def describe(case: Case) -> str:
    """The options of a case, for the file's own note that it is synthetic."""
    stack = f" --stack ({case.frames_per_launch} frames a launch)" if case.stack else ""
    return (
        f"--ranks {case.ranks} --steps {case.steps} --layers {case.layers} --mode {case.mode}{stack} "
        f"--seed {case.seed} --skew-us {case.skew_us:g} --offset-us {case.offset_us:g} "
        f"--drift-ppm {case.drift_ppm:g}"
    )


_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')


def without_space(pieces: Iterable[str]) -> Iterator[str]:
    """The same JSON without white space between its tokens; numbers keep their digits."""
    return (_SPACE.sub(r"\1", piece) for piece in pieces)


class Output(Protocol):
    """What takes bytes: a file, plain or compressing."""

    def write(self, data: bytes, /) -> object:
        """Takes the bytes."""


def make_rank(case: Case, rank: int, out: Output) -> int:
    """Writes the trace of one rank, all ASCII, in constant memory; returns its number of bytes as JSON."""
    pieces = RankTrace(case, rank).pieces()
    texts = without_space(pieces) if case.minified else pieces
    n_bytes = 0
    for text in texts:
        out.write(text.encode())
        n_bytes += len(text)
    return n_bytes


def measure(case: Case) -> int:
    """Bytes of the trace of rank 0, without writing it."""
    pieces = RankTrace(case, 0).pieces()
    return sum(map(len, without_space(pieces) if case.minified else pieces))


def fit_size(case: Case, size_mb: float) -> Case:
    """The case with as many steps, or with stacks frames around a launch, that a file is about `size_mb` MB.

    With stacks the steps asked for are kept where 1 to 64 frames can make up the size; else they change too.
    """
    n_bytes = size_mb * 1_000_000
    if case.stack:
        bare, one = (measure(replace(case, steps=1, frames_per_launch=n)) for n in (1, 2))
        n_frames = 1 + round((n_bytes / case.steps - bare) / (one - bare))
        case = replace(case, frames_per_launch=min(max(n_frames, 1), 64))
    one, two = (measure(replace(case, steps=n)) for n in (1, 2))
    return replace(case, steps=max(1, 1 + round((n_bytes - one) / (two - one))))


@contextmanager
def opened(path: Path, ending: str) -> Iterator[Output]:
    """A file to write to, compressed if its ending says so."""
    with path.open("wb") as file:
        if ending == ".gz":
            with igzip.IGzipFile(fileobj=file, mode="wb", compresslevel=2) as packed:
                yield packed
        elif ending == ".zst":
            with zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False) as packed:
                yield packed
        else:
            yield file


@click.command(
    context_settings={"show_default": True},
    epilog="Example: python benchmarks/make_trace.py traces --ranks 1 --size-mb 640",
)
@click.argument("out_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("--ranks", default=8, type=click.IntRange(1), help="Ranks of the job; one file each.")
@click.option("--only-rank", type=click.IntRange(0), help="Write the file of this rank alone.")
@click.option("--steps", default=30, type=click.IntRange(1), help="Decode steps.")
@click.option("--layers", default=FOUNDING_LAYERS, type=click.IntRange(1), help="Decoder layers.")
@click.option("--mode", default="eager", type=click.Choice(get_args(Mode)), help="Launches, or one CUDA graph.")
@click.option("--stack", is_flag=True, help="With Python frames and module events.")
@click.option("--size-mb", type=click.FloatRange(min=0.1), help="JSON size: sets steps; with --stack, frames.")
@click.option("--gz", "ending", flag_value=".gz", help="Compress with gzip.")
@click.option("--zst", "ending", flag_value=".zst", help="Compress with Zstandard.")
@click.option("--minified", is_flag=True, help="No white space.")
@click.option("--seed", default=0, help="Of the jitter.")
@click.option("--skew-us", default=0.0, type=click.FloatRange(0), help="Lateness of the last rank.")
@click.option("--offset-us", default=0.0, help="Each rank's clock is this much ahead of the rank's before.")
@click.option("--drift-ppm", default=0.0, help="Each rank's clock is this much faster than the rank's before.")
def main(out_dir: Path, only_rank: int | None, size_mb: float | None, ending: str | None, **options: object) -> None:
    """Write synthetic torch.profiler traces of the founding case to OUT_DIR, one file per rank."""
    case = Case(**options)  # pyright: ignore[reportArgumentType]
    case = fit_size(case, size_mb) if size_mb else case
    out_dir.mkdir(parents=True, exist_ok=True)
    for rank in range(case.ranks) if only_rank is None else (only_rank,):
        path = out_dir / f"{RankTrace(case, rank).name}.trace.json{ending or ''}"
        with opened(path, ending or "") as out:
            n_bytes = make_rank(case, rank, out)
        click.echo(f"{path}: {n_bytes / 1e6:.1f} MB of JSON, {case.steps} steps", err=True)


if __name__ == "__main__":
    main()
