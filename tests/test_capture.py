"""Capture, against a server process that talks as SGLang does: what it makes, and that nothing is left running."""

import gzip
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import capture_rig
import httpx
import msgspec
import psutil
import pytest
import zstandard
from click.testing import CliRunner, Result
from conftest import FIXTURES
from fake_sglang import trace_bytes
from waiting import until

from traceql.capture import preflight, profile, server, workload
from traceql.capture.client import Client
from traceql.capture.compare import compare_probes
from traceql.capture.errors import CaptureError
from traceql.capture.manifest import Manifest, Pace, Server, Workload, read_manifest, write_manifest
from traceql.capture.preflight import BLANKED, Command, refuse_backend, server_arguments, server_facts
from traceql.capture.profile import TraceFacts, problems
from traceql.capture.run import Settings
from traceql.capture.workload import Tick, pace, prompts
from traceql.cli import capture_progress
from traceql.cli.capture import command, patch_settings, trace_facts
from traceql.cli.capture_page import answers_line
from traceql.errors import InputError, MissingDataError, OutputError
from traceql.run import load_run

TESTS = Path(__file__).parent
FAKE = TESTS / "fake_sglang.py"
RELEASES = ("0.5.9", "0.5.11", "0.5.23")
SMALL = ("--steps", "3", "--warmup-steps", "4", "--batch-size", "2", "--prompt-tokens", "6")
RUN = "TRACEQL_TEST_RUN"
"""Environment variable by which a test finds the processes that it caused, whoever started them."""


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's cache stays as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEQL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def nothing_is_left_running(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test ends with as many processes as it began with; short waits, since the server is quick."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(RUN, mark)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(profile, "STABLE_S", 0.3)
    monkeypatch.setattr(profile, "POLL_S", 0.05)
    monkeypatch.setattr(profile, "ARMING_S", 0.3)
    yield
    assert marked(mark) == []


def marked(mark: str) -> list[str]:
    """The command lines of the living processes of a test, but for its own."""
    found: list[str] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_ours = process.pid != os.getpid() and process.environ().get(RUN) == mark
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fake(*flags: str) -> list[str]:
    return [sys.executable, str(FAKE), "--port", str(free_port()), *flags]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(each) for each in arguments])


def capture(out: Path, *flags: str, options: Sequence[str] = ()) -> Result:
    return run("sglang", "--out", out, *SMALL, *options, "--", *fake(*flags))


def error_of(result: Result) -> str:
    """The message and hint of the error that a command ended with."""
    assert result.exception is not None
    assert not isinstance(result.exception, SystemExit), result.output
    return str(result.exception)


# --- what a capture makes ---


