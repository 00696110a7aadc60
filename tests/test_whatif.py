"""`traceql whatif`, `traceql critical-path` and what a finding's fix saves: figures, pages, data, and faults of use."""

import gzip
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner, Result
from conftest import FIXTURES
from msgspec import structs
from reference_slice import dropped
from test_idle import launched, loaded
from test_replay import run_files, run_of, story

import traceql
from traceql.analyses.critical_path import KINDS, LIMITS, critical_path, critical_paths
from traceql.analyses.replay_costs import GRAPH_GAP_NS, Changes, Scaling
from traceql.analyses.summary import Selection
from traceql.analyses.whatif import LEAST_HOST_FACTOR, host_factor, predicted_wall, what_if
from traceql.cli import main
from traceql.cli.critical_path import command as critical_path_command
from traceql.cli.whatif import command as whatif_command
from traceql.errors import MissingDataError, RuleError
from traceql.report import whatif_document
from traceql.report.critical_page import critical_page
from traceql.report.page import View
from traceql.report.text import render_text
from traceql.report.whatif_page import whatif_page
from traceql.report.whatif_words import whatif_line
from traceql.rules import load_rules, run_rules
from traceql.rules.conditions import ConditionError
from traceql.rules.model import Finding, Rule, Saving
from traceql.rules.savings import matching_kernels, moved_ns, peak_bytes_per_s, saving_of
from traceql.run import load_run
from traceql.trace import Trace

EAGER, GRAPH = (run_files(f"tiny-pool-{how}") for how in ("eager", "graph"))


def whatif(*arguments: str | Path) -> Result:
    return CliRunner().invoke(whatif_command, [*map(str, arguments), "--no-cache"])


def critical(*arguments: str | Path) -> Result:
    return CliRunner().invoke(critical_path_command, [*map(str, arguments), "--no-cache"])


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def queued(tmp_path: Path, n_steps: int = 3, *, mark: str = "step[DECODE bs=4]") -> Trace:
    """Steps of a kernel of 400 µs and a cast of 90, all launched at the beginning, with gaps of 5."""
    events: list[dict[str, Any]] = []
    for i in range(n_steps):
        events.append({"ph": "X", "cat": "user_annotation", "name": mark, "pid": 9, "tid": 1, "ts": 30 * i, "dur": 25})
        events += launched(2 * i + 1, 30 * i, 8 + 500 * i, 400)
        cast = (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"
        )
        events += launched(2 * i + 2, 30 * i + 6, 413 + 500 * i, 90, name=cast)
    return story(tmp_path, *events)


# --- the figures


def test_what_a_shorter_kernel_is_worth(tmp_path):
    trace = queued(tmp_path)
    gemm = matching_kernels(trace, "name = 'gemm'")
    found = what_if(trace, Changes((Scaling(gemm, factor=0.25),)))
    assert (found.recorded_wall_ns, found.replayed_wall_ns, found.predicted_wall_ns) == (500_000, 500_000, 200_000)
    assert (found.saved_ns, found.kernel_saved_ns, found.is_gain) == (300_000, 300_000, True)
    assert (found.batch_size, found.recorded_tokens_per_s, found.predicted_tokens_per_s) == (4, 8_000, 20_000)
    assert (found.recorded_limit, found.limit) == ("gpu", "gpu")
    assert found.steps.select("recorded_kernel_ns", "predicted_kernel_ns").rows() == [(490_000, 190_000)] * 2
    assert found.bottlenecks.select("kind", "name", "ns_per_step").rows()[:2] == [
        ("kernel", "gemm", 100_000),
        ("kernel", "unrolled_elementwise_kernel<direct_copy>", 90_000),
    ]
    assert whatif_line(found) == "500.0 µs → 200.0 µs a decode step: 60 % shorter, 2.5×; then the GPU sets the pace"


