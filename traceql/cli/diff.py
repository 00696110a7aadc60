"""`traceql diff`: what changed between two recordings, whether it is real, and why."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceql.cli.html_files import write_diff_report
from traceql.cli.loading import check_run_output
from traceql.cli.options import FORMATS, Percent, StepRange, load_options, output_form, output_options, rank_option
from traceql.cli.output import formatted, write_output
from traceql.cli.progress import read_progress

if TYPE_CHECKING:
    from traceql.analyses.diff import Diff
    from traceql.analyses.diff_gates import Gate, Judgement
    from traceql.analyses.recording import Recording
    from traceql.diffing import Reading

TOP = 15
"""Rows of a long table on a page, unless told otherwise."""
SIDES = ("--before", "--after")
FORMS = {**FORMATS, "junit": ".xml", "github": None}


class DiffCommand(click.Command):
    """A command whose options --before and --after take all that follows, up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses `--before A1 A2` as `--before A1 --before A2`."""
        return super().parse_args(ctx, spread(args))


def spread(args: Sequence[str]) -> list[str]:
    """The arguments with --before and --after in front of each of their values."""
    side: str | None = None
    found: list[str] = []
    for number, arg in enumerate(args):
        if arg == "--":
            return [*found, *args[number:]]
        if arg in SIDES:
            if number + 1 == len(args) or args[number + 1].startswith("-"):
                raise click.UsageError(f"{arg} needs at least one trace.")
            side = arg
        elif arg.startswith("-") and arg != "-":
            side = None
            found.append(arg)
        else:
            found += [side, arg] if side else [arg]
    return found


class GateType(click.ParamType["Gate"]):
    """A limit such as `5%` of the median step, or (`named`) one of a category such as `cast:+1ms`."""

    def __init__(self, name: str, *, named: bool) -> None:
        self.name = name
        self._named = named

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "Gate":
        """The gate that the text says."""
        from traceql.analyses.diff_gates import Gate  # noqa: PLC0415 - polars: only when it is used

        if isinstance(value, Gate):
            return value
        try:
            return Gate.parse_named(str(value)) if self._named else Gate.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("diff", cls=DiffCommand, epilog="Example: traceql diff before.json.gz after.json.gz --by kernel")
@click.argument("traces", nargs=-1, metavar="[BEFORE] AFTER", type=click.Path(path_type=Path))
@click.option("--before", "befores", type=click.Path(path_type=Path), multiple=True, metavar="TRACE...",
              help="Several recordings of the same setting, or the ranks of one, instead of BEFORE.")  # fmt: skip
@click.option("--after", "afters", type=click.Path(path_type=Path), multiple=True, metavar="TRACE...",
              help="The same, instead of AFTER.")  # fmt: skip
@click.option("--baseline", "baselines", multiple=True, metavar="NAME",
              help="Compare with this, saved by traceql baseline, instead of BEFORE.")  # fmt: skip
@click.option("--by", type=click.Choice(["category", "kernel", "layer", "replacement", "collective", "step"]),
              help="Only this table. csv and parquet hold one table [default: category], json always all.")  # fmt: skip
@click.option("--layer", type=click.IntRange(min=0), metavar="N", help="The kernels of this layer side by side.")
@click.option("--stage", type=click.Choice(["decode", "prefill", "mixed"]),
              help="Only steps of this stage. [default: decode, else the commonest of both]")  # fmt: skip
@click.option("--steps", type=StepRange(), default=(None, None), metavar="A:B",
              help="Only steps A to B - 1; A: and :B leave one end open.")  # fmt: skip
@click.option("--batch-size", type=click.IntRange(min=0), metavar="N",
              help="Only steps of this batch size. [default: the commonest of both]")  # fmt: skip
@rank_option
@click.option("--min-effect", type=Percent(), default="1%", show_default=True, metavar="PCT",
              help="The smallest change of the step that matters.")  # fmt: skip
@click.option("--fail-on-regression", "step_gate", type=GateType("PCT", named=False), metavar="PCT",
              help="Exit with 1 when the median step surely grew by more, e.g. 5%.")  # fmt: skip
@click.option("--fail-on", "gates", type=GateType("NAME:+LIMIT", named=True), multiple=True, metavar="NAME:+LIMIT",
              help="The same for a category or for idle, e.g. cast:+1ms or idle:+5%; may be repeated.")  # fmt: skip
@click.option("--top", type=click.IntRange(min=1), metavar="N",
              help=f"Longest tables to N rows. [default: {TOP} in table and markdown, else all]")  # fmt: skip
@click.option("--full-names", is_flag=True, help="Kernel names never cut.")
@click.option("--html", type=click.Path(path_type=Path), metavar="PAGE",
              help="Also write the page for the browser to this file.")  # fmt: skip
@output_options(FORMS)
@load_options
@click.pass_context
def command(
    context: click.Context,
    *,
    traces: tuple[Path, ...],
    befores: tuple[Path, ...],
    afters: tuple[Path, ...],
    baselines: tuple[str, ...],
    by: str | None,
    layer: int | None,
    stage: str | None,
    steps: tuple[int | None, int | None],
    batch_size: int | None,
    ranks: tuple[int, ...],
    min_effect: float,
    step_gate: "Gate | None",
    gates: "tuple[Gate, ...]",
    top: int | None,
    full_names: bool,
    html: Path | None,
    form: str | None,
    output: Path | None,
    force: bool,
    categories: Path | None,
    no_cache: bool,
    strict: bool,
) -> None:
    """What changed between two recordings, whether it is real, and where it comes from.

    BEFORE and AFTER are each a torch.profiler trace, or a folder or quoted pattern with those of all ranks of a job,
    or a baseline file. Compared are complete steps of one stage and batch size. What cannot be told from noise is
    said to be so; what the host or a slower rank hides is named. Exit status: 0 fine, 1 a gate failed (--fail-on...),
    2 could not run.
    """
    if by is not None and layer is not None:
        raise click.UsageError("--by and --layer exclude each other.")
    form = output_form(form, output, FORMS)
    if layer is not None and form in ("csv", "parquet"):
        raise click.UsageError("--layer is for table and markdown.")
    sides = _sides(traces, befores, afters, baselines)
    check_run_output(output, [*sides[0], *sides[1]], force=force, is_binary=form == "parquet")
    if html is not None:
        check_run_output(html, [*sides[0], *sides[1]], force=force, is_binary=False)

    from traceql.analyses.diff import diff  # noqa: PLC0415 - polars: only when it is used
    from traceql.analyses.diff_gates import judged  # noqa: PLC0415
    from traceql.analyses.diff_sides import DiffOptions  # noqa: PLC0415
    from traceql.diffing import Reading  # noqa: PLC0415
    from traceql.report import diff_document, diff_page  # noqa: PLC0415
    from traceql.report.diff_formats import FORMATS as WRITERS  # noqa: PLC0415

    reading = Reading(force, categories, not no_cache, strict, ranks=ranks)
    before, after = (_recordings(side, reading) for side in sides)
    found = diff(before, after, DiffOptions(stage, batch_size, *steps, min_effect))
    judgements = [judged(found, gate) for gate in ((step_gate,) if step_gate else ()) + gates]
    _check_names(found, judgements, categories)
    shown = top or (TOP if form in ("table", "markdown") else None)
    view = diff_page.DiffView(by, shown, full_names, layer)
    result = formatted(
        "json" if form in WRITERS else form,
        to_file=output is not None,
        page=lambda: diff_page.diff_page(found, view, judgements),
        table=lambda: diff_document.table_of(found, by or "category", top),
        document=lambda: (
            WRITERS[form](found, judgements) if form in WRITERS else diff_document.to_json(found, top, judgements)
        ),
    )
    write_output(result, output)
    if html is not None:
        write_diff_report(found, html, gates=judgements, categories=categories)
    context.exit(int(any(judgement.is_failed for judgement in judgements)))


def _sides(
    traces: Sequence[Path], befores: Sequence[Path], afters: Sequence[Path], baselines: Sequence[str]
) -> tuple[list[Path], list[Path]]:
    """The recordings of both sides: positional ones go to the side that no option names."""
    from traceql.cli.baseline import baseline_path  # noqa: PLC0415 - most comparisons name none

    before = [*map(baseline_path, baselines), *befores]
    after, free = list(afters), list(traces)
    if not before and free:
        before.append(free.pop(0))
    if not after and free:
        after.append(free.pop(0))
    if free or not before or not after:
        raise click.UsageError(
            "Name BEFORE and AFTER, one each; several recordings a side with --before A1 A2 --after B1 B2, the ranks "
            "of a run with a folder or a quoted pattern."
        )
    return before, after


def _recordings(paths: Sequence[Path], reading: "Reading") -> "list[Recording]":
    """What is compared of each path of a side; of all as one where they turn out to be the ranks of a run."""
    from traceql.diffing import are_one_run, is_baseline  # noqa: PLC0415 - polars: only when it is used

    found = [_recording([path], reading) for path in paths]
    if not are_one_run(found) or any(map(is_baseline, paths)):
        return found
    return [_recording(paths, reading)]


def _recording(paths: Sequence[Path], reading: "Reading") -> "Recording":
    """What is compared of a file, folder or pattern, or of the files of a run, with progress on a terminal."""
    from traceql.diffing import recording  # noqa: PLC0415 - polars: only when it is used

    with read_progress(f"reading {paths[0].name}") as progress:
        return recording(paths, replace(reading, progress=progress))


def _check_names(found: "Diff", judgements: "Sequence[Judgement]", categories: Path | None) -> None:
    """Refuses a gate of a category that there is not: it could never fail."""
    if not judgements:
        return
    from traceql.analyses.diff_gates import IDLE, STEP  # noqa: PLC0415
    from traceql.categories import load_categories  # noqa: PLC0415

    known = {
        STEP,
        IDLE,
        *found.waterfall.filter(kind="category")["name"],
        *(each.name for each in load_categories(categories).categories),
    }
    for judgement in judgements:
        if judgement.gate.name not in known:
            raise click.BadParameter(
                f"there is no category {judgement.gate.name!r}; there are {', '.join(sorted(known - {STEP}))}",
                param_hint="--fail-on",
            )
