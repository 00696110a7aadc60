"""Communication of several ranks: which kernels are one collective, who waited in it, and for whom.

A communication kernel runs from the moment its rank arrives until the data is there, so its duration is transfer and
waiting for the last rank to arrive. Only the matched kernels of all ranks tell the two apart.

Matching. Kernels of one process group (where recorded, else of one stream; in a CUDA graph, whose streams mean
nothing, of all streams) and one kind of operation follow each other in the same order on every rank. They are
numbered by the recorded sequence number, else by their order within the step, else (without steps) within the whole
recording. Step numbers of ranks that began to record a step apart are shifted onto each other: all ranks leave a
collective together, so the right shift is the one under which their ends differ by a constant. A step in which the
counts of the ranks differ, or the sizes of what they sent, is not matched at all: better unknown than wrong.

Clocks. The ends also give the offset between the ranks' clocks: the median of their differences, and where those
drift in time, the median of the slopes of pairs (Theil-Sen). What is not clear of the spread of the differences is
reported and not applied: the ranks of a host share a clock, whose own figures are then the better ones.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import orjson
import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.clocks import END, END_TOGETHER, LEAST_FOR_CLOCK, aligned, clock_offsets
from traceql.analyses.once import once
from traceql.tables import DEVICE, KERNEL_ID, RANK, Column, Table
from traceql.trace import Trace

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv", "other")
"""The closed list of what a communication kernel does."""

COLLECTIVES = Table(
    "collectives",
    "One row per communication kernel: what it did, with whom, and how long it waited. Sorted by rank, start.",
    RANK,
    DEVICE,
    Column("stream", pl.Int64, "Stream number as recorded"),
    KERNEL_ID,
    Column("step", pl.Int64, "Step that launched it", nullable=True),
    Column("collective_id", pl.Int64, "The same on all ranks of a collective; null when not matched", nullable=True),
    Column("match", pl.String, "How it was matched: sequence (number recorded) or order; null when not", nullable=True),
    Column("kind", pl.String, f"What it does, as recorded, else by the kernel's name: {', '.join(KINDS)}"),
    Column("group", pl.String, "Name of the process group, where recorded", nullable=True),
    Column("group_size", pl.Int64, "Ranks in the group, where recorded", nullable=True),
    Column("in_bytes", pl.Int64, "Size of the rank's input, where recorded", nullable=True),
    Column("out_bytes", pl.Int64, "Size of the rank's output, where recorded", nullable=True),
    Column("recorded_start_ns", pl.Int64, "Start on the rank's own clock"),
    Column("start_ns", pl.Int64, "Start on the clock of the lowest rank (table `clocks`)"),
    Column("dur_ns", pl.Int64, "Length"),
    Column("launch_ns", pl.Int64, "When the host began the call that launched it, aligned as start_ns", nullable=True),
    Column("arrival_lag_ns", pl.Int64, "Start minus that of the first rank", nullable=True),
    Column("last_rank", pl.Int16, "The rank that started last; null when all started at once", nullable=True),
    Column("waiting_ns", pl.Int64, "Time in the kernel until the last rank started, 0 to dur_ns", nullable=True),
    Column("transfer_ns", pl.Int64, "Least duration over the ranks: what it takes when all are there", nullable=True),
    Column("alg_bandwidth_bytes_per_s", pl.Float64, "Size over transfer_ns", nullable=True),
    Column("bus_bandwidth_bytes_per_s", pl.Float64, "What each link carried, as nccl-tests defines it", nullable=True),
)

CATEGORY = "comm"
_PLACE = ["rank", "device"]
_CHANNEL = ["group", "group_ranks", "kind", "family", "lane"]
"""What kernels have in common that follow each other in the same order on all ranks."""
_BUCKET = [*_CHANNEL, "match", "moment"]
_ONE = [*_BUCKET, "nth"]

_KIND_PATTERNS = (
    ("reduce_scatter", "(?i)reduce_?scatter"),
    ("all_reduce", "(?i)all_?reduce|cross_device_reduce"),
    ("all_gather", "(?i)all_?gather"),
    ("all_to_all", r"(?i)all_?to_?all|a2a|\b(intranode|internode|internode_ll)::(dispatch|combine)"),
    ("broadcast", "(?i)broadcast"),
    ("send_recv", "(?i)send_?recv|^send$|^recv|^coalesced$"),
)
"""Of recorded names (`_allgather_base`) and of kernels' (`ncclDevKernel_AllReduce_Sum_bf16_RING_LL`)."""
_NOT_SENT_ALIKE = ("all_to_all", "send_recv", "other")
"""Kinds of which ranks may send different sizes."""
_BUS_FACTORS: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: n / n,
    "send_recv": lambda n: n / n,
}
"""Bus over algorithm bandwidth, of n ranks. Source: NVIDIA, nccl-tests, doc/PERFORMANCE.md.

The size there is that of the input or output, whichever is larger.
"""
_ITEM_BYTES = {
    "double": 8, "long": 8, "int64": 8, "complexfloat": 8, "complexdouble": 16, "float": 4, "int": 4, "int32": 4,
    "half": 2, "bfloat16": 2, "short": 2, "uint16": 2, "char": 1, "byte": 1, "bool": 1, "int8": 1, "uint8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
"""Bytes of an element by the dtype that torch records, in small letters."""
_SEQUENCE_KEYS = ("Seq", "seq")
_MOST_SHIFT = 3
_CLEARLY = 0.25
"""A shift of steps must bring the spread down to this part of that without."""

_TOGETHER_NS = 200_000
"""Ranks that leave further apart, on one clock, were not in one collective. Seen: below 2 µs."""


@once
def collectives(trace: Trace) -> pl.DataFrame:
    """The `collectives` table of a run: all that differs between ranks is null for one rank alone.

    Kernels without a time are left out. Worked out once.
    """
    found = Attribution.of(trace)
    rows = _with_channel(_recorded(trace, found), found.activities)
    matched = _matched(_with_moment(rows))
    matched = _plausible(matched, clock_offsets(matched))
    return COLLECTIVES.check(_with_waits(aligned(matched, clock_offsets(matched))))


# --- what was recorded of each kernel


def _recorded(trace: Trace, found: Attribution) -> pl.DataFrame:
    """The communication kernels with what their ops and names tell."""
    kernels = found.activities.filter((pl.col("category") == CATEGORY) & pl.col("start_ns").is_not_null())
    kernels = kernels.drop("group").with_columns(pl.col("dur_ns").fill_null(0))
    calls = trace.launches.select("launch_id", launch_ns="start_ns").collect()
    rows = kernels.join(calls, on="launch_id", how="left", validate="m:1", maintain_order="left")
    rows = rows.join(_comms_ops(trace.ops, kernels), on="op_id", how="left", validate="m:1", maintain_order="left")
    kind = _kind(pl.coalesce("collective", "name")).fill_null("other")
    return rows.with_columns(kind=kind).rename({"start_ns": "recorded_start_ns"})


def _kind(name: pl.Expr) -> pl.Expr:
    return pl.coalesce(pl.when(name.str.contains(pattern)).then(pl.lit(kind)) for kind, pattern in _KIND_PATTERNS)


_COMMS = pl.Schema(
    {
        "op_id": pl.Int64,
        "collective": pl.String,
        "group": pl.String,
        "group_ranks": pl.String,
        "group_size": pl.Int64,
        "in_bytes": pl.Int64,
        "out_bytes": pl.Int64,
        "sequence": pl.Int64,
    }
)


def _comms_ops(ops: pl.LazyFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """What `record_param_comms` says, of the ops that launched communication kernels."""
    wanted = kernels.lazy().select(pl.col("op_id").drop_nulls().unique())
    told = ops.join(wanted, on="op_id", how="semi").filter(pl.col("args").str.contains("Collective name", literal=True))
    rows = [{"op_id": op_id, **_comms(args)} for op_id, args in told.select("op_id", "args").collect().iter_rows()]
    return pl.DataFrame(rows, schema=_COMMS)


def _comms(args: str) -> dict[str, Any]:
    try:
        told = cast("dict[str, Any]", orjson.loads(args))
    except ValueError:
        return {}
    item = _ITEM_BYTES.get(str(told.get("dtype")).lower())
    return {
        "collective": _text(told.get("Collective name")),
        "group": _text(told.get("Process Group Name")),
        "group_ranks": _text(told.get("Process Group Ranks")),
        "group_size": _whole(told.get("Group size")),
        "in_bytes": _times(_whole(told.get("In msg nelems")), item),
        "out_bytes": _times(_whole(told.get("Out msg nelems")), item),
        "sequence": next((n for key in _SEQUENCE_KEYS if (n := _whole(told.get(key))) is not None), None),
    }


def _text(value: object) -> str | None:
    return None if value in (None, "") else str(value)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None


def _times(number: int | None, each: int | None) -> int | None:
    return None if number is None or each is None else number * each


# --- which kernels are one collective


def _with_channel(rows: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    """Adds family (NCCL, or the kernel's own name) and lane (the streams of a rank, numbered).

    A stream stands for a communicator where no group is recorded, but not in a CUDA graph, and not where the ranks
    have different numbers of streams.
    """
    family = pl.when(pl.col("name").str.contains("(?i)^(void )?(nccl|rccl|msccl)")).then(pl.lit("nccl"))
    alone = activities["launch_id"].drop_nulls().value_counts().filter(pl.col("count") == 1).select("launch_id")
    rows = rows.with_columns(family=family.otherwise(pl.col("short_name")))
    by_stream = pl.col("launch_id").is_in(alone["launch_id"].implode()) & pl.col("group").is_null()
    lane = pl.when(by_stream).then("stream").rank("dense").over(*_PLACE, "kind", "family").cast(pl.Int64)
    rows = rows.with_columns(lane=lane)
    rows = rows.with_columns(n_lanes=pl.col("lane").max().over(*_PLACE, "kind", "family"))
    is_alike = pl.col("n_lanes").n_unique().over("kind", "family") == 1
    return rows.with_columns(lane=pl.when(is_alike).then("lane"))


def _with_moment(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds match and moment, within which kernels are numbered: the sequence number, or the step as ranks share it."""
    has_steps = rows.group_by(_PLACE).agg(pl.col("step").is_not_null().any())["step"].all()
    shifts = pl.DataFrame(
        _step_shifts(rows) if has_steps else [],
        {**{c: rows.schema[c] for c in _PLACE}, "shift": pl.Int64},
        orient="row",
    )
    rows = rows.join(shifts, on=_PLACE, how="left", validate="m:1", maintain_order="left")
    step = pl.col("step") - pl.col("shift").fill_null(0) if has_steps else pl.lit(None, pl.Int64)
    by_number = pl.col("sequence").is_not_null()
    return rows.with_columns(
        match=pl.when(by_number).then(pl.lit("sequence")).otherwise(pl.lit("order")),
        moment=pl.coalesce("sequence", step),
    )


def _step_shifts(rows: pl.DataFrame) -> list[tuple[int, int, int]]:
    """Rank, device, and the number it gives the step that the first of them calls 0."""
    first_end = END.sort_by("recorded_start_ns").first()
    ends = rows.filter(pl.col("step").is_not_null()).group_by(*_PLACE, "step").agg(end_ns=first_end)
    places = [
        (cast("tuple[int, int]", place), dict(of_place.select("step", "end_ns").iter_rows()))
        for place, of_place in ends.sort(*_PLACE, "step").group_by(_PLACE, maintain_order=True)
    ]
    return [(*place, _shift(places[0][1], here)) for place, here in places]


def _shift(reference: dict[int, int], other: dict[int, int]) -> int:
    """The shift of step numbers under which the ends of two ranks keep their distance best; 0 when in doubt."""

    def unrest(shift: int) -> float:
        apart = [other[step + shift] - end for step, end in reference.items() if step + shift in other]
        if len(apart) < max(2, min(len(reference), len(other)) // 2):
            return math.inf
        return float(np.median(np.abs(np.diff(apart))))

    best = min(range(-_MOST_SHIFT, _MOST_SHIFT + 1), key=lambda shift: (unrest(shift), abs(shift)))
    return best if unrest(best) < _CLEARLY * unrest(0) else 0


def _matched(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds collective_id, in order of the first end; it and match are null where ranks do not agree."""
    rows = rows.sort(*_PLACE, "recorded_start_ns", "kernel_id")
    rows = rows.with_columns(nth=pl.int_range(pl.len()).over(*_PLACE, *_BUCKET))
    n_places = pl.struct(_PLACE).n_unique().over(_CHANNEL)
    n_here, n_in_all = pl.len().over(*_PLACE, *_BUCKET), pl.len().over(_BUCKET)
    is_complete = (n_places > 1) & (pl.len().over(_ONE) == n_places) & (n_in_all == n_here * n_places)
    same_size = [pl.col(size).drop_nulls().n_unique().over(_ONE) <= 1 for size in ("in_bytes", "out_bytes")]
    is_alike = pl.all_horizontal(same_size) | pl.col("kind").is_in(_NOT_SENT_ALIKE)
    rows = rows.with_columns(fits=is_complete & is_alike).with_columns(pl.col("fits").all().over(_BUCKET))
    ends = rows.filter("fits").group_by(_ONE).agg(pl.min("kernel_id"), end_ns=END.min()).sort("end_ns", "kernel_id")
    ids = ends.select(*_ONE, collective_id=pl.int_range(pl.len(), dtype=pl.Int64))
    rows = rows.join(ids, on=_ONE, how="left", nulls_equal=True, validate="m:1", maintain_order="left")
    return rows.with_columns(match=pl.when("fits").then("match"))


def _plausible(rows: pl.DataFrame, clocks: pl.DataFrame) -> pl.DataFrame:
    """The rows without matches whose ranks did not leave together: those are kernels of different collectives.

    Only where the clocks of all ranks could be compared.
    """
    if not (clocks["n_collectives"][1:] >= LEAST_FOR_CLOCK).all():  # the first is the one compared with
        return rows
    end = pl.col("start_ns") + pl.col("dur_ns")
    apart = end.max().over("collective_id") - end.min().over("collective_id")
    is_apart = pl.col("collective_id").is_not_null() & pl.col("kind").is_in(END_TOGETHER) & (apart > _TOGETHER_NS)
    found = aligned(rows, clocks).select(is_apart.any().over(_BUCKET))["collective_id"]
    return rows.with_columns(pl.when(~found).then(pl.col("collective_id", "match")))


# --- clocks, and what waiting is


def _with_waits(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds what only the ranks together tell."""
    of_all = rows.filter(pl.col("collective_id").is_not_null()).group_by("collective_id").agg(
        first_ns=pl.min("start_ns"),
        last_ns=pl.max("start_ns"),
        transfer_ns=pl.min("dur_ns"),
        last_rank=pl.col("rank").sort_by("start_ns", pl.col("rank"), descending=[True, False]).first(),
    )  # fmt: skip
    rows = rows.join(of_all, on="collective_id", how="left", validate="m:1", maintain_order="left")
    size, seconds = pl.max_horizontal("in_bytes", "out_bytes"), pl.col("transfer_ns") / 1e9
    rows = rows.with_columns(
        arrival_lag_ns=pl.col("start_ns") - pl.col("first_ns"),
        last_rank=pl.when(pl.col("last_ns") > pl.col("first_ns")).then("last_rank"),
        waiting_ns=(pl.col("last_ns") - pl.col("start_ns")).clip(0, pl.col("dur_ns")),
        alg_bandwidth_bytes_per_s=pl.when(pl.col("transfer_ns") > 0).then(size / seconds),
    )
    n = pl.col("group_size").cast(pl.Float64)
    factor = pl.coalesce(pl.when(kind=kind).then(of_ranks(n)) for kind, of_ranks in _BUS_FACTORS.items())
    rows = rows.with_columns(bus_bandwidth_bytes_per_s=pl.col("alg_bandwidth_bytes_per_s") * factor)
    return rows.select(COLLECTIVES.names).sort("rank", "device", "start_ns", "kernel_id")


# --- per rank, and per kind and size
