"""Attention that no kernel made for it does: matrix products around a softmax, or a generic decode kernel."""

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.counted_steps import PER_STEP, counted_steps, in_counted, per_step
from traceql.analyses.summary import Selection
from traceql.tables import DEVICE, RANK, Column, Table
from traceql.trace import Trace

ATTENTION_FALLBACKS = Table(
    "attention_fallbacks",
    "One row per rank, device and kind of attention that is not done by a kernel of its own, over the steps counted. "
    "Sorted by rank, device, most kernel time first.",
    RANK,
    DEVICE,
    Column(
        "kind",
        pl.String,
        "unfused: a softmax between two GEMMs of its stream, with nothing but point-wise kernels "
        "around it; math SDPA: the same inside aten::_scaled_dot_product_attention_math; generic decode kernel: "
        "Triton's, which serves every model and GPU",
    ),
    Column("example", pl.String, "Short name of its softmax or attention kernel"),
    Column("n_kernels", pl.Int64, "Kernels: of an unfused one, from the first GEMM to the second"),
    Column("n_attentions", pl.Int64, "How often it was done"),
    *PER_STEP,
)

_GENERIC = pl.col("name").str.contains(r"_fwd_(?:grouped_)?kernel_stage1")
_GENERIC_PARTS = pl.col("name").str.contains(r"_fwd_(?:grouped_)?kernel_stage[12]")
_SOFTMAX = (pl.col("category") == "sampling") & pl.col("name").str.contains(r"(?i)soft_?max")
_POINT_WISE = ("cast", "copy", "elementwise", "reduce", "memset")
_MATH = "aten::_scaled_dot_product_attention_math"
_PLACE = ["rank", "device"]
_STREAM = [*_PLACE, "stream"]
_NEAR = 8
"""A softmax farther than this many kernels from a GEMM is not one of its scores."""


def attention_fallbacks(trace: Trace, selection: Selection | None = None) -> pl.DataFrame:
    """The `attention_fallbacks` table of a trace or run; empty without steps, or with attention kernels alone."""
    found = Attribution.of(trace)
    counted = counted_steps(found.steps, selection)
    activities = in_counted(found.activities, counted)
    parts = [_unfused(activities, trace.ops), _generic(activities)]
    key = [*_PLACE, "kind"]
    stats = pl.concat(parts).group_by(key).agg(
        pl.col("example").sort_by("kernel_ns", "example", descending=[True, False]).first(),
        pl.sum("n_kernels", "n_attentions", "kernel_ns"),
    )  # fmt: skip
    rows = per_step(stats, counted, "n_attentions")
    order = (*_PLACE, "kernel_ns", "kind")
    descending = [False, False, True, False]
    return ATTENTION_FALLBACKS.check(rows.select(ATTENTION_FALLBACKS.names).sort(order, descending=descending))


def _generic(activities: pl.DataFrame) -> pl.DataFrame:
    return activities.filter(_GENERIC_PARTS).group_by(_PLACE).agg(
        kind=pl.lit("generic decode kernel"),
        example=pl.col("short_name").filter(_GENERIC).first().fill_null(pl.col("short_name").first()),
        n_kernels=pl.len().cast(pl.Int64),
        n_attentions=_GENERIC.sum().cast(pl.Int64),
        kernel_ns=pl.sum("dur_ns"),
    )  # fmt: skip


def _unfused(activities: pl.DataFrame, ops: pl.LazyFrame) -> pl.DataFrame:
    """One row per softmax between two GEMMs: what kernels it is made of, and how long they take together."""
    number = pl.int_range(pl.len(), dtype=pl.Int64)
    is_gemm = pl.col("category") == "gemm"
    is_other = ~(is_gemm | _SOFTMAX | pl.col("category").is_in(_POINT_WISE))
    rows = activities.sort(*_STREAM, "start_ns", "kernel_id")
    rows = rows.with_columns(at=number, until_ns=pl.col("dur_ns").cum_sum())
    within = [*_STREAM, "step"]
    for name, is_it in (("gemm", is_gemm), ("other", is_other)):
        where = pl.when(is_it).then("at")
        rows = rows.with_columns(
            where.forward_fill().over(within).alias(f"{name}_before"),
            where.backward_fill().over(within).alias(f"{name}_after"),
        )
    first, last = pl.col("gemm_before"), pl.col("gemm_after")
    is_free = (first > pl.col("other_before").fill_null(-1)) & (last < pl.col("other_after").fill_null(rows.height))
    is_near = (pl.col("at") - first <= _NEAR) & (last - pl.col("at") <= _NEAR)
    found = rows.filter(_SOFTMAX & is_free & is_near)
    until_ns = pl.lit(rows["until_ns"])
    before_ns = until_ns.gather(first) - pl.lit(rows["dur_ns"]).gather(first)
    return found.join(_math_ops(ops), on="op_id", how="left", validate="m:1").select(
        *_PLACE,
        kind=pl.when("is_math").then(pl.lit("math SDPA")).otherwise(pl.lit("unfused")),
        example="short_name",
        n_kernels=last - first + 1,
        n_attentions=pl.lit(1, pl.Int64),
        kernel_ns=until_ns.gather(last) - before_ns,
    )


def _math_ops(ops: pl.LazyFrame) -> pl.DataFrame:
    """The softmax operators inside the mathematical form of scaled dot product attention: op_id, is_math."""
    math = ops.filter(name=_MATH).sort("start_ns").select(
        "thread_id", math_ns="start_ns", math_end_ns=pl.col("start_ns") + pl.col("dur_ns")
    )  # fmt: skip
    softmax = ops.filter(pl.col("name").str.contains("softmax", literal=True)).sort("start_ns")
    inside = softmax.join_asof(
        math, left_on="start_ns", right_on="math_ns", by="thread_id", check_sortedness=False
    ).filter(pl.col("start_ns") < pl.col("math_end_ns"))
    return inside.select("op_id", is_math=pl.lit(value=True)).collect()
