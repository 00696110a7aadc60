"""Casts and copies: what each converts, how much it moves and how fast.

A cast reads one dtype and writes another, a copy keeps it; (de)quantise and fused cast kernels are `custom`, listed
apart. What is not recorded comes from the kernel's name and launch grid, and each row says which of its facts do.
"""

from dataclasses import dataclass

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.cast_windows import (
    LAYER_KEY,
    PLACE,
    STEP_KEY,
    layers_of_steps,
    step_windows,
    totals,
    whole_windows,
    work_frac,
)
from traceql.analyses.device_peaks import device_peaks
from traceql.analyses.layering import Layering
from traceql.analyses.once import once
from traceql.analyses.pool_verdicts import item_bytes, pool_verdicts
from traceql.analyses.step_windows import complete_steps
from traceql.analyses.summary import Selection, selected_steps
from traceql.ingest.meta import TraceMeta
from traceql.ingest.quirks import Quirk
from traceql.tables import DEVICE, RANK, Column, Table
from traceql.trace import Trace

KINDS = ("cast", "copy", "custom")

SAME_SIZE = 1.1
"""Sizes that differ less are one group: rows gathered for attention grow from step to step."""
LOOSE = 2
"""A range of sizes that is wider tells nothing about bandwidth."""
GATHERED_FRAC = 0.05
"""A gather that takes less of a cast's time has not written what the cast reads."""

_PLACE_COLUMNS = (RANK, DEVICE)
_FACTS = (
    Column("kind", pl.String, "cast, copy, or custom: (de)quantise and fused cast kernels"),
    Column("op", pl.String, "The op that launched it; of a group the most frequent one", nullable=True),
    Column("outer_op", pl.String, "The outermost conversion around that op, e.g. aten::to", nullable=True),
    Column("short_name", pl.String, "The kernel"),
    Column("src_dtype", pl.String, "Dtype read, as recorded or as the kernel's name says", nullable=True),
    Column(
        "likely_src_dtype",
        pl.String,
        "Where that is unknown, of a whole-pool cast: what the same steps cast to write it to the cache",
        nullable=True,
    ),
    Column("likely_src_confidence", pl.Float64, "0 to 1", nullable=True),
    Column("dst_dtype", pl.String, "Dtype written", nullable=True),
    Column("shape", pl.String, "Shape written, where recorded; of a group null where it varies", nullable=True),
    Column("n_elements_min", pl.Int64, "Least number of elements", nullable=True),
    Column("n_elements_max", pl.Int64, "Greatest number of elements", nullable=True),
    Column(
        "read_bytes_min", pl.Int64, "Least number of bytes read, by src_dtype, else likely_src_dtype", nullable=True
    ),
    Column("read_bytes_max", pl.Int64, "Greatest number of bytes read", nullable=True),
    Column("written_bytes_min", pl.Int64, "Least number of bytes written", nullable=True),
    Column("written_bytes_max", pl.Int64, "Greatest number of bytes written", nullable=True),
    Column(
        "gb_per_s",
        pl.Float64,
        "10^9 bytes a second, read and written, by the least numbers: at least that; of a group the median; null where "
        "the size is too uncertain",
        nullable=True,
    ),
    Column(
        "peak_frac", pl.Float64, "gb_per_s as a share of the device's peak; null where that is not known", nullable=True
    ),
    Column(
        "dtype_evidence",
        pl.String,
        "How dtypes are known: op_args, capture_trace, kernel_name, or null",
        nullable=True,
    ),
    Column(
        "size_evidence",
        pl.String,
        "How the size is known: op_args, capture_trace, grid (a range), bytes, or null",
        nullable=True,
    ),
)

CASTS = Table(
    "casts",
    "One row per cast or copy; the launches that one aten::copy_ splits a tensor into are one. Sorted by kernel_id.",
    Column("kernel_id", pl.Int64, "GPU activity, the first of several"),
    Column("group_id", pl.Int64, "A row of `cast_groups`, which has those of the steps counted only"),
    *_PLACE_COLUMNS,
    Column("step", pl.Int64, "Step that launched it", nullable=True),
    Column("section", pl.String, "As in `kernel_layers`; null when not attributed", nullable=True),
    Column("model_pass", pl.Int64, "Forward pass within the step; null outside layers", nullable=True),
    Column("layer", pl.Int64, "Layer; null outside layers", nullable=True),
    Column("layer_type", pl.Int64, "Type of that layer", nullable=True),
    *_FACTS,
    Column("n_launches", pl.Int64, "Launches of its op with this kernel"),
    Column("start_ns", pl.Int64, "Start, since the trace's first event", nullable=True),
    Column("dur_ns", pl.Int64, "Length, of several launches added up", nullable=True),
)

