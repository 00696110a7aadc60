"""The figures, the page and the command of layers: sums in real traces, the rest in steps made by hand."""

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import polars as pl
import pytest
from click.testing import CliRunner
from conftest import FIXTURES
from polars.testing import assert_frame_equal

import traceql
from traceql.analyses import layering
from traceql.analyses.attribution import Attribution
from traceql.analyses.layer_stats import LAYER_KERNELS, LayerStats, layer_kernels, layer_stats, odd_layers
from traceql.analyses.layer_tables import LAYERS
from traceql.analyses.layering import Layering
from traceql.analyses.summary import Selection
from traceql.cli.layers import METHODS, command
from traceql.errors import MissingDataError
from traceql.report import layers_words
from traceql.report.layers_document import TABLES
from traceql.report.layers_map import LEVELS, NOTHING
from traceql.report.layers_page import layers_page
from traceql.report.layers_words import headline_text, layers_line
from traceql.report.page import View
from traceql.report.text import render_text
from traceql.run import load_run
from traceql.trace import Trace

STEP = ["rank", "device", "step"]
STACK = FIXTURES / "glm5" / "tiny-pool-stack-TP-0.json.gz"
GRAPH = FIXTURES / "sglang" / "before-graph-TP-0.trace.json.zst"
SUMMED = ("wall_ns", "busy_ns", "kernel_ns", "n_kernels")


@pytest.fixture(scope="module")
def founding() -> Trace:
    return loaded(GRAPH)


def loaded(path: Path) -> Trace:
    return traceql.load(path, cache=False)


# --- steps made by hand: annotated layers on one stream


ATTENTION, GEMM, MOE, NORM = "flash_fwd_kernel", "ampere_bf16_gemm", "fused_moe_kernel", "rms_norm_kernel"
DENSE = ((NORM, 10), (ATTENTION, 50), (GEMM, 40))
EXPERTS = ((NORM, 10), (ATTENTION, 50), (MOE, 140))
PERIOD_US = 2000
Kernels = tuple[tuple[str, int], ...]


def event(cat: str, name: str, tid: int, ts: float, dur: float, **args: int) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}


def step_events(number: int, *layers: Kernels, host_us: int = PERIOD_US - 100, tid: int = 1) -> list[dict[str, Any]]:
    """A step whose kernels run without a pause: 20 µs before the layers, 30 µs after them, then nothing."""
    begin, at = number * PERIOD_US, number * PERIOD_US + 500
    events = [event("user_annotation", "step[DECODE bs=1]", tid, begin, host_us)]
    parts: list[tuple[str | None, Kernels]] = [(None, (("index_kernel_embedding", 20),))]
    parts += [(f"layer_{layer}", kernels) for layer, kernels in enumerate(layers)]
    parts.append((None, ((GEMM, 30),)))
    call = begin
    for layer, kernels in parts:
        if layer:
            events += layer_spans(layer, tid, call + 1, kernels)
        for name, dur in kernels:
            call += 2
            correlation = call + 1
            events.append(event("cuda_runtime", "cudaLaunchKernel", tid, call, 1, correlation=correlation))
            events.append(event("kernel", name, 7, at, dur, device=0, stream=7, correlation=correlation))
            at += dur
    return events


def layer_spans(name: str, tid: int, begin: int, kernels: Kernels) -> list[dict[str, Any]]:
    """What annotates a layer: 2 µs for each launch, the first two being attention."""
    rest = "experts" if MOE in dict(kernels) else "mlp"
    parts = ((name, begin, 2 * len(kernels)), ("attn", begin, 4), (rest, begin + 4, 2 * len(kernels) - 4))
    return [event("user_annotation", part, tid, ts, dur) for part, ts, dur in parts]


def a_trace(tmp_path: Path, *events: dict[str, Any]) -> Trace:
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return loaded(path)


def three_steps(tmp_path: Path) -> Trace:
    """Two complete steps of a dense layer and two with experts, and a last one."""
    steps = [step_events(number, DENSE, EXPERTS, EXPERTS) for number in range(3)]
    return a_trace(tmp_path, *(one for step in steps for one in step))


