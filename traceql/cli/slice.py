"""`traceql slice`: a window of a trace as a small trace of its own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from traceql.cli.loading import load_files, readable_twice
from traceql.cli.output import write_blocks
from traceql.cli.progress import read_progress
from traceql.cli.windows import Source, say_faults, say_written, takes_source, window_options
from traceql.errors import MissingDataError

if TYPE_CHECKING:
    from traceql.run import RunFile


@click.command("slice", epilog="Example: traceql slice trace.json.gz --step 5 -o step5.json.gz")
@takes_source(window_options)
def command(source: Source) -> None:
    """A window of a trace as a small trace of its own, for the viewer or a colleague.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Of several, a folder or a pattern (the ranks of a run) choose one with --rank; `traceql merge` takes all.
    Kept are the window's GPU activities, their launches, the operators and Python frames around these, what the
    host did in the meantime, arrows with both ends, and all metadata: each event as it stands in TRACE, to the
    byte. Only what viewers would drop or mix up moves to a track of its own: slices that overlap, and threads with
    odd numbers. The options narrow each other.
    """
    if source.wish is None:
        raise click.UsageError("name a window: --step, --stage, --layer, --time or --around.")

    from traceql.run import only_ranks  # noqa: PLC0415 - polars: only when it is used
    from traceql.slicing.cut import Written, cut  # noqa: PLC0415
    from traceql.slicing.document import packed  # noqa: PLC0415
    from traceql.slicing.window import find_window  # noqa: PLC0415

    written = Written()
    with readable_twice(source.traces) as paths:
        files, _ = load_files(paths, source.loading)
        file = _chosen(files, source.ranks)
        trace = only_ranks(file.trace, source.ranks) if source.ranks and len(files) == 1 else file.trace
        found = find_window(trace, source.wish)
        with read_progress(f"cutting {file.path.name}") as progress:
            blocks = cut(file.path, trace, found, written, progress=progress)
            n_bytes = write_blocks(packed(blocks, source.output), source.output)
    say_written(written, found.words, source.output, n_bytes)
    say_faults(trace.quirks)


def _chosen(files: "Sequence[RunFile]", ranks: Sequence[int]) -> "RunFile":
    """The one file to cut from.

    Raises:
        MissingDataError: it is not said which, or there is none of that rank.
    """
    from traceql.ingest.ranks import in_words  # noqa: PLC0415

    if len(files) == 1:
        return files[0]
    known = f"The ranks are {in_words(file.rank for file in files)}."
    if len(set(ranks)) != 1:
        raise MissingDataError(
            f"a slice is of one rank, and {len(set(ranks)) or len(files)} are named",
            f"Choose one with --rank N, or take all with traceql merge. {known}",
        )
    found = next((file for file in files if file.rank == ranks[0]), None)
    if found is None:
        raise MissingDataError(f"there is no rank {ranks[0]}", known)
    return found
