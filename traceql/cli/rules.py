"""`traceql rules`: which rules there are, what one says, whether they do it, and a new one to begin with."""

from pathlib import Path

import click

from traceql.cli.output import write_page
from traceql.errors import OutputError, RuleError, nearest

_OWN = click.option(
    "--rules", "paths", type=click.Path(path_type=Path), multiple=True, metavar="PATH",
    help="Rules of your own beside the built-in ones: a YAML file or a folder of them.",
)  # fmt: skip

SKELETON = """\
# A rule of traceql: YAML 1.2, named after its id. `traceql rules test {id}.yaml` tries its examples,
# `traceql check TRACE --rules {id}.yaml` runs it.
id: {id}
severity: warning            # info, warning or critical
table: step_pace             # docs/tables.md lists the tables and their columns
needs: [launches, complete-steps]   # without these the rule says that it cannot judge
when: stage = 'decode' and launch_ns >= 0.2 * wall_ns   # SQL over one row; true is a fault
# group_by: rank             # rows alike in these columns make a finding; without it all rows make one
cost: launch_ns              # what the row costs, in ns
message: The GPU waits {{{{ launch_ns | ns }}}} for launches in step {{{{ step }}}}, {{{{ share | percent }}}} of all
why: Kernels come later than the GPU could begin them.
fix: Capture the decode step in a CUDA graph.
# links: [https://example.org/why]
examples:                    # columns left out are null
  fires:
    - {{stage: decode, wall_ns: 1000, launch_ns: 200}}
  silent:
    - {{stage: decode, wall_ns: 1000, launch_ns: 199}}
    - {{stage: prefill, wall_ns: 1000, launch_ns: 900}}
"""


@click.group("rules", epilog="Example: traceql rules list")
def command() -> None:
    """The rules of `traceql check`: list, show, test, and begin a new one."""


@command.command("list", epilog="Example: traceql rules list --rules our-rules/")
@_OWN
def list_rules(paths: tuple[Path, ...]) -> None:
    """Every rule: id, severity, table, and why it matters."""
    from traceql.report.page import Column, Section, TextTable  # noqa: PLC0415
    from traceql.rules import load_rules  # noqa: PLC0415

    columns = (Column("rule"), Column("severity"), Column("table", drop=1), Column("why", fit="end"))
    rows = tuple((rule.id, rule.severity, rule.table, rule.why) for rule in load_rules(paths))
    write_page([Section(table=TextTable(columns, rows))])


@command.command("show", epilog="Example: traceql rules show whole-pool-kv-cast")
@click.argument("name", metavar="ID")
@_OWN
def show(name: str, paths: tuple[Path, ...]) -> None:
    """One rule, whole."""
    from traceql.report.check_page import rule_page  # noqa: PLC0415
    from traceql.rules import load_rules  # noqa: PLC0415

    rules = {rule.id: rule for rule in load_rules(paths)}
    if name not in rules:
        raise RuleError(f"unknown rule {name[:80]!r}", nearest(name, rules))
    write_page(rule_page(rules[name]))


@command.command("test", epilog="Example: traceql rules test our-rules/")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@click.option("--categories", type=click.Path(path_type=Path), metavar="FILE",
              help="Kernel categories of your own (YAML) that rules may name.")  # fmt: skip
@click.pass_context
def test(context: click.Context, paths: tuple[Path, ...], categories: Path | None) -> None:
    """Runs the examples of the built-in rules and of those in PATH; exit status 1 when one fails."""
    from traceql import fmt  # noqa: PLC0415
    from traceql.categories import load_categories  # noqa: PLC0415
    from traceql.rules import load_rules  # noqa: PLC0415
    from traceql.rules.examples import failures  # noqa: PLC0415

    known = load_categories(categories)
    rules = load_rules(paths, categories=known)
    failed = [failure for rule in rules for failure in failures(rule, known)]
    for failure in failed:
        click.echo(fmt.visible(failure.text))
    n_examples = sum(len(rule.fires) + len(rule.silent) for rule in rules)
    outcome = f"{len(failed)} failed" if failed else "all as expected"
    click.echo(f"{fmt.plural(len(rules), 'rule')}, {fmt.plural(n_examples, 'example')}: {outcome}")
    context.exit(1 if failed else 0)


@command.command("new", epilog="Example: traceql rules new slow-sampling")
@click.argument("name", metavar="ID")
def new(name: str) -> None:
    """Writes ID.yaml in this folder: a rule that works, with comments, to be changed into yours."""
    from traceql.rules.loading import ID_FORM, is_id  # noqa: PLC0415

    if not is_id(name):
        raise RuleError(f"{name[:80]!r} is no id", ID_FORM)
    path = Path(f"{name}.yaml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(SKELETON.format(id=name))
    except FileExistsError as error:
        raise OutputError(f"{path} exists", "Choose another id, or remove the file.") from error
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}", "Try another folder.") from error
    click.echo(f"wrote {path}; try it: traceql rules test {path}")
