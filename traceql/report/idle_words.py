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


_MOSTLY = 0.5
"""A share of wall between kernels already launched, or of nothing but communication that may be waiting, from which on
the GPU's work does not set the pace."""
_STEP = ["rank", "device", "step"]


def pace_lines(pace: pl.DataFrame, comm: pl.DataFrame | None = None) -> tuple[str, ...]:
    """Whether the GPU waits for the host; where the complete steps are of several stages, a sentence each.

    Args:
        pace: the `step_pace` table.
        comm: communication of the steps, as `step_comm` gives it; without, none is known.
    """
    complete = pace.filter("is_complete")
    stages = stages_by_time(complete)
    if len(stages) < 2:
        return tuple(filter(None, [pace_line(pace, comm)]))
    lines = ((stage, pace_line(complete.filter(stage=stage), comm)) for stage in stages)
    return tuple(f"{stage_name(stage)}: {line}" for stage, line in lines if line)


def pace_line(pace: pl.DataFrame, comm: pl.DataFrame | None = None) -> str | None:
    """Whether the GPU waits for the host, in one sentence; of several devices the median one, and the worst.

    Args:
        pace: the `step_pace` table. Complete steps count; where there is none, all.
        comm: as for `pace_lines`.

    A GPU that waits in a collective is busy, and what it waits for is another rank: where the median device does so,
    and the worst waits for its host, it is that host which sets the pace of all. Figures are medians over the steps.
    None where no step has a window.
    """
    complete = pace.filter("is_complete")
    rows = _by_device(complete if complete.height else pace, comm)
    if not rows:
        return None
    middle, worst = rows[(len(rows) - 1) // 2], rows[-1]
    if len(rows) == 1:
        return _verdict(middle)
    several_devices = len({row["rank"] for row in rows}) < len(rows)
    if _waits_for_ranks(middle) and worst["host_frac"] >= HOST_BOUND_FRAC > middle["host_frac"]:
        share = fmt.rounded_percent(middle["waiting_frac"])
        about = f"{_who(middle, several_devices)}, the median, waits for other ranks {share} of it"
        return f"{_verdict(worst)} ({_who(worst, several_devices)}, the worst of {len(rows)}; {about})"
    about = f"{_who(middle, several_devices)}, the median of {len(rows)}"
    if worst["host_frac"] > middle["host_frac"]:
        share = fmt.rounded_percent(worst["host_frac"])
        about += f"; worst {_who(worst, several_devices)}, whose GPU waits for the host {share} of the step"
    return f"{_verdict(middle)} ({about})"


_PARTS = {
    "idle": "idle_ns", "host": "host_idle_ns", "no_work": "no_work_ns", "unknown": "unknown_ns",
    "dependency": "dependency_ns", "exposed": "exposed_comm_ns", "waiting": "exposed_waiting_ns",
}  # fmt: skip


def _by_device(pace: pl.DataFrame, comm: pl.DataFrame | None) -> list[Row]:
    """The median step of each device, least waiting for the host first."""
    if comm is None:
        steps = pace.with_columns(pl.lit(None, pl.Int64).alias(name) for name in ("exposed_comm_ns", "comm_waiting_ns"))
    else:
        steps = pace.join(comm, on=_STEP, how="left", validate="1:1")
    exposed, waiting = pl.col("exposed_comm_ns"), pl.col("comm_waiting_ns")
    steps = steps.with_columns(
        exposed_waiting_ns=pl.when(waiting.is_not_null()).then(pl.min_horizontal(exposed, waiting))
    )
    medians = steps.group_by("rank", "device").agg(pl.median("wall_ns", *_PARTS.values()), n_steps=pl.len())
    shares = {f"{name}_frac": pl.col(column) / pl.col("wall_ns") for name, column in _PARTS.items()}
    medians = medians.filter(pl.col("wall_ns") > 0).with_columns(**shares)
    return medians.sort("host_frac", "rank", "device").to_dicts()


def _waits_for_ranks(row: Row) -> bool:
    """Whether waiting in collectives, known from all ranks, is a part of the step to be told."""
    return (row["waiting_frac"] or 0) >= _LEAST_TOLD


def _may_wait_for_ranks(row: Row) -> bool:
    """Whether most of the step is communication of which none knows whether it waits."""
    return row["waiting_frac"] is None and (row["exposed_frac"] or 0) >= _MOSTLY


def _verdict(row: Row) -> str:
    step = "the median step" if row["n_steps"] > 1 else "the step"
    if row["host_frac"] >= HOST_BOUND_FRAC:
        times = fmt.part_of(row["host_idle_ns"], row["wall_ns"])
        return f"GPU waits for the host {fmt.rounded_percent(row['host_frac'])} of {step}: host-bound; {times}"
    idle = f"idle {fmt.rounded_percent(row['idle_frac'])} of {step}"
    if row["unknown_frac"] >= _LEAST_TOLD:
        return f"{idle}, {fmt.rounded_percent(row['unknown_frac'])} of unknown cause: launches are not recorded"
    if waits := _waits(row, step, idle):
        return f"{waits}: neither host-bound nor GPU-bound"
    launched = row["idle_frac"] - row["host_frac"] - row["no_work_frac"] - row["unknown_frac"]
    if launched >= _MOSTLY:
        return f"GPU mostly idle: {idle}, {fmt.rounded_percent(launched)} between kernels already launched"
    return _gpu_bound(row, idle)


def _waits(row: Row, step: str, idle: str) -> str | None:
    """What the GPU waits for that is neither its host nor its own work, idle or in a collective; None for nothing."""
    if row["no_work_frac"] >= _LEAST_TOLD:
        return f"{idle}, {fmt.rounded_percent(row['no_work_frac'])} without a batch to work on"
    if row["dependency_frac"] >= _LEAST_TOLD:
        return f"{idle}, {fmt.rounded_percent(row['dependency_frac'])} waiting for another stream or a collective"
    if _waits_for_ranks(row):
        waiting = fmt.rounded_percent(row["waiting_frac"])
        return f"GPU waits for other ranks {waiting} of {step}, {_idle_besides(row)}"
    if _may_wait_for_ranks(row):
        comm = f"{fmt.rounded_percent(row['exposed_frac'])} of {step}, {_idle_besides(row)}"
        return f"nothing but communication (transfer, or waiting for other ranks) runs {comm}"
    return None


def _idle_besides(row: Row) -> str:
    host = f" ({fmt.rounded_percent(row['host_frac'])} waiting for the host)" if row["host_idle_ns"] else ""
    return f"idle {fmt.rounded_percent(row['idle_frac'])}{host}"


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
