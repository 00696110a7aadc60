"""Changes by row and column, as shades: kernel time by category and layer type."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from traceql import fmt
from traceql.analyses.diff import Diff
from traceql.analyses.diff_sides import Side
from traceql.report.diff_words import signed_ms
from traceql.report.figures.axis import of_all, shown_name

MAX_ROLES = 12
MAX_CATEGORIES = 20
LEVELS = 5

Row = dict[str, Any]


@dataclass(frozen=True)
class DeltaCell:
    """A change: its text, how strong its shade is (below 0: less), and both figures that it comes from."""

    text: str
    level: int
    about: str

    @property
    def tone(self) -> str:
        """The class of its shade."""
        return "" if not self.level else f"{'less' if self.level < 0 else 'more'}{abs(self.level)}"


@dataclass(frozen=True)
class DeltaRow:
    """Changes of a category, or of all."""

    label: str
    color: str
    cells: tuple[DeltaCell, ...]
    is_total: bool = False


@dataclass(frozen=True)
class DeltaMap:
    """Changes by row and column, as shades. The scale is that of square roots, so that small changes are seen."""

    kind: ClassVar[str] = "deltas"
    title: str
    columns: tuple[str, ...]
    rows: tuple[DeltaRow, ...]
    levels: ClassVar[tuple[int, ...]] = tuple(range(1, LEVELS + 1))


def layer_deltas(diff: Diff, colors: Mapping[str, str]) -> DeltaMap | None:
    """Change of kernel time by category and layer type or section, and of their wall; None without layers on a side."""
    roles = diff.roles
    if not (roles["before_n_layers_per_step"].sum() and roles["after_n_layers_per_step"].sum()):
        return None
    is_section = (pl.col("before_n_layers_per_step") == 0) & (pl.col("after_n_layers_per_step") == 0)
    columns = roles.sort(is_section, maintain_order=True).head(MAX_ROLES).rows(named=True)
    times = [_by_role(side) for side in (diff.before, diff.after)]
    names = _most_changed({name for side in times for _, name in side}, [row["role"] for row in columns], times)
    made = [
        (shown_name(name), colors.get(name, ""), [_pair(times, row["role"], name) for row in columns]) for name in names
    ]
    kernel = [(row["before_kernel_ns_per_step"], row["after_kernel_ns_per_step"]) for row in columns]
    walls = [(row["before_ns_per_step"], row["after_ns_per_step"]) for row in columns]
    most_ns = max((abs(b - a) for _, _, pairs in made for a, b in pairs), default=0.0)
    most_total_ns = max(abs(b - a) for pairs in (kernel, walls) for a, b in pairs)
    rows = [DeltaRow(label, color, _cells(pairs, most_ns)) for label, color, pairs in made]
    totals = (("all kernels", kernel), ("wall, with idle", walls))
    rows += [DeltaRow(label, "", _cells(pairs, most_total_ns), is_total=True) for label, pairs in totals]
    title = f"Change in ms a step: kernel time by category and layer type (mean step){of_all(MAX_ROLES, roles.height)}"
    return DeltaMap(title, tuple(map(_role_title, columns)), tuple(rows))


_Times = dict[tuple[str, str], float]
"""Kernel time of a mean step by role and category."""


def _pair(times: Sequence[_Times], role: str, category: str) -> tuple[float, float]:
    before, after = (side.get((role, category), 0.0) for side in times)
    return before, after


def _by_role(side: Side) -> _Times:
    sums = side.frame("kernels").group_by("role", "category").agg(pl.sum("kernel_ns"))
    return {(role, name): ns / side.n_steps for role, name, ns in sums.iter_rows()}


def _most_changed(names: set[str], roles: list[str], times: Sequence[_Times]) -> list[str]:
    """The categories that changed anywhere by what can be shown, the most changed first."""
    before, after = times
    changes = {
        name: max(abs(after.get((role, name), 0.0) - before.get((role, name), 0.0)) for role in roles) for name in names
    }
    return sorted((n for n in names if changes[n] >= 0.5e3), key=lambda n: (-changes[n], n))[:MAX_CATEGORIES]


def _cells(pairs: Sequence[tuple[float, float]], most_ns: float) -> tuple[DeltaCell, ...]:
    return tuple(
        DeltaCell(signed_ms(b - a) if a or b else "", delta_level(b - a, most_ns), f"{fmt.ms(a)} → {fmt.ms(b)} ms")
        for a, b in pairs
    )


def delta_level(delta: float, most: float) -> int:
    """How strong the shade of a change is: −`LEVELS` to `LEVELS`, 0 for what is nothing beside the largest."""
    if most <= 0 or abs(delta) / most < 1e-3:
        return 0
    return int(math.copysign(min(math.ceil(LEVELS * math.sqrt(abs(delta) / most) - 1e-9), LEVELS), delta))


def _role_title(row: Row) -> str:
    a, b = (fmt.count(row[f"{side}_n_layers_per_step"]) for side in ("before", "after"))
    if a == b == "0":
        return shown_name(row["role"])
    return f"{shown_name(row['role'])}\u00a0×\u00a0{a if a == b else f'{a} → {b}'}"
