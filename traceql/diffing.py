"""`traceql.diff`: two sides, each of files, traces or recordings, to a comparison."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from msgspec import structs

from traceql.analyses import diff as comparing
from traceql.analyses.diff import Diff
from traceql.analyses.diff_sides import DiffOptions
from traceql.analyses.recording import SUFFIX, Recording
from traceql.errors import MissingDataError
from traceql.ingest.trace_files import trace_files
from traceql.loading import Loading
from traceql.run import as_run, only_ranks, run_files
from traceql.trace import Trace

if TYPE_CHECKING:
    from traceql.capture.manifest import Manifest

PathLike = str | Path
Source = PathLike | Sequence[PathLike] | Trace | Recording
"""One recording: a file, a folder or a pattern, the files of a run, a baseline file, or what was loaded of them."""

_ZIP = b"PK\x03\x04"


@dataclass(frozen=True)
class Reading(Loading):
    """How traces are read, as for `traceql.load_run`, and which ranks of them count."""

    ranks: tuple[int, ...] = ()
    """Only these; none is all."""


def diff(
    before: Source | Sequence[Trace | Recording],
    after: Source | Sequence[Trace | Recording],
    options: DiffOptions | None = None,
    *,
    reading: Reading | None = None,
) -> Diff:
    """What changed from one side to the other: whether it is real, and where it comes from.

    Args:
        before: a trace file, a folder or pattern (a run), a baseline file; a sequence of paths (the ranks of one run);
            a `Trace` or `Recording`, or several of these: recordings of the same setting, which tell more.
        after: the same for the other side.
        options: which steps are compared, and the smallest effect that matters.
        reading: how files are read.

    Raises:
        InputError: a file is no trace, and no baseline.
        MissingDataError: a side has no complete step, or none that the options select.
    """
    reading = reading or Reading()
    a, b = ([recording(source, reading) for source in _sources(side)] for side in (before, after))
    return comparing.diff(a, b, options)


def _sources(side: "Source | Sequence[Trace | Recording]") -> "Sequence[Source]":
    """The recordings of a side: one, unless it is a sequence of what is loaded."""
    if isinstance(side, str | Path | Trace | Recording):
        return [side]
    loaded = [each for each in side if isinstance(each, Trace | Recording)]
    return loaded or [[each for each in side if isinstance(each, str | Path)]]


def recording(source: Source, reading: Reading | None = None) -> Recording:
    """What comparing needs of one recording; with the control runs of a capture's manifest beside its files.

    Raises:
        InputError: a file is no trace, and no baseline.
    """
    reading = reading or Reading()
    if isinstance(source, Recording):
        return source
    if isinstance(source, Trace):
        return Recording.of(source)
    paths = [source] if isinstance(source, str | Path) else list(source)
    if len(paths) == 1 and is_baseline(Path(paths[0])):
        return _of_ranks(Recording.load(Path(paths[0])), reading.ranks)
    trace = as_run(*run_files(paths, reading))
    trace = only_ranks(trace, reading.ranks) if reading.ranks else trace
    return with_controls(Recording.of(trace), [file.path for file in trace_files(paths)])


def are_one_run(found: Sequence[Recording]) -> bool:
    """Whether recordings are no repetitions of each other but, each of other ranks than the rest, parts of one run."""
    ranks = [set(each.steps["rank"]) for each in found]
    return len(found) > 1 and all(ranks) and sum(map(len, ranks)) == len(set[int]().union(*ranks))


def _of_ranks(found: Recording, ranks: Sequence[int]) -> Recording:
    """The recording with these ranks only; no rank named is all.

    Raises:
        MissingDataError: it has none of them.
    """
    if not ranks:
        return found
    chosen = found.only(pl.col("rank").is_in([*ranks]))
    if chosen.steps.is_empty():
        here = ", ".join(map(str, found.steps["rank"].unique().sort()))
        raise MissingDataError(f"{found.facts.name} has no rank {', '.join(map(str, ranks))}", f"It has {here}.")
    return chosen


def is_baseline(path: Path) -> bool:
    """Whether a file is a baseline by its content, or should be one by its name."""
    if path.name.endswith(SUFFIX):
        return True
    with suppress(OSError, ValueError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(len(_ZIP)) == _ZIP
    return False


def with_controls(found: Recording, files: Sequence[Path]) -> Recording:
    """The recording with the unprofiled step of the capture that made its files, where its manifest is there."""
    pace = control_pace(files)
    if pace is None:
        return found
    facts = structs.replace(found.facts, control_step_ns=pace.step_ns, control_tokens_per_s=pace.tokens_per_s)
    return replace(found, facts=facts)


@dataclass(frozen=True)
class ControlPace:
    """The pace of a server without the profiler, mean of the control runs before and after it was recorded."""

    step_ns: float
    tokens_per_s: float


def control_pace(files: Sequence[Path]) -> ControlPace | None:
    """The unprofiled pace of the capture that made these files; None where no manifest of theirs is beside them."""
    from traceql.capture.manifest import capture_of  # noqa: PLC0415 - few traces come from a capture

    captures = (capture_of(file) for file in files)
    return next((pace for found in captures if found and (pace := pace_of(found[1]))), None)


def pace_of(manifest: "Manifest") -> ControlPace | None:
    """The unprofiled pace that a capture measured; None with --no-baseline."""
    paces = [pace for pace in (manifest.control_before, manifest.control_after) if pace]
    if not paces:
        return None
    step_ns = sum(pace.step_ns for pace in paces) / len(paces)
    return ControlPace(step_ns, sum(pace.tokens_per_s for pace in paces) / len(paces))
