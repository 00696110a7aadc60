"""Runs: which files they are, whose ranks, one clock and one set of keys, and figures that stay those of each rank."""

import gzip
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import make_trace
import polars as pl
import pytest
from conftest import FIXTURES
from polars.testing import assert_frame_equal

import traceql
from traceql import run
from traceql.analyses import kernel_steps, step_categories, steps, summarize
from traceql.analyses.rank_stats import RunSummary, rank_stats, summarize_run
from traceql.analyses.summary import Selection
from traceql.errors import InputError, MissingDataError
from traceql.ingest.ranks import in_words, ranks_in_names
from traceql.ingest.trace_files import trace_files
from traceql.report import ranks_page
from traceql.report.page import View
from traceql.report.rank_report import RankReport
from traceql.run import files_at_once, load_run, only_ranks
from traceql.tables import INPUT_TABLES
from traceql.trace import Trace

GLM5 = FIXTURES / "glm5"
PAIRS = ["pool-eager", "gather-eager", "pool-graph", "gather-graph", "pool-nomark", "pool-stack"]
KEYS = {"kernel_id": "kernels", "launch_id": "launches", "op_id": "ops", "python_call_id": "python_calls",
        "span_id": "spans", "sync_id": "syncs", "memory_id": "memory", "thread_id": "threads"}  # fmt: skip


def pair(name: str) -> list[Path]:
    return [GLM5 / f"tiny-{name}-TP-{rank}.json.gz" for rank in range(2)]


def loaded(*paths: str | Path, **options: Any) -> Trace:
    return load_run(paths, cache=False, **options)


def small(path: Path, dur_us: int = 10, **keys: Any) -> Path:
    """A file of one kernel under one op; `rank`, `world_size`, `gpu`, `base_ns` and `ts` as asked for."""
    ts = keys.pop("ts", 100)
    about: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": keys.pop("base_ns", 1_761_955_200_000_000_000)}
    if gpus := keys.pop("gpus", ("Sample GPU",)):
        about["deviceProperties"] = [{"id": number, "name": name} for number, name in enumerate(gpus)]
    if keys:
        about["distributedInfo"] = keys
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": ts, "dur": 5}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": ts + 20, "dur": dur_us}
    events = [call | {"args": {"correlation": 3}}, kernel | {"args": {"device": 0, "stream": 7, "correlation": 3}}]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(about | {"traceEvents": events}))
    return path


def ranks(trace: Trace) -> dict[str, int | None]:
    return {part.name: part.rank for part in trace.parts}


def notes(trace: Trace) -> dict[str, str]:
    return {quirk.id: quirk.text for quirk in trace.quirks}


