"""Steps of several stages: figures of each, never a mean of a prompt and a token. Against the slow count."""

import json
import re
from dataclasses import fields, replace
from typing import Any

import polars as pl
import pytest
import reference
import zstandard
from click.testing import CliRunner
from conftest import FIXTURES
from test_truth import REAL, check_against_reference

import traceql
from traceql.analyses import summarize
from traceql.analyses.casts import cast_report
from traceql.analyses.rank_stats import RunSummary, summarize_run
from traceql.analyses.stages import STAGES
from traceql.analyses.summary import Selection
from traceql.categories import GROUPS
from traceql.cli import main
from traceql.report.casts_words import casts_lines
from traceql.report.html import Tile
from traceql.report.stage_words import counts_in_words, several_stages, stage_name, step_name
from traceql.report.summary_page import SummaryView, summary_page
from traceql.report.summary_words import subject
from traceql.report.text import render_text
from traceql.report.trace_page import Material, trace_page

MIXED = FIXTURES / "capture" / "prefill-and-decode-TP-0.trace.json.zst"
"""One prefill step with a cached prefix and seven decode steps under CUDA graphs, of SGLang 0.5.11 on an H200."""
_GROUP_NS = [f"{group}_ns" for group in GROUPS]


def test_the_recording_against_the_slow_count() -> None:
    check_against_reference(MIXED)


def test_stages_against_the_slow_count() -> None:
    """Every complete step of the slow count, by the word in its annotation and the group of what ran in its window."""
    trace = traceql.load(MIXED, cache=False)
    recording = reference.load(MIXED)
    kernels = trace.kernels.select("start_ns", "stream", "correlation", "name", "group").collect()
    zero = trace.meta.first_event_ns or 0
    group_of = {(start + zero, *rest): group for start, *rest, group in kernels.iter_rows()}
    expected: dict[str, dict[str, Any]] = {}
    for step in (step for step in reference.steps(recording) if step.is_complete):
        word = re.search(r"EXTEND|DECODE", step.annotation.name)
        assert word is not None
        row = expected.setdefault({"EXTEND": "prefill", "DECODE": "decode"}[word[0]], {"walls": [], "idle_ns": 0})
        row["walls"].append(step.wall)
        row["idle_ns"] += step.wall - step.busy
        for activity, share in step.exclusive.items():
            name = f"{group_of[activity.start, activity.stream, activity.correlation, activity.name]}_ns"
            row[name] = row.get(name, 0) + share
    found = {row["stage"]: row for row in summarize(trace).stages.iter_rows(named=True)}
    assert {stage: found[stage]["n_steps"] for stage in found} == {"decode": 6, "prefill": 1}
    assert set(found) == set(expected)
    for stage, row in expected.items():
        assert found[stage]["median_wall_ns"] == reference.median(row["walls"])
        assert found[stage]["wall_ns"] == sum(row["walls"])
        assert {name: found[stage][name] for name in _GROUP_NS} == {name: row.get(name, 0) for name in _GROUP_NS}
        assert found[stage]["idle_ns"] == row["idle_ns"]


def test_the_parts_of_every_recording_add_up() -> None:
    for path in [MIXED, *REAL]:
        summary = summarize(traceql.load(path, cache=False))
        rows = summary.stages
        assert (rows["wall_ns"] == rows.select(pl.sum_horizontal("idle_ns", *_GROUP_NS)).to_series()).all()
        if summary.scope == "steps":
            assert rows["n_steps"].sum() == summary.n_windows
            assert rows["wall_ns"].sum() == summary.wall_ns
            sums = dict(summary.groups.select("group", "exclusive_ns").iter_rows())
            assert {group: rows[f"{group}_ns"].sum() for group in GROUPS} == {g: sums.get(g, 0) for g in GROUPS}
        else:
            assert rows.is_empty()


def test_a_stage_is_what_selecting_it_says() -> None:
    trace = traceql.load(MIXED, cache=False)
    for row in summarize(trace).stages.iter_rows(named=True):
        alone = summarize(trace, Selection(stage=row["stage"]))
        assert (alone.n_windows, alone.wall_ns, alone.idle_ns) == (row["n_steps"], row["wall_ns"], row["idle_ns"])
        assert alone.stages.drop("share").rows() == [tuple(row[name] for name in row if name != "share")]
        assert alone.stages["share"].to_list() == [1.0]


def head_of(**selection: Any) -> list[str]:
    trace = traceql.load(MIXED, cache=False)
    page = summary_page(summarize_run(trace, Selection(**selection)), SummaryView())
    return render_text(page[:1], width=300).splitlines()


def test_the_headline_has_a_sentence_a_stage() -> None:
    decode, prefill = head_of()
    assert decode.startswith("decode step 80.477 ms (median of 6 complete steps, batch 3): copy 83.4 %, moe 7.0 %")
    assert decode.endswith("idle 1.9 %")
    assert prefill.startswith("prefill step 183.073 ms (1 complete step, batch 3): copy 37.1 %")
    assert prefill.endswith("idle 56.3 %")
    assert head_of(stage="decode") == [decode]