def test_replacements_and_scalings_follow_each_other(tmp_path):
    trace = queued(tmp_path)
    gemm = matching_kernels(trace, "name = 'gemm'")
    both = Changes((Scaling(gemm, length_ns=1_000), Scaling(gemm, factor=3.0)))
    assert what_if(trace, both).predicted_wall_ns == 3_000 + 5_000 + 90_000 + 5_000
    longer = what_if(trace, Changes((Scaling(gemm, factor=2.0),)))
    assert (longer.predicted_wall_ns, longer.is_gain) == (900_000, False)
    slightly = what_if(trace, Changes((Scaling(gemm, factor=0.97),)))
    assert whatif_line(slightly) == "500.0 µs → 488.0 µs a decode step: 2.4 % shorter; then the GPU sets the pace"
    assert whatif_line(longer) == "500.0 µs → 900.0 µs a decode step: 80 % longer; then the GPU sets the pace"


def test_decode_steps_count_where_there_are_any(tmp_path):
    events: list[dict[str, Any]] = []
    for i, mark in enumerate(
        ["step[EXTEND bs=1 toks=99]", "step[DECODE bs=1]", "step[DECODE bs=1]", "step[DECODE bs=1]"]
    ):
        events.append({"ph": "X", "cat": "user_annotation", "name": mark, "pid": 9, "tid": 1, "ts": 100 * i, "dur": 50})
        events += launched(i + 1, 100 * i, 100 * i + 10, 40)
    trace = story(tmp_path, *events)
    assert what_if(trace, Changes()).steps["step"].to_list() == [1, 2]
    assert what_if(trace, Changes(), Selection(stage="prefill")).steps["step"].to_list() == [0]
    assert what_if(trace, Changes(), Selection(first_step=2)).steps["step"].to_list() == [2]


def test_without_a_complete_step_there_is_nothing_to_replay(tmp_path):
    one = queued(tmp_path, 1)
    for ask in (lambda: what_if(one, Changes()), lambda: critical_paths(one)):
        with pytest.raises(MissingDataError, match="no complete step"):
            ask()
    with pytest.raises(MissingDataError, match="no step of the trace is selected"):
        what_if(queued(tmp_path), Changes(), Selection(first_step=9))


def test_one_rank_of_several_says_so():
    alone = what_if(loaded(EAGER[0]), Changes())
    assert "Of 2 ranks 1 given" in alone.notes[0]
    assert not what_if(run_of("tiny-pool-eager"), Changes()).notes


def waiting(tmp_path: Path, world_size: int = 2) -> Trace:
    """Steps of a kernel of 100 µs and an all-reduce, of which the other rank is late in all but one."""
    events: list[dict[str, Any]] = []
    at = 8
    for i, dur in enumerate([700, 20, 700, 700]):
        mark = {"ph": "X", "cat": "user_annotation", "name": "step[DECODE bs=4]", "pid": 9, "tid": 1, "ts": 30 * i}
        events.append({**mark, "dur": 25})
        events += launched(2 * i + 1, 30 * i, at, 100)
        events += launched(2 * i + 2, 30 * i + 6, at + 105, dur, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)")
        at += 110 + dur
    trace = story(tmp_path, *events)
    return replace(trace, meta=structs.replace(trace.meta, rank=0, world_size=world_size))


def test_what_collectives_wait_makes_a_prediction_a_range(tmp_path):
    """Of one rank alone an all-reduce of 700 µs may be 680 of waiting: it stays, or is 20, as the shortest one was."""
    trace = waiting(tmp_path)
    halved = Changes((Scaling(matching_kernels(trace, "name = 'gemm'"), factor=0.5),))
    found = what_if(trace, halved)
    assert (found.recorded_wall_ns, found.predicted_wall_ns, found.least_wall_ns) == (810_000, 760_000, 80_000)
    assert whatif_line(found) == (
        "810.0 µs → 80.0 µs to 760.0 µs a decode step: 6.2 % to 90 % shorter; "
        "how long its collectives would wait for the ranks not given is not known"
    )
    assert found.most_tokens_per_s == pytest.approx(50_000)
    page = render_text(whatif_page(found, View()), width=100)
    assert re.search(r"predicted, if no collective waits +0.080 +50,000.0", page)
    assert "to 50,000.0 tokens/s at batch 4" in page
    assert what_if(trace, Changes()).least_wall_ns is None
    longer = what_if(trace, Changes((Scaling(matching_kernels(trace, "name = 'gemm'"), factor=9.0),)))
    assert whatif_line(longer).endswith("99 % longer; then the GPU sets the pace")
    alone = what_if(waiting(tmp_path, world_size=1), halved)
    assert alone.least_wall_ns is None
    assert whatif_line(alone).startswith("810.0 µs → 760.0 µs a decode step: 6.2 % shorter, 1.1×")


