"""Patches of a server: what they replace in which release, that it is all or nothing, and what comes out of it.

Nothing of SGLang is in this repository. Most tests patch the few lines of `sglang_sources/made.py`, in processes of
their own. Those marked `shared` read real releases: unpacked wheels, each in a folder named by its version, in the
folder that TRACEQL_SGLANG_SOURCES names (or ../shared/sglang). Tests with numbers run where torch and triton are: in
this Python, or the one that TRACEQL_TORCH_PYTHON names.
"""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sglang_sources.made import make

import traceql
from traceql.capture import patches
from traceql.capture.hook.traceql_hook import fit
from traceql.capture.hook.traceql_hook.finder import REFUSED_STATUS
from traceql.capture.patches import Patch, Report, check, environment, problems, reports
from traceql.errors import InputError

NAMES = ["annotate-layers", "gather-then-cast", "profile-decode"]
RELEASES = ["0.5.9", "0.5.11", "0.5.14", "0.5.23"]
HELPERS = Path(__file__).parent / "sglang_sources"
PATCHES = {patch.name: patch for patch in patches.patches()}

BACKEND = "sglang.srt.layers.attention.flashinfer_mla_backend"
GRAPH_RUNNER = "sglang.srt.model_executor.cuda_graph_runner"
MODEL_RUNNER = "sglang.srt.model_executor.model_runner"
UPDATER = "class FlashInferMLAIndicesUpdaterDecode"
DELETED = "del FlashInferMLAAttnBackend.forward_decode\n\n\n"
"""Then the source has it, and the class in the end has not."""
IMPORTS = f"import {BACKEND} as backend, {GRAPH_RUNNER} as graphs, {MODEL_RUNNER} as models\n"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The made package `sglang`, in a folder that is on no path."""
    return make(tmp_path / "site")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where processes report to."""
    path = tmp_path / "reports"
    path.mkdir()
    return path


def python(code: str, variables: Mapping[str, str], *paths: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs code in a process with these variables, and these folders behind what PYTHONPATH has."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRACEQL_PATCHES"))}
    path = os.pathsep.join([*filter(None, [variables.get("PYTHONPATH")]), *map(str, paths)])
    everything = {**clean, **variables, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=everything, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status, done.stderr
    return done


def told(folder: Path, patch: str, state: str) -> list[dict[str, Any]]:
    """The facts of what was reported."""
    return [report.facts for report in reports(folder) if (report.patch, report.state) == (patch, state)]


def replace(package: Path, module: str, old: str, new: str) -> None:
    """Changes a module of the made package."""
    path = package.parent.joinpath(*module.split(".")).with_suffix(".py")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


# what there is


def test_the_patches_say_what_they_are() -> None:
    assert list(PATCHES) == NAMES
    for patch in PATCHES.values():
        assert patch.doc
        assert set(patch.releases) == set(RELEASES)
        assert (patch.path / "__init__.py").is_file()
        for option in patch.options:
            environment([patch.name], {patch.name: {option.name: option.default}}, Path())


@pytest.mark.parametrize("patch", PATCHES.values(), ids=NAMES)
def test_each_role_has_code_and_the_other_way_round(patch: Patch) -> None:
    """The `wraps` of a patch returns a dictionary; its keys are the roles of each form."""
    tree = ast.parse((patch.path / "__init__.py").read_bytes())
    wraps = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "wraps")
    returned = next(node.value for node in wraps.body if isinstance(node, ast.Return))
    assert isinstance(returned, ast.Dict)
    roles = {ast.literal_eval(key) for key in returned.keys if key}
    for form in patch.forms:
        assert {target.role for target in form.targets if target.role} == roles


def test_the_hook_needs_nothing_but_python() -> None:
    """It runs in a server's processes, where traceql need not be installed."""
    for path in (patches._HOOK).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names | {"traceql_hook"}


def test_the_environment_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/first{os.pathsep}/second")
    found = environment(["profile-decode", "annotate-layers"], {"profile-decode": {"steps": "7"}}, tmp_path)
    hook, *others = found["PYTHONPATH"].split(os.pathsep)
    assert Path(hook, "sitecustomize.py").is_file()
    assert others == ["/first", "/second"]
    assert found["SGLANG_PROFILE_DECODE"] == "1"
    profile, annotate = json.loads(found["TRACEQL_PATCHES"])["patches"]
    assert profile["options"] == {"warmup-steps": "20", "steps": "7", "shapes": "on", "stack": "off"}
    assert annotate["options"] == {}
    monkeypatch.delenv("PYTHONPATH")
    assert environment(["annotate-layers"], {}, tmp_path)["PYTHONPATH"] == hook
    assert environment([], {}, tmp_path) == {}


