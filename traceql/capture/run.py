"""A capture from its beginning to its manifest."""

import datetime
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import traceql
from traceql.capture.client import Client
from traceql.capture.errors import CaptureError, printable
from traceql.capture.manifest import (
    Manifest,
    Pace,
    Probe,
    Profile,
    Server,
    Workload,
    write_manifest,
)
from traceql.capture.patching import Patching, applied_patches, check_names, patch_environment
from traceql.capture.preflight import (
    Command,
    installation,
    make_folder,
    model_config,
    refuse_backend,
    refuse_full_disk,
    refuse_workload,
    server_arguments,
    server_facts,
)
from traceql.capture.profile import Plan, margin_for, record, steps_decoded, with_margin
from traceql.capture.recorder import record_by_patch, recording_options
from traceql.capture.server import Server as Process
from traceql.capture.server import refuse_used_port, running_server, wait_until_ready
from traceql.capture.session import Progress, Session, Verify, answer_tokens
from traceql.capture.workload import PROBE_TOKENS, mean_step_ns, pace, probe

CONTROL_STEPS = 64
"""Decode steps of a control run."""
CONTROL_SKIP = 8
"""Of them not counted: the batch is still being put together."""
DEFAULT_VOCAB = 10_000
"""Prompts use token ids below it where the model's vocabulary is not known."""
LOG = "server.log"
TRACES = "traces"
REPORTS = "patches"

ENGINE_ENVIRONMENT = {
    "SGLANG_PROFILE_V2": "0",
    "SGLANG_PROFILE_WITH_STACK": "true",
    "SGLANG_PROFILE_RECORD_SHAPES": "true",
    "PYTHONUNBUFFERED": "1",
}
"""For a server of our own: its settings must not overrule what the profile request says."""


@dataclass(frozen=True)
class Settings:
    """What to capture."""

    out: Path
    command: tuple[str, ...] = ()
    """Starts the server; empty: attach to `url`."""
    url: str | None = None
    api_key: str | None = None
    n_steps: int = 30
    warmup_steps: int = 20
    batch_size: int = 8
    prompt_tokens: int = 4096
    min_prompt_tokens: int | None = None
    shared_prefix_tokens: int = 0
    seed: int = 0
    stage: str = "decode"
    with_stack: bool = False
    record_shapes: bool = True
    patching: Patching = field(default_factory=Patching)
    with_baseline: bool = True
    start_timeout_s: float = 600.0
    request_timeout_s: float = 600.0
    trace_timeout_s: float = 300.0
    force: bool = False

    @property
    def plan(self) -> Plan:
        """What to record."""
        return Plan(
            n_steps=self.n_steps,
            warmup_steps=self.warmup_steps,
            stage=self.stage,
            with_stack=self.with_stack,
            record_shapes=self.record_shapes,
            folder=self.out / TRACES,
            timeout_s=self.trace_timeout_s,
        )


def capture(settings: Settings, verify: Verify, progress: Progress) -> Manifest:
    """Makes the traces and the manifest that stands beside them.

    Args:
        settings: what to capture.
        verify: reads a trace and says what it holds.
        progress: told how far it is.

    A server that was started is ended, with all its processes, whatever happens; one that ran already goes on.

    Raises:
        CaptureError: the server does not start, fails, or does not do what is asked.
        OutputError: the folder cannot be written.
        TraceqlError: a trace is damaged.
    """
    settings = replace(settings, patching=recording_options(settings.patching, settings.plan))
    check_names(settings.patching)
    if settings.patching.names and not settings.command:
        raise CaptureError("a server that runs already cannot be patched", "Give the command that starts it, after --.")
    make_folder(settings.out, force=settings.force)
    with ExitStack() as stack:
        process = stack.enter_context(_server(settings, progress)) if settings.command else None
        url = settings.url if process is None else Command(settings.command).url
        client = stack.enter_context(Client(url or "", api_key=_key(settings), timeout_s=settings.request_timeout_s))
        if process is not None:
            wait_until_ready(process, client.is_ready, timeout_s=settings.start_timeout_s, waiting=progress.wait)
            progress.say("the server is ready")
        with _deaths_told(process):
            manifest = _captured(settings, client, verify, progress)
        path = write_manifest(manifest, settings.out)
        progress.say(f"wrote {path}")
        if process is not None:
            progress.wait("ending the server")
    return manifest


@contextmanager
def _deaths_told(process: Process | None) -> Generator[None]:
    """A failure of a server that has ended is told as its end, with its log."""
    try:
        yield
    except CaptureError as error:
        if process is not None and process.has_ended():
            raise process.death(f"({error.message})") from error
        raise


