"""`traceql tables`: what a query can ask about."""

import click

from traceql.cli.output import write_page
from traceql.errors import QueryError, nearest


@click.command("tables", epilog="Example: traceql tables kernels")
@click.argument("name", required=False, metavar="[NAME]")
def command(name: str | None) -> None:
    """The tables that `traceql query` knows; with NAME the columns of one."""
    from traceql.analyses.query import tables  # noqa: PLC0415 - polars: only when it is used
    from traceql.report import query_page  # noqa: PLC0415

    known = tables()
    if name is not None and name not in known:
        raise QueryError(f"unknown table {name[:80]!r}", nearest(name, known))
    sections = query_page.tables_page(known) if name is None else query_page.table_page(known[name])
    write_page(sections)