@pytest.mark.parametrize("version", RELEASES)
def test_each_release_records_exactly_the_steps_asked_for_on_all_ranks(version: str, tmp_path: Path) -> None:
    result = capture(tmp_path, "--version", version, "--tp", "2")
    assert result.exit_code == 0, result.output
    manifest = read_manifest(tmp_path)
    assert (manifest.server.version, manifest.server.n_ranks, manifest.problems) == (version, 2, ())
    assert [file.n_steps for file in manifest.profile.files] == [3, 3]
    assert manifest.profile.n_attempts == 1
    for file in manifest.profile.files:
        data = (tmp_path / file.path).read_bytes()
        assert (file.n_bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert file.gpu == "NVIDIA H200"
    assert [part.rank for part in load_run([tmp_path / "traces"]).parts] == [0, 1]
    assert "fake sglang" in (tmp_path / "server.log").read_text()
    assert "Capture" in result.stdout
    assert "Groups" in result.stdout
    assert "the server is ready" in result.stderr


def test_the_manifest_says_how_and_how_fast(tmp_path: Path) -> None:
    assert capture(tmp_path).exit_code == 0
    manifest = read_manifest(tmp_path)
    wanted = Workload(batch_size=2, prompt_tokens=6, seed=0, vocab_size=10_000)
    assert manifest.workload == wanted
    for control in (manifest.control_before, manifest.control_after):
        assert control is not None
        assert control.n_tokens == 2 * control.n_steps
        assert control.n_steps == 64 + 1 - 8
        assert 1e6 < control.step_ns < 1e8  # the server sleeps 1 ms a step
        assert control.tokens_per_s == pytest.approx(2e9 / control.step_ns)
    assert manifest.probe is not None
    assert [len(answer) for answer in manifest.probe.token_ids] == [40, 40]
    assert manifest.probe.token_ids[0] == tuple((prompts(wanted)[0][at % 6] * 7 + at) % 1000 for at in range(40))
    assert manifest.profile.step_ns is not None
    document = json.loads((tmp_path / "manifest.json").read_text())
    controls = [document[name]["step_ns"] for name in ("control_before", "control_after")]
    assert document["profiler_overhead_frac"] == pytest.approx(manifest.profile.step_ns / (sum(controls) / 2) - 1)
    assert document["drift_frac"] == pytest.approx(controls[1] / controls[0] - 1)
    assert not list(tmp_path.glob(".*"))
    assert len((tmp_path / "manifest.json").read_text().splitlines()) < 150  # token ids and the like on few lines


def test_a_release_that_stops_early_is_found_out_and_recorded_once_more(tmp_path: Path) -> None:
    result = capture(tmp_path, "--version", "0.5.99", "--fail", "short")
    assert result.exit_code == 0, result.output
    assert "recorded 2 steps instead of 3: once more" in result.stderr
    manifest = read_manifest(tmp_path)
    assert [file.n_steps for file in manifest.profile.files] == [3]
    is_late = "began too late" in result.stderr  # where the machine is busy with other things
    assert (manifest.profile.n_attempts, manifest.problems) == (2 + is_late, ())
    assert len(list((tmp_path / "traces").iterdir())) == 1


def test_without_baseline_nothing_is_said_of_the_profiler(tmp_path: Path) -> None:
    result = capture(tmp_path, options=["--no-baseline"])
    manifest = read_manifest(tmp_path)
    assert (manifest.control_before, manifest.control_after, manifest.profiler_overhead_frac) == (None, None, None)
    assert "profiler overhead   —\n" in result.stdout


def test_stacks_are_recorded_when_asked_for(tmp_path: Path) -> None:
    assert capture(tmp_path, options=["--stack"]).exit_code == 0
    (trace,) = (tmp_path / "traces").iterdir()
    assert trace_facts(trace).with_stack is True


def test_prefill_may_be_recorded_too(tmp_path: Path) -> None:
    assert capture(tmp_path, options=["--stage", "any"]).exit_code == 0
    assert [path.name[:4] for path in (tmp_path / "traces").iterdir()] == ["any-"]


def test_a_server_of_our_own_is_not_overruled_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_PROFILE_V2", "1")  # this manager knows no recording but by stage: the server would die
    assert capture(tmp_path).exit_code == 0


def test_other_options_than_asked_for_are_a_problem(tmp_path: Path) -> None:
    result = capture(tmp_path, "--fail", "other-options")
    assert result.exit_code == 1
    (trace,) = (tmp_path / "traces").iterdir()
    sentence = f"{trace.name} was recorded with with_stack True, not False."
    assert read_manifest(tmp_path).problems == (sentence,)
    assert "Not as asked for" in result.stdout


def test_keys_are_sent_and_never_written(tmp_path: Path) -> None:
    assert capture(tmp_path, "--api-key", "s3cr3t-value").exit_code == 0
    text = (tmp_path / "manifest.json").read_text()
    assert "s3cr3t-value" not in text
    manifest = read_manifest(tmp_path)
    assert manifest.server_args["api_key"] == BLANKED
    assert manifest.command is not None
    assert manifest.command[-2:] == ("--api-key", BLANKED)


def test_a_wrong_key_says_what_to_do(tmp_path: Path) -> None:
    result = capture(tmp_path, "--api-key", "right", options=["--api-key", "wrong"])
    assert "answered 401" in error_of(result)
    assert "--api-key" in error_of(result)


# --- a server that runs already ---


@pytest.fixture
def running() -> Iterator[str]:
    """The URL of a server that somebody else started."""
    words = fake()
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        url = Command(tuple(words)).url
        until(lambda: Client(url).is_ready())
        yield url
        os.killpg(process.pid, signal.SIGTERM)
    until(lambda: not marked(os.environ[RUN]))


def test_an_attached_server_goes_on(running: str, tmp_path: Path) -> None:
    result = run("sglang", "--url", running, "--out", tmp_path, *SMALL)
    assert result.exit_code == 0, result.output
    assert read_manifest(tmp_path).command is None
    assert httpx.get(f"{running}/health").status_code == 200
    assert not (tmp_path / "server.log").exists()


def test_a_server_that_somebody_else_profiles_is_left_alone(running: str, tmp_path: Path) -> None:
    httpx.post(f"{running}/start_profile", json={"output_dir": str(tmp_path / "own"), "num_steps": 10_000})
    result = run("sglang", "--url", running, "--out", tmp_path / "out", *SMALL)
    assert "already in progress" in error_of(result)
    assert httpx.get(f"{running}/health").status_code == 200
    assert httpx.post(f"{running}/stop_profile", json={}).status_code == 200  # the other's recording went on


def test_an_attached_server_cannot_be_patched(running: str, tmp_path: Path) -> None:
    result = run("sglang", "--url", running, "--patch", "gather-then-cast", "--out", tmp_path, *SMALL)
    assert "cannot be patched" in error_of(result)


def test_a_port_in_use_is_not_taken_for_our_server(running: str, tmp_path: Path) -> None:
    port = running.rpartition(":")[2]
    result = run("sglang", "--out", tmp_path, *SMALL, "--", sys.executable, FAKE, "--port", port)
    assert f"port {port} is in use" in error_of(result)


def test_url_and_command_exclude_each_other(tmp_path: Path) -> None:
    for arguments in (("--url", "http://127.0.0.1:1", "--", "x"), ()):
        result = run("sglang", "--out", tmp_path, *arguments)
        assert result.exit_code == 2
        assert "Give either --url URL or" in result.stderr


# --- failures: each is told, and nothing is left running ---


@pytest.mark.parametrize(
    ("fail", "said"),
    [
        ("die-at-start", "ended with status 3 while it started"),
        ("error-500", "/generate answered 500: Internal Server Error"),
        ("error-in-stream", "out of memory"),
        ("odd-answers", "'completion_tokens': 'many'"),
        ("never-ends", "no trace appeared"),
        ("missing-rank", "missing: rank 1"),
        ("die-in-profile", "illegal memory access"),
        ("disk-full", "OSError: File too large"),
        ("cut-trace", "without loss"),
    ],
)
def test_a_failure_is_told_and_leaves_nothing_behind(fail: str, said: str, tmp_path: Path) -> None:
    result = capture(tmp_path, "--tp", "2", "--fail", fail, options=["--trace-timeout", "1"])
    assert said in error_of(result)
    assert "\x1b" not in error_of(result)
    assert not (tmp_path / "manifest.json").exists()


def test_a_server_that_does_not_answer_any_more(tmp_path: Path) -> None:
    result = capture(tmp_path, "--fail", "hang", options=["--request-timeout", "1"])
    assert "/generate does not answer: timed out" in error_of(result)


def test_a_recording_that_begins_too_late_is_stopped_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "ARMING_S", 0.0)  # so 60 steps of 1 ms, and the profiler starts after 1 s
    monkeypatch.setattr(profile, "LONGER", 1)
    result = capture(tmp_path, "--fail", "slow-profiler")
    assert result.exit_code == 1
    assert "the recording began too late: once more" in result.stderr
    manifest = read_manifest(tmp_path)
    assert manifest.profile.n_attempts == 2
    assert [problem.partition(" ")[2] for problem in manifest.problems] == ["has 0 steps, not 3."]


