"""The JSON document of `traceql idle` (`to_json`); times in ns, shares 0 to 1, null is unknown.

- `trace`: what the file says about itself; `selection`: first_step, end_step, stage.
- `headline`: the answer in a sentence, a line a stage where there are several; null without windows.
- `is_complete`: whether the figures count complete steps; without any they count the incomplete windows.
- `n_steps_counted`, `host_bound_frac` (the limit).
- `steps[]`: every selected step with a window, as table `step_pace`.
- `causes[]`: over the steps counted, as table `idle_causes`.
- `gaps[]`: the longest (`--top`, all with `--all`), as table `idle` with `next_kernel`, `launch` and `op` (names);
  `n_gaps` is the number of all.
- `launches[]`: of what was launched in the steps counted, as table `launch_stats`.
- `quirks[]`: oddities of the file.
"""

from typing import Any

import msgspec
import polars as pl

from traceql.analyses.pace import HOST_BOUND_FRAC, Pace
from traceql.report.idle_words import pace_lines
from traceql.report.plain import json_text, plain_rows, plain_selection

TABLES = {"cause": "causes", "step": "steps", "gap": "gaps", "launch": "launches"}
"""What `--by` names, and the field of `Pace` that has it."""


def table_of(pace: Pace, by: str, top: int | None = None) -> pl.DataFrame:
    """The table that `by` names, all rows or the first `top`."""
    frame: pl.DataFrame = getattr(pace, TABLES[by])
    return frame[:top]


def to_json(pace: Pace, top: int | None) -> bytes:
    """The document described above, indented; `top` shortens `gaps` only."""
    return json_text(idle_document(pace, top))


def idle_document(pace: Pace, top: int | None) -> dict[str, Any]:
    """The document as plain data."""
    return {
        "trace": msgspec.to_builtins(pace.trace),
        "selection": plain_selection(pace.selection),
        "headline": "\n".join(pace_lines(pace.steps, pace.comm)) or None,
        "is_complete": pace.is_complete,
        "n_steps_counted": pace.counted.height,
        "host_bound_frac": HOST_BOUND_FRAC,
        "steps": plain_rows(pace.steps),
        "causes": plain_rows(pace.causes),
        "n_gaps": pace.gaps.height,
        "gaps": plain_rows(table_of(pace, "gap", top)),
        "launches": plain_rows(pace.launches),
        "quirks": msgspec.to_builtins(pace.quirks),
    }
