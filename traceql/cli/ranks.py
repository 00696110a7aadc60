"""`traceql ranks`: the ranks of a run side by side."""

import click

from traceql.cli.request import Request, takes_request

TOP = 15
"""Rows of a long table on a page; data has all of them."""


@click.command("ranks", epilog="Example: traceql ranks traces/ --stage decode")
@click.option(
    "--by",
    type=click.Choice(["rank", "collective", "clock", "step", "kernel"]),
    help="Only this table; kernel, every communication kernel, as csv or parquet only. "
    "csv and parquet hold one table [default: rank], json all but kernel.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N",
              help=f"Longest tables to N rows. [default: {TOP} in table and markdown, else all]")  # fmt: skip
@takes_request(has_ranks=False)
def command(request: Request, *, by: str | None, top: int | None) -> None:
    """The ranks of a run side by side: who waits, for whom and why.

    TRACE... are the trace files of one job, one for each rank: files, a folder or a pattern. Collectives are matched
    across the ranks, their clocks aligned, and the time in a collective told apart into transfer and waiting.
    --force also takes files together that look like those of different jobs.
    """
    if by == "kernel" and not request.is_data:
        raise click.UsageError("--by kernel is data: name --format csv or parquet")
    request.check_output()

    from traceql.report import ranks_document, ranks_page  # noqa: PLC0415 - polars: only when it is used
    from traceql.report.page import View  # noqa: PLC0415
    from traceql.report.rank_report import RankReport  # noqa: PLC0415

    report = RankReport.of(request.trace(), request.selection())
    request.write(
        page=lambda: ranks_page.ranks_page(report, View(by, top or TOP)),
        table=lambda: ranks_document.table_of(report, by or "rank", top),
        document=lambda: ranks_document.to_json(report, top),
    )
