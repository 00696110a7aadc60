"""Writes docs/cli.md, docs/tables.md and docs/rules.md from the code. A test says when they lag."""

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

import traceql.analyses
import traceql.tables
from traceql.cli import main
from traceql.fleet.kept import FAILURES, KEPT, TRACES
from traceql.rules import FINDINGS, SEVERITIES, Row, Rule, built_in_rules
from traceql.tables import Column, Table

DOCS = Path(__file__).parent
_WARNING = "<!-- Written by docs/generate.py; change the code instead. -->"
_RULES_INTRO = (
    "What `traceql check` looks for. A rule asks a condition of each row of a table (docs/tables.md); where it holds, "
    "the rule fires. Each has a file of its own in rules/findings, where its examples are its tests. Write your own "
    "with `traceql rules new`."
)
_STORE = (
    "A store (`traceql ingest`, docs/scale.md) has these and, of each trace, "
    f"{', '.join(f'`{name}`' for name in KEPT)}; other tables when they were asked for. All begin with `run`, `rank`, "
    "`date`, `host`, `commit`, `model` and the labels of the store; `failures` does not."
)
_NEEDS = "Without these the rule abstains and says so"


def pages() -> dict[Path, str]:
    """File and content of every generated page."""
    return {DOCS / "cli.md": cli_page(), DOCS / "tables.md": tables_page(), DOCS / "rules.md": rules_page()}


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
    parts += ["## Of a store alone", _STORE, *map(_table, (TRACES, FAILURES, FINDINGS))]
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


def rules_page() -> str:
    """All rules: a list of them, the most severe first, and a section for each, by id."""
    by_id = sorted(built_in_rules(), key=lambda rule: rule.id)
    by_severity = sorted(by_id, key=lambda rule: -SEVERITIES.index(rule.severity))
    head = ["| rule | severity | table |", "| --- | --- | --- |"]
    rows = [f"| [{rule.id}](#{rule.id}) | {rule.severity} | `{rule.table}` |" for rule in by_severity]
    return "\n\n".join((_WARNING, "# Rules", _RULES_INTRO, "\n".join(head + rows), *map(_rule_section, by_id))) + "\n"


def _rule_section(rule: Rule) -> str:
    return "\n\n".join((f"## {rule.id}", *_parts(rule)))


def _parts(rule: Rule) -> Iterator[str]:
    yield f"{rule.severity.capitalize()}, about each row of `{rule.table}`."
    yield rule.why
    yield f"**What to do.** {rule.fix}"
    yield f"**Message.** `` {rule.message} ``"
    yield "\n".join(("```sql", f"-- fires when\n{rule.when.strip()}", *_sql(rule), "```"))
    if rule.needs:
        yield f"{_NEEDS}: {', '.join(rule.needs)}."
    yield "\n".join(
        ("| example | row |", "| --- | --- |", *_examples("fires", rule.fires), *_examples("silent", rule.silent))
    )
    if rule.links:
        yield "\n".join(f"- <{link}>" for link in rule.links)


def _sql(rule: Rule) -> Iterator[str]:
    if rule.group_by:
        yield f"-- one finding for each\n{', '.join(rule.group_by)}"
    if rule.cost:
        yield f"-- ns that a row costs\n{rule.cost.strip()}"


def _examples(what: str, rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        values = ", ".join(f"{name}: {value}" for name, value in row.items()).replace("|", "\\|")
        yield f"| {what} | `{values}` |"


def write() -> int:
    """Writes the pages; with `--check` names those that lag instead, and fails if there are any."""
    lagging = [path for path, page in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != page]
    if "--check" in sys.argv[1:]:
        print(*(path.name for path in lagging), sep="\n", end="\n" if lagging else "")
        return len(lagging)
    for path in lagging:
        path.write_text(pages()[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(write())