def page_lines(stats: LayerStats, width: int = 200, **view: Any) -> list[str]:
    return render_text(layers_page(stats, View(**view)), width=width).splitlines()


def test_figures_of_steps_made_by_hand(tmp_path):
    stats = layer_stats(three_steps(tmp_path))
    assert stats.counted["step"].to_list() == [0, 1]
    assert stats.types.select("label", "n_layers", "layers_per_step", "wall_ns", "kernels_per_layer").rows() == [
        ("attention + mlp", 2, 1.0, 200_000, 3.0),
        ("attention + moe", 4, 2.0, 800_000, 3.0),
    ]
    assert stats.types["share"].to_list() == pytest.approx([0.05, 0.2])
    assert stats.types["wall_ns_per_layer"].to_list() == stats.types["median_wall_ns"].to_list() == [100e3, 200e3]
    assert stats.sections.select("section", "wall_ns", "busy_ns").rows() == [
        ("prologue", 40_000, 40_000),
        ("layer", 1_000_000, 1_000_000),
        ("epilogue", 60_000, 60_000),
        ("between", 2_900_000, 0),
    ]
    assert stats.of_layers.select("layer", "layer_type", "n_layers", "wall_ns_per_step").rows() == [
        (0, 0, 2, 100e3),
        (1, 1, 2, 200e3),
        (2, 1, 2, 200e3),
    ]
    of_first = stats.categories.filter(layer=0).select("category", "exclusive_ns", "exclusive_ns_per_step")
    assert of_first.rows() == [("attention", 100_000, 50e3), ("gemm", 80_000, 40e3), ("norm", 20_000, 10e3)]
    assert stats.layers.height == 9  # those of the last step too
    assert stats.unattributed.n_kernels == 0
    assert stats.odd.is_empty()


def test_the_page(tmp_path):
    full, none = LEVELS[-1], NOTHING
    lines = page_lines(layer_stats(three_steps(tmp_path)), width=112)
    assert " ".join(lines[:2]) == (
        "3 layers a step in 2 types: 1 × attention + mlp 0.10 ms, 2 × attention + moe 0.20 ms; "
        "0.50 ms of 2.00 ms a step; found by annotations, confidence 0.95"
    )
    assert lines[2:] == [
        "",
        "Layer types",
        "type  what             layers  layers/step  ms/layer  median  kernels  ms/step  share of wall  busy ms/step",
        "-" * 107,
        "   0  attention + mlp  0                 1     0.100   0.100        3    0.100          5.0 %         0.100",
        "   1  attention + moe  1, 2              2     0.200   0.200        3    0.400         20.0 %         0.400",
        "      prologue                                                           0.020          1.0 %         0.020",
        "      epilogue                                                           0.030          1.5 %         0.030",
        "      between steps                                                      1.450         72.5 %         0.000",
        "-" * 107,
        "      wall                                                               2.000        100.0 %         0.550",
        "Means over 2 complete steps; median: of one layer.",
        "Prologue and epilogue: before the first and after the last layer.",
        "",
        "Layers by category",
        "category   layers 0 to 2  ms/step",
        "-" * 33,
        f"moe_gemm   {none}▆▆              0.280",
        "attention  ▂▂▂              0.150",
        f"gemm       ▂{none}{none}              0.040",
        "norm       ▁▁▁              0.030",
        "-" * 33,
        f"idle       {none * 3}              0.000",
        f"all        ▄{full}{full}              0.500",
        "One cell a layer. A layer: ▁ up to 0.025 ms, █ up to 0.200 ms, · nothing.",
        "",
        "Slowest layers",
        "layer  type  ms/layer  median  longest  in step  share of wall  busy ms  kernel time ms  kernels",
        "-" * 96,
        "    1     1     0.200   0.200    0.200        0         10.0 %    0.200           0.200        3",
        "    2     1     0.200   0.200    0.200        0         10.0 %    0.200           0.200        3",
        "    0     0     0.100   0.100    0.100        0          5.0 %    0.100           0.100        3",
    ]


