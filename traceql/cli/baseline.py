"""`traceql baseline`: recordings kept in the project, to compare later ones with."""

import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from traceql import fmt
from traceql.cli.loading import load_traces
from traceql.cli.options import load_options, rank_option, run_argument
from traceql.errors import InputError, OutputError
from traceql.loading import Loading

FOLDER = Path(".traceql") / "baselines"
"""Where baselines are, below the folder in which the command runs."""
SUFFIX = ".traceql-baseline"
"""As `traceql.analyses.recording.SUFFIX`, which would import polars."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


@click.group("baseline", epilog="Example: traceql baseline save main before.json.gz")
def command() -> None:
    """Recordings kept to compare later ones with.

    A baseline is a file of some 20 to 100 kB in .traceql/baselines, which can be committed. It holds what each step's
    time went to, not the trace. `traceql diff --baseline NAME AFTER` compares with it.
    """


@command.command("save", epilog="Example: traceql baseline save main traces/ --force")
@click.argument("name")
@run_argument()
@click.option("--force", is_flag=True, help="Overwrite a baseline; take files of different jobs together.")
@rank_option
@load_options
def save(
    *,
    name: str,
    traces: tuple[Path, ...],
    force: bool,
    ranks: tuple[int, ...],
    categories: Path | None,
    no_cache: bool,
    strict: bool,
) -> None:
    """Keeps what comparing needs of a trace or run under a name.

    TRACE... as for the other commands: a file, or the files, folder or pattern of a run.
    """
    path = named(name)
    if path.exists() and not force:
        raise OutputError(f"the baseline {name} exists", "Overwrite it with --force, or choose another name.")

    from traceql.analyses.recording import Recording  # noqa: PLC0415 - polars: only when it is used
    from traceql.diffing import with_controls  # noqa: PLC0415
    from traceql.ingest.trace_files import trace_files  # noqa: PLC0415

    trace = load_traces(traces, ranks, Loading(force, categories, not no_cache, strict))
    recording = Recording.of(trace)
    if recording.steps.is_empty():
        raise InputError("the trace has no complete step to compare with", "Record more steps.")
    data = with_controls(recording, [file.path for file in trace_files(traces)]).to_bytes()
    _write(path, data)
    click.echo(f"saved {path} ({fmt.size(len(data))}, {fmt.plural(recording.steps.height, 'step')})")


@command.command("list", epilog="Example: traceql baseline list")
def show_all() -> None:
    """Lists the baselines of this folder."""
    paths = sorted(FOLDER.glob(f"*{SUFFIX}"))
    if not paths:
        click.echo(f"no baselines in {FOLDER}")
    for path in paths:
        name = path.name.removesuffix(SUFFIX)
        click.echo(f"{fmt.visible(name)}  {fmt.size(path.stat().st_size)}  {_summary(path)}")


@command.command("show", epilog="Example: traceql baseline show main")
@click.argument("name")
def show(*, name: str) -> None:
    """Prints what a baseline holds: facts, and steps by stage and batch size."""
    from traceql.analyses.recording import Recording  # noqa: PLC0415 - polars: only when it is used

    path = baseline_path(name)
    recording = Recording.load(path)
    facts = recording.facts
    lines = {
        "file": str(path),
        "trace": facts.name,
        "GPU": ", ".join(facts.gpus) or None,
        "engine": facts.engine,
        "PyTorch": facts.torch_version,
        "ranks": str(facts.n_ranks),
        "step without profiler": None if facts.control_step_ns is None else fmt.duration(facts.control_step_ns),
    }
    for title, text in lines.items():
        click.echo(f"{title:<22}{fmt.UNKNOWN if text is None else fmt.visible(text)}")
    for kind in _kinds(recording.steps.select("stage", "batch_size", "wall_ns").rows()):
        click.echo(kind)


@command.command("remove", epilog="Example: traceql baseline remove main")
@click.argument("name")
def remove(*, name: str) -> None:
    """Removes a baseline."""
    path = named(name)
    try:
        path.unlink()
    except FileNotFoundError as error:
        raise _no_such(name) from error
    except OSError as error:
        raise OutputError(f"{path} cannot be removed: {error.strerror}", "Check its permissions.") from error
    click.echo(f"removed {path}")


def named(name: str) -> Path:
    """The file of a baseline of that name, which need not exist.

    Raises:
        InputError: the name is more than letters, digits, dot, underscore and hyphen, so it might be a path.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{fmt.visible(name)!r} is no name for a baseline",
            "Use letters, digits, . _ and -, at most 100, beginning with a letter or digit.",
        )
    return FOLDER / f"{name}{SUFFIX}"


def baseline_path(name: str) -> Path:
    """The file of a baseline: given by its path, or by its name in this folder.

    Raises:
        InputError: there is none.
    """
    if (os.sep in name or name.endswith(SUFFIX)) and Path(name).is_file():
        return Path(name)
    path = named(name.removesuffix(SUFFIX))
    if not path.is_file():
        raise _no_such(name)
    return path


def _no_such(name: str) -> InputError:
    there = [path.name.removesuffix(SUFFIX) for path in sorted(FOLDER.glob(f"*{SUFFIX}"))]
    hint = f"There are {', '.join(map(fmt.visible, there))}." if there else f"There is none in {FOLDER}."
    return InputError(f"there is no baseline {fmt.visible(name)}", hint)


def _summary(path: Path) -> str:
    from traceql.analyses.recording import Recording  # noqa: PLC0415 - polars: only when it is used

    try:
        recording = Recording.load(path)
    except InputError:
        return "(damaged, or of another version)"
    kinds = _kinds(recording.steps.select("stage", "batch_size", "wall_ns").rows())
    return f"{fmt.visible(recording.facts.name)}: {'; '.join(kinds)}"


def _kinds(steps: Sequence[tuple[str, int | None, int]]) -> list[str]:
    """Steps by stage and batch size, with their median."""
    from statistics import median  # noqa: PLC0415 - slow to import

    walls: dict[tuple[str, int | None], list[int]] = {}
    for stage, batch, wall_ns in steps:
        walls.setdefault((stage, batch), []).append(wall_ns)
    return [
        f"{fmt.plural(len(found), f'{fmt.visible(stage)} step')}"
        f"{'' if batch is None else f' of batch {batch}'}, median {fmt.duration(median(found))}"
        for (stage, batch), found in sorted(walls.items(), key=str)
    ]


def _write(path: Path, data: bytes) -> None:
    """The whole file or nothing.

    Raises:
        OutputError: it cannot be written. What stood there before is still there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as file:
            part = Path(file.name)
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                part.chmod(0o644)
                part.replace(path)
            except BaseException:
                with suppress(OSError):
                    part.unlink()
                raise
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}", "Check the folder's permissions.") from error
