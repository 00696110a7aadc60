"""`traceql merge`: the ranks of a run as one trace."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceql.cli.loading import Loading, load_files
from traceql.cli.options import load_options, rank_option, run_argument
from traceql.cli.output import write_blocks
from traceql.cli.progress import read_progress
from traceql.cli.windows import check_target, part_options, say_faults, say_written, target_options, wish_of
from traceql.errors import MissingDataError

if TYPE_CHECKING:
    from traceql.slicing.merge import Merged, RankClock


@click.command("merge", epilog="Example: traceql merge traces/ --step 5 -o all.json.gz")
@run_argument()
@part_options
@rank_option
@target_options
@load_options
def command(
    *,
    traces: tuple[Path, ...],
    ranks: tuple[int, ...],
    output: Path | None,
    force: bool,
    categories: Path | None,
    no_cache: bool,
    strict: bool,
    **window: Any,
) -> None:
    """The ranks of a run as one trace on one clock, for the viewer.

    TRACE... are torch.profiler (Kineto, Chrome JSON) traces, plain or compressed: files, a folder or a pattern.
    Clocks are aligned by the files' absolute times and, where the ends of collectives show more, by these; how
    well, is said. Processes are named after their rank; nothing is left out. The window options take the same part
    of each rank, steps by its own numbers. The result can be read with traceql again, as a run of these ranks.
    """
    wish = wish_of(**window)
    check_target(output, traces, force=force)

    from traceql.ingest.ranks import in_words  # noqa: PLC0415
    from traceql.run import merged  # noqa: PLC0415 - polars: only when it is used
    from traceql.slicing.document import packed  # noqa: PLC0415
    from traceql.slicing.merge import Merged, merge  # noqa: PLC0415

    files, notes = load_files(traces, Loading(force, categories, not no_cache, strict))
    if missing := set(ranks) - {file.rank for file in files}:
        raise MissingDataError(
            f"there is no rank {in_words(missing)}", f"The ranks are {in_words(file.rank for file in files)}."
        )
    files = [file for file in files if not ranks or file.rank in ranks]
    if len(files) < 2:
        raise MissingDataError(
            "one trace is no run to merge", "Name the files of several ranks; traceql slice takes a part of one."
        )
    run = merged(files, notes)
    written = Merged()
    with read_progress(f"merging {len(files)} files") as progress:
        n_bytes = write_blocks(packed(merge(files, run, wish, written, progress=progress), output), output)
    say_written(written, [f"ranks {in_words(file.rank for file in files)}"], output, n_bytes)
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