@pytest.mark.parametrize(
    ("names", "options", "message", "hint"),
    [
        (["gather-cast"], {}, "gather-cast", "gather-then-cast"),
        (["x"], {}, "'x'", "annotate-layers, gather-then-cast, profile-decode"),
        (["gather-then-cast"], {"gather-then-cast": {"row": "5"}}, "row", "rows"),
        (["gather-then-cast"], {"gather-then-cast": {"rows": "0"}}, "rows cannot be '0'", "auto, number"),
        (["gather-then-cast"], {"gather-then-cast": {"rows": "number"}}, "rows cannot be 'number'", "auto, number"),
        (["gather-then-cast"], {"gather-then-cast": {"rows": "²"}}, "rows cannot be", "auto, number"),
        (["annotate-layers"], {"profile-decode": {"steps": "5"}}, "profile-decode", "Name the patch"),
    ],
)
def test_wrong_names_and_values_are_refused(
    names: list[str], options: dict[str, dict[str, str]], message: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        environment(names, options, tmp_path)
    assert message in error.value.message
    assert hint in error.value.hint


# does it fit


def test_a_package_that_has_it_all_fits(made: Path) -> None:
    assert check(NAMES, "0.5.11", made) == []


@pytest.mark.parametrize(
    ("module", "old", "new", "reason"),
    [
        (
            BACKEND,
            "def forward_decode",
            "def forward_decode_all",
            "FlashInferMLAAttnBackend.forward_decode is not there",
        ),
        (
            BACKEND,
            "class FlashInferMLAAttnBackend",
            "class MLABackend",
            "FlashInferMLAAttnBackend.__init__ is not there",
        ),
        (BACKEND, "layer, forward_batch):", "layer, batch, forward_batch=None, *, q_rope):", None),
        (BACKEND, "v, layer,", "v, decoder_layer,", "forward_decode has no parameter layer"),
        (BACKEND, ".to(q.dtype)", ".to(self.dtype)", "forward_decode does not contain `forward_batch.token_to_kv_pool"),
        (
            BACKEND,
            "kv_indices, kv_lens, 1",
            "kv_lens, kv_indices, 1",
            "call_begin_forward does not contain `wrapper.plan(",
        ),
        (BACKEND, "wrapper.plan(q_indptr, ", "wrapper.plan(\n                q_indptr,  # all of them\n", None),
        (GRAPH_RUNNER, "can_run", "may_run", "CudaGraphRunner.can_run is not there"),
        (GRAPH_RUNNER, "class", "class class", f"{GRAPH_RUNNER} cannot be read (SyntaxError)"),
    ],
)
def test_a_package_that_lacks_something_does_not_fit(
    made: Path, module: str, old: str, new: str, reason: str | None
) -> None:
    """What matters is what the code says, not how it is laid out."""
    replace(made, module, old, new)
    found = check(["gather-then-cast", "annotate-layers"], "0.6", made)
    assert len(found) == (reason is not None)
    if reason is not None:
        assert found[0].startswith("gather-then-cast does not fit SGLang 0.6 (it was tested with 0.5.9, ")
        assert reason in found[0]


def test_a_missing_module_does_not_fit(made: Path) -> None:
    (made / "srt/model_executor/model_runner.py").unlink()
    assert [text.partition(" ")[0] for text in check(NAMES, "0.6", made)] == ["annotate-layers", "profile-decode"]


# the hook


def test_all_targets_are_replaced_and_no_file_is_touched(made: Path, folder: Path) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    code = IMPORTS + (
        "import inspect\n"
        "decode = backend.FlashInferMLAAttnBackend.forward_decode\n"
        "print(decode.__code__.co_filename, decode.__doc__, inspect.signature(decode))\n"
    )
    output = python(code, environment(NAMES, {}, folder), made.parent).stdout.split(maxsplit=1)
    assert Path(output[0]).parent == PATCHES["gather-then-cast"].path
    assert output[1] == "What the real one says. (self, q, k, v, layer, forward_batch)\n"
    for name in NAMES:
        applied = {function for facts in told(folder, name, "applied") for function in facts["functions"]}
        form = next(form for form in PATCHES[name].forms if form.name == told(folder, name, "applied")[0]["form"])
        assert applied == {f"{target.module}.{target.function}" for target in form.targets if target.role}
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before


def test_a_process_without_the_modules_says_nothing(made: Path, folder: Path) -> None:
    python("import sglang, json", environment(NAMES, {}, folder), made.parent)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "old", "new", "reason"),
    [
        (GRAPH_RUNNER, "can_run", "may_run", f"{GRAPH_RUNNER}: CudaGraphRunner.can_run is not there"),
        (BACKEND, UPDATER, DELETED + UPDATER, f"{BACKEND}: KeyError: 'forward_decode'"),
    ],
)
def test_a_process_that_cannot_have_all_of_it_does_not_start(
    made: Path, folder: Path, module: str, old: str, new: str, reason: str
) -> None:
    """Not even where something catches all exceptions of an import; nothing was replaced by then."""
    replace(made, module, old, new)
    code = f"try:\n    import {BACKEND}\nexcept BaseException:\n    pass\nprint('went on')"
    done = python(code, environment(["gather-then-cast"], {}, folder), made.parent, status=REFUSED_STATUS)
    assert done.stdout == ""
    assert done.stderr == f"traceql: the patch gather-then-cast does not fit, so this process ends: {reason}\n"
    assert told(folder, "gather-then-cast", "refused") == [{"reasons": [reason]}]
    assert told(folder, "gather-then-cast", "applied") == []


