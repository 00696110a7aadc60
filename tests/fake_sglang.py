"""A server that talks as SGLang does, without a model: for the tests of `traceql capture`.

It is a process of its own with schedulers as children, one of which leaves the process group. Releases differ in when
the profiler stops, as the real ones do. What it writes as traces are those of the fixtures, cut to the steps recorded.

    python tests/fake_sglang.py --port 30000 --version 0.5.11 --tp 2 [--fail WAY]

A package `sglang` on the path whose `launch_server` calls `main` makes it one that can be patched: then the schedulers
run the package's `ModelRunner` for each step.
"""

import argparse
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures" / "glm5"
N_FIXTURE_STEPS = 3
STEP_S = 0.001
PREFILL_S = 0.005
FIRST_EXACT = (0, 5, 23)


def trace_bytes(rank: int, n_steps: int, *, with_stack: bool) -> bytes:
    """A fixture's trace with the first n of its steps marked."""
    name = f"tiny-pool-{'stack' if with_stack else 'graph'}-TP-{rank % 2}.json.gz"
    trace = json.loads(gzip.decompress((FIXTURES / name).read_bytes()))
    marks = sorted({event["name"] for event in trace["traceEvents"] if event["name"].startswith("ProfilerStep#")})
    gone = set(marks[n_steps:])
    trace["traceEvents"] = [event for event in trace["traceEvents"] if n_steps and event["name"] not in gone]
    return gzip.compress(json.dumps(trace).encode())


class Scheduler:
    """Counts steps and records them: the part of the engine that the profiler belongs to."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._lock = threading.Lock()
        self._children = [_child(rank, arguments) for rank in range(arguments.tp)]
        for child in self._children:
            child.stdout.readline()  # type: ignore[union-attr] - it says that it has loaded its model
        self._n_steps = 0
        self._target: int | None = None
        self._request: dict[str, Any] | None = None
        self._n_recorded = 0

    @property
    def is_recording(self) -> bool:
        return self._request is not None

    def start_profile(self, request: dict[str, Any]) -> bool:
        time.sleep(1.0 if "slow-profiler" in self._arguments.fail else 0.0)
        with self._lock:
            if self._request is not None:
                return False
            if os.environ.get("SGLANG_PROFILE_V2", "0") not in ("0", "false") and not request.get("profile_by_stage"):
                _die("AssertionError: only support profile_by_stage=true now")
            version = tuple(map(int, self._arguments.version.split(".")))
            is_exact = version >= FIRST_EXACT and "short" not in self._arguments.fail
            self._request, self._n_recorded = request, 0
            self._target = self._n_steps + request["num_steps"] + is_exact
            return True

    def stop_profile(self) -> bool:
        with self._lock:
            if self._request is None:
                return False
            self._write()
            return True

    def step(self, kind: str) -> None:
        """One forward pass; the profile ends before the pass that is one too many."""
        time.sleep(STEP_S if kind == "DECODE" else PREFILL_S)
        with self._lock:
            self._n_steps += 1
            if self._request is not None:
                if self._target is not None and self._target <= self._n_steps:
                    self._write()
                else:
                    self._n_recorded += 1
            for child in self._children:
                child.stdin.write(kind + "\n")  # type: ignore[union-attr]
                child.stdin.flush()  # type: ignore[union-attr]
        if "die-in-profile" in self._arguments.fail and self._n_recorded >= 2:
            _die("RuntimeError: CUDA error: an illegal memory access was encountered \x1b[31m")

    def _write(self) -> None:
        assert self._request is not None
        request, self._request = self._request, None
        if "never-ends" in self._arguments.fail:
            self._request = request
            return
        folder = Path(request["output_dir"])
        folder.mkdir(parents=True, exist_ok=True)
        n_ranks = 1 if "missing-rank" in self._arguments.fail else self._arguments.tp
        with_stack = request.get("with_stack") is not False or "other-options" in self._arguments.fail
        prefix = f"{request['profile_prefix']}-" if request.get("profile_prefix") else ""
        for rank in range(n_ranks):
            data = trace_bytes(rank, self._n_recorded, with_stack=with_stack)
            data = data[: len(data) // 2] if "cut-trace" in self._arguments.fail else data
            if "disk-full" in self._arguments.fail:
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            path = folder / f"{prefix}{time.time()}-TP-{rank}.trace.json.gz"
            try:
                path.write_bytes(data)
            except OSError as error:
                _die(f"{type(error).__name__}: {error.strerror}")


def _child(rank: int, arguments: argparse.Namespace) -> "subprocess.Popen[str]":
    flags = ["--stubborn"] if "stubborn" in arguments.fail else []
    return subprocess.Popen(
        [sys.executable, __file__, "--scheduler", str(rank), *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=rank == 1,  # one that a signal to the group does not reach
    )


def _die(text: str) -> None:
    print(f"Traceback (most recent call last):\n{text}", flush=True)
    os._exit(3)


def scheduler(rank: int) -> None:
    """A scheduler process: runs the package's model for each step, if there is a package."""
    forward = None
    with suppress(ImportError):
        from sglang.srt.model_executor.model_runner import ModelRunner  # noqa: PLC0415  # pyright: ignore

        forward = ModelRunner(rank).forward
    print("ready", flush=True)
    for line in sys.stdin:
        if forward:
            forward(ForwardBatch(line.strip()))


