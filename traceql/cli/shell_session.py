"""A conversation about one trace: statements and commands in, answers out. Where lines come from is not known here."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click
import polars as pl

from traceql.analyses.dialect import table_advice
from traceql.analyses.query import Answer, ask, tables
from traceql.cli.loading import check_run_output
from traceql.cli.options import FORMATS, output_form
from traceql.cli.output import formatted, write_output
from traceql.errors import QueryError, nearest
from traceql.report import query_document, query_page
from traceql.report.page import Section

if TYPE_CHECKING:
    from traceql.analyses.summary import Selection
    from traceql.trace import Trace

HELP = """\
A statement ends with ; and may go over several lines. Tab completes tables, columns and words of SQL.

.tables                the tables
.schema NAME           the columns of one
.format FORM           how answers are printed: table, json, csv or markdown
.output FILE [--force] where the next answer goes, once; its name tells the form (.csv, .json, .parquet, .md)
.help                  this
.quit                  leaves, as Ctrl-D does; Ctrl-C leaves the line
"""


@dataclass
class Session:
    """What has been asked for so far."""

    trace: "Trace"
    sources: tuple[Path, ...]
    """The traces' files, which no answer overwrites."""
    selection: "Selection"
    form: str = "table"
    output: Path | None = None
    """Where the next answer goes, and only that."""
    output_form: str = "table"
    show: Callable[[str], None] = field(default=lambda text: write_output(text, None))
    """Shows a page."""
    is_over: bool = False

    def run(self, line: str) -> None:
        """Answers a statement, or carries out a command.

        Raises:
            TraceqlError: it cannot be done; the session can go on.
        """
        if line.startswith("."):
            self._command(line)
        else:
            self._answer(ask(self.trace, line, self.selection))

    def _answer(self, answer: Answer) -> None:
        output, self.output = self.output, None
        form = self.output_form if output else self.form
        result = formatted(
            form,
            to_file=output is not None,
            page=lambda: query_page.query_page(answer, whole=".output FILE"),
            table=lambda: answer.frame,
            document=lambda: query_document.to_json(answer),
        )
        if output or isinstance(result, bytes):
            write_output(result, output)
        else:
            self.show(result)
        if form in ("csv", "parquet"):
            for note in query_page.query_notes(answer):
                click.echo(note, err=True)

    def _command(self, line: str) -> None:
        try:
            name, *arguments = shlex.split(line)
        except ValueError as error:
            raise QueryError(f"{line[:80]!r} cannot be read: {error}", "Close the quotation mark.") from error
        if name not in COMMANDS:
            raise QueryError(f"unknown command {name[:80]!r}", nearest(name, COMMANDS))
        COMMANDS[name](self, arguments)

    def show_page(self, page: list[Section]) -> None:
        """Shows a page that is no answer."""
        self.show(str(formatted("table", to_file=False, page=lambda: page, table=pl.DataFrame, document=bytes)))


def _tables(session: Session, arguments: list[str]) -> None:
    _expect(arguments, 0, ".tables")
    session.show_page(query_page.tables_page(tables()))


def _schema(session: Session, arguments: list[str]) -> None:
    _expect(arguments, 1, ".schema NAME")
    name = arguments[0].lower().rstrip(";")
    if name not in tables():
        raise QueryError(f"unknown table {name[:80]!r}", table_advice(name, tables()))
    session.show_page(query_page.table_page(tables()[name]))


def _format(session: Session, arguments: list[str]) -> None:
    _expect(arguments, 1, ".format FORM")
    forms = [form for form in FORMATS if form != "parquet"]
    if arguments[0] not in forms:
        raise QueryError(f"unknown form {arguments[0][:80]!r}", nearest(arguments[0], forms))
    session.form = arguments[0]


def _output(session: Session, arguments: list[str]) -> None:
    files = [argument for argument in arguments if argument != "--force"]
    _expect(files, 1, ".output FILE [--force]")
    output = Path(files[0]).expanduser()
    form = output_form(None, output)
    check_run_output(output, session.sources, force="--force" in arguments, is_binary=False)
    session.output, session.output_form = output, form


def _help(session: Session, arguments: list[str]) -> None:
    _expect(arguments, 0, ".help")
    session.show(HELP)


def _quit(session: Session, arguments: list[str]) -> None:
    _expect(arguments, 0, ".quit")
    session.is_over = True


def _expect(arguments: list[str], number: int, usage: str) -> None:
    if len(arguments) != number:
        raise QueryError(
            f"{usage.split(maxsplit=1)[0]} takes {number or 'no'} argument{'s' * (number != 1)}", f"Write {usage}."
        )


COMMANDS: Mapping[str, Callable[[Session, list[str]], None]] = {
    ".tables": _tables,
    ".schema": _schema,
    ".format": _format,
    ".output": _output,
    ".help": _help,
    ".quit": _quit,
    ".exit": _quit,
}
"""Each by its name; registering one is one row."""
