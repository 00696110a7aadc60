"""`traceql tables`: what a query can ask about."""

from typing import TYPE_CHECKING

import click

from traceql import fmt
from traceql.cli.output import write_output, write_page
from traceql.errors import QueryError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceql.tables import Table


@click.command("tables", epilog="Example: traceql tables --find waiting")
@click.option(
    "--find", "text", metavar="TEXT", help="The columns, of all tables, whose name or meaning has TEXT in it."
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
              help="json: all of it, for programs.")  # fmt: skip
@click.argument("store", required=False, metavar="[STORE]")
@click.argument("name", required=False, metavar="[NAME]")
def command(store: str | None, name: str | None, *, text: str | None, form: str) -> None:
    """The tables that `traceql query` knows; with NAME the columns of one, with their units.

    With STORE, a folder or URL that traceql ingest filled: what it keeps, and of how many traces.
    """
    from traceql.fleet.store import is_store  # noqa: PLC0415 - polars: only when it is used

    if store is not None and is_store(store):
        _of_store(store, name, text, form)
        return
    if store is not None and name is not None:
        raise QueryError(f"{store[:200]} is no store", "Make one with `traceql ingest TRACES --to STORE`.")

    from traceql.analyses.query import tables  # noqa: PLC0415
    from traceql.report import query_page  # noqa: PLC0415

    known, name = tables(), store
    if not _is_written(known, name, text, form):
        write_page(query_page.tables_page(known) if name is None else query_page.table_page(known[name]))


def _is_written(known: "Mapping[str, Table]", name: str | None, text: str | None, form: str) -> bool:
    """Writes what --find or --format json ask for, of one table or all; False where neither was given."""
    from traceql.analyses.dialect import table_advice  # noqa: PLC0415 - with what it stands beside, not at once
    from traceql.report import columns  # noqa: PLC0415

    if name is not None and name not in known:
        raise QueryError(f"unknown table {name[:80]!r}", table_advice(name, known))
    of = known if name is None else {name: known[name]}
    found = columns.found_columns(of, text or "")
    if text is not None and not found:
        raise QueryError(f"no column has {text[:80]!r} in its name or meaning", "Try a part of the word.")
    if form == "json":
        write_output(columns.columns_json(of, found), None)
    elif text is not None:
        write_page(columns.found_page(found))
    return form == "json" or text is not None


def _of_store(location: str, name: str | None, text: str | None, form: str) -> None:
    from traceql.fleet.asking import table_of, tables_of  # noqa: PLC0415
    from traceql.fleet.store import Store  # noqa: PLC0415
    from traceql.report import query_page  # noqa: PLC0415

    store = Store.open(location)
    known = tables_of(store)
    if _is_written(known, name, text, form):
        return
    if name is not None:
        added = [column for column in store.identities().schema if name != "failures"]
        write_page(query_page.table_page(known[name], added))
        return
    rows = {table: file.n_rows for table, file in store.tables().items()}
    if "failures" in known:
        rows["failures"] = table_of(store, "failures").collect().height
    n_runs = len({entry.run for entry in store.entries})
    said = f"{fmt.plural(len(store.entries), 'trace')} of {fmt.plural(n_runs, 'run')}"
    write_page(query_page.store_page(known, rows, said, store.identities().columns))
