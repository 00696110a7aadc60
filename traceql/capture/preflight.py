"""What is found out before time is spent: about the command, the installation that it starts, and the server."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from traceql.capture.errors import CaptureError, printable
from traceql.capture.manifest import Server
from traceql.errors import OutputError

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 30000
"""SGLang's own."""
MIN_FREE_BYTES = 200_000_000
"""A trace of 30 steps takes up to this, compressed."""
BLANKED = "(blanked out)"
SECRET = re.compile(r"(api[-_]key|password|secret|credential|hf[-_]token)", re.IGNORECASE)
"""Names of arguments that no file should hold."""


@dataclass(frozen=True)
class Requirement:
    """What an attention backend needs."""

    backend: str
    fact: str
    """A key of the model's configuration, or of the server's arguments."""
    allowed: tuple[int, ...]
    why: str


REQUIREMENTS = (
    Requirement("trtllm_mla", "qk_nope_head_dim", (128,), "its kernels exist for heads of that size only"),
    Requirement("cutlass_mla", "page_size", (64, 128), "its kernels read pages of that size only"),
)
_BACKENDS = ("attention_backend", "decode_attention_backend", "prefill_attention_backend")


@dataclass(frozen=True)
class Command:
    """A command line that starts a server, read for what it says about it."""

    words: tuple[str, ...]

    def option(self, name: str) -> str | None:
        """The value of `--name`, given as two words or with `=`; the last one counts."""
        found = None
        for at, word in enumerate(self.words):
            if word == f"--{name}":
                found = "".join(self.words[at + 1 : at + 2])
            elif word.startswith(f"--{name}="):
                found = word.partition("=")[2]
        return found

    @property
    def address(self) -> tuple[str, int]:
        """Where the server will listen, as seen from here.

        Raises:
            CaptureError: the port is no number.
        """
        host = self.option("host") or DEFAULT_HOST
        port = self.option("port") or str(DEFAULT_PORT)
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise CaptureError(f"--port {printable(port)[:20]} is no port", "Give a number from 1 to 65535.")
        return (DEFAULT_HOST if host in ("0.0.0.0", "::", "localhost") else host), int(port)  # noqa: S104 - not bound

    @property
    def url(self) -> str:
        """The server's address as a URL."""
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def blanked(self) -> tuple[str, ...]:
        """The words without keys and passwords."""
        words, is_secret = list[str](), False
        for word in self.words:
            name, equals, _ = word.partition("=")
            words.append(BLANKED if is_secret else word)
            is_secret = word.startswith("--") and not equals and bool(SECRET.search(word))
            if equals and name.startswith("--") and SECRET.search(name):
                words[-1] = f"{name}={BLANKED}"
        return tuple(words)

    def facts(self) -> dict[str, Any]:
        """What the command says of the arguments that requirements name."""
        names = (*_BACKENDS, *(row.fact for row in REQUIREMENTS))
        found = {name: self.option(name.replace("_", "-")) for name in names}
        return {name: int(text) if text.isdecimal() else text for name, text in found.items() if text}

    def model_config(self) -> dict[str, Any]:
        """The configuration of the model that it names."""
        return model_config(self.option("model-path") or self.option("model") or "")


@dataclass(frozen=True)
class Installation:
    """The SGLang that a command will start."""

    version: str
    package_dir: Path


_LOOK = """
import importlib.metadata as metadata, importlib.util as util, json, re
spec = util.find_spec("sglang")
places = list(spec.submodule_search_locations or []) if spec else []
version = None
try:
    version = metadata.version("sglang")
except metadata.PackageNotFoundError:
    for place in places:
        for name in ("_version.py", "version.py"):
            try:
                text = open(place + "/" + name).read()
            except OSError:
                continue
            found = re.search(r"^_*version_* *=[^'\\"]*['\\"]([^'\\"]+)", text, re.M)
            version = version or (found and found[1])
print(json.dumps([version, places[:1]]))
"""
"""Finds the package without importing it, which would take half a minute."""


