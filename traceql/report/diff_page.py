"""The page and the data of `traceql diff`: one function a section, in the order of the page.

The JSON document (`to_json`); times in ns, shares 0 to 1, null is unknown:

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import orjson
import polars as pl

from traceql import fmt
from traceql.analyses.change import LEVEL, Interval
from traceql.analyses.diff import Diff, Side
from traceql.analyses.diff_gates import STEP, Judgement
from traceql.analyses.diff_kernels import aligned
from traceql.analyses.diff_notes import hidden, idle_delta_ns, notes
from traceql.errors import MissingDataError
from traceql.report.page import Column, Section, TextTable
from traceql.report.plain import plain_row, plain_rows

Row = dict[str, Any]

TABLES = {
    "category": "waterfall", "kernel": "kernels", "layer": "roles", "replacement": "replacements",
    "collective": "collectives", "step": "steps",
}  # fmt: skip
"""What `--by` names, and the field of `Diff` that has it."""

_MOST_TOLD = 4
_LEAST_TOLD = 0.005
"""Contributions to the change that the headline tells: as many, each at least this part of all changes added up."""
_MOST_NAMED = 3
"""Kernels that an exchange of several names."""
_BY_ONE_KERNEL = (0.8, 1.25)
"""A category's change is one kernel's where the kernel's is between these parts of it."""


@dataclass(frozen=True)
class View:
    """How much is shown: one table (`by`) or all, the first `top` rows (None: all), names cut or whole."""

    by: str | None = None
    top: int | None = 15
    full_names: bool = False
    layer: int | None = None


# --- the headline ---


def verdict_line(diff: Diff) -> str:
    """The answer in a sentence: what became of the median step, and the largest contributions to the mean one's change.

    A category goes by the name of a kernel where one new or gone kernel makes its change, unless it is an instance of
    a generic template, whose name says less than the category.
    """
    found = _answer(diff)
    parts = ", ".join(_contributions(diff))
    line = f"{found}; {parts} ms" if parts else found
    broken = ", ".join(diff.differences.filter("breaks")["fact"])
    return f"{line} (not comparable: {broken})" if broken else line


def _answer(diff: Diff) -> str:
    a_ns, b_ns = diff.before.median_wall_ns, diff.after.median_wall_ns
    times = f"{_pair(a_ns, b_ns)} ms {_basis(diff)}"
    if diff.verdict in ("faster", "slower"):
        longer = "shorter" if diff.verdict == "faster" else "longer"
        ratio = _ratio(max(a_ns, b_ns), min(a_ns, b_ns))
        return f"{ratio}× {diff.verdict} {_step(diff)}, {_share(abs(b_ns / a_ns - 1))} {longer}: {times}"
    if diff.verdict == "same":
        return f"same {_step(diff)}: {times}{_bounds(diff)}"
    reason = diff.reason or ""
    missed = hidden(diff)
    if missed and _may_be_none(diff):
        return f"no {missed}: {_step(diff)} {times}{_bounds(diff)}; {reason}"
    return f"cannot tell whether the {_step(diff)} changed: {times}{_bounds(diff)}; {reason}"


def _may_be_none(diff: Diff) -> bool:
    """Whether no change at all is as likely as any other that the figures allow."""
    if diff.interval is None:
        return abs(diff.delta_ns) <= diff.options.min_effect * diff.before.median_wall_ns
    return diff.interval.low <= 0 <= diff.interval.high


def _basis(diff: Diff) -> str:
    a, b = len(diff.before.walls), len(diff.after.walls)
    return "within these two recordings" if a == b == 1 else f"(medians of {a} and {b} recordings)"


def _bounds(diff: Diff) -> str:
    if diff.interval is None or diff.interval == Interval(0.0, 0.0, 0.0):
        return ""
    digits = _digits(diff.before.median_wall_ns)
    return f", changed by {_signed(diff.interval.low, digits)} to {_signed(diff.interval.high, digits)} ms"


def _contributions(diff: Diff) -> list[str]:
    """The largest changes of categories and of idle time, signed, in ms."""
    rows = [
        (_named(diff, row), row["delta_ns"]) for row in diff.waterfall.filter(kind="category").iter_rows(named=True)
    ]
    rows.append(("idle", idle_delta_ns(diff)))
    rows.sort(key=lambda row: (-abs(row[1]), row[0]))
    least_ns = _LEAST_TOLD * sum(abs(delta_ns) for _, delta_ns in rows)
    digits = _digits(diff.before.median_wall_ns)
    told = [(name, _signed(ns, digits)) for name, ns in rows[:_MOST_TOLD] if abs(ns) >= least_ns and ns]
    return [f"{name} {text}" for name, text in told if text.strip("+−0.")]


