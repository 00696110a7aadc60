"""Comparisons: against the slow count of `reference_diff.py`, of real pairs, and of made recordings."""

import csv
import io
import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import polars as pl
import pytest
import reference_diff
from click.testing import CliRunner, Result
from conftest import FIXTURES
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

import traceql
from traceql.analyses import recording as recorded
from traceql.analyses.diff import Diff, diff
from traceql.analyses.diff_gates import Gate, judged
from traceql.analyses.diff_notes import Note, notes
from traceql.analyses.diff_sides import DiffOptions
from traceql.analyses.diff_tables import Totals, deltas
from traceql.analyses.recording import Facts, Recording
from traceql.cli.diff import command, spread
from traceql.diffing import are_one_run, recording, with_controls
from traceql.diffing import diff as diff_of
from traceql.errors import InputError, MissingDataError
from traceql.report.diff_document import diff_document
from traceql.report.diff_page import DiffView, diff_page
from traceql.report.diff_words import verdict_line
from traceql.report.text import render_text
from traceql.run import load_run

GLM5, SGLANG = FIXTURES / "glm5", FIXTURES / "sglang"
POOL, GATHER = "tiny-pool-eager-TP-*.json.gz", "tiny-gather-eager-TP-*.json.gz"
BEFORE, AFTER = (SGLANG / f"{side}-graph-TP-0.trace.json.zst" for side in ("before", "after"))


def loaded(*paths: Path | str, cache: bool = False) -> Recording:
    return Recording.of(load_run([str(path) for path in paths], cache=cache))


@pytest.fixture(scope="module")
def graph() -> tuple[Recording, Recording]:
    return loaded(BEFORE), loaded(AFTER)


@pytest.fixture(scope="module")
def tiny() -> dict[str, Recording]:
    kinds = ("pool-eager", "gather-eager", "pool-graph", "gather-graph", "pool-stack")
    return {kind: loaded(GLM5 / f"tiny-{kind}-TP-*.json.gz") for kind in kinds}


def kinds(diff: Diff) -> dict[str, Note]:
    return {note.kind: note for note in notes(diff)}


def change_of(diff: Diff, name: str) -> float:
    return float(diff.waterfall.filter(name=name)["delta_ns"].sum()) / 1e6


def page_text(diff: Diff, **view: Any) -> str:
    return render_text(diff_page(diff, DiffView(**view)), width=80)


# --- sums


def exact(frame: pl.DataFrame, n_before: int, n_after: int) -> Fraction:
    """The change that a table's whole totals say."""
    return Fraction(int(frame["after_total_ns"].sum()), n_after) - Fraction(
        int(frame["before_total_ns"].sum()), n_before
    )


def check_sums(found: Diff) -> None:
    """The waterfall and the layer types add up to the mean step, and to its change, to the nanosecond."""
    n, m = found.before.n_steps, found.after.n_steps
    walls = found.before.total("steps", "wall_ns"), found.after.total("steps", "wall_ns")
    whole = Fraction(walls[1], m) - Fraction(walls[0], n)
    for table in (found.waterfall, found.roles):
        assert (table["before_total_ns"].sum(), table["after_total_ns"].sum()) == walls
        assert exact(table, n, m) == whole
        assert table["delta_ns"].sum() == pytest.approx(float(whole), abs=1e-3)
    kernel_ns = Fraction(found.after.total("steps", "kernel_ns"), m) - Fraction(
        found.before.total("steps", "kernel_ns"), n
    )
    assert exact(found.kernels, n, m) == kernel_ns
    for row in found.kernels.iter_rows(named=True):
        assert row["by_count_ns"] + row["by_call_ns"] == pytest.approx(row["delta_ns"], abs=1e-2)


PAIRS = [("pool-eager", "gather-eager"), ("pool-graph", "gather-graph"), ("pool-eager", "pool-graph")]


@pytest.mark.parametrize("pair", PAIRS, ids="-to-".join)
def test_sums_and_the_slow_count(tiny, pair):
    found = diff([tiny[pair[0]]], [tiny[pair[1]]])
    check_sums(found)
    sides = [sorted(GLM5.glob(f"tiny-{kind}-TP-*.json.gz")) for kind in pair]
    check_against_reference(found, *sides)


def check_against_reference(found: Diff, before: list[Path], after: list[Path]) -> None:
    a, b = reference_diff.side(*before), reference_diff.side(*after)
    assert (found.before.n_steps, found.after.n_steps) == (len(a.walls), len(b.walls))
    assert found.after.mean_wall_ns - found.before.mean_wall_ns == pytest.approx(
        float(reference_diff.mean_change(a, b)), abs=1e-3
    )
    idle = found.waterfall.filter(kind="idle")["delta_ns"].sum()
    assert idle == pytest.approx(float(reference_diff.idle_change(a, b)), abs=1e-3)
    category = {
        (name, kind): category
        for paths in (before, after)
        for name, kind, category in load_run(paths, cache=False)
        .kernels.select("name", "kind", "category").unique().collect().rows()
    }  # fmt: skip
    expected: dict[str, Fraction] = {}
    for key, delta in reference_diff.changes(a, b, "exclusive_ns").items():
        expected[category[key]] = expected.get(category[key], Fraction(0)) + delta
    rows = found.waterfall.filter(kind="category").select("name", "delta_ns").rows()
    assert dict(rows) == pytest.approx({name: float(ns) for name, ns in expected.items()}, abs=1e-3)
    for what, column in (("kernel_ns", "delta_ns"), ("n_kernels", "n")):
        by_name: dict[str, float] = {}
        for (name, _), delta in reference_diff.changes(a, b, what).items():
            by_name[name] = by_name.get(name, 0.0) + float(delta)
        table = found.kernels.with_columns(n=pl.col("after_n_per_step") - pl.col("before_n_per_step"))
        assert dict(table.select("name", column).rows()) == pytest.approx(by_name, abs=1e-3)


