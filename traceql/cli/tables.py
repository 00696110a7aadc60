"""`traceql tables`: what a query can ask about."""

from typing import TYPE_CHECKING

import click

from traceql import fmt
from traceql.cli.output import write_page
from traceql.errors import QueryError, nearest

if TYPE_CHECKING:
    from traceql.tables import Table


@click.command("tables", epilog="Example: traceql tables kernels")
@click.argument("store", required=False, metavar="[STORE]")
@click.argument("name", required=False, metavar="[NAME]")
def command(store: str | None, name: str | None) -> None:
    """The tables that `traceql query` knows; with NAME the columns of one.

    With STORE, a folder or URL that traceql ingest filled: what it keeps, and of how many traces.
    """
    from traceql.fleet.store import is_store  # noqa: PLC0415 - polars: only when it is used

    if store is not None and is_store(store):
        _of_store(store, name)
        return
    if store is not None and name is not None:
        raise QueryError(f"{store[:200]} is no store", "Make one with `traceql ingest TRACES --to STORE`.")

    from traceql.analyses.query import tables  # noqa: PLC0415
    from traceql.report import query_page  # noqa: PLC0415

    known, name = tables(), store
    sections = query_page.tables_page(known) if name is None else query_page.table_page(_named(name, known))
    write_page(sections)


def _of_store(location: str, name: str | None) -> None:
    from traceql.fleet.asking import table_of, tables_of  # noqa: PLC0415
    from traceql.fleet.store import Store  # noqa: PLC0415
    from traceql.report import query_page  # noqa: PLC0415

    store = Store.open(location)
    known = tables_of(store)
    if name is not None:
        added = [column for column in store.identities().schema if name != "failures"]
        write_page(query_page.table_page(_named(name, known), added))
        return
    rows = {table: file.n_rows for table, file in store.tables().items()}
    if "failures" in known:
        rows["failures"] = table_of(store, "failures").collect().height
    n_runs = len({entry.run for entry in store.entries})
    said = f"{fmt.plural(len(store.entries), 'trace')} of {fmt.plural(n_runs, 'run')}"
    write_page(query_page.store_page(known, rows, said, store.identities().columns))


def _named(name: str, known: "dict[str, Table]") -> "Table":
    if name not in known:
        raise QueryError(f"unknown table {name[:80]!r}", nearest(name, known))
    return known[name]
