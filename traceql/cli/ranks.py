"""`traceql ranks`: the ranks of a run side by side."""

from pathlib import Path

import click

from traceql.cli.loading import Loading, check_run_output, load_traces
from traceql.cli.options import load_options, output_form, output_options, run_argument, step_options
from traceql.cli.output import formatted, write_output

TOP = 15
"""Rows of a long table on a page; data has all of them."""


@click.command("ranks", epilog="Example: traceql ranks traces/ --stage decode")
@run_argument
@step_options
@click.option(
    "--by",
    type=click.Choice(["rank", "collective", "clock", "step", "kernel"]),
    help="Only this table; kernel, every communication kernel, as csv or parquet only. "
    "csv and parquet hold one table [default: rank], json all but kernel.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N",
              help=f"Longest tables to N rows. [default: {TOP} in table and markdown, else all]")  # fmt: skip
@output_options
@load_options
def command(
    *,
    traces: tuple[Path, ...],
    steps: tuple[int | None, int | None],
    stage: str | None,
    by: str | None,
    top: int | None,
    form: str | None,
    output: Path | None,
    force: bool,
    categories: Path | None,
    no_cache: bool,
    strict: bool,
) -> None:
    """The ranks of a run side by side: who waits, for whom and why.

    TRACE... are the trace files of one job, one for each rank: files, a folder or a pattern. Collectives are matched
    across the ranks, their clocks aligned, and the time in a collective told apart into transfer and waiting.
    --force also takes files together that look like those of different jobs.
    """
    form = output_form(form, output)
    if by == "kernel" and form not in ("csv", "parquet"):
        raise click.UsageError("--by kernel is data: name --format csv or parquet")
    check_run_output(output, traces, force=force, is_binary=form == "parquet")

    from traceql.analyses.summary import Selection  # noqa: PLC0415 - polars: only when it is used
    from traceql.report import ranks_page  # noqa: PLC0415

    trace = load_traces(traces, (), Loading(force, categories, not no_cache, strict))
    report = ranks_page.RankReport.of(trace, Selection(*steps, stage))
    result = formatted(
        form,
        to_file=output is not None,
        page=lambda: ranks_page.ranks_page(report, by, top or TOP),
        table=lambda: ranks_page.table_of(report, by or "rank", top),
        document=lambda: ranks_page.to_json(report, top),
    )
    write_output(result, output)
