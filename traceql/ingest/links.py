"""Links between tables: op in op, call in op, GPU activity to its launch, and what the launching op proves."""

import numpy as np
import polars as pl

from traceql.arrays import Ints
from traceql.ingest.nesting import NONE, Intervals, depths, innermost, parents
from traceql.ingest.quirks import QuirkCounter
from traceql.names import torch_dtype

_LAUNCHING = r"(?i)launch|memcpy|memset|memprefetch"
_COPY_OPS = ("aten::copy_",)


def _intervals(frame: pl.DataFrame) -> Intervals:
    start = frame["start_ns"].to_numpy()
    return Intervals(frame["thread_id"].to_numpy().astype(np.int64), start, start + frame["dur_ns"].to_numpy())


def _ids(name: str, rows: Ints) -> pl.Series:
    return pl.Series(name, rows).replace(NONE, None).alias(name)


def nest_frames(frame: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """parent_id and depth of intervals whose key is their row number."""
    parent = parents(_intervals(frame))
    return _ids("parent_id", parent), pl.Series("depth", depths(parent))


def external_id() -> pl.Expr:
    """The External id in an op's arguments, as recorded."""
    return pl.col("args").str.extract(r'"[Ee]xternal id"\s*:\s*"?(-?\d{1,18})\b').cast(pl.Int64)


def nest(calls: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """op_id of each call: the innermost op that contains it whole, on its thread.

    `External id` is a fallback, for calls without an op around them, and only in a trace where it agrees with the
    nesting: in many traces it is a copy of the correlation, or names another op.
    """
    op_parents = ops["parent_id"].fill_null(NONE).to_numpy()
    found = _ids("op_id", innermost(_intervals(ops), op_parents, _intervals(calls)))
    usable = pl.col("external_id").ne_missing(pl.col("correlation")) & pl.col("external_id").is_not_null()
    launches = pl.col("name").str.contains(_LAUNCHING)
    if calls.with_columns(found).filter(pl.col("op_id").is_null() & usable & launches).is_empty():
        return found
    by_id = ops.select("rank", external_id=external_id(), named_op="op_id").drop_nulls("external_id")
    by_id = by_id.unique(["rank", "external_id"], keep="none")
    named = calls.select("rank", "external_id", "correlation").with_columns(found).join(
        by_id, on=["rank", "external_id"], how="left", validate="m:1", maintain_order="left"
    )  # fmt: skip
    both = named.filter(pl.col("op_id").is_not_null() & pl.col("named_op").is_not_null())
    agree = both.select((usable & (pl.col("op_id") == pl.col("named_op"))).mean()).item()
    if agree is None or agree < 0.9:
        return found
    return named.select(pl.coalesce("op_id", pl.when(usable).then("named_op")).alias("op_id"))["op_id"]


def link_kernels(gpu: pl.DataFrame, launches: pl.DataFrame, ops: pl.DataFrame, quirks: QuirkCounter) -> pl.DataFrame:
    """The GPU activities with kernel_id, launch_id, op_id and what an ATen copy op says of dtypes and size."""
    quirks.add("zero-correlation", gpu.filter(pl.col("correlation") == 0).height)
    gpu = gpu.with_columns(pl.when(pl.col("correlation") != 0).then("correlation").alias("correlation"))
    by_correlation = _launch_by_correlation(launches, quirks)
    kernels = gpu.drop("thread_id", "external_id").join(
        by_correlation, on=["rank", "correlation"], how="left", validate="m:1"
    )
    quirks.add("no-launch", kernels["launch_id"].null_count())
    kernels = kernels.join(copy_facts(ops, kernels["op_id"].unique()), on="op_id", how="left", validate="m:1")
    kernels = kernels.with_columns(
        pl.col("rank", "device").cast(pl.Int16),
        pl.when(pl.col("dst_dtype").is_not_null()).then(pl.lit("op_args")).alias("evidence"),
        pl.col("n_elements").alias("n_elements_min"),
        pl.col("n_elements").alias("n_elements_max"),
    ).drop("n_elements")
    order = ("rank", "start_ns", "device", "stream", "correlation", "dur_ns", "name")
    return kernels.sort(*order).with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("kernel_id"))


def _launch_by_correlation(launches: pl.DataFrame, quirks: QuirkCounter) -> pl.DataFrame:
    """One call per rank and correlation: the one that launches work, where several share the number."""
    calls = launches.filter(pl.col("correlation").is_not_null()).select(
        "rank", "correlation", "launch_id", "op_id", launches=pl.col("name").str.contains(_LAUNCHING)
    )
    key = ["rank", "correlation"]
    working, others = calls.filter("launches"), calls.filter(~pl.col("launches"))
    first = working.unique(key, keep="first", maintain_order=True)
    quirks.add("ambiguous-correlation", working.height - first.height)
    rest = others.join(first, on=key, how="anti").unique(key, keep="first", maintain_order=True)
    return pl.concat([first, rest]).drop("launches")


def copy_facts(ops: pl.DataFrame, op_ids: pl.Series) -> pl.DataFrame:
    """op_id, src_dtype, dst_dtype, n_elements of the ATen copy ops among `op_ids`, as recorded.

    `Input type` and `Input Dims` of aten::copy_ are [destination, source, ...].
    """
    copies = ops.lazy().filter(pl.col("name").is_in(_COPY_OPS) & pl.col("op_id").is_in(op_ids.implode()))
    types = r'"Input [Tt]ype"\s*:\s*\[\s*"([^"]*)"\s*,\s*"([^"]*)"'
    dims = r'"Input [Dd]ims"\s*:\s*\[\s*\[([\d,\s]*)\]'
    sizes = pl.col("args").str.extract(dims).str.replace_all(r"\s", "").str.split(",")
    sizes = sizes.list.eval(pl.element().cast(pl.Int64, strict=False))
    facts = copies.select(
        "op_id",
        dst_dtype=pl.col("args").str.extract(types, 1),
        src_dtype=pl.col("args").str.extract(types, 2),
        n_elements=pl.when(sizes.list.len() > 0).then(sizes.list.eval(pl.element().product()).list.first()),
    ).collect()
    spellings = pl.concat([facts["dst_dtype"], facts["src_dtype"]]).drop_nulls().unique()
    short = pl.DataFrame(
        {"recorded": spellings, "dtype": [torch_dtype(s) for s in spellings]},
        schema={"recorded": pl.String, "dtype": pl.String},
    )
    for column in ("dst_dtype", "src_dtype"):
        renamed = short.rename({"recorded": column, "dtype": "short"})
        facts = facts.join(renamed, on=column, how="left", validate="m:1").with_columns(pl.col("short").alias(column))
        facts = facts.drop("short")
    return facts.select("op_id", "src_dtype", "dst_dtype", "n_elements")
