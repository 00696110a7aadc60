"""The JSON document of `traceql casts` (`to_json`); times in ns, shares 0 to 1, null is unknown.

- `trace`: what the file says about itself; `selection`: first_step, end_step, stage.
- `headline`: the answer in a sentence, a line a stage where there are several; null without GPU activity.
- `scope`: `steps` (the complete ones are counted) or `trace` (there is none: one window a device); `n_steps_counted`.
- `device`: what the GPU can do at most, as table `device_peaks`; null where devices differ; `devices[]`: each.
- `groups[]`: casts and copies of the steps counted, as table `cast_groups`.
- `casts[]`: the longest casts and copies of the steps selected (`--top`, all with `--all`), as table `casts`;
  `n_casts` is the number of all.
- `custom[]`: (de)quantise and fused cast kernels, as table `cast_groups`.
- `quirks[]`: oddities of the file.
"""

from typing import Any

import msgspec
import polars as pl

from traceql.analyses.casts import CastReport
from traceql.report.casts_words import casts_lines
from traceql.report.plain import json_text, plain_rows, plain_selection

TABLES = ("group", "cast", "custom")
"""What `--by` names."""


def table_of(report: CastReport, by: str, top: int | None = None) -> pl.DataFrame:
    """The table that `by` names, all rows or the first `top`; casts the longest first."""
    if by == "cast":
        frame = report.casts.filter(pl.col("kind") != "custom")
        frame = frame.sort("dur_ns", "kernel_id", descending=[True, False], nulls_last=True)
    else:
        frame = report.groups.filter((pl.col("kind") == "custom") == (by == "custom"))
    return frame[:top]


def to_json(report: CastReport, top: int | None) -> bytes:
    """The document described above, indented; `top` shortens `casts` only."""
    return json_text(casts_document(report, top))


def casts_document(report: CastReport, top: int | None) -> dict[str, Any]:
    """The document as plain data."""
    devices = plain_rows(report.devices)
    kinds = [{name: row[name] for name in ("name", "spec", "peak_bytes_per_s", "source")} for row in devices]
    return {
        "trace": msgspec.to_builtins(report.trace),
        "selection": plain_selection(report.selection),
        "headline": "\n".join(casts_lines(report)) or None,
        "scope": report.scope,
        "n_steps_counted": report.windows.height if report.scope == "steps" else 0,
        "device": kinds[0] if kinds and all(kind == kinds[0] for kind in kinds) else None,
        "devices": devices,
        "groups": plain_rows(table_of(report, "group")),
        "n_casts": table_of(report, "cast").height,
        "casts": plain_rows(table_of(report, "cast", top)),
        "custom": plain_rows(table_of(report, "custom")),
        "quirks": msgspec.to_builtins(report.quirks),
    }
