"""The slow count of gaps and their causes: loops over the events of a file, nothing of traceql."""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reference
from reference import Activity, Recording, Span, Step

SYNCHRONIZE = re.compile(r"(Device|Stream|Event|Ctx|Context)Synchronize")
COPY = re.compile(r"(cuda|cu|hip)Memcpy")
PAGEABLE = re.compile(r"Memcpy DtoH.*-> Pageable")
IDLE_SPAN = re.compile(r"step\[IDLE\b|scheduler\.\w*idle")
POLL_SPAN = re.compile(r"scheduler\.recv_requests\b")


@dataclass(frozen=True)
class Gap:
    """A stretch of a window in which its device runs nothing."""

    step: Step
    start: int
    end: int
    next: Activity | None
    cause: str = ""
    host_call: str | None = None

    @property
    def launch(self) -> Span | None:
        return self.next.launch if self.next else None

    def row(self, zero: int) -> tuple[Any, ...]:
        """As in the product's table, with names in place of ids; times since `zero`."""
        launched = self.launch.start - zero if self.launch else None
        where = (self.step.rank, self.step.device, self.step.number, self.start - zero, self.end - self.start)
        return (*where, self.cause, self.next and self.next.name, launched, self.host_call)


@dataclass(frozen=True)
class StreamWait:
    """A stream told to wait: on which stream where recorded, else by which thread."""

    time: int
    stream: tuple[int, int, int] | None
    thread: tuple[int, tuple[str, str]] | None


@dataclass(frozen=True)
class Host:
    """What the host did, by thread, and what the engine wrote, by rank."""

    calls: dict[Any, list[Span]]
    marks: dict[Any, list[tuple[int, bool, str]]]
    """(begin, waits, name) of launches and waits, in order of time."""
    idle_spans: dict[int, list[tuple[int, int]]]
    polls: dict[int, list[int]]
    stream_waits: list[StreamWait]


def gaps(path: Path) -> tuple[list[Gap], list[Step]]:
    """Every gap of every window with its cause, and all steps."""
    recording = reference.load(path)
    host = read_host(path, recording)
    found: list[Gap] = []
    all_steps = reference.steps(recording)
    for place in sorted({(step.rank, step.device) for step in all_steps}):
        here = sorted(
            (a for a in recording.activities if (a.rank, a.device) == place and a.is_timed), key=lambda a: a.order
        )
        previous = previous_launches(here)
        for step in all_steps:
            if (step.rank, step.device) == place and step.start is not None and step.end is not None:
                found += [judged(gap, host, previous) for gap in step_gaps(step, [a for a in here if a.dur])]
    return found, all_steps


def step_gaps(step: Step, working: list[Activity]) -> list[Gap]:
    """The stretches of the window that no activity covers."""
    assert step.start is not None
    assert step.end is not None
    starts = [activity.start for activity in working]
    found, reached = [], step.start
    for activity in working[: bisect_left(starts, step.end)]:
        if activity.start > reached:
            found.append((reached, activity.start))
        reached = max(reached, activity.end)
    if reached < step.end:
        found.append((reached, step.end))
    followers = [*working, None]
    return [Gap(step, start, end, followers[bisect_left(starts, end)]) for start, end in found]


def previous_launches(activities: list[Activity]) -> dict[Activity, int]:
    """The latest launch of what ran before on the same stream."""
    latest: dict[Any, int] = {}
    result: dict[Activity, int] = {}
    for activity in sorted(activities, key=lambda a: (a.start, a.correlation)):
        if activity.stream in latest:
            result[activity] = latest[activity.stream]
        if activity.launch:
            latest[activity.stream] = max(latest.get(activity.stream, activity.launch.start), activity.launch.start)
    return result


def judged(gap: Gap, host: Host, previous: dict[Activity, int]) -> Gap:
    """The gap with its cause and host call."""
    activity, launch = gap.next, gap.launch
    if activity is None or launch is None:
        return gap_with(gap, "unknown", None)
    if launch.start > gap.start and not is_held(gap, activity, launch):
        waited_in = last_wait(host, launch, gap.start)
        inside = running_call(host, launch, gap.start) or launch.name
        if has_no_batch(host, launch, gap.start):
            return gap_with(gap, "no_work", inside)
        if waited_in:
            return gap_with(gap, "sync", waited_in)
        return gap_with(gap, "launch", inside)
    stream, thread = (activity.rank, activity.device, activity.stream), (launch.rank, launch.thread)
    for wait in host.stream_waits:
        is_its = wait.stream == stream if wait.stream else wait.thread == thread
        if is_its and wait.time <= launch.start and (activity not in previous or wait.time > previous[activity]):
            return gap_with(gap, "dependency", launch.name)
    return gap_with(gap, "dependency" if "nccl" in activity.name.lower() else "gpu_gap", launch.name)


