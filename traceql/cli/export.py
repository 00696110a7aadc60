"""`traceql export`: every table as a file, for other tools."""

import functools
from pathlib import Path

import click

from traceql.cli.folder import check_folder, whole_folder
from traceql.cli.output import write_page
from traceql.cli.progress import count_progress
from traceql.cli.request import TraceRequest, takes_traces


@click.command("export", epilog="Example: traceql export trace.json.gz -o tables/ --format parquet")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="DIR", required=True,
              help="The folder to make; it appears whole or not at all.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["parquet", "csv", "arrow"]), default="parquet",
              show_default=True, help="Form of the files.")  # fmt: skip
@click.option("--tables", "names", multiple=True, metavar="A,B",
              help="Only these tables; may be given several times. [default: all of `traceql tables`]")  # fmt: skip
@takes_traces("Replace an earlier export; take files of different jobs together.")
def command(request: TraceRequest, *, output: Path, form: str, names: tuple[str, ...]) -> None:
    """The tables of a trace or run, and every result, as files: one a table, and schema.json.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Several, a folder or a pattern are the ranks of a run. schema.json says what each column is, its unit, why a table
    is empty or a column null, and the version of all that; a Parquet file has its part in its metadata. --steps and
    --stage hold for results that go by steps. docs/export.md has more.
    """
    from traceql.ingest.trace_files import trace_files  # noqa: PLC0415 - polars: only when it is used
    from traceql.report import export_page, table_files  # noqa: PLC0415

    chosen = table_files.chosen_tables([name.strip() for part in names for name in part.split(",") if name.strip()])
    is_there = output.is_dir() and any(output.iterdir())
    sources = [file.path for file in trace_files(request.traces)] if is_there else []
    check_folder(output, force=request.loading.force, is_own=table_files.is_export, sources=sources)
    trace = request.trace()
    write = functools.partial(table_files.write_tables, trace, names=chosen, form=form)
    with count_progress("writing", len(chosen)) as progress, whole_folder(output) as folder:
        written = write(folder=folder, selection=request.selection(), progress=progress)
    write_page(export_page.export_page(output, written))
