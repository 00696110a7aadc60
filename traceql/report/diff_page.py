"""The page of `traceql diff`: one function a section, in the order of the page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceql import fmt
from traceql.analyses.diff import Diff, Side
from traceql.analyses.diff_gates import Judgement
from traceql.analyses.diff_kernels import aligned
from traceql.analyses.diff_notes import notes
from traceql.errors import MissingDataError
from traceql.report.diff_words import gate_line, signed_ms, verdict_line
from traceql.report.page import Column, Section, TextTable, View, made, top_title

Row = dict[str, Any]

_MOST_NAMED = 3
"""Kernels that an exchange of several names."""


@dataclass(frozen=True)
class DiffView(View):
    """How much is shown: of a layer (`layer`) its kernels alone."""

    layer: int | None = None


SectionMaker = Callable[[Diff, DiffView], Section | None]


def diff_page(diff: Diff, view: DiffView, gates: Sequence[Judgement] = ()) -> list[Section]:
    """The sections of the page: all, or the headline and the table or layer that the view names.

    Raises:
        MissingDataError: neither side has the layer.
    """
    about: list[SectionMaker]
    if view.layer is not None:
        about = [layer]
    elif view.by is not None:
        about = [SECTIONS[view.by]]
    else:
        about = [
            comparability,
            *(SECTIONS[name] for name in ("category", "layer", "kernel", "replacement", "collective")),
        ]
    return [headline(diff, gates), *made(about, diff, view)]


def headline(diff: Diff, gates: Sequence[Judgement]) -> Section:
    """The answer, the gates, and what must be known to read the figures."""
    gate_lines = [gate_line(gate) for gate in gates]
    return Section(
        lines=(verdict_line(diff), *gate_lines), notes=tuple(f"- {fmt.visible(n.text)}" for n in notes(diff))
    )


def comparability(diff: Diff, view: DiffView) -> Section:  # noqa: ARG001 - all sections are called alike
    """Steps of both sides, and in what else they differ."""
    columns = (Column("", fit="wrap"), Column("before", fit="wrap"), Column("after", fit="wrap"), Column(""))
    sides = (diff.before, diff.after)
    facts: list[tuple[str, ...]] = [
        ("recordings", *(_names(side) for side in sides), ""),
        ("complete steps", *(_counted(side) for side in sides), ""),
        ("median step", *(f"{fmt.ms(side.median_wall_ns)} ms" for side in sides), ""),
        ("10 to 90 %", *(_spread(side) for side in sides), ""),
        ("waits for host", *(fmt.percent(side.host_idle_frac) for side in sides), ""),
    ]
    controls = [_control(side) for side in sides]
    if any(controls):
        facts.append(("without profiler", *(text or fmt.UNKNOWN for text in controls), ""))
    differing = [
        (row["fact"], *(_text(row[side]) for side in ("before", "after")), "not comparable" if row["breaks"] else "")
        for row in diff.differences.iter_rows(named=True)
    ]
    alike = (
        () if differing else ("GPU, versions, batch size, layers and recorded options are the same or not recorded.",)
    )
    return Section("Compared", table=TextTable(columns, (*facts, *differing)), notes=alike)


def _control(side: Side) -> str | None:
    """Step and tokens a second of the control runs of a side's captures, means over its recordings."""
    known = [
        (facts.control_step_ns, facts.control_tokens_per_s or 0.0)
        for facts in (recording.facts for recording in side.recordings)
        if facts.control_step_ns is not None
    ]
    if not known:
        return None
    step_ns, rate = (sum(values) / len(known) for values in zip(*known, strict=True))
    return f"{fmt.ms(step_ns)} ms" + (f", {fmt.value('tokens_per_s', rate)}" if rate else "")


def _names(side: Side) -> str:
    names = [fmt.visible(recording.facts.name) for recording in side.recordings]
    more = f" and {len(names) - 2} more" if len(names) > 3 else ""
    return ", ".join(names[:2] if more else names) + more


