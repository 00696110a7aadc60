"""What rules ask of a step: one row per step with figures of all analyses side by side.

Nothing is worked out twice: times come from the analyses that define them; counted here is only what no other
analysis counts.
"""

from collections.abc import Iterator

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.category_times import step_categories
from traceql.analyses.counted_steps import counted_steps
from traceql.analyses.host_waits import host_waits_of
from traceql.analyses.once import once
from traceql.analyses.pace import idle_by_step
from traceql.analyses.step_comm import step_comm
from traceql.analyses.step_windows import COMPLETE, complete_steps
from traceql.analyses.summary import Selection, outliers
from traceql.tables import BATCH_SIZE, DEVICE, RANK, STAGE, STEP, Column, Table
from traceql.trace import Trace

TINY_NS = 5_000
"""A kernel shorter than this takes about as long to launch as to run."""

STEP_FACTS = Table(
    "step_facts",
    "One row per step, rank and device: what rules ask of a step. Times are by window unless the column says by "
    "launch; null where the step has no window. Sorted by rank, device, step.",
    RANK,
    DEVICE,
    STEP,
    STAGE,
    BATCH_SIZE,
    Column("is_complete", pl.Boolean, "Has a next step to end its window"),
    Column("separable", pl.Boolean, "Its window overlaps no other step's"),
    Column("is_counted", pl.Boolean, "Figures count it: complete, with a window; any with a window where none is"),
    Column("is_training", pl.Boolean, "Its rank runs a backward pass or an optimizer"),
    Column("is_between_decodes", pl.Boolean, "A decode step comes before it and another after it on its device"),
    Column("wall_ns", pl.Int64, "Length of the window", nullable=True),
    Column(
        "median_wall_ns",
        pl.Float64,
        "Median wall of the complete steps of the same stage and batch size",
        nullable=True,
    ),
    Column(
        "median_decode_wall_ns", pl.Float64, "Median wall of the complete decode steps of the device", nullable=True
    ),
    Column("is_outlier", pl.Boolean, "Complete, and its wall is far from the median (see `outliers` of summarize)"),
    Column("busy_ns", pl.Int64, "Union of GPU activity", nullable=True),
    Column("idle_ns", pl.Int64, "wall - busy", nullable=True),
    Column("launch_ns", pl.Int64, "Idle: the next activity was launched late, and started soon", nullable=True),
    Column("sync_ns", pl.Int64, "Idle: the host waited for the GPU, or had not launched yet after it", nullable=True),
    Column("dependency_ns", pl.Int64, "Idle: a recorded wait on another stream, or a collective", nullable=True),
    Column("gpu_gap_ns", pl.Int64, "Idle: between activities already launched", nullable=True),
    Column("host_idle_ns", pl.Int64, "Idle: launch + sync, the GPU waits for the host", nullable=True),
    Column("n_gaps", pl.Int64, "Gaps in the window", nullable=True),
    Column("is_host_bound", pl.Boolean, "As in `step_pace`", nullable=True),
    Column("comm_ns", pl.Int64, "A communication kernel runs", nullable=True),
    Column("exposed_comm_ns", pl.Int64, "Only communication runs", nullable=True),
    Column(
        "comm_waiting_ns",
        pl.Int64,
        "Time in communication kernels until the last rank came (see `collectives`), by "
        "launch; null for one rank alone, or where nothing could be matched",
        nullable=True,
    ),
    Column(
        "unclassified_ns", pl.Int64, "Exclusive time of kernels whose name says nothing (category other)", nullable=True
    ),
    Column("kernel_ns", pl.Int64, "Sum of the durations of the activities launched in the step"),
    Column("n_kernels", pl.Int64, "GPU activities launched in the step"),
    Column("n_tiny_kernels", pl.Int64, f"Of them, kernels shorter than {TINY_NS:,} ns"),
    Column("tiny_kernel_ns", pl.Int64, "Sum of the durations of those"),
    Column("n_graph_launches", pl.Int64, "Calls that launched a graph"),
    Column("n_graph_kernels", pl.Int64, "Activities launched by those"),
    Column("n_eager_launches", pl.Int64, "All other calls that launched an activity"),
    Column(
        "n_host_waits",
        pl.Int64,
        "Host waits that began inside the annotation, on its thread; null without an annotation",
        nullable=True,
    ),
    Column("host_wait_ns", pl.Int64, "Host time in those", nullable=True),
    Column("n_pageable_copies", pl.Int64, "Of them, copies to or from pageable memory", nullable=True),
    Column("pageable_copy_ns", pl.Int64, "Host time in those", nullable=True),
    Column(
        "n_blocking_copies", pl.Int64, "Of them, other copies whose call returns only when they are done", nullable=True
    ),
    Column("blocking_copy_ns", pl.Int64, "Host time in those", nullable=True),
    Column(
        "n_ops",
        pl.Int64,
        "CPU operators that began inside the annotation, on its thread; null without an "
        "annotation or recorded operators",
        nullable=True,
    ),
    Column(
        "n_python_calls",
        pl.Int64,
        "Python frames that began inside the annotation, on its thread; null without an annotation or recorded stacks",
        nullable=True,
    ),
)

