"""SQL as it is meant: what polars would read from files, count in too few bits or not know by that name."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from traceql.analyses.sql_tokens import Token, tokens
from traceql.errors import QueryError, nearest

FUNCTIONS = (
    "COUNT", "SUM", "AVG", "MIN", "MAX", "MEDIAN", "QUANTILE_CONT", "QUANTILE_DISC", "STDDEV", "VARIANCE", "CORR",
    "FIRST", "LAST", "ROUND", "ABS", "CEIL", "FLOOR", "SIGN", "SQRT", "POW", "EXP", "LN", "LOG2", "LOG10", "GREATEST",
    "LEAST", "COALESCE", "NULLIF", "IF", "LOWER", "UPPER", "LENGTH", "LEFT", "RIGHT", "SUBSTR", "REPLACE", "TRIM",
    "CONCAT", "SPLIT_PART", "STARTS_WITH", "ENDS_WITH", "REGEXP_LIKE", "REGEXP_REPLACE", "STRPOS", "STRING_AGG",
    "ARRAY_AGG", "ROW_NUMBER", "RANK", "DENSE_RANK", "PERCENT_RANK", "NTILE", "LAG", "LEAD", "FIRST_VALUE",
    "LAST_VALUE",
)  # fmt: skip
"""Functions of polars' SQL that questions about a trace have a use for."""

ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("percentile_cont", "percentile", "quantile", "percentile_approx"), "QUANTILE_CONT(x, 0.9)"),
    "percentile_disc": "QUANTILE_DISC(x, 0.9)",
    "mean": "AVG(x)",
    **dict.fromkeys(("any_value", "arbitrary"), "FIRST(x)"),
    **dict.fromkeys(("count_if", "countif", "sum_if"), "COUNT(*) FILTER (WHERE ...)"),
    **dict.fromkeys(("arg_max", "argmax", "max_by"), "ORDER BY x DESC LIMIT 1, or ROW_NUMBER() OVER (...)"),
    **dict.fromkeys(("arg_min", "argmin", "min_by"), "ORDER BY x LIMIT 1, or ROW_NUMBER() OVER (...)"),
    **dict.fromkeys(("bool_and", "every"), "MIN(x)"),
    "bool_or": "MAX(x)",
    **dict.fromkeys(("approx_count_distinct", "uniq"), "COUNT(DISTINCT x)"),
    **dict.fromkeys(("list", "collect_list"), "ARRAY_AGG(x)"),
    **dict.fromkeys(("nvl", "isnull"), "COALESCE(x, y)"),
    **dict.fromkeys(("iff", "iif"), "IF(condition, x, y)"),
    **dict.fromkeys(("len", "char_len"), "LENGTH(x)"),
    **dict.fromkeys(("instr", "position", "contains"), "STRPOS(x, 'text') > 0, or x LIKE '%text%'"),
    **dict.fromkeys(("regexp_matches", "rlike"), "REGEXP_LIKE(x, 'pattern')"),
    **dict.fromkeys(("regexp_extract", "regexp_substr"), "REGEXP_REPLACE(x, '.*(part).*', '$1')"),
    **dict.fromkeys(
        ("json_extract", "json_extract_string", "json_value"),
        "REGEXP_REPLACE(args, ...), or `--format json` and a program",
    ),
    **dict.fromkeys(("format", "printf", "to_char"), "ROUND(x, 1), or CONCAT(x, 'text')"),
    "try_cast": "TRY_CAST(x AS DOUBLE)",
}
"""What other databases call it, in lower case, and what does it here."""

TABLES_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        ("slice", "slices", "events", "traceevents"),
        "kernels has what the GPU ran; ops, launches, python_calls and spans what the host did.",
    ),
    **dict.fromkeys(("cpu_op", "cpu_ops"), "It is called ops."),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "cuda_api", "hip_runtime", "runtime"), "It is called launches."),
    **dict.fromkeys(
        ("gpu_memcpy", "gpu_memset", "memcpy", "memset", "gpu"), "It is in kernels: WHERE kind = 'memcpy'."
    ),
    **dict.fromkeys(("user_annotation", "gpu_user_annotation", "annotation", "annotations"), "It is called spans."),
    **dict.fromkeys(("python_function", "modules", "nn_modules", "stacks"), "It is called python_calls."),
    **dict.fromkeys(("cuda_sync", "stream_sync"), "It is called syncs."),
    **dict.fromkeys(("nccl", "comm", "communication"), "It is called collectives."),
    **dict.fromkeys(("rank", "ranks"), "Every table has a column rank; rank_waits has a row a rank."),
    **dict.fromkeys(("streams", "stream"), "It is a column of kernels."),
    "findings": "They are of `traceql check --format json`, and of a store.",
    **dict.fromkeys(
        ("information_schema.tables", "information_schema.columns", "sqlite_master", "sqlite_schema", "pg_tables"),
        "`traceql tables` lists them, with --format json for programs.",
    ),
}
"""What traces and other databases call a table, in lower case, and what to say of it here."""

_FILE_FUNCTION = re.compile(
    r"\b(?:read|scan)_(?:csv|parquet|ipc|json|ndjson|avro|delta|iceberg|lines|arrow|database|excel|ods)\b",
    re.IGNORECASE,
)
"""What reads files in polars' SQL or may one day. It is looked for in the plain text: what stands in quotes there is a
function as well, and where a text or comment ends is for polars to say."""


def table_advice(name: str, known: Collection[str]) -> str:
    """What to do about a table that is not there."""
    return TABLES_ELSEWHERE.get(name.lower()) or nearest(name.lower(), known)


def refuse_files(sql: str) -> None:
    """Lets a query pass that cannot read a file or an address: a query from elsewhere must do no more than it says.

    Raises:
        QueryError: it names a function that reads some.
    """
    found = _FILE_FUNCTION.search(sql)
    if found:
        raise QueryError(
            f"a query reads no files: {found[0]}",
            "It asks about the traces given; `traceql export` takes their tables to other data. In a text: read%csv.",
        )


def for_polars(sql: str) -> str:
    """The query with the numbers that it means.

    polars takes 1000.0 for a decimal with one digit behind the point and reckons with few more: 8.0 / wall_ns * 1e9
    is then off by 5 %, 1.0 / wall_ns is 0. And it adds up true and false, small integers and whole numbers that the
    query names in 32 bits, which overflow unseen. So 1000.0 becomes a float, and SUM adds in 64 bits.
    """
    return "".join(_wide_sums(tokens(sql)))


def _wide_sums(pieces: Sequence[Token]) -> Iterator[str]:
    sums = _sums(pieces)
    is_sum: list[bool] = []
    for piece in pieces:
        if piece.text == "(":
            is_sum.append(next(sums))
            yield "((" if is_sum[-1] else "("
        elif piece.text == ")" and is_sum and is_sum.pop():
            yield ") * CAST(1 AS BIGINT))"
        else:
            yield f"{piece.text}e0" if piece.kind == "decimal" else piece.text


def _sums(pieces: Sequence[Token]) -> Iterator[bool]:
    """Of each opening bracket: whether it begins what SUM adds up, all of it and not each value once."""
    solid = [_EDGE, *(piece for piece in pieces if not piece.is_blank), _EDGE]
    for before, piece, after in zip(solid, solid[1:], solid[2:], strict=False):
        if piece.text == "(":
            is_call = before.kind == "word" and before.name == "sum"
            yield is_call and after.name not in ("distinct", "all", ")", _EDGE.name)


_EDGE = Token("space", "")
"""Before the first piece and after the last."""
