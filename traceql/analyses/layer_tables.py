"""The tables of layers: what each method finds, and what is worked out from it."""

import polars as pl

from traceql.tables import DEVICE, KERNEL_ID, RANK, STEP, Column, Table

PLACEMENT = Table(
    "layer_placement",
    "What one method found: one row per GPU activity of the steps that it could take apart. Sorted by kernel_id.",
    KERNEL_ID,
    Column("section", pl.String, "prologue, layer or epilogue; null when not attributed", nullable=True),
    Column("model_pass", pl.Int64, "Forward pass within the step, 0-based; null outside layers", nullable=True),
    Column("layer", pl.Int64, "Layer within the pass, 0-based, in order of execution", nullable=True),
    Column("block", pl.String, "attention, mlp, moe, comm or other; null outside layers", nullable=True),
    Column("confidence", pl.Float64, "0 to 1"),
)

KERNEL_LAYERS = Table(
    "kernel_layers",
    "One row per GPU activity: the layer it belongs to. Sorted by kernel_id.",
    KERNEL_ID,
    Column(
        "section",
        pl.String,
        "prologue (before the first layer), layer, epilogue (after a pass's last layer) or between (launched between "
        "two steps); null when not attributed",
        nullable=True,
    ),
    Column(
        "model_pass", pl.Int64, "Forward pass within the step, 0-based; more than one with a draft model", nullable=True
    ),
    Column(
        "layer", pl.Int64, "Layer within the pass, 0-based, in order of execution; null outside layers", nullable=True
    ),
    Column(
        "layer_type",
        pl.Int64,
        "Layers of one type run like kernels, see `layer_types`; null outside layers",
        nullable=True,
    ),
    Column("block", pl.String, "attention, mlp, moe, comm or other; null outside layers", nullable=True),
    Column(
        "method",
        pl.String,
        "module, annotation, graph-node, capture or sequence; null when not attributed",
        nullable=True,
    ),
    Column("confidence", pl.Float64, "0 to 1; null when not attributed", nullable=True),
)

_STEP = (
    RANK,
    DEVICE,
    STEP,
)
_LAYER = (
    Column("model_pass", pl.Int64, "Forward pass within the step, 0-based"),
    Column("layer", pl.Int64, "Layer within the pass, 0-based"),
)
_INTERVAL = (
    Column("start_ns", pl.Int64, "First kernel on the step's main stream", nullable=True),
    Column(
        "wall_ns",
        pl.Int64,
        "From there to the next layer's or section's; null where the step has no window",
        nullable=True,
    ),
    Column("busy_ns", pl.Int64, "Union of all GPU activity in that interval", nullable=True),
    Column("kernel_ns", pl.Int64, "Sum of the durations of the activities attributed to it"),
    Column("n_kernels", pl.Int64, "GPU activities attributed to it"),
)

LAYERS = Table(
    "layers",
    "One row per step and layer. Sorted by its first five columns.",
    *_STEP,
    *_LAYER,
    Column("layer_type", pl.Int64, "A row of `layer_types`"),
    *_INTERVAL,
    Column("method", pl.String, "module, annotation, graph-node, capture or sequence"),
    Column("confidence", pl.Float64, "0 to 1: the least of its kernels"),
)

STEP_SECTIONS = Table(
    "step_sections",
    "One row per step and stretch of its window: prologue, each layer, epilogue, between; null is not attributed. "
    "The walls of a step add up to its wall. Sorted by rank, device, step, start.",
    *_STEP,
    Column("section", pl.String, "prologue, layer, epilogue or between; null when not attributed", nullable=True),
    Column("model_pass", pl.Int64, "Forward pass within the step; null outside layers", nullable=True),
    Column("layer", pl.Int64, "Layer within the pass; null outside layers", nullable=True),
    *_INTERVAL,
)

STEP_LAYER_CATEGORIES = Table(
    "step_layer_categories",
    "One row per step, section, layer and category. Over a step, exclusive_ns adds up to the step's busy_ns and "
    "kernel_ns to its kernel_ns. Sorted by its first seven columns.",
    *_STEP,
    Column("section", pl.String, "As in `step_sections`", nullable=True),
    Column("model_pass", pl.Int64, "Forward pass within the step; null outside layers", nullable=True),
    Column("layer", pl.Int64, "Layer within the pass; null outside layers", nullable=True),
    Column("category", pl.String, "Kernel category"),
    Column("group", pl.String, "The category's group"),
    Column("exclusive_ns", pl.Int64, "Exclusive time in the interval of the layer or section"),
    Column("kernel_ns", pl.Int64, "Sum of the durations of the activities attributed to it"),
    Column("n_kernels", pl.Int64, "GPU activities attributed to it"),
)

LAYER_TYPES = Table(
    "layer_types",
    "One row per kind of layer, in order of first appearance.",
    Column("layer_type", pl.Int64, "Number, 0-based, the same in all steps and ranks"),
    Column("label", pl.String, "What it is: module class where recorded, and its blocks, e.g. attention + moe; unique"),
    Column("n_layers", pl.Int64, "Layers of this type in a step (median over steps that have one)"),
    Column("n_kernels", pl.Int64, "GPU activities of one layer (median)"),
)
