"""What the commands that write traces share: the options that choose a window, and what is said of the file."""

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceql.cli.loading import Loading, check_run_output
from traceql.cli.options import (
    Decorator,
    Duration,
    StepRange,
    TimeRange,
    combine,
    load_options,
    rank_option,
    run_argument,
)
from traceql.errors import OutputError

if TYPE_CHECKING:
    from traceql.ingest.quirks import Quirk
    from traceql.slicing.cut import Written
    from traceql.slicing.window import Wish

SUFFIXES = (".json", ".json.gz", ".json.zst")
"""How the name of a file that is written may end."""

_TOLD = (
    "illegal-escape", "control-character", "non-utf8", "non-finite-number", "odd-arguments", "no-common-clock",
    "missing-rank", "rank-by-order", "mixed-jobs", "other-times",
)  # fmt: skip
"""Oddities of the source that the file that is written shares, or does not."""

part_options = combine(
    click.option("--step", "--steps", "steps", type=StepRange(), default=(None, None), metavar="A:B",
                 help="Only steps A to B - 1; A alone is one step, A: and :B leave one end open."),
    click.option("--stage", type=click.Choice(["decode", "prefill", "mixed"]),
                 help="Only steps of this stage."),
    click.option("--layer", type=click.IntRange(min=0), metavar="N",
                 help="Only layer N of these steps, as `traceql layers` counts them."),
    click.option("--time", type=TimeRange(), metavar="A:B",
                 help="Only from A to B since the first event, such as 10ms:12.5ms; 10ms: and :1s leave one end "
                      "open. Units: ns, us, ms, s."),
)  # fmt: skip
"""Which part of each rank."""

window_options = combine(
    part_options,
    click.option("--around", metavar="KERNEL",
                 help="Only around the longest GPU activity with KERNEL in its name: literally, case and all, in the "
                      "name as recorded or as traceql shows it."),
    click.option("--occurrence", type=click.IntRange(min=1), metavar="N",
                 help="With --around: the N-th of them in order of start, not the longest."),
    click.option("--margin", type=Duration(), metavar="TIME",
                 help="With --around: how much before and after it. [default: 1ms]"),
)  # fmt: skip

_target_options = combine(
    click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
                 help="Write to FILE: .json, .json.gz or .json.zst. [default: JSON to standard output]"),
    click.option("--force", is_flag=True, help="Overwrite FILE; take files of different jobs together."),
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """What is read, what is wanted of it, and where it goes: the common options."""

    traces: tuple[Path, ...]
    ranks: tuple[int, ...]
    wish: "Wish | None"
    """None: all of it."""
    output: Path | None
    loading: Loading


def takes_source(windows: Decorator) -> Decorator:
    """Gives a command the options that choose a window, those that all commands on traces have, and their `Source`.

    Args:
        windows: the options that choose a window.
    """

    def decorate(function: Callable[[Source], Any]) -> Callable[..., Any]:
        @functools.wraps(function)
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
        ) -> Any:
            wish = wish_of(**window)
            _check_target(output, traces, force=force)
            return function(Source(traces, ranks, wish, output, Loading(force, categories, not no_cache, strict)))

        return combine(run_argument(), windows, rank_option, _target_options, load_options)(command)

    return decorate


def wish_of(
    *,
    steps: tuple[int | None, int | None],
    stage: str | None,
    around: str | None = None,
    occurrence: int | None = None,
    margin: int | None = None,
    **others: Any,
) -> "Wish | None":
    """What the window options ask for; None when nothing is said, so that all is wanted.

    Raises:
        click.UsageError: options that need another one.
    """
    if around is None and (occurrence is not None or margin is not None):
        raise click.UsageError("--occurrence and --margin need --around.")
    if around is not None and not around.strip():
        raise click.UsageError("--around needs a part of a kernel's name.")

    from traceql.analyses.summary import Selection  # noqa: PLC0415 - polars: only when it is used
    from traceql.slicing.window import Wish  # noqa: PLC0415

    margins = {} if margin is None else {"margin_ns": margin}
    wish = Wish(Selection(*steps, stage), around=around, occurrence=occurrence, **margins, **others)
    return None if wish == Wish() else wish


def _check_target(output: Path | None, traces: Sequence[Path], *, force: bool) -> None:
    """Finds out before the work whether the trace may be written.

    Raises:
        OutputError: as `check_run_output`, or the name does not say how to pack it.
    """
    if output is not None and not output.name.lower().endswith(SUFFIXES):
        raise OutputError(f"{output.name} does not say how to pack the trace", f"End it in {', '.join(SUFFIXES)}.")
    if output is None and sys.stdout.isatty():
        raise OutputError("a trace is long, and not for a terminal", "Name a file with -o FILE, or use a pipe.")
    check_run_output(output, traces, force=force, is_binary=False)


def say_written(written: "Written", words: Sequence[str], output: Path | None, n_bytes: int) -> None:
    """Says on standard error what was written: events, window, extra tracks, bytes."""
    from traceql import fmt  # noqa: PLC0415

    of_all = f"{fmt.count(written.n_events)} of {fmt.plural(written.n_source, 'event')}"
    click.echo(": ".join((", ".join(words), of_all)) if words else of_all, err=True)
    if written.n_tracks:
        slices = f"{fmt.plural(written.n_moved, 'slice')} that {'overlaps' if written.n_moved == 1 else 'overlap'}"
        others = f"another put on {fmt.plural(written.n_tracks, 'extra track')}"
        click.echo(f"{slices} {others}: viewers drop what does not nest", err=True)
    if written.n_renumbered:
        threads = fmt.plural(written.n_renumbered, "thread")
        click.echo(f"{threads} renumbered: Perfetto takes the number, as recorded, for another thread's", err=True)
    unpacked = f", {fmt.size(written.json_bytes)} of JSON" if n_bytes != written.json_bytes else ""
    click.echo(f"wrote {output or 'standard output'} ({fmt.size(n_bytes)}{unpacked})", err=True)


def say_faults(quirks: "Sequence[Quirk]") -> None:
    """Says on standard error what of the source is lost, or had to be mended and so is not as it stands there."""
    for quirk in quirks:
        if quirk.effect == "lost" or quirk.id in _TOLD:
            click.echo(f"source: {quirk.text} ({quirk.count})", err=True)
