"""Patches on a server that is about to start: do they fit, and did they arrive in every process that must have them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from traceql.capture import patches
from traceql.capture.errors import CaptureError, printable
from traceql.capture.manifest import AppliedPatch
from traceql.capture.patches import Report
from traceql.capture.preflight import Installation
from traceql.errors import OutputError

RECORDER = "profile-decode"
"""The patch that records by itself, in place of the engine's profiler."""
HOOK_STATES = ("applied", "refused")
"""States that the hook reports; all others are a patch's own."""


@dataclass(frozen=True)
class Patching:
    """The patches asked for: names, in order, and options by patch."""

    names: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])

    @property
    def is_recording(self) -> bool:
        """Whether a patch does what else the engine's profiler would."""
        return RECORDER in self.names


def check_names(patching: Patching) -> None:
    """Raises where a patch or an option is not known, or an option is for a patch that is not asked for.

    Raises:
        InputError: one is not known.
        CaptureError: the patch is not asked for.
    """
    if patching.options and not patching.names:
        raise CaptureError("options for a patch, but no patch", f"Add --patch {next(iter(patching.options))}.")
    patches.environment(patching.names, patching.options, Path())


def patch_environment(patching: Patching, found: Installation, folder: Path) -> dict[str, str]:
    """What to add to a server's environment, so that the patches reach each of its processes.

    Args:
        patching: what is asked for.
        found: the SGLang that will be started.
        folder: where the processes report and patches write; made here, and emptied of older reports.

    Raises:
        CaptureError: a patch does not fit this release: nothing is started.
        OutputError: the folder cannot be made.
    """
    if reasons := patches.check(patching.names, found.version, found.package_dir):
        raise CaptureError(
            "; ".join(reasons), "traceql capture patches says which releases each patch was tested with."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
    except OSError as error:
        raise OutputError(f"{folder} cannot be made: {error.strerror}", "Use another folder with --out.") from error
    return patches.environment(patching.names, patching.options, folder)


def applied_patches(patching: Patching, folder: Path, n_ranks: int) -> tuple[AppliedPatch, ...]:
    """The patches as the server's processes reported them.

    Raises:
        CaptureError: one was refused, or has not arrived in as many processes as there are ranks.
    """
    if not patching.names:
        return ()
    said = patches.reports(folder)
    return tuple(
        _applied(name, patching.options.get(name, {}), [each for each in said if each.patch == name], n_ranks)
        for name in patching.names
    )


def _applied(name: str, options: Mapping[str, str], said: Sequence[Report], n_ranks: int) -> AppliedPatch:
    if refused := next((report for report in said if report.state == "refused"), None):
        reasons = "; ".join(_texts(refused, "reasons")) or "no reason given"
        raise CaptureError(f"{name} was refused in the server: {printable(reasons)}", "See the server's log.")
    by_process: dict[int, set[str]] = {}
    for report in said:
        if report.state == "applied":
            by_process.setdefault(report.pid, set()).update(_texts(report, "functions"))
    functions = set[str]().union(*by_process.values())
    n_processes = sum(found == functions for found in by_process.values())
    if n_processes < n_ranks:
        raise CaptureError(
            f"{name} was applied in {n_processes} of {n_ranks} processes of the server",
            "Does the command that starts it keep PYTHONPATH? See the server's log.",
        )
    counts = Counter(report.state for report in said if report.state not in HOOK_STATES)
    return AppliedPatch(
        name=name,
        options=dict(options),
        functions=tuple(sorted(functions)),
        n_processes=n_processes,
        counts=dict(sorted(counts.items())),
    )


def _texts(report: Report, name: str) -> list[str]:
    value = report.facts.get(name)
    return [str(each) for each in cast("list[object]", value)] if isinstance(value, list) else []
