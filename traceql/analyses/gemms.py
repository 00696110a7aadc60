"""Matrix products whose shapes were recorded, against the time that moving their bytes must take."""

from dataclasses import dataclass
from math import prod
from typing import Any, cast

import orjson
import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.counted_steps import PER_STEP, counted_steps, in_counted, per_step
from traceql.analyses.device_peaks import device_peaks
from traceql.analyses.summary import Selection
from traceql.names import ITEM_BYTES, torch_dtype
from traceql.tables import DEVICE, RANK, Column, Table
from traceql.trace import Trace

GEMMS = Table(
    "gemms",
    "One row per rank, device, operator and shape of matrix product (aten::mm, addmm, bmm, baddbmm, _scaled_mm), over "
    "the steps counted; empty without recorded shapes. A product of several kernels (split-K) counts once, with the "
    "time of all. Sorted by rank, device, most kernel time first.",
    RANK,
    DEVICE,
    Column("op", pl.String, "Operator"),
    Column("batch", pl.Int64, "Products in one call; 1 but for bmm"),
    Column("m", pl.Int64, "Rows of the result: tokens, in a linear layer"),
    Column("n", pl.Int64, "Columns of the result"),
    Column("k", pl.Int64, "Length of the sums"),
    Column("dtype", pl.String, "Of the second factor, in a linear layer the weight", nullable=True),
    Column("short_name", pl.String, "Readable name of its longest kernel"),
    Column("n_gemms", pl.Int64, "Calls"),
    *PER_STEP,
    Column("median_dur_ns", pl.Float64, "Kernel time of one: median"),
    Column("weight_bytes", pl.Int64, "Size of the second factor", nullable=True),
    Column("moved_bytes", pl.Int64, "Both factors and the result, each once", nullable=True),
    Column("bytes_per_s", pl.Float64, "moved_bytes over median_dur_ns", nullable=True),
    Column(
        "floor_ns",
        pl.Float64,
        "What moving moved_bytes takes at the device's peak bandwidth; null without a known device",
        nullable=True,
    ),
    Column("peak_frac", pl.Float64, "floor_ns over median_dur_ns", nullable=True),
)

_SHAPE = ["op", "batch", "m", "n", "k", "dtype"]
_PLACE = ["rank", "device"]
_FACTORS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0}
"""Operators, and which of their arguments is the first factor; the second follows it."""


def gemms(trace: Trace, selection: Selection | None = None) -> pl.DataFrame:
    """The `gemms` table of a trace or run."""
    found = Attribution.of(trace)
    counted = counted_steps(found.steps, selection)
    kernels = in_counted(found.activities.filter(pl.col("op_id").is_not_null() & (pl.col("group") == "gemm")), counted)
    calls = kernels.group_by(*_PLACE, "op_id").agg(
        pl.col("short_name").sort_by("dur_ns", "kernel_id", descending=[True, False]).first(), pl.sum("dur_ns")
    )
    shaped = calls.join(_shapes(trace.ops, calls), on="op_id", validate="m:1")
    stats = shaped.group_by(*_PLACE, *_SHAPE).agg(
        pl.col("short_name").mode().min(),
        pl.first("weight_bytes", "moved_bytes"),
        n_gemms=pl.len().cast(pl.Int64),
        kernel_ns=pl.sum("dur_ns"),
        median_dur_ns=pl.median("dur_ns"),
    )
    peaks = device_peaks(trace).select(*_PLACE, "peak_bytes_per_s")
    rows = per_step(stats, counted, "n_gemms").join(peaks, on=_PLACE, how="left", validate="m:1")
    rows = rows.with_columns(
        bytes_per_s=pl.col("moved_bytes") / pl.col("median_dur_ns") * 1e9,
        floor_ns=pl.col("moved_bytes") / pl.col("peak_bytes_per_s") * 1e9,
    )
    rows = rows.with_columns(peak_frac=pl.col("floor_ns") / pl.col("median_dur_ns")).select(GEMMS.names)
    order = ["rank", "device", "kernel_ns", *_SHAPE]
    return GEMMS.check(rows.sort(order, descending=[False, False, True, *[False] * len(_SHAPE)]))