def test_many_layers_fit_a_narrow_page(tmp_path):
    steps = [step_events(number, *[((NORM, 1), (ATTENTION, 5), (GEMM, 4))] * 101) for number in range(2)]
    lines = page_lines(layer_stats(a_trace(tmp_path, *(one for step in steps for one in step))), width=80)
    assert max(map(len, lines)) <= 80
    assert f"all        {LEVELS[-1] * 34}    1.010" in lines
    assert "One cell 3 layers. A layer: ▁ up to 0.001 ms, █ up to 0.010 ms, · nothing." in lines


def test_an_idle_layer_shows_in_the_map(tmp_path):
    """The second layer begins 300 µs late: until then the first goes on, and is idle."""
    steps = [step_events(number, DENSE, DENSE) for number in range(2)]
    for late in (one for step in steps for one in step if one["cat"] == "kernel"):
        late["ts"] += 300 if late["ts"] % PERIOD_US >= 620 else 0
    lines = page_lines(layer_stats(a_trace(tmp_path, *(one for step in steps for one in step))))
    rows = [line.split() for line in lines]
    assert ["idle", f"▆{NOTHING}", "0.300"] in rows
    assert ["all", f"{LEVELS[-1]}▂", "0.500"] in rows


def test_steps_without_layers_do_not_count_and_are_named(tmp_path):
    steps = [step_events(0, DENSE, EXPERTS), step_events(1), step_events(2, DENSE, EXPERTS), step_events(3)]
    trace = a_trace(tmp_path, *(one for step in steps for one in step))
    stats = layer_stats(trace, layering=Layering.of(trace, "annotation"))
    assert stats.counted["step"].to_list() == [0, 2]
    assert "1 step without layers do not count." in page_lines(stats)
    assert stats.unattributed.kernel_ns == 50_000  # of step 1
    assert stats.unattributed.share == 50 / (350 + 50 + 350)
    only = layer_stats(trace, Selection(1, 2), Layering.of(trace, "annotation"))
    assert headline_text(only) == "No layers found in the step looked at."
    assert only.unattributed.share == 1


def test_without_a_complete_step_all_count(tmp_path):
    stats = layer_stats(a_trace(tmp_path, *step_events(0, DENSE, EXPERTS)))
    assert "Means over 1 incomplete step; median: of one layer." in page_lines(stats)
    assert stats.wall_ns == 350_000
    assert stats.sections["wall_ns"].sum() == 350_000


def test_overlapping_steps_have_kernel_time_only(tmp_path):
    """Windows of steps that overlap on the host tell nothing: walls are null, not zero."""
    steps = [step_events(number, DENSE, EXPERTS, host_us=PERIOD_US + 100, tid=1 + number) for number in range(2)]
    stats = layer_stats(a_trace(tmp_path, *(one for step in steps for one in step)))
    assert not stats.has_walls
    assert stats.wall_ns is None
    for frame in (stats.types, stats.of_layers, stats.sections):
        assert (
            frame.select("wall_ns", "busy_ns", "share", "wall_ns_per_step").null_count().row(0) == (frame.height,) * 4
        )
    assert headline_text(stats).startswith(
        "2 layers a step in 2 types: 1 × attention + mlp 0.10 ms, 1 × attention + moe 0.20 ms; "
        "0.30 ms of 0.35 ms kernel time a step"
    )
    lines = page_lines(stats)
    assert "These steps overlap: only kernel time can be told." in lines
    assert not any(line.startswith("idle ") for line in lines)
    assert sum(line.count(LEVELS[-1]) for line in lines) == 2  # the longer layer, and the legend


def test_steps_of_other_layers(tmp_path):
    """Two layers in one step, three in the next: numbers are means, and a layer counts where it is."""
    steps = [step_events(0, DENSE, EXPERTS), step_events(1, DENSE, EXPERTS, EXPERTS), step_events(2, DENSE, EXPERTS)]
    stats = layer_stats(a_trace(tmp_path, *(one for step in steps for one in step)))
    assert headline_text(stats).startswith("2.5 layers a step in 2 types: 1 × attention + mlp 0.10 ms, 1.5 × attention")
    assert stats.of_layers["n_layers"].to_list() == [2, 2, 1]
    assert stats.of_layers["wall_ns_per_step"].to_list() == [100e3, 200e3, 100e3]
    assert stats.of_layers["wall_ns_per_layer"].to_list() == [100e3, 200e3, 200e3]


