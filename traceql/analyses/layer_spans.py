"""Layers from annotations: spans on the host that name a layer by its number, as `layers.3` or `Layer 3`."""

from functools import cache

import msgspec
import polars as pl

from traceql.analyses.layer_calls import (
    LAYER_CALLS,
    LAYER_PARTS,
    block_of,
    latest_before,
    launched_activities,
    outermost,
    place,
)
from traceql.memo import remembered
from traceql.resources import resource
from traceql.trace import Trace

CONFIDENCE = 0.95
"""Somebody wrote them by hand, around what they took for the layer."""

_THREAD = ["rank", "thread_id"]


def by_annotations(trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """The `PLACEMENT` table by the annotations around launches that name a layer, on the launching thread.

    Args:
        trace: the trace or run.
        activities: GPU activities with their step, as `Attribution` has them.

    Which texts name a layer: rules/layer_annotations.yaml. The outermost counts; neighbours that name the same layer
    (`layers.3.self_attn`, `layers.3.mlp`) are one. A number that is not above the one before begins a new pass. The
    block is that of the outermost annotation within the layer whose text tells one. A step is absent where layers are
    around less than half of its launches.
    """
    spans = host_spans(trace)
    calls = annotated_calls(spans)
    return place(launched_activities(trace, activities), calls, annotated_parts(spans, calls), CONFIDENCE)


def host_spans(trace: Trace) -> pl.DataFrame:
    """The annotations on the host, sorted by start, with the number of the layer that they name or null.

    `text` is what tells the block: all of it, but of a layer's annotation only what follows the number.
    """
    spans = (
        trace.spans.filter(pl.col("side") == "cpu")
        .select("span_id", *_THREAD, "name", "start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"))
        .sort("start_ns", "span_id")
        .collect()
    )
    return spans.join(named_layers(spans["name"].unique()), on="name", validate="m:1", maintain_order="left")


def annotated_calls(spans: pl.DataFrame) -> pl.DataFrame:
    """The `LAYER_CALLS` table of what `host_spans` gives."""
    outer = outermost(spans.filter(pl.col("number").is_not_null())).sort(*_THREAD, "start_ns", "span_id")
    runs = outer.with_columns(_runs(outer))
    calls = runs.group_by(*_THREAD, "call_id", "pass_id").agg(
        pl.min("start_ns"), pl.max("end_ns"), label=pl.first("name")
    )  # fmt: skip
    return LAYER_CALLS.check(calls.sort("start_ns", "call_id").select(LAYER_CALLS.names))


def annotated_parts(spans: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The `LAYER_PARTS` table: the outermost annotations within layer calls whose text tells a block."""
    told = spans.with_columns(block=block_of("text")).filter(pl.col("block").is_not_null())
    told = told.select(*_THREAD, "block", at_ns="start_ns", until_ns="end_ns")
    inside = latest_before(told, calls, "at_ns").filter("inside")
    parts = inside.select(*_THREAD, "block", start_ns="at_ns", end_ns="until_ns")
    return LAYER_PARTS.check(outermost(parts).select(LAYER_PARTS.names))


def _runs(outer: pl.DataFrame) -> pl.DataFrame:
    """For each span the first one of its layer call (`call_id`) and of its pass (`pass_id`).

    A layer call ends where another number comes, or the text again with which it began.
    """
    calls: list[int] = []
    passes: list[int] = []
    first = ""
    before: tuple[object, ...] = ()
    last = -1
    for span_id, rank, thread_id, number, name in outer.select("span_id", *_THREAD, "number", "name").iter_rows():
        same_thread = before == (rank, thread_id)
        same_layer = same_thread and number == last and name != first
        first = first if same_layer else name
        calls.append(calls[-1] if same_layer else span_id)
        passes.append(passes[-1] if same_layer or (same_thread and number > last) else span_id)
        before, last = (rank, thread_id), number
    return pl.DataFrame({"call_id": calls, "pass_id": passes}, schema={"call_id": pl.Int64, "pass_id": pl.Int64})


def named_layers(names: pl.Series) -> pl.DataFrame:
    """Of each text (`name`) the `number` of the layer that it names or null, and the `text` that tells a block."""
    rules = _annotations()
    name = pl.col("name")
    ignored = pl.any_horizontal(name.str.contains(pattern) for pattern in rules.ignore)
    number = pl.when(~ignored).then(pl.coalesce(name.str.extract(row.match, 1) for row in rules.annotations))
    after_number = pl.when(number.is_not_null()).then(name.str.replace(r"(?s)^\D*\d+", "")).otherwise(name)
    return names.alias("name").to_frame().select("name", number=number.cast(pl.Int64), text=after_number)


class _Annotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of rules/layer_annotations.yaml."""

    match: str
    examples: tuple[str, ...]


class _Annotations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ignore: tuple[str, ...]
    annotations: tuple[_Annotation, ...]
    others: tuple[str, ...]
    """Texts that look alike and name no layer."""


@cache
def _annotations() -> _Annotations:
    path = resource("rules", "layer_annotations.yaml")

    def parsed() -> _Annotations:
        from ruamel.yaml import YAML  # noqa: PLC0415 - takes longer than reading what is remembered

        loaded = YAML(typ="safe", pure=True).load(path)  # pyright: ignore[reportUnknownMemberType]
        return msgspec.convert(loaded, _Annotations)

    return remembered(path, _Annotations, parsed)