CAST_GROUPS = Table(
    "cast_groups",
    "One row per kind, kernel, dtypes, size and role of casts or copies of the steps counted (the complete ones; "
    "without any the whole trace as one). Sorted by rank, device, most kernel time first.",
    Column("group_id", pl.Int64, "Key: one group"),
    *_PLACE_COLUMNS,
    *_FACTS,
    Column("section", pl.String, "As in `kernel_layers`", nullable=True),
    Column("position", pl.Int64, "Which of the like ones of its layer, 0-based; null outside layers", nullable=True),
    Column("n_layers", pl.Int64, "Layers of a step that have it (the most of any step)", nullable=True),
    Column("in_every_layer", pl.Boolean, "In every layer of the layer types that have it", nullable=True),
    Column("n_casts", pl.Int64, "Rows of `casts`"),
    Column("n_per_step", pl.Float64, "The same over the number of steps"),
    Column("kernel_ns", pl.Int64, "Their lengths, added up"),
    Column("ns_per_step", pl.Float64, "The same over the number of steps"),
    Column("share", pl.Float64, "kernel_ns as a share of the wall of the steps; null without wall", nullable=True),
    Column(
        "work_frac",
        pl.Float64,
        "kernel_ns as a share of the steps' kernel time without communication (in which ranks wait)",
        nullable=True,
    ),
    Column("median_dur_ns", pl.Float64, "Length: median", nullable=True),
    Column(
        "is_whole_pool",
        pl.Boolean,
        "Converts a whole KV pool; null when that cannot be told, and for what is no cast",
        nullable=True,
    ),
    Column("whole_pool_confidence", pl.Float64, "0 to 1, in that verdict; null without one", nullable=True),
    Column("whole_pool_reason", pl.String, "What that verdict rests on, or why there is none", nullable=True),
)

_ALIKE = [*PLACE, "kind", "short_name", "src_dtype", "dst_dtype"]
_SIZES = ["n_elements_min", "n_elements_max"]
_BYTES = ["read_bytes_min", "read_bytes_max", "written_bytes_min", "written_bytes_max"]
_TOLD = [
    "group_id", "is_whole_pool", "whole_pool_confidence", "whole_pool_reason", "n_layers", "in_every_layer",
    "likely_src_dtype", "likely_src_confidence",
]  # fmt: skip
"""What is found out about a group as a whole."""
_COPY_OP = "aten::copy_"
_CONVERSIONS = ("aten::to", "aten::_to_copy", "aten::type_as", "aten::contiguous", "aten::clone", "aten::reshape")
_MOST_AROUND = 5
"""Conversions inside each other: to > _to_copy > copy_, contiguous > clone > copy_."""
_CUSTOM = r"(?i)quant|per_token_cast|cast_back|_cast_"
_WRITES_BY_INDEX = r"(?i)index_put|index_copy|index_add|index_fill|scatter"


@dataclass(frozen=True)
class CastReport:
    """The casts and copies of a trace or run, and what they cost in the steps selected."""

    trace: TraceMeta
    selection: Selection
    scope: str
    """`steps`: the complete ones selected are counted; `trace`: there is none, one window a device counts."""
    windows: pl.DataFrame
    """rank, device, step, stage, wall_ns, work_ns (kernel time without communication): what is counted."""
    casts: pl.DataFrame
    """Table `casts`: of the steps selected, or of the whole trace."""
    groups: pl.DataFrame
    """Table `cast_groups`."""
    devices: pl.DataFrame
    """Table `device_peaks`."""
    layers_known: bool
    quirks: tuple[Quirk, ...]


def casts(trace: Trace) -> pl.DataFrame:
    """The `casts` table of a trace or run."""
    return cast_report(trace).casts


def cast_groups(trace: Trace) -> pl.DataFrame:
    """The `cast_groups` table of a trace or run."""
    return cast_report(trace).groups