def test_a_draft_model_is_a_pass_of_its_own(tmp_path):
    """Two layers and then one of a draft: the map is of the longer pass, tables name the pass."""
    steps = [one for number in range(2) for one in step_events(number, DENSE, EXPERTS, DENSE)]
    for one in steps:
        one["name"] = one["name"].replace("layer_2", "layer_0")
    trace = a_trace(tmp_path, *steps)
    stats = layer_stats(trace)
    assert stats.of_layers.select("model_pass", "layer").rows() == [(0, 0), (0, 1), (1, 0)]
    lines = page_lines(stats)
    assert "Layers by category, pass 0" in lines
    assert any(line.startswith("   0  attention + mlp  0; pass 1: 0") for line in lines)
    kernels = layer_kernels(trace, Layering.of(trace), stats.counted, 0, 1)
    assert render_text(layers_page(stats, View(), kernels), width=200).startswith(
        "layer 0 of pass 1 (attention + mlp) in step 0: wall 100.0 µs, kernel time 100.0 µs, 3 kernels; "
    )


def test_many_types_are_counted_in_the_headline(tmp_path):
    shapes = [((NORM, 10), (ATTENTION, 50), *(((GEMM, 1), (f"triton_{n}_kernel", n + 1)) * 4)) for n in range(6)]
    stats = layer_stats(a_trace(tmp_path, *step_events(0, *shapes), *step_events(1, *shapes)))
    assert stats.types.height == 6
    text = headline_text(stats).split("; ")[0]
    assert text.startswith("6 layers a step in 6 types: 1 × ")
    assert text.endswith(", 2 more")


# --- odd layers


def a_layer(layer: int, wall_us: int | None, kernel_us: int, **about: int) -> dict[str, Any]:
    key = {"rank": 0, "device": 0, "step": 0, "model_pass": 0, "layer": layer, "layer_type": 0, **about}
    times = {"wall_ns": None if wall_us is None else wall_us * 1000, "kernel_ns": kernel_us * 1000}
    return {**key, **times, "start_ns": 0, "busy_ns": 0, "n_kernels": 1, "method": "sequence", "confidence": 0.9}