def everything(found: Diff) -> dict[str, pl.DataFrame]:
    tables = ("waterfall", "roles", "kernels", "collectives", "replacements")
    return {name: getattr(found, name) for name in tables}


@pytest.mark.parametrize("pair", PAIRS, ids="-to-".join)
def test_swapped_sides_negate_every_change(tiny, pair):
    check_swap(tiny[pair[0]], tiny[pair[1]])


def test_swapped_sides_of_a_recorded_server(graph):
    check_swap(*graph)


def check_swap(a: Recording, b: Recording) -> None:
    there, back = diff([a], [b]), diff([b], [a])
    opposite = {"faster": "slower", "slower": "faster"}
    assert back.verdict == opposite.get(there.verdict, there.verdict)
    assert back.delta_ns == -there.delta_ns
    for name, frame in everything(there).items():
        signed = [column for column in frame.columns if column in ("delta_ns", "by_count_ns", "by_call_ns")]
        totals = [pl.sum(column).alias(column) for column in signed]
        key = [column for column in ("kind", "name", "role", "rank") if column in frame.columns]
        sums = [f.group_by(key).agg(totals).sort(key).select(signed) for f in (frame, everything(back)[name])]
        assert (sums[0] + sums[1]).select(pl.all().abs().max()).fill_null(0).row(0) == pytest.approx(
            [0] * len(signed), abs=1e-3
        )


def test_a_recording_against_itself_is_the_same(graph, tiny):
    for one in (graph[0], tiny["pool-eager"]):
        found = diff([one], [one])
        assert found.verdict == "same"
        for name, frame in everything(found).items():
            assert frame.select(pl.col("delta_ns").abs().max()).item() in (0, None), name
        assert found.replacements.is_empty()
        assert found.differences.is_empty()
        assert set(found.kernels["status"]) == {"alike"}


def test_chains_add_up(tiny):
    a, b, c = tiny["pool-eager"], tiny["gather-eager"], tiny["gather-graph"]
    parts = [diff([a], [b]).waterfall, diff([b], [c]).waterfall]
    whole = diff([a], [c]).waterfall
    key = ["kind", "name"]
    added = pl.concat(parts).group_by(key).agg(pl.sum("delta_ns")).sort(key)
    both = whole.join(added, on=key, how="full", coalesce=True).fill_null(0)
    assert both["delta_ns"].to_list() == pytest.approx(both["delta_ns_right"].to_list(), abs=1e-3)


@settings(derandomize=True, max_examples=50)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 10**12), st.integers(0, 10**12)), unique_by=lambda r: r[0]
    ),
    counts=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_totals_of_random_rows(rows, counts):
    frames = [
        pl.DataFrame(
            [(row[0], row[i]) for row in rows if row[i]], {"name": pl.String, "total_ns": pl.Int64}, orient="row"
        )
        for i in (1, 2)
    ]
    found = deltas(Totals(frames[0], counts[0]), Totals(frames[1], counts[1]), ["name"])
    expected = {name: b / counts[1] - a / counts[0] for name, a, b in rows if a or b}
    assert dict(found.select("name", "delta_ns").rows()) == pytest.approx(expected)


# --- the recorded pair of a server


def test_the_fix_under_cuda_graphs(graph):
    found = diff([graph[0]], [graph[1]])
    check_sums(found)
    assert (found.verdict, found.reason, found.stage, found.batch_size) == ("faster", None, "decode", 8)
    assert found.before.median_wall_ns / 1e6 == pytest.approx(84.0, abs=0.05)
    assert found.after.median_wall_ns / 1e6 == pytest.approx(18.9, abs=0.05)
    assert change_of(found, "cast") == pytest.approx(-66.2, abs=0.05)
    assert verdict_line(found) == (
        "4.4× faster decode step, 78 % shorter: 84.0 → 18.9 ms within these two recordings; "
        "cast −66.2, gather_cast_kernel +1.1, attention −0.4 ms"
    )
    assert found.differences.is_empty()


def test_the_pool_cast_is_paired_with_what_replaced_it(graph):
    rows = diff([graph[0]], [graph[1]]).replacements
    assert set(rows.select("before", "after").rows()) == {
        ("unrolled_elementwise_kernel<direct_copy, bf16>", "gather_cast_kernel")
    }
    assert (rows["before_n_per_step"].sum(), rows["after_n_per_step"].sum()) == (78, 78)
    assert float(rows["before_ns_per_step"].sum()) / 1e6 == pytest.approx(66.2, abs=0.05)
    assert float(rows["after_ns_per_step"].sum()) / 1e6 == pytest.approx(1.1, abs=0.05)


