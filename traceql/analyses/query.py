"""Questions in SQL, about a trace's tables and every result table."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import polars as pl

from traceql.analyses.dialect import for_polars, refuse_files, table_advice
from traceql.analyses.query_faults import explained
from traceql.analyses.query_notes import missing, never, whole
from traceql.analyses.results import RESULTS
from traceql.analyses.sql_tokens import tokens
from traceql.analyses.summary import Selection
from traceql.errors import QueryError
from traceql.tables import INPUT_TABLES, Table
from traceql.trace import Trace

SCHEMA_VERSION = 2
"""Of the tables below: raised whenever a column of one is added, changed, renamed or goes, or a table goes."""

_BEGINNINGS = ("select", "with", "from", "explain")
"""Words that a query begins with; what drops, truncates or creates begins otherwise."""
_FAULTS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, ArithmeticError, TypeError, ValueError)
"""What polars raises over a query, not all of it of its own; a file that it cannot read is no fault of the query."""
_NO_TABLE = re.compile(r"relation '(.*)' was not found", re.DOTALL)


@cache
def tables() -> dict[str, Table]:
    """Every table that a query can name: those of a trace first, then the results."""
    inputs = {table.name: table for table in INPUT_TABLES}
    return inputs | {name: result.table for name, result in RESULTS.items()}


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a query."""

    frame: pl.DataFrame
    """The columns and rows it asks for."""
    notes: tuple[str, ...]
    """Why a table that it names is empty, or a column that it names has no value; which texts that it compares a column
    with no row has; and which tables are whole though steps were selected. They may hold names from the trace."""


def ask(trace: Trace, sql: str, selection: Selection | None = None) -> Answer:
    """The answer to a query, and what the trace lacks for a better one.

    A result table is worked out when the query names it, and only then.

    Args:
        trace: the trace or run.
        sql: one query (SELECT, WITH or EXPLAIN), in polars' SQL.
        selection: the steps that result tables are made for. A trace's own tables are always whole.

    Raises:
        QueryError: it is no query, or names a table, column or function that is not there.
        MissingDataError: the trace does not hold what a table is made from.
    """
    frame, named = answered(sql, lambda name: _made(trace, name, selection))
    lacks = missing(trace, sql, frame, named, tables=tables(), selection=selection)
    return Answer(frame, (*lacks, *never(sql, named), *whole(named, selection)))


def answered(sql: str, made: Callable[[str], pl.LazyFrame]) -> tuple[pl.DataFrame, dict[str, pl.LazyFrame]]:
    """The answer to a query about tables of any kind, and the tables that it names, as it writes their names.

    Args:
        sql: one query (SELECT, WITH or EXPLAIN), in polars' SQL.
        made: makes a table that the query names, in whatever case; raises a TraceqlError where there is none.

    Raises:
        QueryError: it is no query, or names a column or function that is not there.
    """
    if not _is_query(sql):
        raise QueryError("this is not a query", "Begin with SELECT or WITH; `traceql tables` lists the tables.")
    refuse_files(sql)
    text = for_polars(sql)
    context = pl.SQLContext[pl.LazyFrame]()
    named: dict[str, pl.LazyFrame] = {}
    while True:
        try:
            return context.execute(text).collect(), named
        except pl.exceptions.SQLInterfaceError as fault:
            unknown = _NO_TABLE.search(str(fault))
            if unknown is None or unknown[1] in named:
                raise explained(_as_typed(str(fault), sql), sql, named) from fault
            named[unknown[1]] = made(unknown[1])
            context.register(unknown[1], named[unknown[1]])  # pyright: ignore[reportUnknownMemberType] - as pandas, say
        except _FAULTS as fault:
            raise explained(str(fault), sql, named) from fault


def query(trace: Trace, sql: str, selection: Selection | None = None) -> pl.DataFrame:
    """The answer to a query without notes: arguments and errors as those of `ask`."""
    return ask(trace, sql, selection).frame


def _is_query(sql: str) -> bool:
    """Whether it begins as one, comments and brackets aside."""
    first = next((token for token in tokens(sql) if not token.is_blank and token.text != "("), None)
    return first is not None and first.text.lower() in _BEGINNINGS


def _made(trace: Trace, name: str, selection: Selection | None) -> pl.LazyFrame:
    """The table of that name, in whatever case: SQL does not tell them apart."""
    known = name.lower()
    if known in RESULTS:
        return RESULTS[known].make(trace, selection).lazy()
    if known in tables():
        return getattr(trace, known)
    raise QueryError(f"unknown table {name[:80]!r}", table_advice(name, tables()))


def _as_typed(fault: str, sql: str) -> str:
    """What polars says of a query that it cannot parse, with the place in the text as it was typed."""
    if "sql parser error" in fault:
        try:
            pl.SQLContext[pl.LazyFrame]().execute(sql)
        except pl.exceptions.SQLInterfaceError as typed:
            return str(typed)
    return fault
