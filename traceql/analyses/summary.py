"""The answer to "where does a step's time go", as frames: what `traceql summarize` prints."""

from dataclasses import dataclass

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.change import OUTLIER_MADS
from traceql.analyses.once import once
from traceql.analyses.stages import stages
from traceql.analyses.step_windows import complete_steps, window_times
from traceql.errors import MissingDataError
from traceql.ingest.meta import TraceMeta
from traceql.ingest.quirks import Quirk
from traceql.tables import Column, Table
from traceql.trace import Trace

STEP_STATS = Table(
    "step_stats",
    "One row per figure of a step: its spread over the complete steps selected. Medians are of the middle two.",
    Column("figure", pl.String, "wall_ns, busy_ns, idle_ns, kernel_ns, annotation_ns, n_kernels"),
    Column("median", pl.Float64, "Median"),
    Column("p10", pl.Float64, "10th percentile (linear interpolation)"),
    Column("p90", pl.Float64, "90th percentile"),
    Column("min", pl.Float64, "Least"),
    Column("max", pl.Float64, "Greatest"),
)

_TIMES = (
    Column("exclusive_ns", pl.Int64, "Exclusive time within the windows; with idle it adds up to their wall"),
    Column("kernel_ns", pl.Int64, "Sum of durations of the activities launched in the steps"),
    Column("n_kernels", pl.Int64, "Number of GPU activities launched in the steps"),
    Column("ns_per_step", pl.Float64, "exclusive_ns over the number of windows", nullable=True),
    Column("share", pl.Float64, "exclusive_ns as a share of wall, 0 to 1; null without wall", nullable=True),
)

GROUPS = Table(
    "groups",
    "One row per category group, most exclusive time first.",
    Column("group", pl.String, "Group"),
    *_TIMES,
)
CATEGORIES = Table(
    "categories",
    "One row per category, most exclusive time first.",
    Column("category", pl.String, "Category"),
    Column("group", pl.String, "Its group"),
    *_TIMES,
)

_KERNEL_TIMES = (
    Column("n_kernels", pl.Int64, "Number of GPU activities launched in the steps"),
    Column("kernel_ns", pl.Int64, "Sum of their durations"),
    Column("ns_per_step", pl.Float64, "kernel_ns over the number of windows", nullable=True),
    Column(
        "share",
        pl.Float64,
        "kernel_ns over wall; streams overlap, so shares may add up to more than 1",
        nullable=True,
    ),
)

KERNEL_STATS = Table(
    "kernel_stats",
    "One row per kernel name, most kernel time first.",
    Column("name", pl.String, "Full name"),
    Column("short_name", pl.String, "Readable name"),
    Column("category", pl.String, "Category (the one with most time, where one name has several)"),
    *_KERNEL_TIMES,
    Column("median_dur_ns", pl.Float64, "Median duration of one", nullable=True),
    Column("min_dur_ns", pl.Int64, "Shortest", nullable=True),
    Column("max_dur_ns", pl.Int64, "Longest", nullable=True),
)

OP_STATS = Table(
    "op_stats",
    "One row per innermost CPU op, most kernel time first. A null op: launched outside any recorded op (graphs).",
    Column("op", pl.String, "Operator", nullable=True),
    *_KERNEL_TIMES,
)


@dataclass(frozen=True)
class Selection:
    """Which steps a summary covers: a half-open range of step numbers, a stage, or all."""

    first_step: int | None = None
    end_step: int | None = None
    stage: str | None = None


@dataclass(frozen=True)
class Summary:
    """Where the time of a trace goes, over the windows of the complete steps selected.

    `scope` is `steps`, or `trace` when no complete step was found or selected: then one window per device runs from
    its first to its last GPU activity, and per-step figures are per such window.
    """

    trace: TraceMeta
    selection: Selection
    scope: str
    n_windows: int
    wall_ns: int
    """Sum over the windows."""
    busy_ns: int
    idle_ns: int
    steps: pl.DataFrame
    """All steps (table `steps`) that the selection names, complete or not."""
    step_stats: pl.DataFrame
    outliers: pl.DataFrame
    """Those complete steps (table `steps`) whose wall is far from the median."""
    stages: pl.DataFrame
    """Table `stages`."""
    groups: pl.DataFrame
    categories: pl.DataFrame
    kernels: pl.DataFrame
    ops: pl.DataFrame
    outside_kernel_ns: int
    """GPU activities that belong to no step."""
    outside_n_kernels: int
    outside_wall_ns: int
    """Span of the GPU activity minus all windows."""
    n_kernels_total: int
    n_kernels_without_launch: int
    n_kernels_without_op: int
    """Of the activities launched in the selected steps: how many have no op (graphs)."""
    quirks: tuple[Quirk, ...]