def _key(settings: Settings) -> str | None:
    return settings.api_key or Command(settings.command).option("api-key")


@contextmanager
def _server(settings: Settings, progress: Progress) -> Generator[Process]:
    """The server of a command, started, after all that can be said against it without starting it."""
    command = Command(settings.command)
    refuse_backend(command.facts(), command.model_config())
    refuse_used_port(*command.address)
    environment = dict(ENGINE_ENVIRONMENT)
    if settings.patching.names:
        found = installation(settings.command, environment)
        environment |= patch_environment(settings.patching, found, settings.out / REPORTS)
        progress.say(f"sglang {printable(found.version)} can be patched: {', '.join(settings.patching.names)}")
    log = settings.out / LOG
    progress.say(f"starting the server; its log is {log}")
    with running_server(settings.command, environment, log) as server:
        yield server


def _captured(settings: Settings, client: Client, verify: Verify, progress: Progress) -> Manifest:
    info, model = client.server_info(), client.model_info()
    server = server_facts(info, model)
    config = model_config(server.model or "")
    refuse_backend(info, config)
    plan = settings.plan
    longest = max(steps_decoded(plan), CONTROL_STEPS, PROBE_TOKENS)
    refuse_workload(server, settings.batch_size, settings.prompt_tokens, answer_tokens(server, longest))
    refuse_full_disk(settings.out, server.n_ranks)
    progress.say(describe(server))
    patches = applied_patches(settings.patching, settings.out / REPORTS, server.n_ranks)
    workload = Workload(
        batch_size=settings.batch_size,
        prompt_tokens=settings.prompt_tokens,
        min_prompt_tokens=settings.min_prompt_tokens,
        shared_prefix_tokens=settings.shared_prefix_tokens,
        seed=settings.seed,
        vocab_size=_vocabulary(config),
    )
    runs = _runs(settings, Session(client, server, workload, verify, progress))
    return Manifest(
        traceql_version=traceql.__version__,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=Command(settings.command).blanked() or None,
        server=server,
        server_args=server_arguments(info),
        patches=applied_patches(settings.patching, settings.out / REPORTS, server.n_ranks) or patches,
        workload=workload,
        probe=runs.probe,
        control_before=runs.before,
        control_after=runs.after,
        profile=runs.profile,
        problems=runs.problems,
    )


@dataclass(frozen=True)
class _Runs:
    probe: Probe
    before: Pace | None
    after: Pace | None
    profile: Profile
    problems: tuple[str, ...]


def _runs(settings: Settings, session: Session) -> _Runs:
    """All requests, in order. A patch that records takes the first decode steps, so its only control run is after."""
    plan, reports, say = settings.plan, settings.out / REPORTS, session.progress.say
    early = record_by_patch(session, plan, reports) if settings.patching.is_recording else None
    session.progress.wait("warming up")
    warm = session.decode(settings.warmup_steps)
    answers = probe(session.client, session.workload)
    say("warmed up, greedy probe taken")
    before = _control(session, "before") if settings.with_baseline and not early else None
    plan = with_margin(session, plan, margin_for(mean_step_ns(warm)))
    profile, problems = early or record(session, plan)
    say(f"recorded {plan.n_steps} steps, a trace for each of {len(profile.files)} rank(s)")
    after = _control(session, "after") if settings.with_baseline else None
    return _Runs(answers, before, after, profile, problems)


def describe(server: Server) -> str:
    """What serves, in a line."""
    parts = (
        f"sglang {server.version}",
        server.model and Path(server.model).name,
        server.attention_backend and f"attention {server.attention_backend}",
        server.kv_cache_dtype and f"KV {server.kv_cache_dtype}",
        server.max_total_tokens and f"pool of {server.max_total_tokens:,} tokens",
        f"{server.n_ranks} ranks" if server.n_ranks > 1 else None,
        {True: "CUDA graphs", False: "eager", None: None}[server.is_graph],
    )
    return printable(", ".join(part for part in parts if part))


def _vocabulary(config: dict[str, Any]) -> int:
    size = config.get("vocab_size")
    return min(size, DEFAULT_VOCAB) if isinstance(size, int) and size > 100 else DEFAULT_VOCAB


def _control(session: Session, when: str) -> Pace:
    """The pace without profiler."""
    session.progress.wait(f"control run {when} the recording")
    found = pace(session.decode(CONTROL_STEPS), session.workload, CONTROL_SKIP)
    session.progress.say(
        f"control run {when}: {found.tokens_per_s:,.1f} tokens/s, {found.step_ns / 1e6:,.2f} ms a step"
    )
    return found
