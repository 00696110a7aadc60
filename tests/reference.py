"""The slow, simple count that the product is compared with: json and loops, nothing of traceql.

One function per definition. Times are whole nanoseconds of the file's own clock, read from the decimal text.
Made for sane files: damaged ones are the business of `test_cases.py`.
"""

import gzip
import json
import lzma
import re
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import zstandard

GPU_KINDS = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
}
LAUNCH_CATS = {"cuda_runtime", "cuda_driver", "Runtime"}
OP_CATS = {"cpu_op", "Operator"}
ANNOTATION_CATS = {"user_annotation", "Operator"}
UNUSED_CATS = {"python_function", "ac2g", "fwdbwd", "async", "async_gpu", "async_cpu_to_gpu"}

ENGINE_STEP = re.compile(r"step\[|execute_")
PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
MERGED_PID = re.compile(r"\[\D*(\d+)\]")
LONGEST_NS = 30 * 24 * 3600 * 10**9


@dataclass(eq=False)
class Span:
    """Something on a host thread: an op, a launch or an annotation."""

    rank: int
    thread: tuple[str, str]
    name: str
    start: int
    dur: int

    @property
    def end(self) -> int:
        return self.start + self.dur


@dataclass(eq=False)
class Activity:
    """A kernel, memcpy or memset."""

    rank: int
    device: int
    stream: int
    kind: str
    name: str
    start: int
    dur: int
    correlation: int
    launch: Span | None = None
    op: Span | None = None

    @property
    def end(self) -> int:
        return self.start + self.dur

    @property
    def is_timed(self) -> bool:
        return bool(self.start or self.dur)

    @property
    def order(self) -> tuple[int, int, int, int, str]:
        """Who gets the odd nanosecond first."""
        return (self.start, self.stream, self.correlation, self.dur, self.name)


@dataclass(eq=False)
class Step:
    """A step on one device: its annotation, what it launched and its window."""

    annotation: Span
    rank: int
    device: int
    number: int
    inside: list[Activity] = field(default_factory=list)
    between: list[Activity] = field(default_factory=list)
    start: int | None = None
    end: int | None = None
    is_complete: bool = False
    is_separable: bool = True
    busy: int = 0
    exclusive: dict[Activity, int] = field(default_factory=dict)

    @property
    def launched(self) -> list[Activity]:
        return self.inside + self.between

    @property
    def kernel_ns(self) -> int:
        return sum(activity.dur for activity in self.launched)

    @property
    def wall(self) -> int:
        assert self.start is not None
        assert self.end is not None
        return self.end - self.start


@dataclass(eq=False)
class Recording:
    """The rows of a file that the count needs."""

    activities: list[Activity]
    launches: list[Span]
    ops: list[Span]
    annotations: list[Span]


def read_text(path: Path) -> str:
    """The file as text, unpacked according to its first bytes."""
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    elif data.startswith(b"\x28\xb5\x2f\xfd"):
        data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    elif data.startswith(b"\xfd7zXZ\x00"):
        data = lzma.decompress(data)
    return data.decode("utf-8-sig")


