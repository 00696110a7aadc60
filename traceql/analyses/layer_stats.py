"""The answer to "which layers take the time of a step", as frames: what `traceql layers` prints."""

from dataclasses import dataclass

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.layering import Layering
from traceql.analyses.step_windows import complete_steps
from traceql.analyses.summary import Selection, selected_steps
from traceql.errors import MissingDataError
from traceql.ingest.meta import TraceMeta
from traceql.ingest.quirks import Quirk
from traceql.tables import DEVICE, KERNEL_ID, RANK, STEP, Column, Table
from traceql.trace import Trace

_PASS = Column("model_pass", pl.Int64, "Forward pass within the step, 0-based")
_NUMBER = Column("layer", pl.Int64, "Layer within the pass, 0-based")
_TYPE = Column("layer_type", pl.Int64, "A row of `layer_types`")

_TOTALS = (
    Column(
        "wall_ns",
        pl.Int64,
        "Time in the windows of the steps counted, added up; null where they have no window",
        nullable=True,
    ),
    Column("busy_ns", pl.Int64, "Of it, with GPU activity", nullable=True),
    Column("kernel_ns", pl.Int64, "Sum of the durations of the activities attributed to it"),
    Column("n_kernels", pl.Int64, "GPU activities attributed to it"),
    Column(
        "wall_ns_per_step", pl.Float64, "wall_ns over the number of steps counted (each rank's count)", nullable=True
    ),
    Column("busy_ns_per_step", pl.Float64, "busy_ns, the same", nullable=True),
    Column("kernel_ns_per_step", pl.Float64, "kernel_ns, the same"),
    Column("share", pl.Float64, "wall_ns as a share of the wall of these steps", nullable=True),
)
_OF_LAYER = (
    Column("n_layers", pl.Int64, "Layers of it in the steps counted, added up"),
    Column("wall_ns_per_layer", pl.Float64, "wall_ns over n_layers", nullable=True),
    Column("busy_ns_per_layer", pl.Float64, "busy_ns over n_layers", nullable=True),
    Column("kernel_ns_per_layer", pl.Float64, "kernel_ns over n_layers"),
    Column("kernels_per_layer", pl.Float64, "n_kernels over n_layers"),
    Column("median_wall_ns", pl.Float64, "Wall of a layer: median", nullable=True),
    Column("median_busy_ns", pl.Float64, "Busy time of a layer: median", nullable=True),
    Column("median_kernel_ns", pl.Float64, "Kernel time of a layer: median"),
)

LAYER_TYPE_STATS = Table(
    "layer_type_stats",
    "One row per type of layer in the steps counted. Sorted by layer_type.",
    _TYPE,
    Column("label", pl.String, "What it is: module class where recorded, else its blocks, e.g. attention + moe"),
    Column("layers_per_step", pl.Float64, "n_layers over the number of steps counted"),
    *_OF_LAYER,
    *_TOTALS,
    Column("method", pl.String, "How these layers were found; several are joined by a comma"),
    Column("confidence", pl.Float64, "0 to 1: the least"),
)

LAYER_STATS = Table(
    "layer_stats",
    "One row per layer, and per type where a layer is not of the same in all steps. Sorted by its first three columns.",
    _PASS,
    _NUMBER,
    _TYPE,
    *_OF_LAYER,
    *_TOTALS,
    Column("max_wall_ns", pl.Int64, "Longest wall of this layer", nullable=True),
    Column("max_rank", pl.Int16, "Rank where that was", nullable=True),
    Column("max_step", pl.Int64, "Step where that was", nullable=True),
)

LAYER_SECTIONS = Table(
    "layer_sections",
    "One row per section of the steps counted, all layers together: wall_ns adds up to the wall of these steps, "
    "busy_ns, kernel_ns and n_kernels to theirs. In order of the sections.",
    Column("section", pl.String, "prologue, layer, epilogue or between; null when not attributed", nullable=True),
    *_TOTALS,
)

