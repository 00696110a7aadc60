"""Questions in SQL, about a trace's tables and every result table."""

import re
from collections.abc import Callable
from functools import cache

import polars as pl

from traceql.analyses.results import RESULTS
from traceql.analyses.summary import Selection
from traceql.errors import QueryError, nearest
from traceql.tables import INPUT_TABLES, Table
from traceql.trace import Trace

_QUERY = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*(?:select|with|from|explain)\b", re.IGNORECASE | re.DOTALL)
"""How a query begins, comments aside; what drops, truncates or creates begins otherwise."""
_NO_TABLE = re.compile(r"relation '(.*)' was not found", re.DOTALL)
_NO_COLUMN = re.compile(r"unable to find column \"(.*?)\"|no column named '(.*?)'", re.DOTALL)


@cache
def tables() -> dict[str, Table]:
    """Every table that a query can name: those of a trace first, then the results."""
    inputs = {table.name: table for table in INPUT_TABLES}
    return inputs | {name: result.table for name, result in RESULTS.items()}


def query(trace: Trace, sql: str, selection: Selection | None = None) -> pl.DataFrame:
    """The answer to a query: the columns and rows it asks for.

    A result table is worked out when the query names it, and only then.

    Args:
        trace: the trace or run.
        sql: one query (SELECT, WITH or EXPLAIN), in polars' SQL.
        selection: the steps that result tables are made for. A trace's own tables are always whole.

    Raises:
        QueryError: it is no query, or names a table, column or function that is not there.
        MissingDataError: the trace does not hold what a table is made from.
    """
    return answer(sql, lambda name: _made(trace, name, selection))


def answer(sql: str, made: Callable[[str], pl.LazyFrame]) -> pl.DataFrame:
    """The answer to a query about tables of any kind.

    Args:
        sql: one query (SELECT, WITH or EXPLAIN), in polars' SQL.
        made: makes a table that the query names, in whatever case; raises a TraceqlError where there is none.

    Raises:
        QueryError: it is no query, or names a column or function that is not there.
    """
    if not _QUERY.match(sql):
        raise QueryError("this is not a query", "Begin with SELECT or WITH; `traceql tables` lists the tables.")
    context = pl.SQLContext[pl.LazyFrame]()
    named: dict[str, pl.LazyFrame] = {}
    while True:
        try:
            return context.execute(sql).collect()
        except pl.exceptions.SQLInterfaceError as fault:
            missing = _NO_TABLE.search(str(fault))
            if missing is None or missing[1] in named:
                raise _explained(fault, named) from fault
            named[missing[1]] = made(missing[1])
            context.register(missing[1], named[missing[1]])  # pyright: ignore[reportUnknownMemberType] - as pandas, say
        except pl.exceptions.PolarsError as fault:
            raise _explained(fault, named) from fault


def _made(trace: Trace, name: str, selection: Selection | None) -> pl.LazyFrame:
    """The table of that name, in whatever case: SQL does not tell them apart."""
    known = name.lower()
    if known in RESULTS:
        return RESULTS[known].make(trace, selection).lazy()
    if known in tables():
        return getattr(trace, known)
    raise QueryError(f"unknown table {name[:80]!r}", nearest(known, tables()))


def _explained(fault: Exception, named: dict[str, pl.LazyFrame]) -> QueryError:
    """Polars' fault without its plan, and the nearest of the columns that are there."""
    text = str(fault).split("\n\nResolved plan")[0]
    column = _NO_COLUMN.search(text)
    if column is None:
        return QueryError(" ".join(text.split())[:400], "`traceql tables` lists tables and columns.")
    name = column[1] or column[2]
    known = {known: None for frame in named.values() for known in frame.collect_schema().names()}
    return QueryError(f"unknown column {name[:80]!r}", nearest(name, known))
