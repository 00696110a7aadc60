"""`traceql trend`: the same verdicts as diff, order and groups, what is left out."""

import io
import json
import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from conftest import FIXTURES

import traceql
from traceql.analyses.summary import Selection, summarize
from traceql.analyses.trend import RUN_STEPS, TrendOptions, trend
from traceql.cli import main
from traceql.errors import MissingDataError, QueryError
from traceql.fleet import ingesting, sources, task
from traceql.fleet.asking import table_of
from traceql.fleet.store import Store
from traceql.fleet.trends import run_steps

CAPTURE = (FIXTURES / "capture").resolve()
BEFORE, AFTER = (str(CAPTURE / side) for side in ("before", "after"))
"""Names of runs: paths, as no store is beside the fixtures."""
TRACES = {side: CAPTURE / side / "traces" / "decode-TP-0.trace.json.zst" for side in ("before", "after")}


def ingest(paths, store, **labels):
    engine = lambda tasks: ((each, task.ingest_file(each)) for each in tasks)  # noqa: E731
    return ingesting.ingest(sources.sources([*map(str, paths)]), store, engine, ingesting.Options(labels=labels))


def run(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The two recordings of a capture, without and with its patch."""
    location = tmp_path_factory.mktemp("fleet") / "store"
    ingest([TRACES["before"]], location, commit="old", branch="main")
    ingest([TRACES["after"]], location, commit="new")
    return location


def steps_of(**runs):
    """Steps of runs: name to walls in ms, an hour apart; more columns as a dictionary after the walls."""
    rows = []
    for number, (name, (walls, more)) in enumerate(runs.items()):
        known = {
            "run": name, "group": name, "date": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number), "rank": 0,
            "device": 0, "stage": "decode", "batch_size": 8,
        }  # fmt: skip
        rows += [known | {"step": step, "wall_ns": round(ms * 1e6)} | more for step, ms in enumerate(walls)]
    return pl.DataFrame(rows, schema=RUN_STEPS.schema)


def noisy(ms, n=40, seed=1):
    return ms * (1 + 0.004 * np.random.default_rng(seed).standard_normal(n))


# --- as diff says


def test_changes_are_those_of_diff(store):
    found = trend(run_steps(Store.open(store)))
    first, second = found.groups.rows(named=True)
    compared = traceql.diff(TRACES["before"], TRACES["after"])
    assert (first["group"], first["verdict"], first["delta_ns"]) == (BEFORE, None, None)
    assert (second["group"], second["verdict"]) == (AFTER, compared.verdict)
    assert second["delta_ns"] == compared.delta_ns
    relative = compared.relative
    assert relative
    assert (second["low_frac"], second["high_frac"]) == (relative.low, relative.high)
    assert second["delta_frac"] == pytest.approx(relative.difference)
    assert (found.stage, found.batch_size) == (compared.stage, compared.batch_size)


def test_figures_are_those_of_summarize(store):
    """Of one rank: the median and percentiles of step_stats, over the same steps."""
    row = trend(run_steps(Store.open(store))).groups.row(0, named=True)
    stats = summarize(traceql.load(TRACES["before"]), Selection(stage="decode")).step_stats
    wall = stats.filter(figure="wall_ns").row(0, named=True)
    assert (row["median_step_ns"], row["n_steps"]) == (wall["median"], 9)
    assert row["p10_step_ns"] == pytest.approx(wall["p10"], abs=1e-6)
    assert row["p90_step_ns"] == pytest.approx(wall["p90"], abs=1e-6)


def test_slower_same_and_cannot_tell():
    steps = steps_of(
        a=(noisy(20.0), {}), b=(noisy(20.001, seed=2), {}), c=(noisy(22.0, seed=3), {}), d=(noisy(22.0, 5, 4), {}),
        e=(noisy(20.0, seed=5), {}),
    )  # fmt: skip
    found = trend(steps)
    assert found.groups["verdict"].to_list() == [None, "same", "slower", "cannot tell", "cannot tell"]
    assert found.regressions["group"].to_list() == ["c"]
    assert found.groups["reason"][3] == "5 complete steps on a side; it takes 8"
    assert trend(steps, TrendOptions(min_effect=0.2)).groups["verdict"].to_list()[:3] == [None, "same", "same"]


def test_a_step_of_several_ranks_is_their_mean():
    one, other = steps_of(a=([10.0, 12.0, 14.0], {})), steps_of(a=([20.0, 22.0, 24.0], {"rank": 1}))
    row = trend(pl.concat([one, other])).groups.row(0, named=True)
    assert (row["median_step_ns"], row["n_steps"], row["n_ranks"], row["n_runs"]) == (17e6, 3, 2, 1)


def test_several_runs_of_a_group_are_the_samples():
    """Between processes steps differ by more than within one: ten runs of one step time each tell the spread."""
    runs = {
        f"{name}{number}": (noisy(ms + 0.3 * number, 20, number), {"group": name})
        for name, ms in (("old", 20.0), ("new", 20.2)) for number in range(3)
    }  # fmt: skip
    found = trend(steps_of(**runs)).groups
    assert found["n_runs"].to_list() == [3, 3]
    assert found["verdict"].to_list() == [None, "cannot tell"]
    single = trend(steps_of(old=runs["old0"], new=runs["new0"])).groups
    width = pl.col("high_frac") - pl.col("low_frac")
    assert single.select(width).item(1, 0) < found.select(width).item(1, 0) / 3


def test_a_capture_tells_run_model_and_pace(store):
    found = table_of(Store.open(store), "traces").collect().rows(named=True)
    told = [(row["run"], row["model"], row["engine_version"], row["control_tokens_per_s"]) for row in found]
    assert told == [
        (AFTER, "model", "0.5.11", pytest.approx(476.53, abs=0.01)),
        (BEFORE, "model", "0.5.11", pytest.approx(100.07, abs=0.01)),
    ]


# --- order, groups, settings


def test_order_is_by_date_and_unknown_dates_come_last():
    steps = steps_of(b=([1.0], {}), a=([1.0], {}), z=([1.0], {"date": None}), y=([1.0], {"date": None}))
    assert trend(steps).groups["group"].to_list() == ["b", "a", "y", "z"]


def test_other_settings_are_not_compared_and_unknown_ones_are():
    steps = steps_of(
        a=(noisy(20.0), {"gpu": "H100", "world_size": 8}), b=(noisy(10.0, seed=2), {"gpu": "H200"}),
        c=(noisy(20.0, seed=3), {"gpu": "H200", "world_size": 4}), d=(noisy(10.0, seed=4), {"world_size": 8}),
    )  # fmt: skip
    found = trend(steps).groups
    assert found["verdict"].to_list() == [None, "cannot tell", "slower", "same"]
    assert found["compared_with"].to_list() == [None, "a", "b", "b"]
    assert found["reason"].to_list()[1] == "not comparable: GPU H100 before, H200 after"
    assert found["delta_frac"].to_list()[1] is None


def test_series_in_one_store_do_not_hide_each_other():
    """Two models every night: each night is compared with the last one of its model."""
    walls = {"big": (noisy(40.0), noisy(44.0, seed=2)), "small": (noisy(5.0, seed=3), noisy(5.0, seed=4))}
    steps = steps_of(
        **{f"{model}{night}": (walls[model][night], {"model": model}) for night in (0, 1) for model in walls}
    )
    found = trend(steps)
    assert found.groups["verdict"].to_list() == [None, "cannot tell", "slower", "same"]
    assert found.groups["compared_with"].to_list() == [None, "big0", "big0", "small0"]
    assert found.regressions["group"].to_list() == ["big1"]


def test_only_some_runs(store):
    opened = Store.open(store)
    assert {*run_steps(opened, only=[("run", "*/aft?r")])["run"]} == {AFTER}
    assert {*run_steps(opened, only=[("commit", "old"), ("commit", "new")])["run"]} == {BEFORE, AFTER}
    with pytest.raises(MissingDataError, match="no run has commit new") as fault:
        run_steps(opened, only=[("branch", "main"), ("commit", "new")])
    assert fault.value.hint == "There are: old."
    result = run("trend", store, "--only", "date=2026-11-30", "--only", "run=*/capture/*")
    assert (result.exit_code, f"Runs are paths below {CAPTURE}." in " ".join(result.stdout.split())) == (0, True)
    for given, message in (("rn=x", "Did you mean run?"), ("run", "is not NAME=VALUE")):
        result = run("trend", store, "--only", given)
        assert (result.exit_code, message in result.stderr) == (2, True)


def test_steps_of_one_kind_count():
    """Decode goes before; then what most runs have. Runs without such steps are named."""
    steps = pl.concat(
        [
            steps_of(a=([1.0] * 9, {}), b=([2.0] * 9, {}), c=([3.0] * 30, {"batch_size": 1})),
            steps_of(d=([5.0] * 90, {"stage": "prefill"})),
        ]
    )
    found = trend(steps)
    assert (found.stage, found.batch_size, found.left_out) == ("decode", 8, ("c", "d"))
    assert trend(steps, TrendOptions(batch_size=1)).groups["group"].to_list() == ["c"]
    assert trend(steps, TrendOptions(stage="prefill")).groups["group"].to_list() == ["d"]
    with pytest.raises(MissingDataError, match="no complete step") as fault:
        trend(steps, TrendOptions(batch_size=7))
    assert "decode batch 1" in fault.value.hint


def test_groups_by_labels_and_days(store):
    opened = Store.open(store)
    assert trend(run_steps(opened, "commit")).groups["group"].to_list() == ["old", "new"]
    assert trend(run_steps(opened, "date")).groups["group"].to_list() == ["2026-11-30"]
    assert trend(run_steps(opened, "model")).groups["n_runs"].to_list() == [2]
    by_branch = trend(run_steps(opened, "branch"))
    assert (by_branch.groups["group"].to_list(), by_branch.ungrouped) == (["main"], (AFTER,))
    with pytest.raises(QueryError, match="by the name 'branc'") as fault:
        run_steps(opened, "branc")
    assert fault.value.hint == "Did you mean branch?"
    with pytest.raises(MissingDataError, match=r"of no run in .* the host is known"):
        run_steps(opened, "host")


# --- the command


def test_the_page(store):
    result = run("trend", store, "--by", "commit")
    printed = " ".join(result.stdout.split())
    assert result.exit_code == 0
    assert "decode step, batch 8, 2 commits (2 runs), by date" in printed
    assert "faster: new than old by 79.4 % (−79.6 % to −79.3 %)" in printed
    assert "as diff does" in printed
    assert f"Without branch, so left out: {AFTER}." in run("trend", store, "--by", "branch").stdout


def test_one_run_takes_another(store, tmp_path):
    alone = tmp_path / "store"
    shutil.copytree(store, alone)
    (after,) = (entry for entry in Store.open(alone).entries if entry.run == AFTER)
    (alone / after.path).unlink()
    result = run("trend", alone)
    assert result.exit_code == 0
    assert "a trend takes two to compare" in result.stdout
    assert "82.282" in result.stdout


def test_forms_hold_the_same(store):
    document = json.loads(run("trend", store, "--format", "json").stdout)
    data = pl.read_csv(io.StringIO(run("trend", store, "--format", "csv").stdout))
    assert data["median_step_ns"].to_list() == [row["median_step_ns"] for row in document["groups"]]
    assert [row["verdict"] for row in document["groups"]] == [None, "faster"]
    assert document["by"] == "run"


def test_a_regression_fails_when_asked(tmp_path, store):
    """The dates are told: what was recorded first comes last."""
    turned = tmp_path / "turned"
    shutil.copytree(store, turned)
    for side, date in (("after", "2026-01-01"), ("before", "2026-01-02")):
        assert ingest([TRACES[side]], turned, date=date).n_relabelled == 1
    assert run("trend", turned).exit_code == 0
    result = run("trend", turned, "--fail-on-regression")
    assert (result.exit_code, "slower: before than after" in result.stdout) == (1, True)
    assert run("trend", store, "--fail-on-regression").exit_code == 0


def test_what_cannot_be(tmp_path):
    Store.create(tmp_path / "empty")
    for arguments, message in (
        ([tmp_path / "none"], "is no store"),
        ([tmp_path / "empty"], "holds no trace"),
        ([tmp_path / "empty", "-o", tmp_path / "none" / "x.json"], "is not a folder"),
    ):
        result = run("trend", *arguments)
        assert (result.exit_code, message in result.stderr) == (2, True)
