"""Two arguments: the ranks of one run, or the two sides of a comparison. Their ranks tell: a run has each rank once."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceql.cli.loading import load_traces
from traceql.errors import InputError
from traceql.loading import Loading

if TYPE_CHECKING:
    from traceql.analyses.diff import Diff
    from traceql.analyses.recording import Recording
    from traceql.analyses.summary import Selection
    from traceql.trace import Trace


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
    from traceql.analyses.diff import diff  # noqa: PLC0415
    from traceql.analyses.diff_sides import DiffOptions  # noqa: PLC0415

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


def load_run(traces: Sequence[Path], ranks: Sequence[int], loading: Loading) -> "Trace":
    """The run of two files with different ranks; what speaks against that may speak for a comparison."""
    try:
        return load_traces(traces, ranks, loading)
    except InputError as error:
        raise InputError(error.message, f"{error.hint} For before and after say --diff.") from error
