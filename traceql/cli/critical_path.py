"""`traceql critical-path`: the chain of calls, kernels and waits that makes a step as long as it is."""

from pathlib import Path

import click

from traceql.cli.loading import check_run_output
from traceql.cli.output import write_blocks
from traceql.cli.request import Request, takes_request

TOP = 15
"""Parts on a page and in JSON, unless told otherwise."""


@click.command("critical-path", epilog="Example: traceql critical-path traces/ --stage decode --by step")
@click.option(
    "--by",
    type=click.Choice(["part", "step", "stretch"]),
    help="Only this table; stretch, every stretch of every path, as csv or parquet only. "
    "csv and parquet hold one table [default: part], json all but stretch.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N",
              help=f"The N parts with most time. [default: {TOP} in table, markdown and json, else all]")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="All parts, not only those with most time.")
@click.option("--full-names", is_flag=True, help="Kernel names never cut.")
@click.option("--viewer", type=click.Path(path_type=Path), metavar="FILE",
              help="Also write one step, that with the median wall, with its path as a small trace for Perfetto or "
              "chrome://tracing; .gz and .zst pack it.")  # fmt: skip
@takes_request()
def command(
    request: Request,
    *,
    by: str | None,
    top: int | None,
    every: bool,
    full_names: bool,
    viewer: Path | None,
) -> None:
    """What makes a step as long as it is: its critical path.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Several, a folder or a pattern are the ranks of a run (--force: even if they look like different jobs).
    The path leads back from the next step's first activity, from each moment to what it had to wait for.
    Only what lies on it can make the step shorter. Complete steps are counted.
    """
    if every and top is not None:
        raise click.UsageError("--all and --top exclude each other.")
    if by == "stretch" and not request.is_data:
        raise click.UsageError("--by stretch is data: name --format csv or parquet")
    request.check_output()
    if viewer is not None:
        check_run_output(viewer, request.traces, force=request.loading.force, is_binary=False)

    from traceql.analyses.critical_path import critical_paths  # noqa: PLC0415 - polars: only when it is used
    from traceql.report import critical_document, critical_page  # noqa: PLC0415
    from traceql.report.page import View  # noqa: PLC0415
    from traceql.report.viewer import shown_step, viewer_trace  # noqa: PLC0415
    from traceql.slicing.document import packed  # noqa: PLC0415

    trace = request.trace()
    found = critical_paths(trace, request.selection())
    shown = None if every else top or (None if request.is_data else TOP)
    request.write(
        page=lambda: critical_page.critical_page(found, View(by, shown, full_names)),
        table=lambda: critical_document.table_of(found, by or "part", shown),
        document=lambda: critical_document.to_json(found, shown),
    )
    if viewer is not None:
        write_blocks(packed([viewer_trace(trace, found, shown_step(found))], viewer), viewer)