@pytest.mark.shared
@pytest.mark.parametrize("rank", [0, 1])
def test_a_range_holds_what_was_measured(shared, rank):
    """Eager steps of one rank as graphs, 19.98 ms when recorded so; rank 0 waits 117 ms a step for rank 1's host."""
    trace = traceql.load(shared / f"glm5/glm5-gather-eager-TP-{rank}.json.gz")
    found = what_if(trace, Changes(graph=True))
    assert found.is_range is (rank == 0)
    assert found.least_wall_ns is not None
    assert found.least_wall_ns / 1e6 == pytest.approx(19.98, rel=0.02)
    assert found.predicted_wall_ns / 1e6 == pytest.approx([136.4, 19.8][rank], abs=0.1)


def test_a_graph_says_what_it_assumes():
    notes = what_if(run_of("tiny-pool-eager"), Changes(graph=True)).notes
    assert f"{GRAPH_GAP_NS} ns between two activities" in notes[0]


# --- predicates


def test_predicates_name_steps_and_layers():
    trace = run_of("tiny-pool-eager")
    casts = matching_kernels(trace, "category = 'cast'")
    some = matching_kernels(trace, "category = 'cast' and step = 1")
    assert 0 < len(some) < len(casts)
    assert set(some) < set(casts)
    of_layer = [set(matching_kernels(trace, f"layer = {n}")) for n in range(4)]
    assert len({len(kernels) for kernels in of_layer}) <= 2
    assert set.intersection(*of_layer) == set()
    assert set(matching_kernels(trace, "block = 'attention' and layer = 1")) < of_layer[1]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("categry = 'cast'", "unknown column"),
        ("category = 'casts'", "is never 'casts'"),
        ("sum(dur_ns) > 5", "aggregate"),
        ("dur_ns", "no condition"),
        ("name = 5", "cannot|fails|type"),
        ("", "empty"),
    ],
)
def test_a_wrong_predicate_is_an_error(text, fault):
    with pytest.raises(RuleError, match=fault):
        matching_kernels(run_of("tiny-pool-eager"), text)


def test_a_predicate_that_meets_nothing_is_an_error():
    with pytest.raises(MissingDataError, match="no kernel of the trace meets"):
        matching_kernels(run_of("tiny-pool-eager"), "dur_ns < 0")


def test_bytes_are_moved_at_the_peak_of_the_device_table():
    trace = run_of("tiny-pool-eager")
    assert peak_bytes_per_s(trace) == 4.8e12
    assert moved_ns(trace, 4.8e6) == pytest.approx(1_000)
    assert moved_ns(trace, 4.8e6, 1e12) == pytest.approx(4_800)


def test_an_unknown_device_has_no_bandwidth(tmp_path):
    with pytest.raises(MissingDataError, match="bandwidth of the device is not known"):
        moved_ns(queued(tmp_path), 1e6)
    assert moved_ns(queued(tmp_path), 1e6, 1e9) == 1e6


# --- what a fix saves


def finding(saving: Saving | None, **worst: Any) -> Finding:
    rule = Rule("slow", "info", "pool_casts", "dur_ns > 0", "m", "w", "f", (), (), saving=saving)
    return Finding(rule, worst, "m", "f", 1, 1, None, None, None, pl.DataFrame())


def test_what_the_fix_of_a_finding_saves(tmp_path):
    trace = queued(tmp_path)
    found = saving_of(trace, finding(Saving("name = 'gemm'", factor=0.5)))
    assert found is not None
    assert (found.saved_ns, found.kernel_saved_ns) == (200_000, 200_000)
    # As graphs the gaps shrink, with the fix and without.
    assert found.graph_saved_ns == 200_000
    expected = (
        "200.0 µs of GPU time a step; the GPU sets the pace: saves 200.0 µs as recorded, 200.0 µs under CUDA graphs"
    )
    assert found.text == expected


