"""The slow, simple replay that the product is compared with: lists and loops over the files, nothing of traceql.

For runs whose ranks use one stream each, one clock, waits for the whole device, and collectives in the same order: the
small recordings. Times are whole nanoseconds since 1970.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import reference
from reference import Activity, Span

FAR_NS = 20_000
USUAL_NS = {("launch", False): 8_000, ("launch", True): 120_000, ("stream", False): 1_000, ("stream", True): 250,
            ("wait", False): 10_000}  # fmt: skip
GRAPH_GAP_NS, GRAPH_LATENCY_NS, GRAPH_LAUNCH_NS = 250, 120_000, 1_100
ORDER = {"call": 0, "start": 1, "join": 2, "return": 3}
KINDS = ("host", "launch", "stream", "wait", "arrival")


@dataclass(eq=False)
class Edge:
    """`target` comes at least `delay` after `source`, or after the work that begins there."""

    kind: str
    source: "Node"
    work: Activity | None
    in_graph: bool
    known_ns: int | None = None
    delay: float = 0


@dataclass(eq=False)
class Node:
    """A moment, with all that it waits for."""

    kind: str
    time: int
    rank: int
    what: Activity | Span | None
    edges: list[Edge] = field(default_factory=list)


@dataclass
class Slow:
    """A run: its nodes in order of time, and where each activity starts and how long it takes."""

    nodes: list[Node]
    start: dict[Activity, Node]
    begin: dict[Activity, Node]
    """From where on an activity's own work runs: its start, or that all ranks have come."""
    length: dict[Activity, int]
    steps: list[reference.Step]
    calls: dict[Span, Node]
    graphs: set[Span]


def read(paths: list[Path]) -> Slow:
    """The run of these files."""
    nodes: list[Node] = []
    slow = Slow(nodes, {}, {}, {}, [], {}, set())
    comms: dict[int, list[Activity]] = defaultdict(list)
    for path in paths:
        metadata, _ = reference.read_events(path)
        base = int(metadata.get("baseTimeNanoseconds") or 0)
        recording = reference.load(path)
        for thing in [*recording.activities, *recording.launches, *recording.annotations]:
            thing.start += base
        slow.steps += reference.steps(recording)
        activities = sorted(recording.activities, key=lambda a: a.start)
        assert len({a.stream for a in activities}) == 1
        add_rank(slow, activities, recording.launches)
        for activity in activities:
            if activity.name.startswith("nccl"):
                comms[activity.rank].append(activity)
    if len(comms) > 1:
        for members in zip(*comms.values(), strict=True):
            join = Node("join", max(a.start for a in members), 0, None)
            nodes.append(join)
            for activity in members:
                join.edges.append(Edge("arrival", slow.start[activity], None, False))
                slow.begin[activity], slow.length[activity] = join, max(activity.end - join.time, 0)
    add_stream_edges(slow)
    nodes.sort(key=lambda node: (node.time, ORDER[node.kind]))
    set_delays(slow)
    return slow


def add_rank(slow: Slow, activities: list[Activity], launches: list[Span]) -> None:
    """The nodes of a rank, with the host's order and the launches."""
    by_call: dict[Span, list[Activity]] = defaultdict(list)
    for activity in activities:
        node = Node("start", activity.start, activity.rank, activity)
        slow.nodes.append(node)
        slow.start[activity] = slow.begin[activity] = node
        slow.length[activity] = activity.dur
        if activity.launch:
            by_call[activity.launch].append(activity)
    waits = [call for call in launches if re.search("Device.*Synchronize", call.name)]
    moments: list[Node] = []
    least = lowest(waits)
    for call in launches:
        if call in by_call or call in waits:
            slow.calls[call] = Node("call", call.start, call.rank, call)
            moments.append(slow.calls[call])
        if call in waits:
            moments.append(Node("return", call.end, call.rank, call))
    moments.sort(key=lambda node: (node.time, ORDER[node.kind]))
    slow.nodes += moments
    for before, node in pairwise(moments):
        assert isinstance(node.what, Span)
        cost = min(least, node.what.dur) if node.kind == "return" else 0
        node.edges.append(Edge("host", before, None, False, max(node.what.start - before.time, 0) + cost))
    for call, launched in by_call.items():
        is_graph = len(launched) > 1
        slow.start[launched[0]].edges.append(Edge("launch", slow.calls[call], None, is_graph))
        if is_graph:
            slow.graphs.add(call)
    for node in moments:
        if node.kind == "return" and isinstance(node.what, Span):
            earlier = [a for a in activities if a.launch and a.launch.start <= node.what.start and a.end <= node.time]
            if earlier:
                last = max(earlier, key=lambda a: a.end)
                node.edges.append(Edge("wait", slow.begin[last], last, False))


def lowest(waits: list[Span]) -> int:
    """What a wait takes that waits for nothing: the 10th percentile, without interpolation; 5 µs where all waited."""
    durations = sorted(call.dur for call in waits if call.dur < 50_000)
    return durations[int(0.1 * (len(durations) - 1))] if durations else 5_000


