"""`traceql ingest`: many traces into a store."""

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceql import fmt
from traceql.cli.output import write_page
from traceql.cli.progress import read_progress

if TYPE_CHECKING:
    from traceql.fleet.ingesting import Engine, Report
    from traceql.fleet.manifest import Entry
    from traceql.report.page import Section

FAILED = 1
"""Exit status where a file could not be ingested, and others could."""
SHOWN = 20
"""Files that a page names."""
RUNS_SHOWN = 3
"""Runs that it names."""


class Label(click.ParamType[tuple[str, str]]):
    """`NAME=VALUE`."""

    name = "NAME=VALUE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """(name, value)."""
        name, sign, text = str(value).partition("=")
        if not sign:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


@click.command("ingest", epilog="Example: traceql ingest traces/ --to fleet --label commit=1a2b3c4")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--to", "store", required=True, metavar="STORE", help="Folder or URL of the store; made if need be.")
@click.option("--run", metavar="NAME",
              help="The run of these traces. {path} in it stands for the usual name, {name} for its last part, "
              "{folder} for that of the file's folder.  [default: {path}]")  # fmt: skip
@click.option("--label", "labels", type=Label(), multiple=True, metavar="NAME=VALUE",
              help="What is known of them: date, host, commit, model or anything else; goes before what a capture's "
              "manifest says. May be repeated.")  # fmt: skip
@click.option("--tables", multiple=True, metavar="NAME",
              help="Keep this table too, e.g. kernels or collectives (traceql tables). May be repeated.")  # fmt: skip
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True,
              help="Processes of this machine, or a Ray cluster (pip install 'traceql[ray]').")  # fmt: skip
@click.option("--address", metavar="HOST:PORT",
              help="The Ray cluster. [default: RAY_ADDRESS, else one of this machine alone]")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), metavar="N",
              help="Files at a time. [default: one a core, as far as memory goes]")  # fmt: skip
@click.option("--retries", type=click.IntRange(min=0), default=1, show_default=True, metavar="N",
              help="Further tries of a file whose worker died, or that could not be fetched.")  # fmt: skip
@click.option("--categories", type=click.Path(path_type=Path), metavar="FILE",
              help="Kernel categories of your own (YAML); they go before the built-in ones.")  # fmt: skip
@click.option("--strict", is_flag=True, help="A trace that cannot be read without loss has failed.")
def command(
    *,
    sources: tuple[str, ...],
    store: str,
    run: str | None,
    labels: tuple[tuple[str, str], ...],
    tables: tuple[str, ...],
    engine: str,
    address: str | None,
    jobs: int | None,
    retries: int,
    categories: Path | None,
    strict: bool,
) -> None:
    """Puts traces into a store, which traceql query and traceql trend take as one.

    SOURCE is a trace, a folder (with all below it), a pattern, or a URL (s3://, gs://, az://, https://, hf://).
    Traces of one recording are a run, named by its path: nightly/2026-01-31/before.
    Each file is in the store once: what is there is passed over, so an ingest that was stopped goes on where it was
    when it is repeated. A file that has changed, or was ingested by another version, takes the place of what was there.
    Files that cannot be read are named at the end, tried again by the next ingest, and make the exit status 1.
    """
    from traceql.fleet import ingesting  # noqa: PLC0415 - polars: only when it is used
    from traceql.fleet.sources import sources as found_in  # noqa: PLC0415

    options = ingesting.Options(tables, run, dict(labels), strict, categories)
    found = found_in(sources)
    chosen = _engine(engine, address, jobs, retries)
    with read_progress(f"ingesting {fmt.plural(len(found), 'file')}") as progress:
        report = ingesting.ingest(found, store, chosen, options, progress)
    write_page(_page(report, store))
    if report.failed:
        click.get_current_context().exit(FAILED)


def _engine(engine: str, address: str | None, jobs: int | None, retries: int) -> "Engine":
    from functools import partial  # noqa: PLC0415 - beside what it is for

    if engine == "ray":
        from traceql.fleet.on_ray import run_on_ray  # noqa: PLC0415

        return partial(run_on_ray, address=address, jobs=jobs, retries=retries)
    if address:
        raise click.UsageError("--address is of --engine ray.")
    from traceql.fleet.local import run_here  # noqa: PLC0415

    return partial(run_here, jobs=jobs, retries=retries)


def _page(report: "Report", store: str) -> "list[Section]":
    from traceql.report.page import Column, Section, TextTable  # noqa: PLC0415

    runs = {entry.run for entry in report.ingested}
    parts = [
        f"{len(report.ingested):,} of {fmt.plural(report.n_files, 'file')} ingested ({fmt.plural(len(runs), 'run')})",
        f"{report.n_known:,} there already" if report.n_known else "",
        f"{len(report.failed):,} failed" if report.failed else "",
    ]
    said = f"{fmt.visible(store)}: {', '.join(part for part in parts if part)}"
    sections = [Section(lines=(said, *_runs(report), *_remarks(report)))]
    if report.failed:
        rows = tuple(
            (_seen(failure.origin.location), fmt.visible(f"{failure.reason}. {failure.hint}".strip()))
            for failure in sorted(report.failed, key=lambda failure: failure.origin.location)[:SHOWN]
        )
        more = f"{len(report.failed) - SHOWN:,} more; " if len(report.failed) > SHOWN else ""
        note = f"{more}tried again by the next ingest; the table failures has them all"
        table = TextTable((Column("failed", fit="middle"), Column("why", fit="wrap")), rows)
        sections.append(Section("", (), table, (note,), is_warning=True))
    return sections


def _runs(report: "Report") -> list[str]:
    """The first runs that traces were ingested of: which name their files have got."""
    ranks = Counter(entry.run for entry in report.ingested)
    shown = [f"{fmt.visible(run)} ({fmt.plural(ranks[run], 'rank')})" for run in sorted(ranks)[:RUNS_SHOWN]]
    more = f" and {len(ranks) - RUNS_SHOWN:,} more" if len(ranks) > RUNS_SHOWN else ""
    return [f"runs: {', '.join(shown)}{more}"] if shown else []


def _remarks(report: "Report") -> list[str]:
    """What else happened, a line each."""
    from traceql import __version__  # noqa: PLC0415 - beside what it is for

    older = sorted({entry.recipe.traceql for entry in report.replaced} - {__version__})
    lines: list[str] = []
    if report.replaced:
        why = f"; some were of traceql {', '.join(older)}" if older else ""
        lines.append(f"replaced: {fmt.plural(len(report.replaced), 'trace')} that had been ingested otherwise{why}")
    if report.n_relabelled:
        lines.append(f"labelled anew: {fmt.plural(report.n_relabelled, 'trace')}")
    if damaged := [entry for entry in report.ingested if entry.n_lost]:
        names = ", ".join(_seen(entry.origin.location) for entry in damaged[:3])
        more = f" and {len(damaged) - 3:,} more" if len(damaged) > 3 else ""
        lines.append(f"damaged: {fmt.plural(len(damaged), 'trace')}, read as far as possible: {names}{more}")
    if report.copies:
        copies = fmt.plural(len(report.copies), "copy", "copies")
        lines.append(f"passed over: {copies} of files in the store: {_some(report.copies)}")
    if report.n_removed:
        files = fmt.plural(report.n_removed, "data file")
        lines.append(f"removed: {files} of traces since replaced, or of ingests that were stopped")
    return lines


def _some(copies: "list[tuple[str, Entry]]") -> str:
    shown = [f"{_seen(location)} (of {_seen(entry.origin.location)})" for location, entry in copies[:2]]
    return ", ".join(shown) + (f" and {len(copies) - 2:,} more" if len(copies) > 2 else "")


def _seen(location: str) -> str:
    """A location as the user sees it: below the working folder without that."""
    return fmt.visible(location.removeprefix(f"{os.path.realpath(Path.cwd())}/"))
