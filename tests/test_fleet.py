"""Stores of many traces: what is in them, what happens when an ingest is disturbed, and questions about them."""

import gc
import gzip
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import msgspec
import polars as pl
import psutil
import pytest
import zstandard
from click.testing import CliRunner
from conftest import FIXTURES
from msgspec import structs
from polars.testing import assert_frame_equal
from waiting import until

import traceql
from traceql.analyses.idle import idle_gaps
from traceql.analyses.pace import pace
from traceql.analyses.results import RESULTS
from traceql.analyses.summary import summarize
from traceql.cli import main
from traceql.errors import InputError, MissingDataError, OutputError, QueryError
from traceql.fleet import ingesting, kept, local, placing, sources, task
from traceql.fleet.asking import query_store, table_of
from traceql.fleet.manifest import Entry, Origin, Recipe, data_path
from traceql.fleet.source import Source
from traceql.fleet.storage import UNFINISHED, LocalStorage, RemoteStorage, is_remote, place
from traceql.fleet.store import Store
from traceql.ingest.meta import TraceMeta
from traceql.rules import built_in_rules, run_rules

GLM5 = (FIXTURES / "glm5").resolve()
POOL, GATHER = (str(GLM5 / f"tiny-{name}-graph") for name in ("pool", "gather"))
"""Names of runs: paths, as no store is beside the fixtures."""
EAGER = GLM5 / "tiny-pool-eager-TP-1.json.gz"
GRAPH = FIXTURES / "sglang" / "before-graph-TP-0.trace.json.zst"
FILES = [GLM5 / f"tiny-{name}-TP-{rank}.json.gz" for name in ("pool-graph", "gather-graph") for rank in (0, 1)]
NAMES = [*kept.wanted(())]


def in_process(tasks):
    """An engine that needs no process: what is tested is not how tasks are spread."""
    return ((each, task.ingest_file(each)) for each in tasks)


def ingest(paths, store, **options):
    found = sources.sources([*map(str, paths)])
    return ingesting.ingest(found, store, in_process, ingesting.Options(**options))


