"""Writes the pages that come from the code, and their places in zensical.toml. A test says when they lag.

These are cli.md, commands/, tables.md, rules.md and categories.md. With `--run` the commands that pages show are run
again, else their output stays as it is; with `--check` nothing is written, and what lags is named.
"""

import html
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from console_blocks import carried_over, refreshed

import traceql.analyses
import traceql.tables
from traceql.analyses.query import tables
from traceql.categories import Category, load_categories
from traceql.categories import Row as Pattern
from traceql.cli import COMMANDS, main
from traceql.fleet.kept import FAILURES, KEPT, TRACES
from traceql.rules import FINDINGS, SEVERITIES, Row, Rule, built_in_rules
from traceql.tables import Column, Table

DOCS = Path(__file__).parent
_WARNING = "<!-- Written by docs/generate.py; change the code instead. -->"
_RULES_INTRO = (
    "What `traceql check` looks for. A rule asks a condition of each row of a [table](tables.md); where it holds, "
    "the rule fires. Each has a file of its own in rules/findings, where its examples are its tests. Write your own "
    "with `traceql rules new`."
)
_STORE = (
    "A store (`traceql ingest`, [scale.md](scale.md)) has these and, of each trace, "
    f"{', '.join(f'`{name}`' for name in KEPT)}; other tables when they were asked for. All begin with `run`, `rank`, "
    "`date`, `host`, `commit`, `model` and the labels of the store; `failures` does not."
)
_IN_PYTHON = (
    "No query knows these: functions in `traceql.analyses` take and give them, and of two recordings `traceql.diff`."
)
_NEEDS = "Without these the rule abstains and says so"


SITE = DOCS.parent / "zensical.toml"
WITH_OUTPUT = ("tutorial.md",)
"""Pages written by hand that show what commands print."""

_GRAPH = "sglang/before-graph-TP-0.trace.json.zst"
_FIXED = "sglang/after-graph-TP-0.trace.json.zst"
_EAGER = "glm5/tiny-pool-eager-TP-0.json.gz"
_RANKS = "glm5/tiny-pool-graph-TP-*.json.gz"
_STEPS_BY_STAGE = '"SELECT stage, COUNT(*) AS n, MEDIAN(wall_ns) / 1e6 AS median_ms FROM steps GROUP BY stage"'
EXAMPLES = {
    "summarize": (f"traceql summarize {_GRAPH} --by category", None),
    "diff": (f"traceql diff {_GRAPH} {_FIXED}", 35),
    "layers": (f"traceql layers {_GRAPH}", 17),
    "casts": (f"traceql casts {_GRAPH}", None),
    "check": (f"traceql check {_GRAPH}", None),
    "idle": (f"traceql idle {_EAGER}", None),
    "whatif": (f"traceql whatif {_GRAPH} --scale \"category = 'cast'\" 0", 24),
    "critical-path": (f"traceql critical-path {_EAGER}", None),
    "slice": (f"traceql slice {_EAGER} --step 1 -o step1.json.gz\ntraceql summarize step1.json.gz --by category", None),
    "merge": (f"traceql merge '{_RANKS}' -o all.json.gz", None),
    "query": (f"traceql query {_GRAPH} \\\n    {_STEPS_BY_STAGE}", None),
    "shell": (f'echo "SELECT COUNT(*) AS n FROM kernels; SELECT * FROM memory;" | traceql shell {_GRAPH}', None),
    "ingest": ("traceql ingest capture glm5 --to fleet\ntraceql tables fleet", None),
    "trend": ("traceql ingest capture --to fleet\ntraceql trend fleet", None),
    "tables": ("traceql tables steps", None),
    "ranks": (f"traceql ranks '{_RANKS}'", None),
    "export": (f"traceql export {_EAGER} -o tables --format csv --tables kernels,steps,casts,memory", None),
    "baseline": (f"traceql baseline save main {_GRAPH}\ntraceql baseline show main", 20),
    "capture": ("traceql capture patches", None),
    "rules": ("traceql rules show whole-pool-kv-cast", 30),
}  # fmt: skip
"""What the page of a command shows it do, on tests/fixtures, and how many lines of that."""

MORE = {
    "summarize": ("figures.md", "what each figure means"),
    "diff": ("diff.md", "how the verdict is reached"),
    "report": ("report.md", "what is on the page"),
    "layers": ("attribution.md", "how layers are found and when to doubt it"),
    "check": ("rules.md", "every rule"),
    "rules": ("rules.md", "every rule"),
    "whatif": ("whatif.md", "how the replay works"),
    "critical-path": ("whatif.md", "how the replay works"),
    "slice": ("slice.md", "what is kept and what changes"),
    "merge": ("slice.md", "what changes, and how well clocks are known"),
    "query": ("cookbook.md", "queries to begin with"),
    "shell": ("cookbook.md", "queries to begin with"),
    "ingest": ("scale.md", "what a store keeps, and exactly once"),
    "trend": ("scale.md", "how groups are compared"),
    "tables": ("tables.md", "all of them"),
    "export": ("export.md", "the files and their schema"),
    "capture": ("capture.md", "what happens during a capture"),
}
"""The page that goes further than that of a command."""


