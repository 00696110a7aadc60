"""`traceql query`: a question in SQL."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceql.cli.request import Request, takes_request
from traceql.errors import QueryError

if TYPE_CHECKING:
    from traceql.analyses.query import Answer


@click.command("query", epilog='Example: traceql query trace.json.gz "SELECT name, sum(dur_ns) AS ns FROM kernels '
               'GROUP BY name ORDER BY ns DESC LIMIT 5"')  # fmt: skip
@click.option("-f", "--file", type=click.Path(path_type=Path), metavar="FILE",
              help="Read the query from FILE; then no SQL is given.")  # fmt: skip
@takes_request(needs_trace=False)
@click.argument("sql", required=False, metavar="[SQL]")
def command(request: Request, *, file: Path | None, sql: str | None) -> None:
    """The answer to a question in SQL, about a trace's tables and every result, or about a store.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Several, a folder or a pattern are the ranks of a run. SQL is one SELECT, as polars has it; it
    reads nothing but the traces.
    `traceql tables` lists the tables and their columns. --steps and --stage hold for results that go by steps;
    a trace's own tables (kernels, launches, ops, ...) are always whole, and join with kernel_steps.
    Notes say why a table that the query names is empty or a column of it null throughout, and which text no row has.
    A store that traceql ingest made (a folder or URL) is asked about all its traces at once: `traceql tables STORE`
    lists what it keeps. Each table then begins with run, rank, date, host, commit, model and the labels.
    """
    if file is not None and sql is not None:
        request, sql = replace(request, traces=(*request.traces, Path(sql))), None  # the last argument is a trace too
    if not request.traces:
        raise click.UsageError("a trace and a query are needed: TRACE SQL, or TRACE -f FILE.")
    _check_order(request.traces, sql)
    request.check_output(file)

    from traceql.report import query_document, query_page  # noqa: PLC0415 - polars: only when it is used

    text = _read(file) if file is not None else sql or ""
    answer = _answer(request, text)
    request.write(
        page=lambda: query_page.query_page(answer),
        table=lambda: answer.frame,
        document=lambda: query_document.to_json(answer),
    )
    if request.is_data:  # has no place for them
        for note in query_page.query_notes(answer):
            click.echo(note, err=True)


def _check_order(traces: tuple[Path, ...], sql: str | None) -> None:
    """Tells a query that is missing or stands first from a file that is."""
    if sql is not None and _is_there(sql):
        swapped = any(" " in str(path) and not _is_there(path) for path in traces)
        raise click.UsageError(
            "the query comes last: TRACE SQL." if swapped else f"a query is needed after the traces; {sql} is a file."
        )


def _is_there(path: Path | str) -> bool:
    """Whether it is the name of a file; a query may be too long for one."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _answer(request: Request, text: str) -> "Answer":
    from traceql.analyses.query import Answer, ask  # noqa: PLC0415 - polars: only when it is used
    from traceql.fleet.store import Store, is_store  # noqa: PLC0415

    stores = [path for path in request.traces if is_store(path)]
    if not stores:
        return ask(request.trace(), text, request.selection())
    if len(request.traces) > 1:
        raise click.UsageError("a store is asked alone, without other stores or traces.")
    if request.steps != (None, None) or request.stage or request.ranks:
        raise click.UsageError("--steps, --stage and --rank are for traces; ask a store with WHERE.")
    from traceql.fleet.asking import query_store  # noqa: PLC0415

    return Answer(query_store(Store.open(stores[0]), text), ())  # traces differ in what they lack


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise QueryError(f"{file} cannot be read: {reason}", "Name a text file that holds one query.") from error
