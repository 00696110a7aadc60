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
}
"""Columns of `step_pace` that the verdict rests on, by what they are called here."""

_UNKNOWN, _NEITHER = "pace unknown", "neither host-bound nor GPU-bound"
_OPEN = (
    ("unknown", _UNKNOWN, "of unknown cause: launches are not recorded", "launches are not recorded"),
    ("no_work", _NEITHER, f"without a batch to work on: {_NEITHER}", "the engine has no batch to work on"),
    (
        "unrecorded",
        _NEITHER,
        f"in long gaps before work already launched, which waits for what is not recorded: {_NEITHER}",
        "launched work waits for what is not recorded",
    ),
    (
        "dependency",
        _NEITHER,
        f"waiting for another stream or a collective: {_NEITHER}",
        "it waits for another stream or a collective",
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


VERDICTS = (_NEITHER, "host-bound", "communication-bound", "GPU mostly idle", "GPU-bound", _UNKNOWN)
"""Every name of a verdict; where devices differ, the first is told."""


def pace_line(pace: pl.DataFrame) -> str | None:
    """What sets the pace, in one sentence; of several devices the median one, and the worst.

    Args:
        pace: the `step_pace` table. Complete steps count; where there is none, all.

    Figures are medians over the steps. None where no step has a window.
    """
    rows = _counted_devices(pace)
    if not rows:
        return None
    middle, worst = rows[(len(rows) - 1) // 2], rows[-1]
    line = _verdict(middle).sentence
    if len(rows) == 1:
        return line
    several_devices = len({row["rank"] for row in rows}) < len(rows)
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
    medians = pace.group_by("rank", "device").agg(pl.median("wall_ns", *_PARTS.values()), n_steps=pl.len())
    fractions = {f"{name}_frac": pl.col(column) / pl.col("wall_ns") for name, column in _PARTS.items()}
    return (
        medians.filter(pl.col("wall_ns") > 0).with_columns(**fractions).sort("host_frac", "rank", "device").to_dicts()
    )


def _verdict(row: Row) -> Verdict:
    step = "the median step" if row["n_steps"] > 1 else "the step"
    percent = {name: fmt.rounded_percent(row[f"{name}_frac"]) for name in _PARTS}
    if row["host_frac"] >= HOST_BOUND_FRAC:
        times = fmt.part_of(row["host_idle_ns"], row["wall_ns"])
        line = f"GPU waits for the host {percent['host']} of {step}: host-bound; {times}"
        return Verdict("host-bound", "a shorter kernel shortens the step little", line)
    idle = f"idle {percent['idle']} of {step}"
    for part, name, words, meaning in _OPEN:
        if row[f"{part}_frac"] >= _LEAST_TOLD:
            return Verdict(name, meaning, f"GPU {idle}, {percent[part]} {words}")
    if row["exposed_frac"] >= _MOSTLY:
        host = f", {percent['host']} waiting for the host" if row["host_idle_ns"] else ""
        line = (
            f"Nothing but communication runs for {percent['exposed']} of {step}: communication-bound, or it waits for "
            f"another rank; idle {percent['idle']}{host}"
        )
        return Verdict("communication-bound", "or it waits for another rank", line)
    launched = row["idle_frac"] - row["host_frac"] - row["no_work_frac"] - row["unknown_frac"]
    if launched >= _MOSTLY:
        line = f"GPU mostly idle: {idle}, {fmt.rounded_percent(launched)} between kernels already launched"
        return Verdict("GPU mostly idle", "though its kernels were launched in time", line)
    exposed = f"; nothing but communication runs for {percent['exposed']} of it"
    line = _gpu_bound(row, idle) + (exposed if row["exposed_frac"] >= _LEAST_TOLD else "")
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
