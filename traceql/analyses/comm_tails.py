"""How unevenly long the communication kernels of one rank are: a tail is waiting for a slower rank."""

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.comm import collectives
from traceql.analyses.counted_steps import PER_STEP, counted_steps, in_counted, per_step
from traceql.analyses.summary import Selection
from traceql.tables import DEVICE, RANK, Column, Table
from traceql.trace import Trace

COMM_TAILS = Table(
    "comm_tails",
    "One row per rank, device, name and size of communication kernel, over the steps counted. Sorted by rank, device, "
    "most kernel time first.",
    RANK,
    DEVICE,
    Column("short_name", pl.String, "Readable name of the kernel"),
    Column("bytes", pl.Int64, "The larger of input and output, where recorded", nullable=True),
    Column("n_kernels", pl.Int64, "Kernels of this name and size"),
    *PER_STEP,
    Column(
        "p10_dur_ns",
        pl.Float64,
        "Length of one: 10th percentile (linear interpolation), about what it takes when nobody is late",
    ),
    Column("median_dur_ns", pl.Float64, "Length of one: median"),
    Column("p90_dur_ns", pl.Float64, "Length of one: 90th percentile"),
    Column("tail_ns", pl.Int64, "What all of them took beyond the 10th percentile, added up"),
    Column("tail_share", pl.Float64, "The same as a share of the wall of the steps", nullable=True),
)

_KEY = ["rank", "device", "short_name", "bytes"]


def comm_tails(trace: Trace, selection: Selection | None = None) -> pl.DataFrame:
    """The `comm_tails` table of a trace or run; empty without steps or communication."""
    found = Attribution.of(trace)
    counted = counted_steps(found.steps, selection)
    names = found.activities.select("kernel_id", "short_name")
    kernels = in_counted(collectives(trace), counted).join(names, on="kernel_id", validate="1:1")
    kernels = kernels.with_columns(bytes=pl.max_horizontal("in_bytes", "out_bytes"))
    least = pl.col("dur_ns").quantile(0.1, "linear")
    stats = kernels.group_by(_KEY).agg(
        n_kernels=pl.len().cast(pl.Int64),
        kernel_ns=pl.sum("dur_ns"),
        p10_dur_ns=least,
        median_dur_ns=pl.median("dur_ns"),
        p90_dur_ns=pl.col("dur_ns").quantile(0.9, "linear"),
        tail_ns=(pl.col("dur_ns") - least).clip(lower_bound=0).sum().round().cast(pl.Int64),
    )
    rows = per_step(stats, counted, "n_kernels")
    rows = rows.with_columns(tail_share=pl.when(pl.col("wall_ns") > 0).then(pl.col("tail_ns") / pl.col("wall_ns")))
    order = ("rank", "device", "kernel_ns", "short_name", "bytes")
    descending = [False, False, True, False, False]
    return COMM_TAILS.check(rows.select(COMM_TAILS.names).sort(order, descending=descending))
