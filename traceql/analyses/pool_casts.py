"""The casts of whole KV pools, one by one: what stands behind the verdict of a cast group."""

import polars as pl

from traceql.analyses.casts import CAST_GROUPS, CASTS, cast_report
from traceql.analyses.summary import Selection
from traceql.tables import Column, Table
from traceql.trace import Trace

_OF_GROUP = ("whole_pool_confidence", "whole_pool_reason")
_SAME = ["rank", "device", "dst_dtype"]

POOL_CASTS = Table(
    "pool_casts",
    "One row per cast of a whole KV pool (`is_whole_pool` of its `cast_groups` row). Sorted by kernel_id.",
    *CASTS,
    Column("moved_bytes", pl.Int64, "Bytes read and written, at most; null where a dtype is not known", nullable=True),
    Column("n_per_step", pl.Float64, "Casts of whole pools to this dtype on the device, over the number of steps"),
    Column("ns_per_step", pl.Float64, "Their lengths, added up, over the number of steps"),
    *(column for column in CAST_GROUPS if column.name in _OF_GROUP),
)


def pool_casts(trace: Trace, selection: Selection | None = None) -> pl.DataFrame:
    """The `pool_casts` table of a trace or run.

    Raises:
        MissingDataError: the selection names no step.
    """
    report = cast_report(trace, selection)
    whole = report.groups.filter("is_whole_pool")
    a_step = whole.group_by(_SAME).agg(pl.sum("n_per_step", "ns_per_step"))
    rows = report.casts.join(
        whole.select("group_id", *_OF_GROUP), on="group_id", validate="m:1", maintain_order="left"
    ).join(a_step, on=_SAME, validate="m:1", maintain_order="left")
    rows = rows.with_columns(moved_bytes=pl.col("read_bytes_max") + pl.col("written_bytes_max"))
    return POOL_CASTS.check(rows.select(POOL_CASTS.names))
