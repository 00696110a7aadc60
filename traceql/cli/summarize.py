"""`traceql summarize`: where the time of each step goes."""

from pathlib import Path

import click

from traceql.cli.loading import Loading, check_run_output, load_traces
from traceql.cli.options import load_options, output_form, output_options, rank_option, run_argument, step_options
from traceql.cli.output import formatted, write_output

TOP = 15
"""Rows of a long table on a page; data has all of them."""
TOP_FINDINGS = 3


@click.command(
    "summarize",
    epilog="Example: traceql summarize trace.json.gz --stage decode --by kernel --top 30",
)
@run_argument
@step_options
@rank_option
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
    traces: tuple[Path, ...],
    steps: tuple[int | None, int | None],
    stage: str | None,
    ranks: tuple[int, ...],
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
    Several files, a folder or a pattern are a run: the ranks of one job.
    Printed are the step time and, by group, category and kernel, the milliseconds of a step that each takes.
    """
    form = output_form(form, output)
    check_run_output(output, traces, force=force, is_binary=form == "parquet")

    from traceql.analyses.layer_stats import layer_stats  # noqa: PLC0415
    from traceql.analyses.rank_stats import summarize_run  # noqa: PLC0415 - polars: only when it is used
    from traceql.analyses.summary import Selection  # noqa: PLC0415
    from traceql.report import export, sections  # noqa: PLC0415
    from traceql.report.remarks import remarks  # noqa: PLC0415
    from traceql.rules.top import top_findings  # noqa: PLC0415

    trace = load_traces(traces, ranks, Loading(force, categories, not no_cache, strict))
    summary = summarize_run(trace, Selection(*steps, stage))
    layers = layer_stats(trace, summary.selection)
    said = remarks(trace, summary, layers)
    found = top_findings(trace, summary.selection, TOP_FINDINGS if by is None or form == "json" else 0)
    view = sections.View(by, top or TOP, full_names, said, found)
    result = formatted(
        form,
        to_file=output is not None,
        page=lambda: sections.summary_page(summary, view),
        table=lambda: export.table_of(summary, by or "category", top),
        document=lambda: export.to_json(summary, top, said, findings=found, layer_types=layers.types),
    )
    write_output(result, output)
