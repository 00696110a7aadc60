"""`traceql merge`: the ranks of a run as one trace."""

from typing import TYPE_CHECKING

import click

from traceql.cli.loading import load_files
from traceql.cli.output import write_blocks
from traceql.cli.progress import read_progress
from traceql.cli.windows import Source, part_options, say_faults, say_written, takes_source
from traceql.errors import MissingDataError

if TYPE_CHECKING:
    from traceql.slicing.merge import Merged, RankClock


@click.command("merge", epilog="Example: traceql merge traces/ --step 5 -o all.json.gz")
@takes_source(part_options)
def command(source: Source) -> None:
    """The ranks of a run as one trace on one clock, for the viewer.

    TRACE... are torch.profiler (Kineto, Chrome JSON) traces, plain or compressed: files, a folder or a pattern.
    Clocks are aligned by the files' absolute times and, where the ends of collectives show more, by these; how
    well, is said. Processes are named after their rank; nothing is left out. The window options take the same part
    of each rank, steps by its own numbers. The result can be read with traceql again, as a run of these ranks.
    """
    from traceql.ingest.ranks import in_words  # noqa: PLC0415
    from traceql.run import merged  # noqa: PLC0415 - polars: only when it is used
    from traceql.slicing.document import packed  # noqa: PLC0415
    from traceql.slicing.merge import Merged, merge  # noqa: PLC0415

    files, notes = load_files(source.traces, source.loading)
    if missing := set(source.ranks) - {file.rank for file in files}:
        raise MissingDataError(
            f"there is no rank {in_words(missing)}", f"The ranks are {in_words(file.rank for file in files)}."
        )
    files = [file for file in files if not source.ranks or file.rank in source.ranks]
    if len(files) < 2:
        raise MissingDataError(
            "one trace is no run to merge", "Name the files of several ranks; traceql slice takes a part of one."
        )
    run = merged(files, notes)
    written = Merged()
    with read_progress(f"merging {len(files)} files") as progress:
        blocks = merge(files, run, source.wish, written, progress=progress)
        n_bytes = write_blocks(packed(blocks, source.output), source.output)
    say_written(written, [f"ranks {in_words(file.rank for file in files)}"], source.output, n_bytes)
    _say_clocks(written)
    say_faults(run.quirks)


def _say_clocks(written: "Merged") -> None:
    for rank, reason in written.left_out.items():
        click.echo(f"rank {rank}: left out: {reason}", err=True)
    for clock in written.clocks[1:]:
        click.echo(f"rank {clock.rank}: {_told(clock)}", err=True)


def _told(clock: "RankClock") -> str:
    from traceql import fmt  # noqa: PLC0415

    if clock.spread_ns is None:
        return "placed by the times recorded alone; no collective tells whether its clock agrees"
    spread = f"± {fmt.duration(round(clock.spread_ns))} over {fmt.plural(clock.n_collectives, 'collective')}"
    drift = f", drifting {fmt.duration(round(clock.drift_ns))} to either end" if round(clock.drift_ns) else ""
    if not clock.correction_ns:
        return f"its clock agrees with that of the first rank, {spread}"
    ahead = "ahead" if clock.correction_ns > 0 else "behind"
    return f"its clock was {fmt.duration(abs(clock.correction_ns))} {ahead}, {spread}{drift}; moved"
