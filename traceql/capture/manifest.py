"""What a capture writes down beside its traces, `manifest.json`: how they were made, and the pace without profiler.

The fields are described here and in docs/capture.md. Null means unknown. Times are whole nanoseconds.
"""

import hashlib
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from traceql.errors import InputError, MissingDataError, OutputError

FORMAT_VERSION = 1
"""Raised whenever a field changes its meaning or goes; a new field alone does not raise it."""
NAME = "manifest.json"


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of every run: one batch of random prompts, the same ones each time."""

    batch_size: int
    prompt_tokens: int
    """Tokens of the longest prompt, the last."""
    seed: int
    vocab_size: int
    """Token ids are drawn below it."""
    min_prompt_tokens: int | None = None
    """Tokens of the shortest prompt, the first; the others lie evenly between. None: all are equally long."""
    shared_prefix_tokens: int = 0
    """Tokens at the start of a prompt that all prompts have in common."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the full batch decodes, by the times at which streamed tokens arrive."""

    n_steps: int
    n_tokens: int
    wall_ns: int
    """From the arrival of one step at all requests to that of another, n_steps later."""
    median_step_ns: int | None = None
    """Median time between two tokens of a request."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all requests a second."""
        return self.n_tokens * 1e9 / self.wall_ns

    @property
    def step_ns(self) -> float:
        """Mean length of a step."""
        return self.wall_ns / self.n_steps


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Greedy answers to fixed prompts: equal ones show that a patch changes no result."""

    prompt_tokens: tuple[int, ...]
    """Length of each prompt."""
    frequency_penalty: float
    """Keeps a model with dummy weights from repeating one token, which would prove nothing."""
    token_ids: tuple[tuple[int, ...], ...]
    """What was answered, per prompt."""
    top_logprobs: tuple[tuple[tuple[tuple[float, int], ...], ...], ...] | None = None
    """Per prompt and token the likeliest tokens: log-probability and token id. Null where not reported."""


class TraceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's trace."""

    path: str
    """Relative to the manifest."""
    n_bytes: int
    sha256: str
    n_steps: int
    """Steps found in it."""
    step_ns: float | None = None
    """Median wall of its complete steps, with the profiler on."""
    gpu: str | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of the profiler, and what it wrote."""

    n_steps: int
    """Steps asked for."""
    stage: str
    """decode: recorded while the full batch decodes; any: from the first prefill on."""
    warmup_steps: int
    """Decode steps of the same requests before the recording."""
    with_stack: bool
    record_shapes: bool
    n_attempts: int
    """More than 1: the first recording had another number of steps."""
    by: str = "engine"
    """engine: its own profiler endpoint; else the patch that records."""
    files: tuple[TraceFile, ...]

    @property
    def step_ns(self) -> float | None:
        """Median step of the slowest rank."""
        return max((file.step_ns for file in self.files if file.step_ns is not None), default=None)


class AppliedPatch(msgspec.Struct, frozen=True, kw_only=True):
    """A patch, as the server's processes reported it."""

    name: str
    options: dict[str, Any] = {}
    functions: tuple[str, ...] = ()
    """What was replaced."""
    n_processes: int
    """In how many of the server's processes."""
    counts: dict[str, int] = {}
    """What else the patch reported, and how often: batches that it left to the original path, for one."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a server that decide what its traces mean. All of its arguments are in `server_args`."""

    version: str
    model: str | None = None
    attention_backend: str | None = None
    """Of decode, where it differs from prefill."""
    kv_cache_dtype: str | None = None
    page_size: int | None = None
    max_total_tokens: int | None = None
    """Slots of the KV pool."""
    max_running_requests: int | None = None
    context_tokens: int | None = None
    """Longest prompt and answer together."""
    kv_pool_gb: float | None = None
    """Size of the KV pool, as the server reports it."""
    tp: int = 1
    pp: int = 1
    dp: int = 1
    nodes: int = 1
    n_ranks: int = 1
    """Processes that write a trace each."""
    is_graph: bool | None = None
    """Whether decode steps run as CUDA graphs."""
    draft_tokens: int | None = None
    """Tokens that a speculative step may yield; null without speculation."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """How the traces of a capture were made."""

    format_version: int = FORMAT_VERSION
    traceql_version: str
    created: str
    """ISO 8601, UTC."""
    engine: str = "sglang"
    command: tuple[str, ...] | None = None
    """As the server was started, keys and passwords blanked out; null where it ran already."""
    server: Server
    server_args: dict[str, Any]
    """As the server reports them, keys and passwords blanked out."""
    patches: tuple[AppliedPatch, ...] = ()
    workload: Workload
    probe: Probe | None = None
    control_before: Pace | None = None
    """Without the profiler, before the recording; null with --no-baseline."""
    control_after: Pace | None = None
    """The same after it."""
    profile: Profile
    problems: tuple[str, ...] = ()
    """What is not as asked for, in sentences."""

    @property
    def drift_frac(self) -> float | None:
        """How much longer a step is in the second control run than in the first."""
        if self.control_before is None or self.control_after is None:
            return None
        return self.control_after.step_ns / self.control_before.step_ns - 1

    @property
    def profiler_overhead_frac(self) -> float | None:
        """How much longer a step is with the profiler on than in the control runs; 0.1 is 10 % longer."""
        controls = [pace.step_ns for pace in (self.control_before, self.control_after) if pace]
        if self.profile.step_ns is None or not controls:
            return None
        return self.profile.step_ns * len(controls) / sum(controls) - 1


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a capture, given its folder or the file itself.

    Raises:
        MissingDataError: there is none.
        InputError: it is damaged, or of a newer version.
    """
    path = folder / NAME if folder.is_dir() else folder
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise MissingDataError(f"{path} does not exist", "traceql capture writes it beside its traces.") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "Check the path.") from error
    try:
        version = msgspec.json.decode(data, type=_Versioned).format_version
        if version > FORMAT_VERSION:
            raise InputError(
                f"{path} has format {version}; this traceql reads up to {FORMAT_VERSION}", "Update traceql."
            )
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no manifest of a capture: {error}", "Capture again.") from error