def test_code_that_cannot_be_loaded_ends_the_process(made: Path, folder: Path) -> None:
    (made.parent / "triton/__init__.py").write_text("raise ImportError('no compiler')")
    done = python(IMPORTS, environment(["gather-then-cast"], {}, folder), made.parent, status=REFUSED_STATUS)
    assert "ImportError: no compiler" in done.stderr


def test_the_next_sitecustomize_runs_too(made: Path, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("mark = 'theirs'\nimport sys\nsys.marked = __name__\n")
    code = f"import {BACKEND}, sys, sitecustomize as s; print(sys.marked, s.mark, s.__file__)"
    done = python(code, environment(["gather-then-cast"], {}, folder), other, made.parent)
    assert done.stdout == f"sitecustomize theirs {other / 'sitecustomize.py'}\n"
    assert told(folder, "gather-then-cast", "applied")


def test_the_next_sitecustomize_may_fail(made: Path, folder: Path, tmp_path: Path) -> None:
    """As it may without the hook: Python says so and goes on, and the patches are there."""
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')")
    done = python(f"import {BACKEND}", environment(["gather-then-cast"], {}, folder), tmp_path, made.parent)
    assert "ValueError: theirs" in done.stderr
    assert told(folder, "gather-then-cast", "applied")


def test_a_hook_without_patches_changes_nothing(made: Path) -> None:
    hook = str(patches._HOOK)
    code = (
        f"import sys, {BACKEND} as b; print(len(sys.meta_path), b.FlashInferMLAAttnBackend.forward_decode.__module__)"
    )
    finders, module = python(code, {"PYTHONPATH": hook}, made.parent).stdout.split()
    assert module == BACKEND
    assert finders == python(code, {}, made.parent).stdout.split()[0]


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_child_processes_are_patched(made: Path, folder: Path, tmp_path: Path, method: str) -> None:
    """A server's schedulers are children of the process that is started."""
    if method not in __import__("multiprocessing").get_all_start_methods():
        pytest.skip(f"this system cannot {method}")
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, os\n"
        "def work(queue):\n"
        f"    import {MODEL_RUNNER} as models\n"
        "    queue.put((os.getpid(), hasattr(models.ModelRunner.load_model, '__wrapped__')))\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context('{method}')\n"
        "    queue = context.Queue()\n"
        "    child = context.Process(target=work, args=(queue,))\n"
        "    child.start()\n"
        "    print(*queue.get(timeout=30))\n"
        "    child.join()\n"
    )
    run = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    if method != "fork":  # the child imports the script, so it must be one
        run = f"import os, sys; os.execv(sys.executable, [sys.executable, {str(script)!r}])"
    pid, is_patched = python(run, environment(["annotate-layers"], {}, folder), made.parent).stdout.split()
    assert is_patched == "True"
    assert [report.pid for report in reports(folder)] == [int(pid)]