def words(line: str) -> str:
    """The line with single spaces."""
    return " ".join(line.split())


def test_the_page_of_several_stages() -> None:
    run = CliRunner().invoke(main, ["summarize", str(MIXED), "--no-cache"])
    assert run.exit_code == 0
    assert "decode: GPU-bound: idle 0.8 % of the median step" in run.stdout
    assert "prefill: GPU waits for the host 56 % of the step: host-bound" in run.stdout
    assert "decode: 78 layers a step: 3 × attention + mlp 0.97 ms, 75 × attention + moe, kind 2 1.03 ms" in run.stdout
    assert "prefill: 78 layers a step: 3 × attention + mlp 1.48 ms, 75 × attention + moe, kind 1 2.33 ms" in run.stdout
    assert "7 steps of all stages (`--stage` tells one)" in run.stdout
    titles, _, decode, prefill, *_ = run.stdout.split("\nStages\n")[1].splitlines()
    assert words(titles) == "stage steps batch median ms of all wall copy gemm attention moe other idle"
    assert words(decode) == "decode 6 3 80.477 72.7 % 83.4 % 4.6 % 1.8 % 7.0 % 1.2 % 1.9 %"
    assert words(prefill) == "prefill 1 3 183.073 27.3 % 37.1 % 2.3 % 0.9 % 2.8 % 0.5 % 56.3 %"


def test_one_stage_gets_no_table_unless_asked() -> None:
    path = str(FIXTURES / "sglang" / "after-graph-TP-0.trace.json.zst")
    assert "\nStages\n" not in CliRunner().invoke(main, ["summarize", path]).stdout
    assert "\nStages\n" in CliRunner().invoke(main, ["summarize", path, "--by", "stage"]).stdout


def test_data_of_stages() -> None:
    document = json.loads(CliRunner().invoke(main, ["summarize", str(MIXED), "--format", "json"]).stdout)
    assert [row["stage"] for row in document["stages"]] == ["decode", "prefill"]
    assert set(document["stages"][0]) == set(STAGES.names)
    csv = CliRunner().invoke(main, ["summarize", str(MIXED), "--by", "stage", "--format", "csv"]).stdout
    assert csv.splitlines()[0] == ",".join(STAGES.names)


def test_an_outlier_is_measured_by_its_like() -> None:
    """A step twice the median of all steps, of which most are of another stage, is none; and is not told as one."""
    run = CliRunner().invoke(main, ["summarize", str(MIXED)])
    assert "step 1: 85.492 ms, 1.06 × the median" in run.stdout
    assert "183.073 ms, 2" not in run.stdout


def test_tiles_are_of_the_stage_with_most_time() -> None:
    trace = traceql.load(MIXED, cache=False)
    tiles = trace_page(Material.of(trace)).tiles
    assert tiles[0] == Tile("80.477 ms", "a decode step, median", "as profiled")
    assert tiles[1].value == "12.4"
    assert (tiles[2].value, tiles[2].note) == ("GPU-bound", "decode steps")
    assert [tile.value for tile in tiles[3:5]] == ["83.4 %", "1.9 %"]
    assert (tiles[5].value, tiles[5].label) == ("4", "findings")


def test_one_finding_is_not_called_findings() -> None:
    material = Material.of(traceql.load(MIXED, cache=False))
    one = replace(material, findings=replace(material.findings, found=material.findings.found[:1]))
    assert (trace_page(one).tiles[-1].value, trace_page(one).tiles[-1].label) == ("1", "finding")


def test_the_layers_page_says_that_it_is_of_several_stages() -> None:
    told = "Means over 6 decode and 1 prefill steps: `--stage decode` tells those of one stage."
    assert told in CliRunner().invoke(main, ["layers", str(MIXED)]).stdout
    assert "Means over 6 decode" not in CliRunner().invoke(main, ["layers", str(MIXED), "--stage", "decode"]).stdout