LAYER_CATEGORIES = Table(
    "layer_categories",
    "One row per section, layer and category in the steps counted: exclusive_ns adds up to their busy time. "
    "Sorted by its first four columns.",
    Column("section", pl.String, "prologue, layer, epilogue or between; null when not attributed", nullable=True),
    Column("model_pass", pl.Int64, "Forward pass within the step; null outside layers", nullable=True),
    Column("layer", pl.Int64, "Layer within the pass; null outside layers", nullable=True),
    Column("category", pl.String, "Kernel category"),
    Column("group", pl.String, "The category's group"),
    Column("exclusive_ns", pl.Int64, "Exclusive time within the layer or section; 0 where steps have no window"),
    Column("kernel_ns", pl.Int64, "Sum of the durations of the activities attributed to it"),
    Column("n_kernels", pl.Int64, "GPU activities attributed to it"),
    Column("exclusive_ns_per_step", pl.Float64, "exclusive_ns over the number of steps counted"),
    Column("kernel_ns_per_step", pl.Float64, "kernel_ns over the number of steps counted"),
)

ODD_LAYERS = Table(
    "odd_layers",
    "One row per layer whose median wall or kernel time is far from that of its type. Farthest first.",
    _PASS,
    _NUMBER,
    _TYPE,
    Column("median_wall_ns", pl.Float64, "Median wall of the layer", nullable=True),
    Column("type_wall_ns", pl.Float64, "Median of that over the layers of its type", nullable=True),
    Column("wall_ratio", pl.Float64, "The first over the second", nullable=True),
    Column("median_kernel_ns", pl.Float64, "Median kernel time of the layer"),
    Column("type_kernel_ns", pl.Float64, "Median of that over the layers of its type"),
    Column("kernel_ratio", pl.Float64, "The first over the second", nullable=True),
)

LAYER_KERNELS = Table(
    "layer_kernels",
    "One row per GPU activity of one layer in one step. Sorted by start.",
    Column("position", pl.Int64, "0-based, in order of start"),
    KERNEL_ID,
    RANK,
    DEVICE,
    STEP,
    _PASS,
    _NUMBER,
    Column(
        "offset_ns",
        pl.Int64,
        "Start since the start of the layer; negative on a side stream that ran ahead",
        nullable=True,
    ),
    Column("dur_ns", pl.Int64, "Length", nullable=True),
    Column("median_dur_ns", pl.Float64, "Median length in the steps whose layer runs the same kernels", nullable=True),
    Column("n_alike", pl.Int64, "Number of these steps, this one included"),
    Column("stream", pl.Int64, "Stream number as recorded"),
    Column("block", pl.String, "attention, mlp, moe, comm or other"),
    Column("category", pl.String, "Kernel category"),
    Column("short_name", pl.String, "Readable name"),
    Column("name", pl.String, "Full name as recorded"),
)

_STEP = ["rank", "device", "step"]
_LAYER = ["model_pass", "layer", "layer_type"]
_ADDED = ("wall_ns", "busy_ns", "kernel_ns", "n_kernels")
_TIMED = ("wall_ns", "busy_ns", "kernel_ns")
_SECTIONS = ["prologue", "layer", "epilogue", "between"]
_FAR_MADS = 3 * 1.4826
_FAR_SHARE = 0.05


@dataclass(frozen=True)
class Unattributed:
    """What of the steps looked at is neither in a layer nor in a section around layers."""

    kernel_ns: int
    share: float | None
    """Of the kernel time of these steps; null where that is 0."""
    n_kernels: int
    notes: tuple[str, ...]
    """Why, for the whole trace."""


