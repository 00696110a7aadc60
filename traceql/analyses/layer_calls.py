"""Layers from intervals on the host: a kernel belongs to the call of a layer around its launch, on the same thread.

What the methods share that know such intervals, be they module calls, annotations or those of a capture phase.
"""

import polars as pl

from traceql.analyses.layer_tables import PLACEMENT
from traceql.tables import DEVICE, KERNEL_ID, RANK, Column, Table
from traceql.trace import Trace

_INTERVAL = (
    RANK,
    Column("thread_id", pl.Int32, "Host thread"),
    Column("start_ns", pl.Int64, "Start on the host"),
    Column("end_ns", pl.Int64, "End on the host"),
)

LAYER_CALLS = Table(
    "layer_calls",
    "One row per call of a layer. Those of a thread do not overlap. Sorted by start.",
    *_INTERVAL,
    Column("pass_id", pl.Int64, "Calls of one forward pass share it; unique in the rank, in order of time"),
    Column("label", pl.String, "Class of the layer, or text of its annotation"),
)

LAYER_PARTS = Table(
    "layer_parts",
    "One row per interval in which a layer does one thing. Those of a thread do not overlap. Sorted by start.",
    *_INTERVAL,
    Column("block", pl.String, "attention, mlp, moe or other"),
)

LAUNCHED = Table(
    "launched",
    "One row per GPU activity whose launch call is known. Sorted by launch.",
    KERNEL_ID,
    RANK,
    DEVICE,
    Column("step", pl.Int64, "Step that launched it"),
    Column("group", pl.String, "Its category's group"),
    Column("thread_id", pl.Int32, "Host thread of the launch call"),
    Column("call_ns", pl.Int64, "Start of the launch call"),
)

BLOCK_CLASSES = {
    "attention": r"(?i:attention|attn|\bmla\b)|MLA",
    "mlp": r"(?i:mlp|feed_?forward|ffn|intermediate)|FF$|Output$",
    "moe": r"(?i:moe|expert)",
}
"""What a part of a layer does, by its name; the first that matches, since models have names like Qwen3MoeAttention."""

MIN_COVERED_FRAC = 0.5
"""Layer calls around fewer of a step's launches than this do not explain the step: graph replay, backward pass."""

_THREAD = ["rank", "thread_id"]
_STEP = ["rank", "step"]
_LAYER = [*_STEP, "model_pass", "layer"]


def block_of(name: str) -> pl.Expr:
    """The block that the text in the column `name` tells, else null."""
    return pl.coalesce(
        pl.when(pl.col(name).str.contains(pattern)).then(pl.lit(block)) for block, pattern in BLOCK_CLASSES.items()
    )


