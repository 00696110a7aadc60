"""What is wrong with a query, and what to do: polars' faults in the words of the person who typed it."""

import re
from collections.abc import Callable, Collection, Mapping

import polars as pl

from traceql.analyses.dialect import ELSEWHERE, FUNCTIONS
from traceql.errors import QueryError, nearest

Named = Mapping[str, pl.LazyFrame]
"""The tables that a query names, as it writes their names."""

_TABLES = "`traceql tables` lists tables and columns."
_LONGEST = 400


def explained(fault: str, sql: str, named: Named) -> QueryError:
    """The error to raise for what polars says, without its plan.

    Args:
        fault: polars' text.
        sql: the query as it was typed.
        named: the tables it names.
    """
    text = " ".join(re.split(r"\n[ \t]*(?:Resolved plan|Did you mean|This error occurred)", fault)[0].split())
    for pattern, told in _TOLD:
        found = pattern.search(text)
        if found:
            return QueryError(*told(next(group for group in (*found.groups(), "") if group is not None), sql, named))
    for pattern, hint in _HINTS:
        found = pattern.search(text)
        if found:
            return QueryError(text[:_LONGEST], hint.format(*(group[:80] for group in found.groups())))
    return QueryError(text[:_LONGEST], _TABLES)


def _unknown_column(name: str, sql: str, named: Named) -> tuple[str, str]:
    message = f"unknown column {name[:80]!r}"
    known = list(dict.fromkeys(column for frame in named.values() for column in frame.collect_schema().names()))
    if name.lower() in known:
        return message, f"Did you mean {name.lower()}? Names of columns are in lower case."
    if f'"{name}"' in sql:
        return message, "A text stands in single quotes: 'text'; in double quotes it is the name of a column."
    return message, _near(name, known) or f"Known: {', '.join(known) or 'none, since the query names no table'}."


def _unknown_alias(name: str, sql: str, named: Named) -> tuple[str, str]:  # noqa: ARG001 - as its siblings
    tables = ", ".join(named) or "none"
    return (
        f"unknown table or alias {name[:80]!r}",
        f"The query's tables: {tables}. An alias stands behind its table: FROM kernels k.",
    )


def _unknown_function(name: str, sql: str, named: Named) -> tuple[str, str]:  # noqa: ARG001 - as its siblings
    message = f"unknown function {name[:80]!r}"
    other = ELSEWHERE.get(name.lower())
    if other:
        return message, f"Write {other}."
    return message, _near(name.upper(), FUNCTIONS) or f"Known: {', '.join(FUNCTIONS)}."


def _same_name(name: str, sql: str, named: Named) -> tuple[str, str]:  # noqa: ARG001
    return f"two columns of the answer are called {name[:80]!r}", "Give one of them another name: SUM(x) AS total."


_TOLD: tuple[tuple[re.Pattern[str], Callable[[str, str, Named], tuple[str, str]]], ...] = (
    (re.compile(r"unable to find column \"(.*?)\"|no column named '(.*?)'", re.DOTALL), _unknown_column),
    (re.compile(r"no table or struct column named '(.*?)'"), _unknown_alias),
    (re.compile(r"unsupported function '(.*?)'"), _unknown_function),
    (re.compile(r"'(.*?)' is not a supported table function"), _unknown_function),
    (re.compile(r"duplicate output name '(.*?)'"), _same_name),
)
"""What polars' text shows, and what makes message and hint of the name in it."""

_HINTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"ambiguous reference to column \"(.*?)\""),
        "More than one table has {0}: put the table or its alias before it, as in k.{0}.",
    ),
    (
        re.compile(r"sql parser error"),
        'A column whose name is a word of SQL stands in double quotes, as "limit" does; a text in single ones.',
    ),
    (
        re.compile(r"cannot compare string"),
        "A number is compared with a number, without quotes; `traceql tables NAME` says what a column is.",
    ),
    (
        re.compile(r"'(.*?)' should participate in the GROUP BY"),
        "Add {0} to GROUP BY, or take one value of it: MIN({0}).",
    ),
    (
        re.compile(r"window frame"),
        "Frames that there are: ROWS BETWEEN 4 PRECEDING AND CURRENT ROW; LAG(x, 4) is one row before.",
    ),
    (
        re.compile(r"one \(and only one\) statement|operation is currently unsupported|clause is not supported"),
        "A query only reads: one SELECT, with WITH before it if need be.",
    ),
)
"""What polars' text shows where it says enough itself, and what to do; {0} is the name in it."""


def _near(name: str, known: Collection[str]) -> str | None:
    """`nearest`, where one is near."""
    hint = nearest(name, known)
    return hint if hint.startswith("Did") else None
