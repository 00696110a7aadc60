"""The JSON document of `traceql ranks` (`to_json`). Null is unknown: with one rank, all that only several tell.

- `selection`: first_step, end_step, stage.
- `n_ranks`, `world_size`, `missing_ranks`; `headline`: the sentence about communication, or null.
- `ranks[]`: one per rank, as table `ranks`; `collectives[]`: one per kind, group and size, as table `collective_stats`
  (`--top` shortens them).
- `clocks[]`: as table `clocks`; `steps[]`: one per step window with communication exposed and overlapped, as table
  `comm_overlap`.
- `notes[]`: what limits the figures, in words; `quirks[]`: oddities of the files.
"""

from typing import Any

import msgspec
import polars as pl

from traceql.report.plain import json_text, plain_rows, plain_selection
from traceql.report.rank_report import RankReport
from traceql.report.ranks_words import comm_line, notes

TABLES = {"rank": "ranks", "collective": "collectives", "clock": "clocks", "step": "overlap", "kernel": "kernels"}
"""What `--by` names, and the report's table of it; `kernel` is data only."""


def table_of(report: RankReport, by: str, top: int | None = None) -> pl.DataFrame:
    """The table that `by` names, all rows or the first `top`."""
    frame: pl.DataFrame = getattr(report, TABLES[by])
    return frame[:top]


def to_json(report: RankReport, top: int | None = None) -> bytes:
    """The report as one JSON object, indented; `top` shortens `collectives` only."""
    return json_text(ranks_document(report, top))


def ranks_document(report: RankReport, top: int | None = None) -> dict[str, Any]:
    """The report as plain data, as described above."""
    return {
        "selection": plain_selection(report.selection),
        "n_ranks": report.ranks.height,
        "world_size": report.world_size,
        "missing_ranks": report.missing,
        "headline": comm_line(report),
        "ranks": plain_rows(report.ranks),
        "collectives": plain_rows(table_of(report, "collective", top)),
        "clocks": plain_rows(report.clocks),
        "steps": plain_rows(report.overlap),
        "notes": notes(report),
        "quirks": msgspec.to_builtins(report.quirks),
    }
