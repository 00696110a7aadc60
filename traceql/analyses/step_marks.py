"""Where, on the host, each iteration of the engine lies: by annotation, by graph launch, or by repetition.

The ladder of methods: the first that applies to a rank gives its steps. Each mark says its method and confidence.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import polars as pl

from traceql.memo import remembered
from traceql.resources import resource
from traceql.tables import BATCH_SIZE, RANK, STAGE, Column, Table

STEP_MARKS = Table(
    "step_marks",
    "One row per iteration of the engine: its interval on the host. Sorted by rank, start.",
    RANK,
    Column("step", pl.Int64, "0-based, in order of time, within the rank"),
    Column("thread_id", pl.Int32, "Host thread of the mark"),
    Column("label", pl.String, "Text of the annotation, or what the step was found by"),
    STAGE,
    BATCH_SIZE,
    Column("start_ns", pl.Int64, "Start on the host"),
    Column("end_ns", pl.Int64, "End on the host; drafting passes that follow are included"),
    Column("is_annotation", pl.Boolean, "The interval was recorded as an annotation"),
    Column("method", pl.String, "annotation, graph_launch or repetition"),
    Column("confidence", pl.Float64, "0 to 1"),
)

_GRAPH_LAUNCH = r"GraphLaunch"
_MIN_REPEATS = 3
_MAX_PERIOD = 256
_MIN_KERNELS = 20
"""A group with fewer kernels is no iteration of a language model: a layer alone has about as many."""
_AGREEMENT = 0.9
_MARK = ["rank", "thread_id", "label", "stage", "batch_size", "start_ns", "end_ns"]


def step_marks(spans: pl.LazyFrame, launches: pl.LazyFrame, syncs: pl.LazyFrame, kernels: pl.LazyFrame) -> pl.DataFrame:
    """The `step_marks` of a trace, for each rank by the first method that finds any.

    Args:
        spans: user annotations; only those on the host side are marks.
        launches: runtime and driver calls.
        syncs: host waits, between which a kernel sequence may repeat.
        kernels: GPU activities with their launch_id.
    """
    found = annotated_marks(spans)
    methods = (graph_launch_marks, repetition_marks)
    ranks = kernels.select(pl.col("rank").unique()).collect()["rank"]
    for method in methods:
        missing = ranks.filter(~ranks.is_in(found["rank"].implode()))
        if not missing.len():
            break
        of_rank = pl.col("rank").is_in(missing.implode())
        found = pl.concat([found, method(launches.filter(of_rank), syncs.filter(of_rank), kernels.filter(of_rank))])
    numbered = found.sort("rank", "start_ns", "thread_id").with_columns(
        step=pl.int_range(pl.len(), dtype=pl.Int64).over("rank")
    )
    return STEP_MARKS.check(numbered)


def annotated_marks(spans: pl.LazyFrame) -> pl.DataFrame:
    """Marks from annotations that name an iteration; without `step`. Nested ones make one, the outermost."""
    named = _classified(spans.filter(pl.col("side") == "cpu").collect())
    engine_ranks = named.filter((pl.col("level") == "engine") & ~pl.col("sub_pass"))["rank"].unique()
    is_engine = pl.col("level") == "engine"
    has_engine = pl.col("rank").is_in(engine_ranks.implode())
    named = named.filter(is_engine & has_engine | ~is_engine & ~has_engine)
    named = named.sort("rank", "thread_id", "start_ns", pl.col("end_ns") - pl.col("start_ns"),
                       descending=[False, False, False, True])  # fmt: skip
    open_until = pl.col("end_ns").cum_max().shift().over("rank", "thread_id")
    named = named.with_columns(
        outer=(pl.col("start_ns") >= open_until.fill_null(-1)).cum_sum().over("rank", "thread_id")
    )
    group = named.group_by("rank", "thread_id", "outer", maintain_order=True)
    known = pl.col("stage") != "unknown"
    steps = group.agg(
        pl.first("label", "start_ns", "end_ns", "sub_pass"),
        pl.col("stage").filter(known).first().fill_null("unknown"),
        pl.col("batch_size").drop_nulls().first(),
    )
    return _with_method(_absorb_sub_passes(steps), "annotation", 1.0)


def _absorb_sub_passes(steps: pl.DataFrame) -> pl.DataFrame:
    """Lets each step reach to the end of the drafting passes that follow it, and drops those as steps."""
    steps = steps.sort("rank", "start_ns")
    steps = steps.with_columns(owner=(~pl.col("sub_pass")).cum_sum().over("rank"))
    return (
        steps.filter(pl.col("owner") > 0)
        .group_by("rank", "owner", maintain_order=True)
        .agg(pl.first("thread_id", "label", "stage", "batch_size", "start_ns"), pl.max("end_ns"))
        .select(_MARK)
    )


def graph_launch_marks(launches: pl.LazyFrame, syncs: pl.LazyFrame, kernels: pl.LazyFrame) -> pl.DataFrame:
    """Marks from graph launches: each launch a step, or each repeating group of launches (piecewise graphs)."""
    del syncs
    names = kernels.filter(pl.col("launch_id").is_not_null()).group_by("launch_id").agg(
        n_kernels=pl.len(), signature=pl.col("name").hash().sum()
    )  # fmt: skip
    calls = (
        launches.filter(pl.col("name").str.contains(_GRAPH_LAUNCH))
        .join(names, on="launch_id", validate="1:1")
        .sort("rank", "start_ns")
        .collect()
    )
    return _repeated(calls, "graph launch", "graph_launch", 0.8)


def repetition_marks(launches: pl.LazyFrame, syncs: pl.LazyFrame, kernels: pl.LazyFrame) -> pl.DataFrame:
    """Marks from the kernel sequence that repeats between host waits for the GPU."""
    waits = syncs.filter(pl.col("side") == "cpu").select("rank", "thread_id", wait_ns="start_ns").sort("wait_ns")
    launched = (
        kernels.select("launch_id", "name")
        .join(launches.select("launch_id", "rank", "thread_id", "start_ns", "dur_ns"), on="launch_id")
        .sort("start_ns", "launch_id")
        .join_asof(waits, left_on="start_ns", right_on="wait_ns", by=["rank", "thread_id"], check_sortedness=False)
    )
    runs = launched.group_by("rank", "thread_id", "wait_ns").agg(
        n_kernels=pl.len(),
        signature=pl.col("name").str.join("\n").hash(),
        start_ns=pl.min("start_ns"),
        dur_ns=(pl.col("start_ns") + pl.col("dur_ns")).max() - pl.min("start_ns"),
    )
    return _repeated(runs.sort("rank", "start_ns").collect(), "kernel sequence", "repetition", 0.5)


def _repeated(parts: pl.DataFrame, label: str, method: str, confidence: float) -> pl.DataFrame:
    """Marks of the repeating groups of parts (graph launches, or runs of launches between waits) of each rank."""
    marks: list[dict[str, Any]] = []
    for _, of_rank in parts.group_by("rank", maintain_order=True):
        rows = of_rank.to_dicts()
        found = repeating_groups([row["signature"] for row in rows])
        if found is None:
            continue
        length, starts = found
        n_kernels = sum(row["n_kernels"] for i in starts for row in rows[i : i + length])
        if n_kernels < _MIN_KERNELS * len(starts):
            continue
        for i in starts:
            first, last = rows[i], rows[i + length - 1]
            mark = {name: first[name] for name in ("rank", "thread_id", "start_ns")}
            end_ns = last["start_ns"] + last["dur_ns"]
            marks.append(mark | {"label": label, "stage": "unknown", "batch_size": None, "end_ns": end_ns})
    frame = pl.DataFrame(marks, schema={name: STEP_MARKS.schema[name] for name in _MARK})
    return _with_method(frame, method, confidence)


def repeating_groups(signatures: Sequence[int]) -> tuple[int, list[int]] | None:
    """Length of the group that repeats, and where each begins; None unless nearly all of the sequence repeats.

    At least three repetitions, and nine of ten parts equal to the one a period later. A shorter period wins.
    """
    values = np.array(signatures, np.uint64)
    n = len(values)
    for length in range(1, min(n // _MIN_REPEATS, _MAX_PERIOD) + 1):
        equal = values[:-length] == values[length:]
        if equal.mean() >= _AGREEMENT:
            first = int(np.flatnonzero(equal)[0])
            return length, list(range(first, n - length + 1, length))
    return None


def _with_method(marks: pl.DataFrame, method: str, confidence: float) -> pl.DataFrame:
    return marks.with_columns(
        is_annotation=pl.lit(method == "annotation"), method=pl.lit(method), confidence=pl.lit(confidence)
    )


def _classified(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans that are step annotations, with stage, level, sub_pass and batch_size."""
    names = spans["name"].unique(maintain_order=True)
    schema = {
        "name": pl.String,
        "stage": pl.String,
        "level": pl.String,
        "sub_pass": pl.Boolean,
        "batch_size": pl.Int64,
    }
    known = pl.DataFrame([m for m in map(_classify, names) if m], schema=schema)
    return spans.join(known, on="name", validate="m:1").select(
        "rank", "thread_id", "start_ns", "stage", "level", "sub_pass", "batch_size",
        label="name", end_ns=pl.col("start_ns") + pl.col("dur_ns"),
    )  # fmt: skip


def _classify(name: str) -> dict[str, Any] | None:
    for row in _annotations():
        match = re.search(row.match, name)
        if match:
            numbers = [int(number) for number in match.groupdict().values() if number]
            return {
                "name": name,
                "stage": row.stage,
                "level": row.level,
                "sub_pass": row.sub_pass,
                "batch_size": sum(numbers) if numbers else None,
            }
    return None


class _Annotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of rules/step_annotations.yaml."""

    match: str
    stage: str
    level: str
    examples: tuple[str, ...]
    sub_pass: bool = False


class _Annotations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    annotations: tuple[_Annotation, ...]


@cache
def _annotations() -> tuple[_Annotation, ...]:
    path = resource("rules", "step_annotations.yaml")

    def parsed() -> _Annotations:
        from ruamel.yaml import YAML  # noqa: PLC0415 - takes longer than reading what is remembered

        loaded = YAML(typ="safe", pure=True).load(path)  # pyright: ignore[reportUnknownMemberType]
        return msgspec.convert(loaded, _Annotations)

    return remembered(path, _Annotations, parsed).annotations
