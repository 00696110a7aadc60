"""`traceql ingest hf://...`: huggingface_hub itself, against a hub on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import FIXTURES
from fake_hub import LFS_BYTES, TOKEN, FakeHub, Repository, serving

from traceql.capture.manifest import sha256
from traceql.cli import main
from traceql.errors import InputError, OutputError
from traceql.fleet import ingesting, sources, task
from traceql.fleet.hub import HubFolder

FILES = [FIXTURES / "glm5" / f"tiny-pool-graph-TP-{rank}.json.gz" for rank in (0, 1)]
OTHER = FIXTURES / "glm5" / "tiny-gather-graph-TP-1.json.gz"
LARGE = FIXTURES / "glm5" / "tiny-pool-eager-TP-1.json.gz"
REPO = "hf://datasets/lab/traces"
SETTINGS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A hub, and the library as it is imported where HF_ENDPOINT names it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[name]
    with serving(FakeHub()) as hub, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("NO_PROXY", "127.0.0.1,localhost")
        for name in SETTINGS:
            patch.delenv(name, raising=False)
        pytest.importorskip("huggingface_hub")
        yield hub


@pytest.fixture
def hub(served):
    """The same hub with a dataset of its own; nothing was asked yet."""
    night = {f"2026-01/night/{file.name}": file.read_bytes() for file in FILES}
    main_files = {"README.md": b"# Traces", "2026-01/notes.json.txt": b"", **night, "other/run 1@x.json": b"no trace"}
    served.repositories = {
        "datasets/lab/traces": Repository({
            "main": main_files,
            "refs/pr/1": {"proposed.json.gz": FILES[1].read_bytes()},
            "eager/old": {"TP-1.json.gz": LARGE.read_bytes()},
        }),
        "spaces/lab/viewer": Repository({"main": {FILES[0].name: FILES[0].read_bytes()}}),
        "datasets/lab/secret": Repository({"main": {FILES[0].name: FILES[0].read_bytes()}}, is_private=True),
        "datasets/lab/gated": Repository({"main": {FILES[0].name: FILES[0].read_bytes()}}, is_gated=True),
    }  # fmt: skip
    served.asked.clear()
    return served


def ingest(paths, store):
    found = sources.sources([*map(str, paths)])
    return ingesting.ingest(found, store, lambda tasks: ((each, task.ingest_file(each)) for each in tasks))


def outcome_of(source):
    """What a worker makes of a file that it cannot fetch."""
    return task.ingest_file(task.Task(source=source, store="unused", recipe=task.Recipe(), tables=()))


def run(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (REPO, [*(f"2026-01/night/tiny-pool-graph-TP-{rank}.json.gz" for rank in (0, 1)), "other/run 1@x.json"]),
        (f"{REPO}/2026-01/", [f"2026-01/night/tiny-pool-graph-TP-{rank}.json.gz" for rank in (0, 1)]),
        (f"{REPO}@main/2026-*/*TP-[1-9]*", ["@main/2026-01/night/tiny-pool-graph-TP-1.json.gz"]),
        (f"{REPO}/other/run 1@x.json", ["other/run 1@x.json"]),
        (f"{REPO}@refs/pr/1", ["@refs/pr/1/proposed.json.gz"]),
        (f"{REPO}@refs%2Fpr%2F1/*", ["@refs%2Fpr%2F1/proposed.json.gz"]),
        (f"{REPO}@eager%2Fold/TP-1.json.gz", ["@eager%2Fold/TP-1.json.gz"]),
        ("HF://spaces/lab/viewer", ["hf://spaces/lab/viewer/tiny-pool-graph-TP-0.json.gz"]),
    ],
)  # fmt: skip
def test_what_a_url_names(url, expected, hub):
    """Folders with all below them, patterns, single files; of a branch, a reference or the default revision."""
    found = [source.origin.location for source in sources.sources([url])]
    whole = [REPO + each if each.startswith("@") else f"{REPO}/{each}" for each in expected if ":" not in each]
    assert found == whole + [each for each in expected if ":" in each]
    assert not hub.fetched()


def test_a_folder_is_ingested_once_and_a_new_commit_changes_what_it_changes(hub, tmp_path):
    url, store = f"{REPO}/2026-01", tmp_path / "store"
    report = ingest([url], store)
    run = f"{url}/night/tiny-pool-graph"
    assert sorted(entry.slot for entry in report.ingested) == [(run, 0), (run, 1)]
    assert {entry.digest for entry in report.ingested} == {sha256(file) for file in FILES}
    assert any("traceql/" in agent for agent in hub.agents)

    hub.asked.clear()
    assert (ingest([url], store).n_known, hub.fetched()) == (2, [])
    files = hub.repositories["datasets/lab/traces"].revisions["main"]
    files["README.md"] = b"# More traces"
    files[f"2026-01/night/{FILES[1].name}"] = OTHER.read_bytes()
    report = ingest([url], store)
    assert (report.n_known, len(report.ingested), len(report.replaced)) == (1, 1, 1)
    assert hub.fetched() == [f"main/2026-01/night/{FILES[1].name}"]
    assert ingest([url], store).n_known == 2


def test_a_large_file_lies_elsewhere_and_no_copy_stays(hub, tmp_path, monkeypatch):
    assert LARGE.stat().st_size >= LFS_BYTES > FILES[0].stat().st_size
    (source,) = sources.sources([f"{REPO}@eager%2Fold"])
    assert source.origin.n_bytes == LARGE.stat().st_size
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sources.remote_at(source.folder).download(source.name, tmp_path / "copy.json.gz")
    assert (tmp_path / "copy.json.gz").read_bytes() == LARGE.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["copy.json.gz"]
    assert not [*Path(os.environ["HF_HOME"]).rglob("*.json*")]


def test_the_token_is_that_of_the_library(hub, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="there is no such repository, or it is private"):
        sources.sources(["hf://datasets/lab/secret"])
    (failure,) = ingest(["hf://datasets/lab/gated"], tmp_path / "store").failed
    assert failure.reason == "hf://datasets/lab/gated: the repository is gated"
    assert "HF_TOKEN" in failure.hint
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name in ("gated", "secret"):
        (source,) = sources.sources([f"hf://datasets/lab/{name}"])
        sources.remote_at(source.folder).download(source.name, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == FILES[0].read_bytes()


@pytest.mark.parametrize(
    ("url", "message", "hint"),
    [
        ("hf://datasets/lab/none", "no such repository", "HF_TOKEN"),
        (f"{REPO}@none/x.json", "no such revision", "what follows the @"),
        (f"{REPO}/none", "no such file or folder", "the revision"),
        (f"{REPO}/none.json", "there is no file none.json", "the revision"),
        (f"{REPO}/*.xz", "holds no trace", "*.json.xz"),
        ("hf://datasets/lab", "names no repository", "hf://datasets/OWNER/REPO"),
        ("hf://datasets/*/traces/x.json", "names no repository", "hf://datasets/OWNER/REPO"),
        ("hf://dataset/lab/traces", "names no repository", "hf://datasets/OWNER/REPO"),
        ("hf://lab/model", "no dataset or space", "hf://spaces/OWNER/REPO"),
        ("hf://buckets/lab/traces", "no dataset or space", "hf://spaces/OWNER/REPO"),
    ],
)
def test_what_is_not_there_is_an_error(url, message, hint, hub, tmp_path):
    result = run("ingest", url, "--to", tmp_path / "store")
    said = " ".join(result.stderr.split())
    assert (result.exit_code, message in said, hint in said) == (2, True, True), said
    assert not (tmp_path / "store").exists()


def test_a_file_that_is_gone_and_a_hub_that_is_gone(hub, monkeypatch):
    """Only the second may be another time."""
    (source,) = sources.sources([f"{REPO}/2026-01/*TP-0*"])
    del hub.repositories["datasets/lab/traces"].revisions["main"][f"2026-01/night/{FILES[0].name}"]
    outcome = outcome_of(source)
    assert isinstance(outcome, task.Failed)
    assert (outcome.reason, outcome.is_final) == (f"{source.folder}: there is no such file or folder", True)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OutputError, match="refused") as caught:
        HubFolder(source.folder).head(source.name)
    assert "HF_ENDPOINT" in caught.value.hint


def test_offline(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE") as caught:
        sources.sources([REPO])
    assert "Unset it" in caught.value.hint
    origin = sources.Origin(location=f"{REPO}/x.json", n_bytes=1, state="")
    outcome = outcome_of(sources.Source(origin=origin, json_bytes=1))
    assert isinstance(outcome, task.Failed)
    assert "HF_HUB_OFFLINE" in outcome.reason
    assert not hub.asked


def test_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    result = run("ingest", REPO, "--to", tmp_path / "store")
    said = " ".join(result.stderr.split())
    assert (result.exit_code, "takes huggingface_hub" in said, "traceql[hf]" in said) == (2, True, True)


@pytest.mark.parametrize("arguments", [("ingest", FILES[0], "--to"), ("tables",), ("trend",)])
def test_it_has_no_stores(arguments):
    result = run(*arguments, f"{REPO}/store")
    assert (result.exit_code, "has no stores, only traces" in " ".join(result.stderr.split())) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_workers_fetch_for_themselves(engine, hub, tmp_path):
    if engine == "ray":
        pytest.importorskip("ray")
    command = [sys.executable, "-m", "traceql", "ingest", f"{REPO}/2026-01", f"{REPO}/other", "--to", "store"]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    result = subprocess.run(
        [*command, "--engine", engine, "--jobs", "1"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert result.returncode == 1, result
    assert "2 of 3 files ingested (1 run), 1 failed" in " ".join(result.stdout.split())
    assert len(hub.fetched()) == 3