def cast_report(trace: Trace, selection: Selection | None = None) -> CastReport:
    """The casts and copies of a trace or run; worked out once for all steps, and kept while the trace is.

    Raises:
        MissingDataError: the selection names no step of the trace.
    """
    return _of_all_steps(trace) if selection in (None, Selection()) else _report(trace, selection)


@once
def _of_all_steps(trace: Trace) -> CastReport:
    return _report(trace, Selection())


def _report(trace: Trace, selection: Selection) -> CastReport:
    found = Attribution.of(trace)
    chosen = selected_steps(found.steps, selection)
    complete = complete_steps(chosen)
    layers = _layers(trace)
    devices = device_peaks(trace)
    rows = _grouped(_without_wild_guesses(_sized(_merged(_rows(trace, found, layers))), devices))
    rows = _moved(rows, _verdicts(rows, found, layers))
    counted = rows.join(complete, on=STEP_KEY, how="semi", maintain_order="left") if complete.height else rows
    windows = step_windows(found, complete) if complete.height else whole_windows(found)
    shown = rows.join(chosen, on=STEP_KEY, how="semi") if selection != Selection() and complete.height else rows
    return CastReport(
        trace=trace.meta,
        selection=selection,
        scope="steps" if complete.height else "trace",
        windows=windows,
        casts=CASTS.check(shown.select(CASTS.names).sort("kernel_id")),
        groups=_groups(counted, windows),
        devices=devices,
        layers_known=bool(layers["layer"].count()),
        quirks=trace.quirks,
    )


# --- the rows ---


def _rows(trace: Trace, found: Attribution, layers: pl.DataFrame) -> pl.DataFrame:
    """One row per activity that is a cast, a copy or custom, in order, with its op, step and layer."""
    category, is_memcpy = pl.col("category"), pl.col("kind") == "memcpy"
    may_be_custom = category.is_in(["cast", "copy", "kv_cache", "rope"])
    is_custom = (category == "quantize") | (may_be_custom & pl.col("name").str.contains(_CUSTOM))
    kind = (
        pl.when(is_custom)
        .then(pl.lit("custom"))
        .when(is_memcpy & pl.col("name").str.starts_with("Memcpy DtoD"))
        .then(pl.lit("copy"))
        .when(category.is_in(["cast", "copy"]))
        .then(category)
    )
    kernels = (
        trace.kernels.filter(kind.is_not_null())
        .select(
            "kernel_id", *PLACE, "name", "short_name", "start_ns", "dur_ns", "op_id", "bytes",
            "src_dtype", "dst_dtype", *_SIZES, "evidence", kind=kind, is_memcpy=is_memcpy,
        )
        .collect()
    )  # fmt: skip
    return (
        kernels.join(found.placed.rename({"section": "step_section"}), on="kernel_id", how="left", validate="1:1")
        .join(layers, on="kernel_id", how="left", validate="1:1")
        .join(_reads_gathered(found.activities), on="kernel_id", how="left", validate="1:1")
        .join(_ops(trace, kernels["op_id"]), on="op_id", how="left", validate="m:1")
        .with_columns(section=pl.coalesce("section", "step_section"))
        .sort("kernel_id")
    )


def _layers(trace: Trace) -> pl.DataFrame:
    """Section, pass, layer and type of each activity."""
    return Layering.of(trace).placed.select("kernel_id", "section", *LAYER_KEY, "layer_type")


def _reads_gathered(activities: pl.DataFrame) -> pl.DataFrame:
    """after_gather of each activity: the one before it on its stream picked rows by index, and could be its source."""
    picks = (pl.col("category") == "gather") & ~pl.col("name").str.contains(_WRITES_BY_INDEX)
    ordered = activities.select("kernel_id", *PLACE, "stream", "start_ns", "dur_ns", picks=picks)
    before = pl.col("picks", "dur_ns").shift().over(*PLACE, "stream").name.prefix("before_")
    ordered = ordered.sort(*PLACE, "stream", "start_ns", "kernel_id").with_columns(before)
    took_long = pl.col("before_dur_ns") >= GATHERED_FRAC * pl.col("dur_ns")
    return ordered.select("kernel_id", after_gather=pl.col("before_picks") & took_long)


