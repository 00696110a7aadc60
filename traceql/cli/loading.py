"""What all commands that read traces share: checking where the result goes, and loading with progress."""

import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceql.cli.output import check_output
from traceql.cli.progress import read_progress
from traceql.loading import Loading

if TYPE_CHECKING:
    from traceql.ingest.quirks import Quirk
    from traceql.run import RunFile
    from traceql.trace import Trace


def check_run_output(output: Path | None, traces: Sequence[Path], *, force: bool, is_binary: bool) -> None:
    """Finds out before the work whether its result may be written: no trace of the run is overwritten.

    Raises:
        OutputError: as `check_output`.
    """
    for trace in traces:
        check_output(output, force=force, is_binary=is_binary, source=trace)
    if output is not None and output.exists():
        from traceql.ingest.trace_files import trace_files  # noqa: PLC0415 - polars: only when it is used

        for file in trace_files(traces):
            check_output(output, force=force, is_binary=is_binary, source=file.path)


def load_traces(paths: Sequence[Path], ranks: Sequence[int], loading: Loading) -> "Trace":
    """The trace or run, with progress on a terminal; of a run the ranks named, or all."""
    from traceql.run import as_run, only_ranks  # noqa: PLC0415 - polars: only when it is used

    trace = as_run(*load_files(paths, loading))
    return only_ranks(trace, ranks) if ranks else trace


def load_files(paths: Sequence[Path], loading: Loading) -> "tuple[list[RunFile], list[Quirk]]":
    """The files of a run apart, each with its trace, and what is odd about the run; with progress on a terminal."""
    from traceql.run import run_files  # noqa: PLC0415 - polars: only when it is used

    if hasattr(signal, "siginterrupt"):  # not on Windows
        signal.siginterrupt(signal.SIGINT, True)  # else polars lets a wait for standard input go on after Ctrl-C
    what = paths[0].name if len(paths) == 1 else f"{len(paths)} files"
    with read_progress(f"reading {what}") as progress:
        return run_files(paths, replace(loading, progress=progress))


@contextlib.contextmanager
def readable_twice(paths: Sequence[Path]) -> Generator[list[Path]]:
    """The same paths, with a copy in a temporary file in place of standard input."""
    if Path("-") not in paths or len(paths) > 1 or sys.stdin.isatty():
        yield list(paths)
        return
    with tempfile.TemporaryDirectory(prefix="traceql-") as folder:
        copy = Path(folder) / "standard-input"
        with copy.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
        yield [copy]
