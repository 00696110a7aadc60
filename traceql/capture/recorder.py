"""Recording by the patch `profile-decode`: it counts decode steps in the server itself, the first ones it takes."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceql.capture.manifest import Profile
from traceql.capture.patching import RECORDER, Patching
from traceql.capture.profile import Plan, clear, made_profile, read_traces, steps_decoded, wait_for_files
from traceql.capture.session import Session
from traceql.errors import OutputError

OWN_WARMUP_STEPS = 10
"""Decode steps of the server's own first requests, at most: they count as warm-up steps of the patch too."""


def recording_options(patching: Patching, plan: Plan) -> Patching:
    """The patches, with the recorder told what to record; what was said by hand stays."""
    if not patching.is_recording:
        return patching
    told = {
        "warmup-steps": str(plan.warmup_steps + OWN_WARMUP_STEPS),
        "steps": str(plan.n_steps),
        "shapes": "on" if plan.record_shapes else "off",
        "stack": "on" if plan.with_stack else "off",
    }
    own = {**told, **patching.options.get(RECORDER, {})}
    return replace(patching, options={**patching.options, RECORDER: own})


def record_by_patch(session: Session, plan: Plan, reports: Path) -> tuple[Profile, tuple[str, ...]]:
    """Decodes until the patch has recorded, and takes over its traces. The profile, and what is not as asked for.

    Args:
        session: the server, which has decoded nothing yet but its own first requests.
        plan: what to record.
        reports: the folder that the patch writes to.

    Raises:
        CaptureError: it has not recorded all ranks.
        TraceqlError: a trace is damaged.
    """
    clear(plan.folder)
    session.progress.wait(f"recording {plan.n_steps} steps by {RECORDER}")
    session.decode(OWN_WARMUP_STEPS + steps_decoded(plan))
    files = wait_for_files(reports, session.server.n_ranks, plan.timeout_s, session.progress)
    return made_profile(read_traces(session, _moved(files, plan.folder)), plan, by=RECORDER)


def _moved(files: Sequence[Path], folder: Path) -> list[Path]:
    try:
        return [Path(shutil.move(path, folder / path.name)) for path in files]
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror}", "Use another folder with --out.") from error
