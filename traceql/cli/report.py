"""`traceql report`: one page that opens in any browser, offline, with all that traceql has to say about a trace.

Two arguments are the ranks of one run or the two sides of a comparison. Their ranks tell: a run has each rank once.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceql.cli.html_files import check_page, write_diff_report, write_report
from traceql.cli.loading import load_traces
from traceql.cli.request import TraceRequest, takes_traces
from traceql.cli.sides import are_sides, check_sides, compared, load_run, read_sides
from traceql.ingest.trace_files import stem_of

if TYPE_CHECKING:
    from traceql.report.html import Assets


@click.command("report", epilog="Example: traceql report trace.json.gz -o report.html --open")
@click.option("--diff/--run", "is_diff", default=None,
              help="Two TRACEs are BEFORE and AFTER, or one run. [default: a run if their ranks differ]")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
              help="The page. [default: the name of TRACE with .html, in this folder]")  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@click.option("--title", metavar="TEXT", help="Title of the page. [default: from the name of TRACE]")
@click.option("--assets", type=click.Choice(["inline", "cdn", "directory"]), default="inline", show_default=True,
              help="Scripts in the page (one file, works offline), the plotting library from a public host, or all in "
              "a folder beside the page.")  # fmt: skip
@takes_traces("Overwrite FILE; take files of different jobs together.")
def command(
    request: TraceRequest,
    *,
    is_diff: bool | None,
    output: Path | None,
    opens: bool,
    title: str | None,
    assets: "Assets",
) -> None:
    """One page that opens in any browser, offline: steps, layers, kernels, casts, idle time and findings.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Several, a folder or a pattern are the ranks of a run (--force: even if they look like different jobs).
    Two of the same rank, or two folders with the same ranks, are BEFORE and AFTER: the page says what changed.
    The page asks no host for anything unless --assets cdn is given. Its path and size are printed at the end.
    """
    traces, force, categories = request.traces, request.loading.force, request.loading.categories
    check_sides(traces, is_diff=is_diff)
    if output is not None:
        check_page(output, traces, assets, force=force)

    sides = read_sides(traces, request.loading) if len(traces) == 2 and is_diff is not False else None
    are_compared = sides and (is_diff or are_sides(sides))
    found = compared(traces, sides, request.ranks, request.selection()) if sides and are_compared else None
    if output is None:
        output = default_output(traces, is_diff=found is not None)
        check_page(output, traces, assets, force=force)
    if found is not None:
        write_diff_report(found, output, title=title, assets=assets, categories=categories)
    else:
        trace = (load_run if sides else load_traces)(traces, request.ranks, request.loading)
        write_report(trace, request.selection(), output, title=title, assets=assets)
    if opens:
        click.launch(output.resolve().as_uri())


def default_output(traces: tuple[Path, ...], *, is_diff: bool = False) -> Path:
    """A name in this folder after the first trace's: `trace.json.gz` gives `trace.html`."""
    first = _stem(traces[0])
    if is_diff:
        return Path(f"{first or 'before'}-to-{_stem(traces[-1]) or 'after'}.html")
    return Path(f"{first or 'report'}{'-run' if len(traces) > 1 and first else ''}.html")


def _stem(path: Path) -> str:
    """The name without what all traces end with, and without the signs of a pattern."""
    return re.sub(r"[*?\[\]]+", "", stem_of(path.name)).strip(" .-")
