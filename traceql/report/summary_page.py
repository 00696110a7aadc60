"""The page of `traceql summarize`: one function a section, in the order of the page.

A function returns None where it has nothing to say. What a trace does not hold is said in words.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from traceql import fmt
from traceql.analyses.rank_stats import RunSummary
from traceql.analyses.summary import Summary
from traceql.categories import GROUPS
from traceql.report import numbers
from traceql.report import summary_words as words
from traceql.report.page import Column, Section, TextTable, View, made, top_title
from traceql.report.quirks import losses, quirk_lines

Row = dict[str, Any]


@dataclass(frozen=True)
class SummaryView(View):
    """How much of a summary is shown, and what is said besides."""

    top: int = 15
    remarks: tuple[str, ...] = ()
    findings: pl.DataFrame = field(default_factory=pl.DataFrame)
    """Table `findings` of the rules: the costliest."""


SectionMaker = Callable[[Summary, SummaryView], Section | None]


def summary_page(summary: Summary, view: SummaryView) -> list[Section]:
    """The sections of a summary: all, or the headline, the losses and the table that `view.by` names."""
    overview = OVERVIEW if summary.n_windows else WITHOUT_GPU_TIME
    makers = overview if view.by is None else (headline, losses, TABLES[view.by])
    return made(makers, summary, view)


def headline(summary: Summary, view: SummaryView) -> Section:
    """The answer in one sentence: how long a step takes and what it consists of."""
    if not summary.n_windows:
        return Section(lines=words.no_gpu_time(summary))
    if words.has_stages(summary):
        return Section(lines=(*_stage_lines(summary), *view.remarks))
    groups = summary.groups.select("group", "exclusive_ns").rows()
    shares = _shares(groups, summary.idle_ns, summary.wall_ns)
    if isinstance(summary, RunSummary):
        return Section(lines=(words.subject(summary), f"all ranks: {shares}", *view.remarks))
    return Section(lines=(f"{words.subject(summary)}: {shares}", *view.remarks))


def _stage_lines(summary: Summary) -> Iterator[str]:
    """The same for each stage: the mean of a prompt and of a token is neither."""
    if isinstance(summary, RunSummary):
        yield words.subject(summary)
    for row in summary.stages.iter_rows(named=True):
        groups = sorted(((group, row[f"{group}_ns"]) for group in GROUPS), key=lambda part: -part[1])
        shares = _shares(groups, row["idle_ns"], row["wall_ns"])
        yield f"{words.stage_subject(summary, row)}: {shares}"


def _shares(groups: Iterable[tuple[str, int]], idle_ns: int, wall_ns: int) -> str:
    parts = [_unbroken(f"{fmt.visible(group)} {fmt.percent(numbers.ratio(ns, wall_ns))}") for group, ns in groups if ns]
    idle = _unbroken(f"idle {fmt.percent(numbers.ratio(idle_ns, wall_ns))}")
    return "; ".join(filter(None, [", ".join(parts), idle]))


def findings(summary: Summary, view: SummaryView) -> Section | None:
    """What is wrong, by the rules."""
    if not view.findings.height:
        return None
    columns = (
        Column("severity", drop=1),
        Column(f"ms/{_per(summary)}", "right"),
        Column("share", "right", drop=2),
        Column("finding", fit="end"),
    )
    rows = tuple(
        (
            row["severity"],
            fmt.ms(row["cost_ns_per_step"]),
            fmt.percent(row["share"]),
            fmt.visible(f"{row['rule']}: {row['message']}"),
        )
        for row in view.findings.iter_rows(named=True)
    )
    notes = ("Findings may be about the same time. Why, evidence and what to do: traceql check.",)
    return Section("Findings", table=TextTable(columns, rows), notes=notes)


def facts(summary: Summary, view: SummaryView) -> Section:  # noqa: ARG001
    """What was recorded, where and how."""
    trace = summary.trace
    rows = (
        (
            "files" if isinstance(summary, RunSummary) else "file",
            ", ".join(
                (
                    fmt.visible(trace.name),
                    f"{fmt.size(trace.size_bytes)} of JSON",
                    fmt.plural(trace.n_events, "event"),
                    fmt.duration(trace.span_ns),
                )
            ),
        ),
        ("GPU", words.gpus(summary)),
        ("ranks" if isinstance(summary, RunSummary) else "rank", words.rank(summary)),
        ("software", words.software(summary)),
        ("recorded", words.recorded(summary)),
        ("steps", words.steps_found(summary)),
        ("selected", words.selected(summary.selection)),
    )
    columns = (Column(""), Column("", fit="wrap"))
    return Section("Trace", table=TextTable(columns, tuple(row for row in rows if row[1])))


def ranks(summary: Summary, view: SummaryView) -> Section | None:  # noqa: ARG001
    """The ranks of a run side by side."""
    if not isinstance(summary, RunSummary):
        return None
    columns = (
        Column("rank", "right"),
        Column("device", "right", drop=4),
        Column("steps", "right", drop=2),
        *(Column(f"{what} ms", "right", drop=drop) for what, drop in _RANK_FIGURES.values()),
        Column("file", drop=5, fit="end", is_code=True),
    )
    rows = tuple(
        (
            *(fmt.count(row[name]) for name in ("rank", "device", "n_steps")),
            *(fmt.ms(row[figure]) for figure in _RANK_FIGURES),
            fmt.visible(row["name"]),
        )
        for row in summary.ranks.iter_rows(named=True)
    )
    return Section("Ranks", table=TextTable(columns, rows), notes=words.about_ranks(summary))


def step_times(summary: Summary, view: SummaryView) -> Section | None:  # noqa: ARG001
    """The spread of each figure over the complete steps."""
    if summary.scope != "steps" or not summary.n_windows:
        return None
    columns = (
        Column("per step"),
        Column("median", "right"),
        Column("p10", "right", drop=2),
        Column("p90", "right", drop=2),
        Column("min", "right", drop=1),
        Column("max", "right", drop=1),
    )
    rows = tuple(_stat_row(row) for row in summary.step_stats.iter_rows(named=True))
    notes = (
        "busy is the union of GPU activity, kernel time the sum (streams overlap); idle = wall − busy.",
        "annotation is the host's span, not the wall.",
    )
    title = "Step times, all ranks" if isinstance(summary, RunSummary) else "Step times"
    return Section(title, table=TextTable(columns, rows), notes=notes)


def stages(summary: Summary, view: SummaryView) -> Section | None:
    """Decode, prefill and mixed steps side by side, where there are several of these."""
    if not words.has_stages(summary) and view.by is None:
        return None
    spent = {group: numbers.total(summary.stages[f"{group}_ns"]) for group in GROUPS}
    groups = [group for group in GROUPS if spent[group]]
    by_time = sorted(groups, key=lambda group: -spent[group])
    columns = (
        Column("stage"),
        Column("steps", "right", drop=len(GROUPS) + 1),
        Column("batch", "right", drop=len(GROUPS) + 2),
        Column("median ms", "right"),
        Column("of all wall", "right", drop=len(GROUPS) + 3),
        *(Column(group, "right", drop=by_time.index(group)) for group in groups),
        Column("idle", "right"),
    )
    rows = tuple(
        (
            row["stage"],
            fmt.count(row["n_steps"]),
            _range(row["batch_size_min"], row["batch_size_max"]),
            fmt.ms(row["median_wall_ns"]),
            fmt.percent(row["share"]),
            *(fmt.percent(numbers.ratio(row[f"{name}_ns"], row["wall_ns"])) for name in (*groups, "idle")),
        )
        for row in summary.stages.iter_rows(named=True)
    )
    if not rows:
        return Section("Stages", (f"{words.no_steps(summary).capitalize()}.",))
    notes = ("Groups and idle as shares of the stage's wall; with exclusive time all of them add up to it.",)
    return Section("Stages", table=TextTable(columns, rows), notes=notes)


def _range(least: int | None, most: int | None) -> str:
    return fmt.count(least) if least == most else f"{fmt.count(least)}–{fmt.count(most)}"


def outliers(summary: Summary, view: SummaryView) -> Section | None:
    """The steps whose wall is far from the median, by name."""
    if summary.outliers.is_empty():
        return None
    rows = summary.outliers.sort("wall_ns", descending=True).head(view.top).iter_rows(named=True)
    lines = tuple(
        f"step {row['step']}{_where(summary, row)}: {fmt.duration(row['wall_ns'])}"
        + (
            f", {row['wall_ns'] / median_ns:.2f} × the median"
            if (median_ns := words.median_beside(summary, row))
            else ""
        )
        for row in rows
    )
    hidden = summary.outliers.height - len(lines)
    notes = (f"They count in every figure.{f' {hidden} more are not named.' if hidden else ''}",)
    return Section("Outlier steps", lines=lines, notes=notes)


def groups(summary: Summary, view: SummaryView) -> Section:  # noqa: ARG001
    """Exclusive time by category group; with idle the rows add up to the wall."""
    return _exclusive_section("Groups", summary, summary.groups, Column("group"))


def categories(summary: Summary, view: SummaryView) -> Section:  # noqa: ARG001
    """Exclusive time by category; with idle the rows add up to the wall."""
    return _exclusive_section("Categories", summary, summary.categories, Column("category"), Column("group", drop=2))


def kernels(summary: Summary, view: SummaryView) -> Section:
    """The kernels with most time, by name."""
    columns = (
        *_kernel_time_columns(summary),
        Column("median µs", "right", drop=2),
        Column("category", drop=1),
        Column("kernel", fit="open" if view.full_names else "middle", is_code=True),
    )
    rows = tuple(
        (
            *_kernel_times(summary, row),
            fmt.us(row["median_dur_ns"]),
            fmt.visible(row["category"]),
            _kernel_name(row, view),
        )
        for row in summary.kernels.head(view.top).iter_rows(named=True)
    )
    title = top_title("Kernels", len(rows), summary.kernels.height)
    return Section(title, *_table_or_words(columns, rows, "No GPU activity."), notes=_sums(summary) if rows else ())


def ops(summary: Summary, view: SummaryView) -> Section:
    """Kernel time by the innermost CPU op that launched it."""
    columns = (
        *_kernel_time_columns(summary),
        Column("op", fit="open" if view.full_names else "middle", is_code=True),
    )
    rows = tuple(
        (*_kernel_times(summary, row), "(no op)" if row["op"] is None else fmt.visible(row["op"]))
        for row in summary.ops.head(view.top).iter_rows(named=True)
    )
    title = top_title("Ops", len(rows), summary.ops.height)
    notes = (*filter(None, [words.without_op(summary)]), *_sums(summary)) if rows else ()
    return Section(title, *_table_or_words(columns, rows, "No GPU activity."), notes=notes)


def steps(summary: Summary, view: SummaryView) -> Section:  # noqa: ARG001
    """Every step selected, in order."""
    several = words.is_multi_device(summary)
    columns = (
        *((Column("rank", "right"), Column("device", "right")) if several else ()),
        Column("step", "right"),
        Column("stage", drop=3),
        Column("batch", "right", drop=2),
        Column("wall ms", "right"),
        Column("busy ms", "right", drop=1),
        Column("idle ms", "right"),
        Column("kernel time ms", "right", drop=4),
        Column("kernels", "right", drop=5),
        Column("note", drop=1, fit="end"),
    )
    rows = tuple(
        (
            *((str(row["rank"]), str(row["device"])) if several else ()),
            str(row["step"]),
            row["stage"],
            fmt.count(row["batch_size"]),
            *(fmt.ms(row[name]) for name in ("wall_ns", "busy_ns", "idle_ns", "kernel_ns")),
            fmt.count(row["n_kernels"]),
            words.step_note(row),
        )
        for row in summary.steps.iter_rows(named=True)
    )
    return Section("Steps", *_table_or_words(columns, rows, f"{words.no_steps(summary).capitalize()}."))


def unrecognised(summary: Summary, view: SummaryView) -> Section | None:
    """How much time is in the category `other`, and its largest names: the category rules miss them."""
    share = numbers.total(summary.categories.filter(category="other")["share"])
    names = summary.kernels.filter(pl.col("category") == "other").head(3)
    if not share or names.is_empty():
        return None
    top = "; ".join(f"{_kernel_name(row, view)} ({fmt.percent(row['share'])})" for row in names.iter_rows(named=True))
    return Section("Not recognised", lines=(f"{fmt.percent(share)} of the wall is in `other`: {top}",))


def unattributed(summary: Summary, view: SummaryView) -> Section | None:  # noqa: ARG001
    """GPU activity that belongs to no step, no launch or no op."""
    lines = tuple(filter(None, [words.without_launch(summary), words.outside(summary), words.without_op(summary)]))
    return Section("Not attributed", lines=lines) if lines else None


def oddities(summary: Summary, view: SummaryView) -> Section | None:  # noqa: ARG001
    """What was repaired and what is worth knowing about the file."""
    rest = [quirk for quirk in summary.quirks if quirk.effect != "lost"]
    title = "About these files" if isinstance(summary, RunSummary) else "About this file"
    return Section(title, lines=quirk_lines(rest)) if rest else None


_SUMS = "Sums of durations: streams overlap, so shares of the wall may add up to more than busy."
_RANK_FIGURES = {
    "wall_ns": ("wall", 0),
    "busy_ns": ("busy", 3),
    "idle_ns": ("idle", 0),
    "kernel_ns": ("kernel time", 6),
    "comm_kernel_ns": ("comm", 1),
}
"""Figures of a rank: title, and how early they go where the page is narrow."""
_STAT_NAMES = {"n_kernels": "kernels", "kernel_ns": "kernel time ms"}


def _sums(summary: Summary) -> tuple[str, ...]:
    return (_SUMS, f"Means over {words.means(summary)}.") if isinstance(summary, RunSummary) else (_SUMS,)


def _unbroken(text: str) -> str:
    """The text with spaces at which no line is broken."""
    return text.replace(" ", "\u00a0")


def _stat_row(row: Row) -> tuple[str, ...]:
    figure = row["figure"]
    form = fmt.ms if figure.endswith("_ns") else fmt.count
    name = _STAT_NAMES.get(figure, f"{figure.removesuffix('_ns')} ms")
    return (name, *(form(row[spread]) for spread in ("median", "p10", "p90", "min", "max")))


def _per(summary: Summary) -> str:
    return "step" if summary.scope == "steps" else "window"


def _exclusive_section(title: str, summary: Summary, frame: pl.DataFrame, *names: Column) -> Section:
    """Exclusive times with an idle row and their sum, the wall."""
    per = _per(summary)
    columns = (
        *names,
        Column(f"ms/{per}", "right"),
        Column("share of wall", "right"),
        Column(f"kernels/{per}", "right", drop=1),
        Column(f"kernel time ms/{per}", "right", drop=3),
    )
    n_windows, blanks = summary.n_windows, ("",) * (len(names) - 1)
    sums = (
        fmt.count(numbers.ratio(numbers.total(frame["n_kernels"]), n_windows)),
        fmt.ms(numbers.ratio(numbers.total(frame["kernel_ns"]), n_windows)),
    )
    rows = [
        (
            *(fmt.visible(row[name.title]) for name in names),
            fmt.ms(row["ns_per_step"]),
            fmt.percent(row["share"]),
            fmt.count(numbers.ratio(row["n_kernels"], n_windows)),
            fmt.ms(numbers.ratio(row["kernel_ns"], n_windows)),
        )
        for row in frame.iter_rows(named=True)
    ]
    totals = [("idle", *blanks, *_of_wall(summary, summary.idle_ns), "", ""),
              ("wall", *blanks, *_of_wall(summary, summary.wall_ns), *sums)]  # fmt: skip
    lines, table = _table_or_words(columns, (*rows, *totals) if n_windows else (), "No GPU activity.", len(totals))
    notes = (f"Means over {words.means(summary)}; exclusive time, so that rows and idle add up to the wall.",)
    return Section(title, lines, table, notes if n_windows else ())


def _of_wall(summary: Summary, part_ns: int) -> tuple[str, str]:
    return fmt.ms(numbers.ratio(part_ns, summary.n_windows)), fmt.percent(numbers.ratio(part_ns, summary.wall_ns))


def _kernel_time_columns(summary: Summary) -> tuple[Column, ...]:
    per = _per(summary)
    return Column("share", "right"), Column(f"ms/{per}", "right"), Column(f"n/{per}", "right", drop=3)


def _kernel_times(summary: Summary, row: Row) -> tuple[str, ...]:
    per_window = numbers.ratio(row["n_kernels"], summary.n_windows)
    return fmt.percent(row["share"]), fmt.ms(row["ns_per_step"]), fmt.count(per_window)


def _kernel_name(row: Row, view: SummaryView) -> str:
    return fmt.visible(row["name"] if view.full_names else row["short_name"])


def _table_or_words(
    columns: tuple[Column, ...], rows: tuple[tuple[str, ...], ...], empty: str, n_totals: int = 0
) -> tuple[tuple[str, ...], TextTable | None]:
    return ((), TextTable(columns, rows, n_totals)) if rows else ((empty,), None)


def _where(summary: Summary, step: Row) -> str:
    return f" of rank {step['rank']}, device {step['device']}" if words.is_multi_device(summary) else ""


OVERVIEW: tuple[SectionMaker, ...] = (
    headline,
    losses,
    findings,
    facts,
    ranks,
    stages,
    step_times,
    outliers,
    groups,
    categories,
    kernels,
    unrecognised,
    unattributed,
    oddities,
)
WITHOUT_GPU_TIME: tuple[SectionMaker, ...] = (headline, losses, facts, unattributed, oddities)
TABLES: dict[str, SectionMaker] = {
    "group": groups,
    "category": categories,
    "kernel": kernels,
    "op": ops,
    "step": steps,
    "stage": stages,
}