def test_a_fix_may_replace_a_kernel(tmp_path):
    """The bytes are SQL over the finding's worst row; the bandwidth is the rule's own."""
    trace = queued(tmp_path)
    saving = Saving("name = 'gemm'", bytes="moved_bytes / 2", bandwidth_bytes_per_s=1e9)
    found = saving_of(trace, finding(saving, moved_bytes=200_000))
    assert found is not None
    assert found.kernel_saved_ns == 300_000
    assert saving_of(trace, finding(saving)) is None  # the row does not tell
    assert saving_of(trace, finding(Saving("name = 'gemm'", rows="5"))) is None
    assert saving_of(trace, finding(None)) is None
    assert saving_of(trace, finding(Saving("name = 'no such kernel'", factor=0.0))) is None


def test_what_is_launched_as_a_graph_is_not_asked_what_graphs_save():
    trace = load_run(GRAPH, cache=False)
    (pool,) = [each for each in run_rules(trace, load_rules()).found if each.rule.id == "whole-pool-kv-cast"]
    found = saving_of(trace, pool)
    assert found is not None
    assert found.graph_saved_ns is None
    assert 0 < found.saved_ns <= found.kernel_saved_ns * 1.01
    assert "the GPU sets the pace: saves" in found.text


# --- the commands


def test_whatif_data():
    told = document(whatif(*EAGER, "--scale", "category = 'cast'", "0", "--graph", "--host", "0.5", "--format", "json"))
    assert list(told) == [
        "trace", "selection", "headline", "changes", "recorded_wall_ns", "replayed_wall_ns", "predicted_wall_ns",
        "least_wall_ns", "saved_ns", "kernel_saved_ns", "batch_size", "recorded_tokens_per_s", "predicted_tokens_per_s",
        "recorded_limit", "limit", "limits", "bottlenecks", "n_steps_counted", "steps", "notes", "quirks",
    ]  # fmt: skip
    assert told["recorded_wall_ns"] == told["replayed_wall_ns"]
    assert told["saved_ns"] == told["recorded_wall_ns"] - told["predicted_wall_ns"] > 0
    assert told["changes"]["graph"] is True
    assert told["changes"]["host_factor"] == 0.5
    (scaling,) = told["changes"]["scalings"]
    assert (scaling["kernels"], scaling["factor"], scaling["length_ns"]) == ("category = 'cast'", 0, None)
    assert [row["limit"] for row in told["limits"]] == list(LIMITS)
    assert sum(row["recorded_share"] for row in told["limits"]) == pytest.approx(1)
    assert sum(row["predicted_share"] for row in told["limits"]) == pytest.approx(1)
    assert (told["batch_size"], told["predicted_tokens_per_s"]) == (None, None)
    walls = [row["predicted_wall_ns"] for row in told["steps"]]
    assert np.median(walls) == told["predicted_wall_ns"]
    assert len(walls) == told["n_steps_counted"]


def test_whatif_replaces():
    sql = "category = 'cast' and n_elements_max > 1000000"
    by_rows = document(whatif(*GRAPH, "--replace", sql, "--rows", "100", "--row-bytes", "1728", "--format", "json"))
    by_bytes = document(
        whatif(*GRAPH, "--replace", sql, "--bytes", "172800", "--bandwidth", "4800", "--format", "json")
    )
    assert by_rows["changes"]["scalings"][0]["length_ns"] == pytest.approx(36)
    assert by_rows["predicted_wall_ns"] == by_bytes["predicted_wall_ns"] < by_rows["recorded_wall_ns"]


def test_whatif_page():
    result = whatif(*EAGER, "--scale", "category = 'cast'", "0", "--top", "3")
    assert result.exit_code == 0, result.output
    titles = ("Changes", "The step", "What sets the pace", "Next bottlenecks: top 3 of ")
    places = [result.stdout.index(f"\n{title}") for title in titles]
    assert places == sorted(places)
    assert "category = 'cast': " in result.stdout
    assert "a step: no gain, the host sets the pace" in result.stdout


def test_without_changes_the_recording_is_replayed():
    result = whatif(*GRAPH)
    assert result.exit_code == 0, result.output
    assert "None: the recording replayed." in result.stdout
    assert ": no gain, " in result.stdout


