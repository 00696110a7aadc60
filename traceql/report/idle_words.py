"""Who sets the pace of the steps, in one sentence."""

from dataclasses import dataclass
from typing import Any

import polars as pl

from traceql import fmt
from traceql.analyses.pace import HOST_BOUND_FRAC
from traceql.report.stage_words import stage_name, stages_by_time

Row = dict[str, Any]

_LEAST_TOLD = 0.1
"""A share of wall from which on `no_work`, `unknown` and `dependency` are in the headline: the verdict would mislead
without."""


_MOSTLY = 0.5
"""A share of wall between kernels already launched, or in communication alone, from which on the work of the GPU does
not set the pace."""

_PARTS = {
    "idle": "idle_ns",
    "host": "host_idle_ns",
    "no_work": "no_work_ns",
    "unknown": "unknown_ns",
    "dependency": "dependency_ns",
    "unrecorded": "unrecorded_ns",
    "exposed": "exposed_comm_ns",
    "waiting": "exposed_waiting_ns",
}
"""Columns that the verdict rests on, of `step_pace` and one more, by what they are called here."""

_NOR = "host-bound nor GPU-bound:"
_NEITHER = "neither host-bound nor GPU-bound"
_OPEN = (
    ("unknown", "pace unknown", "of unknown cause: launches are not recorded", "launches are not recorded"),
    ("no_work", "neither", f"without a batch to work on: {_NEITHER}", f"{_NOR} the engine has no batch to work on"),
    (
        "unrecorded",
        "neither",
        f"in long gaps before work already launched, which waits for what is not recorded: {_NEITHER}",
        f"{_NOR} launched work waits for what is not recorded",
    ),
    (
        "dependency",
        "neither",
        f"waiting for another stream or a collective: {_NEITHER}",
        f"{_NOR} it waits for another stream or a collective",
    ),
)
"""Idle time that, if it is much, leaves open who sets the pace: the part of the step, verdict, words and meaning."""


def pace_lines(pace: pl.DataFrame) -> tuple[str, ...]:
    """Whether the GPU waits for the host; where the complete steps are of several stages, a sentence each.

    Args:
        pace: the `step_pace` table.
    """
    complete = pace.filter("is_complete")
    stages = stages_by_time(complete)
    if len(stages) < 2:
        return tuple(filter(None, [pace_line(pace)]))
    lines = ((stage, pace_line(complete.filter(stage=stage))) for stage in stages)
    return tuple(f"{stage_name(stage)}: {line}" for stage, line in lines if line)


@dataclass(frozen=True)
class Verdict:
    """What sets the pace of the steps of one device."""

    name: str
    """In a word or two, as a tile has it."""
    meaning: str
    """What that says of the step."""
    sentence: str
    """The verdict with its figures."""


VERDICTS = ("host-bound", "communication-bound", "neither", "GPU mostly idle", "GPU-bound", "pace unknown")
"""Every name of a verdict; where devices differ, the first is told."""