def run(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


def command(*arguments):
    return [sys.executable, "-m", "traceql", *map(str, arguments)]


def frames(location):
    """All tables of a store."""
    store = Store.open(location)
    return {name: table_of(store, name).collect() for name in NAMES}


def assert_same(location, expected):
    for name, frame in frames(location).items():
        assert_frame_equal(frame, expected[name])


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A store of FILES, ingested with nothing in the way. Not to be changed."""
    location = tmp_path_factory.mktemp("fleet") / "store"
    assert len(ingest(FILES, location).ingested) == 4
    return location


@pytest.fixture(scope="module")
def undisturbed(base):
    """Its tables."""
    return frames(base)


@pytest.fixture
def filled(base, tmp_path):
    """A copy of it."""
    shutil.copytree(base, tmp_path / "store")
    return tmp_path / "store"


# --- what is in a store


@pytest.mark.parametrize("path", [pytest.param(GRAPH, marks=pytest.mark.slow), EAGER], ids=["graph", "eager"])
def test_tables_are_those_of_the_single_commands(path, tmp_path):
    """Whatever a store says of a trace, the trace says itself, to the nanosecond."""
    ingest([path], tmp_path / "store")
    store, trace = Store.open(tmp_path / "store"), traceql.load(path)
    n_rows = 0
    for name in kept.KEPT:
        direct = RESULTS[name].make(trace)
        names = [column for column in direct.columns if column != "rank"]
        assert_frame_equal(table_of(store, name).collect().select(names), direct.select(names))
        n_rows += direct.height
    assert n_rows > 100
    found = table_of(store, "findings").collect().select(kept.FINDINGS.names)
    assert_frame_equal(found, run_rules(trace, built_in_rules()).table)
    summary, row = summarize(trace), table_of(store, "traces").collect().row(0, named=True)
    for figure in ("n_windows", "wall_ns", "busy_ns", "idle_ns", "outside_kernel_ns", "scope"):
        assert row[figure] == getattr(summary, figure)
    assert row["rank"] == trace.meta.rank or trace.meta.rank is None
    assert row["n_kernels"] == trace.kernels.collect().height


@pytest.mark.slow
def test_commands_say_the_same(tmp_path):
    ingest([EAGER], tmp_path / "store")
    summary = json.loads(run("summarize", EAGER, "--format", "json").stdout)
    sql = "SELECT c.category, c.exclusive_ns, t.wall_ns, t.idle_ns FROM categories c JOIN traces t ON c.run = t.run"
    rows = json.loads(run("query", tmp_path / "store", sql, "--format", "json").stdout)["rows"]
    direct = {row["category"]: row["exclusive_ns"] for row in summary["categories"]}
    assert {row["category"]: row["exclusive_ns"] for row in rows} == direct
    assert {(row["wall_ns"], row["idle_ns"]) for row in rows} == {(summary["wall_ns"], summary["idle"]["idle_ns"])}
    assert sum(direct.values()) + summary["idle"]["idle_ns"] == rows[0]["wall_ns"]


def test_other_tables_are_kept_when_asked_for(filled):
    store = filled
    with pytest.raises(MissingDataError, match="does not keep kernels"):
        query_store(Store.open(store), "SELECT * FROM kernels")
    report = ingest(FILES[:1], store, more_tables=("kernels",))
    assert len(report.replaced) == 1
    kernels = query_store(Store.open(store), "SELECT * FROM Kernels")
    direct = traceql.load(FILES[0]).kernels.collect()
    assert_frame_equal(kernels.select(direct.columns), direct)
    assert ingest(FILES, store).n_known == 4
    assert query_store(Store.open(store), "SELECT COUNT(*) FROM kernels").item() == direct.height


@pytest.mark.parametrize("once", [summarize, pace, idle_gaps], ids=lambda function: function.__name__)
def test_what_several_tables_need_is_worked_out_once(once):
    """As long as the trace is there, and not longer."""
    trace = traceql.load(FILES[0], cache=False)
    assert once(trace) is once(trace)
    kept = weakref.ref(trace)
    del trace
    gc.collect()
    assert kept() is None


def test_files_say_what_made_them(base):
    file = next((base / "traces" / f"run={quote(POOL, safe='')}" / "rank=0").iterdir())
    metadata = pl.read_parquet_metadata(file)
    assert metadata["traceql_store_format"] == "1"
    assert metadata["traceql_traceql"] == traceql.__version__
    assert file.name.startswith(metadata["source_sha256"][:16])


def test_a_store_is_plain_hive_partitioned_parquet(base, undisturbed):
    rows = pl.read_parquet(base / "step_facts", hive_partitioning=True)
    assert rows.group_by("run", "rank").len().height == 4
    assert rows["wall_ns"].sum() == undisturbed["step_facts"]["wall_ns"].sum()


# --- ingesting again


def states(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in Path(folder).rglob("*.*") if path.is_file()}


def test_again_changes_nothing(filled, undisturbed):
    store = filled
    before = states(store)
    report = ingest(FILES, store)
    assert (report.n_known, report.ingested) == (4, [])
    assert states(store) == before
    assert_same(store, undisturbed)


def test_a_touched_file_is_the_same_and_a_copy_is_passed_over(tmp_path):
    file, copy = tmp_path / "a-TP-0.json.gz", tmp_path / "b-TP-0.json.gz"
    shutil.copy(FILES[0], file)
    ingest([file], tmp_path / "store")
    os.utime(file, ns=(0, 0))
    report = ingest([file], tmp_path / "store")
    assert (report.n_known, report.ingested, report.copies) == (1, [], [])
    shutil.copy(file, copy)
    report = ingest([file, copy], tmp_path / "store")
    assert [location for location, _ in report.copies] == [str(copy)]
    assert [entry.run for entry in Store.open(tmp_path / "store").entries] == ["a"]


def test_a_changed_file_takes_the_place_of_what_was_there(tmp_path):
    file, store = tmp_path / "run-TP-0.json.gz", tmp_path / "store"
    shutil.copy(FILES[0], file)
    ingest([file], store, labels={"commit": "old"})
    shutil.copy(FILES[2], file)
    report = ingest([file], store)
    assert (len(report.ingested), len(report.replaced)) == (1, 1)
    assert query_store(Store.open(store), "SELECT commit FROM traces").rows() == [(None,)]  # it was the other's
    expected = summarize(traceql.load(FILES[2])).wall_ns
    assert query_store(Store.open(store), "SELECT wall_ns FROM traces").rows() == [(expected,)]
    n_files = len([*store.rglob("*.parquet")])
    assert ingest([file], store).n_removed == n_files // 2
    shutil.copy(FILES[0], file)  # and back: the first entry's content comes again
    ingest([file], store)
    assert query_store(Store.open(store), "SELECT COUNT(*) FROM traces").item() == 1


def test_another_version_ingests_anew_and_says_so(filled, undisturbed):
    store = filled
    path = next((store / "_traceql" / "entries").iterdir())
    entry = msgspec.json.decode(path.read_bytes(), type=Entry)
    older = structs.replace(entry, recipe=structs.replace(entry.recipe, traceql="0.0.9"))
    path.write_bytes(msgspec.json.encode(older))
    printed = " ".join(run("ingest", *FILES, "--to", store, "--jobs", 1).stdout.split())
    assert "1 of 4 files ingested (1 run), 3 there already" in printed
    assert "replaced: 1 trace that had been ingested otherwise; some were of traceql 0.0.9" in printed
    assert_same(store, undisturbed)


def test_damaged_files_are_named_and_tried_again(filled, tmp_path):
    traces = tmp_path / "traces"
    traces.mkdir()
    bad, odd = traces / "bad-TP-0.json.gz", traces / "odd\x1b[31m.json"
    bad.write_bytes(EAGER.read_bytes()[:10])
    odd.write_text("no trace")
    for n_tries in (1, 2):
        result = run("ingest", *FILES, traces, "--to", filled, "--jobs", 1)
        assert result.exit_code == 1
        printed = " ".join(result.stdout.split())
        assert "0 of 6 files ingested (0 runs), 4 there already, 2 failed" in printed
        assert "bad-TP-0.json.gz" in printed
        assert "\x1b" not in result.stdout
        failures = query_store(Store.open(filled), "SELECT file, n_tries FROM failures ORDER BY file").rows()
        assert failures == [(str(bad), n_tries), (str(odd), n_tries)]
    assert "traces/bad-TP-0.json.gz" in printed  # names alone are alike in many folders
    shutil.copy(EAGER, bad)
    assert len(ingest([bad], filled).ingested) == 1
    assert query_store(Store.open(filled), "SELECT file FROM failures").rows() == [(str(odd),)]
    assert query_store(Store.open(filled), "SELECT rank FROM traces WHERE run = 'traces/bad'").rows() == [(1,)]
    shutil.copy(EAGER, odd)  # a copy of what is there has not failed either
    assert len(ingest([odd], filled).copies) == 1
    assert not Store.open(filled).failures()


@pytest.mark.slow
def test_a_truncated_file_is_read_unless_strict(tmp_path):
    cut = FIXTURES / "cases" / "06-truncated.json.gz"
    printed = " ".join(run("ingest", cut, "--to", tmp_path / "store", "--jobs", 1).stdout.split())
    assert "1 of 1 file ingested" in printed
    assert "damaged: 1 trace, read as far as possible: " in printed
    assert query_store(Store.open(tmp_path / "store"), "SELECT n_lost FROM traces").item() > 0
    (failure,) = ingest([cut], tmp_path / "strict", strict=True).failed
    assert "without loss" in failure.reason


def test_a_file_of_several_ranks_is_refused(tmp_path):
    (failure,) = ingest([FIXTURES / "cases" / "33-merged-ranks.json"], tmp_path / "store").failed
    assert "several ranks itself" in failure.reason


# --- disturbed ingests


def workers_of(process):
    """The workers of an ingest, as processes."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    found = []
    for child in children:
        try:
            if any("fleet.task" in word for word in child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def at_work(process):
    """A worker that is in the middle of a file: it has taken more time than starting takes."""
    for worker in workers_of(process):
        try:
            if sum(worker.cpu_times()[:2]) > 0.9:
                return worker
        except psutil.NoSuchProcess:
            continue
    return None


@pytest.mark.slow
@pytest.mark.parametrize("retries", [0, 1])
def test_a_killed_worker(retries, tmp_path):
    """It costs its own file one try, and no other; the next ingest has all as if nothing had been."""
    paths = [GRAPH, FILES[0]]
    ingest(paths, tmp_path / "undisturbed")
    store = tmp_path / "store"
    arguments = command("ingest", *paths, "--to", store, "--jobs", 1, "--retries", retries)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        worker = until(lambda: at_work(process))
        os.kill(worker.pid, signal.SIGKILL)
        printed, _ = process.communicate()
    assert process.returncode == (1 if retries == 0 else 0)
    if retries == 0:
        assert "its worker was ended by SIGKILL" in " ".join(printed.split())
        killed = query_store(Store.open(store), "SELECT file FROM failures").item()
        (other,) = {str(path) for path in paths} - {killed}
        assert [entry.origin.location for entry in Store.open(store).entries] == [other]
        ingest(paths, store)
    assert_same(store, frames(tmp_path / "undisturbed"))
    assert query_store(Store.open(store), "SELECT COUNT(*) FROM failures").item() == 0


@pytest.mark.slow
def test_a_killed_ingest(tmp_path, undisturbed):
    """What it committed stays, what it left is cleaned, its workers end, and the next one goes on."""
    store = tmp_path / "store"
    with subprocess.Popen(command("ingest", *FILES, GRAPH, "--to", store, "--jobs", 2)) as process:
        until(lambda: [*store.glob("_traceql/entries/*.json")])
        left = workers_of(process)
        assert left
        process.kill()
    n_there = len(Store.open(store).entries)
    assert 1 <= n_there < 5
    until(lambda: not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in left))
    assert len(Store.open(store).entries) == n_there
    report = ingest(FILES, store)
    assert report.n_known + len(report.ingested) == 4
    ingest([GRAPH], store)
    runs = ~pl.col("run").str.ends_with("before-graph")
    for name, frame in frames(store).items():
        assert_frame_equal(frame.filter(runs), undisturbed[name])


@pytest.mark.slow
def test_ctrl_c(tmp_path):
    """It ends at once, with its workers."""
    arguments = command("ingest", GRAPH, EAGER, "--to", tmp_path / "store", "--jobs", 2)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: at_work(process))
        left = workers_of(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert not psutil.wait_procs(left, timeout=30)[1]


def test_data_without_an_entry_is_not_there(filled, undisturbed):
    """As a process leaves it that is killed between the data and the entry, or in the middle of a file."""
    store = filled
    source = sources.sources([str(EAGER)])[0]
    made = task.ingest_file(task.Task(source=source, store=str(store), recipe=Recipe(), tables=kept.wanted(())))
    assert isinstance(made, task.Made)
    orphans = [file.path for file in made.entry.tables.values() if file.path]
    assert all((store / path).is_file() for path in orphans)
    half = store / f"traces/run=x/rank=0/abc{UNFINISHED}"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"PAR1")
    own = store / "notes.txt"
    own.write_text("of the user")
    assert_same(store, undisturbed)
    assert ingest(FILES, store).n_removed == len(orphans) + 1
    assert not half.parent.exists()
    assert own.read_text() == "of the user"
    assert len(ingest([EAGER], store).ingested) == 1