def odd_among(*rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    layers = LAYERS.check(pl.DataFrame(rows, schema=LAYERS.schema))
    return odd_layers(layers).select("layer", "wall_ratio", "kernel_ratio").rows()


def test_odd_layers():
    usual = [a_layer(number, 100, 90) for number in range(9)]
    assert odd_among(*usual) == []
    assert odd_among(*usual, a_layer(9, 104, 94)) == []  # below 5 %
    assert odd_among(*usual, a_layer(9, 106, 90), a_layer(10, 100, 45)) == [(10, 1.0, 0.5), (9, 1.06, 1.0)]
    assert odd_among(*usual, a_layer(9, None, 180)) == [(9, None, 2.0)]
    assert odd_among(*usual, a_layer(9, 200, 90, layer_type=1)) == []  # alone in its type
    spread = [a_layer(number, 80 + 5 * number, 90) for number in range(9)]
    assert odd_among(*spread) == []  # as far as the others
    one_slow_step = [a_layer(9, 100, 90, step=step) for step in range(3)] + [a_layer(9, 900, 90, step=3)]
    assert odd_among(*usual, *one_slow_step) == []


def test_odd_layers_are_named(tmp_path):
    slow = ((NORM, 10), (ATTENTION, 150), (GEMM, 40))
    steps = [step_events(number, DENSE, DENSE, slow, DENSE) for number in range(2)]
    lines = page_lines(layer_stats(a_trace(tmp_path, *(one for step in steps for one in step))))
    assert lines[lines.index("Odd layers") + 1] == (
        "layer 2 (attention + mlp): wall 200.0 µs, 2.00 × the median of its type; "
        "kernel time 200.0 µs, 2.00 × the median of its type"
    )


# --- sums


def check_sums(stats: LayerStats) -> None:
    """Types, sections and what is not attributed add up to the wall, categories to busy: to the nanosecond."""
    steps, sections = stats.counted, stats.sections
    around = sections.filter(pl.col("section").ne_missing("layer"))
    for name in SUMMED if stats.has_walls else SUMMED[2:]:
        assert sum([*stats.types[name].to_list(), *around[name].drop_nulls().to_list()]) == steps[name].sum()
        assert stats.of_layers[name].sum() == stats.types[name].sum()
    spent = stats.categories
    assert spent["kernel_ns"].sum() == steps["kernel_ns"].sum()
    assert spent["n_kernels"].sum() == steps["n_kernels"].sum()
    if stats.has_walls:
        assert spent["exclusive_ns"].sum() == steps["busy_ns"].sum()
        shares = sum([*stats.types["share"].to_list(), *around["share"].to_list()])
        assert shares == pytest.approx(1) or not steps.height


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("glm5/*TP-0*")), ids=lambda path: path.name)
def test_sums_of_fixtures(path):
    check_sums(layer_stats(loaded(path)))


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("cases/[1-7]*.json")), ids=lambda path: path.name)
def test_a_page_for_every_small_case(path):
    """What has no layers says so; nothing fails."""
    try:
        trace = loaded(path)
    except traceql.InputError:
        return
    stats = layer_stats(trace)
    check_sums(stats)
    text = "\n".join(page_lines(stats))
    assert stats.types.height or text.startswith(("No steps found: layers", "No layers found in"))


@pytest.mark.shared
def test_sums_of_every_trace(shared):
    for path in sorted([*shared.glob("public/*/*.gz"), *shared.glob("glm5/glm5-*-graph-TP-*.gz")]):
        check_sums(layer_stats(loaded(path)))


# --- the founding case


def test_the_line_for_summarize(founding):
    line = layers_line(layer_stats(founding))
    assert line == "78 layers a step: 3 × attention + mlp 0.96 ms, 75 × attention + moe 1.08 ms"
    assert layers_line(layer_stats(loaded(FIXTURES / "cases" / "19-graph-launch.json"))) is None


def test_the_founding_case(founding):
    stats = layer_stats(founding)
    check_sums(stats)
    assert headline_text(stats) == (
        "78 layers a step in 2 types: 3 × attention + mlp 0.96 ms, 75 × attention + moe 1.08 ms; "
        "83.9 ms of 84.1 ms a step; found by the kernel sequence, confidence 0.90"
    )
    cast_ns = sum(stats.categories.filter(category="cast", section="layer")["exclusive_ns_per_step"].to_list())
    assert round(cast_ns / 1e6, 1) == 66.6
    assert stats.types["kernels_per_layer"].to_list() == [20, 30]
    assert stats.unattributed.n_kernels == 0


def test_the_kernels_of_a_layer(founding):
    """The step shown has the median wall; each median is that of a loop over the steps."""
    found, stats = Layering.of(founding), layer_stats(founding)
    kernels = LAYER_KERNELS.check(layer_kernels(founding, found, stats.counted, 12))
    walls = stats.layers.join(stats.counted, on="step", how="semi").filter(layer=12).select("wall_ns", "step").rows()
    assert kernels["step"].unique().to_list() == [sorted(walls)[14][1]]
    assert kernels.height == 30
    assert kernels["offset_ns"][0] == 0
    assert kernels["offset_ns"].is_sorted()
    assert kernels["n_alike"].unique().to_list() == [29]
    assert kernels.group_by("block").len().sort("block").rows() == [("attention", 15), ("moe", 15)]
    pool_cast = kernels.sort("dur_ns").row(-1, named=True)
    assert pool_cast["category"] == "cast"
    assert median(durations(founding, 12, pool_cast["name"])) == pool_cast["median_dur_ns"]