def _named(diff: Diff, row: Row) -> str:
    """The category, or the name of the one kernel that makes its change."""
    least, most = _BY_ONE_KERNEL
    if row["delta_ns"]:
        share = pl.col("delta_ns") / row["delta_ns"]
        alone = diff.kernels.filter(
            pl.col("category") == row["name"], pl.col("status").is_in(["new", "gone"]), share.is_between(least, most)
        )
        if alone.height == 1 and "<" not in alone["short_name"].item():
            return fmt.visible(alone["short_name"].item())
    return fmt.visible(row["name"])


def _step(diff: Diff) -> str:
    return "step" if diff.stage == "unknown" else f"{fmt.visible(diff.stage)} step"


def _digits(ns: float) -> int:
    return 1 if abs(ns) >= 10e6 else 2 if abs(ns) >= 1e6 else 3


def _pair(a_ns: float, b_ns: float) -> str:
    digits = _digits(max(a_ns, b_ns))
    return f"{a_ns / 1e6:,.{digits}f} → {b_ns / 1e6:,.{digits}f}"


def _signed(ns: float, digits: int = 3) -> str:
    """A time in ms with a sign; what rounds to nothing has none."""
    text = f"{abs(ns) / 1e6:,.{digits}f}"
    return text if not text.strip("0.,") else f"{'−' if ns < 0 else '+'}{text}"


def _ratio(longer_ns: float, shorter_ns: float) -> str:
    if not shorter_ns:
        return "∞"
    ratio = longer_ns / shorter_ns
    return f"{ratio:,.1f}" if ratio >= 2 else f"{ratio:.2f}"


def _share(share: float) -> str:
    return f"{share * 100:,.0f} %" if share >= 0.0995 else fmt.percent(share)


# --- the page ---

SectionMaker = Callable[[Diff, View], Section | None]


def diff_page(diff: Diff, view: View, gates: Sequence[Judgement] = ()) -> list[Section]:
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
    made = [headline(diff, gates), *(maker(diff, view) for maker in about)]
    return [section for section in made if section is not None]


def headline(diff: Diff, gates: Sequence[Judgement]) -> Section:
    """The answer, the gates, and what must be known to read the figures."""
    gate_lines = [gate_line(gate) for gate in gates]
    return Section(
        lines=(verdict_line(diff), *gate_lines), notes=tuple(f"- {fmt.visible(n.text)}" for n in notes(diff))
    )


def gate_line(gate: Judgement) -> str:
    """What a gate says, in a sentence."""
    name = "median step" if gate.gate.name == STEP else fmt.visible(gate.gate.name)
    digits = _digits(gate.before_ns)
    words = {"passed": "passed", "failed": "failed", "cannot tell": "not failed, but not sure either"}
    allowed = f"{gate.gate.amount * 100:g} %" if gate.gate.is_share else f"{gate.gate.amount / 1e6:g} ms"
    text = f"gate {words[gate.status]}: {name} {_pair(gate.before_ns, gate.after_ns)} ms, allowed +{allowed}"
    if gate.interval is None:
        return f"{text}; too few steps"
    return f"{text}; it changed by {_signed(gate.interval.low, digits)} to {_signed(gate.interval.high, digits)} ms"


def comparability(diff: Diff, view: View) -> Section:  # noqa: ARG001 - all sections are called alike
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
    low, high = _quantiles(side)
    return f"{fmt.ms(low)} to {fmt.ms(high)} ms"


def _quantiles(side: Side) -> tuple[float, float]:
    values = np.concatenate(side.walls)
    return float(np.quantile(values, 0.1)), float(np.quantile(values, 0.9))


def _text(text: str | None) -> str:
    return fmt.UNKNOWN if text is None else fmt.visible(text)


def waterfall(diff: Diff, view: View) -> Section:
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
            _signed(row["delta_ns"]),
            _part(row["delta_ns"], wall_ns),
            f"{fmt.ms(row['before_median_ns'])} → {fmt.ms(row['after_median_ns'])}",
        )
        for row in diff.waterfall.iter_rows(named=True)
    ]
    shown = rows if view.by else [row for row in rows if row[3].strip("0.,")]
    means = diff.before.mean_wall_ns, diff.after.mean_wall_ns
    change_ns = means[1] - means[0]
    total = (
        "mean step", fmt.ms(means[0]), fmt.ms(means[1]), _signed(change_ns), _part(change_ns, wall_ns),
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
    return text if text.startswith("0.0") else f"{'−' if ns < 0 else '+'}{text}"


def layer_types(diff: Diff, view: View) -> Section | None:  # noqa: ARG001
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
            _signed(row["delta_ns"]),
            _both(row, "kernel_ns_per_step", fmt.ms),
            _both(row, "n_kernels_per_step", fmt.count),
        )
        for row in diff.roles.iter_rows(named=True)
    )  # fmt: skip
    return Section("Layer types and sections", table=TextTable(columns, rows), notes=("Wall of a mean step; adds up.",))