_KIND_OF_STEP = ("rank", "device", "stage", "batch_size")
_MEDIANS = [
    Column(column.name, pl.Float64, f"Median of: {column.doc}", column.nullable)
    for column in STEP_FACTS
    if column.dtype == pl.Int64 and column.name not in (*_KIND_OF_STEP, "step")
]

TYPICAL_STEPS = Table(
    "typical_steps",
    "One row per rank, device, stage and batch size: the medians of `step_facts` over the steps counted. Sorted by its "
    "first four columns.",
    *(column for column in STEP_FACTS if column.name in _KIND_OF_STEP),
    Column("n_steps_counted", pl.Int64, "Steps of this kind that are counted"),
    Column("is_training", pl.Boolean, "Its rank runs a backward pass or an optimizer"),
    Column("is_host_bound", pl.Boolean, "More than half of the steps are"),
    *_MEDIANS,
)

_PLACE = ["rank", "device"]
_STEP = [*_PLACE, "step"]
_IDLE = ["launch_ns", "sync_ns", "dependency_ns", "gpu_gap_ns", "host_idle_ns", "n_gaps", "is_host_bound"]
_COUNTED_BY_LAUNCH = ["n_tiny_kernels", "tiny_kernel_ns", "n_graph_launches", "n_graph_kernels", "n_eager_launches"]
_ALIKE = [*_PLACE, "stage", "batch_size"]
"""Steps whose walls are compared, as `outliers` does."""


@once
def step_facts(trace: Trace) -> pl.DataFrame:
    """The `step_facts` table of a trace or run; empty without steps. Worked out once."""
    found = Attribution.of(trace)
    rows = found.steps.with_columns(**_medians(), **_neighbours())
    for facts in _facts(trace, found):
        on = [name for name in _STEP if name in facts.columns]
        rows = rows.join(facts, on=on, how="left", validate="1:1" if on == _STEP else "m:1")
    has_window = pl.col("wall_ns").is_not_null()
    rows = rows.with_columns(
        pl.col(_COUNTED_BY_LAUNCH).fill_null(0),
        pl.when(has_window).then(pl.col("unclassified_ns").fill_null(0)),
        pl.col("is_outlier", "is_training", "is_counted").fill_null(value=False),
    )
    return STEP_FACTS.check(rows.select(STEP_FACTS.names).sort(_STEP))


def typical_steps(trace: Trace, selection: Selection | None = None) -> pl.DataFrame:
    """The `typical_steps` table of a trace or run, over those of the steps selected that figures count.

    Raises:
        MissingDataError: the selection names no step.
    """
    counted = counted_steps(Attribution.of(trace).steps, selection)
    rows = step_facts(trace).join(counted, on=_STEP, how="semi")
    rows = rows.group_by(_KIND_OF_STEP).agg(
        n_steps_counted=pl.len().cast(pl.Int64),
        is_training=pl.first("is_training"),
        is_host_bound=pl.mean("is_host_bound") > 0.5,
        **{column.name: pl.median(column.name) for column in _MEDIANS},
    )
    return TYPICAL_STEPS.check(rows.select(TYPICAL_STEPS.names).sort(_KIND_OF_STEP))


def _medians() -> dict[str, pl.Expr]:
    is_decode = COMPLETE & (pl.col("stage") == "decode")
    return {
        "median_wall_ns": pl.col("wall_ns").filter(COMPLETE).median().over(_ALIKE),
        "median_decode_wall_ns": pl.col("wall_ns").filter(is_decode).median().over(_PLACE),
    }


def _neighbours() -> dict[str, pl.Expr]:
    is_decode = pl.col("stage") == "decode"
    number = pl.col("step").filter(is_decode)
    is_between = (pl.col("step") > number.min().over(_PLACE)) & (pl.col("step") < number.max().over(_PLACE))
    return {"is_between_decodes": is_between.fill_null(value=False)}