_FIGURES = ("wall_ns", "busy_ns", "idle_ns", "kernel_ns", "annotation_ns", "n_kernels")
_PLACE = ["rank", "device"]
_STEP = [*_PLACE, "step"]
_OUTLIER_SHARE = 0.05
OUTLIER_PEERS = ["rank", "device", "stage", "batch_size"]
"""A step is an outlier among those that are alike in these."""


def summarize(trace: Trace, selection: Selection | None = None) -> Summary:
    """Where the time of a trace goes; worked out once for all steps, and kept while the trace is.

    Raises:
        MissingDataError: the selection names no step of the trace.
    """
    return _of_all_steps(trace) if selection in (None, Selection()) else _summary(trace, selection)


@once
def _of_all_steps(trace: Trace) -> Summary:
    return _summary(trace, Selection())


def _summary(trace: Trace, selection: Selection) -> Summary:
    found = Attribution.of(trace)
    chosen = selected_steps(found.steps, selection)
    complete = complete_steps(chosen)
    scope = "steps" if complete.height else "trace"
    part = _step_part(found, complete) if complete.height else _whole(found)
    kernel_stats, op_stats = _kernel_stats(part), _op_stats(part, trace.ops)
    outside = found.activities.filter(pl.col("step").is_null()) if complete.height else found.activities.clear()
    return Summary(
        trace=trace.meta,
        selection=selection,
        scope=scope,
        n_windows=part.n_windows,
        wall_ns=part.wall_ns,
        busy_ns=part.busy_ns,
        idle_ns=part.wall_ns - part.busy_ns,
        steps=chosen,
        step_stats=_step_stats(complete),
        outliers=outliers(complete),
        stages=stages(complete, found.times, found.activities),
        groups=_shares(part, "group"),
        categories=_shares(part, "category", "group"),
        kernels=kernel_stats,
        ops=op_stats,
        outside_kernel_ns=int(outside["dur_ns"].sum()),
        outside_n_kernels=outside.height,
        outside_wall_ns=found.outside_wall_ns if complete.height else 0,
        n_kernels_total=found.activities.height,
        n_kernels_without_launch=found.activities["launch_id"].null_count(),
        n_kernels_without_op=part.launched["op_id"].null_count(),
        quirks=trace.quirks,
    )


@dataclass(frozen=True)
class _Part:
    """What a summary is about: the activities launched there, and the exclusive times in its windows."""

    n_windows: int
    wall_ns: int
    launched: pl.DataFrame
    times: pl.DataFrame
    """kernel_id, exclusive_ns, category, group."""

    @property
    def busy_ns(self) -> int:
        return int(self.times["exclusive_ns"].sum())


def selected_steps(steps: pl.DataFrame, selection: Selection) -> pl.DataFrame:
    """The steps that a selection names, complete or not.

    Raises:
        MissingDataError: it names none.
    """
    wanted = pl.lit(True)
    if selection.first_step is not None:
        wanted &= pl.col("step") >= selection.first_step
    if selection.end_step is not None:
        wanted &= pl.col("step") < selection.end_step
    if selection.stage is not None:
        wanted &= pl.col("stage") == selection.stage
    chosen = steps.filter(wanted)
    if selection != Selection() and not chosen.height:
        stages = ", ".join(steps["stage"].unique().sort()) or "none"
        raise MissingDataError(
            "no step of the trace is selected",
            f"It has {steps['step'].n_unique()} steps, numbered from 0; stages: {stages}.",
        )
    return chosen


def _step_part(found: Attribution, complete: pl.DataFrame) -> _Part:
    keys = complete.select(_STEP)
    launched = found.activities.join(keys, on=_STEP, how="semi")
    times = found.times.join(keys, on=_STEP, how="semi")
    return _Part(complete.height, int(complete["wall_ns"].sum()), launched, _named(times, found.activities))