def _both(row: Row, name: str, form: Callable[[float], str]) -> str:
    a, b = form(row[f"before_{name}"]), form(row[f"after_{name}"])
    return a if a == b else f"{a} → {b}"


def kernels(diff: Diff, view: View) -> Section:
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
    shown = diff.kernels if view.top is None else diff.kernels.head(view.top)
    rows = tuple(
        (
            _signed(row["delta_ns"]),
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
    title = (
        "Kernels" if shown.height == diff.kernels.height else f"Kernels: top {shown.height} of {diff.kernels.height}"
    )
    note = "Kernel time and calls of a mean step. Names changed are in the next table."
    return Section(
        title, () if rows else ("None.",), TextTable(columns, rows) if rows else None, (note,) if rows else ()
    )


def _calls(row: Row) -> str:
    a, b = fmt.us(row["before_ns_per_call"]), fmt.us(row["after_ns_per_call"])
    return a if a == b else f"{a} → {b}"


def replaced(diff: Diff, view: View) -> Section | None:
    """What took the place of what in a layer; the same exchange in several layer types in one line."""
    if diff.replacements.is_empty():
        return Section("Replaced in the layers", ("Nothing: the same kernels run.",)) if view.by else None
    sums = pl.col("before_n_per_step", "after_n_per_step", "before_ns_per_step", "after_ns_per_step", "delta_ns").sum()
    merged = diff.replacements.group_by("before", "after", maintain_order=True).agg(sums)
    merged = merged.sort(pl.col("delta_ns").abs() * -1, "before", "after", nulls_last=True)
    shown = merged if view.top is None else merged.head(view.top)
    lines = tuple(f"- {_exchange(row, view)}" for row in shown.iter_rows(named=True))
    more = "" if shown.height == merged.height else f": top {shown.height} of {merged.height}"
    note = "Layers aligned kernel by kernel, kernel time of a mean step; what only moved is left out."
    return Section(f"Replaced in the layers{more}", notes=(*lines, note))


def _exchange(row: Row, view: View) -> str:
    before, after = (_shortened(row[side], view) for side in ("before", "after"))
    times = f"{_signed(-row['before_ns_per_step'])} {_signed(row['after_ns_per_step'])} ms"
    if before is None or after is None:
        what = f"{after} added" if before is None else f"{before} taken out"
        n, ns = row["before_n_per_step"] + row["after_n_per_step"], row["delta_ns"]
        return f"{what}, {fmt.count(n)} a step: {_signed(ns)} ms"
    return f"{before} → {after}, {_both(row, 'n_per_step', fmt.count)} a step: {times}"


def _shortened(names: str | None, view: View) -> str | None:
    """The first few kernels of several."""
    if names is None:
        return None
    each = names.split(" + ")
    left_out = 0 if view.full_names else max(len(each) - _MOST_NAMED, 0)
    return fmt.visible(" + ".join(each[: len(each) - left_out])) + (f" + {left_out} more" if left_out else "")


def collectives(diff: Diff, view: View) -> Section | None:  # noqa: ARG001
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
            _signed(row["delta_ns"]),
            _both(row, "n_kernels_per_step", fmt.count),
        )
        for row in diff.collectives.iter_rows(named=True)
    )
    note = "Kernel time of a mean step; waiting for the slower rank is known only where the ranks' collectives match."
    return Section("Collectives", table=TextTable(columns, rows), notes=(note,))


def steps(diff: Diff, view: View) -> Section:  # noqa: ARG001
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


def layer(diff: Diff, view: View) -> Section:
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
            change = _signed((other["dur_ns"] - one["dur_ns"]) * 1e3, 1)  # of µs
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


def _kernel_name(row: Row, view: View) -> str:
    return fmt.visible(row["name"] if view.full_names else row["short_name"])


SECTIONS: dict[str, SectionMaker] = {
    "category": waterfall, "kernel": kernels, "layer": layer_types, "replacement": replaced,
    "collective": collectives, "step": steps,
}  # fmt: skip


# --- data ---


def table_of(diff: Diff, by: str, top: int | None = None) -> pl.DataFrame:
    """The table that `by` names, all rows or the first `top`."""
    frame: pl.DataFrame = getattr(diff, TABLES[by])
    return frame if top is None else frame.head(top)


def to_json(diff: Diff, top: int | None = None, gates: Sequence[Judgement] = ()) -> bytes:
    """The document described above, indented; `top` shortens `kernels` and `replacements` only."""
    document = diff_document(diff, top, gates)
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


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
    p10, p90 = _quantiles(side)
    return {
        "n_recordings": len(side.walls),
        "n_steps": side.n_steps,
        "median_wall_ns": side.median_wall_ns,
        "mean_wall_ns": side.mean_wall_ns,
        "p10_wall_ns": p10,
        "p90_wall_ns": p90,
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