def refusal(*paths: str | Path, **options: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        loaded(*paths, **options)
    assert caught.value.hint
    return caught.value


# --- figures of a run are those of its files ---


@pytest.mark.parametrize("name", PAIRS)
def test_each_rank_has_the_figures_of_its_own_file(name: str) -> None:
    paths = pair(name)
    whole = loaded(*paths)
    assert whole.kernels.select("rank").unique().collect()["rank"].sort().to_list() == [0, 1]
    for rank, path in enumerate(paths):
        alone = traceql.load(path, cache=False)
        one = only_ranks(whole, [rank])
        assert (one.meta.name, one.meta.rank, one.meta.world_size) == (path.name, rank, 2)
        shift = (alone.meta.first_event_ns or 0) - (whole.meta.first_event_ns or 0)
        expected = steps(alone).with_columns(pl.col("start_ns") + shift)
        assert_frame_equal(steps(whole).filter(rank=rank), expected)
        assert_frame_equal(step_categories(whole).filter(rank=rank), step_categories(alone))
        assert_frame_equal(summarize(one).kernels, summarize(alone).kernels)
        assert_frame_equal(summarize(one).ops, summarize(alone).ops)


def test_the_sums_of_a_run_are_those_of_its_files() -> None:
    paths = pair("gather-eager")
    whole, parts = summarize(loaded(*paths)), [summarize(traceql.load(path, cache=False)) for path in paths]
    assert whole.wall_ns == sum(part.wall_ns for part in parts)
    assert whole.idle_ns == sum(part.idle_ns for part in parts)
    assert whole.n_windows == sum(part.n_windows for part in parts)
    sums = pl.concat(part.categories for part in parts).group_by("category").agg(pl.sum("exclusive_ns"))
    got = whole.categories.select("category", "exclusive_ns")
    assert_frame_equal(got.sort("category"), sums.sort("category"))


@pytest.mark.parametrize("name", ["gather-eager", "pool-stack"])
def test_keys_are_unique_and_lead_to_the_same_rows(name: str) -> None:
    paths = pair(name)
    whole, parts = loaded(*paths), [traceql.load(path, cache=False) for path in paths]
    for key, table in KEYS.items():
        values = getattr(whole, table).select(key).collect()[key]
        assert values.sort().to_list() == list(range(len(values)))
    for table in INPUT_TABLES:
        table.check(getattr(whole, table.name).collect())
    assert links(whole) == sorted((row for part in parts for row in links(part)), key=repr)


def links(trace: Trace) -> list[tuple[Any, ...]]:
    """Each activity by what its keys lead to: launch, thread of the launch, op, parent of the op."""
    threads = trace.threads.select("thread_id", "tid", of_rank="rank")
    calls = trace.launches.select("launch_id", "thread_id", call="name").join(threads, on="thread_id")
    names = trace.ops.select("op_id", "parent_id", op="name")
    parents = trace.ops.select(parent_id="op_id", parent="name")
    rows = (
        trace.kernels.select("rank", "name", "dur_ns", "launch_id", "op_id")
        .join(calls, on="launch_id", how="left")
        .join(names.join(parents, on="parent_id", how="left"), on="op_id", how="left")
    )
    columns = ("rank", "name", "dur_ns", "call", "tid", "of_rank", "op", "parent")
    return sorted(rows.select(columns).collect().rows(), key=repr)


def test_times_of_all_ranks_are_on_one_clock() -> None:
    folder = FIXTURES / "cases" / "13-two-base-times"
    trace = loaded(folder)
    assert trace.kernels.select("rank", "start_ns").collect().rows() == [(0, 0), (1, 625)]
    assert trace.meta.span_ns == 250_625
    assert "no-common-clock" not in notes(trace)


def test_a_file_without_an_absolute_time_begins_at_zero_and_so_do_all(tmp_path: Path) -> None:
    small(tmp_path / "rank0.json", ts=500)
    path = small(tmp_path / "rank1.json", ts=900)
    path.write_text(path.read_text().replace("baseTimeNanoseconds", "other"))
    trace = loaded(tmp_path)
    assert trace.kernels.select("rank", "start_ns").collect().rows() == [(0, 20_000), (1, 20_000)]
    assert "cannot be compared" in notes(trace)["no-common-clock"]
    assert trace.meta.first_event_ns is None


def test_a_file_without_events_does_not_move_the_clock(tmp_path: Path) -> None:
    small(tmp_path / "rank0.json", ts=500)
    small(tmp_path / "rank1.json", ts=900)
    (tmp_path / "rank2.json").write_text('{"traceEvents": [], "schemaVersion": 1}')
    trace = loaded(tmp_path)
    assert trace.kernels.select("rank", "start_ns").collect().rows() == [(0, 20_000), (1, 420_000)]
    assert summarize_run(trace).n_windows == 2


def test_the_order_of_the_files_changes_nothing(tmp_path: Path) -> None:
    paths = [small(tmp_path / f"rank{rank}.json", 10 + rank, rank=rank, world_size=3) for rank in (0, 1, 2)]
    expected = loaded(*paths)
    for order in itertools.permutations(paths):
        trace = loaded(*order)
        assert (trace.meta, trace.parts, trace.quirks) == (expected.meta, expected.parts, expected.quirks)
        for table in KEYS.values():
            assert_frame_equal(getattr(trace, table).collect(), getattr(expected, table).collect())


def test_from_the_cache_it_is_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEQL_CACHE_DIR", str(tmp_path))
    expected = loaded(*pair("pool-eager"))
    for trace in (load_run(pair("pool-eager")), load_run(pair("pool-eager"))):
        assert trace.meta == expected.meta
        assert_frame_equal(trace.kernels.collect(), expected.kernels.collect())
        assert_frame_equal(kernel_steps(trace), kernel_steps(expected))


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_synthetic_ranks_keep_their_walls(n_ranks: int, tmp_path: Path) -> None:
    case = make_trace.Case(ranks=n_ranks, steps=3, layers=4, skew_us=50)
    for rank in range(n_ranks):
        with (tmp_path / f"{rank}.json").open("wb") as file:
            make_trace.make_rank(case, rank, file)
    found = steps(loaded(tmp_path)).filter("is_complete")
    for rank in range(n_ranks):
        wall = sum(make_trace.part_times(case, rank).values())
        assert found.filter(rank=rank)["wall_ns"].to_list() == [wall, wall]


# --- which files ---


def found(*paths: str | Path) -> list[str]:
    return [file.path.name for file in trace_files(paths)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three ranks, and what lies beside traces."""
    for rank in (10, 2, 0):
        small(tmp_path / f"x-TP-{rank}.trace.json")
    (tmp_path / "x-TP-2.trace.json").rename(tmp_path / "x-TP-2.pt.trace.json")
    (tmp_path / "notes.txt").write_text("no")
    (tmp_path / ".hidden.json").write_text("[]")
    small(tmp_path / "below" / "y-TP-0.json")
    return tmp_path


NAMES = ["x-TP-0.trace.json", "x-TP-2.pt.trace.json", "x-TP-10.trace.json"]


def test_a_folder_is_its_traces_in_order_of_number(folder: Path) -> None:
    assert found(folder) == NAMES


def test_a_pattern_finds_what_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(f"{folder}/x-TP-?.*") == NAMES[:2]
    assert found(f"{folder}/**/*-TP-0*") == ["y-TP-0.json", NAMES[0]]
    assert found(f"{folder}/bel*") == ["y-TP-0.json"]
    monkeypatch.chdir(folder / "below")
    assert found("../x-TP-1*") == [NAMES[2]]
    assert found("*.json") == ["y-TP-0.json"]


def test_a_pattern_is_what_the_shell_makes_of_it(folder: Path) -> None:
    quoted, unquoted = loaded(f"{folder}/x-*"), loaded(*sorted(folder.glob("x-*")))
    assert (quoted.meta, quoted.quirks) == (unquoted.meta, unquoted.quirks)


def test_a_file_named_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    path = small(tmp_path / "a[0]?.json")
    assert found(path) == [path.name]


def test_a_file_counts_once_by_whatever_path(folder: Path) -> None:
    (folder / "z-link-TP-0.json").symlink_to(folder / NAMES[0])
    (folder / "z-hard-TP-0.json").hardlink_to(folder / NAMES[0])
    assert found(folder / NAMES[0], folder, folder / "below" / ".." / NAMES[0]) == NAMES
    assert len(loaded(folder).parts) == 3


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ("empty", "empty holds no trace", "A trace is named"),
        ("*.nothing", "matches no file", "sub-folders"),
        (".", "holds no trace", "Sub-folders hold some: a, b, c and 1 more"),
    ],
)
def test_nothing_found_says_where_to_look(
    given: str, message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        small(tmp_path / name / "t.json")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    error = refusal(given)
    assert message in error.message
    assert hint in error.hint


def test_a_missing_file_is_named() -> None:
    assert "nowhere.json does not exist" in refusal(pair("pool-graph")[0], "nowhere.json").message


def test_standard_input_is_no_part_of_a_run() -> None:
    assert "alone" in refusal("-", pair("pool-graph")[0]).message


def test_what_is_no_trace_in_a_folder_is_left_out_and_named(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"tokens_per_s": 10}')
    (folder / "results.json").write_text('[{"a": 1}, {"a": 2}]')
    (folder / "empty.json.gz").write_bytes(b"")
    trace = loaded(folder)
    assert len(trace.parts) == 3
    assert "empty.json.gz, manifest.json, results.json." in notes(trace)["not-a-trace"]
    assert "manifest.json is no trace" in refusal(folder, folder / "manifest.json").message


def test_a_folder_of_one_trace_is_that_trace(tmp_path: Path) -> None:
    path = small(tmp_path / "a.json", rank=3, world_size=4)
    (tmp_path / "manifest.json").write_text("{}")
    trace, alone = loaded(tmp_path), traceql.load(path, cache=False)
    assert (trace.meta, len(trace.parts)) == (alone.meta, 1)
    assert list(notes(trace)) == [*notes(alone), "not-a-trace"]
    path.unlink()
    assert "holds no trace" in refusal(tmp_path).message


def test_strict_refuses_a_damaged_file_of_a_folder_but_not_one_that_is_none(tmp_path: Path) -> None:
    small(tmp_path / "rank0.json")
    cut = small(tmp_path / "rank1.json")
    (tmp_path / "manifest.json").write_text("{}")
    assert len(loaded(tmp_path, strict=True).parts) == 2
    cut.write_text(cut.read_text()[:-30])
    assert "rank1.json cannot be read without loss" in refusal(tmp_path, strict=True).message
    assert notes(loaded(tmp_path))["truncated"].startswith("Rank 1: The file ends")


# --- whose ranks ---


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["rank0.json", "rank_1.json", "x.rank-2.pt.json", "Rank3-x.json"], [0, 1, 2, 3]),
        (["1694-TP-1.trace.json.gz", "1694-TP-0.trace.json.gz"], [1, 0]),
        (["worker7_step_12.1694.pt.trace.json", "worker10_step_12.1695.pt.trace.json"], [7, 10]),
        (["i-TP-0-EP-0.json", "i-TP-2-EP-2.json"], [0, 2]),
        (["i-TP-1-DP-1.json", "i-TP-0-DP-0.json", "i-TP-0-DP-1.json", "i-TP-1-DP-0.json"], [3, 0, 2, 1]),
        (["i-TP-0-PP-0.json", "i-TP-0-PP-1.json"], [0, 1]),
        (["i-TP-0-DP-0-PP-1.json", "i-TP-1-DP-0-PP-0.json", "i-TP-0-DP-0-PP-0.json"], [2, 1, 0]),
        (["rank0-TP-3.json", "rank1-TP-3.json"], [0, 1]),
        (["before-TP-0.json", "after-TP-0.json"], [0, 0]),
        (["control.json", "http-8080.json", "frankfurt1.json", "crank1.json"], [None] * 4),
    ],
)
def test_ranks_in_names(names: list[str], expected: list[int | None]) -> None:
    assert ranks_in_names(names) == expected


def test_ranks_are_from_the_names_where_none_is_recorded(tmp_path: Path) -> None:
    for rank in (1, 0):
        small(tmp_path / f"worker{rank}.json", 10 + rank)
    trace = loaded(tmp_path)
    assert ranks(trace) == {"worker0.json": 0, "worker1.json": 1}
    assert trace.kernels.select("rank", "dur_ns").collect().rows() == [(0, 10_000), (1, 11_000)]
    assert list(notes(trace)) == ["rank-by-name"]


@pytest.mark.parametrize("number", [70_000, -1, 10**30])
def test_a_number_that_no_rank_has_tells_none(number: int, tmp_path: Path) -> None:
    """Columns of ranks hold 16 bits, and nobody counts the missing ones of 10**30."""
    trace = traceql.load(small(tmp_path / "a.json", rank=number, world_size=number), cache=False)
    assert (trace.meta.rank, trace.meta.world_size) == (None, None)
    assert trace.kernels.collect()["rank"].to_list() == [0]


def test_a_number_in_a_name_that_no_rank_has_tells_none(tmp_path: Path) -> None:
    paths = [small(tmp_path / name) for name in ("a-rank-99999.json", f"b-rank-{'9' * 200}.json", "c-rank-2.json")]
    assert ranks(loaded(*paths)) == {"a-rank-99999.json": 0, paths[1].name: 1, "c-rank-2.json": 2}


def test_ranks_are_in_order_of_the_names_where_nothing_tells(tmp_path: Path) -> None:
    paths = [small(tmp_path / f"{name}.json") for name in ("part10", "part9", "all")]
    trace = loaded(*paths)
    assert ranks(trace) == {"all.json": 0, "part9.json": 1, "part10.json": 2}
    assert list(notes(trace)) == ["rank-by-order"]


def test_files_of_one_name_are_in_order_of_their_folders(tmp_path: Path) -> None:
    for number in (10, 9):
        small(tmp_path / f"host{number}" / "trace.json", number)
    trace = loaded(f"{tmp_path}/*/trace.json")
    assert trace.kernels.select("rank", "dur_ns").collect().rows() == [(0, 9_000), (1, 10_000)]


def test_ranks_recorded_in_some_files_only(tmp_path: Path) -> None:
    small(tmp_path / "x.json", rank=1, world_size=4)
    small(tmp_path / "rank3.json")
    small(tmp_path / "a.json")
    trace = loaded(tmp_path)
    assert ranks(trace) == {"a.json": 0, "x.json": 1, "rank3.json": 3}
    assert set(notes(trace)) == {"rank-by-name", "rank-by-order"}


def test_a_name_that_contradicts_is_said(tmp_path: Path) -> None:
    small(tmp_path / "rank0.json", rank=1, world_size=2)
    small(tmp_path / "rank1.json", rank=0, world_size=2)
    trace = loaded(tmp_path)
    assert ranks(trace) == {"rank0.json": 1, "rank1.json": 0}
    assert "rank0.json (rank 1), rank1.json (rank 0)." in notes(trace)["rank-conflict"]


def test_replicas_that_each_count_from_zero_are_told_apart_by_name(tmp_path: Path) -> None:
    for dp, tp in itertools.product(range(2), repeat=2):
        small(tmp_path / f"i-TP-{tp}-DP-{dp}.json", rank=tp, world_size=2)
    trace = loaded(tmp_path)
    assert ranks(trace) == {f"i-TP-{tp}-DP-{dp}.json": 2 * dp + tp for dp in range(2) for tp in range(2)}
    assert list(notes(trace)) == ["rank-by-name"]


def test_two_files_of_one_rank_are_refused_or_numbered() -> None:
    paths = [*pair("pool-graph"), *pair("gather-graph")]
    error = refusal(*paths)
    assert "rank 0: tiny-gather-graph-TP-0.json.gz, tiny-pool-graph-TP-0.json.gz; rank 1: tiny" in error.message
    trace = loaded(*paths, force=True)
    assert ranks(trace) == {
        "tiny-gather-graph-TP-0.json.gz": 0,
        "tiny-pool-graph-TP-0.json.gz": 1,
        "tiny-gather-graph-TP-1.json.gz": 2,
        "tiny-pool-graph-TP-1.json.gz": 3,
    }
    assert "ranks-numbered" in notes(trace)


@pytest.mark.parametrize(("have", "text"), [((0, 1, 3), "2."), ((5,), "0 to 4, 6, 7."), ((0, 7), "1 to 6.")])
def test_missing_ranks_are_said(have: tuple[int, ...], text: str, tmp_path: Path) -> None:
    for rank in have:
        small(tmp_path / f"{rank}.json", rank=rank, world_size=4 if have == (0, 1, 3) else 8)
    trace = loaded(tmp_path)
    said = notes(trace).get("missing-rank", "")
    assert said.endswith(f": {text}") if len(have) > 1 else said == ""


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"gpus": ("Other GPU",)}, "GPUs Other GPU, Sample GPU"),
        ({"world_size": 4}, "world sizes 2, 4"),
        ({"base_ns": 1_761_955_200_000_000_000 + 3601 * 10**9}, "more than an hour apart"),
        ({"gpus": ("Sample GPU", "Small GPU")}, None),
        ({"gpus": ()}, None),
        ({"base_ns": 1_761_955_200_000_000_000 + 3000 * 10**9}, None),
    ],
)
def test_files_of_different_jobs_are_refused_unless_forced(
    keys: dict[str, Any], fault: str | None, tmp_path: Path
) -> None:
    small(tmp_path / "a.json", rank=0, world_size=2)
    small(tmp_path / "b.json", **{"rank": 1, "world_size": 2} | keys)
    if fault is None:
        assert "mixed-jobs" not in notes(loaded(tmp_path))
        return
    error = refusal(tmp_path)
    assert fault in error.message
    assert "--force" in error.hint
    assert fault in notes(loaded(tmp_path, force=True))["mixed-jobs"]


@pytest.mark.parametrize(("recording", "is_told"), [("pool", False), ("gather", True)])
def test_ranks_of_two_recordings_are_told(recording: str, is_told: bool) -> None:
    """Half a minute apart on the same machines: nothing else tells them from a run."""
    run = traceql.load_run([GLM5 / "tiny-pool-eager-TP-0.json.gz", GLM5 / f"tiny-{recording}-eager-TP-1.json.gz"])
    said = notes(run).get("other-times", "")
    assert said.endswith("means nothing: 1.") if is_told else said == ""
    limits = ranks_page.limits(RankReport.of(run), View())
    assert (limits is not None and "Ranks recorded when the first was not" in str(limits.lines)) is is_told


def test_different_engines_are_different_jobs(tmp_path: Path) -> None:
    for rank, name in enumerate(("sglang::moe", "vllm/v1/engine")):
        path = small(tmp_path / f"{rank}.json", rank=rank, world_size=2)
        path.write_text(path.read_text().replace('"gemm"', f'"{name}"'))
    assert "engines sglang, vllm" in refusal(tmp_path).message


def test_a_file_of_several_ranks_is_a_run_by_itself() -> None:
    merged = FIXTURES / "cases" / "33-merged-ranks.json"
    trace = loaded(merged)
    assert [part.rank for part in trace.parts] == [None]
    stats = summarize_run(trace)
    assert isinstance(stats, RunSummary)
    assert stats.ranks.select("rank", "kernel_ns").rows() == [(0, 26_000.0), (1, 41_000.0)]
    assert only_ranks(trace, [1]).kernels.collect()["dur_ns"].to_list() == [41_000]
    assert "33-merged-ranks.json holds several ranks itself" in refusal(merged, pair("pool-graph")[0]).message
    assert "holds several ranks" in refusal(merged, pair("pool-graph")[0], force=True).message


# --- ranks side by side, and some of them ---


def test_rank_stats_are_the_medians_of_each_rank() -> None:
    paths = pair("gather-eager")
    trace = loaded(*paths)
    stats = rank_stats(trace, summarize(trace))
    assert stats.select("rank", "device", "name", "n_steps").rows() == [
        (rank, rank, path.name, 2) for rank, path in enumerate(paths)
    ]
    for rank, path in enumerate(paths):
        alone = traceql.load(path, cache=False)
        complete = steps(alone).filter("is_complete")
        comm = step_categories(alone).filter(pl.col("group") == "nccl", pl.col("step").is_in(complete["step"]))
        row = stats.row(rank, named=True)
        assert row["wall_ns"] == complete["wall_ns"].median()
        assert row["idle_ns"] == complete["idle_ns"].median()
        assert row["comm_kernel_ns"] == comm["kernel_ns"].median()


def test_without_complete_steps_ranks_have_their_whole_window() -> None:
    summary = summarize_run(loaded(*pair("pool-eager")), Selection(first_step=2))
    assert isinstance(summary, RunSummary)
    assert summary.scope == "trace"
    assert summary.ranks["n_steps"].to_list() == [0, 0]
    assert summary.ranks["wall_ns"].sum() == summary.wall_ns
    assert summary.ranks["busy_ns"].sum() == summary.busy_ns


def test_a_rank_without_gpu_activity_has_a_row(tmp_path: Path) -> None:
    small(tmp_path / "rank0.json")
    (tmp_path / "rank1.json").write_text('{"traceEvents": [], "schemaVersion": 1}')
    summary = summarize_run(loaded(tmp_path))
    assert isinstance(summary, RunSummary)
    assert summary.ranks.select("rank", "device", "wall_ns").rows() == [(0, 0, 10_000.0), (1, None, None)]


def test_only_the_ranks_asked_for(tmp_path: Path) -> None:
    for rank in range(3):
        small(tmp_path / f"rank{rank}.json", rank=rank, world_size=3, ts=100 * (rank + 1))
    trace = loaded(tmp_path)
    some = only_ranks(trace, [2, 1])
    assert [part.rank for part in some.parts] == [1, 2]
    assert (some.meta.name, some.meta.n_events, some.meta.rank) == ("rank1.json and 1 more", 4, None)
    assert some.meta.first_event_ns == trace.meta.first_event_ns
    assert some.kernels.select("rank", "start_ns").collect().rows() == [(1, 120_000), (2, 220_000)]
    with pytest.raises(MissingDataError, match="no rank 7") as caught:
        only_ranks(trace, [0, 7])
    assert caught.value.hint == "The ranks are 0 to 2."


@pytest.mark.parametrize(("numbers", "words"), [([3, 0, 1, 2, 7, 8, 10], "0 to 3, 7, 8, 10"), ([], ""), ([4], "4")])
def test_numbers_in_words(numbers: list[int], words: str) -> None:
    assert in_words(numbers) == words


# --- reading ---

GB = 1 << 30


@pytest.mark.parametrize(
    ("json_gb", "n_files", "n_cores", "free_gb", "expected"),
    [
        (0.5, 8, 2, 16, 1),
        (0.5, 8, 16, 64, 4),
        (0.5, 2, 64, 64, 2),
        (0.5, 8, 64, 3, 2),
        (9, 8, 64, 1, 1),
        (0, 8, 8, 1, 2),
    ],
)
def test_files_at_once(json_gb: float, n_files: int, n_cores: int, free_gb: int, expected: int) -> None:
    assert files_at_once([int(json_gb * GB)] * n_files, n_cores, free_gb * GB) == expected


@pytest.mark.parametrize("n_cores", [1, 16])
def test_progress_is_of_all_files(n_cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "cores", lambda: n_cores)
    paths = [shutil.copy(path, tmp_path) for path in pair("pool-eager")]
    total = sum(Path(path).stat().st_size for path in paths)
    told: list[tuple[int, int | None]] = []
    trace = loaded(*paths, progress=lambda n_read, n_bytes: told.append((n_read, n_bytes)))
    assert told[-1] == (total, total)
    assert {n_bytes for _, n_bytes in told} == {total}
    assert_frame_equal(trace.kernels.collect(), loaded(*pair("pool-eager")).kernels.collect())


@pytest.mark.parametrize("n_cores", [1, 16])
def test_the_first_error_ends_the_reading(n_cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "cores", lambda: n_cores)
    bad = tmp_path / "bad.json.gz"
    bad.write_bytes(gzip.compress(b"<html>"))
    assert "bad.json.gz is an HTML page" in refusal(bad, *pair("pool-eager")).message


# --- real runs ---


def medians(trace: Trace) -> list[tuple[int, float, float]]:
    """(rank, median wall and communication kernel time of a step in ms)."""
    stats = rank_stats(trace, summarize(trace))
    return [
        (row["rank"], round(row["wall_ns"] / 1e6, 1), round(row["comm_kernel_ns"] / 1e6, 3))
        for row in stats.iter_rows(named=True)
    ]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "expected"),
    [("before", [(0, 85.2, 1.350), (1, 85.2, 1.171)]), ("after", [(0, 18.6, 1.315), (1, 18.6, 1.152)])],
)
def test_sglang_of_two_ranks_is_in_step(name: str, expected: list[Any], shared: Path) -> None:
    assert medians(loaded(f"{shared}/sglang-tp2/{name}-graph-TP-*")) == expected


@pytest.mark.shared
def test_glm5_waits_on_one_rank(shared: Path) -> None:
    (_, wall_0, comm_0), (_, wall_1, comm_1) = medians(loaded(f"{shared}/glm5/glm5-gather-eager-TP-*"))
    assert (wall_0, round(comm_0, 1)) == (150.9, 117.8)
    assert (wall_1, round(comm_1, 2)) == (150.9, 1.18)


@pytest.mark.shared
def test_eight_ranks_of_dlrm(shared: Path) -> None:
    folder = shared / "public" / "param-dlrm-8ranks"
    trace = loaded(folder)
    assert [part.rank for part in trace.parts] == list(range(8))
    assert "missing-rank" not in notes(trace)
    assert "no-common-clock" not in notes(trace)
    summary = summarize_run(trace)
    assert isinstance(summary, RunSummary)
    for rank, path in enumerate(sorted(folder.iterdir())):
        alone = summarize(traceql.load(path, cache=False))
        assert summary.ranks["wall_ns"][rank] == alone.wall_ns
        assert summary.ranks["busy_ns"][rank] == alone.busy_ns
    without = loaded(*(path for path in folder.iterdir() if "worker3" not in path.name))
    assert notes(without)["missing-rank"].endswith(": 3.")
