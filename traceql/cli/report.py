"""`traceql report`: one page that opens in any browser, offline, with all that traceql has to say about a trace.

Two arguments are the ranks of one run or the two sides of a comparison. Their ranks tell: a run has each rank once.
"""

import contextlib
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceql.cli.loading import Loading, check_run_output, load_traces
from traceql.cli.options import load_options, rank_option, run_argument, step_options
from traceql.cli.output import write_output
from traceql.errors import InputError, OutputError

if TYPE_CHECKING:
    from traceql.analyses.diff import Diff
    from traceql.analyses.diff_gates import Judgement
    from traceql.analyses.recording import Recording
    from traceql.analyses.summary import Selection
    from traceql.report.html import Assets, HtmlPage
    from traceql.trace import Trace

_SUFFIXES = re.compile(r"(\.pt)?(\.trace)?\.json(\.(gz|zst|xz))?$", re.IGNORECASE)


@click.command("report", epilog="Example: traceql report trace.json.gz -o report.html --open")
@run_argument()
@click.option("--diff/--run", "is_diff", default=None,
              help="Two TRACEs are BEFORE and AFTER, or one run. [default: a run if their ranks differ]")  # fmt: skip
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
    is_diff: bool | None,
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
    Two of the same rank, or two folders with the same ranks, are BEFORE and AFTER: the page says what changed.
    The page asks no host for anything unless --assets cdn is given. Its path and size are printed at the end.
    """
    loading = Loading(force, categories, not no_cache, strict)
    check_sides(traces, is_diff=is_diff)
    if output is not None:
        check_page(output, traces, assets, force=force)

    from traceql.analyses.summary import Selection  # noqa: PLC0415 - polars: only when it is used

    sides = read_sides(traces, loading) if len(traces) == 2 and is_diff is not False else None
    found = (
        compared(traces, sides, ranks, Selection(*steps, stage)) if sides and (is_diff or are_sides(sides)) else None
    )
    if output is None:
        output = default_output(traces, is_diff=found is not None)
        check_page(output, traces, assets, force=force)
    if found is not None:
        write_diff_report(found, output, title=title, assets=assets, categories=categories)
    else:
        trace = _load_run(traces, ranks, loading) if sides else load_traces(traces, ranks, loading)
        write_report(trace, Selection(*steps, stage), output, title=title, assets=assets)
    if opens:
        click.launch(output.resolve().as_uri())


def default_output(traces: tuple[Path, ...], *, is_diff: bool = False) -> Path:
    """A name in this folder after the first trace's: `trace.json.gz` gives `trace.html`."""
    first = _stem(traces[0])
    if is_diff:
        return Path(f"{first or 'before'}-to-{_stem(traces[-1]) or 'after'}.html")
    return Path(f"{first or 'report'}{'-run' if len(traces) > 1 and first else ''}.html")


def _stem(path: Path) -> str:
    """The name without what all traces end with, and without the signs of a pattern."""
    return re.sub(r"[*?\[\]]+", "", _SUFFIXES.sub("", path.name)).strip(" .-")


# --- two traces: ranks of a run, or before and after


def check_sides(traces: Sequence[Path], *, is_diff: bool | None) -> None:
    """Refuses a comparison of other than two.

    Raises:
        click.UsageError: `--diff` with one trace, or with several.
    """
    if is_diff and len(traces) != 2:
        raise click.UsageError(
            "--diff takes two: BEFORE and AFTER. Name the ranks of a side by their folder or a quoted pattern; "
            "traceql diff --html takes several recordings a side."
        )


def read_sides(traces: Sequence[Path], loading: Loading) -> "list[Trace | Recording]":
    """Each of two arguments by itself: a trace or run, or what a baseline file keeps."""
    from traceql.analyses.recording import Recording  # noqa: PLC0415 - polars: only when it is used
    from traceql.diffing import is_baseline  # noqa: PLC0415

    return [Recording.load(path) if is_baseline(path) else load_traces([path], (), loading) for path in traces]


def are_sides(read: "Sequence[Trace | Recording]") -> bool:
    """Whether two are before and after: they share a rank, so that they are no run; or one is a baseline.

    Raises:
        InputError: it cannot be told, since a file does not say its rank.
    """
    from traceql.ingest.ranks import found_ranks  # noqa: PLC0415
    from traceql.trace import Trace  # noqa: PLC0415

    metas = [meta for trace in read if isinstance(trace, Trace) for meta in trace.parts]
    if any(not isinstance(each, Trace) for each in read):
        return True
    try:
        found = found_ranks(
            [meta.name for meta in metas], [meta.rank for meta in metas], [meta.world_size for meta in metas]
        )
    except InputError:  # several files of one rank
        return True
    if any(note.id == "rank-by-order" for note in found.notes):
        names = " and ".join(meta.name for meta in metas[:2])
        raise InputError(
            f"{names} may be two ranks of a run, or before and after: they do not say their ranks",
            "Say --diff for before and after, or --run for the ranks of one run.",
        )
    return False


def compared(
    paths: Sequence[Path], read: "Sequence[Trace | Recording]", ranks: Sequence[int], selection: "Selection"
) -> "Diff":
    """The comparison of two sides, in the steps selected."""
    from traceql.analyses.diff import DiffOptions, diff  # noqa: PLC0415

    a, b = (_recording(path, each, ranks) for path, each in zip(paths, read, strict=True))
    return diff([a], [b], DiffOptions(selection.stage, None, selection.first_step, selection.end_step))


def _recording(path: Path, read: "Trace | Recording", ranks: Sequence[int]) -> "Recording":
    """What comparing needs of a side, with the control runs beside its files."""
    from traceql.analyses.recording import Recording  # noqa: PLC0415
    from traceql.diffing import with_controls  # noqa: PLC0415
    from traceql.ingest.trace_files import trace_files  # noqa: PLC0415
    from traceql.run import only_ranks  # noqa: PLC0415

    if isinstance(read, Recording):
        return read
    trace = only_ranks(read, ranks) if ranks else read
    return with_controls(Recording.of(trace), [file.path for file in trace_files([path])])


def _load_run(traces: Sequence[Path], ranks: Sequence[int], loading: Loading) -> "Trace":
    """The run of two files with different ranks; what speaks against that may speak for a comparison."""
    try:
        return load_traces(traces, ranks, loading)
    except InputError as error:
        raise InputError(error.message, f"{error.hint} For before and after say --diff.") from error


# --- where it goes


def check_page(output: Path, traces: Sequence[Path], assets: "Assets", *, force: bool) -> None:
    """Finds out before the work whether the page and its folder may be written.

    Raises:
        OutputError: as `check_run_output` and `check_folder`.
    """
    check_run_output(output, traces, force=force, is_binary=False)
    check_folder(output, assets, force=force)


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