def test_a_lost_folder_stops_nothing(made: Path, folder: Path) -> None:
    variables = environment(["annotate-layers"], {}, folder)
    folder.rmdir()
    done = python(f"import {MODEL_RUNNER}; print('went on')", variables, made.parent)
    assert done.stdout == "went on\n"
    assert "traceql: annotate-layers applied, which cannot be reported" in done.stderr


def test_reports_are_in_order_and_whole(folder: Path) -> None:
    line = '{"time_s": %d, "pid": 5, "patch": "p", "state": "on", "n_rows": 3}\n'
    (folder / "patches-5.jsonl").write_text(line % 2 + (line % 3)[:20])
    (folder / "patches-6.jsonl").write_text(line % 1)
    (folder / "other.txt").write_text("{")
    found = reports(folder)
    assert [report.time_s for report in found] == [1, 2]
    assert found[0].facts == {"n_rows": 3}
    assert reports(folder / "not there") == []


def test_problems_are_told_once() -> None:
    said = [
        Report(time_s=1, pid=5, patch="p", state="applied", facts={"functions": ["f"]}),
        Report(time_s=2, pid=5, patch="p", state="on", facts={"n_rows": 3}),
        Report(time_s=3, pid=5, patch="p", state="fallback", facts={"reason": "too many", "n_batches": 1}),
        Report(time_s=4, pid=5, patch="p", state="fallback", facts={"reason": "too many", "n_batches": 2048}),
        Report(time_s=5, pid=6, patch="p", state="fallback", facts={"reason": "too many", "n_batches": 1024}),
        Report(time_s=6, pid=6, patch="q", state="off", facts={"reason": "no pool"}),
        Report(time_s=7, pid=7, patch="q", state="off", facts={"reason": "no pool"}),
    ]
    assert problems(said) == [
        "p left batches as they were: too many (at least 2,048 in a process)",
        "q leaves the server as it is: no pool",
    ]
    assert problems(said[:2]) == []


# what the patches do, by the made package


def test_layers_get_spans_while_something_records(made: Path, folder: Path) -> None:
    code = IMPORTS + (
        "import torch\n"
        "runner, draft = models.ModelRunner(), models.ModelRunner(is_draft_worker=True)\n"
        "runner.load_model(), draft.load_model()\n"
        "outputs = [runner.forward(None, 1)]\n"
        "torch.profiler.profile().start()\n"
        "outputs += [runner.forward(None, 1), draft.forward(None, 1), runner.model.towers[0].forward(1)]\n"
        "print(outputs, torch.spans)\n"
    )
    done = python(code, environment(["annotate-layers"], {}, folder), made.parent)
    assert done.stdout == "[11, 11, 11, 101] ['layers.0', 'layers.1', 'layers.2', 'layers.3', 'layers.4']\n"
    assert told(folder, "annotate-layers", "on") == [{"n_layers": 5}]


DECODE = (
    IMPORTS
    + """
import torch, sys
from types import SimpleNamespace as Namespace

def batch(mode):
    name = Namespace(name=mode, is_decode=lambda: mode == "DECODE")
    return Namespace(forward_mode=name, batch_size=8, extend_num_tokens=64 if mode == "EXTEND" else None)

runner, draft = models.ModelRunner(), models.ModelRunner(is_draft_worker=True)
runner.load_model(), draft.load_model()
"""
)


def test_decode_steps_are_recorded_after_the_warm_up(made: Path, folder: Path) -> None:
    """4 of warm-up and 3 recorded; prefill and draft passes are not counted, and no second recording begins."""
    code = DECODE + (
        "for _ in range(20):\n"
        "    for mode in ('EXTEND', 'DECODE'):\n"
        "        runner.forward(batch(mode)), draft.forward(batch(mode))\n"
        "print(len(torch.profiles), torch.profiles[0].options, torch.spans)"
    )
    options = {"profile-decode": {"warmup-steps": "4", "steps": "3"}}
    done = python(code, environment(["profile-decode"], options, folder), made.parent)
    assert done.stdout.startswith("1 {'record_shapes': True, 'with_stack': False} [")
    decode, extend = "'step[DECODE bs=8]'", "'step[EXTEND bs=8 toks=64]'"
    assert done.stdout.endswith(f"[{', '.join([decode, extend, decode, extend, decode])}]\n")
    (recorded,) = told(folder, "profile-decode", "recorded")
    trace, summary = (Path(name) for name in recorded["files"])
    assert recorded["n_steps"] == 3
    assert trace.name.endswith("-TP-3-DECODE.trace.json.gz")
    assert trace.read_text() == "5"
    assert summary.read_text() == "self_cpu_time_total"
    assert {path.suffix for path in folder.iterdir()} == {".gz", ".txt", ".jsonl"}


