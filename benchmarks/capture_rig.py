"""`traceql capture` for a GPU machine that has no polars: captures there, and finishes the manifests at home.

    python benchmarks/capture_rig.py record --out OUT/before [options of traceql capture sglang] -- COMMAND
    python benchmarks/capture_rig.py finish OUT/before OUT/after

`record` checks a trace as far as the standard library can. `finish` reads it as traceql does, fills in the length of
its steps and, given two captures, compares them. benchmarks/capture_rig.md has the commands for the rig.
"""

import gzip
import re
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from traceql.capture.compare import compare_probes
from traceql.capture.manifest import Manifest, read_manifest, write_manifest
from traceql.capture.profile import Plan, made_profile
from traceql.capture.run import TRACES, capture
from traceql.capture.server import ending_on_signals
from traceql.capture.session import TraceFacts
from traceql.cli.capture import capture_options, make_settings, trace_facts
from traceql.cli.capture_page import comparison_page as page
from traceql.cli.capture_progress import told_progress
from traceql.cli.output import write_page
from traceql.errors import InputError, TraceqlError

STEP = re.compile(rb'"cat": "user_annotation", "name": "step\[(DECODE|EXTEND|MIXED)[^"]*"')
"""A step's annotation as SGLang 0.5.11 and newer record it, on the host's side."""
STAGES = {b"DECODE": "decode", b"EXTEND": "prefill", b"MIXED": "mixed"}


def quick_facts(path: Path) -> TraceFacts:
    """What a trace holds, as far as a look at its text can tell.

    Raises:
        InputError: it is cut off or damaged.
    """
    try:
        text = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    found = STEP.findall(text)
    head = text[:20_000]
    return TraceFacts(
        n_steps=len(found),
        stages=tuple(sorted({STAGES[stage] for stage in found})),
        method="annotation" if found else None,
        step_ns=None,
        with_stack=b'"with_stack": 1' in head,
        record_shapes=b'"record_shapes": 1' in head,
        gpu=None,
    )


def finished(folder: Path) -> Manifest:
    """The manifest of a capture with what its traces say, written back."""
    manifest = read_manifest(folder)
    asked = manifest.profile
    plan = Plan(
        n_steps=asked.n_steps,
        warmup_steps=asked.warmup_steps,
        stage=asked.stage,
        with_stack=asked.with_stack,
        record_shapes=asked.record_shapes,
        folder=folder / TRACES,
        timeout_s=0,
    )
    found = [(folder / file.path, trace_facts(folder / file.path)) for file in asked.files]
    profile, problems = made_profile(found, plan, n_attempts=asked.n_attempts, by=asked.by)
    whole = msgspec.structs.replace(manifest, profile=profile, problems=problems)
    write_manifest(whole, folder)
    return whole


@click.group()
def main() -> None:
    """Captures on a GPU machine, and finishes them at home."""


@main.command()
@capture_options
def record(server_command: tuple[str, ...], **options: Any) -> None:
    """As traceql capture sglang, without its pages."""
    settings = make_settings(server_command, None, options)
    try:
        with ending_on_signals(), told_progress() as progress:
            manifest = capture(settings, quick_facts, progress)
    except TraceqlError as error:
        sys.exit(f"error: {error}")
    print(*manifest.problems, sep="\n", end="\n" if manifest.problems else "")


@main.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
def finish(folders: tuple[Path, ...]) -> None:
    """Reads the traces; of two captures, before and after, shows the difference."""
    manifests = [finished(folder) for folder in folders]
    for problem in (problem for manifest in manifests for problem in manifest.problems):
        print(problem, file=sys.stderr)
    if len(manifests) == 2:
        before, after = manifests
        write_page(page(before, after, compare_probes(before, after)))


if __name__ == "__main__":
    main()
