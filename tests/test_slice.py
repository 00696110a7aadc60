"""`traceql slice`: what it keeps against a slow count, that it changes nothing, and what viewers make of it."""

import json
import shutil
from collections import Counter

import polars as pl
import pytest
from click.testing import CliRunner
from conftest import FIXTURES
from reference_slice import dropped, events_of, expected_step, keys_of, text_of

import traceql
from traceql.analyses import kernel_layers, kernel_steps, steps
from traceql.cli import main

STACK = FIXTURES / "glm5" / "tiny-pool-stack-TP-0.json.gz"
GRAPH = FIXTURES / "glm5" / "tiny-pool-graph-TP-1.json.gz"
SGLANG = FIXTURES / "sglang" / "after-graph-TP-0.trace.json.zst"
CASES = FIXTURES / "cases"


def run(*arguments):
    return CliRunner().invoke(main, ["slice", *map(str, arguments)])


def sliced(source, out, *options):
    result = run(source, "-o", out, *options)
    assert result.exit_code == 0, result.output
    return out


def is_step(name):
    return name.startswith(("ProfilerStep#", "step["))


def sums(trace, kernels=None):
    rows = trace.kernels.collect() if kernels is None else trace.kernels.collect().join(kernels, on="kernel_id", how="semi")
    return dict(rows.group_by("category").agg(pl.sum("dur_ns")).rows()), rows.height


# --- what is kept, and that nothing is changed


@pytest.mark.parametrize(
    ("source", "step"), [(STACK, 0), (STACK, 1), (STACK, 2), (GRAPH, 1), (SGLANG, 7)], ids=lambda v: getattr(v, "name", v)
)
def test_a_step_is_exactly_what_a_slow_count_says(source, step, tmp_path):
    """Every kept text stands in the source, none twice; those not kept are none of the step's."""
    out = sliced(source, tmp_path / "step.json", "--step", step)
    events = events_of(source)
    expected = expected_step(events, is_step, step)
    written = events_of(out)
    wanted = Counter(events[i][1] for i in expected)
    have = Counter(text for _, text in written)
    moved, changed = wanted - have, have - wanted
    tracks = {(e["pid"], e["tid"]) for e, _ in written if e["ph"] == "M" and "(overlap" in str(e["args"].get("name"))}
    without_tid = Counter()
    for event, text in written:
        if text in changed and event["ph"] != "M":
            assert (event["pid"], event["tid"]) in tracks
            without_tid[json.dumps({k: v for k, v in json.loads(text).items() if k != "tid"})] += 1
    assert without_tid == Counter(
        json.dumps({k: v for k, v in json.loads(text).items() if k != "tid"}) for text in moved.elements()
    )
    assert keys_of(out) == keys_of(source)


@pytest.mark.parametrize("source", [STACK, GRAPH, SGLANG], ids=lambda path: path.name)
def test_a_slice_has_the_figures_of_the_step(source, tmp_path):
    trace = traceql.load(source)
    placed = kernel_steps(trace)
    for step in steps(trace)["step"].unique().sort()[:2]:
        out = sliced(source, tmp_path / "step.json.gz", "--step", step, "--force", "--no-cache")
        assert sums(traceql.load(out, cache=False)) == sums(trace, placed.filter(pl.col("step") == step))


def test_a_layer_is_what_the_layers_command_counts(tmp_path):
    trace = traceql.load(STACK)
    of_layer = kernel_layers(trace).filter(pl.col("layer") == 2)
    placed = kernel_steps(trace).filter(pl.col("step") == 1).join(of_layer, on="kernel_id", how="semi")
    assert placed.height
    out = sliced(STACK, tmp_path / "layer.json", "--step", "1", "--layer", "2")
    assert sums(traceql.load(out, cache=False)) == sums(trace, placed)


@pytest.mark.parametrize("options", [("--step", 1), ("--layer", 1), ("--time", "10ms:20ms"), ("--around", "copy")])
@pytest.mark.parametrize("source", [STACK, SGLANG], ids=lambda path: path.name)
def test_every_slice_is_whole(source, options, tmp_path):
    """Kernels have the launches that the source has, launches what is around them, arrows both ends; none is dropped."""
    if options[0] == "--time" and source == SGLANG:
        options = ("--time", "100ms:101ms")
    out = sliced(source, tmp_path / "slice.json", *options)
    before, after = events_of(source), events_of(out)
    calls = {}
    for event, _ in before:
        if event.get("cat") in {"cuda_runtime", "cuda_driver"}:
            calls.setdefault(event["args"].get("correlation"), []).append(event)
    kept_calls = Counter((e["args"].get("correlation"), e["start"]) for e, _ in after if e.get("cat") in {"cuda_runtime", "cuda_driver"})
    kept = Counter((e["name"], e["pid"], e["start"], e["end"]) for e, _ in after if e["ph"] == "X")
    kernels = [e for e, _ in after if e.get("cat") == "kernel"]
    assert kernels
    launches = [c for k in kernels for c in calls.get(k["args"]["correlation"], []) if "aunch" in c["name"]]
    assert {(c["args"]["correlation"], c["start"]) for c in launches} <= set(kept_calls)
    starts = {(c["pid"], c["tid"], c["start"], c["end"]) for c in launches}
    host = [e for e, _ in before if e.get("cat") in {"cpu_op", "python_function", "user_annotation"}]
    for pid, tid, start, end in sorted(starts)[:20]:
        for e in host:
            if (e["pid"], e["tid"]) == (pid, tid) and e["start"] <= start and end <= e["end"]:
                assert kept[e["name"], e["pid"], e["start"], e["end"]]
    ends = {}
    for event, _ in after:
        if event["ph"] in "sf":
            ends.setdefault((event["cat"], event["id"]), set()).add(event["ph"])
    assert all(both == {"s", "f"} for both in ends.values())
    assert dropped(out) == 0
