"""The page and the data of `traceql whatif`: one function a section, in the order of the page.

The JSON document (`to_json`); times in ns, shares 0 to 1, null is unknown:

- `trace`: what the file says about itself; `selection`: first_step, end_step, stage.
- `headline`: the answer in a sentence.
- `changes`: `scalings[]` (kernels: the SQL; factor, or length_ns of what replaces each; n_kernels), graph, host_factor.
- `recorded_wall_ns`, `replayed_wall_ns` (nothing changed), `predicted_wall_ns`, `saved_ns`: of the median decode step,
  of any step where none is one; `kernel_saved_ns`: GPU time a step that the scalings take away.
- `batch_size`, `recorded_tokens_per_s`, `predicted_tokens_per_s`.
- `recorded_limit`, `limit` (with the changes): host, gpu, communication, dependency or unknown; `limits[]`: their parts
  of the critical paths, as table `whatif_limits`.
- `bottlenecks[]`: what is on the critical paths then (`--top`), as table `path_parts`.
- `n_steps_counted`; `steps[]`: as table `whatif_steps`.
- `notes[]`: what the prediction rests on; `quirks[]`: oddities of the file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
import polars as pl

from traceql import fmt
from traceql.analyses.replay_costs import Scaling
from traceql.analyses.whatif import NO_GAIN_FRAC, WhatIf
from traceql.report import words
from traceql.report.critical_page import parts_table, share
from traceql.report.page import Column, Section, TextTable
from traceql.report.plain import plain_rows
from traceql.rules.savings import LIMIT_WORDS

TABLES = {"limit": "limits", "bottleneck": "bottlenecks", "step": "steps"}
"""What `--by` names, and the field of `WhatIf` that has it."""


@dataclass(frozen=True)
class View:
    """How much is shown: one table (`by`) or all, the first `top` rows of bottlenecks, names cut or whole."""

    by: str | None = None
    top: int | None = 15
    full_names: bool = False


# --- the headline ---


def whatif_line(found: WhatIf) -> str:
    """`84.025 → 18.723 ms a step: 78 % shorter, 4.5×; then the GPU sets the pace`."""
    before, after = found.recorded_wall_ns, found.predicted_wall_ns
    times = f"{fmt.duration(before)} → {fmt.duration(after)} a step"
    limit = LIMIT_WORDS[found.limit]
    least_ns = NO_GAIN_FRAC * before
    if abs(found.saved_ns) < least_ns:
        saved = found.kernel_saved_ns
        about = f", though its kernels get {fmt.duration(saved)} shorter" if saved >= least_ns else ""
        return f"{times}: no gain, {limit}{about}"
    if not found.is_gain:
        return f"{times}: {share(-found.saved_ns / before)} longer; then {limit}"
    factor = f", {before / after:,.1f}×" if after > 0 else ""
    return f"{times}: {share(found.saved_ns / before)} shorter{factor}; then {limit}"


# --- the page ---

SectionMaker = Callable[[WhatIf, View], Section | None]


def whatif_page(found: WhatIf, view: View) -> list[Section]:
    """The sections of the page: all, or the headline, the losses and the table that `view.by` names."""
    makers = OVERVIEW if view.by is None else (headline, losses, SECTIONS[view.by])
    sections = (maker(found, view) for maker in makers)
    return [section for section in sections if section is not None]


def headline(found: WhatIf, view: View) -> Section:  # noqa: ARG001 - all sections are called alike
    """What the median step takes then, and the tokens a second where the batch is known."""
    lines = [whatif_line(found)]
    if found.batch_size is not None:
        rates = [f"{rate:,.1f}" for rate in (found.recorded_tokens_per_s, found.predicted_tokens_per_s) if rate]
        lines.append(
            f"{' → '.join(rates)} tokens/s at batch {fmt.count(found.batch_size)}, one token a request and step"
        )
    return Section(lines=tuple(lines))


def losses(found: WhatIf, view: View) -> Section | None:  # noqa: ARG001
    """What of the file could not be read: the figures miss it."""
    lost = [quirk for quirk in found.quirks if quirk.effect == "lost"]
    if not lost:
        return None
    return Section("Incomplete: parts of this trace are lost", lines=words.quirk_lines(lost), is_warning=True)


def changes(found: WhatIf, view: View) -> Section | None:  # noqa: ARG001
    """What was changed."""
    lines = [_scaling_line(scaling) for scaling in found.changes.scalings]
    if found.changes.graph:
        lines.append("each step launched as one CUDA graph")
    if found.changes.host_factor != 1:
        lines.append(f"the host's own work × {found.changes.host_factor:g}")
    return Section("Changes", tuple(lines) or ("None: the recording replayed.",))


def _scaling_line(scaling: Scaling) -> str:
    number = fmt.plural(len(scaling.kernels), "activity", "activities")
    what = f"× {scaling.factor:g}" if scaling.factor is not None else f"{fmt.duration(scaling.length_ns)} each"
    return f"{fmt.visible(scaling.text)}: {number}, {what}"


def walls(found: WhatIf, view: View) -> Section:  # noqa: ARG001
    """The median step as recorded, replayed and predicted."""
    columns = (Column(""), Column("ms/step", "right"), Column("tokens/s", "right"), Column("limited by"))
    rows = (
        ("recorded", fmt.ms(found.recorded_wall_ns), _rate(found.recorded_tokens_per_s), found.recorded_limit),
        ("replayed, nothing changed", fmt.ms(found.replayed_wall_ns), "", ""),
        ("predicted", fmt.ms(found.predicted_wall_ns), _rate(found.predicted_tokens_per_s), found.limit),
    )
    notes = (f"Medians over {fmt.plural(found.steps.height, 'complete step')}, of all ranks.",)
    return Section("The step", table=TextTable(columns, rows), notes=notes)


def _rate(tokens_per_s: float | None) -> str:
    return fmt.UNKNOWN if tokens_per_s is None else f"{tokens_per_s:,.1f}"


def limits(found: WhatIf, view: View) -> Section:  # noqa: ARG001
    """What the critical paths are spent in, before and after."""
    columns = (
        Column("spent in"),
        Column("recorded ms/step", "right"),
        Column("share", "right"),
        Column("predicted ms/step", "right"),
        Column("share", "right"),
    )
    rows = tuple(
        (
            row["limit"],
            fmt.ms(row["recorded_ns_per_step"]),
            fmt.percent(row["recorded_share"]),
            fmt.ms(row["predicted_ns_per_step"]),
            fmt.percent(row["predicted_share"]),
        )
        for row in found.limits.iter_rows(named=True)
        if row["recorded_ns_per_step"] or row["predicted_ns_per_step"]
    )
    notes = ("The critical path: the chain of host calls, activities and waits that made a step as long as it is.",)
    return Section("What sets the pace", table=TextTable(columns, rows), notes=notes)


def bottlenecks(found: WhatIf, view: View) -> Section:
    """What is on the critical paths with the changes made: the next things to look at."""
    return parts_table("Next bottlenecks", found.bottlenecks, view.top, full_names=view.full_names)


def basis(found: WhatIf, view: View) -> Section | None:  # noqa: ARG001
    """What the prediction rests on."""
    return Section("This rests on", found.notes) if found.notes else None


def steps(found: WhatIf, view: View) -> Section:  # noqa: ARG001
    """Every step counted."""
    columns = (
        Column("rank", "right"),
        Column("device", "right", drop=3),
        Column("step", "right"),
        Column("stage", drop=2),
        Column("recorded ms", "right"),
        Column("replayed ms", "right", drop=1),
        Column("predicted ms", "right"),
    )
    rows = tuple(
        (
            str(row["rank"]),
            str(row["device"]),
            str(row["step"]),
            row["stage"],
            *(fmt.ms(row[f"{name}_wall_ns"]) for name in ("recorded", "replayed", "predicted")),
        )
        for row in found.steps.iter_rows(named=True)
    )
    return Section("Steps", table=TextTable(columns, rows))


OVERVIEW: tuple[SectionMaker, ...] = (headline, losses, changes, walls, limits, bottlenecks, basis)
SECTIONS: dict[str, SectionMaker] = {"limit": limits, "bottleneck": bottlenecks, "step": steps}


# --- data ---


def table_of(found: WhatIf, by: str, top: int | None = None) -> pl.DataFrame:
    """The table that `by` names, all rows or the first `top`."""
    frame: pl.DataFrame = getattr(found, TABLES[by])
    return frame if top is None else frame.head(top)


def to_json(found: WhatIf, top: int | None) -> bytes:
    """The document described above, indented; `top` shortens `bottlenecks` only."""
    return orjson.dumps(whatif_document(found, top), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def whatif_document(found: WhatIf, top: int | None) -> dict[str, Any]:
    """The document as plain data."""
    return {
        "trace": msgspec.to_builtins(found.trace),
        "selection": {
            "first_step": found.selection.first_step,
            "end_step": found.selection.end_step,
            "stage": found.selection.stage,
        },
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