def test_a_recording_that_begins_too_late_and_then_stops_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault is mended once, so a busy machine takes nothing from a release that counts one short."""
    monkeypatch.setattr(profile, "ARMING_S", 0.0)
    monkeypatch.setattr(profile, "LONGER", 50)  # 3,000 steps: the profiler starts within them
    result = capture(tmp_path, "--version", "0.5.99", "--fail", "slow-profiler,short")
    assert result.exit_code == 0, result.output
    manifest = read_manifest(tmp_path)
    assert [file.n_steps for file in manifest.profile.files] == [3]
    assert (manifest.profile.n_attempts, manifest.problems) == (3, ())


def test_fast_steps_are_given_a_larger_margin() -> None:
    assert [profile.margin_for(step_ns) for step_ns in (None, 180_000_000, 2_000_000)] == [60, 60, 150]
    assert [profile.margin_for(step_ns) for step_ns in (300, 0)] == [1200, 1200]  # read in bursts
    assert preflight.longest_answer(Server(version="1"), 8, 100) is None
    small = Server(version="1", context_tokens=5000, max_total_tokens=8000)
    assert preflight.longest_answer(small, 8, 100) == 900
    assert preflight.longest_answer(small, 1, 100) == 4900


def test_a_slow_start_is_waited_for_and_told_in_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_progress, "PLAIN_INTERVAL_S", 0.3)
    result = capture(tmp_path, "--ready-after", "1.5")
    assert result.exit_code == 0
    assert re.search(r"^server starts, \d s: .+$", result.stderr, re.MULTILINE)


def test_a_server_that_is_not_ready_in_time(tmp_path: Path) -> None:
    result = capture(tmp_path, "--ready-after", "60", options=["--start-timeout", "1"])
    assert "not ready after 1 s" in error_of(result)
    assert "fake sglang" in error_of(result)


def test_processes_that_ignore_the_signal_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GRACE_S", 1.0)
    assert capture(tmp_path, "--tp", "2", "--fail", "stubborn").exit_code == 0


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    result = run("sglang", "--out", tmp_path, *SMALL, "--", "no-such-program", "--port", str(free_port()))
    assert "no-such-program cannot be started" in error_of(result)


@pytest.mark.parametrize(
    ("number", "ready_after"),
    [(signal.SIGINT, "60"), (signal.SIGINT, "0"), (signal.SIGTERM, "60"), (signal.SIGHUP, "0")],
)
def test_a_signal_ends_the_server_too(number: int, ready_after: str, tmp_path: Path) -> None:
    words = fake("--tp", "2", "--ready-after", ready_after, "--fail", "never-ends")
    # where the tests run in the background of a script, SIGINT is ignored, and would be here
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from traceql.cli.capture import command; command()"
    arguments = ["sglang", "--out", str(tmp_path), *SMALL, "--", *words]
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        awaited = b"starting the server" if ready_after == "60" else b"control run before"
        for line in process.stderr:
            if awaited in line:
                break
        time.sleep(0.3)
        process.send_signal(number)
        assert process.wait(30) != 0
    assert not (tmp_path / "manifest.json").exists()


def test_on_a_terminal_what_is_waited_for_is_replaced(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    code = "from traceql.cli.capture import command; command()"
    arguments = ["sglang", "--out", str(tmp_path), *SMALL, "--start-timeout", "1", "--", *fake("--ready-after", "60")]
    variables = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=variables
    ) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # Linux reports the end of a terminal as an error
            while block := os.read(ours, 65536):
                shown += block
    os.close(ours)
    assert process.returncode != 0
    assert b"starting the server; its log is" in shown
    assert b"server starts, 0 s" in shown
    assert b"\x1b[2K" in shown  # the line is cleared


# --- what is refused before the server starts ---


@pytest.mark.parametrize(
    ("backend", "config", "said"),
    [
        ("trtllm_mla", {"qk_nope_head_dim": 192}, "trtllm_mla needs qk_nope_head_dim 128, not 192"),
        ("cutlass_mla", {}, "cutlass_mla needs page_size 64 or 128, not 1"),
    ],
)
def test_a_backend_that_cannot_serve_the_model_is_refused_early(
    backend: str, config: dict[str, int], said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = ("--model-path", str(tmp_path), "--attention-backend", backend, "--page-size", "1")
    result = capture(tmp_path / "out", *flags)
    assert said in error_of(result)
    assert not (tmp_path / "out" / "server.log").exists()


def test_a_backend_with_what_it_needs_passes() -> None:
    refuse_backend({"attention_backend": "trtllm_mla"}, {"qk_nope_head_dim": 128})
    refuse_backend({"attention_backend": "flashinfer"}, {"qk_nope_head_dim": 192})
    refuse_backend({"decode_attention_backend": "trtllm_mla"}, {})
    with pytest.raises(CaptureError, match="trtllm_mla"):
        refuse_backend({"decode_attention_backend": "trtllm_mla"}, {"qk_nope_head_dim": 192})


def test_a_pool_too_small_for_the_batch_is_said_early(tmp_path: Path) -> None:
    result = capture(tmp_path, "--max-total-tokens", "100")
    assert "the server takes 100 tokens in its KV pool" in error_of(result)


def test_a_folder_in_use_is_left_alone_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "not empty" in error_of(capture(tmp_path))
    assert capture(tmp_path, options=["--force"]).exit_code == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be made" in error_of(capture(tmp_path / "file" / "out"))


def test_a_disk_without_space_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MIN_FREE_BYTES", 10**15)
    assert "MB left" in error_of(capture(tmp_path))


def test_what_is_missing_to_capture_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("httpx", "psutil"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, name, None)
            result = capture(tmp_path / name)
            assert error_of(result) == f"{name} is not installed\npip install 'traceql[capture]'"


# --- patches, on a package that looks like sglang as far as they look ---

MODEL_RUNNER = """
class ModelRunner:
    is_draft_worker = False

    def __init__(self, rank):
        self.tp_rank = rank

    def forward(self, forward_batch, skip_attn_backend_init=False):
        return self._forward_raw(forward_batch, skip_attn_backend_init)

    def _forward_raw(self, forward_batch, skip):
        return None