def _whole(found: Attribution) -> _Part:
    """The whole trace: one window per device, from its first to its last GPU activity."""
    timed = found.activities.filter(pl.col("start_ns").is_not_null())
    windows = timed.group_by(_PLACE).agg(
        pl.min("start_ns"), wall_ns=(pl.col("start_ns") + pl.col("dur_ns")).max() - pl.min("start_ns")
    )
    windows = windows.with_columns(step=pl.lit(0, pl.Int64))
    times = window_times(timed, windows)
    return _Part(windows.height, int(windows["wall_ns"].sum()), found.activities, _named(times, found.activities))


def _named(times: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    names = activities.select("kernel_id", "category", "group")
    return times.select("kernel_id", "exclusive_ns").join(names, on="kernel_id", validate="m:1")


def _per_step(part: _Part, column: str) -> tuple[pl.Expr, pl.Expr]:
    """ns_per_step and share of a column of ns; null where there is no window."""
    n, wall = (number or None for number in (part.n_windows, part.wall_ns))
    value = pl.col(column).cast(pl.Float64)
    return (value / n).alias("ns_per_step"), (value / wall).alias("share")


def _shares(part: _Part, *key: str) -> pl.DataFrame:
    launched = part.launched.group_by(key).agg(kernel_ns=pl.sum("dur_ns"), n_kernels=pl.len().cast(pl.Int64))
    ran = part.times.group_by(key).agg(pl.sum("exclusive_ns"))
    both = launched.join(ran, on=key, how="full", coalesce=True, validate="1:1")
    both = both.with_columns(pl.col("exclusive_ns", "kernel_ns", "n_kernels").fill_null(0))
    both = both.with_columns(*_per_step(part, "exclusive_ns"))
    table = CATEGORIES if len(key) == 2 else GROUPS
    return table.check(both.sort("exclusive_ns", key[0], descending=[True, False]))


def _kernel_stats(part: _Part) -> pl.DataFrame:
    by_category = part.launched.group_by("name", "category").agg(time=pl.sum("dur_ns"))
    main = by_category.sort("time", "category", descending=[True, False]).unique(
        "name", keep="first", maintain_order=True
    )
    stats = part.launched.group_by("name").agg(
        pl.first("short_name"),
        n_kernels=pl.len().cast(pl.Int64),
        kernel_ns=pl.sum("dur_ns"),
        median_dur_ns=pl.median("dur_ns"),
        min_dur_ns=pl.min("dur_ns"),
        max_dur_ns=pl.max("dur_ns"),
    )
    stats = stats.join(main.select("name", "category"), on="name", validate="1:1")
    stats = stats.with_columns(*_per_step(part, "kernel_ns"))
    return KERNEL_STATS.check(stats.sort("kernel_ns", "name", descending=[True, False]))


def _op_stats(part: _Part, ops: pl.LazyFrame) -> pl.DataFrame:
    launched = part.launched.select("op_id", "dur_ns")
    launching = ops.select("op_id", op="name").join(launched.lazy(), on="op_id", how="semi").collect()
    stats = launched.join(launching, on="op_id", how="left", validate="m:1").group_by("op").agg(
        n_kernels=pl.len().cast(pl.Int64), kernel_ns=pl.sum("dur_ns")
    )  # fmt: skip
    stats = stats.with_columns(*_per_step(part, "kernel_ns"))
    return OP_STATS.check(stats.sort("kernel_ns", "op", descending=[True, False], nulls_last=True))


def _step_stats(complete: pl.DataFrame) -> pl.DataFrame:
    rows = [
        {
            "figure": figure,
            "median": complete[figure].median(),
            "p10": complete[figure].quantile(0.1, "linear"),
            "p90": complete[figure].quantile(0.9, "linear"),
            "min": complete[figure].min(),
            "max": complete[figure].max(),
        }
        for figure in _FIGURES
        if complete[figure].drop_nulls().len()
    ]
    return STEP_STATS.check(pl.DataFrame(rows, schema=STEP_STATS.schema))


def outliers(complete: pl.DataFrame) -> pl.DataFrame:
    """The complete steps whose wall is far from the median of their stage and batch size.

    Far is more than 5 % of the median and more than three standard deviations, estimated by the median absolute
    deviation (times 1.4826, its factor for a normal distribution).
    """
    median = pl.col("wall_ns").median().over(OUTLIER_PEERS)
    deviation = (pl.col("wall_ns") - median).abs()
    spread = deviation.median().over(OUTLIER_PEERS)
    far = (deviation > OUTLIER_MADS * spread) & (deviation > _OUTLIER_SHARE * median)
    return complete.filter(far)
