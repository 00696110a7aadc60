"""What the trace of a graph's capture tells of the casts and copies that a replay runs."""

from dataclasses import replace

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.layer_capture import captured_ops
from traceql.ingest.links import copy_facts
from traceql.trace import Trace

EVIDENCE = "capture_trace"
_FACTS = ["src_dtype", "dst_dtype", "n_elements"]


def with_capture(trace: Trace, capture: Trace) -> Trace:
    """The trace, its casts and copies with the dtypes and sizes that the capture's operators had.

    Where the trace itself recorded an operator, that stands. A size that the launch grid rules out is not taken.

    Raises:
        MissingDataError: the capture is not that of the graphs replayed.
    """
    found = captured_ops(trace, Attribution.of(trace).activities, capture)
    ops = found.select(op_id="kernel_id", name="op", args="args")
    facts = copy_facts(ops, ops["op_id"]).rename({"op_id": "kernel_id"}).drop_nulls(["src_dtype", "dst_dtype"])
    captured = facts.rename({name: f"captured_{name}" for name in _FACTS}).lazy()
    rows = trace.kernels.join(captured, on="kernel_id", how="left", validate="1:1", maintain_order="left")
    is_copy = pl.col("category").is_in(["cast", "copy"])
    told = is_copy & pl.col("captured_dst_dtype").is_not_null() & pl.col("evidence").ne_missing("op_args")
    converts = pl.col("captured_src_dtype") != pl.col("captured_dst_dtype")
    size = pl.col("captured_n_elements")
    fits = (
        size.is_between(pl.col("n_elements_min"), pl.col("n_elements_max")).fill_null(value=True) & size.is_not_null()
    )
    kernels = rows.with_columns(
        pl.when(told).then(pl.col(f"captured_{name}")).otherwise(name).alias(name) for name in _FACTS[:2]
    ).with_columns(
        category=pl.when(told & converts).then(pl.lit("cast")).when(told).then(pl.lit("copy")).otherwise("category"),
        evidence=pl.when(told).then(pl.lit(EVIDENCE)).otherwise("evidence"),
        n_elements_min=pl.when(told & fits).then(size).otherwise("n_elements_min"),
        n_elements_max=pl.when(told & fits).then(size).otherwise("n_elements_max"),
    )  # fmt: skip
    return replace(trace, kernels=kernels.select(trace.kernels.collect_schema().names()))