def test_kernels_gone_and_new(graph):
    found = diff([graph[0]], [graph[1]]).kernels
    status = dict(found.filter(pl.col("status") != "alike").select("short_name", "status").rows())
    assert status == {"unrolled_elementwise_kernel<direct_copy, bf16>": "gone", "gather_cast_kernel": "new"}


def test_the_page_of_the_pair(graph):
    text = page_text(diff([graph[0]], [graph[1]]))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "84.115    18.997  −65.118" in text  # the sum line
    one_line = " ".join(text.split())
    assert (
        "unrolled_elementwise_kernel<direct_copy, bf16> → gather_cast_kernel, 78 a step: −66.222 +1.145 ms" in one_line
    )
    assert "first step, 0, takes 21.8 ms" in text


def test_the_kernels_of_a_layer_side_by_side(graph):
    text = page_text(diff([graph[0]], [graph[1]]), layer=40)
    assert "Layer 40: attention + moe" in text
    lines = [line.split() for line in text.splitlines() if line.startswith(("−", "+"))]
    assert [(line[0], line[-1]) for line in lines] == [("−", "bf16>"), ("+", "gather_cast_kernel")]
    with pytest.raises(MissingDataError, match="no layer 78"):
        page_text(diff([graph[0]], [graph[1]]), layer=78)


@pytest.mark.parametrize("first", [0, 15])
def test_steps_that_are_chosen(graph, first):
    found = diff([graph[0]], [graph[1]], DiffOptions(first_step=first, end_step=first + 10))
    assert found.before.n_steps == found.after.n_steps == 10
    assert found.n_left_out == (19, 19)
    assert f"only decode steps {first}:{first + 10} of batch 8 of rank 0" in kinds(found)["left_out"].text
    check_sums(found)


def test_a_side_without_a_complete_step():
    """No choice of steps helps, so none is advised."""
    for pair in ((made([]), made(CALM)), (made(CALM), made([]))):
        with pytest.raises(MissingDataError, match="no complete step to compare in made") as raised:
            diff([pair[0]], [pair[1]])
        assert "record two or more" in str(raised.value.hint)


def test_choosing_what_is_not_there(graph):
    for options in (DiffOptions(stage="prefill"), DiffOptions(batch_size=7), DiffOptions(first_step=99)):
        with pytest.raises(MissingDataError):
            diff([graph[0]], [graph[1]], options)


def test_few_steps_cannot_tell(tiny):
    found = diff([tiny["pool-graph"]], [tiny["gather-graph"]])
    assert (found.verdict, found.interval) == ("cannot tell", None)
    assert "2 complete steps" in (found.reason or "")
    assert "cannot tell whether the step changed" in verdict_line(found)


# --- eager and graph, stacks


def test_ops_that_a_graph_does_not_record_are_no_regression(tiny):
    found = diff([tiny["pool-eager"]], [tiny["pool-graph"]])
    assert "is not gone" in kinds(found)["launched"].text
    assert found.differences.filter(fact="launched by")["breaks"].to_list() == [False]
    assert found.is_comparable
    assert found.replacements.is_empty()
    assert not found.kernels.filter(pl.col("status") == "gone").height


def test_layer_types_are_the_same_with_stacks(tiny):
    found = diff([tiny["pool-eager"]], [tiny["pool-stack"]])
    layers = found.roles.filter(pl.col("before_n_layers_per_step") + pl.col("after_n_layers_per_step") > 0)
    assert layers["before_n_layers_per_step"].to_list() == layers["after_n_layers_per_step"].to_list()
    assert found.differences.filter(fact="stacks recorded").select("before", "after").rows() == [("no", "yes")]


def test_only_ranks_of_both_sides(tiny):
    one = loaded(GLM5 / "tiny-gather-eager-TP-1.json.gz")
    found = diff([tiny["pool-eager"]], [one])
    assert found.before.ranks == found.after.ranks == [1]
    assert "only steps of rank 1" in kinds(found)["left_out"].text


# --- made recordings


def made(walls: list[int], *, batch: int | None = 1, stage: str = "decode", idle: int = 0, **facts: Any) -> Recording:
    """Steps of one rank whose time is one kernel, and `idle` ns waiting for the host."""
    key = [(0, 0, number) for number in range(len(walls))]
    empty = {name: table.empty() for name, table in recorded.TABLES.items()}
    busy = [wall - idle for wall in walls]
    steps = [
        (*k, stage, batch, wall, work, work, 1, 0, 0, None) for k, wall, work in zip(key, walls, busy, strict=True)
    ]
    shares = [(*k, "category", "gemm", "gemm", work, work, 1) for k, work in zip(key, busy, strict=True)]
    shares += [(*k, "idle", "launch", "idle", idle, 0, 0) for k in key if idle]
    kernels = [(*k, "not attributed", NAME, "gemm", NAME, 1, work) for k, work in zip(key, busy, strict=True)]
    frames = {"steps": steps, "shares": shares, "kernels": kernels}
    filled = {
        name: pl.DataFrame(rows, schema=recorded.TABLES[name].schema, orient="row") for name, rows in frames.items()
    }
    return Recording(facts=Facts(name="made", **facts), **(empty | filled))