def _ops(trace: Trace, op_ids: pl.Series) -> pl.DataFrame:
    """op_id, op, outer_op and shape of the ops that launched casts and copies."""
    mine = pl.col("op_id").is_in(op_ids.drop_nulls().unique().implode())
    shape = pl.col("args").str.extract(r'"Input [Dd]ims"\s*:\s*\[\s*(\[[\d,\s]*\])').str.replace_all(r"\s", "")
    ops = trace.ops.filter(mine).select(
        "op_id", "parent_id", op="name", shape=pl.when(pl.col("name") == _COPY_OP).then(shape)
    ).collect()  # fmt: skip
    around = trace.ops.filter(pl.col("name").is_in(_CONVERSIONS)).select(
        parent_id="op_id", outer="name", next_parent_id="parent_id"
    ).collect()  # fmt: skip
    ops = ops.with_columns(outer_op=pl.lit(None, pl.String))
    for _ in range(_MOST_AROUND):
        ops = ops.join(around, on="parent_id", how="left", validate="m:1").select(
            "op_id", "op", "shape", outer_op=pl.coalesce("outer", "outer_op"), parent_id="next_parent_id"
        )
    return ops.select("op_id", "op", "outer_op", "shape")


def _merged(rows: pl.DataFrame) -> pl.DataFrame:
    """One row for the launches of one aten::copy_ with the same kernel: a tensor too large for one."""
    is_split = (pl.col("op") == _COPY_OP) & pl.col("kind").is_in(["cast", "copy"])
    same = pl.when(is_split).then(pl.col("kernel_id").min().over("op_id", "name")).otherwise("kernel_id")
    by_op = (pl.col("evidence") == "op_args").all() & (pl.col("n_elements_min") == pl.col("n_elements_max")).all()
    sizes = {name: pl.when(by_op).then(pl.max(name)).otherwise(_sum_known(name)) for name in _SIZES}
    others = [name for name in rows.columns if name not in {"kernel_id", "dur_ns", "bytes", "n_launches", *_SIZES}]
    merged = rows.group_by(same.alias("kernel_id"), maintain_order=True).agg(
        pl.first(*others), _sum_known("dur_ns"), _sum_known("bytes"), n_launches=pl.len().cast(pl.Int64), **sizes
    )
    return merged.sort("kernel_id")


def _sum_known(name: str) -> pl.Expr:
    """The sum of a column; null where any part is unknown."""
    return pl.when(pl.col(name).null_count() == 0).then(pl.sum(name)).alias(name)


