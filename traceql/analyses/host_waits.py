"""Where the host waited for the GPU: calls that synchronise, and copies whose call returns only when they are done."""

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.idle import BLOCKING_COPY
from traceql.tables import RANK, Column, Table
from traceql.trace import Trace

HOST_WAITS = Table(
    "host_waits",
    "One row per call in which a host thread waits for the GPU. Sorted by rank, start.",
    RANK,
    Column("thread_id", pl.Int32, "Host thread"),
    Column("launch_id", pl.Int64, "The call"),
    Column("name", pl.String, "Name of the call"),
    Column(
        "kind",
        pl.String,
        "synchronise; pageable copy: to or from memory that is not pinned; blocking copy: another "
        "call that returns only when the copy is done",
    ),
    Column("start_ns", pl.Int64, "Start of the call"),
    Column("dur_ns", pl.Int64, "Length of the call"),
    Column("op", pl.String, "The innermost CPU operator around it", nullable=True),
)

_PAGEABLE = pl.col("name").str.contains("Pageable", literal=True)


def host_waits(trace: Trace) -> pl.DataFrame:
    """The `host_waits` table of a trace or run."""
    return host_waits_of(trace, Attribution.of(trace).activities)


def host_waits_of(trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """The `host_waits` table.

    Args:
        trace: the trace.
        activities: its GPU activities: name, launch_id.
    """
    pageable = activities.filter(_PAGEABLE)["launch_id"].drop_nulls()
    of_call = ["rank", "thread_id", "name", "start_ns"]
    syncs = (
        trace.syncs.filter(pl.col("side") == "cpu").select(of_call).unique().with_columns(is_sync=pl.lit(value=True))
    )
    kind = (
        pl.when("is_sync").then(pl.lit("synchronise"))
        .when(pl.col("launch_id").is_in(pageable.implode())).then(pl.lit("pageable copy"))
        .when(BLOCKING_COPY).then(pl.lit("blocking copy"))
    )  # fmt: skip
    calls = trace.launches.join(syncs, on=of_call, how="left", validate="m:1")
    waits = calls.with_columns(kind=kind).filter(pl.col("kind").is_not_null())
    named = waits.join(trace.ops.select("op_id", op="name"), on="op_id", how="left", validate="m:1")
    return HOST_WAITS.check(named.select(HOST_WAITS.names).sort("rank", "start_ns", "launch_id").collect())
