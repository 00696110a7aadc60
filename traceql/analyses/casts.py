"""Casts and copies: what each converts, how much it moves and how fast; and which of them convert a whole KV pool.

A cast reads one dtype and writes another, a copy keeps it; (de)quantise and fused cast kernels are `custom`, listed
apart. What is not recorded comes from the kernel's name and launch grid, and each row says which of its facts do.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.device_peaks import device_peaks
from traceql.analyses.layering import Layering
from traceql.analyses.summary import Selection, selected_steps
from traceql.ingest.meta import TraceMeta
from traceql.ingest.quirks import Quirk
from traceql.names import ITEM_BYTES
from traceql.tables import DEVICE, RANK, Column, Table
from traceql.trace import Trace

KINDS = ("cast", "copy", "custom")

POOL_FRAC = 0.05
"""A cast that takes less of the steps' kernel time (communication left out) is no whole-pool cast."""
POOL_BYTES = 1 << 20
"""Nor is one that writes less than this."""
POOL_CASTS = 4
"""Nor one that comes less often in a step, where layers are not known."""
SAME_SIZE = 1.1
"""Sizes that differ less are one group: rows gathered for attention grow from step to step."""
LOOSE = 2
"""A range of sizes that is wider tells nothing about bandwidth."""
GATHERED_FRAC = 0.05
"""A gather that takes less of a cast's time has not written what the cast reads."""
LIKELY = 0.8
"""Confidence that a pool holds the dtype that the same step writes to it."""

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

_PLACE = ["rank", "device"]
_STEP = [*_PLACE, "step"]
_LAYER = ["model_pass", "layer"]
_ALIKE = [*_PLACE, "kind", "short_name", "src_dtype", "dst_dtype"]
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
_POOL_SRC = ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz", "int8", "uint8")
_POOL_DST = ("bf16", "fp16")


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
    selection = selection or Selection()
    if selection != Selection():
        return _report(trace, selection)
    if trace not in _known:
        _known[trace] = _report(trace, selection)
    return _known[trace]


def _report(trace: Trace, selection: Selection) -> CastReport:
    found = Attribution.of(trace)
    chosen = selected_steps(found.steps, selection)
    complete = _complete(chosen)
    layers = _layers(trace)
    devices = device_peaks(trace)
    rows = _grouped(_without_wild_guesses(_sized(_merged(_rows(trace, found, layers))), devices))
    rows = _moved(rows, _verdicts(rows, found, layers))
    counted = rows.join(complete, on=_STEP, how="semi", maintain_order="left") if complete.height else rows
    windows = _step_windows(found, complete) if complete.height else _whole(found)
    shown = rows.join(chosen, on=_STEP, how="semi") if selection != Selection() and complete.height else rows
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


def _complete(steps: pl.DataFrame) -> pl.DataFrame:
    return steps.filter(pl.col("is_complete") & pl.col("separable"))


_known: WeakKeyDictionary[Trace, CastReport] = WeakKeyDictionary()


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
            "kernel_id", *_PLACE, "name", "short_name", "start_ns", "dur_ns", "op_id", "bytes",
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
    return Layering.of(trace).placed.select("kernel_id", "section", *_LAYER, "layer_type")


def _reads_gathered(activities: pl.DataFrame) -> pl.DataFrame:
    """after_gather of each activity: the one before it on its stream picked rows by index, and could be its source."""
    picks = (pl.col("category") == "gather") & ~pl.col("name").str.contains(_WRITES_BY_INDEX)
    ordered = activities.select("kernel_id", *_PLACE, "stream", "start_ns", "dur_ns", picks=picks)
    before = pl.col("picks", "dur_ns").shift().over(*_PLACE, "stream").name.prefix("before_")
    ordered = ordered.sort(*_PLACE, "stream", "start_ns", "kernel_id").with_columns(before)
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
    """The rows without sizes read from a grid that the device could not move in the time it took."""
    rows = rows.join(devices.select(*_PLACE, "peak_bytes_per_s"), on=_PLACE, how="left", validate="m:1")
    known = _items("src_dtype").fill_null(0) + _items("dst_dtype").fill_null(0)
    is_too_fast = pl.col("n_elements_min") * known * 1e9 > pl.col("peak_bytes_per_s") * pl.col("dur_ns")
    is_wild = ((pl.col("size_evidence") == "grid") & is_too_fast).fill_null(value=False)
    return rows.with_columns(pl.when(~is_wild).then(pl.col(*_SIZES, "size_evidence")))