def _sized(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds how dtypes and size are known. A memcpy moves bytes of any dtype; one that is part of a cast is none."""
    is_part = pl.col("is_memcpy") & (pl.col("src_dtype") != pl.col("dst_dtype"))
    rows = rows.with_columns(
        pl.when(~is_part.fill_null(value=False)).then(pl.col("src_dtype", "dst_dtype", *_SIZES, "evidence"))
    )
    by_op = pl.col("evidence").is_in(["op_args", "capture_trace"])
    is_exact = by_op & (pl.col("n_elements_min") == pl.col("n_elements_max"))
    return rows.with_columns(
        dtype_evidence=pl.when(by_op | (pl.col("evidence") == "kernel_name")).then("evidence"),
        size_evidence=pl.when(pl.col("is_memcpy") & pl.col("bytes").is_not_null())
        .then(pl.lit("bytes"))
        .when(is_exact)
        .then("evidence")
        .when(pl.col("n_elements_max").is_not_null())
        .then(pl.lit("grid")),
    )


def _without_wild_guesses(rows: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """The rows without sizes read from a grid that the device could not move in the time it takes, at the median.

    So launches of one kernel with one grid are all of known size, or none is.
    """
    rows = rows.join(devices.select(*PLACE, "peak_bytes_per_s"), on=PLACE, how="left", validate="m:1")
    known = item_bytes("src_dtype").fill_null(0) + item_bytes("dst_dtype").fill_null(0)
    usual_ns = pl.col("dur_ns").median().over(*PLACE, "name", "src_dtype", "dst_dtype", *_SIZES)
    is_too_fast = pl.col("n_elements_min") * known * 1e9 > pl.col("peak_bytes_per_s") * usual_ns
    is_wild = ((pl.col("size_evidence") == "grid") & is_too_fast).fill_null(value=False)
    return rows.with_columns(pl.when(~is_wild).then(pl.col(*_SIZES, "size_evidence")))


def _grouped(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds position and group_id: the first row of the same kind, kernel, dtypes, size and place in the layer.

    Those of unknown size are a class of their own: another's size is not theirs.
    """
    size = pl.coalesce("n_elements_max", "bytes")
    is_larger = (size > SAME_SIZE * size.shift()).fill_null(value=False)
    size_class = pl.when(pl.col("size").is_not_null()).then(1 + is_larger.cum_sum().over(_ALIKE, order_by="size"))
    rows = rows.with_columns(size=size).with_columns(size_class=size_class.fill_null(0))
    number = pl.int_range(pl.len(), dtype=pl.Int64).over(*_ALIKE, "step", *LAYER_KEY, "size_class")
    rows = rows.with_columns(position=pl.when(pl.col("layer").is_not_null()).then(number))
    return rows.with_columns(group_id=pl.col("kernel_id").min().over(*_ALIKE, "size_class", "section", "position"))


def _moved(rows: pl.DataFrame, verdicts: pl.DataFrame) -> pl.DataFrame:
    """Adds the verdict on the group, bytes and bandwidth."""
    rows = rows.join(verdicts.select(_TOLD), on="group_id", how="left", validate="m:1")
    read = item_bytes("src_dtype").fill_null(item_bytes("likely_src_dtype"))
    written = item_bytes("dst_dtype")
    moved = {
        f"{what}_bytes_{end}": pl.coalesce(pl.when("is_memcpy").then("bytes"), pl.col(f"n_elements_{end}") * items)
        for what, items in (("read", read), ("written", written))
        for end in ("min", "max")
    }
    rows = rows.with_columns(**moved)
    rate = (pl.col("read_bytes_min") + pl.col("written_bytes_min")) / pl.col("dur_ns")
    is_loose = (pl.col("n_elements_max") > LOOSE * pl.col("n_elements_min")).fill_null(value=False)
    rows = rows.with_columns(gb_per_s=pl.when((pl.col("dur_ns") > 0) & ~is_loose).then(rate))
    return rows.with_columns(peak_frac=pl.col("gb_per_s") * 1e9 / pl.col("peak_bytes_per_s"))


def _verdicts(rows: pl.DataFrame, found: Attribution, layers: pl.DataFrame) -> pl.DataFrame:
    """One row per group, judged over all complete steps, whichever are selected: whole pool or not, and its source."""
    complete = complete_steps(found.steps)
    windows = step_windows(found, complete) if complete.height else whole_windows(found)
    stages = complete.select(*STEP_KEY, "stage")
    judged = (
        rows.join(stages, on=STEP_KEY, validate="m:1", maintain_order="left")
        if complete.height
        else rows.with_columns(stage=pl.lit(None, pl.String))
    )
    return pool_verdicts(judged, windows, layers_of_steps(layers, found, complete))


# --- the groups ---


def _groups(counted: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """The `cast_groups` table."""
    same = [
        *PLACE, "kind", "short_name", "src_dtype", "dst_dtype", "section", "position",
        "dtype_evidence", "size_evidence", *_TOLD[1:],
    ]  # fmt: skip
    ends = [pl.min(name) if name.endswith("min") else pl.max(name) for name in (*_SIZES, *_BYTES)]
    alike = pl.when(pl.n_unique("shape") == 1).then(pl.first("shape")).alias("shape")
    groups = counted.group_by("group_id").agg(
        pl.first(*same), *ends, alike,
        *(pl.col(name).mode().sort().first() for name in ("op", "outer_op")),
        n_casts=pl.len().cast(pl.Int64),
        kernel_ns=pl.sum("dur_ns"),
        median_dur_ns=pl.median("dur_ns"),
        gb_per_s=pl.median("gb_per_s"),
        peak_frac=pl.median("peak_frac"),
    )  # fmt: skip
    groups = groups.join(totals(windows), on=PLACE, validate="m:1").with_columns(
        work_frac=work_frac(),
        n_per_step=pl.col("n_casts") / pl.col("n_steps"),
        ns_per_step=pl.col("kernel_ns") / pl.col("n_steps"),
        share=pl.when(pl.col("wall_ns") > 0).then(pl.col("kernel_ns") / pl.col("wall_ns")),
    )
    ordered = groups.sort(*PLACE, "kernel_ns", "group_id", descending=[False, False, True, False])
    return CAST_GROUPS.check(ordered.select(CAST_GROUPS.names))
