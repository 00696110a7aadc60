"""The JSON document of `traceql layers` (`to_json`); times in ns, shares 0 to 1, null is unknown.

- `trace`: what the file says about itself; `selection`: first_step, end_step, stage.
- `headline`: the answer in a sentence.
- `n_steps`: steps selected; `n_steps_counted`: those that figures count (each rank's count): the complete ones that
  have layers; `is_complete`: whether they are complete ones; `wall_ns`: their wall, added up.
- `layers[]`: every selected step's layers: rank, device, step, model_pass, layer, layer_type, start_ns, wall_ns,
  busy_ns, kernel_ns, n_kernels, method, confidence, as table `layers`.
- `layer_types[]`: over the steps counted, as table `layer_type_stats`; `layer_stats[]`: as the table of that name.
- `sections[]`: as table `layer_sections`: their `wall_ns` adds up to the `wall_ns` above.
- `categories[]`: layer × category, as table `layer_categories`.
- `odd[]`: layers far from their type, as table `odd_layers`.
- `unattributed`: kernel_ns, share, n_kernels, notes[].
- `kernels[]`: with `--layer` its kernels in one step, as table `layer_kernels`; else empty.
- `quirks[]`: oddities of the file.
"""

from typing import Any

import msgspec
import polars as pl

from traceql.analyses.layer_stats import LayerStats
from traceql.report.layers_words import headline_text
from traceql.report.plain import json_text, plain_rows, plain_selection

TABLES = {"type": "types", "layer": "of_layers", "category": "categories"}
"""What `--by` names besides `kernel`, and the field of `LayerStats` that has it."""


def table_of(stats: LayerStats, by: str | None, kernels: pl.DataFrame | None = None) -> pl.DataFrame:
    """The table that `by` names; by default that of the kernels, where there is one, else that of the types."""
    if kernels is not None and by in (None, "kernel"):
        return kernels
    return getattr(stats, TABLES[by or "type"])


def to_json(stats: LayerStats, kernels: pl.DataFrame | None = None) -> bytes:
    """The document described above, indented."""
    return json_text(layers_document(stats, kernels))


def layers_document(stats: LayerStats, kernels: pl.DataFrame | None = None) -> dict[str, Any]:
    """The document as plain data."""
    return {
        "trace": msgspec.to_builtins(stats.trace),
        "selection": plain_selection(stats.selection),
        "headline": headline_text(stats),
        "n_steps": stats.chosen.height,
        "n_steps_counted": stats.counted.height,
        "is_complete": stats.is_complete,
        "wall_ns": stats.wall_ns,
        "layer_types": plain_rows(stats.types),
        "sections": plain_rows(stats.sections),
        "odd": plain_rows(stats.odd),
        "unattributed": {
            "kernel_ns": stats.unattributed.kernel_ns,
            "share": stats.unattributed.share,
            "n_kernels": stats.unattributed.n_kernels,
            "notes": list(stats.unattributed.notes),
        },
        "layer_stats": plain_rows(stats.of_layers),
        "layers": plain_rows(stats.layers),
        "categories": plain_rows(stats.categories),
        "kernels": [] if kernels is None else plain_rows(kernels),
        "quirks": msgspec.to_builtins(stats.quirks),
    }
