"""The cache: what is written comes back, and nothing that happens to its files or folder hurts a command."""

import os
import random
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import polars as pl
import pytest

from traceql.ingest import cache
from traceql.ingest.cache import CacheKey
from traceql.tables import INPUT_TABLES

INFO = b'{"name": "a.json", "\xc3\xa9": [1, null]}'
TABLES = {
    "kernels": pl.DataFrame(
        {
            "kernel_id": pl.Series([1, 2, 3], dtype=pl.Int64),
            "rank": pl.Series([0, 0, 1], dtype=pl.Int16),
            "addr": pl.Series([0, None, 2**64 - 1], dtype=pl.UInt64),
            "name": ["a<b>", None, "é�"],
            "kind": pl.Series(["x", "y", "x"], dtype=pl.Enum(["x", "y"])),
            "dims": [[1, 2], [], None],
            "share_frac": [0.5, float("nan"), float("inf")],
        }
    ),
    **{table.name: table.empty() for table in INPUT_TABLES if table.name != "kernels"},
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A cache folder of the test's own; it does not exist yet."""
    monkeypatch.setenv("TRACEQL_CACHE_DIR", str(tmp_path / "deep" / "cache"))
    monkeypatch.delenv("TRACEQL_CACHE_MAX_GB", raising=False)
    return tmp_path / "deep" / "cache"


@pytest.fixture
def trace(tmp_path) -> Path:
    path = tmp_path / "a.json"
    path.write_text("{}")
    return path


@pytest.fixture
def key(trace) -> CacheKey:
    return known(CacheKey.of(trace, 1))


def known(key: CacheKey | None) -> CacheKey:
    assert key is not None
    return key


def assert_whole(found: cache.Cached | None, tables: dict[str, pl.DataFrame] = TABLES) -> None:
    assert found is not None
    assert found.info == INFO
    assert list(found.tables) == list(tables)
    for name, frame in tables.items():
        assert found.tables[name].collect().equals(frame)
        assert found.tables[name].collect_schema() == frame.schema


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_what_is_written_comes_back(key, folder):
    assert cache.read(key) is None
    assert cache.write(key, TABLES, INFO)
    assert_whole(cache.read(key))
    assert [path.name for path in entries(folder)] == [key.file_name]


def test_only_the_columns_asked_for_are_read(key):
    cache.write(key, TABLES, INFO)
    found = cache.read(key)
    assert found
    plan = found.tables["kernels"].select("rank").explain()
    assert "PROJECT 1/7 COLUMNS" in plan


def test_no_tables(key):
    assert cache.write(key, {}, b"")
    assert cache.read(key) == ({}, b"")


def test_frames_of_many_chunks(key):
    parts = [pl.DataFrame({"a": [n], "b": [str(n)]}) for n in range(500)]
    frame = pl.concat(parts, rechunk=False)
    assert cache.write(key, {"t": frame}, INFO)
    assert_whole(cache.read(key), {"t": frame})


def test_the_files_are_the_users_own(key, folder):
    cache.write(key, TABLES, INFO)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / key.file_name).stat().st_mode & 0o777 == 0o600


def test_writing_again_replaces(key, folder):
    cache.write(key, {"t": pl.DataFrame({"a": [1]})}, b"old")
    old = cache.read(key)
    assert cache.write(key, TABLES, INFO)
    assert_whole(cache.read(key))
    assert len(entries(folder)) == 1
    assert old
    assert old.tables["t"].collect().rows() == [(1,)]  # who opened the old one keeps it


def test_a_reader_outlives_clearing(key):
    cache.write(key, TABLES, INFO)
    found = cache.read(key)
    assert cache.clear().n_entries == 1
    assert_whole(found)


# Keys