def launched_activities(trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """The `LAUNCHED` table of the activities that belong to a step and are not `between`."""
    launches = trace.launches.select("launch_id", "thread_id", call_ns="start_ns")
    return LAUNCHED.check(
        activities.lazy()
        .filter(pl.col("step").is_not_null() & pl.col("section").is_null())
        .join(launches, on="launch_id", validate="m:1")
        .sort("call_ns", "start_ns", "kernel_id")
        .select(LAUNCHED.names)
        .collect()
    )


def outermost(intervals: pl.DataFrame) -> pl.DataFrame:
    """Those intervals (rank, thread_id, start_ns, end_ns) that lie in no other of their thread, sorted by start."""
    length = pl.col("end_ns") - pl.col("start_ns")
    ordered = intervals.sort(*_THREAD, "start_ns", length, descending=[False, False, False, True], maintain_order=True)
    open_until = pl.col("end_ns").cum_max().shift().over(_THREAD)
    return ordered.filter((pl.col("start_ns") >= open_until).fill_null(True)).sort("start_ns", *_THREAD)


def latest_before(rows: pl.DataFrame, intervals: pl.DataFrame, at: str) -> pl.DataFrame:
    """Adds to each row the columns of the interval of its thread that began last, and `inside`: it still goes on.

    Args:
        rows: rank, thread_id and the time `at`, by which they are sorted.
        intervals: rank, thread_id, start_ns, end_ns, sorted by start.
        at: name of the column with the time.
    """
    found = rows.join_asof(
        intervals,
        left_on=at,
        right_on="start_ns",
        by=_THREAD,
        coalesce=False,
        check_sortedness=False,  # sorted by contract; polars cannot tell within groups
    )
    return found.with_columns(inside=(pl.col(at) < pl.col("end_ns")).fill_null(False))


def layer_labels(launched: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """One row per layer of each step (rank, step, model_pass, layer) with its `label`, sorted by the first four."""
    layers = _numbered(launched, calls).filter("inside")
    return layers.group_by(_LAYER).agg(pl.first("label")).sort(_LAYER)


def place(launched: pl.DataFrame, calls: pl.DataFrame, parts: pl.DataFrame, confidence: float) -> pl.DataFrame:
    """The `PLACEMENT` table of the steps of which layer calls hold at least half of the launches.

    Args:
        launched: the `LAUNCHED` table.
        calls: the `LAYER_CALLS` table.
        parts: the `LAYER_PARTS` table.
        confidence: of every row.

    In no layer call: before the first launch in a layer is prologue, after the last layer of a pass epilogue, both on
    threads that call layers; what is launched between two layers of a pass, or by another thread, is null.
    """
    numbered = _numbered(launched, calls).with_columns(section=_section())
    covered = pl.col("inside").mean().over("rank", "device", "step") >= MIN_COVERED_FRAC
    numbered = numbered.filter(covered)
    return PLACEMENT.check(
        numbered.with_columns(confidence=pl.lit(confidence))
        .join(_blocks(numbered, parts), on="kernel_id", how="left", validate="1:1")
        .sort("kernel_id")
        .select(PLACEMENT.names)
    )


def _numbered(launched: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The launched activities with the latest layer call: `inside` it or not, its model_pass, layer and is_last."""
    order = pl.int_range(pl.len(), dtype=pl.Int64).over("rank", "pass_id", order_by="start_ns")
    calls = calls.with_columns(order=order, is_last=order == pl.len().over("rank", "pass_id") - 1)
    found = latest_before(launched, calls, "call_ns")
    pass_id, order = (pl.when("inside").then(pl.col(name)) for name in ("pass_id", "order"))
    return found.with_columns(
        model_pass=pass_id.rank("dense").over(_STEP).cast(pl.Int64) - 1,
        layer=order - order.min().over(*_STEP, "pass_id"),
    )


def _section() -> pl.Expr:
    """Of an activity with its latest layer call."""
    first_ns = pl.col("call_ns").filter("inside").min().over(_STEP)
    calls_layers = pl.col("inside").any().over(*_STEP, "thread_id")
    of_this_step = pl.col("end_ns") > first_ns
    return (
        pl.when("inside").then(pl.lit("layer"))
        .when(calls_layers & (pl.col("call_ns") < first_ns)).then(pl.lit("prologue"))
        .when(calls_layers & of_this_step & pl.col("is_last")).then(pl.lit("epilogue"))
    )  # fmt: skip


def _blocks(numbered: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """The block of each activity in a layer: of the part around its launch, else of the next or previous part.

    A part called mlp in which kernels of experts run is moe, as the MLPBlock of gpt-oss is.
    """
    in_layers = numbered.filter("inside").select("kernel_id", "thread_id", *_LAYER, "call_ns", "group")
    part = latest_before(in_layers, parts, "call_ns").with_columns(part=pl.when("inside").then("block"))
    nearest = pl.col("part").backward_fill().forward_fill().over(_LAYER)
    part = part.with_columns(block=nearest.fill_null("other"))
    is_mlp = pl.col("block") == "mlp"
    with_experts = (is_mlp & (pl.col("group") == "moe")).any().over(_LAYER)
    return part.select(
        "kernel_id",
        block=pl.when(pl.col("group") == "nccl").then(pl.lit("comm"))
        .when(is_mlp & with_experts).then(pl.lit("moe"))
        .otherwise("block"),
    )  # fmt: skip
