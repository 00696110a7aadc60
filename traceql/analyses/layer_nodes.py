"""Layers from the annotations of graph nodes, which each kernel of a replayed graph carries.

`torch.cuda.graph(..., enable_annotations=True)` notes during capture what each node is for (`mark_kernels`, or the
module's name), and the export of the profile writes it into the arguments of the node's kernels, as `name`:
https://github.com/pytorch/pytorch/pull/194854 and torch/cuda/_graph_annotations.py. CUDA 13.1 or newer. Made from that
source: no recorded trace with such annotations was at hand.
"""

import polars as pl

from traceql.analyses.layer_calls import MIN_COVERED_FRAC, block_of
from traceql.analyses.layer_spans import named_layers
from traceql.analyses.layer_tables import PLACEMENT
from traceql.trace import Trace

CONFIDENCE = 0.9
"""Each kernel says its layer; untested on a recorded trace."""

_STEP = ["rank", "step"]
_GRAPH = [*_STEP, "words", "launch_id"]


def by_graph_nodes(trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """The `PLACEMENT` table by the annotations of graph nodes that name a layer, as `layers.3.attention.wq` does.

    Args:
        trace: the trace or run; of few kernels is an annotation recorded.
        activities: GPU activities with their step, as `Attribution` has them.

    The texts are read as those on the host, and layers numbered in the order of their numbers. Other words before the
    number are another pass; so is a later graph that begins with a lower number. What names no layer is prologue before
    the first kernel of a layer, epilogue after the last, and else null. A step is absent where less than half of its
    activities name a layer.
    """
    rows = _named(trace, activities)
    in_layer = pl.col("number").is_not_null()
    rows = rows.filter(in_layer.mean().over("rank", "device", "step") >= MIN_COVERED_FRAC)
    rows = rows.join(_passes(rows), on=_GRAPH, how="left", validate="m:1", nulls_equal=True, maintain_order="left")
    starts = pl.col("start_ns").filter(in_layer)
    section = (
        pl.when(in_layer).then(pl.lit("layer"))
        .when(pl.col("start_ns") < starts.min().over(_STEP)).then(pl.lit("prologue"))
        .when(pl.col("start_ns") > starts.max().over(_STEP)).then(pl.lit("epilogue"))
    )  # fmt: skip
    layer = pl.col("number").rank("dense").over(*_STEP, "model_pass").cast(pl.Int64) - 1
    rows = rows.with_columns(section=section, layer=layer, confidence=pl.lit(CONFIDENCE))
    return PLACEMENT.check(rows.with_columns(block=_block()).sort("kernel_id").select(PLACEMENT.names))


def _named(trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """The activities of steps in order of time with what their annotations name: number, text and words before it."""
    annotations = trace.kernels.select("kernel_id", name="annotation").collect()
    texts = named_layers(annotations["name"].drop_nulls().unique())
    return (
        activities.filter(pl.col("step").is_not_null() & pl.col("section").is_null())
        .drop("name", "section")
        .join(annotations, on="kernel_id", validate="1:1")
        .join(texts, on="name", how="left", validate="m:1")
        .with_columns(words=pl.col("name").str.extract(r"(?s)^(\D*)\d", 1))
        .sort("rank", "step", "start_ns", "kernel_id")
    )


def _passes(rows: pl.DataFrame) -> pl.DataFrame:
    """The `model_pass` of the activities that name a layer, by rank, step, words and launch."""
    number = pl.col("number")
    graphs = (
        rows.drop_nulls("number")
        .group_by(_GRAPH)
        .agg(pl.min("start_ns"), low=number.min(), high=number.max())
        .sort("start_ns", *_GRAPH)
    )
    of_model = [*_STEP, "words"]
    graphs = graphs.with_columns(begins=(pl.col("low") < pl.col("high").shift().over(of_model)).fill_null(True))
    nth = pl.when("begins").then(pl.col("begins").cum_sum().over(_STEP).cast(pl.Int64) - 1)
    return graphs.with_columns(model_pass=nth).select(*_GRAPH, pl.col("model_pass").forward_fill().over(of_model))


def _block() -> pl.Expr:
    """Of an activity in a layer: what its annotation tells, else the next or previous of the layer in order of time."""
    told = block_of("text").backward_fill().forward_fill().over(*_STEP, "model_pass", "layer").fill_null("other")
    block = pl.when(pl.col("group") == "nccl").then(pl.lit("comm")).otherwise(told)
    return pl.when(pl.col("section") == "layer").then(block)