NAME = "evil|`<b>\x1b[31m\n::error::x,y"
CALM = [100_000_000 + 10_000 * (number % 3) for number in range(20)]


def longer(factor: float) -> list[int]:
    return [round(wall * factor) for wall in CALM]


@pytest.mark.parametrize(("factor", "verdict"), [(0.9, "faster"), (1.1, "slower"), (1.002, "same")])
def test_verdicts(factor, verdict):
    assert diff([made(CALM)], [made(longer(factor))]).verdict == verdict


def test_the_smallest_effect_that_matters():
    assert diff([made(CALM)], [made(longer(1.02))], DiffOptions(min_effect=0.05)).verdict == "same"


def test_a_drift_as_large_as_the_change():
    drifting = [100_000_000 + 1_000_000 * (number // 10) + 5_000 * (number % 3) for number in range(20)]
    found = diff([made(drifting)], [made([wall + 1_500_000 for wall in drifting])], DiffOptions(min_effect=0.001))
    assert found.verdict in ("cannot tell", "slower")
    assert "drift" in kinds(found)


def test_seven_steps_are_too_few_and_eight_are_not():
    assert diff([made(CALM[:7])], [made(longer(0.5))]).verdict == "cannot tell"
    assert diff([made(CALM[:8])], [made(longer(0.5)[:8])]).verdict == "faster"


def test_recordings_that_differ_more_than_their_steps_do():
    """Each process is sure of itself; together they cannot tell."""
    before, after = [made(longer(f)) for f in (1.0, 1.04, 0.97)], [made(longer(f)) for f in (1.03, 0.98)]
    assert diff([before[0]], [after[0]]).verdict == "slower"
    found = diff(before, after)
    assert found.verdict == "cannot tell"
    assert "(medians of 3 and 2 recordings)" in verdict_line(found)
    assert diff(before, [made(longer(f)) for f in (0.5, 0.51)]).verdict == "faster"


def test_the_commonest_batch_size_of_both_is_compared():
    a, b = made([*CALM], batch=8), made(longer(0.5), batch=8)
    other = made(longer(3), batch=4)
    steps = pl.concat([b.steps, other.steps.with_columns(pl.col("step") + 100)])
    shares = pl.concat([b.shares, other.shares.with_columns(pl.col("step") + 100)])
    kernels = pl.concat([b.kernels, other.kernels.with_columns(pl.col("step") + 100)])
    found = diff([a], [replace(b, steps=steps, shares=shares, kernels=kernels)])
    assert (found.batch_size, found.n_left_out, found.verdict) == (8, (0, 20), "faster")


def test_what_makes_a_pair_not_comparable():
    a, b = made(CALM, batch=8, gpus=("A",), engine="vllm"), made(CALM, batch=4, gpus=("B",))
    found = diff([a], [b])
    assert {row[0]: row[3] for row in found.differences.rows()} == {"GPU": True, "engine": False, "batch size": True}
    assert "(not comparable: GPU, batch size)" in verdict_line(found)
    assert "not_comparable" in kinds(found)


def test_steps_without_length():
    found = diff([made([0] * 9)], [made(CALM)])
    assert found.verdict == "cannot tell"
    assert diff([made(CALM)], [made([0] * 9)]).verdict == "faster"
    assert "∞× faster" in verdict_line(diff([made(CALM)], [made([0] * 9)]))
    assert page_text(found)


# --- host-bound pairs


def test_kernel_time_that_the_host_hides():
    """The kernels take 60 ms less, the step is as long: all of it became waiting."""
    found = diff([made(CALM, idle=30_000_000)], [made(longer(1.0001), idle=90_000_000)])
    assert verdict_line(found).startswith("same decode step")
    told = kinds(found)
    assert told["hidden"].figures["kernel_delta_ns"] == pytest.approx(-60e6, rel=0.01)
    assert "hidden, not lost; idle time grows by 60.0" in told["hidden"].text
    assert told["host_bound"].text.startswith(
        "host-bound before and after: the GPU waits for the host 30 % of the step"
    )
    assert "may hide a gain" in told["profiler"].text


def test_no_faster_where_the_noise_cannot_tell():
    noisy = [wall + 20_000_000 * (number % 2) for number, wall in enumerate(CALM)]
    found = diff([made(noisy, idle=30_000_000)], [made(noisy[::-1], idle=90_000_000)])
    assert found.verdict == "cannot tell"
    assert verdict_line(found).startswith("no faster: decode step")
    back = diff([made(noisy[::-1], idle=90_000_000)], [made(noisy, idle=30_000_000)])
    assert verdict_line(back).startswith("no slower: decode step")


def test_nothing_is_hidden_where_the_gpu_sets_the_pace():
    told = kinds(diff([made(CALM)], [made(longer(0.5))]))
    assert not {"hidden", "host_bound", "profiler"} & set(told)


def test_unprofiled_figures_stand_beside_profiled_ones():
    a, b = made(CALM, idle=30_000_000, control_step_ns=50e6), made(CALM, idle=30_000_000, control_step_ns=40e6)
    note = kinds(diff([a], [b]))["profiler"]
    assert note.text == "without the profiler a step takes 50.0 → 40.0 ms, 20 % shorter; with it 100.0 → 100.0"
    assert note.figures == {"before_control_step_ns": 50e6, "after_control_step_ns": 40e6}
    measured = replace(a, facts=structs.replace(a.facts, control_tokens_per_s=160.0))
    assert re.search(r"without profiler +50.000 ms, 160.0 tokens/s +—", page_text(diff([measured], [made(CALM)])))


def test_control_runs_of_a_manifest_beside_the_trace(tmp_path):
    path = tmp_path / "a-TP-0.json.gz"
    path.write_bytes((GLM5 / "tiny-pool-eager-TP-0.json.gz").read_bytes())
    pace = {"n_steps": 10, "n_tokens": 80, "wall_ns": 500_000_000}
    manifest: dict[str, Any] = {
        "format_version": 1, "traceql_version": "0", "created": "2026-01-01T00:00:00Z",
        "server": {"version": "1"}, "server_args": {},
        "workload": {"batch_size": 8, "prompt_tokens": 1, "seed": 0, "vocab_size": 9},
        "control_before": pace, "control_after": pace | {"wall_ns": 700_000_000},
        "profile": {
            "n_steps": 3, "stage": "decode", "warmup_steps": 0, "with_stack": False, "record_shapes": True,
            "n_attempts": 1, "files": [{"path": path.name, "n_bytes": 1, "sha256": "", "n_steps": 3}],
        },
    }  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert recording(path).facts.control_step_ns == 60e6
    bare = loaded(path)
    assert with_controls(bare, [tmp_path / "another.json.gz"]).facts.control_step_ns is None
    (tmp_path / "manifest.json").write_text("{")
    assert with_controls(bare, [path]).facts.control_step_ns is None


def test_a_first_step_that_warms_up():
    found = diff([made([3 * CALM[0], *CALM])], [made(CALM)])
    assert kinds(found)["warm_up"].text == (
        "before: its first step, 0, takes 300.0 ms, the median 100.0; it makes the mean step 9.52 ms longer, "
        "most of it gemm (--steps 1: leaves it out)"
    )
    without = diff([made([3 * CALM[0], *CALM])], [made(CALM)], DiffOptions(first_step=1)).before
    added_ns = kinds(found)["warm_up"].figures["mean_delta_ns"]
    assert added_ns == pytest.approx(found.before.mean_wall_ns - without.mean_wall_ns, abs=1)
    assert found.verdict == "same"


# --- gates


@pytest.mark.parametrize(("factor", "limit", "failed"), [
    (1.06, "5%", True), (1.04, "5%", False), (1.06, "+5ms", True), (1.06, "7ms", False), (0.5, "0%", False),
])  # fmt: skip
def test_gates_of_the_step_and_of_a_category(factor, limit, failed):
    found = diff([made(CALM)], [made(longer(factor))])
    assert judged(found, Gate.parse(limit)).is_failed is failed
    assert judged(found, Gate.parse_named(f"gemm:{limit}")).is_failed is failed


def test_a_gate_at_its_very_edge():
    """Without noise the interval is a point: growth of the limit itself is allowed, a nanosecond more is not."""
    before = made([1_000_000] * 9)
    assert judged(diff([before], [made([1_050_000] * 9)]), Gate.parse("+50us")).status == "passed"
    assert judged(diff([before], [made([1_050_001] * 9)]), Gate.parse("+50us")).status == "failed"


def test_a_gate_that_noise_keeps_from_telling():
    noisy = [wall + 20_000_000 * (number % 2) for number, wall in enumerate(CALM)]
    gate = judged(diff([made(noisy)], [made([wall + 6_000_000 for wall in noisy])]), Gate.parse("5%"))
    assert (gate.is_failed, gate.status) == (False, "cannot tell")
    few = judged(diff([made(CALM[:3])], [made(longer(9)[:3])]), Gate.parse_named("gemm:5%"))
    assert (few.is_failed, few.status) == (False, "cannot tell")


def test_a_gate_of_idle_time_and_of_a_new_category():
    found = diff([made(CALM)], [made(longer(1.0), idle=2_000_000)])
    assert judged(found, Gate.parse_named("idle:+1ms")).is_failed
    assert not judged(found, Gate.parse_named("idle:+3ms")).is_failed
    assert not judged(found, Gate.parse_named("cast:0%")).is_failed


@pytest.mark.parametrize("text", ["", "5", "-5%", "5 parsec", "%", "1e3ms", "nan%", "+ms"])
def test_what_is_no_limit(text):
    with pytest.raises(ValueError, match="is not a"):
        Gate.parse(text)
    with pytest.raises(ValueError, match="is not a"):
        Gate.parse_named(text)


# --- the command


def run(*args: object) -> Result:
    return CliRunner().invoke(command, [*map(str, args), "--no-cache"])


TINY = [str(GLM5 / name) for name in (POOL, GATHER)]


@pytest.mark.parametrize("form", ["table", "json", "csv", "parquet", "markdown", "junit", "github"])
def test_every_form(form, tmp_path):
    output = tmp_path / "out"
    result = run(*TINY, "--format", form, "-o", output)
    assert result.exit_code == 0, result.output
    data = output.read_bytes()
    if form == "json":
        assert json.loads(data)["verdict"] == "cannot tell"
    elif form == "parquet":
        assert pl.read_parquet(io.BytesIO(data))["name"].len() > 5
    elif form == "csv":
        assert "cast" in [row["name"] for row in csv.DictReader(io.StringIO(data.decode()))]
    elif form == "junit":
        assert ET.fromstring(data.decode()).find("testsuite") is not None
    else:
        assert "cannot tell" in data.decode()


def test_the_document_has_the_keys_that_are_promised(graph):
    document = diff_document(diff([graph[0]], [graph[1]]))
    assert {
        "headline", "verdict", "reason", "before", "after", "delta_ns", "interval_ns", "relative", "waterfall",
        "layer_types", "kernels", "replacements", "collectives", "differences", "notes", "gates",
    } <= set(document)  # fmt: skip
    assert document["before"]["n_recordings"] == 1
    assert document["interval_ns"]["low"] < document["delta_ns"] < document["interval_ns"]["high"]
    assert document["mean_delta_ns"] == pytest.approx(sum(row["delta_ns"] for row in document["waterfall"]), abs=1e-3)
    assert document["before"]["median_wall_ns"] == 84025333.0


@pytest.mark.parametrize("by", ["category", "kernel", "layer", "replacement", "collective", "step"])
def test_one_table_alone(by):
    assert run(*TINY, "--by", by, "--top", 3).exit_code == 0
    assert run(*TINY, "--by", by, "--format", "csv").exit_code == 0


def test_exit_status_of_gates(graph, tmp_path):
    sides = []
    for name, one in zip(("slow", "fast"), graph, strict=True):
        sides.append(tmp_path / f"{name}.traceql-baseline")
        one.save(sides[-1])
    slow, fast = sides
    assert run(fast, slow, "--fail-on-regression", "5%").exit_code == 1
    assert run(slow, fast, "--fail-on-regression", "5%").exit_code == 0
    assert run(fast, slow, "--fail-on", "cast:+1ms", "--fail-on", "idle:+1ms").exit_code == 1
    assert run(fast, slow, "--fail-on", "attention:+1ms").exit_code == 0
    junit = ET.fromstring(run(fast, slow, "--fail-on", "cast:+1ms", "--format", "junit").output).find("testsuite")
    assert junit is not None
    assert (junit.get("tests"), junit.get("failures")) == ("1", "1")
    github = run(fast, slow, "--fail-on", "cast:+1ms", "--format", "github").output
    assert github.startswith("::error title=traceql diff%2C cast::gate failed: cast 0.4 → 66.6 ms, allowed +1 ms")


@pytest.mark.parametrize(
    "args",
    [
        (),
        (TINY[0],),
        (*TINY, TINY[0]),
        ("--before", "--after", *TINY),
        (*TINY, "--fail-on", "casts:+1ms"),
        (*TINY, "--fail-on-regression", "much"),
        (*TINY, "--min-effect", "-1"),
        (*TINY, "--min-effect", "nan"),
        (*TINY, "--by", "kernel", "--layer", "0"),
        ("--baseline", "none", TINY[1]),
    ],
)
def test_what_cannot_be_run(args):
    result = run(*args)
    assert result.exit_code != 0
    assert result.exit_code != 1 or result.exception is not None


def test_options_that_take_all_that_follows():
    assert spread(["--before", "a", "b", "--after", "c", "--top", "3"]) == [
        "--before", "a", "--before", "b", "--after", "c", "--top", "3",
    ]  # fmt: skip
    assert spread(["x", "--by", "kernel", "y"]) == ["x", "--by", "kernel", "y"]
    assert spread(["--after", "a", "--", "-b"]) == ["--after", "a", "--", "-b"]


def test_several_recordings_a_side():
    result = run("--before", TINY[0], TINY[0], "--after", TINY[1], "--format", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert (document["before"]["n_recordings"], document["after"]["n_recordings"]) == (2, 1)


def test_the_ranks_of_a_run_are_one_recording():
    """They share every collective, so that their medians agree: taken for repetitions they would look beyond doubt."""
    ranks = [GLM5 / f"tiny-pool-eager-TP-{rank}.json.gz" for rank in (0, 1)]
    result = run("--before", *ranks, "--after", TINY[1], "--format", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert document["before"]["n_recordings"] == 1
    assert document == json.loads(run(GLM5 / "tiny-pool-eager-TP-?.json.gz", TINY[1], "--format", "json").output)
    whole_and_part = run("--before", GLM5 / "tiny-pool-eager-TP-?.json.gz", ranks[0], "--after", TINY[1])
    assert whole_and_part.exit_code == 0, whole_and_part.output


def test_other_ranks_are_no_repetition():
    pair = [
        loaded(GLM5 / "tiny-pool-eager-TP-0.json.gz"),
        loaded(GLM5 / "tiny-pool-eager-TP-1.json.gz"),
    ]
    assert are_one_run(pair)
    assert not are_one_run([pair[0], pair[0]])
    assert not are_one_run([*pair, pair[1]])
    assert not are_one_run(pair[:1])
    with pytest.raises(InputError, match=r"after: .*TP-0.* and .*TP-1.* are of ranks 0 and 1, no two recordings"):
        diff([pair[0]], pair)


def test_in_python(tiny):
    trace = traceql.load(GLM5 / "tiny-pool-eager-TP-0.json.gz", cache=False)
    found = diff_of(trace, GLM5 / "tiny-gather-eager-TP-0.json.gz")
    assert (found.before.n_steps, found.after.n_steps) == (2, 2)
    run_of_two = [GLM5 / f"tiny-gather-eager-TP-{rank}.json.gz" for rank in (0, 1)]
    found = diff_of([tiny["pool-eager"], tiny["pool-eager"]], run_of_two)
    assert (len(found.before.recordings), found.before.n_steps, found.after.ranks) == (2, 8, [0, 1])


def test_no_trace_is_overwritten(tmp_path):
    trace = tmp_path / "a-TP-0.json.gz"
    trace.write_bytes((GLM5 / "tiny-pool-eager-TP-0.json.gz").read_bytes())
    before = trace.read_bytes()
    result = run(tmp_path / "a-*", TINY[1], "-o", trace, "--force")
    assert "is the trace itself" in str(result.exception)
    assert trace.read_bytes() == before


def test_ranks_of_a_baseline(tiny, tmp_path):
    path = tmp_path / "both.traceql-baseline"
    tiny["pool-eager"].save(path)
    document = json.loads(run(path, path, "--rank", 1, "--format", "json").output)
    assert {row["rank"] for row in document["steps"]} == {1}
    assert "no rank 7" in str(run(path, path, "--rank", 7).exception)


def test_one_rank_against_another():
    """It is said, and neither side has time of a rank that it did not record."""
    pair = [loaded(GLM5 / f"tiny-pool-eager-TP-{rank}.json.gz") for rank in (0, 1)]
    found = diff([pair[0]], [pair[1]])
    assert found.differences.filter(fact="rank").select("before", "after", "breaks").rows() == [("0", "1", False)]
    assert found.collectives["rank"].to_list() == [None]


def test_steps_that_were_found_otherwise():
    pair = [loaded(GLM5 / f"tiny-pool-{kind}-TP-0.json.gz") for kind in ("eager", "nomark")]
    found = diff([pair[0]], [pair[1]]).differences.filter(fact="steps found by")
    assert found.select("before", "after", "breaks").rows() == [("annotation", "repetition", False)]


def test_profiler_options_of_one_side_only():
    pair = [made(CALM, idle=30_000_000, with_stack=known) for known in (True, False)]
    assert kinds(diff([pair[0]], [pair[1]]))["recorded"].text.startswith("stacks are not recorded alike")


# --- hostile names


def test_hostile_names_in_every_form(tmp_path):
    paths = []
    for name, walls in (("a", CALM), ("b", longer(2))):
        paths.append(tmp_path / f"{name}.traceql-baseline")
        one = made(walls)
        replace(one, facts=structs.replace(one.facts, name=NAME)).save(paths[-1])
    for form in ("table", "markdown", "junit", "github"):
        text = run(*paths, "--by", "kernel", "--format", form, "--full-names", "--fail-on-regression", "1%").output
        assert "\x1b" not in text, form
        assert not any(line.startswith("::error::x") for line in text.splitlines()), form
    assert json.loads(run(*paths, "--format", "json").output)["kernels"][0]["name"] == NAME
    rows = list(csv.DictReader(io.StringIO(run(*paths, "--by", "kernel", "--format", "csv").output)))
    assert rows[0]["name"] == NAME
    markdown = run(*paths, "--by", "kernel", "--format", "markdown").output
    (row,) = (line for line in markdown.splitlines() if "evil" in line)
    assert r"``evil\|`<b>\x1b[31m\n::error::x,y``" in row


# --- all recorded pairs


def shared_run(shared: Path, pattern: str) -> Recording:
    return loaded(shared / pattern, cache=True)


@pytest.mark.shared
def test_waiting_and_hidden_time_of_an_eager_pair(shared):
    found = diff(
        [shared_run(shared, "glm5/glm5-pool-eager-TP-?.json.gz")],
        [shared_run(shared, "glm5/glm5-gather-eager-TP-?.json.gz")],
    )
    check_sums(found)
    assert found.verdict in ("same", "cannot tell")
    assert verdict_line(found).startswith("no faster: step 153.5 → 150.9 ms")
    assert change_of(found, "cast") == pytest.approx(-67.4, abs=0.05)
    told = kinds(found)
    assert told["host_bound"].text.startswith("host-bound before and after")
    assert told["collective"].text == (
        "all-reduce takes 31.8 ms a step more: 31.7 waiting for the slower rank, 0.03 transfer; "
        "its time in the median step: 26.3 → 117.8 on rank 0, 26.7 → 1.18 on rank 1"
    )
    assert "kernel time without communication falls by 68.0 ms a step" in told["hidden"].text
    assert "hidden, not lost" in told["hidden"].text
    assert "may hide a gain" in told["profiler"].text
    assert found.replacements.is_empty()


@pytest.mark.shared
def test_one_rank_cannot_tell_waiting_from_transfer(shared):
    pair = [shared_run(shared, f"glm5/glm5-{kind}-eager-TP-0.json.gz") for kind in ("pool", "gather")]
    told = kinds(diff([pair[0]], [pair[1]]))
    assert told["collective"].text.endswith("waiting cannot be told from transfer with one rank")
    assert told["collective"].figures["waiting_delta_ns"] is None


@pytest.mark.shared
def test_the_fix_under_graphs_on_two_ranks(shared):
    pair = [shared_run(shared, f"glm5/glm5-{kind}-graph-TP-?.json.gz") for kind in ("pool", "gather")]
    found = diff([pair[0]], [pair[1]])
    check_sums(found)
    assert (found.verdict, found.before.median_wall_ns / 1e6, found.after.median_wall_ns / 1e6) == (
        "faster", pytest.approx(87.7, abs=0.05), pytest.approx(20.0, abs=0.05),
    )  # fmt: skip
    assert change_of(found, "cast") == pytest.approx(-67.4, abs=0.05)


@pytest.mark.shared
def test_an_eager_server(shared):
    pair = [shared_run(shared, f"sglang/{side}-eager-TP-0.trace.json.zst") for side in ("before", "after")]
    found = diff([pair[0]], [pair[1]])
    check_sums(found)
    assert found.before.median_wall_ns / 1e6 == pytest.approx(179.5, abs=0.05)
    assert found.after.median_wall_ns / 1e6 == pytest.approx(166.9, abs=0.05)
    kernel_ms = [side.kernel_ns / side.n_steps / 1e6 for side in (found.before, found.after)]
    assert kernel_ms == [pytest.approx(85.4, abs=0.1), pytest.approx(23.5, abs=0.1)]
    assert {"host_bound", "hidden", "profiler"} <= set(kinds(found))
    eager_to_graph = diff([pair[0]], [loaded(BEFORE, cache=True)])
    assert "launched" in kinds(eager_to_graph)
    assert eager_to_graph.kernels.filter(pl.col("status") == "gone")["before_ns_per_step"].sum() < 1e6


HALVES = {
    "glm5/glm5-pool-graph-TP-?.json.gz": ["same"],
    "glm5/glm5-gather-graph-TP-?.json.gz": ["same"],
    "sglang/before-graph-TP-0.trace.json.zst": ["same"],
    "sglang/after-graph-TP-0.trace.json.zst": ["same"],
    "sglang-tp2/before-graph-TP-?.trace.json.zst": ["same"],
    "sglang-tp2/after-graph-TP-?.trace.json.zst": ["same"],
    "sglang/before-eager-TP-0.trace.json.zst": ["same", "cannot tell"],
    "sglang/after-eager-TP-0.trace.json.zst": ["same", "cannot tell"],
    "glm5/glm5-pool-eager-TP-?.json.gz": ["same", "cannot tell"],
    "glm5/glm5-gather-eager-TP-?.json.gz": ["same", "cannot tell"],
}
"""Eager steps vary by more than the smallest effect, and some have few."""


@pytest.mark.shared
@pytest.mark.parametrize("pattern", HALVES)
def test_the_halves_of_a_recording_do_not_differ(shared, pattern):
    one = shared_run(shared, pattern)
    half = one.steps["step"].n_unique() // 2
    found = diff([one.only(pl.col("step") < half)], [one.only(pl.col("step") >= half)])
    assert found.verdict in HALVES[pattern], found.relative


def test_the_halves_of_a_fixture_do_not_differ(graph):
    for one in graph:
        assert diff([one.only(pl.col("step") < 15)], [one.only(pl.col("step") >= 15)]).verdict == "same"


def test_two_captures_of_a_real_server():
    """Patched and unpatched by `traceql capture`, 10 decode steps each under CUDA graphs, manifests beside them."""
    folder = FIXTURES / "capture"
    found = traceql.diff(folder / "before" / "traces", folder / "after" / "traces")
    assert (found.verdict, found.is_comparable) == ("faster", True)
    assert found.before.median_wall_ns == pytest.approx(82.3e6, rel=0.001)
    assert found.after.median_wall_ns == pytest.approx(16.95e6, rel=0.001)
    (pair,) = {(row["before"], row["after"]) for row in found.replacements.iter_rows(named=True)}
    assert pair == ("unrolled_elementwise_kernel<direct_copy, bf16>", "_gather_cast")
    (control,) = (note.text for note in notes(found) if "without the profiler" in note.text)
    assert "79.9 → 16.8 ms" in control