def _counted(side: Side) -> str:
    n = sum(len(walls) for walls in side.walls)
    return fmt.count(n) if len(side.ranks) == 1 else f"{fmt.count(n)} on {fmt.plural(len(side.ranks), 'rank')}"


def _spread(side: Side) -> str:
    return f"{fmt.ms(side.wall_quantile_ns(0.1))} to {fmt.ms(side.wall_quantile_ns(0.9))} ms"


def _text(text: str | None) -> str:
    return fmt.UNKNOWN if text is None else fmt.visible(text)


def waterfall(diff: Diff, view: DiffView) -> Section:
    """The change of the mean step by category and cause of idle time; it adds up."""
    columns = (
        Column("category", fit="end"),
        Column("before ms", "right"),
        Column("after ms", "right"),
        Column("change", "right"),
        Column("of before", "right", drop=1),
        Column("medians", "right", drop=2),
    )
    wall_ns = diff.before.mean_wall_ns
    rows = [
        (
            f"{'idle: ' if row['kind'] == 'idle' else ''}{fmt.visible(row['name'])}",
            fmt.ms(row["before_ns_per_step"]),
            fmt.ms(row["after_ns_per_step"]),
            signed_ms(row["delta_ns"]),
            _part(row["delta_ns"], wall_ns),
            f"{fmt.ms(row['before_median_ns'])} → {fmt.ms(row['after_median_ns'])}",
        )
        for row in diff.waterfall.iter_rows(named=True)
    ]
    shown = rows if view.by else [row for row in rows if row[3].strip("0.,")]
    means = diff.before.mean_wall_ns, diff.after.mean_wall_ns
    change_ns = means[1] - means[0]
    total = (
        "mean step", fmt.ms(means[0]), fmt.ms(means[1]), signed_ms(change_ns), _part(change_ns, wall_ns),
        f"{fmt.ms(diff.before.median_wall_ns)} → {fmt.ms(diff.after.median_wall_ns)}",
    )  # fmt: skip
    hidden_rows = len(rows) - len(shown)
    left_out = (f"{fmt.plural(hidden_rows, 'row')} without change left out.",) if hidden_rows else ()
    notes_below = (
        "Exclusive time in a step, mean: the changes add up to that of the mean step. Medians do not.",
        *left_out,
    )
    return Section("Where the change comes from", table=TextTable(columns, (*shown, total), 1), notes=notes_below)


def _part(ns: float, whole_ns: float) -> str:
    if not whole_ns:
        return fmt.UNKNOWN
    text = fmt.percent(abs(ns) / whole_ns)
    return text if text.startswith("0.0") else fmt.signed(ns, text)


def layer_types(diff: Diff, view: DiffView) -> Section | None:  # noqa: ARG001
    """The change of the mean step by layer type and section."""
    if diff.roles.is_empty():
        return None
    columns = (
        Column("layer type", fit="end"),
        Column("layers", "right", drop=2),
        Column("before ms", "right"),
        Column("after ms", "right"),
        Column("change", "right"),
        Column("kernel time", "right", drop=2),
        Column("kernels", "right", drop=1),
    )
    rows = tuple(
        (
            fmt.visible(row["role"]),
            _both(row, "n_layers_per_step", lambda n: fmt.count(n) if n else ""),
            fmt.ms(row["before_ns_per_step"]),
            fmt.ms(row["after_ns_per_step"]),
            signed_ms(row["delta_ns"]),
            _both(row, "kernel_ns_per_step", fmt.ms),
            _both(row, "n_kernels_per_step", fmt.count),
        )
        for row in diff.roles.iter_rows(named=True)
    )  # fmt: skip
    return Section("Layer types and sections", table=TextTable(columns, rows), notes=("Wall of a mean step; adds up.",))


def _both(row: Row, name: str, form: Callable[[float], str]) -> str:
    a, b = form(row[f"before_{name}"]), form(row[f"after_{name}"])
    return a if a == b else f"{a} → {b}"


