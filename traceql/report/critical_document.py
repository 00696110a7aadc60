"""The JSON document of `traceql critical-path` (`to_json`); times in ns, shares 0 to 1, null is unknown.

- `trace`: what the file says about itself; `selection`: first_step, end_step, stage.
- `headline`: the answer in a sentence.
- `n_steps_counted`; `limits[]`: limit, ns_per_step, share.
- `parts[]`: what is on the paths (`--top`, all with `--all`), as table `path_parts`; `n_parts` is the number of all.
- `steps[]`: as table `path_steps`.
- `notes[]`: what this rests on; `quirks[]`: oddities of the file.

Every stretch of every path (table `critical_path`) is data for csv and parquet, with `--by stretch`.
"""

from typing import Any

import msgspec
import polars as pl

from traceql.analyses.critical_path import CriticalPath
from traceql.report.critical_words import limit_rows, path_line
from traceql.report.plain import json_text, plain_rows, plain_selection

TABLES = {"part": "parts", "step": "steps", "stretch": "path"}
"""What `--by` names, and the field of `CriticalPath` that has it."""


def table_of(found: CriticalPath, by: str, top: int | None = None) -> pl.DataFrame:
    """The table that `by` names, all rows or the first `top`."""
    frame: pl.DataFrame = getattr(found, TABLES[by])
    return frame[:top]


def to_json(found: CriticalPath, top: int | None) -> bytes:
    """The document described above, indented; `top` shortens `parts` only."""
    return json_text(critical_document(found, top))


def critical_document(found: CriticalPath, top: int | None) -> dict[str, Any]:
    """The document as plain data."""
    return {
        "trace": msgspec.to_builtins(found.trace),
        "selection": plain_selection(found.selection),
        "headline": path_line(found),
        "n_steps_counted": found.steps.height,
        "limits": limit_rows(found),
        "n_parts": found.parts.height,
        "parts": plain_rows(table_of(found, "part", top)),
        "steps": plain_rows(found.steps),
        "notes": list(found.notes),
        "quirks": msgspec.to_builtins(found.quirks),
    }