"""
TORCH = """
import contextlib, sys
from types import SimpleNamespace
sys.path.insert(0, {tests!r})
from conftest import FIXTURES
from fake_sglang import trace_bytes

class profile:
    def __init__(self, record_shapes=False, with_stack=False):
        self.with_stack = with_stack
    def start(self):
        autograd.n_steps, autograd.is_on = 0, True
    def stop(self):
        autograd.is_on = False
    def export_chrome_trace(self, path):
        rank = int(path.split("-TP-")[1][0])
        with open(path, "wb") as file:
            file.write(trace_bytes(rank, autograd.n_steps, with_stack=self.with_stack))
    def key_averages(self, group_by_input_shape=False):
        return SimpleNamespace(table=lambda **_: "a table")

@contextlib.contextmanager
def record_function(name):
    autograd.n_steps += name.startswith("step[DECODE")
    yield

class autograd:
    n_steps, is_on = 0, False
    @classmethod
    def _profiler_enabled(cls):
        return cls.is_on

profiler = SimpleNamespace(profile=profile, record_function=record_function)
cuda = SimpleNamespace(is_available=lambda: False)
distributed = SimpleNamespace(is_initialized=lambda: False)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with packages `sglang` and `torch`, on the path of the servers that a test starts."""
    root = tmp_path / "site"
    files = {
        "sglang/__init__.py": "",
        "sglang/version.py": '__version__ = "0.5.9"\n',
        "sglang/launch_server.py": "import fake_sglang\nfake_sglang.main()\n",
        "sglang/srt/__init__.py": "",
        "sglang/srt/model_executor/__init__.py": "",
        "sglang/srt/model_executor/model_runner.py": MODEL_RUNNER,
        "torch/__init__.py": TORCH.format(tests=str(TESTS)),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(TESTS)]))
    return root


def launch(*flags: str) -> list[str]:
    return [sys.executable, "-m", "sglang.launch_server", "--port", str(free_port()), "--version", "0.5.9", *flags]


def test_a_patch_that_records_reaches_every_scheduler(package: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("sglang", "--out", out, *SMALL, "--patch", "profile-decode", "--", *launch("--tp", "2"))
    assert result.exit_code == 0, result.output or result.exception
    manifest = read_manifest(out)
    (patch,) = manifest.patches
    assert (patch.name, patch.n_processes) == ("profile-decode", 2)
    assert patch.functions == ("sglang.srt.model_executor.model_runner.ModelRunner.forward",)
    assert (patch.options["steps"], patch.counts) == ("3", {"recorded": 2})
    assert (manifest.profile.by, [file.n_steps for file in manifest.profile.files]) == ("profile-decode", [3, 3])
    assert manifest.control_before is None
    assert manifest.control_after is not None


def test_a_release_that_does_not_fit_is_refused_before_the_server_starts(package: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("sglang", "--out", out, *SMALL, "--patch", "gather-then-cast", "--", *launch())
    assert "gather-then-cast does not fit SGLang 0.5.9" in error_of(result)
    assert not (out / "server.log").exists()


def test_a_patch_must_arrive_in_every_scheduler(package: Path, tmp_path: Path) -> None:
    """The package's model is not imported by the schedulers here, as if they had lost their environment."""
    (package / "sglang/launch_server.py").write_text(
        "import os, sys\nos.environ.pop('PYTHONPATH')\nsys.path.insert(0, os.environ['TESTS'])\n"
        "import fake_sglang\nfake_sglang.main()\n"
    )
    out = tmp_path / "out"
    words = ["env", f"TESTS={TESTS}", *launch()]
    result = run("sglang", "--out", out, *SMALL, "--patch", "profile-decode", "--", *words)
    assert "profile-decode was applied in 0 of 1 processes" in error_of(result)