def test_nobody_cleans_while_another_ingest_is_at_work(filled):
    store = filled
    orphan = store / data_path("traces", "x", 0, "0" * 64, Recipe())
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"")
    with Store.open(store).at_work() as n_removed:
        assert n_removed == 1
        orphan.parent.mkdir(parents=True)
        orphan.write_bytes(b"")
        assert ingest(FILES[:1], store).n_removed == 0
        assert orphan.exists()
    assert ingest(FILES[:1], store).n_removed == 1


def test_two_ingests_at_once(tmp_path, undisturbed):
    store = tmp_path / "store"
    with ThreadPoolExecutor(2) as pool:
        reports = [*pool.map(lambda files: ingest(files, store), (FILES[:2], FILES[:2]))]
    assert all(len(report.ingested) + report.n_known == 2 for report in reports)
    assert_same(store, {name: frame.filter(run=POOL) for name, frame in undisturbed.items()})
    assert ingest(FILES[:2], store).n_known == 2


@pytest.mark.slow
def test_two_processes_ingest_at_once(tmp_path, undisturbed):
    store = tmp_path / "store"
    processes = [
        subprocess.Popen(command("ingest", *files, "--to", store, "--jobs", 1), stdout=subprocess.PIPE, text=True)
        for files in (FILES, FILES[::-1])
    ]
    printed = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    assert len(Store.open(store).entries) == 4
    assert_same(store, undisturbed)
    assert ingest(FILES, store).n_known == 4