def capture_of(file: Path) -> tuple[Path, Manifest] | None:
    """The folder and the manifest of the capture that made a file; None where no manifest of its is beside it.

    A manifest that cannot be read, or that is about other files, is no help and does no harm.
    """
    for folder in file.absolute().parents[:2]:
        if not (folder / NAME).is_file():
            continue
        with suppress(InputError, MissingDataError):
            manifest = read_manifest(folder)
            if any((folder / each.path).resolve() == file.resolve() for each in manifest.profile.files):
                return folder, manifest
    return None


class _Versioned(msgspec.Struct):
    format_version: int


def write_manifest(manifest: Manifest, folder: Path) -> Path:
    """Writes the manifest into a folder, whole or not at all; the path of the file.

    Besides the fields it holds the figures that follow from them: `tokens_per_s` and `step_ns` of each control run,
    `profiler_overhead_frac` and `drift_frac`.

    Raises:
        OutputError: it cannot be written.
    """
    path = folder / NAME
    data = _NUMBERS.sub(_on_one_line, msgspec.json.format(msgspec.json.encode(_document(manifest)), indent=1))
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{NAME}.", delete=False) as file:
            part = Path(file.name)
            try:
                file.write(data + b"\n")
                file.flush()
                os.fsync(file.fileno())
                part.chmod(0o644)
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror}", "Free some space, or use another folder."
        ) from error
    return path


_NUMBERS = re.compile(rb"\[\n[\s\d\[\],.eE+-]*\]")
"""A list of nothing but numbers and such lists. Texts are never touched: they hold no line ends."""


def _on_one_line(found: re.Match[bytes]) -> bytes:
    return re.sub(rb"\s+", b"", found[0])


def _document(manifest: Manifest) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(manifest)
    for name in ("control_before", "control_after"):
        pace: Pace | None = getattr(manifest, name)
        if pace:
            document[name] |= {"tokens_per_s": pace.tokens_per_s, "step_ns": pace.step_ns}
    return document | {name: getattr(manifest, name) for name in ("profiler_overhead_frac", "drift_frac")}


def sha256(path: Path) -> str:
    """Of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
