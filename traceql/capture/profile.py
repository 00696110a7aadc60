"""Recording exactly the steps asked for, on all ranks, and seeing that this is what was written.

Three habits of SGLang's profiler shape it. Releases before 0.5.23 stop one step early. A profile by stage is
overwritten by the next one, which the following prefill begins: so none is asked for, and the recording begins while
the full batch decodes. And the request returns when the recording begins: the files are waited for.
"""

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from traceql.capture.client import Client
from traceql.capture.errors import CaptureError, printable
from traceql.capture.manifest import Profile, TraceFile, sha256
from traceql.capture.preflight import longest_answer
from traceql.capture.session import Progress, Session, TraceFacts
from traceql.errors import OutputError, TraceqlError

FIRST_EXACT_RELEASE = (0, 5, 23)
"""From here on a profile has as many steps as asked for; 0.5.9 to 0.5.14 stop one step early."""
MARGIN_STEPS = 60
"""Steps decoded beyond those recorded, at least: the recording begins some steps after it was asked for."""
ARMING_S = 0.5
"""How long it may take until it begins; fast steps need a larger margin."""
FASTEST_STEP_NS = 250_000
"""No model decodes faster; times below it are of answers that a busy machine reads in bursts."""
LONGER = 4
"""By how many times the margin grows where it was too small."""
POLL_S = 0.2
STABLE_S = 1.0
"""A file that has not grown for this long is taken for finished; reading it shows whether it is."""
TRACE_SUFFIX = ".trace.json.gz"

STAGES = {"decode": True, "any": False}
"""Which steps may be recorded, and whether the recording waits until the batch decodes."""


@dataclass(frozen=True)
class Plan:
    """What to record."""

    n_steps: int
    warmup_steps: int
    stage: str
    with_stack: bool
    record_shapes: bool
    folder: Path
    """Where the traces go."""
    timeout_s: float
    """How long the files may take after the last step."""
    margin_steps: int = MARGIN_STEPS

    def request(self, n_steps: int) -> dict[str, object]:
        """The body of /start_profile."""
        return {
            "output_dir": str(self.folder.resolve()),
            "num_steps": n_steps,
            "activities": ["CPU", "GPU"],
            "with_stack": self.with_stack,
            "record_shapes": self.record_shapes,
            "profile_by_stage": False,
            "profile_prefix": self.stage,
        }


Found = list[tuple[Path, TraceFacts]]
"""Traces, by name, and what they hold."""


def steps_decoded(plan: Plan) -> int:
    """Steps that a request takes in a run that is recorded."""
    return plan.warmup_steps + plan.n_steps + plan.margin_steps


def with_margin(session: Session, plan: Plan, margin_steps: int) -> Plan:
    """The plan with that margin, or with the largest that the server has room for."""
    room = longest_answer(session.server, session.workload.batch_size, session.workload.prompt_tokens)
    if room is not None:
        steps = (room - 1) // (session.server.draft_tokens or 1)
        margin_steps = min(margin_steps, steps - plan.warmup_steps - plan.n_steps)
    return replace(plan, margin_steps=max(margin_steps, MARGIN_STEPS))


def margin_for(step_ns: int | None) -> int:
    """Steps that pass, at that pace, while the recording begins."""
    if step_ns is None:
        return MARGIN_STEPS
    return max(MARGIN_STEPS, round(ARMING_S * 1e9 / max(step_ns, FASTEST_STEP_NS)))


def record(session: Session, plan: Plan) -> tuple[Profile, tuple[str, ...]]:
    """Records the steps; once more where that began too late, and where their number was wrong.

    Returns:
        The profile, and what is not as asked for.

    Raises:
        CaptureError: no recording, or not of all ranks.
        TraceqlError: a trace is damaged.
    """
    extra = int(_release(session.server.version) < FIRST_EXACT_RELEASE)
    n_attempts, longer = 1, plan
    found, is_late = _recorded(session, plan, extra)
    if is_late:
        session.progress.say("the recording began too late: once more, with longer answers")
        n_attempts, longer = 2, with_margin(session, plan, plan.margin_steps * LONGER)
        found, _ = _recorded(session, longer, extra)
    if correction := _correction(found, plan):
        session.progress.say(f"recorded {found[0][1].n_steps} steps instead of {plan.n_steps}: once more")
        n_attempts += 1
        found, _ = _recorded(session, longer, extra + correction)
    return made_profile(found, plan, n_attempts=n_attempts)


def _correction(found: Found, plan: Plan) -> int:
    """By how many steps all ranks missed the number alike; 0 where they did not, or the steps were only guessed."""
    missing = {plan.n_steps - facts.n_steps for _, facts in found}
    is_sure = all(facts.method == "annotation" for _, facts in found)
    return missing.pop() if is_sure and len(missing) == 1 else 0


def _recorded(session: Session, plan: Plan, extra: int) -> tuple[Found, bool]:
    """The traces of one recording, and whether it was still going on when the batch had been decoded.

    Args:
        session: the server.
        plan: what to record.
        extra: how many steps more to ask for.
    """
    clear(plan.folder)
    session.progress.wait(f"recording {plan.n_steps} steps")
    starting = _Starting(session.client, plan.request(plan.n_steps + extra))
    try:
        if STAGES[plan.stage]:
            session.decode(steps_decoded(plan), (plan.warmup_steps + 1, starting.begin))  # a prefill yields a token too
        else:
            starting.begin()
            starting.end()
            session.decode(steps_decoded(plan))
        starting.end()
        is_late = len(traces_in(plan.folder)) < session.server.n_ranks  # else written before the last answer
        if is_late:
            session.client.stop_profile()
        files = wait_for_files(plan.folder, session.server.n_ranks, plan.timeout_s, session.progress)
    except BaseException:
        starting.give_up()
        raise
    return read_traces(session, files), is_late