def read_events(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(metadata, events); fractions stay text, events without use here are empty."""

    def slim(obj: dict[str, Any]) -> dict[str, Any]:
        return {} if obj.get("cat") in UNUSED_CATS and "ph" in obj else obj

    document = json.loads(read_text(path), parse_float=str, object_hook=slim)
    if isinstance(document, list):
        return {}, document
    return document, document.pop("traceEvents")


def nanoseconds(microseconds: str | int) -> int:
    """Whole ns from a decimal text of µs."""
    return int((Decimal(microseconds) * 1000).to_integral_value())


def load(path: Path) -> Recording:
    """Reads a file and joins GPU activities to launches and ops."""
    metadata, events = read_events(path)
    file_rank = (metadata.get("distributedInfo") or {}).get("rank") or 0
    recording = Recording([], [], [], [])
    launch_by_id: dict[tuple[int, int], Span] = {}
    for event in events:
        if event.get("ph") != "X" or event.get("dur") is None:
            continue
        start, dur = nanoseconds(event["ts"]), nanoseconds(event["dur"])
        if not 0 <= dur <= LONGEST_NS:
            continue
        cat, name, args = event.get("cat"), event["name"], event.get("args") or {}
        merged = MERGED_PID.match(str(event["pid"]))
        rank = int(merged[1]) if merged else file_rank
        correlation = int(args.get("correlation") or 0)
        if cat in GPU_KINDS:
            kind = GPU_KINDS[cat]
            device = int(args["device"]) if "device" in args else int(event["pid"])
            stream = int(args["stream"]) if "stream" in args else int(str(event["tid"]).split()[-1])
            recording.activities.append(Activity(rank, device, stream, kind, name, start, dur, correlation))
            continue
        span = Span(rank, (str(event["pid"]), str(event["tid"])), name, start, dur)
        if cat in LAUNCH_CATS:
            recording.launches.append(span)
            if correlation:
                assert (rank, correlation) not in launch_by_id, "two host calls of one correlation"
                launch_by_id[rank, correlation] = span
        elif cat in ANNOTATION_CATS and (ENGINE_STEP.match(name) or PROFILER_STEP.match(name)):
            recording.annotations.append(span)
        elif cat in OP_CATS:
            recording.ops.append(span)
    for activity in recording.activities:
        activity.launch = launch_by_id.get((activity.rank, activity.correlation))
    op_of = innermost_ops(recording)
    for activity in recording.activities:
        activity.op = op_of.get(activity.launch) if activity.launch else None
    return recording


def innermost_ops(recording: Recording) -> dict[Span, Span]:
    """launch -> the innermost op that contains the call whole, on its thread."""
    result: dict[Span, Span] = {}
    ops_of_thread: dict[Any, list[Span]] = defaultdict(list)
    launches_of_thread: dict[Any, list[Span]] = defaultdict(list)
    for op in recording.ops:
        ops_of_thread[op.thread].append(op)
    for launch in recording.launches:
        launches_of_thread[launch.thread].append(launch)
    for thread, launches in launches_of_thread.items():
        waiting = sorted(ops_of_thread[thread], key=lambda op: (op.start, -op.dur), reverse=True)
        around: list[Span] = []
        for launch in sorted(launches, key=lambda launch: launch.start):
            while waiting and waiting[-1].start <= launch.start:
                around.append(waiting.pop())
            around = [op for op in around if op.end >= launch.start]
            for op in reversed(around):
                if launch.end <= op.end:
                    result[launch] = op
                    break
    return result


def step_annotations(recording: Recording, rank: int) -> list[Span]:
    """One annotation per step, in order of time: the engine's if it writes any, the outermost of nested."""
    mine = [span for span in recording.annotations if span.rank == rank]
    engine = [span for span in mine if ENGINE_STEP.match(span.name)]
    outermost: list[Span] = []
    for span in sorted(engine or mine, key=lambda span: (span.start, -span.dur)):
        nested = any(
            other.thread == span.thread and other.start <= span.start and span.end <= other.end for other in outermost
        )
        if not nested:
            outermost.append(span)
    return outermost


def steps(recording: Recording) -> list[Step]:
    """The steps of every rank and device that has GPU activity, with windows, busy and exclusive time.

    Those of a rank without any count as steps of device 0.
    """
    result: list[Step] = []
    places = {(a.rank, a.device) for a in recording.activities}
    places |= {(span.rank, 0) for span in recording.annotations} if not places else set()
    for rank, device in sorted(places):
        here = [a for a in recording.activities if (a.rank, a.device) == (rank, device)]
        annotations = step_annotations(recording, rank)
        device_steps = [Step(span, rank, device, i) for i, span in enumerate(annotations)]
        assign(here, device_steps)
        set_windows(device_steps)
        timed = [a for a in here if a.is_timed]
        for step in device_steps:
            if step.start is not None and step.end is not None:
                step.busy = union([(max(a.start, step.start), min(a.end, step.end)) for a in timed])
        share_out(timed, device_steps)
        result += device_steps
    return result


def assign(activities: list[Activity], device_steps: list[Step]) -> None:
    """Gives each activity to the last step whose annotation began when it was launched."""
    by_launch = sorted((a for a in activities if a.launch), key=lambda a: a.launch.start if a.launch else 0)
    current = -1
    for activity in by_launch:
        assert activity.launch is not None
        while current + 1 < len(device_steps) and (device_steps[current + 1].annotation.start <= activity.launch.start):
            current += 1
        if current >= 0:
            step = device_steps[current]
            is_inside = activity.launch.start < step.annotation.end
            (step.inside if is_inside else step.between).append(activity)


def set_windows(device_steps: list[Step]) -> None:
    """From the first activity launched inside the annotation to the next step's; the last to its own end.

    Steps that do not begin one after the other run at once: their windows overlap and are not told.
    """
    with_work = [step for step in device_steps if any(a.is_timed for a in step.inside)]
    starts = [min(a.start for a in step.inside if a.is_timed) for step in with_work]
    for i, step in enumerate(with_work):
        earlier, later = starts[:i], starts[i + 1 :]
        end = later[0] if later else max(a.end for a in step.launched)
        step.start, step.is_complete = starts[i], bool(later)
        step.is_separable = all(other < starts[i] for other in earlier) and (
            not later or (starts[i] < end and end <= min(later))
        )
        if step.is_separable:
            step.end = end


def union(intervals: list[tuple[int, int]]) -> int:
    """Length of the union of half-open intervals; empty ones count nothing."""
    total, reached = 0, None
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if reached is None or start > reached:
            total, reached = total + end - start, end
        elif end > reached:
            total, reached = total + end - reached, end
    return total


def share_out(activities: list[Activity], device_steps: list[Step]) -> None:
    """Fills `exclusive`: a stretch of L ns with k activities gives each L // k, the first ones the rest."""
    moments: dict[int, list[tuple[str, Any]]] = defaultdict(list)
    for activity in activities:
        if activity.dur:
            moments[activity.start].append(("start", activity))
            moments[activity.end].append(("end", activity))
    for step in device_steps:
        if step.start is not None and step.end is not None and step.start < step.end:
            moments[step.start].append(("open", step))
            moments[step.end].append(("close", step))
    running: list[Activity] = []
    window: Step | None = None
    previous = 0
    for now in sorted(moments):
        if running and window is not None:
            each, left_over = divmod(now - previous, len(running))
            for i, activity in enumerate(sorted(running, key=lambda a: a.order)):
                window.exclusive[activity] = window.exclusive.get(activity, 0) + each + (i < left_over)
        for what, thing in sorted(moments[now], key=lambda item: item[0] != "close"):
            if what == "start":
                running.append(thing)
            elif what == "end":
                running.remove(thing)
            elif what == "open":
                window = thing
            else:
                window = None
        previous = now


def median(values: list[int]) -> float:
    """The middle value, or the mean of the middle two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
