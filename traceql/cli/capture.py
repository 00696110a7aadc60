"""`traceql capture`: makes traces of an SGLang server, patched or not, and says what they show."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceql.cli.capture_progress import told_progress
from traceql.cli.options import combine
from traceql.cli.output import write_page
from traceql.errors import TraceqlError

if TYPE_CHECKING:
    from traceql.capture.manifest import Manifest
    from traceql.capture.run import Settings
    from traceql.capture.session import TraceFacts
    from traceql.report.page import Section

TOP = 15
TOP_FINDINGS = 3

capture_options = combine(
    click.argument("server_command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]"),
    click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR",
                 help="Folder for traces, log and manifest; made if missing."),
    click.option("--steps", "n_steps", type=click.IntRange(min=1), default=30, show_default=True, metavar="N",
                 help="Decode steps to record."),
    click.option("--warmup-steps", type=click.IntRange(min=1), default=20, show_default=True, metavar="N",
                 help="Decode steps of the same requests before the recording."),
    click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, metavar="N",
                 help="Requests at once."),
    click.option("--prompt-tokens", type=click.IntRange(min=1), default=4096, show_default=True, metavar="N",
                 help="Length of each prompt."),
    click.option("--min-prompt-tokens", type=click.IntRange(min=1), metavar="N",
                 help="Mixed lengths: the shortest prompt has N tokens, the longest --prompt-tokens."),
    click.option("--shared-prefix-tokens", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
                 help="First tokens that all prompts have in common, for a server with a radix cache."),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
                 help="Of the random prompts."),
    click.option("--stage", type=click.Choice(["decode", "any"]), default="decode", show_default=True,
                 help="decode: record while the full batch decodes; any: from the first prefill on."),
    click.option("--stack/--no-stack", "with_stack", default=False, show_default=True,
                 help="Record Python stacks: modules and layers, but a much slower host."),
    click.option("--shapes/--no-shapes", "record_shapes", default=True, show_default=True,
                 help="Record shapes of operators' inputs."),
    click.option("--patch", "patches", multiple=True, metavar="NAME",
                 help="Patch the server in memory; may be given several times. Known: traceql capture patches."),
    click.option("--patch-option", "patch_options", multiple=True, metavar="NAME.OPTION=VALUE",
                 help="A setting of a patch; may be given several times."),
    click.option("--baseline/--no-baseline", "with_baseline", default=True, show_default=True,
                 help="Control runs without profiler, before and after."),
    click.option("--api-key", envvar="TRACEQL_API_KEY", metavar="KEY",
                 help="Key of the server. [default: that of COMMAND, else TRACEQL_API_KEY]"),
    click.option("--start-timeout", "start_timeout_s", type=click.FloatRange(min=1), default=600, show_default=True,
                 metavar="SECONDS", help="How long the server may take to start."),
    click.option("--request-timeout", "request_timeout_s", type=click.FloatRange(min=1), default=600,
                 show_default=True, metavar="SECONDS", help="How long an answer may take to go on."),
    click.option("--trace-timeout", "trace_timeout_s", type=click.FloatRange(min=1), default=300, show_default=True,
                 metavar="SECONDS", help="How long the traces may take to be written."),
    click.option("--force", is_flag=True, help="Use DIR although it is not empty; its traces are removed."),
)  # fmt: skip


@click.group("capture", epilog="Example: traceql capture sglang --out run1 -- python -m sglang.launch_server ...")
def command() -> None:
    """Make traces of an SGLang server, patched or not. Needs pip install 'traceql[capture]'."""


@command.command("sglang", epilog="Example: traceql capture sglang --url http://127.0.0.1:30000 --out run1 --steps 30")
@capture_options
@click.option("--url", metavar="URL", help="Attach to a server that runs on this machine; it is not stopped.")
@click.pass_context
def sglang(context: click.Context, server_command: tuple[str, ...], url: str | None, **options: Any) -> None:
    """Record decode steps of an SGLang server, with its pace without profiler.

    COMMAND starts the server; it is ended at the end, with all its processes. Sent is one batch of random prompts,
    again and again: to warm up, for a control run, for the recording, and for a second control run. DIR then holds
    traces/ (a file for each rank), server.log and manifest.json (docs/capture.md). Exit status: 0 fine, 1 the traces
    are not as asked for, 2 no traces.
    """
    if bool(url) == bool(server_command):
        raise click.UsageError("Give either --url URL or, after --, the command that starts the server.")
    manifest = _capture(make_settings(server_command, url, options))
    from traceql.cli.capture_page import capture_page  # noqa: PLC0415 - only when it is used

    write_page([*capture_page(manifest), *_summary_page(options["out"])])
    context.exit(int(bool(manifest.problems)))


@command.command(
    "compare", epilog="Example: traceql capture compare --out fix -- python -m sglang.launch_server --model-path M"
)
@capture_options
@click.pass_context
def compare(context: click.Context, server_command: tuple[str, ...], **options: Any) -> None:
    """Capture the same server without and with patches, and compare.

    The captures are in DIR/before and DIR/after; the patch is gather-then-cast unless another is named. First it is
    shown whether both give the same tokens. Exit status: 0 fine, 1 other tokens or traces not as asked for,
    2 no traces.
    """
    if not server_command:
        raise click.UsageError("Give, after --, the command that starts the server.")
    from traceql.capture.compare import compare_probes  # noqa: PLC0415 - only when it is used
    from traceql.capture.patching import Patching, check_names  # noqa: PLC0415

    options["patches"] = options["patches"] or ("gather-then-cast",)
    after = make_settings(server_command, None, options)
    check_names(after.patching)
    first = _capture(replace(after, out=after.out / "before", patching=Patching()), "before: ")
    second = _capture(replace(after, out=after.out / "after"), "after: ")
    probes = compare_probes(first, second)
    from traceql.cli.capture_page import comparison_page  # noqa: PLC0415

    write_page(comparison_page(first, second, probes))
    show_diff(after.out)
    context.exit(int(not probes.is_equal or bool(first.problems or second.problems)))


def show_diff(out: Path) -> None:
    """The comparison of the traces of both servers: printed, and as the page diff.html."""
    from traceql.analyses.diff_sides import DiffOptions  # noqa: PLC0415 - polars: only when it is used
    from traceql.capture.run import TRACES  # noqa: PLC0415
    from traceql.cli.html_files import write_diff_report  # noqa: PLC0415
    from traceql.diffing import diff  # noqa: PLC0415
    from traceql.report.diff_page import DiffView, diff_page  # noqa: PLC0415

    try:
        found = diff(out / "before" / TRACES, out / "after" / TRACES, DiffOptions())
    except TraceqlError as error:  # what was captured is there all the same, and what is wrong with it is said above
        click.echo(f"the traces cannot be compared: {error.message}", err=True)
        return
    write_page(diff_page(found, DiffView(top=TOP)))
    write_diff_report(found, out / "diff.html")


@command.command("patches", epilog="Example: traceql capture patches")
def list_patches() -> None:
    """The patches of --patch: what each does, its options, and the releases it was tested with."""
    from traceql.capture.patches import patches  # noqa: PLC0415 - only when it is used
    from traceql.report.page import Column, Section, TextTable  # noqa: PLC0415

    columns = (Column("option"), Column("default"), Column("values"), Column("meaning", fit="wrap"))
    write_page(
        [
            Section(
                patch.name,
                lines=(patch.doc,),
                table=TextTable(
                    columns,
                    tuple((each.name, each.default, ", ".join(each.values), each.doc) for each in patch.options),
                )
                if patch.options
                else None,
                notes=(f"Tested with SGLang {', '.join(patch.releases)}.",),
            )
            for patch in patches()
        ]
    )


def make_settings(server_command: tuple[str, ...], url: str | None, options: dict[str, Any]) -> "Settings":
    """What to capture, from the values of `capture_options`."""
    from traceql.capture.patching import Patching  # noqa: PLC0415
    from traceql.capture.run import Settings  # noqa: PLC0415

    given = dict(options)
    for name in ("min_prompt_tokens", "shared_prefix_tokens"):
        if (given[name] or 0) > given["prompt_tokens"]:
            raise click.UsageError(f"--{name.replace('_', '-')} is more than --prompt-tokens.")
    patching = Patching(given.pop("patches"), patch_settings(given.pop("patch_options")))
    return Settings(command=server_command, url=url, patching=patching, **given)


def patch_settings(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """`NAME.OPTION=VALUE` texts as options by patch.

    Raises:
        click.UsageError: a text has another form.
    """
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        name, dot, option = place.partition(".")
        if not (name and dot and option and equals and value):
            raise click.UsageError(f"--patch-option {text!r}: write NAME.OPTION=VALUE.")
        found.setdefault(name, {})[option] = value
    return found


def _capture(settings: "Settings", prefix: str = "") -> "Manifest":
    from traceql.capture.run import capture  # noqa: PLC0415
    from traceql.capture.server import ending_on_signals  # noqa: PLC0415

    with ending_on_signals(), told_progress(prefix) as progress:
        return capture(settings, trace_facts, progress)


def trace_facts(path: Path) -> "TraceFacts":
    """What a trace holds, read whole.

    Raises:
        InputError: it is no trace, or damaged.
    """
    import traceql  # noqa: PLC0415 - polars: only when it is used
    from traceql.analyses.attribution import Attribution  # noqa: PLC0415
    from traceql.analyses.step_windows import complete_steps  # noqa: PLC0415
    from traceql.capture.session import TraceFacts  # noqa: PLC0415

    trace = traceql.load(path, strict=True)
    steps = Attribution.of(trace).steps
    complete = complete_steps(steps)
    return TraceFacts(
        n_steps=steps["step"].n_unique(),
        stages=tuple(steps["stage"].unique().sort()),
        method=steps["method"].first(),  # pyright: ignore[reportArgumentType] - a text or None
        step_ns=complete["wall_ns"].median(),  # pyright: ignore[reportArgumentType] - a number or None
        with_stack=trace.meta.with_stack,
        record_shapes=trace.meta.record_shapes,
        gpu=trace.meta.devices[0].name if trace.meta.devices else None,
    )


def _summary_page(out: Path) -> "list[Section]":
    """Where the time of the recorded steps goes, and the costliest findings."""
    from traceql.analyses.layer_stats import layer_stats  # noqa: PLC0415 - polars: only when it is used
    from traceql.analyses.rank_stats import summarize_run  # noqa: PLC0415
    from traceql.report.remarks import remarks  # noqa: PLC0415
    from traceql.report.summary_page import SummaryView, summary_page  # noqa: PLC0415
    from traceql.rules.top import top_findings  # noqa: PLC0415
    from traceql.run import load_run  # noqa: PLC0415

    trace = load_run([out / "traces"])
    summary = summarize_run(trace)
    said = remarks(trace, summary, layer_stats(trace, summary.selection))
    found = top_findings(trace, summary.selection, TOP_FINDINGS)
    return summary_page(summary, SummaryView(None, TOP, full_names=False, remarks=said, findings=found))
