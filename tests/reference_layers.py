"""The slow count of the time of layers: loops over rows, nothing of traceql.

It takes the steps and what each activity belongs to as given, and counts what lies between the borders.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Row = dict[str, Any]
Place = tuple[Any, ...]
"""(section, model_pass, layer)"""
Key = tuple[Any, ...]
"""(rank, device, step, section, model_pass, layer)"""


@dataclass
class Section:
    """A layer or section of one step, as a row of the product's tables."""

    start: int | None = None
    wall: int | None = None
    busy: int | None = None
    kernel_ns: int = 0
    n_kernels: int = 0
    exclusive: dict[str, int] = field(default_factory=dict)
    """By category, of what runs in it."""
    launched: dict[str, list[int]] = field(default_factory=dict)
    """Kernel time and count by category, of what belongs to it."""


def sections(activities: list[Row], steps: list[Row]) -> dict[Key, Section]:
    """Every layer and section of every step.

    Args:
        activities: kernel_id, rank, device, stream, start_ns, dur_ns, correlation, category, step, section,
            model_pass, layer and is_main.
        steps: the steps with their windows.
    """
    found: dict[Key, Section] = defaultdict(Section)
    for row in activities:
        if row["step"] is not None:
            section = found[(row["rank"], row["device"], row["step"], *place(row))]
            section.kernel_ns += row["dur_ns"] or 0
            section.n_kernels += 1
            totals = section.launched.setdefault(row["category"], [0, 0])
            totals[0] += row["dur_ns"] or 0
            totals[1] += 1
    for step in steps:
        if step["wall_ns"] is None:
            continue
        here = [row for row in activities if (row["rank"], row["device"]) == (step["rank"], step["device"])]
        here = [row for row in here if row["start_ns"] is not None]
        for stretch, start, end in stretches(step, here):
            section = found[(step["rank"], step["device"], step["step"], *stretch)]
            section.start = start if section.start is None else section.start
            section.wall = (section.wall or 0) + end - start
            spent = shared_out(here, start, end)
            section.busy = (section.busy or 0) + sum(spent.values())
            for category, ns in spent.items():
                section.exclusive[category] = section.exclusive.get(category, 0) + ns
    return dict(found)


def place(row: Row) -> Place:
    return (row["section"], row["model_pass"], row["layer"])


def stretches(step: Row, here: list[Row]) -> list[tuple[Place, int, int]]:
    """(place, start, end): the window of a step, cut where the main line goes from one place to another."""
    begin, end = step["start_ns"], step["start_ns"] + step["wall_ns"]
    line = [row for row in here if row["is_main"] and row["step"] == step["step"] and row["start_ns"] < end]
    if not line:
        return [((None, None, None), begin, end)]
    line.sort(key=lambda row: (row["start_ns"], row["kernel_id"]))
    cuts: list[tuple[Place, int]] = [(place(line[0]), begin)]
    cuts += [(place(b), b["start_ns"]) for a, b in pairwise(line) if place(a) != place(b)]
    line_end = max(row["start_ns"] + row["dur_ns"] for row in line)
    if line_end < end:
        cuts.append((("between", None, None), line_end))
    ends = [start for _, start in cuts[1:]] + [end]
    return [(where, start, stop) for (where, start), stop in zip(cuts, ends, strict=True)]


def shared_out(here: list[Row], start: int, end: int) -> dict[str, int]:
    """Time from start to end in which something runs, by category: each stretch of it shared by what runs in it."""
    running = [
        row for row in here if row["dur_ns"] and row["start_ns"] < end and row["start_ns"] + row["dur_ns"] > start
    ]
    running.sort(key=lambda row: (row["start_ns"], row["stream"], row["correlation"] or 0))
    edges = {start, end}
    for row in running:
        edges |= {max(start, row["start_ns"]), min(end, row["start_ns"] + row["dur_ns"])}
    times = sorted(edges)
    spent: dict[str, int] = defaultdict(int)
    for a, b in pairwise(times):
        at_once = [row for row in running if row["start_ns"] <= a and row["start_ns"] + row["dur_ns"] >= b]
        for i, row in enumerate(at_once):
            each, left_over = divmod(b - a, len(at_once))
            spent[row["category"]] += each + (i < left_over)
    return dict(spent)
