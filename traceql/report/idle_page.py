"""The page and the data of `traceql idle`: one function a section, in the order of the page.

The JSON document (`to_json`); times in ns, shares 0 to 1, null is unknown:

- `trace`: what the file says about itself; `selection`: first_step, end_step, stage.
- `headline`: the answer in a sentence; null without windows.
- `is_complete`: whether the figures count complete steps; without any they count the incomplete windows.
- `n_steps_counted`, `host_bound_frac` (the limit).
- `steps[]`: every selected step with a window, as table `step_pace`.
- `causes[]`: over the steps counted, as table `idle_causes`.
- `gaps[]`: the longest (`--top`, all with `--all`), as table `idle` with `next_kernel`, `launch` and `op` (names);
  `n_gaps` is the number of all.
- `launches[]`: of what was launched in the steps counted, as table `launch_stats`.
- `quirks[]`: oddities of the file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
import polars as pl

from traceql import fmt
from traceql.analyses.pace import HOST_BOUND_FRAC, Pace
from traceql.report import words
from traceql.report.page import Column, Section, TextTable
from traceql.report.plain import plain_rows

Row = dict[str, Any]

TABLES = {"cause": "causes", "step": "steps", "gap": "gaps", "launch": "launches"}
"""What `--by` names, and the field of `Pace` that has it."""

MEANINGS = {
    "no_work": "the engine had no batch",
    "sync": "the host waited for the GPU, or had not launched yet after it",
    "launch": "the host launched the next activity too late",
    "dependency": "waited for another stream, or a collective",
    "gpu_gap": "between activities already launched",
    "unknown": "the launch is not recorded",
}
_LEAST_TOLD = 0.1
"""A share of wall from which on `no_work` and `unknown` are in the headline: the verdict would mislead without."""


@dataclass(frozen=True)
class View:
    """How much is shown: one table (`by`) or all, the first `top` rows (None: all), names cut or whole."""

    by: str | None = None
    top: int | None = 15
    full_names: bool = False


# --- the headline ---


def pace_lines(pace: pl.DataFrame) -> tuple[str, ...]:
    """Whether the GPU waits for the host; where the complete steps are of several stages, a sentence each.

    Args:
        pace: the `step_pace` table.
    """
    complete = pace.filter("is_complete")
    stages = complete.group_by("stage").agg(pl.sum("wall_ns")).sort("wall_ns", "stage", descending=[True, False])
    if stages.height < 2:
        return tuple(filter(None, [pace_line(pace)]))
    lines = ((stage, pace_line(complete.filter(stage=stage))) for stage in stages["stage"])
    return tuple(f"{stage}: {line}" for stage, line in lines if line)


def pace_line(pace: pl.DataFrame) -> str | None:
    """Whether the GPU waits for the host, in one sentence; of several devices the median one, and the worst.

    Args:
        pace: the `step_pace` table. Complete steps count; where there is none, all.

    Figures are medians over the steps. None where no step has a window.
    """
    complete = pace.filter("is_complete")
    rows = _by_device(complete if complete.height else pace)
    if not rows:
        return None
    middle, worst = rows[(len(rows) - 1) // 2], rows[-1]
    if len(rows) == 1:
        return _verdict(middle)
    several_devices = len({row["rank"] for row in rows}) < len(rows)
    about = f"{_who(middle, several_devices)}, the median of {len(rows)}"
    if worst["host_frac"] > middle["host_frac"]:
        share = _share(worst["host_frac"])
        about += f"; worst {_who(worst, several_devices)}, whose GPU waits for the host {share} of the step"
    return f"{_verdict(middle)} ({about})"


def _by_device(pace: pl.DataFrame) -> list[Row]:
    """The median step of each device, least waiting for the host first."""
    medians = pace.group_by("rank", "device").agg(
        pl.median("wall_ns", "idle_ns", "host_idle_ns", "no_work_ns", "unknown_ns")
    )
    medians = medians.filter(pl.col("wall_ns") > 0).with_columns(
        **{
            f"{name}_frac": pl.col(column) / pl.col("wall_ns")
            for name, column in (
                ("idle", "idle_ns"),
                ("host", "host_idle_ns"),
                ("no_work", "no_work_ns"),
                ("unknown", "unknown_ns"),
            )
        }
    )
    return medians.sort("host_frac", "rank", "device").to_dicts()


def _verdict(row: Row) -> str:
    if row["host_frac"] >= HOST_BOUND_FRAC:
        times = _of(row["host_idle_ns"], row["wall_ns"])
        return f"GPU waits for the host {_share(row['host_frac'])} of the step: host-bound; {times}"
    idle = f"idle {_share(row['idle_frac'])} of the step"
    if row["unknown_frac"] >= _LEAST_TOLD:
        return f"{idle}, {_share(row['unknown_frac'])} of unknown cause: launches are not recorded"
    if row["no_work_frac"] >= _LEAST_TOLD:
        return f"{idle}, {_share(row['no_work_frac'])} without a batch to work on: neither host-bound nor GPU-bound"
    if not row["idle_ns"]:
        return "GPU-bound: never idle in the step"
    if row["host_idle_ns"]:
        return f"GPU-bound: {idle}, {_share(row['host_frac'])} waiting for the host"
    explained = not (row["unknown_ns"] or row["no_work_ns"])
    return f"GPU-bound: {idle}" + (", all of it between kernels already launched" if explained else "")


def _share(share: float) -> str:
    """A percentage without decimals where it has two digits before them."""
    return f"{share * 100:.0f} %" if share >= 0.0995 else fmt.percent(share)


def _of(part_ns: float, whole_ns: float) -> str:
    if whole_ns < 1e6:
        return f"{fmt.duration(part_ns)} of {fmt.duration(whole_ns)}"
    digits = 1 if whole_ns >= 10e6 else 2
    return f"{part_ns / 1e6:,.{digits}f} of {whole_ns / 1e6:,.{digits}f} ms"


def _who(row: Row, with_device: bool) -> str:
    return f"rank {row['rank']}" + (f" device {row['device']}" if with_device else "")


# --- the page ---

SectionMaker = Callable[[Pace, View], Section | None]


def idle_page(pace: Pace, view: View) -> list[Section]:
    """The sections of the page: all, or the headline, the losses and the table that `view.by` names."""
    makers = OVERVIEW if view.by is None else (headline, losses, SECTIONS[view.by])
    if not pace.counted.height:
        makers = (headline, losses)
    sections = (maker(pace, view) for maker in makers)
    return [section for section in sections if section is not None]


def headline(pace: Pace, view: View) -> Section:  # noqa: ARG001 - all sections are called alike
    """Whether the GPU waits for the host."""
    return Section(lines=pace_lines(pace.steps) or _without_windows(pace))


def _without_windows(pace: Pace) -> tuple[str, ...]:
    if not pace.n_kernels:
        return ("No GPU activity: idle time is unknown.",)
    if not pace.n_steps:
        return ("No steps found: idle time is told within steps.",)
    return ("No step has a window of its own: steps overlap, or launched nothing.",)


def losses(pace: Pace, view: View) -> Section | None:  # noqa: ARG001
    """What of the file could not be read: the figures miss it."""
    lost = [quirk for quirk in pace.quirks if quirk.effect == "lost"]
    if not lost:
        return None
    return Section("Incomplete: parts of this trace are lost", lines=words.quirk_lines(lost), is_warning=True)


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
    n_steps = fmt.plural(pace.counted.height, "complete step" if _is_complete(pace) else "incomplete step")
    if _is_several(pace):
        n_steps += f" on {pace.counted.select('rank', 'device').n_unique()} devices"
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
    n_gaps = fmt.count(words.total(steps["n_gaps"]) / steps.height) if what == "idle" else ""
    share = fmt.percent(words.ratio(words.total(part), words.total(wall)))
    return what, fmt.ms(_median(part)), fmt.ms(words.total(part) / steps.height), share, n_gaps, "", ""


def bounds(pace: Pace, view: View) -> Section:  # noqa: ARG001
    """How many steps the host holds up, and how far it runs ahead."""
    lines = [
        f"{_prefix(pace, place)}{int(mine['is_host_bound'].sum())} of {fmt.plural(mine.height, 'step')} host-bound; "
        f"the GPU waits for the host {_spread(mine['host_idle_frac'])}; "
        f"launches outstanding: {fmt.count(_median(mine['mean_outstanding']))} in the mean, "
        f"at most {fmt.count(_max(mine['max_outstanding']))}"
        for place, mine in pace.counted.group_by("rank", "device", maintain_order=True)
    ]
    notes = (
        f"Host-bound: the GPU waits for the host (launch + sync) at least {_share(HOST_BOUND_FRAC)} of the wall.",
        "Then a shorter kernel shortens the step little or not at all.",
        "Outstanding: launch calls begun of which no activity has started.",
    )
    return Section("Host-bound or GPU-bound", tuple(lines), notes=notes)


def _spread(shares: pl.Series) -> str:
    known = shares.drop_nulls()
    if known.is_empty():
        return fmt.UNKNOWN
    median, least, most = (fmt.percent(figure(known)) for figure in (_median, _min, _max))
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
    title = "Longest gaps" if len(rows) == pace.gaps.height else f"Longest gaps: top {len(rows)} of {pace.gaps.height}"
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
            fmt.count(words.ratio(row["n_launches"], n_steps.get((row["rank"], row["device"]), 0))),
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
        Column("bound by", fit="end"),
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
            f"{'host' if row['is_host_bound'] else 'GPU'}{'' if row['is_complete'] else ' (incomplete)'}",
        )
        for row in pace.steps.iter_rows(named=True)
    )
    return Section("Steps", table=TextTable(columns, rows))


OVERVIEW: tuple[SectionMaker, ...] = (headline, losses, causes, bounds, gaps, launches)
SECTIONS: dict[str, SectionMaker] = {"cause": causes, "step": steps, "gap": gaps, "launch": launches}


def _is_complete(pace: Pace) -> bool:
    return bool(pace.counted["is_complete"].any())


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


def _median(column: pl.Series) -> float | None:
    return column.cast(pl.Float64).median()  # pyright: ignore[reportReturnType] - of floats it is one


def _min(column: pl.Series) -> float | None:
    return column.cast(pl.Float64).min()  # pyright: ignore[reportReturnType]


def _max(column: pl.Series) -> float | None:
    return column.cast(pl.Float64).max()  # pyright: ignore[reportReturnType]


# --- data ---


def table_of(pace: Pace, by: str, top: int | None = None) -> pl.DataFrame:
    """The table that `by` names, all rows or the first `top`."""
    frame: pl.DataFrame = getattr(pace, TABLES[by])
    return frame if top is None else frame.head(top)


def to_json(pace: Pace, top: int | None) -> bytes:
    """The document described above, indented; `top` shortens `gaps` only."""
    return orjson.dumps(idle_document(pace, top), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def idle_document(pace: Pace, top: int | None) -> dict[str, Any]:
    """The document as plain data."""
    return {
        "trace": msgspec.to_builtins(pace.trace),
        "selection": {
            "first_step": pace.selection.first_step,
            "end_step": pace.selection.end_step,
            "stage": pace.selection.stage,
        },
        "headline": "\n".join(pace_lines(pace.steps)) or None,
        "is_complete": _is_complete(pace),
        "n_steps_counted": pace.counted.height,
        "host_bound_frac": HOST_BOUND_FRAC,
        "steps": plain_rows(pace.steps),
        "causes": plain_rows(pace.causes),
        "n_gaps": pace.gaps.height,
        "gaps": plain_rows(table_of(pace, "gap", top)),
        "launches": plain_rows(pace.launches),
        "quirks": msgspec.to_builtins(pace.quirks),
    }
