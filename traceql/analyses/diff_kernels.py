"""Which kernels changed between two sides, and which took the place of which."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import polars as pl

from traceql.analyses.diff_tables import KERNEL_CHANGES, REPLACEMENTS, Totals, deltas

_ALIKE = 0.01
"""Calls a step that differ by less, as a share, are alike."""


def kernel_changes(before: Totals, after: Totals) -> pl.DataFrame:
    """Table `kernel_changes` of two sides, each with its `step_kernels`.

    The change is split at the middle of both sides, so that swapped sides negate each part: delta = (n' − n) · mean
    duration + (d' − d) · mean count.
    """
    sides = [
        Totals(
            side.frame.group_by("name", "short_name").agg(pl.sum("n_kernels"), total_ns=pl.sum("kernel_ns")),
            side.n_steps,
        )
        for side in (before, after)
    ]
    rows = deltas(sides[0], sides[1], ["name", "short_name"])
    known = pl.concat([after.frame, before.frame]).sort("kernel_ns", descending=True, maintain_order=True)
    categories = known.unique("name", keep="first", maintain_order=True).select("name", "category")
    rows = rows.join(categories, on="name", validate="m:1").with_columns(
        before_n_per_step=pl.col("before_n_kernels_per_step"),
        after_n_per_step=pl.col("after_n_kernels_per_step"),
        before_ns_per_call=pl.col("before_total_ns") / pl.when(pl.col("before_n_kernels") > 0).then("before_n_kernels"),
        after_ns_per_call=pl.col("after_total_ns") / pl.when(pl.col("after_n_kernels") > 0).then("after_n_kernels"),
    )
    rows = rows.with_columns(status=_status(), **_split())
    rows = rows.sort(pl.col("delta_ns").abs() * -1, "name")
    return KERNEL_CHANGES.check(rows.select(KERNEL_CHANGES.names))


def _status() -> pl.Expr:
    n, m = pl.col("before_n_per_step"), pl.col("after_n_per_step")
    return (
        pl.when(m == 0).then(pl.lit("gone"))
        .when(n == 0).then(pl.lit("new"))
        .when((m - n).abs() <= _ALIKE * pl.max_horizontal(n, m)).then(pl.lit("alike"))
        .when(m > n).then(pl.lit("more"))
        .otherwise(pl.lit("fewer"))
    )  # fmt: skip


def _split() -> dict[str, pl.Expr]:
    """delta_ns by count and by call; a kernel that one side lacks changed by its count alone."""
    n, m = pl.col("before_n_per_step"), pl.col("after_n_per_step")
    d = pl.coalesce("before_ns_per_call", "after_ns_per_call", pl.lit(0.0))
    e = pl.coalesce("after_ns_per_call", "before_ns_per_call", pl.lit(0.0))
    return {"by_count_ns": (m - n) * (d + e) / 2, "by_call_ns": (e - d) * (n + m) / 2}


@dataclass(frozen=True)
class Sequences:
    """One side's typical layers, and what their kernels take in its steps."""

    sequences: pl.DataFrame
    """Table `sequences` with `recording`; of several recordings the first counts."""
    kernels: pl.DataFrame
    """Table `step_kernels` with `recording`."""
    n_steps: int

    def layers(self) -> dict[str, list[dict[str, Any]]]:
        """The kernels of each role in order: name, short_name, n_per_step and ns_per_step.

        What a name takes in its role is shared evenly among the places in the layer at which it runs.
        """
        first = self.sequences.filter(pl.col("recording") == 0)
        sums = self.kernels.group_by("role", "name").agg(pl.sum("n_kernels"), pl.sum("kernel_ns"))
        shared = pl.len().over("role", "name") * self.n_steps
        rows = first.join(sums, on=["role", "name"], how="left", validate="m:1").with_columns(
            n_per_step=pl.col("n_kernels").fill_null(0) / shared, ns_per_step=pl.col("kernel_ns").fill_null(0) / shared
        )
        found = rows.sort("role", "position").partition_by("role", as_dict=True, maintain_order=True)
        return {str(role): frame.to_dicts() for (role,), frame in found.items()}


def replacements(before: Sequences, after: Sequences) -> pl.DataFrame:
    """Table `replacements`: layers of types with one label, aligned kernel by kernel.

    Kernels are known by their full names: another GEMM tile is another kernel, and the same kernel for another dtype
    too. One that is only elsewhere in the layer has not been replaced.
    """
    layers = before.layers(), after.layers()
    rows = [
        {"role": role, **row}
        for role, kernels in layers[0].items()
        if role in layers[1]
        for row in _replaced(kernels, layers[1][role])
    ]
    frame = pl.DataFrame(rows, schema=REPLACEMENTS.schema)
    return REPLACEMENTS.check(frame.sort(pl.col("delta_ns").abs() * -1, "role", "position"))


def aligned(before: Sequence[str], after: Sequence[str]) -> list[tuple[int | None, int | None]]:
    """Two sequences of names side by side: numbers of both, None where the other side has one more."""
    pairs: list[tuple[int | None, int | None]] = []
    for _, i, j, k, m in SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes():
        pairs += zip_longest(range(i, j), range(k, m))
    return pairs


def _replaced(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    names = [[kernel["name"] for kernel in side] for side in (before, after)]
    codes = SequenceMatcher(a=names[0], b=names[1], autojunk=False).get_opcodes()
    places = [(i, before[i:j], after[k:m]) for tag, i, j, k, m in codes if tag != "equal"]
    moved = Counter(kernel["name"] for _, gone, _ in places for kernel in gone)
    moved &= Counter(kernel["name"] for _, _, come in places for kernel in come)
    left = Counter(moved), Counter(moved)
    for position, *sides in places:
        gone, come = (_unmoved(kernels, of) for kernels, of in zip(sides, left, strict=True))
        if gone or come:
            yield {"position": position, **_summed("before", gone), **_summed("after", come),
                   "delta_ns": _sum(come, "ns_per_step") - _sum(gone, "ns_per_step")}  # fmt: skip


def _unmoved(kernels: list[dict[str, Any]], moved: Counter[str]) -> list[dict[str, Any]]:
    """The kernels that the other side does not have elsewhere; takes those that it has off the count."""
    rest: list[dict[str, Any]] = []
    for kernel in kernels:
        if moved[kernel["name"]] > 0:
            moved[kernel["name"]] -= 1
        else:
            rest.append(kernel)
    return rest


def _summed(side: str, kernels: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        side: " + ".join(kernel["short_name"] for kernel in kernels) or None,
        f"{side}_n_kernels": len(kernels),
        f"{side}_n_per_step": _sum(kernels, "n_per_step"),
        f"{side}_ns_per_step": _sum(kernels, "ns_per_step"),
    }


def _sum(kernels: list[dict[str, Any]], column: str) -> float:
    return float(sum(kernel[column] for kernel in kernels))
