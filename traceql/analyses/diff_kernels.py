"""Which kernels changed between two sides, and which took the place of which."""

from collections.abc import Iterator
from difflib import SequenceMatcher

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


def replacements(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """Table `replacements` of two sides' `sequences`: layers of types with one label, aligned kernel by kernel.

    Of several recordings the first counts. A kernel is known by its name without template arguments where that is
    unique to it, so that another GEMM tile is another kernel, and the same kernel for another dtype too.
    """
    rows: list[tuple[object, ...]] = []
    for (role,), of_role in before.filter(pl.col("recording") == 0).group_by("role", maintain_order=True):
        other = after.filter((pl.col("recording") == 0) & (pl.col("role") == role))
        if other.height:
            rows += [(role, *row) for row in _replaced(of_role, other)]
    frame = pl.DataFrame(rows, schema=REPLACEMENTS.schema, orient="row")
    change_ns = (pl.col("after_ns") - pl.col("before_ns")).abs()
    return REPLACEMENTS.check(frame.sort(change_ns * -1, "role", "position"))


def _replaced(before: pl.DataFrame, after: pl.DataFrame) -> Iterator[tuple[object, ...]]:
    names = before["name"].to_list(), after["name"].to_list()
    for tag, i, j, k, m in SequenceMatcher(a=names[0], b=names[1], autojunk=False).get_opcodes():
        if tag != "equal":
            gone, come = before.slice(i, j - i), after.slice(k, m - k)
            yield (
                i, _joined(gone), _joined(come), int(gone["dur_ns"].sum()), int(come["dur_ns"].sum()),
                gone.height, come.height,
            )  # fmt: skip


def _joined(kernels: pl.DataFrame) -> str | None:
    return " + ".join(kernels["short_name"].to_list()) or None