def durations(trace: Trace, layer: int, name: str) -> list[int]:
    """Of the kernel of that name in that layer of each complete step; it runs once."""
    steps = Attribution.of(trace).steps.filter("is_complete")["step"].to_list()
    of_layer = Layering.of(trace).placed.filter(layer=layer)
    rows = Attribution.of(trace).activities.join(of_layer, on="kernel_id").filter(name=name)
    found = {row["step"]: row["dur_ns"] for row in rows.iter_rows(named=True)}
    return [found[step] for step in steps]


def test_kernels_of_a_layer_that_is_not_there(tmp_path):
    trace = three_steps(tmp_path)
    found, counted = Layering.of(trace), layer_stats(trace).counted
    with pytest.raises(MissingDataError, match="no step selected has layer 3 in pass 0") as error:
        layer_kernels(trace, found, counted, 3)
    assert error.value.hint == "There are layers 0 to 2 in pass 0."
    with pytest.raises(MissingDataError) as error:
        layer_kernels(trace, found, counted.clear(), 0)
    assert error.value.hint == "The steps selected have no layers."


def test_medians_are_of_layers_that_run_the_same_kernels(tmp_path):
    """Of five steps, one has another kernel; the shown step is the median of all five."""
    layers = [((NORM, 10), (ATTENTION, dur), (GEMM, 40)) for dur in (50, 60, 70, 80)]
    layers.append((*layers[0][:2], ("other_gemm_kernel", 200)))
    steps = [step_events(number, layer, DENSE) for number, layer in enumerate([*layers, DENSE])]
    trace = a_trace(tmp_path, *(one for step in steps for one in step))
    kernels = layer_kernels(trace, Layering.of(trace), layer_stats(trace).counted, 0)
    rows = kernels.select("step", "name", "offset_ns", "dur_ns", "median_dur_ns", "n_alike").rows()
    assert rows == [
        (2, NORM, 0, 10_000, 10_000, 4),
        (2, ATTENTION, 10_000, 70_000, 65_000, 4),
        (2, GEMM, 80_000, 40_000, 40_000, 4),
    ]


# --- the command


def run(*arguments: object) -> Any:
    return CliRunner().invoke(command, [*map(str, arguments), "--no-cache"])


def test_json_has_all_of_it():
    result = run(STACK, "--format", "json", "--layer", 3)
    assert result.exit_code == 0
    document, stats = orjson.loads(result.stdout), layer_stats(loaded(STACK))
    assert document["headline"] == headline_text(stats)
    assert list(document["layers"][0]) == LAYERS.names
    assert len(document["layers"]) == 4 * 3
    assert {row["method"] for row in document["layers"]} == {"module"}
    around = [row for row in document["sections"] if row["section"] != "layer"]
    walls = [row["wall_ns"] for row in (*document["layer_types"], *around)]
    assert sum(walls) == document["wall_ns"] == stats.counted["wall_ns"].sum()
    assert document["unattributed"] == {"kernel_ns": 0, "share": 0.0, "n_kernels": 0, "notes": []}
    assert [row["layer"] for row in document["kernels"]] == [3] * len(document["kernels"])
    assert document["n_steps_counted"] == 2


@pytest.mark.parametrize("by", TABLES)
def test_csv_has_one_table(by):
    result = run(STACK, "--format", "csv", "--by", by)
    frame: pl.DataFrame = getattr(layer_stats(loaded(STACK)), TABLES[by])
    lines = result.stdout.splitlines()
    assert lines[0].split(",") == frame.columns
    assert len(lines) - 1 == frame.height
    assert run(STACK, "--by", by).exit_code == 0


def test_parquet_and_markdown(tmp_path):
    assert run(STACK, "-o", tmp_path / "types.parquet").exit_code == 0
    assert_frame_equal(pl.read_parquet(tmp_path / "types.parquet"), layer_stats(loaded(STACK)).types)
    assert run(STACK, "-o", tmp_path / "kernels.parquet", "--layer", 0).exit_code == 0
    kernels = pl.read_parquet(tmp_path / "kernels.parquet")
    assert kernels.schema == LAYER_KERNELS.schema
    assert kernels.height == 41
    text = run(STACK, "--format", "markdown").stdout
    assert text.startswith("**4 layers a step in 2 types: 3 × attention + mlp ")
    assert "| idle | `" in text


