"""Baselines: recordings as files, and the command that keeps them."""

import io
import json
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result
from conftest import FIXTURES
from msgspec import structs
from polars.testing import assert_frame_equal

from traceql.analyses.diff import diff
from traceql.analyses.recording import FORMAT_VERSION, SUFFIX, TABLES, Recording
from traceql.cli.baseline import SUFFIX as CLI_SUFFIX
from traceql.cli.baseline import command, named
from traceql.cli.diff import command as diff_command
from traceql.diffing import is_baseline
from traceql.errors import InputError
from traceql.run import load_run

TINY = FIXTURES / "glm5" / "tiny-pool-eager-TP-0.json.gz"
GRAPH = FIXTURES / "sglang" / "before-graph-TP-0.trace.json.zst"


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.of(load_run([TINY], cache=False))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: object) -> Result:
    return CliRunner().invoke(command, [*map(str, args)])


def save(name: str, *more: object) -> Result:
    return run("save", name, TINY, "--no-cache", *more)


def fault(result: Result) -> str:
    """The message of an error that the command raises on purpose."""
    assert isinstance(result.exception, Exception), result.output
    return str(result.exception)


# --- the file


def test_what_is_saved_is_what_is_loaded(recording, tmp_path):
    path = tmp_path / f"one{SUFFIX}"
    recording.save(path)
    again = Recording.load(path)
    assert again.facts == recording.facts
    for name in TABLES:
        assert_frame_equal(getattr(again, name), getattr(recording, name))
    assert diff([recording], [again]).verdict == "same"


def test_the_same_recording_is_the_same_file(recording):
    assert recording.to_bytes() == Recording.of(load_run([TINY], cache=False)).to_bytes()


def test_a_baseline_is_small_enough_to_commit():
    assert len(Recording.of(load_run([GRAPH], cache=False)).to_bytes()) < 200_000


def test_a_file_cut_short_or_altered_is_an_error_of_the_input(recording, tmp_path):
    path, data = tmp_path / f"cut{SUFFIX}", recording.to_bytes()
    for length in range(0, len(data), 997):
        path.write_bytes(data[:length])
        with pytest.raises(InputError, match="not a baseline, or damaged"):
            Recording.load(path)
    for place in range(0, len(data), 211):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        with suppress(InputError):  # a byte of a date or of a flag that nobody reads may be any
            assert Recording.load(path).steps.height == recording.steps.height


def rewritten(data: bytes, **entries: bytes) -> bytes:
    """The zip with other entries in place of those of these names (without suffix)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            new.writestr(name, entries.get(name.split(".")[0], old.read(name)))
    return buffer.getvalue()


def test_a_newer_format_says_so(recording, tmp_path):
    path = tmp_path / f"new{SUFFIX}"
    manifest = json.dumps({"traceql_baseline": FORMAT_VERSION + 1, "facts": "of another shape"}).encode()
    path.write_bytes(rewritten(recording.to_bytes(), manifest=manifest))
    with pytest.raises(InputError, match=f"format {FORMAT_VERSION + 1}, not {FORMAT_VERSION}"):
        Recording.load(path)


def other_columns() -> bytes:
    buffer = io.BytesIO()
    pl.DataFrame({"rank": [1]}).write_parquet(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "entries",
    [
        {"manifest": b"\xff\xfe"},
        {"manifest": b"[" * 100_000},
        {"manifest": b'{"traceql_baseline": "one"}'},
        {"steps": b"PAR1 and nothing else PAR1"},
        {"steps": b""},
        {"steps": other_columns()},
    ],
    ids=lambda entries: str(entries)[:40],
)
def test_entries_that_are_not_what_they_should_be(recording, tmp_path, entries):
    path = tmp_path / f"odd{SUFFIX}"
    path.write_bytes(rewritten(recording.to_bytes(), **entries))
    with pytest.raises(InputError, match="not a baseline, or damaged"):
        Recording.load(path)


def test_a_file_that_is_not_there_or_a_folder(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError):
            Recording.load(path)


def test_a_baseline_is_known_by_its_content(recording, tmp_path):
    path = tmp_path / "no-suffix"
    recording.save(path)
    assert is_baseline(path)
    assert not is_baseline(TINY)
    assert not is_baseline(tmp_path)
    assert is_baseline(tmp_path / f"missing{SUFFIX}")


# --- the command


def test_the_suffix_is_one():
    assert CLI_SUFFIX == SUFFIX


def test_save_list_show_compare_remove(project):
    assert "no baselines" in run("list").output
    assert "saved" in save("main").output
    (path,) = (project / ".traceql" / "baselines").iterdir()
    assert path.name == "main.traceql-baseline"
    assert "main" in run("list").output
    assert "2 unknown steps, median" in run("show", "main").output
    assert str(named("main")) in run("show", named("main")).output
    compared = CliRunner().invoke(diff_command, ["--baseline", "main", str(TINY), "--no-cache"])
    assert compared.output.startswith("same step")
    by_path = CliRunner().invoke(diff_command, [str(path), str(TINY), "--no-cache"])
    assert by_path.output == compared.output
    assert "removed" in run("remove", "main").output
    assert not list((project / ".traceql" / "baselines").iterdir())
    assert "there is no baseline main" in fault(run("remove", "main"))
    assert "there is no baseline main" in fault(run("show", "main"))


def test_nothing_is_overwritten_without_force(project):
    save("main")
    before = named("main").read_bytes()
    assert "exists" in fault(save("main"))
    assert save("main", "--force").exit_code == 0
    assert named("main").read_bytes() == before


def test_a_baseline_that_cannot_be_made_leaves_the_old_one(project):
    save("main")
    before = named("main").read_bytes()
    broken = project / "broken.json"
    broken.write_text("nothing")
    assert run("save", "main", broken, "--force", "--no-cache").exception
    empty = FIXTURES / "cases" / "31-empty-events.json"
    assert "no complete step" in fault(run("save", "main", empty, "--force", "--no-cache"))
    assert named("main").read_bytes() == before
    assert [path.name for path in named("main").parent.iterdir()] == ["main.traceql-baseline"]


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "..", "a b", "a\nb", "ü", "x" * 101, "-x/", "a\x00b"])
def test_names_that_might_be_paths(project, name):
    with pytest.raises(InputError, match="is no name for a baseline"):
        named(name)
    assert run("save", "--no-cache", "--", name, TINY).exception
    assert not (project / ".traceql").exists()


def test_the_list_survives_a_damaged_baseline_and_shows_no_escapes(project, recording):
    save("good")
    named("bad").write_bytes(b"PK")
    facts = structs.replace(recording.facts, name="\x1b[31mevil")
    replace(recording, facts=facts).save(named("evil"))
    output = run("list").output
    assert "(damaged, or of another version)" in output
    assert "good" in output
    assert "\x1b" not in output
    assert "\x1b" not in run("show", "evil").output