def pages(*, run: bool = False) -> dict[Path, str]:
    """File and content of every generated page; with `run` what commands print is new."""
    written = {
        DOCS / "cli.md": cli_page(),
        DOCS / "tables.md": tables_page(),
        DOCS / "rules.md": rules_page(),
        DOCS / "categories.md": categories_page(),
        SITE: site_settings(SITE.read_text(encoding="utf-8")),
    }
    commands = {DOCS / "commands" / f"{name}.md": command_page(name) for name in COMMANDS}
    by_hand = {DOCS / name: (DOCS / name).read_text(encoding="utf-8") for name in WITH_OUTPUT}
    shown = commands | by_hand
    return written | {path: refreshed(page) if run else carried_over(page, _text(path)) for path, page in shown.items()}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def site_settings(settings: str) -> str:
    """zensical.toml with a place in its navigation for each command."""
    lines = "".join(f'    {{ "{name}" = "commands/{name}.md" }},\n' for name in COMMANDS)
    return re.sub(r"(# commands begin\n).*?( *# commands end)", rf"\g<1>{lines}\g<2>", settings, flags=re.DOTALL)


def cli_page() -> str:
    """Every command with what it does, and what holds for all."""
    rows = [f"| [{name}](commands/{name}.md) | {text} |" for name, text in COMMANDS.items()]
    table = "\n".join(("| command | what it does |", "| --- | --- |", *rows))
    return "\n\n".join((_WARNING, "# Commands", table, _CLI_NOTES)) + "\n"


_CLI_NOTES = """\
## What holds for all

Data goes to standard output, everything else to standard error. A file that is written appears whole or not at all, and
none is overwritten without `--force`, an input never.

| exit status | meaning |
| --- | --- |
| 0 | fine |
| 1 | findings at or above `--fail-on` (check), or a gate that fails (diff) |
| 2 | it could not run: one line says why, another what to do |
| 130, 141 | Ctrl-C; the reader of a pipe has gone |

Text is fitted to the terminal, 100 columns in a pipe. `NO_COLOR` takes the colours away. `TRACEQL_CACHE_DIR` is where
the cache lies. `traceql COMMAND --help` says what these pages say."""


def command_page(name: str) -> str:
    """A command: what it does, an example with what it prints, its options."""
    with click.Context(main, info_name="traceql") as parent:
        command = main.get_command(parent, name)
        assert command is not None
        parts = list(_command_parts(command, parent, name, 2))
    more = [f"See also [{MORE[name][0]}](../{MORE[name][0]}): {MORE[name][1]}."] if name in MORE else []
    head, *rest = parts
    return "\n\n".join((_WARNING, f"# traceql {name}", head, *more, *_example(name), *rest)) + "\n"


PICTURES = {"report": ("The head of a page: the step, who sets the pace, the findings", "report-graph-1280.png")}
"""What the page of a command shows instead."""


def _example(name: str) -> Iterator[str]:
    if name in PICTURES:
        text, file = PICTURES[name]
        yield f"![{text}](../img/{file})"
    if name not in EXAMPLES:
        return
    commands, n_lines = EXAMPLES[name]
    mark = f"<!-- run head={n_lines} -->" if n_lines else "<!-- run -->"
    body = "".join(f"{'' if line.startswith(' ') else '$ '}{line}\n" for line in commands.splitlines())
    yield "## Example"
    yield f"{mark}\n\n```console\n{body}```"


def _command_parts(command: click.Command, parent: click.Context, name: str, level: int) -> Iterator[str]:
    """Description, usage and options; then the same of subcommands."""
    with click.Context(command, parent, name, terminal_width=100, **command.context_settings) as context:
        yield _prose(command.help or "")
        yield f"{'#' * level} Usage"
        yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```"
        options = [param.get_help_record(context) for param in command.get_params(context)]
        rows = [f"| {_option(record[0])} | {_cell(record[1])} |" for record in options if record and record[1]]
        if rows:
            yield "\n".join(("| option | meaning |", "| --- | --- |", *rows))
        if command.epilog:
            yield f"```bash\n{' '.join(command.epilog.removeprefix('Example:').split())}\n```"
        if isinstance(command, click.Group):
            for child_name in command.list_commands(context):
                child = command.get_command(context, child_name)
                assert child is not None
                yield f"{'#' * level} {context.command_path} {child_name}"
                yield from _command_parts(child, context, child_name, level + 1)


def _option(text: str) -> str:
    """The names of an option as code; a pipe would end the cell even there."""
    names = (html.escape(part, quote=False).replace("|", "&#124;") for part in text.split(", "))
    return "<br>".join(f"<code>{name}</code>" for name in names)


def _cell(text: str) -> str:
    return _prose(text).replace("\n", " ").replace("|", "\\|")


def _prose(text: str) -> str:
    """Help as Markdown: paragraphs as they are, nothing taken for HTML or a list."""
    paragraphs = (" ".join(part.replace("\b", "").split()) for part in text.strip().split("\n\n"))
    return "\n\n".join(_literal(part) if "`" not in part else part for part in paragraphs)


