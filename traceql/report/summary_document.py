"""The JSON document of `traceql summarize`, as docs/json.md describes it. Integers stay exact."""

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

from traceql.analyses.rank_stats import RunSummary
from traceql.analyses.summary import Summary
from traceql.report.plain import json_text, plain_rows, plain_selection

TABLES = {
    "group": "groups", "category": "categories", "kernel": "kernels", "op": "ops", "step": "steps", "stage": "stages",
}  # fmt: skip
"""What `--by` names, and the summary's table of it."""

_KERNEL_TIMES = ("n_kernels", "kernel_ns", "ns_per_step", "share")
_EXCLUSIVE_TIMES = ("exclusive_ns", "kernel_ns", "n_kernels", "ns_per_step", "share")


def table_of(summary: Summary, by: str, top: int | None = None) -> pl.DataFrame:
    """The table that `by` names, all rows or the first `top`."""
    frame: pl.DataFrame = getattr(summary, TABLES[by])
    return frame[:top]


def to_json(summary: Summary, top: int | None = None, remarks: Sequence[str] = (), **frames: pl.DataFrame) -> bytes:
    """The summary, remarks on it and other tables as one JSON object; `top` shortens `kernels` and `ops` only."""
    more = {name: plain_rows(frame) for name, frame in frames.items()}
    document = summary_document(summary, top) | {"remarks": list(remarks)} | more
    return json_text(document)


def summary_document(summary: Summary, top: int | None = None) -> dict[str, Any]:
    """The summary as plain data, in the form that docs/json.md describes. None is unknown."""
    return {
        "trace": msgspec.to_builtins(summary.trace),
        "selection": plain_selection(summary.selection),
        "scope": summary.scope,
        "n_windows": summary.n_windows,
        "wall_ns": _if_timed(summary, summary.wall_ns),
        "busy_ns": _if_timed(summary, summary.busy_ns),
        "idle": {
            "idle_ns": _if_timed(summary, summary.idle_ns),
            "ns_per_step": summary.idle_ns / summary.n_windows if summary.n_windows else None,
            "share": summary.idle_ns / summary.wall_ns if summary.wall_ns else None,
        },
        "outside": {
            "kernel_ns": summary.outside_kernel_ns,
            "n_kernels": summary.outside_n_kernels,
            "wall_ns": summary.outside_wall_ns,
        },
        "ranks": plain_rows(summary.ranks) if isinstance(summary, RunSummary) else [],
        "steps": plain_rows(summary.steps),
        "step_stats": plain_rows(summary.step_stats),
        "outliers": plain_rows(summary.outliers.select("rank", "device", "step")),
        "stages": plain_rows(summary.stages),
        "groups": plain_rows(summary.groups.select("group", *_EXCLUSIVE_TIMES)),
        "categories": plain_rows(summary.categories.select("category", "group", *_EXCLUSIVE_TIMES)),
        "kernels": plain_rows(
            table_of(summary, "kernel", top).select("name", "short_name", "category", *_KERNEL_TIMES)
        ),
        "ops": plain_rows(table_of(summary, "op", top).select("op", *_KERNEL_TIMES)),
        "n_kernels_total": summary.n_kernels_total,
        "n_kernels_without_launch": summary.n_kernels_without_launch,
        "n_kernels_without_op": summary.n_kernels_without_op,
        "quirks": msgspec.to_builtins(summary.quirks),
    }


def _if_timed(summary: Summary, ns: int) -> int | None:
    return ns if summary.n_windows else None