def test_a_release_with_annotations_gets_no_second_ones(made: Path, folder: Path) -> None:
    signature = "def forward(self, forward_batch, x=0):"
    replace(made, MODEL_RUNNER, signature, f"{signature}\n        step_span_ctx = 'its own'")
    code = DECODE + "for _ in range(9): runner.forward(batch('DECODE'))\nprint(torch.spans)"
    options = {"profile-decode": {"warmup-steps": "1", "steps": "3"}}
    done = python(code, environment(["profile-decode"], options, folder), made.parent)
    assert done.stdout == "[]\n"
    assert len(told(folder, "profile-decode", "recorded")) == 1


def test_recording_can_be_switched_off_and_can_fail(made: Path, folder: Path) -> None:
    code = DECODE + "for _ in range(9): runner.forward(batch('DECODE'))\nprint(len(torch.profiles))"
    options = {"profile-decode": {"warmup-steps": "1", "steps": "3"}}
    variables = environment(["profile-decode"], options, folder)
    assert python(code, variables | {"SGLANG_PROFILE_DECODE": "0"}, made.parent).stdout == "0\n"
    failing = "import torch\ndef full(*args): raise OSError(28, 'No space left on device')\n"
    failing += "torch.Profile.export_chrome_trace = full\n"
    assert python(failing + code, variables, made.parent).stdout == "1\n"
    assert told(folder, "profile-decode", "failed") == [{"reason": "OSError: [Errno 28] No space left on device"}]


# real releases


def release(version: str) -> Path:
    """The folder of the package of a real release; the test is skipped where it is not at hand."""
    root = Path(os.environ.get("TRACEQL_SGLANG_SOURCES") or Path(__file__).parents[2] / "shared" / "sglang")
    package = root / version / "sglang"
    if not package.is_dir():
        pytest.skip(f"SGLang {version} is not unpacked in the folder that TRACEQL_SGLANG_SOURCES names")
    return package


def form_of(patch: Patch, package: Path) -> patches.Form:
    """The form of a patch that fits a release."""
    found, reasons = fit.choose(patches._forms(patch), package)
    assert found is not None, reasons
    return next(form for form in patch.forms if form.name == found["name"])


@pytest.mark.shared
@pytest.mark.parametrize("version", RELEASES)
def test_all_targets_are_replaced_in_real_releases(version: str, folder: Path) -> None:
    package = release(version)
    assert check(NAMES, version, package) == []
    targets = [target for name in NAMES for target in form_of(PATCHES[name], package).targets]
    modules = sorted({target.module for target in targets})
    done = run_helper("replaced.py", [str(package), *modules], environment(NAMES, {}, folder), sys.executable)
    assert done == sorted({target.function for target in targets if target.role})


@pytest.mark.shared
@pytest.mark.parametrize("version", RELEASES)
def test_real_releases_know_the_arguments_that_are_asked_for(version: str) -> None:
    """A name that is no argument would switch the patch off."""
    package = release(version)
    texts = [(package / "srt/server_args.py").read_text()]
    texts += [path.read_text() for path in (package / "srt/arg_groups/fields").glob("*.py")]
    for name in [*form_of(PATCHES["gather-then-cast"], package).server_args, "disable_radix_cache"]:
        assert any(f"\n    {name}: " in text for text in texts), name


# numbers