def is_held(gap: Gap, activity: Activity, launch: Span) -> bool:
    """Its call was over, and it went on waiting: for more than 100 µs, and for most of the gap."""
    begun = launch.start if waits(launch) or PAGEABLE.match(activity.name) else launch.end
    waited = gap.end - max(begun, gap.start)
    return waited > 100_000 and waited > (gap.end - gap.start) / 2


def waits(call: Span) -> bool:
    """Whether it is a copy whose call returns only when that is done."""
    return bool(COPY.match(call.name)) and "Async" not in call.name and "Peer" not in call.name


def gap_with(gap: Gap, cause: str, host_call: str | None) -> Gap:
    return Gap(gap.step, gap.start, gap.end, gap.next, cause, host_call)


def last_wait(host: Host, launch: Span, now: int) -> str | None:
    """The wait, if the last thing that the thread had begun, of waits and launches, is one."""
    marks = host.marks[launch.rank, launch.thread]
    position = bisect_right(marks, (now, True, "\U0010ffff"))
    return marks[position - 1][2] if position and marks[position - 1][1] else None


def running_call(host: Host, launch: Span, now: int) -> str | None:
    """The last call that the thread had begun, if it was still in it."""
    calls = host.calls[launch.rank, launch.thread]
    position = bisect_right(calls, now, key=lambda call: call.start)
    return calls[position - 1].name if position and calls[position - 1].end > now else None


def has_no_batch(host: Host, launch: Span, since: int) -> bool:
    """The engine said that it idles, or went round its loop, between the gap's beginning and the launch."""
    idles = any(start <= launch.start and end > since for start, end in host.idle_spans[launch.rank])
    return idles or sum(since <= poll <= launch.start for poll in host.polls[launch.rank]) >= 2


def read_host(path: Path, recording: Recording) -> Host:
    """What the loader of `reference` leaves out: waits, stream waits, spans of the engine."""
    metadata, events = reference.read_events(path)
    rank = (metadata.get("distributedInfo") or {}).get("rank") or 0
    calls: dict[Any, list[Span]] = defaultdict(list)
    marks: dict[Any, list[tuple[int, bool, str]]] = defaultdict(list)
    launching = {a.launch for a in recording.activities if a.launch}
    pageable = {a.launch for a in recording.activities if a.launch and PAGEABLE.match(a.name)}
    for call in sorted(recording.launches, key=lambda call: (call.start, -call.end, call.name)):
        thread = (call.rank, call.thread)
        calls[thread].append(call)
        if SYNCHRONIZE.search(call.name) or waits(call) or call in pageable:
            marks[thread].append((call.start, True, call.name))
        elif call in launching:
            marks[thread].append((call.start, False, ""))
    host = Host(calls, {t: sorted(m) for t, m in marks.items()}, defaultdict(list), defaultdict(list), [])
    timed = [event for event in events if event.get("ph") == "X" and event.get("dur") is not None]
    recorded = {
        (event.get("args") or {}).get("correlation"): event
        for event in timed
        if event.get("cat") == "cuda_sync" and "Stream Wait Event" in event["name"]
    }
    for event in timed:
        name, start, args = event["name"], reference.nanoseconds(event["ts"]), event.get("args") or {}
        if event in recorded.values():
            host.stream_waits.append(StreamWait(start, (rank, int(args["device"]), int(args["stream"])), None))
        elif event.get("cat") in reference.LAUNCH_CATS and "StreamWaitEvent" in name:
            if args.get("correlation") not in recorded:
                thread = (rank, (str(event["pid"]), str(event["tid"])))
                host.stream_waits.append(StreamWait(start, None, thread))
        elif event.get("cat") == "user_annotation" and IDLE_SPAN.match(name):
            host.idle_spans[rank].append((start, start + reference.nanoseconds(event["dur"])))
        elif event.get("cat") == "user_annotation" and POLL_SPAN.match(name):
            host.polls[rank].append(start)
    return host