def test_casts_are_told_for_each_stage() -> None:
    """Against a plain count: lengths of the pool's casts in each step's launches, and the step's wall."""
    report = cast_report(traceql.load(MIXED, cache=False))
    decode, prefill = casts_lines(report)
    of_stage: dict[str, list[tuple[int, int, int]]] = {}
    for window in report.windows.iter_rows(named=True):
        casts = [row for row in report.casts.iter_rows(named=True) if row["step"] == window["step"]]
        pool = [row["dur_ns"] for row in casts if (row["n_elements_max"] or 0) > 100_000_000]
        of_stage.setdefault(window["stage"], []).append((len(pool), sum(pool), window["wall_ns"]))
    for stage, line in (("decode", decode), ("prefill", prefill)):
        numbers, spent, walls = zip(*of_stage[stage], strict=True)
        assert set(numbers) == {78}
        ns, wall_ns = reference.median(list(spent)), reference.median(list(walls))
        told = f"take {ns / 1e6:.1f} of {wall_ns / 1e6:.1f} ms ({ns / wall_ns * 100:.0f} %)"
        assert line.startswith(f"{stage}: 78 casts a step of the whole KV pool ")
        assert told in line
    alone = cast_report(traceql.load(MIXED, cache=False), Selection(stage="decode"))
    assert [f"decode: {line}" for line in casts_lines(alone)] == [decode]
    document = json.loads(CliRunner().invoke(main, ["casts", str(MIXED), "--format", "json"]).stdout)
    assert document["headline"].splitlines() == [decode, prefill]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("casts", "Over 7 complete steps of all stages (`--stage` tells one)."),
        ("idle", "Over 7 complete steps of all stages (`--stage` tells one)."),
        ("critical-path", "Means over 6 decode and 1 prefill steps: `--stage decode` tells those of one stage."),
        ("ranks", "Medians over 6 decode and 1 prefill steps: `--stage decode` tells those of one stage."),
    ],
)
def test_figures_over_several_stages_are_said_to_be_that(command: str, told: str) -> None:
    assert told in words(CliRunner().invoke(main, [command, str(MIXED)]).stdout)
    assert "--stage" not in CliRunner().invoke(main, [command, str(MIXED), "--stage", "decode"]).stdout


def test_whatif_names_the_stage_that_it_is_about() -> None:
    """Of several stages it replays the decode steps alone."""
    told = CliRunner().invoke(main, ["whatif", str(MIXED), "--scale", "category = 'cast'", "0"]).stdout
    assert told.startswith("80.477 ms → 12.586 ms a decode step: 84 % shorter, 6.4×; then the GPU sets the pace\n")
    assert "Medians over 6 complete decode steps, of all ranks." in told


def steps_of(*stages: str) -> pl.DataFrame:
    return pl.DataFrame({"stage": stages})


def test_stages_in_words() -> None:
    three = steps_of(*["mixed"] * 9, *["unknown"] * 11, *["decode"] * 10)
    assert counts_in_words(three) == "11 unknown, 10 decode and 9 mixed"
    assert several_stages("Means", three) == (
        "Means over 11 unknown, 10 decode and 9 mixed steps: `--stage decode` tells those of one stage."
    )
    assert several_stages("Means", steps_of("decode", "decode")) is None
    assert counts_in_words(steps_of("decode")) == "1 decode"
    assert (stage_name("unknown"), stage_name("mixed")) == ("unknown stage", "mixed")
    assert (step_name("unknown"), step_name("decode", 2)) == ("step of unknown stage", "decode steps")


@pytest.fixture(scope="module")
def half_known(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The recording with every other step renamed to a word that no engine is known to write."""
    document = json.loads(zstandard.ZstdDecompressor().stream_reader(MIXED.read_bytes()).read())
    starts = [
        e["ts"] for e in document["traceEvents"] if e["name"].startswith("step[") and e["cat"] == "user_annotation"
    ]
    every_other = set(sorted(starts)[::2])
    for event in document["traceEvents"]:
        if event["name"].startswith("step[") and event["ts"] in every_other:
            event["name"] = "step[WARP bs=3]"
    path = tmp_path_factory.mktemp("stages") / "half-known.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_steps_of_unknown_stage_are_called_that(half_known: str) -> None:
    told = words(CliRunner().invoke(main, ["summarize", half_known]).stdout)
    assert "step of unknown stage " in told
    assert "unknown stage: 78 layers a step" in told
    assert "`--stage unknown`" not in CliRunner().invoke(main, ["layers", half_known]).stdout
    tiles = trace_page(Material.of(traceql.load(half_known, cache=False))).tiles
    assert tiles[0].label == "a step of unknown stage, median"


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_stages_fit_a_narrow_page(width: int) -> None:
    """What takes least time goes first; the group with most and idle time stay."""
    summary = summarize_run(traceql.load(MIXED, cache=False))
    wide = summary.stages.with_columns(nccl_ns=pl.lit(7), rope_ns=pl.lit(7))
    page = render_text(summary_page(replace(summary, stages=wide), SummaryView(by="stage"))[-1:], width=width)
    titles, _, *rows = page.splitlines()[1:5]
    assert all(len(line) <= width for line in page.splitlines())
    assert {"stage", "copy", "idle"} <= set(titles.split())
    assert ("nccl" in titles) == (width >= 80)
    assert [row.split()[0] for row in rows] == ["decode", "prefill"]


def test_the_headline_of_a_run_does_not_name_one_stage() -> None:
    """Its ranks are compared over all steps; the sentences of the stages follow."""
    summary = summarize_run(traceql.load(MIXED, cache=False))
    ranks = pl.DataFrame({"rank": [0, 1], "device": [0, 1], "wall_ns": [80_480_000.0] * 2, "n_steps": [7, 7]})
    of_run: dict[str, Any] = {each.name: getattr(summary, each.name) for each in fields(summary)}
    of_run["ranks"] = ranks
    told = subject(RunSummary(**of_run))
    assert told == "step 80.480 ms on rank 0 (median rank of 2, median of 7 complete steps of all stages, batch 3)"