def test_options_of_patches() -> None:
    assert patch_settings(["a.b=c=d", "a.e=f"]) == {"a": {"b": "c=d", "e": "f"}}
    for text in ("a=b", "a.b", ".b=c", "a.=c", "a.b="):
        result = run("sglang", "--out", "x", "--patch-option", text, "--", "x")
        assert (result.exit_code, "write NAME.OPTION=VALUE" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--patch", "gather-then-cost"), "gather-then-cast"),
        (("--patch-option", "gather-then-cast.rows=3"), "Add --patch gather-then-cast"),
        (("--patch", "profile-decode", "--patch-option", "profile-decode.stops=3"), "steps"),
    ],
)
def test_unknown_patches_and_options_are_refused(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    result = run("sglang", "--out", tmp_path / "out", *arguments, "--", *fake())
    assert said in error_of(result)
    assert not (tmp_path / "out").exists()


def test_patches_are_listed_with_releases_and_options() -> None:
    result = run("patches")
    assert result.exit_code == 0
    for text in ("gather-then-cast", "profile-decode", "annotate-layers", "0.5.23", "warmup-steps"):
        assert text in result.stdout


@pytest.mark.parametrize(("fail", "status", "said"), [("", 0, "The same tokens"), ("other-tokens", 1, "Other tokens")])
def test_compare_shows_whether_the_answers_are_the_same(
    fail: str, status: int, said: str, package: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = launch("--fail", fail) if fail else launch()
    result = run("compare", "--out", out, *SMALL, "--patch", "profile-decode", "--", *words)
    assert result.exit_code == status, result.output or result.exception
    assert said in result.stdout
    assert "tokens/s, second control run" in result.stdout
    before, after = read_manifest(out / "before"), read_manifest(out / "after")
    assert (before.patches, [patch.name for patch in after.patches]) == ((), ["profile-decode"])


# --- parts ---


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """That of a real capture."""
    out = tmp_path_factory.mktemp("made")
    assert capture(out).exit_code == 0
    return read_manifest(out)


def test_a_manifest_is_read_as_written(manifest: Manifest, tmp_path: Path) -> None:
    odd = msgspec.structs.replace(manifest, problems=("[\n 1, 2\n]", '"[', "]"))  # texts that look like lists
    write_manifest(odd, tmp_path)
    assert read_manifest(tmp_path) == odd
    write_manifest(manifest, tmp_path)
    assert read_manifest(tmp_path) == manifest
    assert read_manifest(tmp_path / "manifest.json") == manifest


def test_a_manifest_that_cannot_be_read(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError):
        read_manifest(tmp_path)
    path = write_manifest(manifest, tmp_path)
    whole = path.read_text()
    for damaged in (whole[:-20], "[]", "{}", whole.replace('"format_version": 1', '"format_version": "1"')):
        path.write_text(damaged)
        with pytest.raises(InputError, match="no manifest"):
            read_manifest(tmp_path)
    path.write_text(whole.replace('"format_version": 1', '"format_version": 99'))
    with pytest.raises(InputError, match="format 99"):
        read_manifest(tmp_path)


def test_a_manifest_that_does_not_fit_on_the_disk_leaves_the_old_one(manifest: Manifest, tmp_path: Path) -> None:
    write_manifest(manifest, tmp_path)
    before = (tmp_path / "manifest.json").read_bytes()
    code = (
        "import resource, sys; from pathlib import Path; from traceql.capture import manifest as m\n"
        "from traceql.errors import OutputError\n"
        "read = m.read_manifest(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try:\n    m.write_manifest(read, Path(sys.argv[1]))\n"
        "except OutputError as error:\n    print(error.message)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "cannot be written: File too large" in done.stdout
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert [path.name for path in tmp_path.glob("*manifest*")] == ["manifest.json"]


def ticks(*rows: tuple[int, int, int, int], last: int) -> list[Tick]:
    """(ms, request, tokens, steps) rows; a request is finished at `last` tokens."""
    return [Tick(ms * 10**6, index, tokens, steps, tokens == last) for ms, index, tokens, steps in rows]


TWO = Workload(batch_size=2, prompt_tokens=1, seed=0, vocab_size=1000)


def test_the_pace_counts_only_while_the_batch_is_full() -> None:
    """Request 0 begins two steps before request 1 and ends before it; what it does alone does not count."""
    both = [(ms, 0, ms // 10, ms // 10) for ms in range(10, 70, 10)]
    both += [(ms + 1, 1, ms // 10 - 2, ms // 10 - 2) for ms in range(30, 90, 10)]
    found = pace(ticks(*sorted(both), last=6), TWO, skip_steps=1)
    # from 31 ms, when both are under way, to 61 ms, when request 0 has ended
    assert (found.n_steps, found.n_tokens, found.wall_ns) == (3, 6, 30_000_000)
    assert found.median_step_ns == 10_000_000


def test_steps_that_are_read_in_bursts_take_as_long_as_others() -> None:
    bursts = [(max(step // 4 * 40, 10), 0, step, step) for step in range(1, 13)]
    assert workload.mean_step_ns(ticks(*bursts, last=12)) == 10_000_000
    assert workload.median_step_ns(ticks(*bursts, last=12)) == 0
    assert workload.mean_step_ns(ticks((10, 0, 1, 1), last=12)) is None
    assert workload.mean_step_ns([]) is None


def test_speculative_steps_are_not_tokens() -> None:
    rows = [(step * 10 + index, index, step * 3, step) for step in range(1, 6) for index in range(2)]
    found = pace(ticks(*rows, last=15), TWO, skip_steps=1)
    assert (found.n_steps, found.n_tokens, found.step_ns) == (4, 24, 10e6)


def test_a_batch_that_was_never_whole_has_no_pace() -> None:
    rows = [(1, 0, 1, 1), (2, 0, 2, 2), (3, 1, 1, 1), (4, 1, 2, 2)]
    with pytest.raises(CaptureError, match="never decoded as a whole"):
        pace(ticks(*rows, last=2), TWO, skip_steps=1)


def test_prompts_are_the_same_each_time() -> None:
    assert prompts(TWO) == prompts(TWO)
    assert prompts(TWO) != prompts(msgspec.structs.replace(TWO, seed=1))
    ids = [token for prompt in prompts(msgspec.structs.replace(TWO, prompt_tokens=500)) for token in prompt]
    assert len(ids) == 1000
    assert min(ids) >= workload.FIRST_TOKEN
    assert max(ids) < 1000


def test_prompts_may_differ_in_length_and_begin_alike() -> None:
    mixed = msgspec.structs.replace(TWO, batch_size=4, prompt_tokens=40, min_prompt_tokens=10)
    assert [len(prompt) for prompt in prompts(mixed)] == [10, 20, 30, 40]
    alike = prompts(msgspec.structs.replace(mixed, shared_prefix_tokens=15))
    assert [len(prompt) for prompt in alike] == [10, 20, 30, 40]
    assert alike[0] == alike[1][:10]
    assert alike[1][:15] == alike[2][:15] == alike[3][:15]
    assert len({tuple(prompt[15:20]) for prompt in alike[1:]}) == 3
    one = msgspec.structs.replace(TWO, batch_size=1, prompt_tokens=40, min_prompt_tokens=10)
    assert [len(prompt) for prompt in prompts(one)] == [40]


@pytest.mark.parametrize("option", ["--min-prompt-tokens", "--shared-prefix-tokens"])
def test_no_prompt_is_longer_than_the_longest(option: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["sglang", "--out", str(tmp_path / "out"), "--prompt-tokens", "5",
                                       option, "6", "--url", "http://127.0.0.1:9"])  # fmt: skip
    assert result.exit_code == 2
    assert f"{option} is more than --prompt-tokens" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "url"),
    [
        ("--port 31000", "http://127.0.0.1:31000"),
        ("--port=31000 --host 0.0.0.0", "http://127.0.0.1:31000"),
        ("--host 10.0.0.7", "http://10.0.0.7:30000"),
        ("--host fd00::1 --port 1 --port 2", "http://[fd00::1]:2"),
    ],
)
def test_the_address_comes_from_the_command(words: str, url: str) -> None:
    assert Command(tuple(words.split())).url == url


def test_a_port_that_is_none() -> None:
    for port in ("x", "0", "70000", "-1"):
        with pytest.raises(CaptureError, match="is no port"):
            _ = Command(("--port", port)).url


def test_secrets_are_blanked_wherever_they_stand() -> None:
    words = ("python", "--api-key", "k1", "--ssl-keyfile-password=k2", "--tokenizer-path", "t", "--api-key")
    assert Command(words).blanked() == (
        "python", "--api-key", BLANKED, f"--ssl-keyfile-password={BLANKED}", "--tokenizer-path", "t", "--api-key",
    )  # fmt: skip
    info: dict[str, Any] = {
        "api_key": "k1", "admin_api_key": None, "internal_states": [{"api_key": "k1"}], "max_total_num_tokens": 5,
        "launch_command": ["x", "--api-key=k1"], "kv": {"hf_token": "k3", "port": 1},
    }  # fmt: skip
    assert server_arguments(info) == {
        "api_key": BLANKED, "admin_api_key": None, "max_total_num_tokens": 5,
        "launch_command": ["x", f"--api-key={BLANKED}"], "kv": {"hf_token": BLANKED, "port": 1},
    }  # fmt: skip


def test_the_number_of_ranks() -> None:
    sizes = {"version": "0.5.11", "tp_size": 8, "pp_size": 2, "dp_size": 4}
    assert server_facts(sizes, {}).n_ranks == 64
    assert server_facts({**sizes, "enable_dp_attention": True}, {}).n_ranks == 16
    with pytest.raises(CaptureError, match="does not tell its version"):
        server_facts({}, {})


def test_what_a_trace_lacks_is_said() -> None:
    plan = Settings(Path("x"), n_steps=30).plan
    facts = TraceFacts(30, ("decode",), "annotation", 1.0, with_stack=False, record_shapes=None, gpu=None)
    assert problems("t", facts, plan) == []
    assert problems("t", replace(facts, n_steps=29), plan) == ["t has 29 steps, not 30."]
    mixed = replace(facts, stages=("decode", "prefill"))
    assert problems("t", mixed, plan) == ["t has steps of another kind: prefill."]
    assert problems("t", mixed, replace(plan, stage="any")) == []


def test_probes_are_compared_token_by_token(manifest: Manifest) -> None:
    assert manifest.probe is not None
    same = compare_probes(manifest, manifest)
    assert (same.is_equal, same.is_bitwise, same.max_logprob_difference) == (True, True, 0.0)
    assert "The same tokens after patching: 2 greedy answers, 80 tokens" in answers_line(same)
    first, second = manifest.probe.token_ids
    other = msgspec.structs.replace(manifest.probe, token_ids=(first, (*second[:7], 999_999, *second[8:])))
    found = compare_probes(manifest, msgspec.structs.replace(manifest, probe=other))
    assert found.first_difference == (1, 7)
    assert "request 1 differs from token 7 on" in answers_line(found)
    tops = manifest.probe.top_logprobs
    assert tops is not None
    (value, token), *rest = tops[0][3]
    moved = ((*tops[0][:3], ((value + 0.25, token), *rest), *tops[0][4:]), tops[1])
    near = msgspec.structs.replace(manifest.probe, top_logprobs=moved)
    found = compare_probes(manifest, msgspec.structs.replace(manifest, probe=near))
    assert (found.is_equal, found.is_bitwise, found.max_logprob_difference) == (True, False, 0.25)
    assert "log-probabilities differ by up to 0.25" in answers_line(found)


def test_probes_of_different_questions_are_not_compared(manifest: Manifest) -> None:
    other = msgspec.structs.replace(manifest, workload=msgspec.structs.replace(manifest.workload, seed=5))
    with pytest.raises(CaptureError, match="asked different things"):
        compare_probes(manifest, other)
    with pytest.raises(CaptureError, match="without probe"):
        compare_probes(manifest, msgspec.structs.replace(manifest, probe=None))


def test_overhead_is_against_the_mean_of_the_control_runs(manifest: Manifest) -> None:
    def controls(before_ns: int, after_ns: int) -> Manifest:
        paces = [Pace(n_steps=10, n_tokens=20, wall_ns=10 * ns) for ns in (before_ns, after_ns)]
        return msgspec.structs.replace(manifest, control_before=paces[0], control_after=paces[1])

    step_ns = manifest.profile.step_ns
    assert step_ns is not None
    slow = controls(round(step_ns), round(step_ns))
    assert slow.profiler_overhead_frac == pytest.approx(0, abs=1e-6)
    quick = controls(round(step_ns / 4), round(step_ns * 3 / 4))
    assert quick.profiler_overhead_frac == pytest.approx(1, abs=1e-5)


def test_the_rig_sees_what_traceql_sees(tmp_path: Path) -> None:
    """The look at a trace's text that a machine without polars has to do with."""
    path = tmp_path / "a.trace.json.gz"
    with (FIXTURES / "sglang" / "before-graph-TP-0.trace.json.zst").open("rb") as packed:
        path.write_bytes(gzip.compress(zstandard.ZstdDecompressor().stream_reader(packed).read(), 1))
    whole = trace_facts(path)
    assert capture_rig.quick_facts(path) == replace(whole, step_ns=None, gpu=None)
    assert whole.n_steps == 30
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="damaged"):
        capture_rig.quick_facts(path)


def test_the_rig_captures_and_finishes_at_home(tmp_path: Path) -> None:
    words = ["record", "--out", str(tmp_path), *SMALL, "--no-baseline", "--", *fake()]
    assert CliRunner().invoke(capture_rig.main, words).exit_code == 0
    assert read_manifest(tmp_path).profile.step_ns is None
    assert CliRunner().invoke(capture_rig.main, ["finish", str(tmp_path)]).exit_code == 0
    (file,) = read_manifest(tmp_path).profile.files
    assert (file.n_steps, file.step_ns, read_manifest(tmp_path).problems) == (3, 1266524.5, ())


def test_the_trace_of_the_fake_server_has_the_steps_recorded(tmp_path: Path) -> None:
    for n_steps in (2, 3):
        path = tmp_path / f"{n_steps}.json.gz"
        path.write_bytes(trace_bytes(0, n_steps, with_stack=False))
        assert trace_facts(path).n_steps == n_steps


def test_a_log_streams_to_its_file_while_the_server_runs(tmp_path: Path) -> None:
    code = "import time; print('one', flush=True); time.sleep(60)"
    with server.running_server([sys.executable, "-c", code], {}, tmp_path / "log") as process:
        until(lambda: process.last_line() == "one")
        assert process.exit_status is None


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError), server.running_server(["true"], {}, tmp_path / "none" / "log"):
        pass


def test_a_server_that_has_hardly_begun_is_ended_too(tmp_path: Path) -> None:
    """While a process becomes another program its environment, by which it is known, cannot be read."""
    for _ in range(20):
        with server.running_server(["sleep", "60"], {}, tmp_path / "log"):
            pass


def test_a_server_may_be_run_from_another_thread(tmp_path: Path) -> None:
    """Signals can be handled in the main thread only; ending works in any."""
    seen: list[int | None] = []

    def work() -> None:
        with server.running_server(["sleep", "60"], {}, tmp_path / "log") as process:
            seen.append(process.exit_status)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert seen == [None]
