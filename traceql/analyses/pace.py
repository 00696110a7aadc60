"""Who sets the pace of a step, the host or the GPU: idle time by cause, launches and how far they run ahead."""

from dataclasses import dataclass

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.idle import CAUSES, UNRECORDED_NS, idle_gaps
from traceql.analyses.once import once
from traceql.analyses.step_comm import step_comm
from traceql.analyses.summary import Selection, selected_steps
from traceql.ingest.meta import TraceMeta
from traceql.ingest.quirks import Quirk
from traceql.tables import DEVICE, RANK, STAGE, STEP, Column, Table
from traceql.trace import Trace

_METHOD_VERSION = 4
"""Raised whenever gaps or their causes are found in another way: what is kept of the old one is stale."""
HOST_BOUND_FRAC = 0.10
"""From this share of wall on that the GPU waits for the host (`launch` + `sync`) a step is host-bound."""

_PLACE_COLUMNS = (RANK, DEVICE)

STEP_PACE = Table(
    "step_pace",
    "One row per step that has a window. Sorted by rank, device, step.",
    *_PLACE_COLUMNS,
    STEP,
    STAGE,
    Column("is_complete", pl.Boolean, "Has a next step to end its window"),
    Column("wall_ns", pl.Int64, "Length of the window"),
    Column("idle_ns", pl.Int64, "Of it, without any GPU activity"),
    Column("no_work_ns", pl.Int64, "Idle: the engine had no batch"),
    Column("sync_ns", pl.Int64, "Idle: the host waited for the GPU, or had not launched yet after it"),
    Column("launch_ns", pl.Int64, "Idle: the next activity was launched late, and started soon"),
    Column("dependency_ns", pl.Int64, "Idle: a recorded wait on another stream, or a collective"),
    Column("gpu_gap_ns", pl.Int64, "Idle: between activities already launched"),
    Column(
        "unrecorded_ns",
        pl.Int64,
        f"Of dependency_ns and gpu_gap_ns: in gaps of {UNRECORDED_NS:,} ns and more, for something not recorded",
    ),
    Column("unknown_ns", pl.Int64, "Idle: the launch is not recorded"),
    Column("host_idle_ns", pl.Int64, "launch + sync: the GPU waits for the host"),
    Column("host_idle_frac", pl.Float64, "host_idle_ns as a share of wall; null without wall", nullable=True),
    Column("is_host_bound", pl.Boolean, f"host_idle_frac is at least {HOST_BOUND_FRAC:.0%}"),
    Column("exposed_comm_ns", pl.Int64, "Of the window: only communication runs"),
    Column(
        "comm_waiting_ns",
        pl.Int64,
        "Waiting for other ranks in the collectives that the step launched; null for one rank alone, or where nothing "
        "could be matched",
        nullable=True,
    ),
    Column("n_gaps", pl.Int64, "Gaps in the window"),
    Column("max_outstanding", pl.Int64, "Most launches outstanding in the window"),
    Column(
        "mean_outstanding", pl.Float64, "Launches outstanding, mean over its time; null without wall", nullable=True
    ),
)

QUEUE_DEPTH = Table(
    "queue_depth",
    "One row per moment at which the number of outstanding launches changes: calls begun of which no activity has "
    "started. It holds up to the next row; before the first it is 0. Sorted by rank, device, time.",
    *_PLACE_COLUMNS,
    Column("time_ns", pl.Int64, "When, since the trace's first event"),
    Column("n_outstanding", pl.Int64, "Launches outstanding from then on; never negative"),
)

LAUNCH_STATS = Table(
    "launch_stats",
    "One row per rank, device and name of the call that launches. Sorted by rank, device, most time in calls first.",
    *_PLACE_COLUMNS,
    Column("name", pl.String, "Name of the call"),
    Column("n_launches", pl.Int64, "Calls that launched an activity on the device"),
    Column("n_kernels", pl.Int64, "GPU activities launched"),
    Column("kernels_per_launch", pl.Float64, "n_kernels over n_launches"),
    Column("call_ns", pl.Int64, "Host time in the calls, added up"),
    Column("call_ns_per_kernel", pl.Float64, "call_ns over n_kernels: what launching costs the host"),
    Column("median_call_ns", pl.Float64, "Length of a call: median"),
    Column("p90_call_ns", pl.Float64, "Length of a call: 90th percentile (linear interpolation)"),
    Column("median_delay_ns", pl.Float64, "Begin of a call to start of its first activity: median", nullable=True),
    Column("p10_delay_ns", pl.Float64, "The same: 10th percentile", nullable=True),
    Column("p90_delay_ns", pl.Float64, "The same: 90th percentile", nullable=True),
)