def installation(command: Sequence[str], environment: Mapping[str, str]) -> Installation:
    """The SGLang that a command will import.

    Raises:
        CaptureError: it cannot be found.
    """
    python = _python_of(command)
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter is the one that the user is about to start
            [python, "-c", _LOOK],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        version, places = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise CaptureError(f"{python} does not say where sglang is", "Is it a Python interpreter?") from error
    if not version or not places:
        raise CaptureError(f"{python} has no sglang", "Start the server with the Python that sglang is installed for.")
    return Installation(str(version), Path(places[0]))


def _python_of(command: Sequence[str]) -> str:
    """The interpreter in a command: named in it, or by the first line of the script that it starts."""
    for word in command[:4]:
        if re.fullmatch(r"python[\d.]*", Path(word).name):
            return word
    program = shutil.which(command[0])
    if program:
        with Path(program).open("rb") as file:
            first_line = file.readline(500).decode(errors="replace").strip()
        interpreter = first_line.removeprefix("#!").split()
        if first_line.startswith("#!") and interpreter and "python" in interpreter[-1]:
            return interpreter[-1]
    raise CaptureError(
        f"cannot tell which Python {printable(command[0])} starts",
        "With --patch, begin the command with the interpreter: -- python -m sglang.launch_server ...",
    )