def kernels(diff: Diff, view: DiffView) -> Section:
    """The kernels whose time changed most: gone, new, more or fewer calls, or longer ones."""
    columns = (
        Column("change ms", "right"),
        Column("before", "right", drop=2),
        Column("after", "right", drop=2),
        Column("calls", "right"),
        Column("µs a call", "right", drop=1),
        Column(""),
        Column("category", drop=3),
        Column("kernel", fit="open" if view.full_names else "middle", is_code=True),
    )
    shown = diff.kernels[: view.top]
    rows = tuple(
        (
            signed_ms(row["delta_ns"]),
            fmt.ms(row["before_ns_per_step"]),
            fmt.ms(row["after_ns_per_step"]),
            _both(row, "n_per_step", fmt.count),
            _calls(row),
            "" if row["status"] == "alike" else row["status"],
            fmt.visible(row["category"]),
            fmt.visible(row["name"] if view.full_names else row["short_name"]),
        )
        for row in shown.iter_rows(named=True)
    )
    title = top_title("Kernels", shown.height, diff.kernels.height)
    note = "Kernel time and calls of a mean step. Names changed are in the next table."
    return Section(
        title, () if rows else ("None.",), TextTable(columns, rows) if rows else None, (note,) if rows else ()
    )


def _calls(row: Row) -> str:
    a, b = fmt.us(row["before_ns_per_call"]), fmt.us(row["after_ns_per_call"])
    return a if a == b else f"{a} → {b}"


def replaced(diff: Diff, view: DiffView) -> Section | None:
    """What took the place of what in a layer; the same exchange in several layer types in one line."""
    if diff.replacements.is_empty():
        return Section("Replaced in the layers", ("Nothing: the same kernels run.",)) if view.by else None
    sums = pl.col("before_n_per_step", "after_n_per_step", "before_ns_per_step", "after_ns_per_step", "delta_ns").sum()
    merged = diff.replacements.group_by("before", "after", maintain_order=True).agg(sums)
    merged = merged.sort(pl.col("delta_ns").abs() * -1, "before", "after", nulls_last=True)
    shown = merged[: view.top]
    lines = tuple(f"- {_exchange(row, view)}" for row in shown.iter_rows(named=True))
    title = top_title("Replaced in the layers", shown.height, merged.height)
    note = "Layers aligned kernel by kernel, kernel time of a mean step; what only moved is left out."
    return Section(title, notes=(*lines, note))


def _exchange(row: Row, view: DiffView) -> str:
    before, after = (_shortened(row[side], view) for side in ("before", "after"))
    times = f"{signed_ms(-row['before_ns_per_step'])} {signed_ms(row['after_ns_per_step'])} ms"
    if before is None or after is None:
        what = f"{after} added" if before is None else f"{before} taken out"
        n, ns = row["before_n_per_step"] + row["after_n_per_step"], row["delta_ns"]
        return f"{what}, {fmt.count(n)} a step: {signed_ms(ns)} ms"
    return f"{before} → {after}, {_both(row, 'n_per_step', fmt.count)} a step: {times}"


def _shortened(names: str | None, view: DiffView) -> str | None:
    """The first few kernels of several."""
    if names is None:
        return None
    each = names.split(" + ")
    left_out = 0 if view.full_names else max(len(each) - _MOST_NAMED, 0)
    return fmt.visible(" + ".join(each[: len(each) - left_out])) + (f" + {left_out} more" if left_out else "")


def collectives(diff: Diff, view: DiffView) -> Section | None:  # noqa: ARG001
    """Kernel time of collectives, and what of it is waiting; by rank where there are several."""
    if diff.collectives.is_empty():
        return None
    columns = (
        Column("collective"),
        Column("rank", "right"),
        Column("before ms", "right"),
        Column("of it waiting", "right"),
        Column("after ms", "right"),
        Column("of it waiting", "right"),
        Column("change", "right"),
        Column("calls", "right", drop=1),
    )
    rows = tuple(
        (
            fmt.visible(row["kind"]),
            "all" if row["rank"] is None else str(row["rank"]),
            fmt.ms(row["before_ns_per_step"]),
            fmt.ms(row["before_waiting_ns_per_step"]),
            fmt.ms(row["after_ns_per_step"]),
            fmt.ms(row["after_waiting_ns_per_step"]),
            signed_ms(row["delta_ns"]),
            _both(row, "n_kernels_per_step", fmt.count),
        )
        for row in diff.collectives.iter_rows(named=True)
    )
    note = "Kernel time of a mean step; waiting for the slower rank is known only where the ranks' collectives match."
    return Section("Collectives", table=TextTable(columns, rows), notes=(note,))


