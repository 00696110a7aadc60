"""Writes docs/cli.md and docs/tables.md from the code. A test says when they lag."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import click

import traceql.analyses
import traceql.tables
from traceql.cli import main
from traceql.tables import Column, Table

DOCS = Path(__file__).parent
_WARNING = "<!-- Written by docs/generate.py; change the code instead. -->"


def pages() -> dict[Path, str]:
    """File and content of every generated page."""
    return {DOCS / "cli.md": cli_page(), DOCS / "tables.md": tables_page()}


def cli_page() -> str:
    """The help of every command, as a terminal of 80 columns shows it."""
    parts = [f"## {path}\n\n```text\n{text}\n```" for path, text in _helps(main, None, "traceql")]
    return "\n\n".join((_WARNING, "# Commands", *parts)) + "\n"


def _helps(command: click.Command, parent: click.Context | None, name: str) -> Iterator[tuple[str, str]]:
    with click.Context(command, parent, name, terminal_width=80, **command.context_settings) as context:
        yield context.command_path, command.get_help(context)
        if isinstance(command, click.Group):
            for child_name in command.list_commands(context):
                child = command.get_command(context, child_name)
                if child is not None:
                    yield from _helps(child, context, child_name)


def tables_page() -> str:
    """Every table: first those of a trace, then the results of analyses."""
    inputs = list(traceql.tables.INPUT_TABLES)
    results = [table for table in _result_tables() if table not in inputs]
    parts = ["## A trace's tables", *map(_table, inputs), "## Results", *map(_table, results)]
    intro = "Time is whole nanoseconds since the trace's first event. An empty cell (null) means unknown."
    return "\n\n".join((_WARNING, "# Tables", intro, *parts)) + "\n"


def _result_tables() -> list[Table]:
    found: dict[int, Table] = {}
    for module in pkgutil.iter_modules(traceql.analyses.__path__):
        values = vars(importlib.import_module(f"traceql.analyses.{module.name}")).values()
        found |= {id(value): value for value in values if isinstance(value, Table)}
    return sorted(found.values(), key=lambda table: table.name)


def _table(table: Table) -> str:
    head = (f"### {table.name}", "", table.doc, "", "| column | type | may be null | meaning |")
    return "\n".join((*head, "| --- | --- | --- | --- |", *map(_row, table)))


def _row(column: Column) -> str:
    doc = column.doc.replace("|", "\\|")
    return f"| `{column.name}` | {column.dtype} | {'yes' if column.nullable else ''} | {doc} |"


if __name__ == "__main__":
    for path, content in pages().items():
        path.write_text(content, encoding="utf-8")