IDLE_CAUSES = Table(
    "idle_causes",
    "One row per rank, device and cause that occurs, over the steps counted. Sorted by rank, device, most time first.",
    *_PLACE_COLUMNS,
    Column("cause", pl.String, "no_work, sync, launch, dependency, gpu_gap or unknown"),
    Column("idle_ns", pl.Int64, "Idle time of this cause, added up"),
    Column("median_step_ns", pl.Float64, "Idle time of this cause in a step: median (of all steps, those without too)"),
    Column("ns_per_step", pl.Float64, "The same: mean"),
    Column("share", pl.Float64, "idle_ns as a share of the wall of these steps", nullable=True),
    Column("n_gaps", pl.Int64, "Number of gaps"),
    Column("gaps_per_step", pl.Float64, "n_gaps over the number of steps"),
    Column("median_gap_ns", pl.Float64, "Length of a gap: median"),
)

_PLACE = ["rank", "device"]
_STEP = [*_PLACE, "step"]
_CAUSE_COLUMNS = [f"{cause}_ns" for cause in CAUSES]


@dataclass(frozen=True)
class Pace:
    """Why the GPUs of a trace or run were idle in the steps selected, and what the host launched meanwhile."""

    trace: TraceMeta
    selection: Selection
    n_kernels: int
    """GPU activities of the trace, in steps or not."""
    n_steps: int
    """Steps selected, with a window or without."""
    steps: pl.DataFrame
    """Table `step_pace`: the steps selected that have a window."""
    counted: pl.DataFrame
    """Those of `steps` that figures count: the complete ones; all where none is complete."""
    causes: pl.DataFrame
    """Table `idle_causes`."""
    gaps: pl.DataFrame
    """Table `idle` of the steps counted, with the text columns `next_kernel`, `launch` and `op`; longest first."""
    launches: pl.DataFrame
    """Table `launch_stats` of what was launched in the steps counted."""
    quirks: tuple[Quirk, ...]

    @property
    def is_complete(self) -> bool:
        """Whether the steps counted are complete ones."""
        return bool(self.counted["is_complete"].any())


def pace(trace: Trace, selection: Selection | None = None) -> Pace:
    """Who sets the pace of the steps of a trace or run; worked out once for all steps, and kept while the trace is.

    Raises:
        MissingDataError: the selection names no step of the trace.
    """
    return _of_all_steps(trace) if selection in (None, Selection()) else _pace(trace, selection)


@once
def _of_all_steps(trace: Trace) -> Pace:
    return _pace(trace, Selection())


def _pace(trace: Trace, selection: Selection) -> Pace:
    found = Attribution.of(trace)
    chosen = selected_steps(found.steps, selection)
    gaps = idle_gaps(trace)
    steps = _pace_of(trace, found, gaps).join(chosen, on=_STEP, how="semi")
    complete = steps.filter("is_complete")
    counted = complete if complete.height else steps
    of_counted = gaps.join(counted, on=_STEP, how="semi")
    launched = found.activities.join(counted, on=_STEP, how="semi")
    return Pace(
        trace=trace.meta,
        selection=selection,
        n_kernels=found.activities.height,
        n_steps=chosen.height,
        steps=steps,
        counted=counted,
        causes=idle_causes(counted, of_counted),
        gaps=_named(of_counted, found.activities, trace),
        launches=stats_of_launches(launched, trace.launches),
        quirks=trace.quirks,
    )


def step_pace(trace: Trace) -> pl.DataFrame:
    """The `step_pace` table of a trace or run: idle time of each step by cause, and launches outstanding."""
    return _pace_of(trace, Attribution.of(trace), idle_gaps(trace))


def _pace_of(trace: Trace, found: Attribution, gaps: pl.DataFrame) -> pl.DataFrame:
    return pace_of_steps(found.steps, gaps, queue_depth(trace, found), step_comm(trace))


def launch_stats(trace: Trace) -> pl.DataFrame:
    """The `launch_stats` table of a trace or run, over all its activities; those without a launch are left out."""
    return stats_of_launches(Attribution.of(trace).activities, trace.launches)


def queue_depth(trace: Trace, found: Attribution | None = None) -> pl.DataFrame:
    """The `queue_depth` table of a trace or run.

    A launch is outstanding from the beginning of its call to the start of its first activity. Activities without a
    launch do not count, nor do launches whose activity is recorded to start before the call.
    """
    activities = trace.kernels if found is None else found.activities.lazy()
    launched = _launched(activities, trace.launches).filter(pl.col("first_ns") > pl.col("start_ns"))
    begun = launched.select(*_PLACE, time_ns="start_ns", change=pl.lit(1, pl.Int64))
    started = launched.select(*_PLACE, time_ns="first_ns", change=pl.lit(-1, pl.Int64))
    changes = pl.concat([begun, started]).group_by(*_PLACE, "time_ns").agg(pl.sum("change"))
    depth = changes.filter(pl.col("change") != 0).sort(*_PLACE, "time_ns")
    depth = depth.with_columns(n_outstanding=pl.col("change").cum_sum().over(_PLACE)).drop("change")
    return QUEUE_DEPTH.check(depth.collect())


