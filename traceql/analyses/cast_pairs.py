"""Casts undone by a later cast: a tensor goes to another dtype and comes back."""

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.counted_steps import PER_STEP, counted_steps, in_counted, per_step
from traceql.analyses.summary import Selection
from traceql.tables import DEVICE, RANK, Column, Table
from traceql.trace import Trace

CAST_PAIRS = Table(
    "cast_pairs",
    "One row per rank, device and kind of pair: a cast a → b, and the next cast of as many elements on its stream in "
    "the same step, if that is b → a. Over the steps counted; only casts whose dtypes and size are recorded. Sorted by "
    "rank, device, most kernel time first.",
    RANK,
    DEVICE,
    Column("src_dtype", pl.String, "Dtype at first and in the end"),
    Column("dst_dtype", pl.String, "Dtype in between"),
    Column("n_elements", pl.Int64, "Elements of each cast"),
    Column("n_between", pl.Int64, "GPU activities on the stream between the two"),
    Column("n_pairs", pl.Int64, "Pairs"),
    *PER_STEP,
)

_STREAM = ["rank", "device", "stream"]
_KEY = ["rank", "device", "src_dtype", "dst_dtype", "n_elements", "n_between"]


def cast_pairs(trace: Trace, selection: Selection | None = None) -> pl.DataFrame:
    """The `cast_pairs` table of a trace or run; empty where no dtypes or sizes are recorded."""
    found = Attribution.of(trace)
    counted = counted_steps(found.steps, selection)
    dtypes = trace.kernels.select("kernel_id", "src_dtype", "dst_dtype", n_elements="n_elements_min").collect()
    pairs = _pairs(in_counted(found.activities, counted).join(dtypes, on="kernel_id", validate="1:1"))
    stats = pairs.group_by(_KEY).agg(n_pairs=pl.len().cast(pl.Int64), kernel_ns=pl.sum("pair_ns"))
    rows = per_step(stats, counted, "n_pairs")
    order = ("rank", "device", "kernel_ns", *_KEY[2:])
    descending = [False, False, True, *[False] * 4]
    return CAST_PAIRS.check(rows.select(CAST_PAIRS.names).sort(order, descending=descending))


def _pairs(activities: pl.DataFrame) -> pl.DataFrame:
    """The casts whose next one of the same size undoes them, with n_between and pair_ns, the time of both."""
    place = pl.int_range(pl.len(), dtype=pl.Int64).over(_STREAM)
    ordered = activities.sort(*_STREAM, "start_ns", "kernel_id").with_columns(place=place)
    casts = ordered.filter((pl.col("category") == "cast") & pl.col("n_elements").is_not_null())
    columns = ("step", "src_dtype", "dst_dtype", "place", "dur_ns")
    following = pl.col(columns).shift(-1).over([*_STREAM, "n_elements"]).name.prefix("next_")
    casts = casts.with_columns(following)
    is_reverse = (pl.col("next_src_dtype") == pl.col("dst_dtype")) & (pl.col("next_dst_dtype") == pl.col("src_dtype"))
    comes_back = (is_reverse & (pl.col("next_step") == pl.col("step"))).fill_null(value=False)
    casts = casts.with_columns(comes_back=comes_back, chain=(~comes_back).cum_sum().over([*_STREAM, "n_elements"]))
    # In a → b → a → b only every other cast begins a pair.
    nth = pl.int_range(pl.len()).over([*_STREAM, "n_elements", "chain", "comes_back"])
    return casts.filter((nth % 2 == 0) & pl.col("comes_back")).with_columns(
        n_between=pl.col("next_place") - pl.col("place") - 1, pair_ns=pl.col("dur_ns") + pl.col("next_dur_ns")
    )