@pytest.mark.slow
def test_of_two_traces_of_one_rank_the_first_counts(filled, tmp_path):
    """Two ingests at once may both find the place free; readers agree on one, and the next ingest names the other."""
    store = Store.open(filled)
    ingest([EAGER], tmp_path / "other", run=POOL)
    (other,) = Store.open(tmp_path / "other").entries
    store.commit(structs.replace(other, ingested=datetime(2999, 1, 1, tzinfo=UTC)))
    assert {Path(entry.origin.location).name for entry in store.entries} == {file.name for file in FILES}
    (failure,) = ingest([FILES[1], EAGER], filled, run=POOL).failed
    assert f"run {POOL} has a rank 1 already" in failure.reason


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of a process, and /proc")
def test_a_store_that_cannot_be_written(tmp_path, undisturbed):
    """A full disk ends the ingest; nothing half is left, and there is a way on."""
    store = tmp_path / "store"
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", *command("ingest", *FILES, "--to", store, "--jobs", 1)]
    result = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "cannot be written: File too large" in result.stderr
    assert "ingest again" in result.stderr
    assert not [*store.rglob(f"*{UNFINISHED}")]
    assert not Store.open(store).entries
    ingest(FILES, store)
    assert_same(store, undisturbed)
    result = run("ingest", FILES[0], "--to", "/proc/fleet")
    assert (result.exit_code, "/proc/fleet cannot be written" in result.stderr) == (2, True)


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(OutputError, match="holds other files"):
        ingest(FILES[:1], tmp_path)
    with pytest.raises(OutputError, match="is a file"):
        ingest(FILES[:1], tmp_path / "mine.txt")
    with pytest.raises(InputError, match="would be a column"):
        ingest(FILES[:1], tmp_path / "date=2026")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_cannot_be_read_is_not_taken_for_empty(filled):
    """Else all data would be without entries, and removed by the next ingest."""
    before = set(filled.rglob("*.parquet"))
    for path in (filled / "_traceql" / "store.json", filled / "_traceql" / "entries"):
        path.rename(filled / "aside")
        path.symlink_to(path.name)  # a loop: nobody can read it, not even root
        for arguments in (["trend", filled], ["ingest", *FILES, "--to", filled, "--jobs", 1]):
            result = run(*arguments)
            assert (result.exit_code, "error: " in result.stderr) == (2, True)
        path.unlink()
        (filled / "aside").rename(path)
    assert set(filled.rglob("*.parquet")) == before
    assert ingest(FILES, filled).n_known == 4


def test_a_newer_or_damaged_store_is_refused(filled):
    mark = filled / "_traceql" / "store.json"
    for text, message in (('{"traceql_store": 99}', "format 99"), ("{", "damaged")):
        mark.write_text(text)
        with pytest.raises(InputError, match=message):
            Store.open(filled)
        with pytest.raises(InputError, match=message):
            ingest(FILES[:1], filled)


def test_an_entry_that_points_elsewhere_is_none(filled):
    """Whoever can write entries could else have other files read, or removed."""
    store = Store.open(filled)
    path = filled / store.entries[0].path
    good = path.read_bytes()
    data = store.entries[0].tables["traces"].path
    assert data
    for old, new in ((data, "../../x.parquet"), (store.entries[0].digest, "../../x")):
        path.write_bytes(good.replace(old.encode(), new.encode()))
        assert len(Store.open(filled).entries) == 3


def test_a_lost_data_file_is_an_error_and_a_damaged_entry_a_trace_to_ingest(filled):
    store = filled
    shutil.rmtree(store / "categories" / f"run={quote(POOL, safe='')}" / "rank=0")
    result = run("query", store, "SELECT * FROM categories")
    assert (result.exit_code, "missing or damaged" in result.stderr) == (2, True)
    (entry,) = (entry for entry in Store.open(store).entries if entry.slot == (POOL, 0))
    (store / entry.path).write_text("{")
    assert len(Store.open(store).entries) == 3
    assert len(ingest(FILES[:1], store).ingested) == 1
    assert run("query", store, "SELECT * FROM categories").exit_code == 0


# --- workers


@pytest.mark.slow
def test_workers_give_what_this_process_gives(tmp_path, undisturbed):
    report = ingesting.ingest(
        sources.sources([str(GLM5 / "tiny-pool-graph*")]), tmp_path / "store", partial(local.run_here, jobs=2)
    )
    assert len(report.ingested) == 2
    assert_same(tmp_path / "store", {name: frame.filter(run=POOL) for name, frame in undisturbed.items()})


def test_tasks_that_do_not_fit_together_wait():
    """One runs at a time, also where a single one asks for more than there is; none is started before."""
    found = [structs.replace(source, json_bytes=10**12) for source in sources.sources([*map(str, FILES[:2])])]
    tasks = [task.Task(source=source, store="/proc/none", recipe=Recipe(), tables=()) for source in found]
    pool = local._Pool(tasks, 0, 1, 1)
    first = pool._next()
    assert first
    with ThreadPoolExecutor(1) as threads:
        second = threads.submit(pool._next)
        time.sleep(0.05)
        assert not second.done()
        pool._give_back(first[0])
        then = second.result(timeout=60)
    assert then
    assert then[0].source == found[1]


@pytest.mark.slow
def test_progress_is_in_bytes_of_files(filled):
    told = []
    found = sources.sources([*map(str, (*FILES, EAGER))])
    for _ in range(2):
        ingesting.ingest(found, filled, in_process, progress=lambda *each: told.append(each))
    total = sum(path.stat().st_size for path in (*FILES, EAGER))
    assert told == [(total - EAGER.stat().st_size, total), (total, total)]


# --- what is ingested, and as what


def placed(location, run=None, capture=None, others=(), base="/traces", **meta):
    found = [
        Source(origin=Origin(location=f"/traces/{each}", n_bytes=1, state=""), json_bytes=1)
        for each in (location, *others)
    ]
    known = TraceMeta(name="", size_bytes=1, n_events=1, **meta)
    source = placing.with_names_told(found, lambda _: ())[0]
    place = placing.placed(source, known, capture=capture, run=run, base=base)
    return place.run, place.rank