def steps(diff: Diff, view: DiffView) -> Section:  # noqa: ARG001
    """Every step compared."""
    columns = (
        Column("side"),
        Column("recording", "right", drop=3),
        Column("rank", "right"),
        Column("device", "right", drop=2),
        Column("step", "right"),
        Column("wall ms", "right"),
        Column("busy", "right"),
        Column("kernel time", "right", drop=1),
        Column("kernels", "right", drop=1),
    )
    rows = tuple(
        (
            row["side"],
            str(row["recording"]),
            *(str(row[name]) for name in ("rank", "device", "step")),
            *(fmt.ms(row[name]) for name in ("wall_ns", "busy_ns", "kernel_ns")),
            fmt.count(row["n_kernels"]),
        )
        for row in diff.steps.iter_rows(named=True)
    )
    return Section("Steps compared", table=TextTable(columns, rows))


def layer(diff: Diff, view: DiffView) -> Section:
    """The kernels of a layer side by side: those of a typical layer of its type.

    Raises:
        MissingDataError: a side has no such layer.
    """
    sides = [
        _layer_kernels(side, name, view.layer or 0) for side, name in ((diff.before, "before"), (diff.after, "after"))
    ]
    (a_role, a), (b_role, b) = sides
    columns = (
        Column(""),
        Column("before µs", "right"),
        Column("after µs", "right"),
        Column("change", "right"),
        Column("kernel", fit="open" if view.full_names else "middle", is_code=True),
    )
    rows: list[tuple[str, ...]] = []
    for i, j in aligned([row["name"] for row in a], [row["name"] for row in b]):
        one, other = a[i] if i is not None else None, b[j] if j is not None else None
        if one and other and one["name"] == other["name"]:
            change = signed_ms((other["dur_ns"] - one["dur_ns"]) * 1e3, 1)  # of µs
            rows.append(("", fmt.us(one["dur_ns"]), fmt.us(other["dur_ns"]), change, _kernel_name(one, view)))
            continue
        rows += [("−", fmt.us(one["dur_ns"]), "", "", _kernel_name(one, view))] if one else []
        rows += [("+", "", fmt.us(other["dur_ns"]), "", _kernel_name(other, view))] if other else []
    what = a_role if a_role == b_role else f"{a_role} → {b_role}"
    note = "Kernels of a typical layer of this type, streams one after the other. − gone, + new."
    return Section(f"Layer {view.layer}: {fmt.visible(what)}", table=TextTable(columns, tuple(rows)), notes=(note,))


def _layer_kernels(side: Side, name: str, number: int) -> tuple[str, list[Row]]:
    first = side.recordings[0]
    roles = first.layers.filter(layer=number)["role"]
    rows = first.sequences.filter(pl.col("role").is_in(roles.implode())).sort("position")
    if roles.is_empty() or rows.is_empty():
        known = f"Its layers are 0 to {first.layers.height - 1}." if first.layers.height else "It has no layers."
        raise MissingDataError(f"there is no layer {number} {name}", known)
    return str(roles.item()), rows.to_dicts()


def _kernel_name(row: Row, view: DiffView) -> str:
    return fmt.visible(row["name"] if view.full_names else row["short_name"])


SECTIONS: dict[str, SectionMaker] = {
    "category": waterfall, "kernel": kernels, "layer": layer_types, "replacement": replaced,
    "collective": collectives, "step": steps,
}  # fmt: skip