def read_traces(session: Session, files: Sequence[Path]) -> Found:
    """The traces and what they hold.

    Raises:
        TraceqlError: one is damaged.
    """
    found = Found()
    for path in files:
        session.progress.wait(f"reading {printable(path.name)}")
        found.append((path, session.verify(path)))
    return found


def made_profile(
    found: Found, plan: Plan, *, n_attempts: int = 1, by: str = "engine"
) -> tuple[Profile, tuple[str, ...]]:
    """What the manifest says of a recording, and what is not as planned."""
    profile = Profile(
        n_steps=plan.n_steps,
        stage=plan.stage,
        warmup_steps=plan.warmup_steps,
        with_stack=plan.with_stack,
        record_shapes=plan.record_shapes,
        n_attempts=n_attempts,
        by=by,
        files=tuple(trace_file(path, facts, plan.folder.parent) for path, facts in found),
    )
    return profile, tuple(problem for path, facts in found for problem in problems(path.name, facts, plan))


class _Starting:
    """Starts the profiler from a thread of its own, while the main one reads the stream."""

    def __init__(self, client: Client, request: dict[str, object]) -> None:
        self._client = client
        self._request = request
        self._errors: list[TraceqlError] = []
        self._thread = threading.Thread(target=self._start, daemon=True)

    def _start(self) -> None:
        try:
            self._client.start_profile(self._request)
        except TraceqlError as error:
            self._errors.append(error)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Waits for it; raises what it raised."""
        if self._thread.ident is not None:
            self._thread.join()
        if self._errors:
            raise self._errors[0]

    def give_up(self) -> None:
        """Stops the profiler if we started it, so that a server that is not ours does not go on recording."""
        if self._thread.ident is None or self._errors:
            return
        stop = threading.Thread(target=self._client.stop_profile, daemon=True)
        stop.start()
        stop.join(STABLE_S)


def clear(folder: Path) -> None:
    """Makes a folder that is empty.

    Raises:
        OutputError: it cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            file.unlink()
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror}", "Use another folder with --out.") from error


def wait_for_files(folder: Path, n_ranks: int, timeout_s: float, progress: Progress) -> list[Path]:
    """The traces of all ranks, once none of them grows any more, sorted by name.

    Raises:
        CaptureError: they are not all there in time.
    """
    until = time.monotonic() + timeout_s
    sizes, since = dict[Path, int](), time.monotonic()
    while True:
        now = {path: path.stat().st_size for path in traces_in(folder)}
        if now != sizes:
            sizes, since = now, time.monotonic()
        if len(sizes) >= n_ranks and all(sizes.values()) and time.monotonic() - since >= STABLE_S:
            return list(sizes)
        if time.monotonic() >= until:
            raise _missing(folder, list(sizes), n_ranks, timeout_s)
        progress.wait(f"waiting for the traces: {len(sizes)} of {n_ranks}, {sum(sizes.values()) / 1e6:,.0f} MB")
        time.sleep(POLL_S)


def traces_in(folder: Path) -> list[Path]:
    """The traces in a folder, finished or not, sorted by name."""
    return sorted(folder.glob(f"*{TRACE_SUFFIX}"))


def _missing(folder: Path, files: Sequence[Path], n_ranks: int, timeout_s: float) -> CaptureError:
    ranks = {int(found[1]) for path in files if (found := re.search(r"-TP-(\d+)", path.name))}
    lacking = ", ".join(str(rank) for rank in range(n_ranks) if rank not in ranks)
    if not files:
        return CaptureError(
            f"no trace appeared in {folder} within {timeout_s:.0f} s",
            "The server must run on this machine and be allowed to write there; see its log. A long recording may "
            "need more: --trace-timeout SECONDS.",
        )
    return CaptureError(
        f"{len(files)} of {n_ranks} traces appeared in {folder} within {timeout_s:.0f} s; missing: rank {lacking}",
        "See the server's log. A long recording may need more: --trace-timeout SECONDS.",
    )


def trace_file(path: Path, facts: TraceFacts, folder: Path) -> TraceFile:
    """What the manifest says of a trace; its path is relative to the folder."""
    return TraceFile(
        path=path.relative_to(folder).as_posix(),
        n_bytes=path.stat().st_size,
        sha256=sha256(path),
        n_steps=facts.n_steps,
        step_ns=facts.step_ns,
        gpu=facts.gpu,
    )


def problems(name: str, facts: TraceFacts, plan: Plan) -> list[str]:
    """What a trace holds that is not as planned, in sentences."""
    name = printable(name)
    found: list[str] = []
    if facts.n_steps != plan.n_steps:
        found.append(f"{name} has {facts.n_steps} steps, not {plan.n_steps}.")
    others = [stage for stage in facts.stages if stage not in (plan.stage, "unknown")]
    if STAGES[plan.stage] and others:
        found.append(f"{name} has steps of another kind: {', '.join(others)}.")
    for option in ("with_stack", "record_shapes"):
        asked, got = getattr(plan, option), getattr(facts, option)
        if got is not None and got != asked:
            found.append(f"{name} was recorded with {option} {got}, not {asked}.")
    return found


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
