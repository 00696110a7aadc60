"""The JSON document of `traceql whatif` (`to_json`); times in ns, shares 0 to 1, null is unknown.

- `trace`: what the file says about itself; `selection`: first_step, end_step, stage.
- `headline`: the answer in a sentence.
- `changes`: `scalings[]` (kernels: the SQL; factor, or length_ns of what replaces each; n_kernels), graph, host_factor.
- `recorded_wall_ns`, `replayed_wall_ns` (nothing changed), `predicted_wall_ns`, `saved_ns`: of the median decode step,
  of any step where none is one; `least_wall_ns`: predicted if no collective waited for a rank that is not given;
  `kernel_saved_ns`: GPU time a step that the scalings take away.
- `batch_size`, `recorded_tokens_per_s`, `predicted_tokens_per_s`.
- `recorded_limit`, `limit` (with the changes): host, gpu, communication, dependency or unknown; `limits[]`: their parts
  of the critical paths, as table `whatif_limits`.
- `bottlenecks[]`: what is on the critical paths then (`--top`), as table `path_parts`.
- `n_steps_counted`; `steps[]`: as table `whatif_steps`.
- `notes[]`: what the prediction rests on; `quirks[]`: oddities of the file.
"""

from typing import Any

import msgspec
import polars as pl

from traceql.analyses.whatif import WhatIf
from traceql.report.plain import json_text, plain_rows, plain_selection
from traceql.report.whatif_words import whatif_line

TABLES = {"limit": "limits", "bottleneck": "bottlenecks", "step": "steps"}
"""What `--by` names, and the field of `WhatIf` that has it."""


def table_of(found: WhatIf, by: str, top: int | None = None) -> pl.DataFrame:
    """The table that `by` names, all rows or the first `top`."""
    frame: pl.DataFrame = getattr(found, TABLES[by])
    return frame[:top]


def to_json(found: WhatIf, top: int | None) -> bytes:
    """The document described above, indented; `top` shortens `bottlenecks` only."""
    return json_text(whatif_document(found, top))


def whatif_document(found: WhatIf, top: int | None) -> dict[str, Any]:
    """The document as plain data."""
    return {
        "trace": msgspec.to_builtins(found.trace),
        "selection": plain_selection(found.selection),
        "headline": whatif_line(found),
        "changes": {
            "scalings": [
                {
                    "kernels": scaling.text,
                    "factor": scaling.factor,
                    "length_ns": scaling.length_ns,
                    "n_kernels": len(scaling.kernels),
                }
                for scaling in found.changes.scalings
            ],
            "graph": found.changes.graph,
            "host_factor": found.changes.host_factor,
        },
        "recorded_wall_ns": found.recorded_wall_ns,
        "replayed_wall_ns": found.replayed_wall_ns,
        "predicted_wall_ns": found.predicted_wall_ns,
        "least_wall_ns": found.least_wall_ns,
        "saved_ns": found.saved_ns,
        "kernel_saved_ns": found.kernel_saved_ns,
        "batch_size": found.batch_size,
        "recorded_tokens_per_s": found.recorded_tokens_per_s,
        "predicted_tokens_per_s": found.predicted_tokens_per_s,
        "recorded_limit": found.recorded_limit,
        "limit": found.limit,
        "limits": plain_rows(found.limits),
        "bottlenecks": plain_rows(table_of(found, "bottleneck", top)),
        "n_steps_counted": found.steps.height,
        "steps": plain_rows(found.steps),
        "notes": list(found.notes),
        "quirks": msgspec.to_builtins(found.quirks),
    }
