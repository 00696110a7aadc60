"""The slow count of what `step_facts` counts itself: loops over the events of a file, nothing of traceql."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import reference
from reference import Activity, Recording, Span, Step

SYNCHRONIZE = re.compile(r"(Device|Stream|Event|Ctx|Context)Synchronize")
COPY_CALL = re.compile(r"(cuda|cu|hip)Memcpy")
TINY_NS = 5_000


@dataclass(frozen=True)
class Host:
    """What began on the host, as (start, dur) by thread and kind."""

    waits: list[Span]
    pageable: list[Span]
    blocking: list[Span]
    ops: list[Span]
    python_calls: list[Span]


@cache
def facts(path: Path) -> dict[tuple[int, int, int], dict[str, Any]]:
    """(rank, device, step) -> what was counted, of the steps that have a window."""
    recording = reference.load(path)
    host = _host(recording, path)
    found = [step for step in reference.steps(recording) if step.start is not None and step.end is not None]
    return {(step.rank, step.device, step.number): _of_step(step, recording, host) for step in found}


def _host(recording: Recording, path: Path) -> Host:
    pageable = {a.launch for a in recording.activities if a.launch and "Pageable" in a.name}
    sync = [call for call in recording.launches if SYNCHRONIZE.search(call.name)]
    is_blocking = [
        call
        for call in recording.launches
        if COPY_CALL.match(call.name) and "Async" not in call.name and "Peer" not in call.name
    ]
    blocking = [call for call in is_blocking if call not in pageable]
    python_calls = _python_calls(path, recording)
    return Host([*sync, *pageable, *blocking], list(pageable), blocking, recording.ops, python_calls)


def _python_calls(path: Path, recording: Recording) -> list[Span]:
    document = json.loads(reference.read_text(path), parse_float=str)
    events = document if isinstance(document, list) else document["traceEvents"]
    rank = recording.activities[0].rank if recording.activities else 0
    return [
        Span(rank, (str(e["pid"]), str(e["tid"])), e["name"], reference.nanoseconds(e["ts"]), 0)
        for e in events
        if e.get("cat") == "python_function" and e.get("ph") == "X"
    ]


def _of_step(step: Step, recording: Recording, host: Host) -> dict[str, Any]:
    kernels = [a for a in step.launched if a.kind == "kernel" and a.dur < TINY_NS]
    calls = {a.launch for a in step.launched}
    graphs = {call for call in calls if call and "GraphLaunch" in call.name}
    here = [a for a in recording.activities if (a.rank, a.device) == (step.rank, step.device)]
    waits, pageable, blocking = (_inside(step, spans) for spans in (host.waits, host.pageable, host.blocking))
    return {
        "n_tiny_kernels": len(kernels),
        "tiny_kernel_ns": sum(a.dur for a in kernels),
        "n_graph_launches": len(graphs),
        "n_graph_kernels": sum(a.launch in graphs for a in step.launched),
        "n_eager_launches": len(calls - graphs),
        "comm_ns": _covered(step, [a for a in here if _is_comm(a)]),
        "exposed_comm_ns": _covered(step, here) - _covered(step, [a for a in here if not _is_comm(a)]),
        "n_host_waits": len(waits),
        "host_wait_ns": sum(wait.dur for wait in waits),
        "n_pageable_copies": len(pageable),
        "pageable_copy_ns": sum(copy.dur for copy in pageable),
        "n_blocking_copies": len(blocking),
        "n_ops": len(_inside(step, host.ops)) if host.ops else None,
        "n_python_calls": len(_inside(step, host.python_calls)) if host.python_calls else None,
    }


def _is_comm(activity: Activity) -> bool:
    return activity.name.lower().startswith("nccl")


def _inside(step: Step, spans: list[Span]) -> list[Span]:
    mark = step.annotation
    return [span for span in spans if span.thread == mark.thread and mark.start <= span.start < mark.end]


def _covered(step: Step, activities: list[Activity]) -> int:
    """Length of the union of activities within the step's window."""
    assert step.start is not None
    assert step.end is not None
    cut = [(max(a.start, step.start), min(a.end, step.end)) for a in activities]
    return reference.union(cut)
