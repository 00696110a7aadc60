"""The page of `traceql whatif`: one function a section, in the order of the page."""

from collections.abc import Callable

from traceql import fmt
from traceql.analyses.replay_costs import Scaling
from traceql.analyses.whatif import WhatIf
from traceql.report.critical_page import parts_table
from traceql.report.page import Column, Section, TextTable, View, made
from traceql.report.quirks import losses
from traceql.report.stage_words import of_all_stages
from traceql.report.whatif_words import step_counted, whatif_line

SectionMaker = Callable[[WhatIf, View], Section | None]


def whatif_page(found: WhatIf, view: View) -> list[Section]:
    """The sections of the page: all, or the headline, the losses and the table that `view.by` names."""
    makers = OVERVIEW if view.by is None else (headline, losses, SECTIONS[view.by])
    return made(makers, found, view)


def headline(found: WhatIf, view: View) -> Section:  # noqa: ARG001 - all sections are called alike
    """What the median step takes then, and the tokens a second where the batch is known."""
    lines = [whatif_line(found)]
    if found.batch_size is not None:
        rates = [f"{rate:,.1f}" for rate in (found.recorded_tokens_per_s, found.predicted_tokens_per_s) if rate]
        if found.is_range and found.most_tokens_per_s:
            rates[-1] += f" to {found.most_tokens_per_s:,.1f}"
        lines.append(
            f"{' → '.join(rates)} tokens/s at batch {fmt.count(found.batch_size)}, one token a request and step"
        )
    return Section(lines=tuple(lines))


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
        *([("predicted, if no collective waits", fmt.ms(found.least_wall_ns), _rate(found.most_tokens_per_s), "")]
          if found.is_range else []),
    )  # fmt: skip
    n_steps = fmt.plural(found.steps.height, f"complete {step_counted(found)}")
    notes = (f"Medians over {n_steps}{of_all_stages(found.steps)}, of all ranks.",)
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
    notes = (
        "The critical path: the chain of host calls, activities and waits that made a step as long as it is.",
        "Means over the steps: they add up to the mean step.",
    )
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
