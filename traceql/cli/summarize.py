"""`traceql summarize`: where the time of each step goes."""

from pathlib import Path

import click

from traceql.cli.html_files import write_report
from traceql.cli.loading import check_run_output
from traceql.cli.request import Request, takes_request

TOP = 15
"""Rows of a long table on a page; data has all of them."""
TOP_FINDINGS = 3


@click.command(
    "summarize",
    epilog="Example: traceql summarize trace.json.gz --stage decode --by kernel --top 30",
)
@click.option(
    "--by",
    type=click.Choice(["group", "category", "kernel", "op", "step", "stage"]),
    help="Only this table. csv and parquet hold one table [default: category], json always all.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N",
              help=f"Longest tables to N rows. [default: {TOP} in table and markdown, else all]")  # fmt: skip
@click.option("--full-names", is_flag=True, help="Kernel names as recorded, never cut.")
@click.option("--html", type=click.Path(path_type=Path), metavar="PAGE",
              help="Also write the page of `traceql report` to this file.")  # fmt: skip
@takes_request()
def command(request: Request, *, by: str | None, top: int | None, full_names: bool, html: Path | None) -> None:
    """Where the time of each step goes.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Several files, a folder or a pattern are a run: the ranks of one job.
    Printed are the step time and, by group, category and kernel, the milliseconds of a step that each takes.
    """
    request.check_output()
    if html is not None:
        check_run_output(html, request.traces, force=request.loading.force, is_binary=False)

    from traceql.analyses.layer_stats import layer_stats  # noqa: PLC0415 - polars: only when it is used
    from traceql.analyses.rank_stats import summarize_run  # noqa: PLC0415
    from traceql.report import summary_document, summary_page  # noqa: PLC0415
    from traceql.report.remarks import remarks  # noqa: PLC0415
    from traceql.rules.top import top_findings  # noqa: PLC0415

    trace, selection = request.trace(), request.selection()
    summary = summarize_run(trace, selection)
    layers = layer_stats(trace, selection)
    said = remarks(trace, summary, layers)
    found = top_findings(trace, selection, TOP_FINDINGS if by is None or request.form == "json" else 0)
    view = summary_page.SummaryView(by, top or TOP, full_names, said, found)
    request.write(
        page=lambda: summary_page.summary_page(summary, view),
        table=lambda: summary_document.table_of(summary, by or "category", top),
        document=lambda: summary_document.to_json(summary, top, said, findings=found, layer_types=layers.types),
    )
    if html is not None:
        write_report(trace, selection, html)