@pytest.mark.parametrize("by", ["limit", "bottleneck", "step"])
def test_whatif_tables(by):
    page = whatif(*GRAPH, "--by", by)
    assert page.exit_code == 0, page.output
    rows = pl.read_csv(io.StringIO(whatif(*GRAPH, "--by", by, "--format", "csv").stdout))
    assert rows.columns == getattr(what_if(run_of("tiny-pool-graph"), Changes()), whatif_document.TABLES[by]).columns
    assert rows.height


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bytes", "5"],
        ["--replace", "dur_ns > 0"],
        ["--replace", "dur_ns > 0", "--bytes", "5", "--rows", "5", "--row-bytes", "5"],
        ["--replace", "dur_ns > 0", "--rows", "5"],
        ["--replace", "dur_ns > 0", "--bytes", "5", "--row-bytes", "5"],
        ["--replace", "dur_ns > 0", "--bytes", "nan"],
        ["--replace", "dur_ns > 0", "--bytes", "1e15", "--bandwidth", "0.001"],
        ["--scale", "dur_ns > 0", "-1"],
        ["--scale", "dur_ns > 0", "nan"],
        ["--scale", "dur_ns > 0", "inf"],
        ["--host", "nan"],
    ],
)
def test_options_that_do_not_fit(arguments):
    result = whatif(*GRAPH, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_a_wrong_predicate_names_the_fault():
    result = whatif(*GRAPH, "--scale", "category = 'casts'", "0")
    assert isinstance(result.exception, ConditionError)
    assert "casts" in result.exception.message


def critical_path_parts():
    told = document(critical(*GRAPH, "--format", "json", "--top", "100000"))
    assert len(told["parts"]) == told["n_parts"]
    return told["parts"]


def test_critical_path_data():
    told = document(critical(*GRAPH, "--format", "json", "--top", "2"))
    assert [row["limit"] for row in told["limits"]] == list(LIMITS)
    assert sum(row["share"] for row in told["limits"]) == pytest.approx(1)
    assert len(told["parts"]) == 2
    assert told["n_parts"] > 2
    parts = critical_path_parts()
    work, gaps = (
        sum(part["share"] for part in parts if part["limit"] == "gpu" and (part["kind"] == "gap") is is_gap)
        for is_gap in (False, True)
    )
    assert gaps > 0
    assert told["headline"].startswith("the critical path of a step: ")
    assert f"{work:.1%} the GPU's work".replace("%", " %") in told["headline"]
    assert f"{gaps:.1%} gaps between the GPU's activities".replace("%", " %") in told["headline"]
    for row in told["steps"]:
        assert sum(row[f"{limit}_ns"] for limit in LIMITS) == row["wall_ns"]


def test_critical_path_page():
    result = critical(*GRAPH)
    assert result.exit_code == 0, result.output
    assert "\nThe critical path\n" in result.stdout
    assert "\nwall" in result.stdout
    assert critical(*GRAPH, "--by", "step").exit_code == 0
    assert "--format csv" in critical(*GRAPH, "--by", "stretch").stderr


def test_every_stretch_of_the_path_is_data():
    rows = pl.read_csv(io.StringIO(critical(*GRAPH, "--by", "stretch", "--format", "csv").stdout))
    expected = critical_path(run_of("tiny-pool-graph"))
    assert rows.columns == expected.columns
    assert rows["dur_ns"].to_list() == expected["dur_ns"].to_list()
    kernels = expected.filter(pl.col("kind").is_in(["kernel", "communication"]))
    assert kernels["kernel_id"].null_count() == 0
    host = expected.filter(pl.col("kind").is_in(["host", "launch", "sync"]))
    assert host["launch_id"].null_count() == 0
    assert set(expected["kind"]) <= set(KINDS)


def test_pages_show_names_as_text(tmp_path):
    """A name from the trace cannot write to the terminal."""
    events: list[dict[str, Any]] = []
    for i in range(3):
        mark = {"ph": "X", "cat": "user_annotation", "name": "step[DECODE bs=1]", "pid": 9, "tid": 1}
        events += [{**mark, "ts": 30 * i, "dur": 25}]
        events += launched(i + 1, 30 * i, 100 + 500 * i, 400, name="evil\x1b[2Jkernel")
    trace = story(tmp_path, *events)
    paths = render_text(critical_page(critical_paths(trace), View()), width=100)
    found = what_if(trace, Changes())
    predicted = render_text(whatif_page(found, View()), width=100)
    for text in (paths, predicted):
        assert "evil" in text
        assert "\x1b" not in text


def test_fixture_of_an_engine_tells_tokens():
    (path,) = FIXTURES.glob("**/before-graph-TP-0.trace.json.zst")
    found = what_if(loaded(path), Changes())
    assert found.batch_size == 8
    assert found.recorded_tokens_per_s == pytest.approx(8e9 / found.recorded_wall_ns)


# --- the profiler's slowing taken out


def test_the_host_factor_that_gives_a_step():
    trace = traceql.load(FIXTURES / "glm5" / "tiny-pool-eager-TP-0.json.gz", cache=False)
    wanted = predicted_wall(trace, Changes(host_factor=0.6))
    found = host_factor(trace, wanted)
    assert found == pytest.approx(0.6, rel=0.02)
    assert predicted_wall(trace, Changes(host_factor=found)) == pytest.approx(wanted, rel=0.02)
    assert host_factor(trace, 10 * wanted) == 1.0  # no slower without the profiler
    assert host_factor(trace, 0.0) == pytest.approx(LEAST_HOST_FACTOR, rel=0.02)


def test_calibrated_by_the_control_runs_of_a_capture():
    folder = FIXTURES / "capture" / "before" / "traces"
    result = CliRunner().invoke(main, ["whatif", str(folder), "--host", "auto", "--format", "json"])
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert LEAST_HOST_FACTOR <= document["changes"]["host_factor"] < 1
    assert document["predicted_wall_ns"] == pytest.approx(82.3e6, rel=0.01)  # the GPU sets the pace
    alone = CliRunner().invoke(
        main, ["whatif", str(FIXTURES / "glm5" / "tiny-pool-eager-TP-0.json.gz"), "--host", "auto"]
    )
    assert alone.exit_code == 2
    assert "no manifest" in alone.stderr


# --- a step for the viewer


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_step_for_the_viewer_is_a_trace_with_its_path(tmp_path, suffix):
    """Read back by the loader: the activities of the step's window; the stretches of the path add up to its wall."""
    out = tmp_path / f"step{suffix}"
    source = FIXTURES / "sglang" / "before-graph-TP-0.trace.json.zst"
    result = CliRunner().invoke(main, ["critical-path", str(source), "--viewer", str(out), "--format", "csv"])
    assert result.exit_code == 0
    document = json.loads(gzip.decompress(out.read_bytes()) if suffix.endswith("gz") else out.read_bytes())
    shown = document["traceql"]
    stretches = [event for event in document["traceEvents"] if event["ph"] == "X" and event["pid"] == 0]
    trace = traceql.load(source)
    paths = critical_paths(trace)
    (step,) = paths.steps.filter(step=shown["step"]["step"]).iter_rows(named=True)
    assert step["wall_ns"] == paths.steps["wall_ns"].sort()[(paths.steps.height - 1) // 2]
    assert sum(round(event["dur"] * 1000) for event in stretches) == step["wall_ns"]
    assert shown["end_ns"] - shown["begin_ns"] == step["wall_ns"]
    ends_ns = pl.col("start_ns") + pl.col("dur_ns")
    inside = trace.kernels.filter(pl.col("start_ns") < shown["end_ns"], ends_ns > shown["begin_ns"]).collect()
    kernels = [event for event in document["traceEvents"] if event["ph"] == "X" and event["pid"] % 10 == 2]
    assert [event["args"]["kernel_id"] for event in kernels] == inside.sort("start_ns")["kernel_id"].to_list()
    assert {event["args"]["kernel_id"] for event in kernels if event["args"]["on_critical_path"]} == {
        event["args"]["kernel_id"] for event in stretches if event["name"] == "kernel"
    }
    rows = {event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"}
    own = {row for row in rows if "(overlap " not in row}
    assert own == {f"device {device}, stream {stream}" for device, stream in inside["device", "stream"].rows()}
    assert dropped(out) == 0
    again = CliRunner().invoke(main, ["critical-path", str(source), "--viewer", str(out)])
    assert again.exit_code == 2
    assert "exists" in again.stderr