class ForwardBatch:
    def __init__(self, name: str) -> None:
        self.forward_mode = ForwardMode(name)
        self.batch_size = 2
        self.extend_num_tokens = None


class ForwardMode:
    def __init__(self, name: str) -> None:
        self.name = name

    def is_decode(self) -> bool:
        return self.name == "DECODE"


class Handler(BaseHTTPRequestHandler):
    """The endpoints."""

    arguments: argparse.Namespace
    scheduler: Scheduler
    ready_at: float

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        print(format % args, flush=True)

    def _answer(self, status: int, body: object = "") -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        key = self.arguments.api_key
        if self.path == "/health":
            self._answer(200 if time.monotonic() >= self.ready_at else 503)
        elif key and self.headers.get("Authorization") != f"Bearer {key}":
            self._answer(401, {"error": "Unauthorized"})
        elif self.path == "/server_info":
            self._answer(200, self._info())
        elif self.path == "/model_info":
            self._answer(200, {"model_path": self.arguments.model_path, "is_generation": True})
        else:
            self._answer(404)

    def _info(self) -> dict[str, Any]:
        known = vars(self.arguments)
        arguments = {
            "model_path": known["model_path"],
            "api_key": known["api_key"],
            "attention_backend": known["attention_backend"],
            "kv_cache_dtype": "fp8_e4m3",
            "page_size": 1,
            "tp_size": known["tp"],
            "pp_size": 1,
            "dp_size": 1,
            "nnodes": 1,
            "enable_dp_attention": False,
            "disable_cuda_graph": False,
            "context_length": 32768,
        }
        memory = {"weight": 1.0, "kvcache": 2.5, "token_capacity": known["max_total_tokens"], "graph": 0.1}
        state = {**arguments, "memory_usage": memory, "effective_max_running_requests_per_dp": 16}
        launch = f"sglang.launch_server --api-key {known['api_key']}"
        scheduler_info = {"max_total_num_tokens": known["max_total_tokens"], "max_req_input_len": 32762}
        return {
            **arguments, **scheduler_info, "launch_command": launch, "internal_states": [state],
            "version": known["version"],
        }  # fmt: skip

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path == "/start_profile":
            self._answer(200 if self.scheduler.start_profile(body) else 500, "Profiling is already in progress.")
        elif self.path == "/stop_profile":
            self._answer(200 if self.scheduler.stop_profile() else 500, "Profiling is not in progress.")
        elif self.path != "/generate":
            self._answer(404)
        elif "error-500" in self.arguments.fail:
            self._answer(500, "Internal Server Error \x1b[2J")
        elif body.get("stream"):
            self._stream(body)
        else:
            self._answer(200, [self._whole(prompt, body) for prompt in body["input_ids"]])

    def _ids(self, prompt: list[int], n_tokens: int) -> list[int]:
        shift = int("other-tokens" in self.arguments.fail and "TRACEQL_PATCHES" in os.environ)
        return [(prompt[at % len(prompt)] * 7 + at + shift * (at >= 5)) % 1000 for at in range(n_tokens)]

    def _whole(self, prompt: list[int], body: dict[str, Any]) -> dict[str, Any]:
        ids = self._ids(prompt, body["sampling_params"]["max_new_tokens"])
        tops = [[[-0.5 * rank - token / 1e4, token + rank, None] for rank in range(2)] for token in ids]
        return {"output_ids": ids, "meta_info": {"completion_tokens": len(ids), "output_top_logprobs": tops}}

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        n_tokens, prompts = body["sampling_params"]["max_new_tokens"], body["input_ids"]
        if "hang" in self.arguments.fail:
            time.sleep(60)
        if "odd-answers" in self.arguments.fail:
            self._chunk({"index": 0, "meta_info": {"completion_tokens": "many"}})
        if "error-in-stream" in self.arguments.fail:
            self._chunk({"error": {"message": "out of memory"}})
            return
        for done in range(1, n_tokens + 1):
            self.scheduler.step("EXTEND" if done == 1 else "DECODE")
            for index in range(len(prompts)):
                finish = {"type": "length", "length": n_tokens} if done == n_tokens else None
                meta = {"id": str(index), "completion_tokens": done, "finish_reason": finish}
                self._chunk({"output_ids": [done], "meta_info": meta, "index": index})
        self.wfile.write(b"data: [DONE]\n\n")

    def _chunk(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()


def main() -> None:
    """Runs until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scheduler", type=int)
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--version", default="0.5.11")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--model-path", default="models/fake")
    parser.add_argument("--attention-backend", default="flashinfer")
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--api-key")
    parser.add_argument("--max-total-tokens", type=int, default=495_000)
    parser.add_argument("--ready-after", type=float, default=0.0)
    parser.add_argument("--fail", default=(), type=lambda text: text.split(","))
    arguments = parser.parse_args()
    if arguments.stubborn or "stubborn" in arguments.fail:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if arguments.scheduler is not None:
        scheduler(arguments.scheduler)
        if arguments.stubborn:
            time.sleep(600)
        return
    print(f"fake sglang {arguments.version} starts", flush=True)
    Handler.arguments, Handler.scheduler = arguments, Scheduler(arguments)
    Handler.ready_at = time.monotonic() + arguments.ready_after
    if "die-at-start" in arguments.fail:
        _die("torch.OutOfMemoryError: CUDA out of memory. \x1b[31mTried to allocate 9 GiB")
    ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