def _facts(trace: Trace, found: Attribution) -> Iterator[pl.DataFrame]:
    """What each analysis knows of steps: frames by rank, device and step, or by rank alone."""
    yield outliers(complete_steps(found.steps)).select(*_STEP, is_outlier=pl.lit(value=True))
    yield idle_by_step(trace).select(*_STEP, *_IDLE)
    yield step_comm(trace)
    by_category = step_categories(found.activities.lazy(), found.placed, found.times)
    yield by_category.filter(category="other").select(*_STEP, unclassified_ns="exclusive_ns")
    yield counted_steps(found.steps).select(*_STEP, is_counted=pl.lit(value=True))
    yield _launched(trace, found)
    yield _training(trace, found)
    yield from _on_the_host(trace, found)


def _launched(trace: Trace, found: Attribution) -> pl.DataFrame:
    """Counts of what was launched in each step: tiny kernels, graphs, single launches."""
    calls = trace.launches.select("launch_id", call="name").collect()
    rows = found.activities.filter(pl.col("step").is_not_null())
    rows = rows.join(calls, on="launch_id", how="left", validate="m:1")
    is_tiny = (pl.col("dur_ns") < TINY_NS) & ~pl.col("category").is_in(["memcpy", "memset"])
    in_graph = pl.col("call").str.contains("GraphLaunch").fill_null(value=False)
    return rows.group_by(_STEP).agg(
        n_tiny_kernels=is_tiny.sum().cast(pl.Int64),
        tiny_kernel_ns=pl.col("dur_ns").filter(is_tiny).sum(),
        n_graph_launches=pl.col("launch_id").filter(in_graph).n_unique().cast(pl.Int64),
        n_graph_kernels=in_graph.sum().cast(pl.Int64),
        n_eager_launches=pl.col("launch_id").filter(~in_graph).n_unique().cast(pl.Int64),
    )


def _training(trace: Trace, found: Attribution) -> pl.DataFrame:
    """The ranks that run a backward pass or an optimizer."""
    backward = trace.ops.filter(pl.col("name").str.contains(r"^autograd::engine|Backward\d*$|^Optimizer\."))
    steps_taken = trace.spans.filter((pl.col("side") == "cpu") & pl.col("name").str.starts_with("Optimizer."))
    updates = found.activities.lazy().filter(category="optimizer")
    ranks = pl.concat([rows.select("rank") for rows in (backward, steps_taken, updates)]).unique().collect()
    return ranks.with_columns(is_training=pl.lit(value=True))


def _on_the_host(trace: Trace, found: Attribution) -> Iterator[pl.DataFrame]:
    """By rank and step: what began on the host inside the step's annotation, on its thread."""
    marks = found.marks.filter("is_annotation").sort("start_ns")
    waits = _inside(host_waits_of(trace, found.activities).lazy(), marks)
    copy = {kind: pl.col("kind") == kind for kind in ("pageable copy", "blocking copy")}
    sums = waits.group_by("rank", "step").agg(
        n_host_waits=pl.len().cast(pl.Int64),
        host_wait_ns=pl.sum("dur_ns"),
        n_pageable_copies=copy["pageable copy"].sum().cast(pl.Int64),
        pageable_copy_ns=pl.col("dur_ns").filter(copy["pageable copy"]).sum(),
        n_blocking_copies=copy["blocking copy"].sum().cast(pl.Int64),
        blocking_copy_ns=pl.col("dur_ns").filter(copy["blocking copy"]).sum(),
    )
    yield _for_each_mark(sums, marks, trace.launches)
    for name, events in (("n_ops", trace.ops), ("n_python_calls", trace.python_calls)):
        counts = _inside(events, marks).group_by("rank", "step").agg(pl.len().cast(pl.Int64).alias(name))
        yield _for_each_mark(counts, marks, events)


def _inside(events: pl.LazyFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """The events that began inside a mark on its thread, with the mark's step."""
    columns = [name for name in ("kind", "dur_ns") if name in events.collect_schema().names()]
    begun = events.select("rank", "thread_id", "start_ns", *columns).sort("start_ns").collect()
    steps = marks.select("rank", "thread_id", "step", "end_ns", mark_ns="start_ns")
    found = begun.join_asof(
        steps,
        left_on="start_ns",
        right_on="mark_ns",
        by=["rank", "thread_id"],
        check_sortedness=False,  # sorted above; polars cannot tell within groups
    )
    return found.filter(pl.col("start_ns") < pl.col("end_ns"))


def _for_each_mark(sums: pl.DataFrame, marks: pl.DataFrame, recorded: pl.LazyFrame) -> pl.DataFrame:
    """A row for each mark of the ranks of which such events are recorded at all: nothing begun is 0."""
    known = marks.select("rank", "step").join(recorded.select("rank").unique().collect(), on="rank", how="semi")
    counts = [name for name in sums.columns if name not in _STEP]
    return known.join(sums, on=["rank", "step"], how="left", validate="1:1").with_columns(pl.col(counts).fill_null(0))