def add_stream_edges(slow: Slow) -> None:
    """Each activity follows the one that ended last before it on its stream; and waits see collectives' own work."""
    by_rank: dict[int, list[Activity]] = defaultdict(list)
    for activity in slow.start:
        by_rank[activity.rank].append(activity)
    for activities in by_rank.values():
        for before, activity in pairwise(activities):
            same = before.launch is activity.launch and activity.launch in slow.graphs
            slow.start[activity].edges.append(Edge("stream", slow.begin[before], before, same))
    for node in slow.nodes:
        for edge in node.edges:
            if edge.work:
                edge.source = slow.begin[edge.work]


def free(slow: Slow, edge: Edge) -> int:
    return edge.source.time + (slow.length[edge.work] if edge.work else 0)


def set_delays(slow: Slow) -> None:
    """Typical delays, but for the edge that held its node up longest: that has what the recorded time leaves."""
    position = {node: number for number, node in enumerate(slow.nodes)}
    shown: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for node in slow.nodes:
        node.edges = [edge for edge in node.edges if position[edge.source] < position[node]]
        for edge in node.edges:
            others = {kind: max((free(slow, e) + (e.known_ns or 0) for e in node.edges if e.kind == kind), default=-1)
                      for kind in KINDS}  # fmt: skip
            gap = node.time - free(slow, edge)
            is_example = {
                "launch": others["stream"] <= free(slow, edge),
                "stream": others["launch"] <= free(slow, edge) - FAR_NS and gap <= FAR_NS,
                "wait": others["host"] <= free(slow, edge),
            }.get(edge.kind, False)
            if is_example:
                shown[edge.kind, edge.in_graph].append(gap)
    typical = {key: int(median(gaps)) for key, gaps in shown.items()}
    for node in slow.nodes:
        for edge in node.edges:
            usual = 0 if edge.kind == "arrival" else USUAL_NS.get((edge.kind, edge.in_graph), 0)
            asked = edge.known_ns if edge.known_ns is not None else typical.get((edge.kind, edge.in_graph), usual)
            edge.delay = min(asked, node.time - free(slow, edge))
        if node.edges:
            left = [(node.time - free(slow, e) - e.delay, KINDS.index(e.kind), i) for i, e in enumerate(node.edges)]
            holding = node.edges[min(left)[2]]
            holding.delay = node.time - free(slow, holding)


def walls(
    slow: Slow,
    *,
    scaled: Callable[[Activity], bool] = lambda _: False,
    factor: float = 1,
    host: float = 1,
    as_graphs: bool = False,
) -> dict[tuple[int, int], int]:
    """(rank, step) -> wall of each complete step, with these changes."""
    length = {a: round(ns * factor) if scaled(a) else ns for a, ns in slow.length.items()}
    inside = step_launches(slow) if as_graphs else {}
    spans = {id(step): (min(c.start for c in calls), max(c.start for c in calls)) for step, calls in inside.items()}
    step_of = {call: step for step, calls in inside.items() for call in calls}
    times: dict[Node, int] = {}
    for node in slow.nodes:
        arrivals: list[int] = []
        for edge in node.edges:
            delay = edge.delay
            skipped = node.kind in ("call", "return") and any(
                node.rank == step.rank and spans[id(step)][0] < node.time <= spans[id(step)][1] for step in inside
            )
            if edge.kind == "host":
                delay = 0 if skipped else delay
                if edge.source.what in step_of and edge.source.kind == "call":
                    step = step_of[edge.source.what]
                    if edge.source.what.start == spans[id(step)][1]:
                        delay += GRAPH_LAUNCH_NS * len(step.inside)
                delay = round(delay * host)
            elif edge.kind == "wait" and skipped:
                continue
            elif isinstance(node.what, Activity) and node.what.launch in step_of:
                if edge.kind == "launch":
                    delay = GRAPH_LATENCY_NS
                elif edge.work and edge.work.launch and step_of.get(edge.work.launch) is step_of[node.what.launch]:
                    delay = GRAPH_GAP_NS
            arrivals.append(times[edge.source] + max(round((length[edge.work] if edge.work else 0) + delay), 0))
        times[node] = max(arrivals) if arrivals else node.time
    return step_walls(slow, times)


def step_launches(slow: Slow) -> dict[reference.Step, set[Span]]:
    """The calls inside each step that launches no graph."""
    found: dict[reference.Step, set[Span]] = {}
    for step in slow.steps:
        calls = {a.launch for a in step.inside if a.launch}
        if calls and not calls & slow.graphs:
            found[step] = calls
    return found


def step_walls(slow: Slow, times: dict[Node, int]) -> dict[tuple[int, int], int]:
    starts = {(s.rank, s.number): min(times[slow.start[a]] for a in s.inside) for s in slow.steps if s.inside}
    complete = [(s.rank, s.number) for s in slow.steps if s.is_complete]
    return {(rank, step): starts[rank, step + 1] - starts[rank, step] for rank, step in complete}