@pytest.mark.parametrize(
    ("location", "options", "expected"),
    [
        ("job7/1699999999.123-TP-3.trace.json.gz", {}, ("job7/1699999999.123", 3)),
        ("job7/before-graph-TP-0.trace.json.zst", {"rank": 5, "world_size": 8}, ("job7/before-graph", 5)),
        ("job7/decode-rank-2.pt.trace.json", {}, ("job7/decode", 2)),
        ("job7/before.json.gz", {}, ("job7/before", 0)),
        ("job7/before.json.gz", {"rank": 0, "world_size": 1}, ("job7/before", 0)),
        # its folder says all: nothing is said twice
        ("night/before/TP-0.json.gz", {"rank": 0}, ("night/before", 0)),
        ("night/before/before-TP-1.json.gz", {}, ("night/before", 1)),
        ("night/before/rank_3.json", {}, ("night/before", 3)),
        ("TP-1.json", {}, ("traces", 1)),
        # one of several ranks whose name tells none: only the number of its rank is taken for one
        ("job7/2026-01-01.json.gz", {"rank": 0, "world_size": 8}, ("job7/2026-01-01", 0)),
        ("job7/trace_3.json.gz", {"rank": 3, "world_size": 8}, ("job7/trace", 3)),
        ("job7/3.json.gz", {"rank": 3, "world_size": 8}, ("job7", 3)),
        # folders for ranks
        ("job7/rank_3/trace.json", {}, ("job7/trace", 3)),
        ("job7/rank3/trace.json", {"rank": 3}, ("job7/trace", 3)),
        ("job7/rank3/trace.json", {"rank": 0}, ("job7/rank3/trace", 0)),
        # several numbers
        ("a-TP-0-DP-1.json", {"others": ("a-TP-0-DP-0.json",), "rank": 0, "world_size": 1}, ("a", 1)),
        ("a-TP-1-DP-1.json", {"others": ("a-TP-0-DP-0.json",), "rank": 1, "world_size": 2}, ("a", 1)),
        # captures, other places, names asked for
        ("fix/before/traces/decode-TP-1.json.gz", {"capture": "/traces/fix/before"}, ("fix/before", 1)),
        ("night/x-TP-1.json", {"base": "/elsewhere"}, ("/traces/night/x", 1)),
        ("night/x-TP-1.json", {"run": "mine"}, ("mine", 1)),
        ("night/x-TP-1.json", {"run": "{folder}: {name}, {path}"}, ("night: x, night/x", 1)),
        ("{name}/x-TP-1.json", {"run": "{folder}-{name}"}, ("{name}-x", 1)),
        ("a b/ü'\n{path}-TP-1.json", {}, ("a b/ü'\n{path}", 1)),
    ],
)  # fmt: skip
def test_run_and_rank(location, options, expected):
    assert placed(location, **options) == expected


def stamped(worker, seconds):
    """A name as torch.profiler's handler gives it, some time after 2023-11-14T22:13:20."""
    return f"log/{worker}.{1_700_000_000_000_000_000 + round(seconds * 1e9)}.pt.trace.json.gz"


VLLM = [f"dp0_pp0_tp{rank}_dcp0_ep{rank}_rank{rank}" for rank in (0, 1)]
PIDS = ["node1_4711", "node1_4712"]


@pytest.mark.parametrize(
    ("worker", "seconds", "others", "options", "expected"),
    [
        (VLLM[1], 0.5, [(VLLM[0], 0)], {"world_size": 2}, ("log/2023-11-14T22:13:20.000", 1)),
        (VLLM[1], 9.5, [(VLLM[0], 9), (VLLM[0], 0), (VLLM[1], 0.5)], {}, ("log/2023-11-14T22:13:29.000", 1)),
        (f"night_{VLLM[1]}", 0.5, [(f"night_{VLLM[0]}", 0)], {}, ("log/night.2023-11-14T22:13:20.000", 1)),
        ("worker1_step_12", 0, [("worker0_step_12", 0.5)], {}, ("log/step_12.2023-11-14T22:13:20.000", 1)),
        # named after their processes: others after a pause are of another recording
        (PIDS[1], 0.5, [(PIDS[0], 0)], {"rank": 1, "world_size": 2}, ("log/2023-11-14T22:13:20.000", 1)),
        (PIDS[1], 400, [("node1_22", 0)], {"rank": 1, "world_size": 2}, ("log/2023-11-14T22:20:00.000", 1)),
        (PIDS[1], 0.5, [(PIDS[0], 0)], {"rank": 0, "world_size": 1}, ("log/node1_4712.2023-11-14T22:13:20.500", 0)),
        (PIDS[1], 0.5, [(PIDS[0], 0)], {}, ("log/node1_4712.2023-11-14T22:13:20.500", 0)),
        ("rank_1/node1_4712", 0.5, [("rank_0/node1_4711", 0)], {}, ("log/2023-11-14T22:13:20.000", 1)),
    ],
)
def test_files_of_torch_profilers_handler(worker, seconds, others, options, expected):
    """Each rank has a time of its own in its name; what they have in common is the least."""
    assert placed(stamped(worker, seconds), others=[stamped(*other) for other in others], **options) == expected