def _literal(text: str) -> str:
    """Text of which nothing is Markdown. No backslash stands for `<` everywhere: some show it."""
    return re.sub(r"([*_\[])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def tables_page() -> str:
    """Every table: first those of a trace, then the results of analyses."""
    asked = tables()
    inputs = list(traceql.tables.INPUT_TABLES)
    found = [table for table in _result_tables() if table not in inputs]
    results = [table for table in found if asked.get(table.name) is table]
    parts = ["## A trace's tables", *map(_table, inputs), "## Results", *map(_table, results)]
    parts += ["## In Python alone", _IN_PYTHON, *(_table(table) for table in found if table not in results)]
    parts += ["## Of a store alone", _STORE, *map(_table, (TRACES, FAILURES, FINDINGS))]
    intro = (
        "Time is whole nanoseconds since the trace's first event. An empty cell (null) means unknown. "
        "`traceql tables --find TEXT` lists the columns that have to do with something."
    )
    return "\n\n".join((_WARNING, "# Tables", intro, *parts)) + "\n"


def _result_tables() -> list[Table]:
    found: dict[int, Table] = {}
    for module in pkgutil.iter_modules(traceql.analyses.__path__):
        values = vars(importlib.import_module(f"traceql.analyses.{module.name}")).values()
        found |= {id(value): value for value in values if isinstance(value, Table)}
    return sorted(found.values(), key=lambda table: table.name)


def _table(table: Table) -> str:
    head = (f"### {table.name}", "", table.doc, "", "| column | type | unit | may be null | meaning |")
    return "\n".join((*head, "| --- | --- | --- | --- | --- |", *map(_row, table)))


def _row(column: Column) -> str:
    doc = column.doc.replace("|", "\\|")
    return f"| `{column.name}` | {column.dtype} | {column.unit or ''} | {'yes' if column.nullable else ''} | {doc} |"


def categories_page() -> str:
    """Every category: what it is for, and the patterns and names that lead to it."""
    known = load_categories()
    head = ["| category | group | what it is for |", "| --- | --- | --- |"]
    rows = [f"| [{each.name}](#{each.name}) | {each.group} | {each.doc} |" for each in known.categories]
    parts = (_category(each, [row for row in known.rows if row.category == each.name]) for each in known.categories)
    return "\n\n".join((_WARNING, "# Kernel categories", _CATEGORIES_INTRO, "\n".join(head + rows), *parts)) + "\n"


_CATEGORIES_INTRO = """\
What a kernel is for, told by its name. `rules/kernel_categories.yaml` holds the patterns in order; the first that is
found anywhere in the full name wins, so a row that is listed here may lose to one that comes before it. Groups are
the level of the table that `traceql summarize` begins with. Categories of your own go before these with
`--categories FILE`; the file has the same form."""


def _category(category: Category, rows: list[Pattern]) -> str:
    """A category with its patterns and some of the names that are known to match."""
    lines = [f"## {category.name}", f"{category.doc}. Group `{category.group}`."]
    patterns = [pattern for row in rows for pattern in row.patterns]
    examples = [example for row in rows for example in row.examples]
    if patterns:
        lines.append("Patterns, in order:\n\n```text\n" + "\n".join(patterns) + "\n```")
    if examples:
        shown = "\n".join(examples[:_MAX_EXAMPLES])
        more = f"\n... and {len(examples) - _MAX_EXAMPLES} more" if len(examples) > _MAX_EXAMPLES else ""
        lines.append(f"Names that belong here:\n\n```text\n{shown}{more}\n```")
    return "\n\n".join(lines)


_MAX_EXAMPLES = 8


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
    current = pages(run="--run" in sys.argv[1:])
    lagging = [path for path, page in current.items() if not path.exists() or _text(path) != page]
    if "--check" in sys.argv[1:]:
        print(*(path.name for path in lagging), sep="\n", end="\n" if lagging else "")
        return len(lagging)
    for path in lagging:
        path.parent.mkdir(exist_ok=True)
        path.write_text(current[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(write())
