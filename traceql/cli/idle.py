"""`traceql idle`: why the GPU was idle, and whether the host or the GPU sets the pace."""

from pathlib import Path

import click

from traceql.cli.loading import Loading, check_run_output, load_traces
from traceql.cli.options import load_options, output_form, output_options, rank_option, run_argument, step_options
from traceql.cli.output import formatted, write_output

TOP = 15
"""Gaps on a page and in JSON, unless told otherwise."""


@click.command("idle", epilog="Example: traceql idle trace.json.gz --stage decode --by gap --top 30")
@run_argument
@step_options
@rank_option
@click.option(
    "--by",
    type=click.Choice(["cause", "step", "gap", "launch"]),
    help="Only this table. csv and parquet hold one table [default: cause], json always all.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N",
              help=f"The N longest gaps. [default: {TOP} in table, markdown and json, else all]")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="All gaps, not only the longest.")
@click.option("--full-names", is_flag=True, help="Kernel names never cut.")
@output_options
@load_options
def command(
    *,
    traces: tuple[Path, ...],
    steps: tuple[int | None, int | None],
    stage: str | None,
    ranks: tuple[int, ...],
    by: str | None,
    top: int | None,
    every: bool,
    full_names: bool,
    form: str | None,
    output: Path | None,
    force: bool,
    categories: Path | None,
    no_cache: bool,
    strict: bool,
) -> None:
    """Why the GPU was idle, and whether it waits for the host.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Several, a folder or a pattern are the ranks of a run (--force: even if they look like different jobs).
    Printed are the idle time of a step by cause, the longest gaps with the host call behind them, and
    what launching takes.
    """
    if every and top is not None:
        raise click.UsageError("--all and --top exclude each other.")
    form = output_form(form, output)
    check_run_output(output, traces, force=force, is_binary=form == "parquet")

    from traceql.analyses.pace import pace  # noqa: PLC0415 - polars: only when it is used
    from traceql.analyses.summary import Selection  # noqa: PLC0415
    from traceql.report import idle_page  # noqa: PLC0415

    trace = load_traces(traces, ranks, Loading(force, categories, not no_cache, strict))
    found = pace(trace, Selection(*steps, stage))
    shown = None if every else top or (None if form in ("csv", "parquet") else TOP)
    result = formatted(
        form,
        to_file=output is not None,
        page=lambda: idle_page.idle_page(found, idle_page.View(by, shown, full_names)),
        table=lambda: idle_page.table_of(found, by or "cause", shown),
        document=lambda: idle_page.to_json(found, shown),
    )
    write_output(result, output)
