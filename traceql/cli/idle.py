"""`traceql idle`: why the GPU was idle, and whether the host or the GPU sets the pace."""

import click

from traceql.cli.request import Request, takes_request

TOP = 15
"""Gaps on a page and in JSON, unless told otherwise."""


@click.command("idle", epilog="Example: traceql idle trace.json.gz --stage decode --by gap --top 30")
@click.option(
    "--by",
    type=click.Choice(["cause", "step", "gap", "launch"]),
    help="Only this table. csv and parquet hold one table [default: cause], json always all.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N",
              help=f"The N longest gaps. [default: {TOP} in table, markdown and json, else all]")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="All gaps, not only the longest.")
@click.option("--full-names", is_flag=True, help="Kernel names never cut.")
@takes_request()
def command(request: Request, *, by: str | None, top: int | None, every: bool, full_names: bool) -> None:
    """Why the GPU was idle, and whether it waits for the host.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Several, a folder or a pattern are the ranks of a run (--force: even if they look like different jobs).
    Printed are the idle time of a step by cause, the longest gaps with the host call behind them, and
    what launching takes.
    """
    if every and top is not None:
        raise click.UsageError("--all and --top exclude each other.")
    request.check_output()

    from traceql.analyses.pace import pace  # noqa: PLC0415 - polars: only when it is used
    from traceql.report import idle_document, idle_page  # noqa: PLC0415
    from traceql.report.page import View  # noqa: PLC0415

    found = pace(request.trace(), request.selection())
    shown = None if every else top or (None if request.is_data else TOP)
    request.write(
        page=lambda: idle_page.idle_page(found, View(by, shown, full_names)),
        table=lambda: idle_document.table_of(found, by or "cause", shown),
        document=lambda: idle_document.to_json(found, shown),
    )