def model_config(model: str) -> dict[str, Any]:
    """The model's config.json where it lies on this machine; else nothing."""
    try:
        found = json.loads((Path(model).expanduser() / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    config = cast("dict[str, Any]", found)
    inner = config.get("text_config")
    return config | cast("dict[str, Any]", inner) if isinstance(inner, dict) else config


def refuse_backend(arguments: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raises where an attention backend asked for cannot serve the model.

    Args:
        arguments: of the server.
        config: of the model.

    Raises:
        CaptureError: it cannot.
    """
    asked = {arguments.get(name) for name in _BACKENDS}
    for row in REQUIREMENTS:
        value = config.get(row.fact, arguments.get(row.fact))
        if row.backend in asked and isinstance(value, int) and value not in row.allowed:
            allowed = " or ".join(map(str, row.allowed))
            raise CaptureError(
                f"attention backend {row.backend} needs {row.fact} {allowed}, not {value}: {row.why}",
                "Choose another --attention-backend.",
            )


def server_facts(info: Mapping[str, Any], model: Mapping[str, Any]) -> Server:
    """The facts that matter, from /server_info and /model_info."""
    states: Any = info.get("internal_states") or [{}]
    state = cast("dict[str, Any]", states[0]) if isinstance(states, list) and isinstance(states[0], dict) else {}
    known = {**state, **info}
    memory = cast("dict[str, Any]", state.get("memory_usage") or {})
    tp, pp, dp, nodes = (_number(known.get(name)) or 1 for name in ("tp_size", "pp_size", "dp_size", "nnodes"))
    version = info.get("version")
    if not isinstance(version, str):
        raise CaptureError("the server does not tell its version", "capture sglang needs an SGLang server.")
    return Server(
        version=version,
        model=_text(model.get("model_path") or known.get("model_path")),
        attention_backend=_text(known.get("decode_attention_backend") or known.get("attention_backend")),
        kv_cache_dtype=_text(known.get("kv_cache_dtype")),
        page_size=_number(known.get("page_size")),
        max_total_tokens=_number(known.get("max_total_num_tokens") or memory.get("token_capacity")),
        max_running_requests=_number(
            known.get("effective_max_running_requests_per_dp") or known.get("max_running_requests")
        ),
        context_tokens=_number(known.get("context_length") or known.get("max_req_input_len")),
        kv_pool_gb=_real(memory.get("kvcache")),
        tp=tp,
        pp=pp,
        dp=dp,
        nodes=nodes,
        n_ranks=tp * pp * (1 if known.get("enable_dp_attention") else dp),
        is_graph=_is_graph(known, memory.get("graph")),
        draft_tokens=_number(known.get("speculative_num_draft_tokens")),
    )


def _is_graph(known: Mapping[str, Any], graph_memory: Any) -> bool | None:
    """Whether CUDA graphs were captured: they take memory, one number or one for each kind."""
    if known.get("disable_cuda_graph"):
        return False
    sizes = list(cast("dict[str, Any]", graph_memory).values()) if isinstance(graph_memory, dict) else [graph_memory]
    return True if any(_real(size) for size in sizes) else None


def server_arguments(info: Mapping[str, Any]) -> dict[str, Any]:
    """What the server reports of its arguments, without keys and passwords, wherever they stand."""
    kept = {name: value for name, value in info.items() if name != "internal_states"}
    secrets = {value for name, value in kept.items() if SECRET.search(name) and isinstance(value, str) and value}
    return {name: BLANKED if SECRET.search(name) and value else _blank(value, secrets) for name, value in kept.items()}


def _blank(value: Any, secrets: set[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, BLANKED)
        return value
    if isinstance(value, dict):
        named = cast("dict[str, Any]", value).items()
        return {name: BLANKED if SECRET.search(name) and each else _blank(each, secrets) for name, each in named}
    if isinstance(value, list):
        return [_blank(each, secrets) for each in cast("list[Any]", value)]
    return value


def refuse_workload(server: Server, batch_size: int, prompt_tokens: int, n_tokens: int) -> None:
    """Raises where the server could not decode the whole batch at once.

    Args:
        server: its facts.
        batch_size: requests.
        prompt_tokens: of each.
        n_tokens: the most that a request will be answered with.

    Raises:
        CaptureError: it cannot.
    """
    length = prompt_tokens + n_tokens
    limits = (
        ("requests at once", batch_size, server.max_running_requests, "a smaller --batch-size"),
        ("tokens a request", length, server.context_tokens, "a smaller --prompt-tokens or --steps"),
        ("tokens in its KV pool", batch_size * length, server.max_total_tokens, "a smaller --batch-size or prompt"),
    )
    for what, needed, limit, remedy in limits:
        if limit is not None and needed > limit:
            raise CaptureError(f"the server takes {limit:,} {what}, and {needed:,} are needed", f"Use {remedy}.")
    if server.nodes > 1:
        raise CaptureError(
            f"the server runs on {server.nodes} machines", "Traces are read from one machine's disk; use one."
        )


def longest_answer(server: Server, batch_size: int, prompt_tokens: int) -> int | None:
    """Tokens with which each request of a batch can be answered at most; None where nothing is known of it."""
    lengths = (server.context_tokens, server.max_total_tokens and server.max_total_tokens // batch_size)
    known = [length - prompt_tokens for length in lengths if length is not None]
    return min(known, default=None)


def make_folder(out: Path, *, force: bool, n_ranks: int = 1) -> None:
    """Makes the folder of a capture, empty or (`force`) with what is there already.

    Raises:
        OutputError: it is no folder, not empty, not writable, or its disk is full.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        is_used = any(out.iterdir())
    except OSError as error:
        raise OutputError(f"{out} cannot be made: {error.strerror}", "Use another folder with --out.") from error
    if is_used and not force:
        raise OutputError(f"{out} is not empty", "Use another folder with --out, or overwrite it with --force.")
    refuse_full_disk(out, n_ranks)


def refuse_full_disk(folder: Path, n_ranks: int) -> None:
    """Raises where the traces would not fit.

    Raises:
        OutputError: they would not.
    """
    free, needed = shutil.disk_usage(folder).free, n_ranks * MIN_FREE_BYTES
    if free < needed:
        raise OutputError(
            f"{folder} has {free / 1e6:,.0f} MB left; {n_ranks} traces may need {needed / 1e6:,.0f} MB",
            "Free some space, or use another disk with --out.",
        )


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