def run_helper(script: str, arguments: list[str], variables: Mapping[str, str], interpreter: str) -> Any:
    """What a script of `sglang_sources` prints, as JSON."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [interpreter, str(HELPERS / script), *arguments],
        env={**clean, **variables, "TRITON_INTERPRET": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@cache
def torch_python() -> str | None:
    """A Python that has torch and triton, if there is one."""
    for candidate in filter(None, (os.environ.get("TRACEQL_TORCH_PYTHON"), sys.executable)):
        if not subprocess.run([candidate, "-c", "import torch, triton"], capture_output=True, check=False).returncode:
            return candidate
    return None


@pytest.fixture
def with_torch() -> str:
    """A Python with torch and triton; the test is skipped where there is none."""
    found = torch_python()
    if found is None:
        pytest.skip("neither this Python nor TRACEQL_TORCH_PYTHON has torch and triton")
    return found


@pytest.mark.slow  # torch takes seconds to import, and Triton's interpreter runs kernels in Python
def test_kernel_and_shared_slots_do_as_plain_torch_does(with_torch: str) -> None:
    found = run_helper("gathered_rows.py", [str(PATCHES["gather-then-cast"].path)], {}, with_torch)
    assert {name for results in found.values() for name, is_right in results.items() if not is_right} == set()
    assert (len(found["kernel"]), len(found["shared"])) == (32, 7)


@pytest.mark.slow  # as above
def test_a_real_recording_has_steps_and_layers(made: Path, folder: Path, with_torch: str) -> None:
    """With the real torch around the made model: what is recorded is a trace in which each step has its layers."""
    (made.parent / "torch.py").unlink()
    script = made.parent / "script.py"
    code = DECODE + "for _ in range(9): runner.forward(batch('DECODE'), torch.ones(8))\nprint('null')"
    script.write_text(code)
    options = {"profile-decode": {"warmup-steps": "2", "steps": "4"}}
    run_helper(str(script), [], environment(["profile-decode", "annotate-layers"], options, folder), with_torch)
    (recorded,) = told(folder, "profile-decode", "recorded")
    trace, summary = (Path(name) for name in recorded["files"])
    assert "aten::add" in summary.read_text()
    spans = traceql.load(trace, cache=False).spans.sort("start_ns").collect()["name"].to_list()
    step = ["step[DECODE bs=8]", *(f"layers.{number}" for number in range(5))]
    assert [name for name in spans if name in step] == step * 4


@pytest.mark.slow  # as above, and needs a real release
@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(("rows", "shares"), [("auto", "off"), ("auto", "on"), ("60", "off"), ("60", "on")])
def test_gathered_attention_is_the_same_bit_for_bit(
    version: str, rows: str, shares: str, folder: Path, with_torch: str
) -> None:
    """Of a release's own backend: decode, eager and replayed, and prefill; padded batches, common prefixes, batches
    that do not fit.
    """
    package = release(version)
    options = {"gather-then-cast": {"rows": rows, "share-prefixes": shares}}
    found = run_helper("attention.py", [str(package)], environment(["gather-then-cast"], options, folder), with_torch)
    assert found["written first"]
    assert found["prefilled first"]
    assert found["a wrong row shows"]
    assert found["left as they are"] == [True] * 4
    assert found["rows"] == {("auto", "off"): 264, ("auto", "on"): 256}.get((rows, shares), 60)
    too_many = 0
    for batch in found["batches"]:
        fits = rows == "auto" or batch["n_listed"] + batch["n_padding"] <= 60
        assert batch["eager"]
        assert batch["admitted"] == fits
        if fits:
            assert batch["graph"]
            assert batch["graph_plain"]
            assert batch["n_gathers"] == batch["n_graph_gathers"] == 3
        else:
            assert "cannot run this batch" in batch["refused"]
        if batch["n_listed"] > found["rows"] and rows == "60":
            assert batch["n_gathers"] == 0
            too_many += 1
        elif shares == "on" and "n_packed" in batch:
            assert batch["n_packed"] == batch["n_slots"]
    for batch in found["prefill"]:
        fits = rows == "auto" or batch["n_listed"] <= 60
        assert batch["is_same"]
        assert batch["n_gathers"] == 3 * fits
        too_many += not fits
    assert len(found["prefill"]) >= 7
    counted = [facts["n_batches"] for facts in told(folder, "gather-then-cast", "fallback")]
    assert counted == [n for n in (1, 2, 4, 8, 16) if n <= too_many]
    assert (too_many > 0) == (rows == "60")
    assert any(batch["n_padding"] for batch in found["batches"])
    assert any(batch["n_slots"] < batch["n_listed"] for batch in found["batches"])