def test_what_lies_beside_counts_whether_it_is_ingested_or_not(tmp_path):
    """So one rank alone is of the run that it is of with all others, and its rank is the same."""
    names = (
        *(stamped(VLLM[rank], rank / 2) for rank in (0, 1)),
        *(stamped(f"rank_{rank}/host_7{rank}", 9 + rank / 2) for rank in (0, 1)),
        *(f"log/x-TP-0-DP-{rank}.json" for rank in (0, 1)),
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def told(pattern):
        (source,) = sources.sources([str(tmp_path / "log" / pattern)])
        return source.rank_in_name, source.begun_ns

    assert told("*_rank1.*") == (1, 1_700_000_000_000_000_000)
    assert told("rank_1/*") == (1, 1_700_000_009_000_000_000)
    assert told("*-DP-1.json") == (1, None)


def test_a_name_too_long_for_a_folder_keeps_its_end():
    deep = f"{'ü/' * 60}night"
    names = [placed(f"{top}/{deep}/x-TP-0.json")[0] for top in ("a", "b")]
    assert all(name.endswith("/ü/night/x") and len(quote(name, safe="")) <= 240 for name in names)
    assert names[0] != names[1]


@pytest.mark.parametrize("name", ["{nmae}", "{}", "a-{rank}"])
def test_an_unknown_placeholder_is_refused(name, tmp_path):
    result = run("ingest", FILES[0], "--to", tmp_path / "store", "--run", name)
    assert (result.exit_code, "stands for nothing" in result.stderr) == (2, True)
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_names_that_cannot_be_folders(tmp_path):
    """A run's name may hold anything; what is too long or empty is refused before the work."""
    for number, name in enumerate(("a/b c=ü%\n..", "123")):
        ingest(FILES[number : number + 1], tmp_path / "store", run=name)
    assert query_store(Store.open(tmp_path / "store"), "SELECT run, rank FROM traces ORDER BY run").rows() == [
        ("123", 1), ("a/b c=ü%\n..", 0),
    ]  # fmt: skip
    assert {file.name for file in (tmp_path / "store").iterdir()} == {*NAMES, "_traceql"}
    for name in ("", "x" * 241, "__HIVE_DEFAULT_PARTITION__"):
        with pytest.raises(InputError, match="cannot name a run"):
            ingest(FILES[:1], tmp_path / "store", run=name)


def test_recordings_that_are_named_alike_are_apart_by_folder(tmp_path):
    """The usual layout. Ingested one night at a time or all at once, the runs are the same."""
    monday, tuesday = (tmp_path / "nightly" / name for name in ("mon/before", "tue/before"))
    for folder, files in ((monday, FILES[:2]), (tuesday, FILES[2:3])):
        folder.mkdir(parents=True)
        for rank, file in enumerate(files):
            shutil.copy(file, folder / f"TP-{rank}.json.gz")
    for store, given in (("at once", [[tmp_path / "nightly"]]), ("one by one", [[tuesday], [monday]])):
        assert not [failure for paths in given for failure in ingest(paths, tmp_path / store).failed]
        sql = "SELECT run, COUNT(*) AS n FROM traces GROUP BY run ORDER BY run"
        expected = [("nightly/mon/before", 2), ("nightly/tue/before", 1)]
        assert query_store(Store.open(tmp_path / store), sql).rows() == expected
    assert ingest([tmp_path / "nightly"], tmp_path / "one by one").n_known == 3


def test_two_files_of_one_rank_of_one_recording(tmp_path):
    """Only this is refused, unless the first one has gone: then it was replaced."""
    first, second = tmp_path / "x-TP-0.json.gz", tmp_path / "x-TP-0.json"
    shutil.copy(FILES[0], first)
    second.write_bytes(gzip.decompress(FILES[2].read_bytes()))
    store = tmp_path / "store"
    report = ingest([first, second], store)
    assert [failure.reason for failure in report.failed] == [f"run x has a rank 0 already, of {second}"]
    second.unlink()
    report = ingest([first], store)
    assert (report.failed, len(report.replaced)) == ([], 1)
    assert [entry.origin.location for entry in Store.open(store).entries] == [str(first)]
    assert not Store.open(store).failures()


def test_a_recording_that_moved_away_is_not_lost(tmp_path):
    """`latest` is moved to an archive, and a new one comes in its place: both are in the store then."""
    latest, archive, store = tmp_path / "latest", tmp_path / "archive", tmp_path / "store"
    latest.mkdir()
    shutil.copy(FILES[0], latest / "TP-0.json.gz")
    ingest([latest], store, labels={"commit": "old"})
    latest.rename(archive)
    latest.mkdir()
    shutil.copy(FILES[2], latest / "TP-0.json.gz")
    assert not ingest([archive, latest], store).failed
    expected = [("archive", summarize(traceql.load(FILES[0])).wall_ns, "old"),
                ("latest", summarize(traceql.load(FILES[2])).wall_ns, None)]  # fmt: skip
    sql = "SELECT run, wall_ns, commit FROM traces ORDER BY run"
    assert query_store(Store.open(store), sql).rows() == expected
    assert ingest([latest, archive], store).n_known == 2
    archive.rename(tmp_path / "far")
    report = ingest([tmp_path / "far"], store, run="archive")  # of the run that it is of already
    assert (report.n_known, report.ingested, report.copies) == (1, [], [])
    assert Store.open(store).entries[0].origin.location == str(tmp_path / "far" / "TP-0.json.gz")


def test_dates_and_hosts_come_from_the_trace_and_its_name(tmp_path):
    file = tmp_path / "gpu-node-3_647.1790857026123.pt.trace.json.gz"
    shutil.copy(EAGER, file)
    ingest([file], tmp_path / "store")
    (row,) = query_store(Store.open(tmp_path / "store"), "SELECT run, rank, host, commit, date FROM traces").rows()
    assert row[:4] == ("2026-10-01T12:17:06.123", 1, "gpu-node-3", None)
    meta = traceql.load(EAGER).meta
    assert meta.base_time_ns
    assert meta.first_event_ns
    assert row[4] == datetime.fromtimestamp((meta.base_time_ns + meta.first_event_ns) // 1000 / 10**6, UTC)


def test_what_a_capture_tells_is_labels(tmp_path):
    """Those given go before; a version built from a repository names its commit."""
    shutil.copytree(FIXTURES / "capture" / "after", tmp_path / "after")
    path = tmp_path / "after" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"0.5.11"', b'"0.5.12.dev45+g1a2b3c4.d20260131"'))
    store = tmp_path / "store"
    sql = "SELECT DISTINCT commit, model, patches, attention_backend, kv_cache_dtype FROM step_facts"
    for labels, expected in (
        ({}, ("1a2b3c4", "model", "gather-then-cast", "flashinfer", "fp8_e4m3")),
        ({"commit": "mine", "patches": "own"}, ("mine", "model", "own", "flashinfer", "fp8_e4m3")),
    ):
        ingest([tmp_path / "after"], store, labels=labels)
        assert query_store(Store.open(store), sql).rows() == [expected]
    columns = {column.name for table in kept.known().values() for column in table}
    assert not columns & {"patches", "attention_backend", "kv_cache_dtype"}


def test_labels_are_columns_of_every_table(filled):
    store = filled
    ingest(FILES[:2], store, labels={"commit": "abc", "branch": "main"})
    ingest(FILES[2:], store, labels={"commit": "def", "date": "2026-01-31"})
    sql = "SELECT DISTINCT commit, branch, date FROM categories ORDER BY commit"
    rows = query_store(Store.open(store), sql).rows()
    assert [row[:2] for row in rows if row[0] == "abc"] == [("abc", "main")] * 2  # two ranks, two dates
    assert rows[-1] == ("def", None, datetime(2026, 1, 31, tzinfo=UTC))
    before = states(store / "categories")
    report = ingest(FILES[:2], store, labels={"branch": "dev"})
    assert (report.n_known, report.n_relabelled) == (2, 2)
    assert states(store / "categories") == before
    sql = "SELECT DISTINCT commit, branch FROM traces WHERE branch IS NOT NULL"
    assert query_store(Store.open(store), sql).rows() == [("abc", "dev")]


@pytest.mark.parametrize(
    ("label", "message"),
    [("wall_ns=1", "have a column wall_ns"), ("run=x", "have a column run"), ("Two Words=1", "cannot name a label"),
     ("date=soon", "is no date"), ("commit", "is not NAME=VALUE")],
)  # fmt: skip
def test_labels_that_cannot_be(label, message, tmp_path):
    result = run("ingest", FILES[0], "--to", tmp_path / "store", "--label", label)
    assert (result.exit_code, message in result.stderr) == (2, True)
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_folders_are_taken_with_all_below(tmp_path):
    inner = tmp_path / "traces" / "a" / "b"
    inner.mkdir(parents=True)
    shutil.copy(FILES[0], inner)
    shutil.copy(FILES[1], tmp_path / "traces")
    ingest([tmp_path / "traces"], tmp_path / "traces" / "store")
    found = [source.name for source in sources.sources([str(tmp_path / "traces")])]
    assert sorted(found) == sorted([FILES[0].name, FILES[1].name])  # and nothing of the store
    (tmp_path / "empty").mkdir()
    for path, message in ((tmp_path / "empty", "holds no trace"), (tmp_path / "*.zip", "matches no file")):
        with pytest.raises(InputError, match=message):
            sources.sources([str(path)])
    with pytest.raises(InputError, match="standard input"):
        sources.sources(["-"])


def test_no_trace_is_passed_over_in_silence(tmp_path):
    """Whatever a file is named, it is found; what is none is refused before it could block, or be taken for one."""
    folder = tmp_path / "traces"
    folder.mkdir()
    names = ["a\nb-TP-0.json", "[x] {name}.json.gz", "ü 'q\" $(x).json", os.fsdecode(b"\xff.json")]
    for name in names:
        (folder / name).touch()
    assert {os.fsdecode(source.raw_path) for source in sources.sources([str(folder)])} == {
        str(folder / name) for name in names
    }
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match="no file on a disk"):
        sources.sources([str(tmp_path / "pipe.json")])
    Store.create(tmp_path / "store")
    with pytest.raises(InputError, match="there is no trace"):
        sources.sources([str(tmp_path / "store" / "**" / "*.json")])


def test_a_file_has_one_name_whichever_way_it_is_reached(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    shutil.copy(FILES[0], tmp_path / "real" / "TP-0.json.gz")
    monkeypatch.chdir(tmp_path / "real")
    for path in ("TP-0.json.gz", "../real/TP-0.json.gz", tmp_path / "link"):
        report = ingest([path], "../store")
        assert (len(report.ingested), report.copies) == (0 if report.n_known else 1, [])
    assert [entry.slot for entry in Store.open(tmp_path / "store").entries] == [("real", 0)]


def test_a_missing_file_fails_alone(tmp_path):
    report = ingest([tmp_path / "none.json", FILES[0]], tmp_path / "store")
    assert [failure.reason for failure in report.failed] == [f"{tmp_path / 'none.json'} does not exist"]
    assert len(report.ingested) == 1


def test_sizes_as_files_tell_them():
    for path, trace in ((GRAPH, traceql.load(GRAPH)), (FILES[0], traceql.load(FILES[0]))):
        assert sources.json_bytes(path) == trace.meta.size_bytes
    assert sources.json_bytes(FIXTURES / "none") == 0


@pytest.mark.parametrize("packed", [zstandard.ZstdCompressor(write_content_size=False).compress, lzma.compress])
def test_the_size_of_a_bomb_is_told_from_little_of_it(packed, tmp_path):
    """Each byte of these files is thousands: to unpack even their beginning whole takes gigabytes from a good bomb."""
    bomb = tmp_path / "bomb.json.zst"
    bomb.write_bytes(packed(bytes(1 << 24)))
    assert sources.json_bytes(bomb) == 64 * bomb.stat().st_size


# --- storages


@pytest.mark.parametrize("kind", ["folder", "objects"])
def test_storages_are_alike(kind, tmp_path):
    if kind == "objects":
        pytest.importorskip("obstore")
    storage = LocalStorage(tmp_path / "s") if kind == "folder" else RemoteStorage("memory:///")
    assert [*storage.files()] == []
    assert storage.read("a/b.json") is None
    assert storage.create("a/b.json", b"1")
    assert not storage.create("a/b.json", b"2")
    assert storage.read("a/b.json") == b"1"
    storage.write("a/b.json", b"three")
    storage.write("a/run=x%2Fy/c", b"")
    assert sorted((file.path, file.n_bytes) for file in storage.files("a")) == [("a/b.json", 5), ("a/run=x%2Fy/c", 0)]
    storage.remove("a/run=x%2Fy/c")
    storage.remove("a/run=x%2Fy/c")
    assert [file.path for file in storage.files()] == ["a/b.json"]


@pytest.mark.parametrize(
    ("given", "remote", "expected"),
    [
        ("s3://bucket/a", True, "s3://bucket/a"),
        (Path("s3://bucket/a"), True, "s3://bucket/a"),
        ("S3://bucket/a/", True, "s3://bucket/a"),
        ("file:///data/x", False, "/data/x"),
        ("data/x", False, "data/x"),
        ("a:b/x", False, "a:b/x"),
    ],
)
def test_places(given, remote, expected):
    assert is_remote(given) == remote
    assert place(given) == expected


def test_an_unknown_scheme_is_named():
    result = run("ingest", FILES[0], "--to", "ftp://host/x")
    assert (result.exit_code, "ftp is no known storage" in result.stderr) == (2, True)


# --- questions


def test_queries_of_a_store(base):
    store = base
    answer = query_store(Store.open(store), "SELECT run, COUNT(DISTINCT rank) AS n FROM step_facts GROUP BY run")
    assert sorted(answer.rows()) == [(GATHER, 2), (POOL, 2)]
    for sql, message in (
        ("SELECT * FROM kernel_stat", "unknown table 'kernel_stat'"),
        ("SELECT nme FROM kernel_stats", "unknown column 'nme'"),
        ("DROP TABLE traces", "not a query"),
    ):
        with pytest.raises(QueryError, match=message):
            query_store(Store.open(store), sql)
    with pytest.raises(QueryError) as fault:
        query_store(Store.open(store), "SELECT * FROM cuda_runtime")
    assert fault.value.hint == "It is called launches."
    for arguments in (["--steps", "1:2"], ["--stage", "decode"], ["--rank", "0"]):
        result = run("query", store, "SELECT * FROM traces", *arguments)
        assert (result.exit_code, "ask a store with WHERE" in result.stderr) == (2, True)
    assert "asked alone" in run("query", store, GRAPH, "SELECT * FROM traces").stderr


def test_a_query_opens_the_files_it_needs(base):
    plan = table_of(Store.open(base), "step_facts").filter(run=POOL, rank=1).explain()
    assert "1 other" not in plan
    assert "rank=1" in plan
    assert "rank=0" not in plan


def test_tables_of_a_store(tmp_path):
    store = tmp_path / "store"
    ingest([EAGER], store, labels={"branch": "main"}, more_tables=("spans",))
    printed = run("tables", store).stdout
    assert "1 trace of 1 run" in printed
    assert "Each begins with run, rank, date, host, commit, model, branch." in " ".join(printed.split())
    assert all(f"\n{name} " in printed for name in (*NAMES, "spans", "failures"))
    assert "control_tokens_per_s" in run("tables", store, "traces").stdout
    for arguments, message in (([store, "kernel"], "unknown table"), (["kernels", "x"], "is no store")):
        result = run("tables", *arguments)
        assert (result.exit_code, message in result.stderr) == (2, True)


# --- web servers and object stores


@pytest.mark.slow
def test_a_web_server(tmp_path):
    pytest.importorskip("obstore")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    shutil.copytree(GLM5, tmp_path / "served")
    shutil.copytree(FIXTURES / "capture" / "before", tmp_path / "served" / "before")
    side = "before/traces/decode-TP-0.trace.json.zst"
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        result = run("ingest", f"{url}/{EAGER.name}", "--to", tmp_path / "store", "--jobs", 1)
        assert result.exit_code == 0, result.stderr
        again = run("ingest", f"{url}/{EAGER.name}", "--to", tmp_path / "store", "--jobs", 1)
        assert "1 there already" in " ".join(again.stdout.split())
        captured = run("ingest", f"{url}/{side}", "--to", tmp_path / "store", "--jobs", 1)
        assert captured.exit_code == 0, captured.stderr
        missing = run("ingest", f"{url}/none.json.gz", "--to", tmp_path / "store")
        assert (missing.exit_code, "no such object" in missing.stderr) == (2, True)
        server.shutdown()
    assert [entry.slot for entry in Store.open(tmp_path / "store").entries] == [
        (f"{url}/before", 0), (f"{url}/tiny-pool-eager", 1),
    ]  # fmt: skip
    assert Store.open(tmp_path / "store").entries[0].told["patches"] == "none"


@pytest.mark.slow
def test_an_object_store(tmp_path, undisturbed):
    """Against TRACEQL_TEST_STORE, the URL of a place to write to; keys, region and endpoint are in the environment."""
    if not (given := os.environ.get("TRACEQL_TEST_STORE")):
        pytest.skip("TRACEQL_TEST_STORE names no object store")
    url = f"{given}/{os.urandom(8).hex()}"
    store = f"{url}/store"
    both = [
        subprocess.Popen(command("ingest", *files, "--to", store, "--jobs", 1), stdout=subprocess.PIPE, text=True)
        for files in (FILES, FILES[::-1])
    ]
    printed = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert_same(store, undisturbed)
    assert ingest(FILES, store).n_known == 4
    sql = "SELECT run, wall_ns FROM traces WHERE rank = 1 ORDER BY run"
    result = run("query", store, sql, "--format", "json")
    expected = undisturbed["traces"].filter(rank=1).select("run", "wall_ns").rows(named=True)
    assert json.loads(result.stdout)["rows"] == expected
    assert run("trend", store).exit_code == 0

    traces = RemoteStorage(f"{url}/traces")
    for file in FILES:
        traces.write(f"night/{file.name}", file.read_bytes())
    traces.write("night/bad.json", b"no trace")
    assert not traces.create("night/bad.json", b"other")
    result = run("ingest", f"{url}/traces", "--to", tmp_path / "store", "--jobs", 1)
    assert (result.exit_code, "4 of 5 files ingested" in " ".join(result.stdout.split())) == (1, True)
    assert_same(tmp_path / "store", undisturbed)
    pattern = f"{url}/traces/*/tiny-pool-graph*"
    assert run("ingest", pattern, "--to", tmp_path / "store", "--jobs", 1).exit_code == 0
    result = run("ingest", f"{url}/none", "--to", tmp_path / "store")
    assert (result.exit_code, "holds no trace" in result.stderr) == (2, True)