def test_a_key_knows_the_file_and_how_it_is_read(trace, key):
    assert CacheKey.of(trace, 1) == key
    assert CacheKey.of(trace, 2) != key
    assert CacheKey.of(trace, 1, "other categories") != key
    os.utime(trace, ns=(0, key.mtime_ns + 1))
    assert CacheKey.of(trace, 1) != key
    os.utime(trace, ns=(0, key.mtime_ns))
    assert CacheKey.of(trace, 1) == key
    trace.write_text("[ ]")
    os.utime(trace, ns=(0, key.mtime_ns))
    assert CacheKey.of(trace, 1) != key


def test_another_file_of_the_same_size_and_time(trace, key):
    other = trace.with_name("other.json")
    other.write_text("[]")
    os.utime(other, ns=(0, key.mtime_ns))
    other.replace(trace)
    assert CacheKey.of(trace, 1) != key


def test_a_link_is_the_file_it_points_to(trace, key, monkeypatch):
    link = trace.with_name("link.json")
    link.symlink_to(trace)
    assert CacheKey.of(link, 1) == key
    monkeypatch.chdir(trace.parent)
    assert CacheKey.of(Path("a.json"), 1) == key


def test_what_has_no_key(tmp_path, folder):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (tmp_path / "missing.json", Path("-"), tmp_path, pipe, loop, Path("a\0b"), Path("/dev/null")):
        assert CacheKey.of(path, 1) is None
    assert cache.read(None) is None
    assert not cache.write(None, TABLES, INFO)
    assert not folder.exists()


