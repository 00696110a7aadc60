"""Questions in SQL, about all traces of a store at once."""

import polars as pl

from traceql.analyses.dialect import table_advice
from traceql.analyses.query import answered
from traceql.errors import MissingDataError, QueryError
from traceql.fleet.kept import FAILURES, known, schema_of, wanted
from traceql.fleet.store import Store
from traceql.tables import Table


def query_store(store: Store, sql: str) -> pl.DataFrame:
    """The answer to a query: the columns and rows it asks for.

    Every table has run, rank, date, host, commit, model and the labels of the store in front of its own columns. Files
    are opened when the query names their table, and only as far as it needs them.

    Raises:
        InputError: a data file cannot be read.
        MissingDataError: the store does not keep a table.
        QueryError: it is no query, or names a table, column or function that is not there.
    """
    try:
        return answered(sql, lambda name: table_of(store, name.lower()))[0]
    except (OSError, pl.exceptions.ComputeError) as error:
        raise store.damage(error) from error


def table_of(store: Store, name: str) -> pl.LazyFrame:
    """A table of a store, of all traces.

    Raises:
        MissingDataError: the store does not keep it.
        QueryError: there is no such table.
    """
    if name == FAILURES.name:
        return _failures(store).lazy()
    if name in known() and name in {*wanted(()), *store.tables()}:
        return store.scan(name, schema_of(name))
    if name in known():
        raise MissingDataError(
            f"{store.storage.location} does not keep {name}", f"Ingest the traces again with --tables {name}."
        )
    raise QueryError(f"unknown table {name[:80]!r}", table_advice(name, tables_of(store)))


def tables_of(store: Store) -> dict[str, Table]:
    """The tables that a query about a store can name."""
    there = store.tables()
    return {name: known()[name] for name in (*wanted(()), *(name for name in there if name not in wanted(())))
            if name in known()} | {FAILURES.name: FAILURES}  # fmt: skip


def _failures(store: Store) -> pl.DataFrame:
    rows = [
        (failure.origin.location, failure.reason, failure.hint, failure.n_tries, failure.failed)
        for failure in store.failures()
    ]
    return FAILURES.check(pl.DataFrame(rows, schema=FAILURES.schema, orient="row"))
