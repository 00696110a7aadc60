"""`traceql trend`: step times of a store's runs, and which changes are real."""

from pathlib import Path

import click

from traceql.cli.ingest import Label
from traceql.cli.options import Percent, output_form, output_options
from traceql.cli.output import check_output, formatted, write_output


@click.command("trend", epilog="Example: traceql trend fleet --by commit")
@click.argument("store", metavar="STORE")
@click.option("--by", default="run", show_default=True, metavar="NAME",
              help="Group runs by run, commit, date (the day), host, model or a label.")  # fmt: skip
@click.option("--only", type=Label(), multiple=True, metavar="NAME=PATTERN",
              help="Only runs whose run, commit, date, host, model or label matches, e.g. run='*/before'. May be "
              "repeated.")  # fmt: skip
@click.option("--stage", type=click.Choice(["decode", "prefill", "mixed"]),
              help="Only steps of this stage. [default: decode, else the commonest]")  # fmt: skip
@click.option("--batch-size", type=click.IntRange(min=0), metavar="N",
              help="Only steps of this batch size. [default: that of most runs]")  # fmt: skip
@click.option("--min-effect", type=Percent(), default="1%", show_default=True, metavar="PCT",
              help="The smallest change of the step that matters.")  # fmt: skip
@click.option(
    "--fail-on-regression", is_flag=True, help="Exit with 1 when the last one is slower than what it is compared with."
)
@output_options()
@click.pass_context
def command(
    context: click.Context,
    *,
    store: str,
    by: str,
    only: tuple[tuple[str, str], ...],
    stage: str | None,
    batch_size: int | None,
    min_effect: float,
    fail_on_regression: bool,
    form: str | None,
    output: Path | None,
    force: bool,
) -> None:
    """Step times of a store's runs in order of date, and which changes are real.

    STORE is a folder or URL that traceql ingest filled. Each group of runs is compared with the last one before it of
    the same GPU, engine, model and number of ranks, as traceql diff compares two recordings: complete steps of one
    stage and batch size, the same interval, and `cannot tell` where steps vary too much or are too few.
    """
    form = output_form(form, output)
    check_output(output, force=force, is_binary=form == "parquet", source=Path(store))

    from traceql.analyses.trend import TrendOptions, trend  # noqa: PLC0415 - polars: only when it is used
    from traceql.fleet.store import Store  # noqa: PLC0415
    from traceql.fleet.trends import run_steps, runs_of  # noqa: PLC0415
    from traceql.report import trend_document, trend_page  # noqa: PLC0415

    opened = Store.open(store)
    steps = run_steps(opened, by, only)
    found = trend(steps, TrendOptions(stage, batch_size, min_effect), runs=runs_of(opened, only))
    result = formatted(
        form,
        to_file=output is not None,
        page=lambda: trend_page.trend_page(found, by),
        table=lambda: found.groups,
        document=lambda: trend_document.to_json(found, by),
    )
    write_output(result, output)
    if fail_on_regression and found.groups["verdict"].tail(1).eq("slower").any():
        context.exit(1)