_FACTS = pl.Schema(
    {
        "args": pl.String, "op": pl.String, "batch": pl.Int64, "m": pl.Int64, "n": pl.Int64, "k": pl.Int64,
        "dtype": pl.String, "weight_bytes": pl.Int64, "moved_bytes": pl.Int64,
    }
)  # fmt: skip


def _shapes(ops: pl.LazyFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """op_id, shape and bytes of the operators among those called whose arguments tell; each text is parsed once."""
    wanted = calls.lazy().select("op_id").unique()
    known = ops.filter(pl.col("name").is_in(list(_FACTORS)) & pl.col("args").is_not_null())
    told = known.join(wanted, on="op_id", how="semi").select("op_id", op="name", **_recorded()).collect()
    key = ["op", "types", "dims"]
    texts = told.select(key).drop_nulls().unique()
    facts = [{**dict(zip(key, row, strict=True)), **shape} for row in texts.iter_rows() if (shape := _shape(*row))]
    schema = {"types": pl.String, "dims": pl.String} | {n: d for n, d in _FACTS.items() if n != "args"}
    return told.join(pl.DataFrame(facts, schema=schema), on=key, validate="m:1").drop("types", "dims")


def _recorded() -> dict[str, pl.Expr]:
    """The lists of dtypes and sizes, cut out of the arguments: much of the rest differs from call to call."""
    args = pl.col("args")
    return {
        "types": args.str.extract(r'"Input [Tt]ype"\s*:\s*(\[[^\]]*\])'),
        "dims": args.str.extract(r'"Input [Dd]ims"\s*:\s*(\[\s*\[[\[\],\d\s]*\]\s*\]|\[[\[\],\d\s]*\])'),
    }


@dataclass(frozen=True)
class _Factor:
    sizes: list[int]
    dtype: str | None

    @property
    def item_bytes(self) -> int | None:
        return ITEM_BYTES.get(self.dtype or "")

    @property
    def n_bytes(self) -> int | None:
        return None if self.item_bytes is None else prod(self.sizes) * self.item_bytes


def _shape(op: str, types: str, dims: str) -> dict[str, Any] | None:
    """The shape and bytes of a product; None where what is recorded is no pair of matrices that fit."""
    first, second = (_factor(types, dims, _FACTORS[op] + i) for i in (0, 1))
    if first is None or second is None or len(first.sizes) != len(second.sizes) or len(first.sizes) not in (2, 3):
        return None
    *batches, m, k = first.sizes
    *_, rows, n = second.sizes
    if rows != k or batches != second.sizes[:-2]:
        return None
    batch = prod(batches)
    if max(batch * m * k, batch * k * n, batch * m * n) >= 2**53:
        return None
    result = _Factor([batch, m, n], first.dtype if first.item_bytes != 1 else "bf16")
    parts = [first.n_bytes, second.n_bytes, result.n_bytes]
    moved = None if None in parts else sum(cast("list[int]", parts))
    return {
        "batch": batch, "m": m, "n": n, "k": k,
        "dtype": second.dtype, "weight_bytes": second.n_bytes, "moved_bytes": moved,
    }  # fmt: skip


def _factor(types: str, dims: str, place: int) -> _Factor | None:
    try:
        sizes, dtype = orjson.loads(dims)[place], orjson.loads(types)[place]
    except (ValueError, LookupError, TypeError):
        return None
    if not isinstance(sizes, list) or not isinstance(dtype, str):
        return None
    whole = [size for size in cast("list[object]", sizes) if isinstance(size, int) and size > 0]
    return _Factor(whole, torch_dtype(dtype)) if len(whole) == len(cast("list[object]", sizes)) else None
