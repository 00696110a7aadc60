"""The JSON document of `traceql diff` (`to_json`); times in ns, shares 0 to 1, null is unknown.

- `headline`: the answer in a sentence. `verdict`: faster, slower, same or cannot tell; `reason`: why it cannot be told.
- `options`: stage and batch_size compared, first_step, end_step and min_effect as asked for.
- `before`, `after`: n_recordings, n_steps (windows of all ranks), median_wall_ns, mean_wall_ns, p10_wall_ns,
  p90_wall_ns, busy_ns and kernel_ns (of the mean step), host_idle_frac, is_host_bound, graph_frac, and `facts[]`: what
  each recording says about itself.
- `delta_ns`: change of the median step; `mean_delta_ns`: of the mean step, to which the waterfall adds up.
- `interval_ns`: low and high of the change of the median step (95 %), or null; `relative`: difference, low and high as
  shares of the step before, or null.
- `waterfall[]`, `layer_types[]`, `kernels[]`, `replacements[]`, `collectives[]`, `steps[]`, `differences[]`: tables
  waterfall, role_changes, kernel_changes, replacements, collective_changes, compared_steps, differences.
- `notes[]`: kind, text, figures. `gates[]`: name, limit_ns, before_ns, after_ns, low_ns, high_ns, status.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

from traceql.analyses.change import LEVEL, Interval
from traceql.analyses.diff import Diff, Side
from traceql.analyses.diff_gates import Judgement
from traceql.analyses.diff_notes import notes
from traceql.report.diff_words import verdict_line
from traceql.report.plain import json_text, plain_row, plain_rows

Row = dict[str, Any]

TABLES = {
    "category": "waterfall", "kernel": "kernels", "layer": "roles", "replacement": "replacements",
    "collective": "collectives", "step": "steps",
}  # fmt: skip
"""What `--by` names, and the field of `Diff` that has it."""


def table_of(diff: Diff, by: str, top: int | None = None) -> pl.DataFrame:
    """The table that `by` names, all rows or the first `top`."""
    frame: pl.DataFrame = getattr(diff, TABLES[by])
    return frame[:top]


def to_json(diff: Diff, top: int | None = None, gates: Sequence[Judgement] = ()) -> bytes:
    """The document described above, indented; `top` shortens `kernels` and `replacements` only."""
    document = diff_document(diff, top, gates)
    return json_text(document)


def diff_document(diff: Diff, top: int | None = None, gates: Sequence[Judgement] = ()) -> Row:
    """The document as plain data."""
    relative = diff.relative
    return {
        "headline": verdict_line(diff),
        "verdict": diff.verdict,
        "reason": diff.reason,
        "options": {
            "stage": diff.stage,
            "batch_size": diff.batch_size,
            "first_step": diff.options.first_step,
            "end_step": diff.options.end_step,
            "min_effect": diff.options.min_effect,
        },
        "before": side_document(diff.before),
        "after": side_document(diff.after),
        "delta_ns": diff.delta_ns,
        "mean_delta_ns": diff.after.mean_wall_ns - diff.before.mean_wall_ns,
        "level": LEVEL,
        "interval_ns": _ends(diff.interval),
        "relative": {"difference": relative.difference, **(_ends(relative) or {})} if relative else None,
        "waterfall": plain_rows(diff.waterfall),
        "layer_types": plain_rows(diff.roles),
        "kernels": plain_rows(table_of(diff, "kernel", top)),
        "replacements": plain_rows(table_of(diff, "replacement", top)),
        "collectives": plain_rows(diff.collectives),
        "steps": plain_rows(diff.steps),
        "differences": plain_rows(diff.differences),
        "is_comparable": diff.is_comparable,
        "notes": [{"kind": note.kind, "text": note.text, "figures": plain_row(note.figures)} for note in notes(diff)],
        "gates": [gate_document(gate) for gate in gates],
    }


def side_document(side: Side) -> Row:
    """What is known of a side."""
    return {
        "n_recordings": len(side.walls),
        "n_steps": side.n_steps,
        "median_wall_ns": side.median_wall_ns,
        "mean_wall_ns": side.mean_wall_ns,
        "p10_wall_ns": side.wall_quantile_ns(0.1),
        "p90_wall_ns": side.wall_quantile_ns(0.9),
        "busy_ns": side.total("steps", "busy_ns") / side.n_steps,
        "kernel_ns": side.total("steps", "kernel_ns") / side.n_steps,
        "host_idle_frac": side.host_idle_frac,
        "is_host_bound": side.is_host_bound,
        "graph_frac": side.graph_frac,
        "facts": [msgspec.to_builtins(recording.facts) for recording in side.recordings],
    }


def gate_document(gate: Judgement) -> Row:
    """What a gate says, as plain data."""
    ends = gate.interval
    return {
        "name": gate.gate.name,
        "limit_ns": gate.limit_ns,
        "before_ns": gate.before_ns,
        "after_ns": gate.after_ns,
        "low_ns": ends.low if ends else None,
        "high_ns": ends.high if ends else None,
        "status": gate.status,
    }


def _ends(interval: Interval | None) -> Row | None:
    return {"low": interval.low, "high": interval.high} if interval else None