def pace_of_steps(steps: pl.DataFrame, gaps: pl.DataFrame, depth: pl.DataFrame, comm: pl.DataFrame) -> pl.DataFrame:
    """The `step_pace` table.

    Args:
        steps: the `steps` table; those without a window are left out.
        gaps: the `idle` table.
        depth: the `queue_depth` table.
        comm: communication of the steps, as `step_comm` gives it.
    """
    rows = idle_of_steps(steps, gaps, comm)
    rows = rows.join(_outstanding(rows, depth), on=_STEP, validate="1:1")
    return STEP_PACE.check(rows.select(STEP_PACE.names).sort(_STEP))


def idle_by_step(trace: Trace) -> pl.DataFrame:
    """As `step_pace`, but for launches outstanding; kept with a cached trace."""

    def worked_out() -> dict[str, pl.DataFrame]:
        found = Attribution.of(trace)
        return {"idle_by_step": idle_of_steps(found.steps, idle_gaps(trace), step_comm(trace))}

    return trace.kept(f"idle-{_METHOD_VERSION}-{trace.categories.fingerprint}", worked_out)["idle_by_step"]


def idle_of_steps(steps: pl.DataFrame, gaps: pl.DataFrame, comm: pl.DataFrame) -> pl.DataFrame:
    """The `step_pace` table but for launches outstanding: idle time by cause, and whether the host sets the pace.

    Args:
        steps: the `steps` table; those without a window are left out.
        gaps: the `idle` table.
        comm: communication of the steps, as `step_comm` gives it.
    """
    columns = (*_STEP, "stage", "is_complete", "start_ns", "wall_ns", "idle_ns")
    rows = steps.filter(pl.col("wall_ns").is_not_null()).select(columns)
    parts = [pl.col("dur_ns").filter(pl.col("cause") == cause).sum().alias(f"{cause}_ns") for cause in CAUSES]
    is_unrecorded = pl.col("cause").is_in(["dependency", "gpu_gap"]) & (pl.col("dur_ns") >= UNRECORDED_NS)
    unrecorded = pl.col("dur_ns").filter(is_unrecorded).sum()
    idle = gaps.group_by(_STEP).agg(*parts, unrecorded_ns=unrecorded, n_gaps=pl.len().cast(pl.Int64))
    rows = rows.join(idle, on=_STEP, how="left", validate="1:1")
    rows = rows.join(comm.drop("comm_ns"), on=_STEP, how="left", validate="1:1")
    rows = rows.with_columns(pl.col(*_CAUSE_COLUMNS, "unrecorded_ns", "n_gaps", "exposed_comm_ns").fill_null(0))
    rows = rows.with_columns(host_idle_ns=pl.col("launch_ns") + pl.col("sync_ns"))
    host_frac = _over(pl.col("host_idle_ns"), "wall_ns")
    return rows.with_columns(host_idle_frac=host_frac, is_host_bound=(host_frac >= HOST_BOUND_FRAC).fill_null(False))


def _outstanding(windows: pl.DataFrame, depth: pl.DataFrame) -> pl.DataFrame:
    """max_outstanding and mean_outstanding of each window."""
    held_ns = (pl.col("time_ns") - pl.col("time_ns").shift()) * pl.col("n_outstanding").shift()
    depth = depth.with_columns(area=held_ns.fill_null(0).cum_sum().over(_PLACE)).sort("time_ns")
    borders = windows.select(*_STEP, "start_ns", "wall_ns", end_ns=pl.col("start_ns") + pl.col("wall_ns"))

    def at(border: str) -> pl.DataFrame:
        before = borders.sort(border).join_asof(
            depth, left_on=border, right_on="time_ns", by=_PLACE, check_sortedness=False
        )
        area = pl.col("area") + pl.col("n_outstanding") * (pl.col(border) - pl.col("time_ns"))
        return before.select(*_STEP, "wall_ns", n=pl.col("n_outstanding").fill_null(0), area=area.fill_null(0))

    first = at("start_ns")
    both = first.join(at("end_ns").select(*_STEP, end_area="area"), on=_STEP, validate="1:1")
    within = depth.join_asof(
        borders.sort("start_ns"), left_on="time_ns", right_on="start_ns", by=_PLACE, check_sortedness=False
    ).filter(pl.col("time_ns") < pl.col("end_ns"))
    highest = within.group_by(_STEP).agg(highest=pl.max("n_outstanding"))
    return both.join(highest, on=_STEP, how="left", validate="1:1").select(
        *_STEP,
        max_outstanding=pl.max_horizontal("n", "highest"),
        mean_outstanding=_over(pl.col("end_area") - pl.col("area"), "wall_ns"),
    )


