"""`traceql shell`: questions in SQL about a trace that is read once."""

import gc
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceql.cli.options import FORMATS
from traceql.cli.output import say_error
from traceql.cli.request import TraceRequest, takes_traces
from traceql.errors import QueryError, TraceqlError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceql.cli.shell_session import Session
    from traceql.trace import Trace


@click.command("shell", epilog="Example: traceql shell trace.json.gz < questions.sql")
@click.option("--format", "form", type=click.Choice([form for form in FORMATS if form != "parquet"]), default="table",
              show_default=True, help="How answers are printed.")  # fmt: skip
@takes_traces("Take files of different jobs together.")
def command(request: TraceRequest, *, form: str) -> None:
    """A prompt for questions in SQL about a trace, as `traceql query` answers them.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed. Several, a folder or a pattern are the
    ranks of a run. A statement ends with ; and may go over several lines; Tab completes; .help lists the commands,
    such as .tables and .schema NAME. What was typed is remembered in the user's folder for state.

    Where standard input is not a terminal it is a script: each answer is printed below its statement (in json and csv
    the answers alone), and the first fault ends it with status 2.
    """
    if Path("-") in request.traces:
        raise click.UsageError("standard input is where statements come from; name the trace's file.")
    from traceql.cli.shell_session import Session  # noqa: PLC0415 - polars: only when it is used

    trace = request.trace()
    gc.enable()  # for once a process that may last
    session = Session(trace, request.traces, request.selection(), form)
    if sys.stdin.isatty() and sys.stdout.isatty():
        _converse(session, trace)
    else:
        _run_script(session, sys.stdin.read())


def _run_script(session: "Session", text: str) -> None:
    """Statements and commands one after the other; what is last may lack its `;`."""
    for number, statement in enumerate(_script(text)):
        if session.form == "table":
            click.echo(f"{chr(10) if number else ''}> {statement}")
        session.run(statement)
        if session.is_over:
            return


def _script(text: str) -> "Iterator[str]":
    """The statements and commands of a script.

    Raises:
        QueryError: the last one does not end.
    """
    from traceql.cli.sql_text import is_blank, statements  # noqa: PLC0415

    pending = ""
    for line in [*text.split("\n"), ";"]:
        if is_blank(pending) and line.lstrip().startswith("."):
            pending = ""
            yield line.strip()
            continue
        found, pending = statements(f"{pending}{line}\n")
        yield from found
    if not is_blank(pending):
        raise QueryError("the last statement does not end", "Close its quotation mark or comment.")


def _converse(session: "Session", trace: "Trace") -> None:
    """Asks until the user leaves; faults are told, and it goes on."""
    from traceql import __version__, fmt  # noqa: PLC0415
    from traceql.analyses.query import tables  # noqa: PLC0415
    from traceql.cli.shell_prompt import prompt_session  # noqa: PLC0415
    from traceql.cli.sql_text import statements  # noqa: PLC0415

    session.show = _shown
    prompt = prompt_session({name: table.names for name, table in tables().items()})
    click.echo(f"traceql {__version__}: {fmt.visible(trace.meta.name)}. End statements with ; — .help tells more.")
    while not session.is_over:
        try:
            text = prompt.prompt().strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            break
        try:
            for statement in [text] if text.startswith(".") else statements(text)[0]:
                session.run(statement)
        except TraceqlError as error:
            say_error(error)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)


def _shown(text: str) -> None:
    """Printed; what is taller than the terminal through the user's pager, where it can be left with q."""
    if text.count("\n") < shutil.get_terminal_size().lines:
        click.echo(text, nl=False)
        return
    os.environ.setdefault("LESS", "FRX")
    click.echo_via_pager(text)