def test_a_path_that_is_not_utf_8(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json"))
    try:
        path.write_text("{}")
    except OSError:
        pytest.skip("this file system wants UTF-8 names")
    key = known(CacheKey.of(path, 1))
    assert cache.write(key, TABLES, INFO)
    assert_whole(cache.read(key))
    (entry,) = cache.info()
    assert entry.trace
    assert entry.trace.endswith("\\xff.json")


# Damage


def test_no_damage_gives_anything_else_than_the_tables_or_nothing(key, folder):
    """Each byte that matters is under a checksum; the others (dates in the zip, say) change nothing."""
    tables = {"t": TABLES["kernels"]}
    cache.write(key, tables, INFO)
    path = folder / key.file_name
    whole = path.read_bytes()
    n_absent = 0
    for at in random.Random(3).sample(range(len(whole)), 600):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        if (found := cache.read(key)) is None:
            n_absent += 1
        else:
            assert_whole(found, tables)
    assert n_absent > 300
    path.write_bytes(whole)
    assert_whole(cache.read(key), tables)


@pytest.mark.parametrize("n_bytes", [0, 1, 100, -1, -30])
def test_a_cut_off_entry_is_absent(key, folder, n_bytes):
    cache.write(key, TABLES, INFO)
    path = folder / key.file_name
    path.write_bytes(path.read_bytes()[:n_bytes])
    assert cache.read(key) is None
    assert [entry.trace for entry in cache.info()] == [None]
    assert cache.write(key, TABLES, INFO)
    assert_whole(cache.read(key))


def rewritten(path: Path, change) -> None:
    """Packs an entry again, each member's bytes passed through `change(name, data)`; None leaves it out."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            if (changed := change(name, data)) is not None:
                file.writestr(name, changed)


@pytest.mark.parametrize("member", ["kernels.parquet", "info.json", "manifest.json"])
def test_an_entry_without_one_of_its_parts_is_absent(key, folder, member):
    cache.write(key, TABLES, INFO)
    rewritten(folder / key.file_name, lambda name, data: data)
    assert_whole(cache.read(key))
    rewritten(folder / key.file_name, lambda name, data: None if name == member else data)
    assert cache.read(key) is None


@pytest.mark.parametrize("member", ["kernels.parquet", "manifest.json"])
@pytest.mark.parametrize("foreign", [b"", b"{}", b"PAR1PAR1"])
def test_an_entry_with_something_else_in_it_is_absent(key, folder, member, foreign):
    cache.write(key, TABLES, INFO)
    rewritten(folder / key.file_name, lambda name, data: foreign if name == member else data)
    assert cache.read(key) is None


def test_other_columns_or_rows_than_the_manifest_says(key, folder, tmp_path):
    other = tmp_path / "other.parquet"
    for frame in (
        TABLES["kernels"].drop("rank"),
        TABLES["kernels"].head(2),
        TABLES["kernels"].cast({"rank": pl.Int8}),
    ):
        frame.write_parquet(other)
        cache.write(key, TABLES, INFO)
        rewritten(
            folder / key.file_name,
            lambda name, data: other.read_bytes() if name == "kernels.parquet" else data,
        )
        assert cache.read(key) is None


def test_the_entry_of_another_trace_under_this_name(key, folder, tmp_path):
    other = tmp_path / "b.json"
    other.write_text("{}")
    other_key = known(CacheKey.of(other, 1))
    cache.write(other_key, TABLES, INFO)
    (folder / other_key.file_name).rename(folder / key.file_name)
    assert cache.read(key) is None


def test_a_folder_in_place_of_the_entry(key, folder):
    (folder / key.file_name / "x").mkdir(parents=True)
    assert cache.read(key) is None
    assert not cache.write(key, TABLES, INFO)
    assert [path.name for path in entries(folder)] == [key.file_name]
    assert cache.info() == []
    assert cache.clear() == (0, 0)


# No room, no folder


def test_a_file_in_place_of_the_folder(key, folder):
    folder.parent.mkdir()
    folder.write_text("x")
    assert not cache.write(key, TABLES, INFO)
    assert cache.read(key) is None
    assert cache.info() == []
    assert cache.clear() == (0, 0)
    assert folder.read_text() == "x"


def test_a_folder_that_may_not_be_written(key, folder):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    cache.write(key, TABLES, INFO)
    folder.chmod(0o500)
    try:
        assert_whole(cache.read(key))
        assert not cache.write(known(CacheKey.of(folder / key.file_name, 1)), TABLES, INFO)
    finally:
        folder.chmod(0o700)
    assert len(entries(folder)) == 1


def test_no_home(monkeypatch, key):
    monkeypatch.delenv("TRACEQL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/home")
    assert str(cache.cache_dir()).startswith("/dev/null/home")
    assert not cache.write(key, TABLES, INFO)
    assert cache.read(key) is None


def test_a_user_without_a_home(tmp_path, trace):
    """As in a container run under a number: no HOME and no entry in the list of users."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from traceql.ingest import cache\n"
        "os.setuid(54321)\n"
        "print(cache.write(cache.CacheKey('x', 1, 1, 1, 1, ''), {}, b''), cache.cache_dir())\n"
    )
    bare = {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
    shown = subprocess.check_output([sys.executable, "-c", script], env=bare, cwd=Path(__file__).parents[1], text=True)
    assert shown.split() == ["False", "/dev/null/traceql"]


WRITE = (
    "import sys, polars as pl\n"
    "from pathlib import Path\n"
    "from traceql.ingest import cache\n"
    "key = cache.CacheKey.of(Path(sys.argv[1]), 1)\n"
    "frame = pl.DataFrame({'a': range(300_000)}).with_columns(b=pl.col('a').hash())\n"
)


def test_a_full_disk(trace, folder):
    """No file may grow beyond 100 kB: a real write error in the middle of the entry, as on a full disk."""
    pytest.importorskip("resource")
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    script = WRITE + "print(cache.write(key, {'t': frame}, b'{}'), cache.read(key))\n"
    command = [sys.executable, "-W", "error", "-c", limit + script, str(trace)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False", "None"]
    assert shown.stderr == ""
    assert entries(folder) == []
    shown = subprocess.run([sys.executable, "-c", script, str(trace)], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("True Cached")


def test_two_processes_at_once(trace, folder):
    """Writers replace each other's entry, readers see a whole one or none, and nothing is left over."""
    write = WRITE + "for _ in range(10): assert cache.write(key, {'t': frame}, b'{}')\n"
    read = WRITE + (
        "seen = 0\n"
        "while seen < 10:\n"
        "    if (found := cache.read(key)) is not None:\n"
        "        assert found.tables['t'].collect().equals(frame)\n"
        "        seen += 1\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script, str(trace)]) for script in (write, write, read)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert len(entries(folder)) == 1


# Room


def aged(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def filled(tmp_path: Path, folder: Path, n: int) -> list[CacheKey]:
    """Entries of n traces, the first of them the longest unused."""
    keys: list[CacheKey] = []
    for at in range(n):
        trace = tmp_path / f"{at}.json"
        trace.write_text("{}")
        keys.append(known(CacheKey.of(trace, 1)))
        assert cache.write(keys[-1], TABLES, INFO)
        aged(folder / keys[-1].file_name, 1000 - at)
    return keys


def held(keys: list[CacheKey]) -> list[bool]:
    return [cache.read(key) is not None for key in keys]


def test_the_longest_unused_go_first(tmp_path, folder, key, monkeypatch):
    keys = filled(tmp_path, folder, 4)
    assert cache.read(keys[0])  # used again
    n_bytes = (folder / keys[0].file_name).stat().st_size
    monkeypatch.setenv("TRACEQL_CACHE_MAX_GB", str(3.5 * n_bytes / 1e9))
    assert cache.write(key, TABLES, INFO)
    assert held([*keys, key]) == [True, False, False, True, True]


@pytest.mark.parametrize("limit", ["0", "-1", "0.000000001"])
def test_a_limit_that_nothing_fits(key, folder, monkeypatch, limit):
    monkeypatch.setenv("TRACEQL_CACHE_MAX_GB", limit)
    assert not cache.write(key, TABLES, INFO)
    assert not folder.exists() or entries(folder) == []


@pytest.mark.parametrize("limit", ["", "plenty", "1e9", "inf"])
def test_a_limit_that_does_not_matter(key, monkeypatch, limit):
    monkeypatch.setenv("TRACEQL_CACHE_MAX_GB", limit)
    assert cache.write(key, TABLES, INFO)
    assert_whole(cache.read(key))


def test_other_states_of_the_trace_go(tmp_path, folder, trace, key):
    (other,) = filled(tmp_path, folder, 1)
    cache.write(key, TABLES, INFO)
    extra = known(CacheKey.of(trace, 1, "extra"))
    cache.write(extra, TABLES, INFO)
    assert held([other, key, extra]) == [True, True, True]  # the same state, read in another way, stays
    trace.write_text("{ }")
    newer = known(CacheKey.of(trace, 1))
    cache.write(newer, TABLES, INFO)
    assert held([other, key, extra, newer]) == [True, False, False, True]


def test_what_a_killed_process_left_goes_after_a_day(key, folder):
    folder.mkdir(parents=True)
    old, new = folder / "old.traceql-unfinished", folder / "new.traceql-unfinished"
    for path in (old, new):
        path.write_bytes(b"1234")
    aged(old, 2 * 24 * 3600)
    cache.write(key, TABLES, INFO)
    assert not old.exists()
    assert new.exists()


def test_info_and_clear(tmp_path, folder):
    assert cache.info() == []
    assert cache.clear() == (0, 0)
    keys = filled(tmp_path, folder, 3)
    foreign = folder / "notes.txt"
    foreign.write_text("mine")
    (folder / "x.traceql-unfinished").write_text("12345")
    listed = cache.info()
    assert [entry.trace for entry in listed] == [key.path for key in reversed(keys)]
    sizes = [(folder / key.file_name).stat().st_size for key in keys]
    assert sorted(entry.n_bytes for entry in listed) == sorted(sizes)
    assert listed[0].last_used.timestamp() == pytest.approx(time.time() - 998, abs=100)
    assert cache.clear() == (3, sum(sizes) + 5)
    assert entries(folder) == [foreign]


def test_where_it_is(monkeypatch, tmp_path):
    assert cache.cache_dir() == tmp_path / "deep" / "cache"
    monkeypatch.setenv("TRACEQL_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_dir().name == "traceql"
    assert cache.cache_dir().is_absolute()
