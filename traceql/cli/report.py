"""`traceql report`: one page that opens in any browser, offline, with all that traceql has to say about a trace."""

import contextlib
import re
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceql.cli.loading import Loading, check_run_output, load_traces
from traceql.cli.options import load_options, rank_option, run_argument, step_options
from traceql.cli.output import write_output
from traceql.errors import OutputError

if TYPE_CHECKING:
    from traceql.analyses.summary import Selection
    from traceql.report.html import Assets
    from traceql.trace import Trace

_SUFFIXES = re.compile(r"(\.pt)?(\.trace)?\.json(\.(gz|zst|xz))?$", re.IGNORECASE)


@click.command("report", epilog="Example: traceql report trace.json.gz -o report.html --open")
@run_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
              help="The page. [default: the name of TRACE with .html, in this folder]")  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@click.option("--title", metavar="TEXT", help="Title of the page. [default: from the name of TRACE]")
@click.option("--assets", type=click.Choice(["inline", "cdn", "directory"]), default="inline", show_default=True,
              help="Scripts in the page (one file, works offline), the plotting library from a public host, or all in "
              "a folder beside the page.")  # fmt: skip
@step_options
@rank_option
@click.option("--force", is_flag=True, help="Overwrite FILE; take files of different jobs together.")
@load_options
def command(
    *,
    traces: tuple[Path, ...],
    output: Path | None,
    opens: bool,
    title: str | None,
    assets: "Assets",
    steps: tuple[int | None, int | None],
    stage: str | None,
    ranks: tuple[int, ...],
    force: bool,
    categories: Path | None,
    no_cache: bool,
    strict: bool,
) -> None:
    """One page that opens in any browser, offline: steps, layers, kernels, casts, idle time and findings.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Several, a folder or a pattern are the ranks of a run (--force: even if they look like different jobs).
    The page asks no host for anything unless --assets cdn is given. Its path and size are printed at the end.
    """
    output = output or default_output(traces)
    check_run_output(output, traces, force=force, is_binary=False)
    check_folder(output, assets, force=force)

    from traceql.analyses.summary import Selection  # noqa: PLC0415 - polars: only when it is used

    trace = load_traces(traces, ranks, Loading(force, categories, not no_cache, strict))
    write_report(trace, Selection(*steps, stage), output, title=title, assets=assets)
    if opens:
        click.launch(output.resolve().as_uri())


def default_output(traces: tuple[Path, ...]) -> Path:
    """A name in this folder after the first trace's: `trace.json.gz` gives `trace.html`."""
    name = traces[0].name if len(traces) == 1 else f"{traces[0].name} and {len(traces) - 1} more"
    stem = _SUFFIXES.sub("", name) if len(traces) == 1 else f"{_SUFFIXES.sub('', traces[0].name)}-run"
    stem = re.sub(r"[*?\[\]]+", "", stem).strip(" .-")
    return Path(f"{stem or 'report'}.html")


def assets_folder(output: Path) -> Path:
    """Where `--assets directory` puts scripts and style: beside the page, named after it."""
    return output.with_name(f"{output.stem}_assets")


def check_folder(output: Path, assets: "Assets", *, force: bool) -> None:
    """Finds out before the work whether the folder of the assets may be written.

    Raises:
        OutputError: it exists already, or is a file.
    """
    folder = assets_folder(output)
    if assets != "directory" or not folder.exists():
        return
    if not folder.is_dir():
        raise OutputError(f"{folder} is a file, but the folder of scripts and style", "Name another page.")
    if not force:
        raise OutputError(f"{folder} exists", "Overwrite it with --force, or name another page.")


def write_report(
    trace: "Trace",
    selection: "Selection | None",
    output: Path,
    *,
    title: str | None = None,
    assets: "Assets" = "inline",
) -> None:
    """Writes the page of a trace or run to a file and says so on standard error: path and size.

    Args:
        trace: the trace or run.
        selection: the steps to look at, else all.
        output: the file; what stands there is overwritten (see `check_run_output`).
        title: of the page.
        assets: where scripts and style go; for `directory` a folder beside the page.

    Raises:
        OutputError: it cannot be written; what stood there before is still there.
        MissingDataError: the selection names no step.
    """
    from traceql import fmt  # noqa: PLC0415
    from traceql.report.html import render_html  # noqa: PLC0415 - jinja2: only when it is used
    from traceql.report.trace_page import Material, trace_page  # noqa: PLC0415

    folder = assets_folder(output)
    with _working() as tell:
        material = Material.of(trace, selection, tell=tell)
        tell("page")
        rendered = render_html(trace_page(material, title), assets=assets, folder=folder.name)
    if rendered.files:
        _make_folder(folder)
    for name, data in rendered.files.items():
        write_output(data, folder / name)
    page = rendered.html.encode()
    write_output(page, output)
    beside = f" and {folder}" if rendered.files else ""
    click.echo(f"wrote {output} ({fmt.size(len(page))}){beside}", err=True)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be made: {error.strerror}", "Name another page.") from error


@contextlib.contextmanager
def _working() -> Generator[Callable[[str], None]]:
    """A function to tell what is being worked out; it is shown where standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415

    with Console(stderr=True).status("") as status:
        yield lambda what: status.update(f"working out {what}")