@dataclass(frozen=True)
class LayerStats:
    """Where the time of layers goes, over the steps counted."""

    trace: TraceMeta
    selection: Selection
    chosen: pl.DataFrame
    """Table `steps`: those that the selection names."""
    looked_at: pl.DataFrame
    """Of them, the complete separable ones; all where there is none."""
    counted: pl.DataFrame
    """Of those, the ones with layers: all figures but `unattributed` are about them. If none of the complete ones has
    layers, any that has a window and layers; if there is none of those either, any that has layers."""
    layers: pl.DataFrame
    """Table `layers` of the steps chosen, counted or not."""
    types: pl.DataFrame
    """Table `layer_type_stats`."""
    of_layers: pl.DataFrame
    """Table `layer_stats`."""
    sections: pl.DataFrame
    """Table `layer_sections`."""
    categories: pl.DataFrame
    """Table `layer_categories`."""
    odd: pl.DataFrame
    """Table `odd_layers`."""
    unattributed: Unattributed
    quirks: tuple[Quirk, ...]

    @property
    def has_walls(self) -> bool:
        """Whether the steps counted have windows; overlapping ones have not."""
        return _has_walls(self.counted)

    @property
    def is_complete(self) -> bool:
        """Whether the steps counted are complete, separable ones."""
        return 0 < complete_steps(self.counted).height == self.counted.height

    @property
    def n_passes(self) -> int:
        """Forward passes of a step that have layers."""
        return self.of_layers["model_pass"].n_unique()

    @property
    def wall_ns(self) -> int | None:
        """Of the steps counted, added up."""
        return int(self.counted["wall_ns"].sum()) if self.has_walls else None


def layer_stats(trace: Trace, selection: Selection | None = None, layering: Layering | None = None) -> LayerStats:
    """Where the time of the layers of a trace or run goes.

    Args:
        trace: the trace or run.
        selection: the steps to look at, else all.
        layering: its layers, else those that `Layering.of(trace)` finds.

    Raises:
        MissingDataError: the selection names no step of the trace.
    """
    selection = selection or Selection()
    layering = layering or Layering.of(trace)
    found = Attribution.of(trace)
    chosen = selected_steps(found.steps, selection)
    complete = complete_steps(chosen)
    counted = _counted(chosen, layering.layers)
    layers = layering.layers.join(counted, on=_STEP, how="semi")
    looked_at = complete if complete.height else chosen
    return LayerStats(
        trace=trace.meta,
        selection=selection,
        chosen=chosen,
        looked_at=looked_at,
        counted=counted,
        layers=layering.layers.join(chosen, on=_STEP, how="semi", maintain_order="left"),
        types=_type_stats(layers, counted, layering.types),
        of_layers=_layer_stats(layers, counted),
        sections=_section_stats(layering.sections, counted),
        categories=_category_stats(layering.categories, counted),
        odd=odd_layers(layers),
        unattributed=_unattributed(found, looked_at, layering),
        quirks=trace.quirks,
    )


def _counted(chosen: pl.DataFrame, layers: pl.DataFrame) -> pl.DataFrame:
    """The steps that figures are about: of one kind, so that either all have a wall or none."""
    with_layers = chosen.join(layers, on=_STEP, how="semi", maintain_order="left")
    windowed = with_layers.filter(pl.col("wall_ns").is_not_null())
    complete = windowed.filter("is_complete")
    return next((steps for steps in (complete, windowed) if steps.height), with_layers)


def _has_walls(counted: pl.DataFrame) -> bool:
    return counted.height > 0 and not counted["wall_ns"].null_count()


def _sums(counted: pl.DataFrame) -> list[pl.Expr]:
    """Totals of wall, busy and kernel time and kernels; null, not 0, for times that windows would tell."""
    unknown = () if _has_walls(counted) else ("wall_ns", "busy_ns")
    return [pl.lit(None, pl.Int64).alias(name) if name in unknown else pl.sum(name) for name in _ADDED]


