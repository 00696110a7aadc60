"""Pages for the browser as files: where they may go, and how they get there."""

import contextlib
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceql.cli.loading import check_run_output
from traceql.cli.output import write_output
from traceql.errors import OutputError

if TYPE_CHECKING:
    from traceql.analyses.diff import Diff
    from traceql.analyses.diff_gates import Judgement
    from traceql.analyses.summary import Selection
    from traceql.report.html import Assets, HtmlPage
    from traceql.trace import Trace


def check_page(output: Path, traces: Sequence[Path], assets: "Assets", *, force: bool) -> None:
    """Finds out before the work whether the page and its folder may be written.

    Raises:
        OutputError: as `check_run_output` and `_check_assets`.
    """
    check_run_output(output, traces, force=force, is_binary=False)
    _check_assets(output, assets, force=force)


def assets_folder(output: Path) -> Path:
    """Where `--assets directory` puts scripts and style: beside the page, named after it."""
    return output.with_name(f"{output.stem}_assets")


def _check_assets(output: Path, assets: "Assets", *, force: bool) -> None:
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
    from traceql.report.trace_material import Material  # noqa: PLC0415
    from traceql.report.trace_page import trace_page  # noqa: PLC0415

    with _working() as tell:
        material = Material.of(trace, selection, tell=tell)
        tell("page")
        page = trace_page(material, title)
    _write_page(page, output, assets)


def write_diff_report(
    diff: "Diff",
    output: Path,
    *,
    title: str | None = None,
    assets: "Assets" = "inline",
    gates: "Sequence[Judgement]" = (),
    categories: Path | None = None,
) -> None:
    """Writes the page of a comparison to a file and says so on standard error: path and size.

    Args:
        diff: the comparison.
        output: the file; what stands there is overwritten (see `check_run_output`).
        title: of the page.
        assets: where scripts and style go; for `directory` a folder beside the page.
        gates: what gates say of it.
        categories: kernel categories of one's own, for their colours.

    Raises:
        OutputError: it cannot be written; what stood there before is still there.
    """
    from traceql.categories import load_categories  # noqa: PLC0415
    from traceql.report.diff_html import Compared, diff_html  # noqa: PLC0415
    from traceql.report.figures.palette import palette  # noqa: PLC0415

    colors = palette(load_categories(categories).categories)
    _write_page(diff_html(Compared(diff, colors, gates), title), output, assets)


def _write_page(page: "HtmlPage", output: Path, assets: "Assets") -> None:
    from traceql import fmt  # noqa: PLC0415
    from traceql.report.html import render_html  # noqa: PLC0415 - jinja2: only when it is used

    folder = assets_folder(output)
    rendered = render_html(page, assets=assets, folder=folder.name)
    if rendered.files:
        _write_files(rendered.files, folder)
    data = rendered.html.encode()
    write_output(data, output)
    beside = f" and {folder}" if rendered.files else ""
    click.echo(f"wrote {output} ({fmt.size(len(data))}){beside}", err=True)


def _write_files(files: Mapping[str, bytes], folder: Path) -> None:
    _make_folder(folder)
    for name, data in files.items():
        write_output(data, folder / name)


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
