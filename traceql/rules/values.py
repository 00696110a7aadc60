"""Columns that hold one of a closed list of texts, so that a misspelt one in a rule is an error and not silence."""

from collections.abc import Mapping

from traceql.analyses import casts, comm
from traceql.analyses.idle import CAUSES
from traceql.analyses.layering import METHODS
from traceql.categories import GROUPS, KINDS, Categories

DTYPES = (
    "fp64", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz", "fp8_e8m0", "fp4_e2m1",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool", "complex32", "complex64",
    "complex128",
)  # fmt: skip
"""As `traceql.names` writes them."""

_EVERYWHERE: Mapping[str, tuple[str, ...]] = {
    "group": GROUPS,
    "stage": ("decode", "prefill", "mixed", "unknown"),
    "section": ("prologue", "layer", "epilogue", "between"),
    "block": ("attention", "mlp", "moe", "comm", "other"),
    "cause": CAUSES,
    "src_dtype": DTYPES,
    "likely_src_dtype": DTYPES,
    "dst_dtype": DTYPES,
}
_OF_CASTS = ("casts", "cast_groups", "pool_casts")
_IN_TABLE: Mapping[tuple[str, str], tuple[str, ...] | None] = {
    ("kernels", "kind"): KINDS,
    ("steps", "method"): ("annotation", "graph_launch", "repetition"),
    ("layers", "method"): METHODS,
    ("kernel_layers", "method"): METHODS,
    ("collectives", "kind"): comm.KINDS,
    ("collectives", "match"): ("sequence", "order"),
    ("collectives", "group"): None,
    ("collective_stats", "kind"): comm.KINDS,
    ("collective_stats", "group"): None,
    ("rank_waits", "late_because"): ("host", "gpu"),
    ("host_waits", "kind"): ("synchronise", "pageable copy", "blocking copy"),
    ("attention_fallbacks", "kind"): ("unfused", "math SDPA", "generic decode kernel"),
    **{(table, "kind"): casts.KINDS for table in _OF_CASTS},
    **{(table, "dtype_evidence"): ("op_args", "capture_trace", "kernel_name") for table in _OF_CASTS},
    **{(table, "size_evidence"): ("op_args", "capture_trace", "grid", "bytes") for table in _OF_CASTS},
}
"""Where a column means something else in one table; None holds any text."""


def closed_values(table: str, categories: Categories) -> dict[str, tuple[str, ...]]:
    """The closed columns of a table and their texts."""
    names = tuple(category.name for category in categories.categories)
    own = {column: values for (name, column), values in _IN_TABLE.items() if name == table}
    every = {"category": names, **_EVERYWHERE, **own}
    return {column: values for column, values in every.items() if values is not None}
