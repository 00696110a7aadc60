"""The slow count of a comparison: loops over the files' events, nothing of traceql. Exact, in fractions."""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import reference


@dataclass
class Side:
    """Sums over the complete steps of some files, by name of kernel."""

    walls: list[int]
    busy_ns: int
    exclusive_ns: Counter[tuple[str, str]]
    """By name and kind."""
    kernel_ns: Counter[tuple[str, str]]
    n_kernels: Counter[tuple[str, str]]

    def mean(self, total_ns: int) -> Fraction:
        return Fraction(total_ns, len(self.walls))


def side(*paths: Path) -> Side:
    """The complete steps of the files of a run."""
    steps = [
        step
        for path in paths
        for step in reference.steps(reference.load(path))
        if step.is_complete and step.is_separable
    ]
    found = Side([step.wall for step in steps], sum(step.busy for step in steps), Counter(), Counter(), Counter())
    for step in steps:
        for activity, ns in step.exclusive.items():
            found.exclusive_ns[activity.name, activity.kind] += ns
        for activity in step.launched:
            found.kernel_ns[activity.name, activity.kind] += activity.dur
            found.n_kernels[activity.name, activity.kind] += 1
    return found


def mean_change(before: Side, after: Side) -> Fraction:
    """Change of the mean step."""
    return after.mean(sum(after.walls)) - before.mean(sum(before.walls))


def idle_change(before: Side, after: Side) -> Fraction:
    """Change of the idle time of the mean step."""
    return after.mean(sum(after.walls) - after.busy_ns) - before.mean(sum(before.walls) - before.busy_ns)


def changes(before: Side, after: Side, what: str) -> dict[tuple[str, str], Fraction]:
    """Change a step of `exclusive_ns`, `kernel_ns` or `n_kernels`, by name and kind."""
    a: Counter[tuple[str, str]] = getattr(before, what)
    b: Counter[tuple[str, str]] = getattr(after, what)
    return {key: after.mean(b[key]) - before.mean(a[key]) for key in a.keys() | b.keys()}
