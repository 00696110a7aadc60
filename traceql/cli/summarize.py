"""`traceql summarize`: where the time of each step goes."""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceql.cli.options import load_options, output_form, output_options, step_options, trace_argument
from traceql.cli.output import PIPE_WIDTH, check_output, write_output
from traceql.cli.progress import read_progress

if TYPE_CHECKING:
    from traceql.analyses.summary import Selection, Summary

TOP = 15
"""Rows of a long table on a page; data has all of them."""


@click.command(
    "summarize",
    epilog="Example: traceql summarize trace.json.gz --stage decode --by kernel --top 30",
)
@trace_argument
@step_options
@click.option(
    "--by",
    type=click.Choice(["group", "category", "kernel", "op", "step"]),
    help="Only this table. csv and parquet hold one table [default: category], json always all.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N",
              help=f"Longest tables to N rows. [default: {TOP} in table and markdown, else all]")  # fmt: skip
@click.option("--full-names", is_flag=True, help="Kernel names as recorded, never cut.")
@output_options
@load_options
def command(
    *,
    trace: Path,
    steps: tuple[int | None, int | None],
    stage: str | None,
    by: str | None,
    top: int | None,
    full_names: bool,
    form: str | None,
    output: Path | None,
    force: bool,
    categories: Path | None,
    no_cache: bool,
    strict: bool,
) -> None:
    """Where the time of each step goes.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Printed are the step time and, by group, category and kernel, the milliseconds of a step that each takes.
    """
    form = output_form(form, output)
    check_output(output, force=force, is_binary=form == "parquet", source=trace)

    from traceql.analyses.summary import Selection  # noqa: PLC0415 - polars: only when it is used

    summary = _summarize(trace, Selection(*steps, stage), categories=categories, cache=not no_cache, strict=strict)
    is_terminal = output is None and sys.stdout.isatty()
    write_output(_formatted(summary, form, by, top, full_names=full_names, is_terminal=is_terminal), output)


def _summarize(path: Path, selection: "Selection", *, categories: Path | None, cache: bool, strict: bool) -> "Summary":
    import traceql  # noqa: PLC0415
    from traceql.analyses import summarize  # noqa: PLC0415

    _let_reads_be_interrupted()
    with read_progress(f"reading {path.name}") as progress:
        trace = traceql.load(path, cache=cache, strict=strict, categories=categories, progress=progress)
    return summarize(trace, selection)


def _let_reads_be_interrupted() -> None:
    """Lets Ctrl-C end a wait for standard input: after polars' signal handler the read would just go on."""
    if hasattr(signal, "siginterrupt"):  # not on Windows
        signal.siginterrupt(signal.SIGINT, True)


def _formatted(
    summary: "Summary", form: str, by: str | None, top: int | None, *, full_names: bool, is_terminal: bool
) -> bytes | str:
    from traceql.report import export, markdown, sections, text  # noqa: PLC0415

    if form == "json":
        return export.to_json(summary, top)
    if form in ("csv", "parquet"):
        frame = export.table_of(summary, by or "category", top)
        return export.to_csv(frame) if form == "csv" else export.to_parquet(frame)
    page = sections.summary_page(summary, sections.View(by, top or TOP, full_names))
    if form == "markdown":
        return markdown.render_markdown(page)
    width = shutil.get_terminal_size().columns if is_terminal else PIPE_WIDTH
    color = is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return text.render_text(page, width=width, color=color)
