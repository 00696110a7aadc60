"""`traceql casts`: what dtype casts and copies cost, and whether one converts a whole KV pool."""

from pathlib import Path

import click

from traceql.cli.options import capture_option
from traceql.cli.request import Request, takes_request

TOP = 15
"""Rows of a table on a page, and casts in JSON, unless told otherwise."""


@click.command("casts", epilog="Example: traceql casts trace.json.gz --stage decode --by cast --top 30")
@capture_option
@click.option(
    "--by",
    type=click.Choice(["group", "cast", "custom"]),
    help="Only this table. csv and parquet hold one table [default: group], json always all.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N",
              help=f"The N rows with most time. [default: {TOP} in table, markdown and json, else all]")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="All rows, not only those with most time.")
@click.option("--full-names", is_flag=True, help="Kernel names never cut.")
@takes_request()
def command(
    request: Request, *, capture: Path | None, by: str | None, top: int | None, every: bool, full_names: bool
) -> None:
    """What dtype casts and copies cost, and whether one converts a whole KV pool.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Several, a folder or a pattern are the ranks of a run (--force: even if they look like different jobs).
    Printed are casts and copies by kernel, dtypes, size and role in the layer, and apart from them kernels
    that quantise or fuse a cast. What is not recorded comes from kernel names and launch grids.
    """
    if every and top is not None:
        raise click.UsageError("--all and --top exclude each other.")
    request.check_output(capture)

    from traceql.analyses.captured import with_capture  # noqa: PLC0415 - polars: only when it is used
    from traceql.analyses.casts import cast_report  # noqa: PLC0415
    from traceql.report import casts_document, casts_page  # noqa: PLC0415
    from traceql.report.page import View  # noqa: PLC0415

    trace, captured = request.trace(), request.other_trace(capture)
    found = cast_report(with_capture(trace, captured) if captured else trace, request.selection())
    shown = None if every else top or (None if request.is_data else TOP)
    request.write(
        page=lambda: casts_page.casts_page(found, View(by, shown, full_names)),
        table=lambda: casts_document.table_of(found, by or "group", shown),
        document=lambda: casts_document.to_json(found, shown),
    )
