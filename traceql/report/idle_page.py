"""The page of `traceql idle`: one function a section, in the order of the page."""

from collections.abc import Callable
from typing import Any

import polars as pl

from traceql import fmt
from traceql.analyses.pace import HOST_BOUND_FRAC, Pace
from traceql.report import numbers
from traceql.report.idle_words import pace_lines
from traceql.report.page import Column, Section, TextTable, View, made, top_title
from traceql.report.quirks import losses
from traceql.report.stage_words import of_all_stages

Row = dict[str, Any]

MEANINGS = {
    "no_work": "the engine had no batch",
    "sync": "the host waited for the GPU, or had not launched yet after it",
    "launch": "the host launched the next activity too late",
    "dependency": "waited for another stream, or a collective",
    "gpu_gap": "between activities already launched",
    "unknown": "the launch is not recorded",
}
SectionMaker = Callable[[Pace, View], Section | None]


def idle_page(pace: Pace, view: View) -> list[Section]:
    """The sections of the page: all, or the headline, the losses and the table that `view.by` names."""
    makers = OVERVIEW if view.by is None else (headline, losses, SECTIONS[view.by])
    if not pace.counted.height:
        makers = (headline, losses)
    return made(makers, pace, view)


def headline(pace: Pace, view: View) -> Section:  # noqa: ARG001 - all sections are called alike
    """Whether the GPU waits for the host."""
    return Section(lines=pace_lines(pace.steps) or _without_windows(pace))


def _without_windows(pace: Pace) -> tuple[str, ...]:
    if not pace.n_kernels:
        return ("No GPU activity: idle time is unknown.",)
    if not pace.n_steps:
        return ("No steps found: idle time is told within steps.",)
    return ("No step has a window of its own: steps overlap, or launched nothing.",)


def causes(pace: Pace, view: View) -> Section:  # noqa: ARG001
    """Idle time by cause, with the wall that the shares are of."""
    columns = (
        *_place_columns(pace),
        Column("cause"),
        Column("median ms/step", "right"),
        Column("mean ms/step", "right", drop=1),
        Column("share of wall", "right"),
        Column("gaps/step", "right", drop=2),
        Column("median gap", "right", drop=3),
        Column("meaning", drop=4),
    )
    rows: list[tuple[str, ...]] = []
    for (rank, device), steps_here in pace.counted.group_by("rank", "device", maintain_order=True):
        where = _place(pace, {"rank": rank, "device": device})
        found = pace.causes.filter(rank=rank, device=device)
        cells = [*map(_cause_cells, found.iter_rows(named=True)), _sum_cells(steps_here, "idle")]
        rows += [(*where, *row) for row in (*cells, _sum_cells(steps_here, "wall"))]
    n_steps = fmt.plural(pace.counted.height, "complete step" if pace.is_complete else "incomplete step")
    if _is_several(pace):
        n_steps += f" on {pace.counted.select('rank', 'device').n_unique()} devices"
    n_steps += of_all_stages(pace.counted)
    notes = (f"Over {n_steps}. Every gap has one cause, by the launch of the activity that ends it.",)
    return Section("Idle time", table=TextTable(columns, tuple(rows), 0 if _is_several(pace) else 2), notes=notes)


def _cause_cells(row: Row) -> tuple[str, ...]:
    return (
        row["cause"],
        fmt.ms(row["median_step_ns"]),
        fmt.ms(row["ns_per_step"]),
        fmt.percent(row["share"]),
        fmt.count(row["gaps_per_step"]),
        fmt.duration(row["median_gap_ns"]),
        MEANINGS[row["cause"]],
    )


def _sum_cells(steps: pl.DataFrame, what: str) -> tuple[str, ...]:
    """The row of all idle time, or of the wall."""
    part, wall = steps[f"{what}_ns"], steps["wall_ns"]
    n_gaps = fmt.count(numbers.total(steps["n_gaps"]) / steps.height) if what == "idle" else ""
    share = fmt.percent(numbers.ratio(numbers.total(part), numbers.total(wall)))
    return what, fmt.ms(numbers.median(part)), fmt.ms(numbers.total(part) / steps.height), share, n_gaps, "", ""


def bounds(pace: Pace, view: View) -> Section:  # noqa: ARG001
    """How many steps the host holds up, and how far it runs ahead."""
    lines = [
        f"{_prefix(pace, place)}{int(mine['is_host_bound'].sum())} of {fmt.plural(mine.height, 'step')} host-bound; "
        f"the GPU waits for the host {_spread(mine['host_idle_frac'])}; "
        f"launches outstanding: {fmt.count(numbers.median(mine['mean_outstanding']))} in the mean, "
        f"at most {fmt.count(numbers.most(mine['max_outstanding']))}"
        for place, mine in pace.counted.group_by("rank", "device", maintain_order=True)
    ]
    limit = fmt.rounded_percent(HOST_BOUND_FRAC)
    notes = (
        f"Host-bound: the GPU waits for the host (launch + sync) at least {limit} of the wall.",
        "Then a shorter kernel shortens the step little or not at all.",
        "Outstanding: launch calls begun of which no activity has started.",
    )
    return Section("Host-bound or GPU-bound", tuple(lines), notes=notes)


def _spread(shares: pl.Series) -> str:
    known = shares.drop_nulls()
    if known.is_empty():
        return fmt.UNKNOWN
    median, least, most = (fmt.percent(figure(known)) for figure in (numbers.median, numbers.least, numbers.most))
    return f"{median} of the step (median; {least} to {most})"