def pace_line(pace: pl.DataFrame) -> str | None:
    """What sets the pace, in one sentence; of several devices the median one, and the worst.

    Args:
        pace: the `step_pace` table. Complete steps count; where there is none, all.

    A GPU that waits in a collective is busy, and what it waits for is another rank: where the median device does so,
    and the worst waits for its host, it is that host which sets the pace of all. Figures are medians over the steps.
    None where no step has a window.
    """
    rows = _counted_devices(pace)
    if not rows:
        return None
    middle, worst = rows[(len(rows) - 1) // 2], rows[-1]
    line = _verdict(middle).sentence
    if len(rows) == 1:
        return line
    several_devices = len({row["rank"] for row in rows}) < len(rows)
    if _waits_for_ranks(middle) and worst["host_frac"] >= HOST_BOUND_FRAC > middle["host_frac"]:
        share = fmt.rounded_percent(middle["waiting_frac"])
        about = f"{_who(middle, several_devices)}, the median, waits for other ranks {share} of it"
        return f"{_verdict(worst).sentence} ({_who(worst, several_devices)}, the worst of {len(rows)}; {about})"
    about = f"{_who(middle, several_devices)}, the median of {len(rows)}"
    if worst["host_frac"] > middle["host_frac"]:
        share = fmt.rounded_percent(worst["host_frac"])
        about += f"; worst {_who(worst, several_devices)}, whose GPU waits for the host {share} of the step"
    return f"{line} ({about})"


def verdicts(pace: pl.DataFrame) -> list[Verdict]:
    """What sets the pace on each device that has a step with a window.

    Args:
        pace: as for `pace_line`, for each device.
    """
    devices = pace.group_by("rank", "device", maintain_order=True)
    return [_verdict(row) for _, of_device in devices for row in _counted_devices(of_device)]


def _counted_devices(pace: pl.DataFrame) -> list[Row]:
    complete = pace.filter("is_complete")
    return _by_device(complete if complete.height else pace)


def _by_device(pace: pl.DataFrame) -> list[Row]:
    """The median step of each device, least waiting for the host first."""
    waiting = pl.when(pl.col("comm_waiting_ns").is_not_null()).then(
        pl.min_horizontal("exposed_comm_ns", "comm_waiting_ns")
    )
    steps = pace.with_columns(exposed_waiting_ns=waiting)
    medians = steps.group_by("rank", "device").agg(pl.median("wall_ns", *_PARTS.values()), n_steps=pl.len())
    fractions = {f"{name}_frac": pl.col(column) / pl.col("wall_ns") for name, column in _PARTS.items()}
    return (
        medians.filter(pl.col("wall_ns") > 0).with_columns(**fractions).sort("host_frac", "rank", "device").to_dicts()
    )


def _waits_for_ranks(row: Row) -> bool:
    """Whether the GPU waits in collectives, and does nothing else, for a part of the step that is to be told."""
    return (row["waiting_frac"] or 0) >= _LEAST_TOLD


def _verdict(row: Row) -> Verdict:
    step = "the median step" if row["n_steps"] > 1 else "the step"
    host, idle = fmt.rounded_percent(row["host_frac"]), fmt.rounded_percent(row["idle_frac"])
    if row["host_frac"] >= HOST_BOUND_FRAC:
        times = fmt.part_of(row["host_idle_ns"], row["wall_ns"])
        line = f"GPU waits for the host {host} of {step}: host-bound; {times}"
        return Verdict("host-bound", "a shorter kernel shortens the step little", line)
    for part, name, words, meaning in _OPEN:
        if row[f"{part}_frac"] >= _LEAST_TOLD:
            share = fmt.rounded_percent(row[f"{part}_frac"])
            return Verdict(name, meaning, f"GPU idle {idle} of {step}, {share} {words}")
    besides = f"idle {idle}, {host} waiting for the host" if row["host_idle_ns"] else f"idle {idle}"
    if _waits_for_ranks(row):
        waiting = fmt.rounded_percent(row["waiting_frac"])
        line = f"GPU waits for other ranks {waiting} of {step}: {_NEITHER}; {besides}"
        return Verdict("neither", f"{_NOR} it waits for other ranks in its collectives", line)
    exposed = f"nothing but communication runs for {fmt.rounded_percent(row['exposed_frac'])}"
    if row["exposed_frac"] >= _MOSTLY:
        doubt = "or it waits for another rank" if row["waiting_frac"] is None else ""
        bound = ", ".join(filter(None, ["communication-bound", doubt]))
        meaning = doubt or "what is not hidden of it shortens the step"
        return Verdict("communication-bound", meaning, f"{exposed.capitalize()} of {step}: {bound}; {besides}")
    launched = row["idle_frac"] - row["host_frac"] - row["no_work_frac"] - row["unknown_frac"]
    if launched >= _MOSTLY:
        share = fmt.rounded_percent(launched)
        line = f"GPU mostly idle: idle {idle} of {step}, {share} between kernels already launched"
        return Verdict("GPU mostly idle", "though its kernels were launched in time", line)
    line = _gpu_bound(row, f"idle {idle} of {step}")
    if row["exposed_frac"] >= _LEAST_TOLD:
        line = f"{line}; {exposed} of it"
    return Verdict("GPU-bound", "a shorter kernel shortens the step", line)


def _gpu_bound(row: Row, idle: str) -> str:
    """Where the host keeps up and idle time is no more than a part of the step."""
    if not row["idle_ns"]:
        return "GPU-bound: never idle in the step"
    if row["host_idle_ns"]:
        return f"GPU-bound: {idle}, {fmt.rounded_percent(row['host_frac'])} waiting for the host"
    explained = not (row["unknown_ns"] or row["no_work_ns"])
    return f"GPU-bound: {idle}" + (", all of it between kernels already launched" if explained else "")


def _who(row: Row, with_device: bool) -> str:
    return f"rank {row['rank']}" + (f" device {row['device']}" if with_device else "")