def _items(dtype: str) -> pl.Expr:
    """Bytes of an element of the dtype in a column."""
    return pl.col(dtype).replace_strict(ITEM_BYTES, default=None, return_dtype=pl.Int64)


def _grouped(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds position and group_id: the first row of the same kind, kernel, dtypes, size and place in the layer."""
    size = pl.coalesce("n_elements_max", "bytes")
    is_larger = (size > SAME_SIZE * size.shift()).fill_null(value=False)
    rows = rows.with_columns(size=size).with_columns(size_class=is_larger.cum_sum().over(_ALIKE, order_by="size"))
    number = pl.int_range(pl.len(), dtype=pl.Int64).over(*_ALIKE, "step", *_LAYER, "size_class")
    rows = rows.with_columns(position=pl.when(pl.col("layer").is_not_null()).then(number))
    return rows.with_columns(group_id=pl.col("kernel_id").min().over(*_ALIKE, "size_class", "section", "position"))


def _moved(rows: pl.DataFrame, verdicts: pl.DataFrame) -> pl.DataFrame:
    """Adds the verdict on the group, bytes and bandwidth."""
    rows = rows.join(verdicts.select(_TOLD), on="group_id", how="left", validate="m:1")
    read = _items("src_dtype").fill_null(_items("likely_src_dtype"))
    written = _items("dst_dtype")
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


# --- what is counted ---


def _step_windows(found: Attribution, complete: pl.DataFrame) -> pl.DataFrame:
    """rank, device, step, stage, wall_ns and work_ns of the complete steps."""
    work = _work(found.activities.join(complete, on=_STEP, how="semi"), _STEP)
    windows = complete.select(*_STEP, "stage", "wall_ns").join(work, on=_STEP, how="left", validate="1:1")
    return windows.with_columns(pl.col("work_ns").fill_null(0)).sort(_STEP)


def _whole(found: Attribution) -> pl.DataFrame:
    """The same with the whole trace as one window a device, first to last activity, of no step and no stage."""
    end_ns = pl.col("start_ns") + pl.col("dur_ns")
    windows = found.activities.group_by(_PLACE).agg(
        step=pl.lit(None, pl.Int64), stage=pl.lit(None, pl.String), wall_ns=end_ns.max() - pl.min("start_ns")
    )
    return windows.join(_work(found.activities, _PLACE), on=_PLACE, validate="1:1").sort(_PLACE)


def _work(activities: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Kernel time without communication, inside of which ranks wait for each other."""
    return activities.group_by(by).agg(work_ns=pl.col("dur_ns").filter(pl.col("group") != "nccl").sum())


def _layers_of_steps(layers: pl.DataFrame, found: Attribution, complete: pl.DataFrame) -> pl.DataFrame:
    """rank, device, step, pass, layer and type: the layers of the complete steps, of all steps where none is."""
    steps = complete if complete.height else found.steps
    places = found.activities.select("kernel_id", *_STEP).join(steps, on=_STEP, how="semi")
    of_steps = layers.drop_nulls("layer").join(places, on="kernel_id", validate="1:1")
    return of_steps.select(*_STEP, *_LAYER, "layer_type").unique()


# --- whole-pool casts ---


def _verdicts(rows: pl.DataFrame, found: Attribution, layers: pl.DataFrame) -> pl.DataFrame:
    """One row per group, judged over all complete steps, whichever are selected: whole pool or not, and its source."""
    complete = _complete(found.steps)
    windows = _step_windows(found, complete) if complete.height else _whole(found)
    stages = complete.select(*_STEP, "stage")
    judged = (
        rows.join(stages, on=_STEP, validate="m:1", maintain_order="left")
        if complete.height
        else rows.with_columns(stage=pl.lit(None, pl.String))
    )
    verdicts = _pool_verdicts(judged, windows, _layers_of_steps(layers, found, complete))
    return _likely_sources(verdicts, judged)


def _totals(windows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """n_steps, wall_ns and work_ns by rank, device and `by`."""
    return windows.group_by(*_PLACE, *by).agg(pl.sum("wall_ns", "work_ns"), n_steps=pl.len().cast(pl.Int64))


def _of_its_stages(judged: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """group_id, n_steps and work_ns: of the steps of the stages that have the group."""
    key = [*_PLACE, "stage"]
    stages = judged.select("group_id", *key).unique()
    both = stages.join(_totals(windows, "stage"), on=key, validate="m:1", nulls_equal=True)
    return both.group_by("group_id").agg(pl.sum("n_steps", "work_ns"))


def _pool_verdicts(judged: pl.DataFrame, windows: pl.DataFrame, layers: pl.DataFrame) -> pl.DataFrame:
    """group_id, is_whole_pool with its confidence and reason, n_layers and in_every_layer."""
    facts = judged.group_by("group_id").agg(
        pl.first(*_PLACE, "kind", "src_dtype", "dst_dtype", "n_elements_max", "size_evidence"),
        pool_src=_is_or_null("src_dtype", _POOL_SRC),
        pool_dst=_is_or_null("dst_dtype", _POOL_DST),
        n_casts=pl.len().cast(pl.Int64),
        written_bytes=(pl.col("n_elements_min") * _items("dst_dtype")).first(),
        n_sizes=pl.struct(_SIZES).n_unique(),
        after_gather=pl.col("after_gather").fill_null(value=False).mean() >= 0.5,
        kernel_ns=pl.sum("dur_ns"),
    )
    facts = (
        facts.join(_of_its_stages(judged, windows), on="group_id", validate="1:1")
        .join(_by_step(judged), on="group_id", how="left", validate="1:1")
        .join(_every_layer(judged, layers), on="group_id", how="left", validate="1:1")
        .with_columns(work_frac=_work_frac())
    )
    return facts.select(
        "group_id", *_PLACE, "src_dtype", "n_casts", "n_layers", "in_every_layer",
        is_whole_pool=_first_that_holds(1), whole_pool_confidence=_first_that_holds(2),
        whole_pool_reason=_first_that_holds(3),
    )  # fmt: skip


def _work_frac() -> pl.Expr:
    return pl.when(pl.col("work_ns") > 0).then(pl.col("kernel_ns") / pl.col("work_ns"))


def _is_or_null(dtype: str, among: tuple[str, ...]) -> pl.Expr:
    return (pl.col(dtype).is_in(among) | pl.col(dtype).is_null()).first()


def _by_step(judged: pl.DataFrame) -> pl.DataFrame:
    """group_id, n_layers, and of the steps that have the group: how many, and how many different counts."""
    is_layer = pl.col("layer").is_not_null()
    per_step = judged.group_by("group_id", "step").agg(n=pl.len(), n_layers=_n_layers(is_layer))
    return per_step.group_by("group_id").agg(
        n_layers=pl.when(pl.max("n_layers") > 0).then(pl.max("n_layers")),
        n_steps_with=pl.len().cast(pl.Int64),
        n_counts=pl.n_unique("n"),
        n_a_step=pl.max("n"),
    )


def _n_layers(is_layer: pl.Expr) -> pl.Expr:
    return pl.struct(_LAYER).filter(is_layer).n_unique().cast(pl.Int64)


def _every_layer(judged: pl.DataFrame, layers: pl.DataFrame) -> pl.DataFrame:
    """group_id and in_every_layer: whether, in each step that has it, each layer of the types that have it does."""
    inside = judged.drop_nulls("layer")
    having = inside.select("group_id", *_STEP, *_LAYER).unique().group_by("group_id").agg(n_having=pl.len())
    types = inside.select("group_id", *_STEP, "layer_type").unique()
    of_type = layers.group_by(*_STEP, "layer_type").agg(n=pl.len())
    expected = types.join(of_type, on=[*_STEP, "layer_type"], validate="m:1", nulls_equal=True)
    expected = expected.group_by("group_id").agg(n_expected=pl.sum("n"))
    both = having.join(expected, on="group_id", validate="1:1")
    return both.select("group_id", in_every_layer=pl.col("n_having") == pl.col("n_expected"))


_SIZE_TEXT = pl.when(pl.col("size_evidence") == "grid").then(pl.lit("a grid of one size")).otherwise(pl.lit("one size"))
_LAYERS_TEXT = pl.coalesce(
    pl.format("in each of {} layers", "n_layers"), pl.format("{} times in each step", "n_a_step")
)
_VERDICTS: tuple[tuple[pl.Expr, bool | None, float | None, pl.Expr], ...] = (
    (pl.col("kind") != "cast", None, None, pl.lit(None, pl.String)),
    (~(pl.col("pool_src") & pl.col("pool_dst")), False, 0.95, pl.lit("not from an 8-bit to a 16-bit dtype")),
    (pl.col("n_elements_max").is_null() | pl.col("dst_dtype").is_null(), None, None, pl.lit("its size is not known")),
    (pl.col("after_gather"), False, 0.95, pl.lit("converts what the kernel before it gathered")),
    (pl.col("written_bytes") < POOL_BYTES, False, 0.95, pl.lit("small")),
    (pl.col("work_frac") < POOL_FRAC, False, 0.8, pl.format(
        "{} % of the kernel time without communication", (pl.col("work_frac") * 100).round(1))),
    (pl.col("n_steps") < 2, None, None, pl.lit("with one step it cannot be told whether its size ever changes")),
    (pl.col("n_sizes") > 1, False, 0.9, pl.lit("its size changes from step to step")),
    ((pl.col("n_counts") > 1) | (pl.col("n_steps_with") < pl.col("n_steps")), False, 0.8,
     pl.lit("not equally often in each step")),
    (~pl.col("in_every_layer"), False, 0.8, pl.lit("not in every layer")),
    (pl.coalesce("n_layers", "n_a_step") < pl.when(pl.col("n_layers").is_null()).then(POOL_CASTS).otherwise(2),
     False, 0.8, pl.lit("too rare for something that each layer does")),
    (pl.lit(True), True, None, pl.format(
        "{} {} and {} steps, {} % of the kernel time without communication, nothing gathered before it",
        _SIZE_TEXT, _LAYERS_TEXT, "n_steps", (pl.col("work_frac") * 100).round(0).cast(pl.Int64))),
)  # fmt: skip
"""(condition, is_whole_pool, confidence, reason): the first whose condition holds."""

_POOL_CONFIDENCE = (
    pl.when(pl.col("n_layers").is_null()).then(0.7).when(pl.col("size_evidence") == "grid").then(0.85).otherwise(0.9)
)


def _first_that_holds(field: int) -> pl.Expr:
    """One field of the first of `_VERDICTS` that holds."""
    chosen: list[pl.Expr] = []
    for number, verdict in enumerate(_VERDICTS):
        value = verdict[field]
        if isinstance(value, pl.Expr):
            found = value
        elif field == 2 and verdict[1]:
            found = _POOL_CONFIDENCE
        else:
            found = pl.lit(value, pl.Boolean if field == 1 else pl.Float64)
        earlier = [before[0].fill_null(value=False) for before in _VERDICTS[:number]]
        holds = verdict[0].fill_null(value=False)
        chosen.append(pl.when(holds & ~pl.any_horizontal(*earlier, pl.lit(value=False))).then(found))
    return pl.coalesce(chosen)


def _likely_sources(verdicts: pl.DataFrame, judged: pl.DataFrame) -> pl.DataFrame:
    """Adds likely_src_dtype: the one 8-bit dtype that the steps of the device cast to, at least as often."""
    writes = judged.filter((pl.col("kind") == "cast") & pl.col("dst_dtype").is_in(_POOL_SRC))
    written = writes.group_by(_PLACE).agg(
        written=pl.when(pl.n_unique("dst_dtype") == 1).then(pl.first("dst_dtype")), n_writes=pl.len()
    )
    is_it = pl.col("is_whole_pool") & pl.col("src_dtype").is_null() & (pl.col("n_writes") >= pl.col("n_casts"))
    return (
        verdicts.join(written, on=_PLACE, how="left", validate="m:1")
        .with_columns(likely_src_dtype=pl.when(is_it).then("written"))
        .with_columns(likely_src_confidence=pl.when(pl.col("likely_src_dtype").is_not_null()).then(LIKELY))
    )


# --- the groups ---


def _groups(counted: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """The `cast_groups` table."""
    same = [
        *_PLACE, "kind", "short_name", "src_dtype", "dst_dtype", "section", "position",
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
    groups = groups.join(_totals(windows), on=_PLACE, validate="m:1").with_columns(
        work_frac=_work_frac(),
        n_per_step=pl.col("n_casts") / pl.col("n_steps"),
        ns_per_step=pl.col("kernel_ns") / pl.col("n_steps"),
        share=pl.when(pl.col("wall_ns") > 0).then(pl.col("kernel_ns") / pl.col("wall_ns")),
    )
    ordered = groups.sort(*_PLACE, "kernel_ns", "group_id", descending=[False, False, True, False])
    return CAST_GROUPS.check(ordered.select(CAST_GROUPS.names))
