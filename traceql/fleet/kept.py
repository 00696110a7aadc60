"""What a store keeps of a trace: result tables as a query names them, findings, and a row about the trace itself."""

from collections.abc import Sequence
from functools import cache

import polars as pl

from traceql.analyses.dialect import table_advice
from traceql.analyses.query import tables as queried
from traceql.analyses.results import RESULTS
from traceql.analyses.summary import Summary, summarize
from traceql.diffing import ControlPace
from traceql.errors import MissingDataError, QueryError
from traceql.ingest.meta import TraceMeta
from traceql.rules import FINDINGS, built_in_rules, run_rules
from traceql.tables import Column, Table
from traceql.trace import Trace

TRACES = Table(
    "traces",
    "One row per trace: what it says about itself, and its summary over the complete steps. In a store only.",
    Column("trace", pl.String, "Name of the file"),
    Column("engine", pl.String, "sglang, vllm or tensorrt-llm, where the trace shows one", nullable=True),
    Column("engine_version", pl.String, "Where a capture's manifest tells", nullable=True),
    Column("gpu", pl.String, "Name of the GPUs", nullable=True),
    Column("world_size", pl.Int64, "Ranks of the job, as recorded", nullable=True),
    Column("torch_version", pl.String, "PyTorch, as recorded", nullable=True),
    Column("cuda_runtime_version", pl.String, "CUDA runtime, as recorded", nullable=True),
    Column("nccl_version", pl.String, "NCCL, as recorded", nullable=True),
    Column("json_bytes", pl.Int64, "Size as uncompressed JSON"),
    Column("n_events", pl.Int64, "Events of all kinds"),
    Column("span_ns", pl.Int64, "From the first to the last moment of any event", nullable=True),
    Column("n_lost", pl.Int64, "Kinds of loss met while reading; above 0: the file is damaged"),
    Column("n_repaired", pl.Int64, "Kinds of repair made while reading"),
    Column("scope", pl.String, "steps, or trace where no complete step was found: then a window is a device's span"),
    Column("n_windows", pl.Int64, "Complete steps, added up over devices"),
    Column("wall_ns", pl.Int64, "Their windows, added up; null without any", nullable=True),
    Column("busy_ns", pl.Int64, "Of it, with GPU activity", nullable=True),
    Column("idle_ns", pl.Int64, "wall - busy", nullable=True),
    Column("outside_kernel_ns", pl.Int64, "Sum of the durations of activities that belong to no step"),
    Column("n_kernels", pl.Int64, "GPU activities, in steps or not"),
    Column("control_step_ns", pl.Float64, "Mean step without profiler, where a capture measured it", nullable=True),
    Column(
        "control_tokens_per_s",
        pl.Float64,
        "Tokens a second of all requests in those control runs",
        nullable=True,
    ),
)

FAILURES = Table(
    "failures",
    "One row per file that could not be ingested when it was last tried. In a store only.",
    Column("file", pl.String, "Its path or URL"),
    Column("reason", pl.String, "Why"),
    Column("hint", pl.String, "What to do about it; may be empty"),
    Column("n_tries", pl.Int64, "Ingests that tried it"),
    Column("failed", pl.Datetime("us", "UTC"), "When it was last tried"),
)

KEPT = (
    "step_facts", "step_categories", "step_stats", "stages", "groups", "categories", "kernel_stats", "op_stats",
    "launch_stats", "idle_causes", "layers", "layer_types", "cast_groups", "collective_stats", "device_peaks",
)  # fmt: skip
"""The results that are kept of each trace, with `traces` and `findings`; any other table when it is asked for."""


@cache
def known() -> dict[str, Table]:
    """Every table that a store can have: its own first."""
    return {TRACES.name: TRACES, FINDINGS.name: FINDINGS} | queried()


def schema_of(name: str) -> pl.Schema:
    """The columns of a table in a store's files: without `rank`, which is the folder's."""
    return pl.Schema({column.name: column.dtype for column in known()[name] if column.name != "rank"})


def wanted(more: Sequence[str]) -> tuple[str, ...]:
    """The names of the tables to keep, with some beside the usual ones.

    Raises:
        QueryError: there is no such table.
    """
    for name in more:
        if name not in known():
            raise QueryError(f"unknown table {name[:80]!r}", table_advice(name, known()))
    return (TRACES.name, FINDINGS.name, *dict.fromkeys((*KEPT, *more)))


def frames_of(
    trace: Trace, names: Sequence[str], *, control: ControlPace | None = None, engine_version: str | None = None
) -> tuple[dict[str, pl.DataFrame], dict[str, str]]:
    """The tables of a trace as a store has them, and why others are not there.

    Args:
        trace: of one file.
        names: the tables.
        control: the pace without profiler, where a capture measured it.
        engine_version: where a capture tells it.
    """
    frames: dict[str, pl.DataFrame] = {}
    absent: dict[str, str] = {}
    for name in names:
        try:
            frames[name] = _frame(trace, name, control, engine_version).select(schema_of(name).names())
        except MissingDataError as error:
            absent[name] = error.message
    return frames, absent


def _frame(trace: Trace, name: str, control: ControlPace | None, engine_version: str | None) -> pl.DataFrame:
    if name == TRACES.name:
        return _row(summarize(trace), trace.meta, control, engine_version)
    if name == FINDINGS.name:
        return run_rules(trace, built_in_rules()).table
    return RESULTS[name].make(trace) if name in RESULTS else getattr(trace, name).collect()


def _row(summary: Summary, meta: TraceMeta, control: ControlPace | None, engine_version: str | None) -> pl.DataFrame:
    effects = [quirk.effect for quirk in summary.quirks]
    row = {
        "trace": meta.name,
        "engine": meta.engine,
        "engine_version": engine_version,
        "gpu": ", ".join(sorted({device.name for device in meta.devices if device.name})) or None,
        "world_size": meta.world_size,
        "torch_version": meta.torch_version,
        "cuda_runtime_version": meta.cuda_runtime_version,
        "nccl_version": meta.nccl_version,
        "json_bytes": meta.size_bytes,
        "n_events": meta.n_events,
        "span_ns": meta.span_ns,
        "n_lost": effects.count("lost"),
        "n_repaired": effects.count("repaired"),
        "scope": summary.scope,
        "n_windows": summary.n_windows,
        "wall_ns": summary.wall_ns if summary.n_windows else None,
        "busy_ns": summary.busy_ns if summary.n_windows else None,
        "idle_ns": summary.idle_ns if summary.n_windows else None,
        "outside_kernel_ns": summary.outside_kernel_ns,
        "n_kernels": summary.n_kernels_total,
        "control_step_ns": control.step_ns if control else None,
        "control_tokens_per_s": control.tokens_per_s if control else None,
    }
    return TRACES.check(pl.DataFrame([row], schema=TRACES.schema))