def stats_of_launches(activities: pl.DataFrame, launches: pl.LazyFrame) -> pl.DataFrame:
    """The `launch_stats` table.

    Args:
        activities: GPU activities with their launch_id.
        launches: runtime and driver calls.
    """
    delay = pl.col("first_ns") - pl.col("start_ns")
    stats = _launched(activities.lazy(), launches).group_by(*_PLACE, "name").agg(
        n_launches=pl.len().cast(pl.Int64),
        n_kernels=pl.sum("n_kernels"),
        call_ns=pl.sum("dur_ns"),
        median_call_ns=pl.median("dur_ns"),
        p90_call_ns=pl.col("dur_ns").quantile(0.9, "linear"),
        median_delay_ns=delay.median(),
        p10_delay_ns=delay.quantile(0.1, "linear"),
        p90_delay_ns=delay.quantile(0.9, "linear"),
    ).with_columns(
        kernels_per_launch=pl.col("n_kernels") / pl.col("n_launches"),
        call_ns_per_kernel=pl.col("call_ns") / pl.col("n_kernels"),
    )  # fmt: skip
    ordered = stats.sort(*_PLACE, "call_ns", "name", descending=[False, False, True, False])
    return LAUNCH_STATS.check(ordered.select(LAUNCH_STATS.names).collect())


def _launched(activities: pl.LazyFrame, launches: pl.LazyFrame) -> pl.LazyFrame:
    """Each launch on each device: name, start_ns, dur_ns, first_ns (its first activity) and n_kernels."""
    calls = launches.select("launch_id", "name", "start_ns", "dur_ns")
    first = activities.filter(pl.col("launch_id").is_not_null()).group_by(*_PLACE, "launch_id").agg(
        first_ns=pl.min("start_ns"), n_kernels=pl.len().cast(pl.Int64)
    )  # fmt: skip
    return first.join(calls, on="launch_id", validate="m:1")


def idle_causes(steps: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """The `idle_causes` table.

    Args:
        steps: the rows of `step_pace` to count.
        gaps: the rows of `idle` in them.
    """
    of_place = steps.group_by(_PLACE).agg(n_steps=pl.len(), wall_ns=pl.sum("wall_ns"))
    per_step = steps.unpivot(_CAUSE_COLUMNS, index=_PLACE, variable_name="cause", value_name="ns")
    medians = per_step.with_columns(pl.col("cause").str.strip_suffix("_ns")).group_by(*_PLACE, "cause").agg(
        median_step_ns=pl.median("ns")
    )  # fmt: skip
    found = gaps.group_by(*_PLACE, "cause").agg(
        idle_ns=pl.sum("dur_ns"), n_gaps=pl.len().cast(pl.Int64), median_gap_ns=pl.median("dur_ns")
    )
    found = found.join(of_place, on=_PLACE, validate="m:1").join(medians, on=[*_PLACE, "cause"], validate="1:1")
    found = found.with_columns(
        ns_per_step=pl.col("idle_ns") / pl.col("n_steps"),
        share=_over(pl.col("idle_ns"), "wall_ns"),
        gaps_per_step=pl.col("n_gaps") / pl.col("n_steps"),
    )
    ordered = found.sort(*_PLACE, "idle_ns", "cause", descending=[False, False, True, False])
    return IDLE_CAUSES.check(ordered.select(IDLE_CAUSES.names))


def _over(part: pl.Expr, whole: str) -> pl.Expr:
    """A part as a fraction of a column; null where that is 0."""
    return pl.when(pl.col(whole) > 0).then(part / pl.col(whole))


def _named(gaps: pl.DataFrame, activities: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """The gaps with the names of what ended them, its launch and the op around that; longest first."""
    kernels = activities.select(pl.col("kernel_id").alias("next_kernel_id"), "op_id", next_kernel="short_name")
    calls = trace.launches.select("launch_id", launch="name").collect()
    ops = trace.ops.select("op_id", op="name").collect()
    named = (
        gaps.join(kernels, on="next_kernel_id", how="left", validate="m:1")
        .join(calls, on="launch_id", how="left", validate="m:1")
        .join(ops, on="op_id", how="left", validate="m:1")
    )
    return named.drop("op_id").sort("dur_ns", *_STEP, "start_ns", descending=[True, False, False, False, False])