def test_the_kernels_page():
    lines = run(STACK, "--layer", 3).stdout.splitlines()
    assert lines[0].startswith("layer 3 (GlmMoeDecoderLayer: attention + moe) in step ")
    assert lines[4].split() == ["#", "at", "µs", "µs", "median", "stream", "block", "category", "kernel"]
    names = run(STACK, "--layer", 3, "--full-names").stdout
    kernels = layer_kernels(loaded(STACK), Layering.of(loaded(STACK)), layer_stats(loaded(STACK)).counted, 3)
    assert all(name in names for name in kernels["name"].to_list())


def test_a_run_counts_the_steps_of_all_ranks():
    found = layer_stats(load_run(sorted(FIXTURES.glob("glm5/tiny-pool-stack-TP-*")), cache=False))
    assert found.counted.height == 4
    check_sums(found)
    assert "Means over 4 complete steps of 2 ranks (each rank's steps count); median: of one layer." in page_lines(
        found
    )
    one = run(FIXTURES / "glm5" / "tiny-pool-stack-TP-*", "--rank", 1, "--format", "json", "--layer", 0).stdout
    assert {row["rank"] for row in orjson.loads(one)["kernels"]} == {1}
    text = run(FIXTURES / "glm5" / "tiny-pool-stack-TP-*", "--layer", 0).stdout
    assert " of rank " in text.splitlines()[0]


def test_without_layers_it_says_so():
    result = run(FIXTURES / "cases" / "19-graph-launch.json")
    assert result.exit_code == 0
    assert result.stdout.startswith("No layers found in the step looked at.\n")
    assert "100.0 % of the kernel time" in result.stdout


def test_what_is_refused():
    wrong = run(STACK, "--layers", 5)
    assert isinstance(wrong.exception, MissingDataError)
    assert "no step has 5 layers" in str(wrong.exception)
    assert run(STACK, "--layers", 4).exit_code == 0
    assert isinstance(run(STACK, "--layer", 4).exception, MissingDataError)
    assert isinstance(run(STACK, "--layer", 0, "--pass", 1).exception, MissingDataError)
    assert isinstance(run(STACK, "--layer-method", "annotation").exception, MissingDataError)


def test_wrong_calls():
    assert run(STACK, "--pass", 1).exit_code == 2
    assert run(STACK, "--by", "kernel").exit_code == 2
    assert run(STACK, "--layers", 0).exit_code == 2
    assert run().exit_code == 2


def test_methods_have_the_same_names_everywhere():
    assert ["auto", *layering.METHODS] == METHODS
    assert tuple(layers_words.METHODS) == layering.METHODS


def test_names_from_the_trace_are_made_visible(tmp_path):
    """A kernel's name may hold an escape code; it reaches no terminal."""
    hostile = ((NORM, 10), (ATTENTION, 50), ("\x1b[31mgemm_evil", 40))
    trace = a_trace(tmp_path, *step_events(0, hostile, hostile), *step_events(1, hostile, hostile))
    stats = layer_stats(trace)
    kernels = layer_kernels(trace, Layering.of(trace), stats.counted, 0)
    for full in (False, True):
        text = render_text(layers_page(stats, View(full_names=full), kernels), width=120)
        assert "gemm_evil" in text
        assert "\x1b" not in text


def test_the_map_is_coloured_where_there_is_colour(founding):
    sections = layers_page(layer_stats(founding), View())
    plain, coloured = (render_text(sections, width=80, color=color) for color in (False, True))
    assert "\x1b" not in plain
    assert "\x1b[31m▇\x1b[0m" in coloured  # the cast: high, red
    assert "\x1b[34m▁\x1b[0m" in coloured  # experts: low, blue
    bare = [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines()]
    assert bare == plain.splitlines()