def _with_means(totals: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """Adds figures per step and the share of the steps' wall."""
    wall_ns = int(counted["wall_ns"].sum()) or None
    per_step = {f"{name}_per_step": pl.col(name) / counted.height for name in _TIMED}
    return totals.with_columns(**per_step, share=pl.col("wall_ns").cast(pl.Float64) / pl.lit(wall_ns, pl.Float64))


def _of_layers(layers: pl.DataFrame, key: str | list[str], counted: pl.DataFrame, *more: pl.Expr) -> pl.DataFrame:
    """Totals, medians and means of the layers of each key."""
    medians = [pl.median(name).cast(pl.Float64).alias(f"median_{name}") for name in _TIMED]
    rows = layers.group_by(key).agg(pl.len().cast(pl.Int64).alias("n_layers"), *_sums(counted), *medians, *more)
    per_layer = {f"{name}_per_layer": pl.col(name) / pl.col("n_layers") for name in _TIMED}
    rows = rows.with_columns(**per_layer, kernels_per_layer=pl.col("n_kernels") / pl.col("n_layers"))
    return _with_means(rows, counted)


def _type_stats(layers: pl.DataFrame, counted: pl.DataFrame, types: pl.DataFrame) -> pl.DataFrame:
    methods = pl.col("method").unique().sort().str.join(", ")
    rows = _of_layers(layers, "layer_type", counted, methods, pl.min("confidence"))
    rows = rows.join(types.select("layer_type", "label"), on="layer_type", validate="1:1")
    rows = rows.with_columns(layers_per_step=pl.col("n_layers") / counted.height).sort("layer_type")
    return LAYER_TYPE_STATS.check(rows.select(LAYER_TYPE_STATS.names))


def _layer_stats(layers: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    longest = pl.col("wall_ns").arg_max()
    where = {"max_rank": pl.col("rank").get(longest), "max_step": pl.col("step").get(longest)}
    rows = _of_layers(
        layers, _LAYER, counted, pl.max("wall_ns").alias("max_wall_ns"), *(expr.alias(n) for n, expr in where.items())
    )
    return LAYER_STATS.check(rows.select(LAYER_STATS.names).sort(_LAYER))


def _section_stats(sections: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    rows = sections.join(counted, on=_STEP, how="semi").group_by("section").agg(_sums(counted))
    rows = _with_means(rows, counted).sort(pl.col("section").cast(pl.Enum(_SECTIONS)), nulls_last=True)
    return LAYER_SECTIONS.check(rows.select(LAYER_SECTIONS.names))


def _category_stats(categories: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    key = ["section", "model_pass", "layer", "category", "group"]
    rows = categories.join(counted, on=_STEP, how="semi").group_by(key)
    totals = rows.agg(pl.sum("exclusive_ns", "kernel_ns", "n_kernels"))
    means = {f"{name}_per_step": pl.col(name) / counted.height for name in ("exclusive_ns", "kernel_ns")}
    return LAYER_CATEGORIES.check(totals.with_columns(**means).select(LAYER_CATEGORIES.names).sort(key))


def odd_layers(layers: pl.DataFrame) -> pl.DataFrame:
    """The `odd_layers` table.

    Args:
        layers: the rows of `layers` to look at; their steps and ranks are taken together.

    Far is, in wall or in kernel time, more than 5 % of the median of the type's layers and more than three standard
    deviations from it, estimated by the median absolute deviation (times 1.4826, its factor for a normal distribution).
    """
    rows = layers.group_by(_LAYER).agg(pl.median("wall_ns", "kernel_ns").cast(pl.Float64).name.prefix("median_"))
    far = [_is_far(f"median_{name}_ns") for name in ("wall", "kernel")]
    of_type = {f"type_{name}_ns": pl.median(f"median_{name}_ns").over("layer_type") for name in ("wall", "kernel")}
    odd = rows.with_columns(**of_type, is_odd=pl.any_horizontal(*far)).filter("is_odd")
    ratios = {f"{name}_ratio": _over(f"median_{name}_ns", f"type_{name}_ns") for name in ("wall", "kernel")}
    odd = odd.with_columns(**ratios)
    distance = pl.max_horizontal((pl.col("wall_ratio") - 1).abs(), (pl.col("kernel_ratio") - 1).abs())
    ordered = odd.sort(distance, *_LAYER, descending=[True, False, False, False], nulls_last=True)
    return ODD_LAYERS.check(ordered.select(ODD_LAYERS.names))


def _is_far(column: str) -> pl.Expr:
    median = pl.median(column).over("layer_type")
    deviation = (pl.col(column) - median).abs()
    spread = deviation.median().over("layer_type")
    return ((deviation > _FAR_MADS * spread) & (deviation > _FAR_SHARE * median)).fill_null(False)


def _over(part: str, whole: str) -> pl.Expr:
    return pl.when(pl.col(whole) > 0).then(pl.col(part) / pl.col(whole))


def _unattributed(found: Attribution, looked_at: pl.DataFrame, layering: Layering) -> Unattributed:
    """Of the steps looked at; without any step, all GPU activity of the trace."""
    if found.steps.is_empty():
        every = found.activities
        kernel_ns = int(every["dur_ns"].sum())
        notes = layering.notes or ("no steps found: layers are looked for within steps",)
        return Unattributed(kernel_ns, 1.0 if kernel_ns else None, every.height, notes)
    spent = layering.categories.join(looked_at, on=_STEP, how="semi")
    left = spent.filter(pl.col("section").is_null())
    kernel_ns, total_ns = int(left["kernel_ns"].sum()), int(spent["kernel_ns"].sum())
    share = kernel_ns / total_ns if total_ns else None
    return Unattributed(kernel_ns, share, int(left["n_kernels"].sum()), layering.notes)


def layer_kernels(
    trace: Trace, layering: Layering, counted: pl.DataFrame, layer: int, model_pass: int = 0
) -> pl.DataFrame:
    """The `layer_kernels` table of one layer, in the step in which its wall is the median one.

    Args:
        trace: the trace or run.
        layering: its layers.
        counted: the steps to look at. Of an even number the shorter of the middle two is shown; without walls, by
            kernel time.
        layer: its number.
        model_pass: that of its forward pass.

    Raises:
        MissingDataError: none of these steps has such a layer.
    """
    wanted = (pl.col("layer") == layer) & (pl.col("model_pass") == model_pass)
    known = layering.layers.join(counted, on=_STEP, how="semi")
    of_layer = known.filter(wanted).sort("wall_ns", "kernel_ns", *_STEP)
    if not of_layer.height:
        raise MissingDataError(f"no step selected has layer {layer} in pass {model_pass}", _what_there_is(known))
    shown = of_layer.slice((of_layer.height - 1) // 2, 1)
    kernels = _sequences(Attribution.of(trace), layering.placed.filter(wanted), of_layer)
    rows = kernels.join(shown.select(*_STEP, layer_ns="start_ns"), on=_STEP, validate="m:1")
    alike = _alike(kernels, rows)
    usual = alike.group_by("name", "nth").agg(pl.median("dur_ns").cast(pl.Float64).alias("median_dur_ns"))
    begin_ns = pl.col("layer_ns").fill_null(pl.col("start_ns").min())
    rows = (
        rows.join(usual, on=["name", "nth"], validate="1:1")
        .sort("start_ns", "kernel_id", nulls_last=True)
        .with_columns(
            position=pl.int_range(pl.len(), dtype=pl.Int64),
            offset_ns=pl.col("start_ns") - begin_ns,
            n_alike=pl.lit(alike.select(_STEP).n_unique(), pl.Int64),
        )
    )
    return LAYER_KERNELS.check(rows.select(LAYER_KERNELS.names))


def _what_there_is(layers: pl.DataFrame) -> str:
    ranges = layers.group_by("model_pass").agg(first=pl.min("layer"), last=pl.max("layer")).sort("model_pass")
    parts = [f"layers {first} to {last} in pass {number}" for number, first, last in ranges.rows()]
    return f"There are {', '.join(parts)}." if parts else "The steps selected have no layers."


def _sequences(found: Attribution, placed: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The activities of one layer in some steps; `nth` counts those of one name within a step."""
    columns = ("kernel_id", *_STEP, "stream", "start_ns", "dur_ns", "category", "short_name", "name")
    activities = found.activities.select(columns).join(steps, on=_STEP, how="semi")
    of_layer = placed.select("kernel_id", "model_pass", "layer", "block")
    rows = activities.join(of_layer, on="kernel_id", validate="1:1").sort(*_STEP, "start_ns", "kernel_id")
    return rows.with_columns(nth=pl.int_range(pl.len()).over(*_STEP, "name"))


def _alike(kernels: pl.DataFrame, shown: pl.DataFrame) -> pl.DataFrame:
    """Those of the steps in which the layer runs the kernels shown; streams may interleave in another order."""
    names = kernels.group_by(_STEP).agg(pl.col("name").sort().str.join("\n"))
    same = names.filter(pl.col("name") == shown["name"].sort().str.join("\n")[0])
    return kernels.join(same, on=_STEP, how="semi")
