"""Who sets the pace of the steps, in one sentence."""

from typing import Any

import polars as pl

from traceql import fmt
from traceql.analyses.pace import HOST_BOUND_FRAC
from traceql.report.stage_words import stage_name, stages_by_time

Row = dict[str, Any]

_LEAST_TOLD = 0.1
"""A share of wall from which on `no_work`, `unknown` and `dependency` are in the headline: the verdict would mislead
without."""


_MOSTLY_IDLE = 0.5
"""A share of wall between kernels already launched from which on the GPU's work does not set the pace."""


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
        share = fmt.rounded_percent(worst["host_frac"])
        about += f"; worst {_who(worst, several_devices)}, whose GPU waits for the host {share} of the step"
    return f"{_verdict(middle)} ({about})"


def _by_device(pace: pl.DataFrame) -> list[Row]:
    """The median step of each device, least waiting for the host first."""
    medians = pace.group_by("rank", "device").agg(
        pl.median("wall_ns", "idle_ns", "host_idle_ns", "no_work_ns", "unknown_ns", "dependency_ns"), n_steps=pl.len()
    )
    medians = medians.filter(pl.col("wall_ns") > 0).with_columns(
        **{
            f"{name}_frac": pl.col(column) / pl.col("wall_ns")
            for name, column in (
                ("idle", "idle_ns"),
                ("host", "host_idle_ns"),
                ("no_work", "no_work_ns"),
                ("unknown", "unknown_ns"),
                ("dependency", "dependency_ns"),
            )
        }
    )
    return medians.sort("host_frac", "rank", "device").to_dicts()


def _verdict(row: Row) -> str:
    step = "the median step" if row["n_steps"] > 1 else "the step"
    if row["host_frac"] >= HOST_BOUND_FRAC:
        times = fmt.part_of(row["host_idle_ns"], row["wall_ns"])
        return f"GPU waits for the host {fmt.rounded_percent(row['host_frac'])} of {step}: host-bound; {times}"
    idle = f"idle {fmt.rounded_percent(row['idle_frac'])} of {step}"
    if row["unknown_frac"] >= _LEAST_TOLD:
        return f"GPU {idle}, {fmt.rounded_percent(row['unknown_frac'])} of unknown cause: launches are not recorded"
    if row["no_work_frac"] >= _LEAST_TOLD:
        no_work = fmt.rounded_percent(row["no_work_frac"])
        return f"GPU {idle}, {no_work} without a batch to work on: neither host-bound nor GPU-bound"
    if row["dependency_frac"] >= _LEAST_TOLD:
        waiting = fmt.rounded_percent(row["dependency_frac"])
        return f"GPU {idle}, {waiting} waiting for another stream or a collective: neither host-bound nor GPU-bound"
    launched = row["idle_frac"] - row["host_frac"] - row["no_work_frac"] - row["unknown_frac"]
    if launched >= _MOSTLY_IDLE:
        return f"GPU mostly idle: {idle}, {fmt.rounded_percent(launched)} between kernels already launched"
    return _gpu_bound(row, idle)


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