def gaps(pace: Pace, view: View) -> Section:
    """The longest gaps, and what the host did."""
    columns = (
        *_place_columns(pace),
        Column("step", "right"),
        Column("at ms", "right", drop=3),
        Column("gap", "right"),
        Column("cause"),
        Column("launch late by", "right", drop=2),
        Column("host was in", fit="end", is_code=True, drop=1),
        Column("launched by", fit="end", is_code=True, drop=5),
        Column("op", fit="end", is_code=True, drop=4),
        Column("next activity", fit="open" if view.full_names else "middle", is_code=True),
    )
    shown = pace.gaps if view.top is None else pace.gaps.head(view.top)
    rows = tuple(
        (
            *_place(pace, row),
            str(row["step"]),
            fmt.ms(row["start_ns"]),
            fmt.duration(row["dur_ns"]),
            row["cause"],
            _late_by(row),
            *(_name(row[column]) for column in ("host_call", "launch", "op", "next_kernel")),
        )
        for row in shown.iter_rows(named=True)
    )
    title = top_title("Longest gaps", len(rows), pace.gaps.height)
    return Section(title, () if rows else ("None.",), TextTable(columns, rows) if rows else None)


def _late_by(gap: Row) -> str:
    """How long after the gap's beginning the call began; nothing when it had before."""
    if gap["launched_ns"] is None:
        return fmt.UNKNOWN
    late_ns = gap["launched_ns"] - gap["start_ns"]
    return fmt.duration(late_ns) if late_ns > 0 else ""


def launches(pace: Pace, view: View) -> Section:  # noqa: ARG001
    """What launching costs the host, and how long launches wait for the GPU."""
    columns = (
        *_place_columns(pace),
        Column("call", fit="end", is_code=True),
        Column("calls/step", "right"),
        Column("activities/call", "right", drop=2),
        Column("µs a call", "right"),
        Column("p90", "right", drop=3),
        Column("µs an activity", "right", drop=1),
        Column("µs to start", "right"),
        Column("p10", "right", drop=4),
        Column("p90", "right", drop=4),
    )
    n_steps = {place: mine.height for place, mine in pace.counted.group_by("rank", "device")}
    rows = tuple(
        (
            *_place(pace, row),
            fmt.visible(row["name"]),
            fmt.count(numbers.ratio(row["n_launches"], n_steps.get((row["rank"], row["device"]), 0))),
            fmt.count(row["kernels_per_launch"]),
            *(fmt.us(row[name]) for name in ("median_call_ns", "p90_call_ns", "call_ns_per_kernel")),
            *(fmt.us(row[name]) for name in ("median_delay_ns", "p10_delay_ns", "p90_delay_ns")),
        )
        for row in pace.launches.iter_rows(named=True)
    )
    notes = ("Medians. To start: from the beginning of the call to the start of its first activity.",)
    return Section("Launches", () if rows else ("None recorded.",), TextTable(columns, rows) if rows else None, notes)


def steps(pace: Pace, view: View) -> Section:  # noqa: ARG001
    """Every selected step with its idle time by cause."""
    columns = (
        *_place_columns(pace),
        Column("step", "right"),
        Column("stage", drop=6),
        Column("wall ms", "right"),
        Column("idle ms", "right"),
        Column("no work", "right", drop=5),
        Column("sync", "right", drop=1),
        Column("launch", "right", drop=1),
        Column("dependency", "right", drop=2),
        Column("gpu gap", "right", drop=2),
        Column("unknown", "right", drop=5),
        Column("waits for host", "right"),
        Column("gaps", "right", drop=3),
        Column("outstanding", "right", drop=4),
        Column("host-bound", fit="end"),
    )
    times = ("wall_ns", "idle_ns", "no_work_ns", "sync_ns", "launch_ns", "dependency_ns", "gpu_gap_ns", "unknown_ns")
    rows = tuple(
        (
            *_place(pace, row),
            str(row["step"]),
            row["stage"],
            *(fmt.ms(row[name]) for name in times),
            fmt.percent(row["host_idle_frac"]),
            fmt.count(row["n_gaps"]),
            fmt.count(row["mean_outstanding"]),
            f"{'yes' if row['is_host_bound'] else 'no'}{'' if row['is_complete'] else ' (incomplete)'}",
        )
        for row in pace.steps.iter_rows(named=True)
    )
    return Section("Steps", table=TextTable(columns, rows))


OVERVIEW: tuple[SectionMaker, ...] = (headline, losses, causes, bounds, gaps, launches)
SECTIONS: dict[str, SectionMaker] = {"cause": causes, "step": steps, "gap": gaps, "launch": launches}


def _is_several(pace: Pace) -> bool:
    return pace.steps.select("rank", "device").n_unique() > 1


def _place_columns(pace: Pace) -> tuple[Column, ...]:
    return (Column("rank", "right"), Column("device", "right")) if _is_several(pace) else ()


def _place(pace: Pace, row: Row) -> tuple[str, ...]:
    return (str(row["rank"]), str(row["device"])) if _is_several(pace) else ()


def _prefix(pace: Pace, place: tuple[Any, ...]) -> str:
    return f"rank {place[0]}, device {place[1]}: " if _is_several(pace) else ""


def _name(text: str | None) -> str:
    return fmt.UNKNOWN if text is None else fmt.visible(text)
