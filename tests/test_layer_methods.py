"""Layers from what was recorded (modules, annotations, a capture trace): against a slow count, and in small stories."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import FIXTURES
from polars.testing import assert_frame_equal
from ruamel.yaml import YAML
from test_truth import rewrite

import traceql
from traceql.analyses.attribution import Attribution
from traceql.analyses.layer_capture import by_capture, captured_classes, captured_ops
from traceql.analyses.layer_modules import by_modules, layer_classes
from traceql.analyses.layer_nodes import by_graph_nodes
from traceql.analyses.layer_spans import by_annotations, host_spans
from traceql.errors import MissingDataError
from traceql.resources import resource
from traceql.run import load_run
from traceql.trace import Trace

TINY = FIXTURES / "glm5" / "tiny-pool-stack-TP-0.json.gz"
METHODS = {"module": by_modules, "annotation": by_annotations}


def loaded(path: Path) -> Trace:
    return traceql.load(path, cache=False)


def activities_of(trace: Trace) -> pl.DataFrame:
    return Attribution.of(trace).activities


def placed(trace: Trace, method: str = "module") -> pl.DataFrame:
    """The activities that the method places, in the order of their launches."""
    activities = activities_of(trace).drop("section")
    launches = trace.launches.select("launch_id", "thread_id", call_ns="start_ns").collect()
    found = METHODS[method](trace, activities_of(trace))
    assert found["kernel_id"].is_sorted()
    in_steps = activities_of(trace).filter(pl.col("step").is_not_null() & pl.col("section").is_null())
    taken_apart = in_steps.filter(pl.col("kernel_id").is_in(found["kernel_id"].implode()))
    whole = in_steps.join(taken_apart, on=["rank", "device", "step"], how="semi")
    assert found["kernel_id"].to_list() == whole["kernel_id"].sort().to_list()  # all of a step or nothing
    return found.join(activities, on="kernel_id").join(launches, on="launch_id").sort("call_ns", "start_ns")


# --- against a slow count


def block_of_class(name: str) -> str | None:
    lowered = name.lower()
    for block, words in {"attention": ("attention",), "mlp": ("mlp",), "moe": ("moe",)}.items():
        if any(word in lowered for word in words):
            return block
    return None


def slow_placement(trace: Trace) -> list[tuple[Any, ...]]:
    """(kernel, section, pass, layer, block) of activities in steps, by loops over the stack of each launch."""
    launches = {row["launch_id"]: row for row in trace.launches.collect().to_dicts()}
    modules: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in trace.python_calls.collect().sort("start_ns", "python_call_id").to_dicts():
        if row["module_class"]:
            modules[row["thread_id"]].append(row)
    layers: dict[int, tuple[int, int, int, int]] = {}
    """Module call -> thread, root call, number, how many."""
    for thread, calls in modules.items():
        roots: dict[int, list[int]] = defaultdict(list)
        stack: list[dict[str, Any]] = []
        for call in calls:
            while stack and stack[-1]["start_ns"] + stack[-1]["dur_ns"] <= call["start_ns"]:
                stack.pop()
            stack.append(call)
            if call["module_class"].endswith("DecoderLayer"):
                roots[stack[0]["python_call_id"]].append(call["python_call_id"])
        for root, found in roots.items():
            layers |= {call: (thread, root, number, len(found)) for number, call in enumerate(found)}

    steps: dict[int, list[list[Any]]] = defaultdict(list)
    for kernel in activities_of(trace).to_dicts():
        if kernel["step"] is None or kernel["section"]:
            continue
        call = launches[kernel["launch_id"]]
        at = call["start_ns"]
        around = [m for m in modules[call["thread_id"]] if m["start_ns"] <= at < m["start_ns"] + m["dur_ns"]]
        of_layer = [i for i, m in enumerate(around) if m["python_call_id"] in layers]
        layer = layers[around[of_layer[0]]["python_call_id"]] if of_layer else None
        told = [block_of_class(m["module_class"]) for m in around[of_layer[0] + 1 :]] if of_layer else []
        block = "comm" if kernel["group"] == "nccl" else next((b for b in told if b), None)
        steps[kernel["step"]].append([(at, kernel["start_ns"]), kernel["kernel_id"], layer, block, told])

    result: list[tuple[Any, ...]] = []
    for rows in steps.values():
        rows.sort(key=lambda row: row[0])
        passes = list(dict.fromkeys(row[2][1] for row in rows if row[2]))
        last: tuple[int, int, int, int] | None = None
        for i, (_, kernel_id, layer, block, _) in enumerate(rows):
            if layer:
                same = [r for r in rows[i:] + rows[:i][::-1] if r[2] == layer and any(r[4])]
                near = next(b for b in same[0][4] if b) if same else "other"
                result.append((kernel_id, "layer", passes.index(layer[1]), layer[2], block or near))
                last = layer
            elif last is None:
                result.append((kernel_id, "prologue", None, None, None))
            else:
                result.append((kernel_id, "epilogue" if last[2] == last[3] - 1 else None, None, None, None))
    return sorted(result)


def check_against_slow_count(trace: Trace) -> None:
    found = by_modules(trace, activities_of(trace))
    assert found.select("kernel_id", "section", "model_pass", "layer", "block").rows() == slow_placement(trace)
    assert set(found["confidence"]) == {1.0}


def layer_sizes(found: pl.DataFrame) -> dict[int, tuple[int, list[int]]]:
    """Number of activities of a layer -> how many such layers, and which."""
    of_layer = Counter(found.filter(pl.col("section") == "layer").select("rank", "step", "model_pass", "layer").rows())
    sizes: dict[int, list[int]] = defaultdict(list)
    for (_, _, _, layer), n in of_layer.items():
        sizes[n].append(layer)
    return {n: (len(layers), sorted(set(layers))) for n, layers in sizes.items()}


def test_every_activity_against_the_slow_count():
    check_against_slow_count(loaded(TINY))


def test_three_dense_layers_and_one_of_experts():
    found = placed(loaded(TINY))
    assert layer_sizes(found) == {41: (9, [0, 1, 2]), 55: (3, [3])}
    assert Counter(found.filter(pl.col("section") != "layer")["section"]) == {"prologue": 3 * 2, "epilogue": 3 * 6}
    blocks = found.group_by("layer").agg(pl.col("block").unique().sort()).drop_nulls("layer").sort("layer")
    assert blocks["block"].to_list() == 3 * [["attention", "comm", "mlp"]] + [["attention", "comm", "moe"]]


def test_the_class_of_each_layer():
    trace = loaded(TINY)
    classes = layer_classes(trace, activities_of(trace))
    assert classes.rows() == [(0, step, 0, layer, "GlmMoeDecoderLayer") for step in range(3) for layer in range(4)]


def test_a_run_has_the_layers_of_each_rank():
    run = load_run(sorted(FIXTURES.glob("glm5/tiny-pool-stack-TP-*")), cache=False)
    found = placed(run)
    assert layer_sizes(found) == {41: (18, [0, 1, 2]), 55: (6, [3])}
    assert found.group_by("rank").len().sort("rank")["len"].to_list() == [558, 558]


@pytest.mark.parametrize("change", [{"seed": 5}, {"shift_us": "1751328000123456.789"}], ids=str)
def test_order_and_clock_do_not_matter(change, tmp_path):
    columns = ["name", "step", "section", "model_pass", "layer", "block"]
    found, expected = (placed(loaded(path)) for path in (rewrite(TINY, tmp_path / TINY.name, **change), TINY))
    assert_frame_equal(found.select(columns), expected.select(columns))


@pytest.mark.parametrize("name", ["glm5/tiny-pool-eager-TP-0.json.gz", "glm5/tiny-pool-graph-TP-0.json.gz",
                                  "cases/31-empty-events.json"])  # fmt: skip
@pytest.mark.parametrize("method", METHODS)
def test_nothing_where_nothing_was_recorded(name, method):
    trace = loaded(FIXTURES / name)
    assert METHODS[method](trace, activities_of(trace)).is_empty()


@pytest.mark.shared
@pytest.mark.parametrize("name", ["before", "after"])
def test_the_layers_of_the_server(shared, name):
    """20 kernels in each of the 3 dense layers, 30 in each of the 75 with experts, 14 outside; a gather more."""
    found = placed(loaded(shared / f"sglang/{name}-eager-stack-TP-0.trace.json.zst"))
    more = int(name == "after")
    assert layer_sizes(found) == {20 + more: (15, [0, 1, 2]), 30 + more: (375, list(range(3, 78)))}
    assert Counter(found.filter(pl.col("section") != "layer")["section"]) == {
        "prologue": 5 * (11 + more),
        "epilogue": 5 * 3,
    }
    blocks = found.filter(pl.col("category") == "attention")["block"]
    assert set(blocks) == {"attention"}


@pytest.mark.shared
def test_the_layers_of_the_largest_trace(shared):
    found = placed(loaded(shared / "glm5/glm5-pool-eager-stack-TP-0.json.zst"))
    assert layer_sizes(found) == {41: (90, [0, 1, 2]), 55: (2250, list(range(3, 78)))}
    assert found.filter(pl.col("section") != "layer").height == 30 * 8


@pytest.mark.shared
def test_a_replayed_graph_has_no_modules_around_its_kernels(shared):
    trace = loaded(shared / "sglang/before-graph-stack-TP-0.trace.json.zst")
    assert activities_of(trace).height > 11000
    assert by_modules(trace, activities_of(trace)).is_empty()


PUBLIC = {
    "tracelens-sglang-prefill/*": {14: (36, list(range(36)))},
    "tracelens-b200-vllm/eager*": {25: (36, list(range(36)))},
    "tracelens-qwen-h100-mi300/h100*": {49: (24, list(range(24)))},
    "tracelens-mi300-ddp-resnet/*": {},  # training: the backward pass outweighs the modules
    "tracelens-xdit-flux/*": {},  # T5 and CLIP have layers, and are a small part of the step
    "kernelforge-gh200/*": {16: (3, [0])},
}


@pytest.mark.shared
@pytest.mark.parametrize("pattern", PUBLIC)
def test_public_traces(shared, pattern):
    (path,) = (shared / "public").glob(pattern)
    assert layer_sizes(placed(loaded(path))) == PUBLIC[pattern]


# --- small stories: one step of 900 µs, each kernel launched by a call of 1 µs


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}


def module(name: str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    return event("python_function", f"nn.Module: {name}", ts, dur, tid)


def span(name: str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    return event("user_annotation", name, ts, dur, tid)


def kernel(ts: int, name: str = "gemm", tid: int = 1) -> list[dict[str, Any]]:
    """Launched at `ts`, by which the stories name it."""
    run = event("kernel", name, 1000 + ts, 0.5, 7, correlation=ts, device=0, stream=7)
    return [event("cuda_runtime", "cudaLaunchKernel", ts, 1, tid, correlation=ts), run | {"pid": 0}]


def kernels(*times: int, **about: Any) -> list[dict[str, Any]]:
    return [each for ts in times for each in kernel(ts, **about)]


def write(path: Path, *events: dict[str, Any]) -> Trace:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return loaded(path)


STEP = span("step[DECODE bs=1]", 0, 900)
NEXT_STEP = span("step[DECODE bs=1]", 1000, 900)
Rows = dict[int, str | None]


def told(found: pl.DataFrame) -> Rows:
    """Launch time in µs -> `pass.layer block`, or the section, or None."""
    rows = found.select("correlation", "section", "model_pass", "layer", "block").iter_rows()
    return {ts: f"{n}.{layer} {block}" if section == "layer" else section for ts, section, n, layer, block in rows}


MODULE_STORIES: dict[str, tuple[list[dict[str, Any]], Rows]] = {
    "numbers go by execution, not by instance": (
        [module("Model_0", 10, 90), module("MyDecoderLayer_7", 20, 10), module("MyDecoderLayer_3", 40, 10),
         *kernels(15, 21, 41, 60)],
        {15: "prologue", 21: "0.0 other", 41: "0.1 other", 60: "epilogue"}),
    "between two layers is nobody's": (
        [module("Model_0", 10, 90), module("MyDecoderLayer_0", 20, 10), module("MyDecoderLayer_1", 40, 10),
         *kernels(21, 22, 35, 41)],
        {21: "0.0 other", 22: "0.0 other", 35: None, 41: "0.1 other"}),
    "a draft model has a pass of its own": (
        [module("Model_0", 10, 40), module("MyDecoderLayer_0", 20, 10), module("MyDecoderLayer_1", 35, 10),
         module("Draft_0", 60, 30), module("DraftDecoderLayer_0", 65, 10), *kernels(21, 36, 48, 62, 66, 80)],
        {21: "0.0 other", 36: "0.1 other", 48: "epilogue", 62: "epilogue", 66: "1.0 other", 80: "epilogue"}),
    "without a module around them, a layer that comes again begins a pass": (
        [module("MyDecoderLayer_0", 20, 10), module("MyDecoderLayer_1", 35, 10), module("MyDecoderLayer_0", 50, 10),
         module("MyDecoderLayer_1", 65, 10), *kernels(21, 36, 51, 66)],
        {21: "0.0 other", 36: "0.1 other", 51: "1.0 other", 66: "1.1 other"}),
    "decoder layers go before encoder layers and blocks": (
        [module("Model_0", 10, 90), module("VisionBlock_0", 15, 5), module("MyDecoderLayer_0", 40, 40),
         module("SparseMoeBlock_0", 50, 10), *kernels(16, 41, 51)],
        {16: "prologue", 41: "0.0 moe", 51: "0.0 moe"}),
    "what is only called a layer or block": (
        [module("Model_0", 10, 90), module("EmbeddingLayer_0", 12, 6), module("TransformerBlock_0", 20, 30),
         module("LayerNorm_0", 22, 5), module("MLPBlock_0", 30, 15), module("TransformerBlock_1", 60, 20),
         *kernels(13, 23, 31, 61)],
        {13: "prologue", 23: "0.0 mlp", 31: "0.0 mlp", 61: "0.1 other"}),
    "a layer within a layer": (
        [module("OuterLayer_0", 20, 30), module("InnerLayer_0", 25, 10), module("OuterLayer_1", 60, 20),
         module("InnerLayer_1", 65, 10), *kernels(21, 26, 66)],
        {21: "0.0 other", 26: "0.0 other", 66: "0.1 other"}),
    "blocks, and what is between them": (
        [module("Model_0", 10, 90), module("MyDecoderLayer_0", 20, 60), module("RMSNorm_0", 21, 4),
         module("MyMoeAttention_0", 30, 10), module("RMSNorm_1", 42, 4), module("MyMoE_0", 50, 10),
         module("MyMLP_0", 52, 4), *kernels(22, 31, 41, 43, 53, 65), *kernel(36, "ncclDevKernel_AllReduce_Sum")],
        {22: "0.0 attention", 31: "0.0 attention", 36: "0.0 comm", 41: "0.0 moe", 43: "0.0 moe", 53: "0.0 moe",
         65: "0.0 moe"}),
    "what is called an MLP and runs experts": (
        [module("Model_0", 10, 90), module("TransformerBlock_0", 20, 20), module("MLPBlock_0", 25, 10),
         module("TransformerBlock_1", 50, 30), module("MyAttention_0", 52, 8), module("MLPBlock_1", 65, 10),
         *kernels(26, 53, 66, 77), *kernel(68, "fused_moe_kernel")],
        {26: "0.0 mlp", 53: "0.1 attention", 66: "0.1 moe", 68: "0.1 moe", 77: "0.1 moe"}),
    "a mixer of another kind is not the neighbour's": (
        [module("Model_0", 10, 90), module("MyDecoderLayer_0", 20, 60), module("MambaMixer_0", 30, 10),
         module("MyMLP_0", 50, 10), *kernels(22, 31, 45, 51)],
        {22: "0.0 other", 31: "0.0 other", 45: "0.0 mlp", 51: "0.0 mlp"}),
    "another thread calls no layers": (
        [module("Model_0", 10, 90), module("MyDecoderLayer_0", 20, 60), *kernels(21, 31, 41),
         *kernels(15, 25, 85, tid=2)],
        {15: None, 21: "0.0 other", 25: None, 31: "0.0 other", 41: "0.0 other", 85: None}),
    "a module around several steps": (
        [NEXT_STEP, module("Engine_0", 5, 1800), module("MyDecoderLayer_0", 20, 10), module("MyDecoderLayer_1", 40, 10),
         module("MyDecoderLayer_0", 1020, 10), module("MyDecoderLayer_1", 1040, 10), *kernels(21, 41, 1021, 1041)],
        {21: "0.0 other", 41: "0.1 other", 1021: "0.0 other", 1041: "0.1 other"}),
    "two threads with layers, of which one is late": (
        [NEXT_STEP, module("MyDecoderLayer_0", 20, 10), module("MyDecoderLayer_0", 1020, 10), *kernels(21, 1021),
         module("MyDecoderLayer_1", 30, 10, tid=2), module("MyDecoderLayer_1", 1040, 10, tid=2),
         *kernels(31, 1030, 1041, tid=2)],
        {21: "0.0 other", 31: "1.0 other", 1021: "0.0 other", 1030: None, 1041: "1.0 other"}),
    "a wrapper around a part": (
        [module("MyDecoderLayer_0", 20, 60), module("Wrapper_0", 25, 20), module("MyAttention_0", 30, 10),
         *kernels(26, 31, 42)],
        {26: "0.0 attention", 31: "0.0 attention", 42: "0.0 attention"}),
    "layers around less than half of the launches": (
        [module("MyDecoderLayer_0", 20, 10), *kernels(21, 41, 51)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULE_STORIES)
def test_modules(name, tmp_path):
    events, expected = MODULE_STORIES[name]
    assert told(placed(write(tmp_path / "story.json", STEP, *events))) == expected


SPAN_STORIES: dict[str, tuple[list[dict[str, Any]], Rows]] = {
    "a span for each layer": (
        [span("layer_4", 20, 10), span("layer_5", 35, 10), *kernels(15, 21, 22, 33, 36, 50)],
        {15: "prologue", 21: "0.0 other", 22: "0.0 other", 33: None, 36: "0.1 other", 50: "epilogue"}),
    "spans of parts": (
        [span("model.layers.3.self_attn", 20, 10), span("model.layers.3.mlp", 35, 10),
         span("model.layers.4.self_attn", 50, 10), *kernels(21, 33, 36, 47, 51)],
        {21: "0.0 attention", 33: "0.0 mlp", 36: "0.0 mlp", 47: None, 51: "0.1 attention"}),
    "parts within a layer": (
        [span("Layer 0", 20, 40), span("Self-Attention", 25, 10), span("layers.0.experts", 40, 10),
         *kernels(21, 26, 41, 55)],
        {21: "0.0 attention", 26: "0.0 attention", 41: "0.0 moe", 55: "0.0 moe"}),
    "a lower number begins a pass, and so does the same span again": (
        [span("h.0", 20, 5), span("h.1", 30, 5), span("h.0", 40, 5), span("h.0", 50, 5), *kernels(21, 31, 41, 51)],
        {21: "0.0 other", 31: "0.1 other", 41: "1.0 other", 51: "2.0 other"}),
    "a part that comes again within its layer": (
        [span("layers.0.self_attn", 20, 5), span("layers.0.experts", 30, 5), span("layers.0.experts", 40, 5),
         span("layers.0.self_attn", 50, 5), *kernels(21, 31, 41, 51)],
        {21: "0.0 attention", 31: "0.0 moe", 41: "0.0 moe", 51: "1.0 attention"}),
    "another thread": (
        [span("layer.0", 20, 50), *kernels(21, 31), *kernels(25, tid=2)],
        {21: "0.0 other", 25: None, 31: "0.0 other"}),
    "no layers": ([span("LayerNorm_3", 20, 10), span("ProfilerStep#3", 19, 20), *kernels(21)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SPAN_STORIES)
def test_annotations(name, tmp_path):
    events, expected = SPAN_STORIES[name]
    found = placed(write(tmp_path / "story.json", STEP, *events), "annotation")
    assert told(found) == expected
    assert set(found["confidence"]) <= {0.95}


def test_which_texts_name_a_layer(tmp_path):
    rules = YAML(typ="safe", pure=True).load(resource("rules", "layer_annotations.yaml"))
    examples = [text for row in rules["annotations"] for text in row["examples"]]
    names = [*examples, *rules["others"]]
    events = [span(name, 10 * i, 5) for i, name in enumerate(names)]
    found = dict(host_spans(write(tmp_path / "texts.json", *events)).select("name", "number").iter_rows())
    assert {name: found[name] for name in examples} == dict.fromkeys(examples, 3)
    assert {name: found[name] for name in rules["others"]} == dict.fromkeys(rules["others"])


# --- annotations of graph nodes


def annotated(events: list[dict[str, Any]], texts: dict[str, str | None]) -> list[dict[str, Any]]:
    """The events with the annotation of each kernel name, as PyTorch's export writes it."""
    for one in events:
        if texts.get(one["name"]) is not None:
            one["args"]["name"] = texts[one["name"]]
    return events


def test_graph_nodes_that_name_their_module(tmp_path):
    """A draft model's graph runs twice, the target's once; the residual add of layer 8 names no part."""
    target = {"k0": "tok_embeddings", "k1": "layers.7.attention.wq", "k2": "layers.7.feed_forward.w1", "k3": None,
              "k4": "layers.8", "k5": "layers.8.moe", "k6": "norm", "k7": "layers.8.attention"}  # fmt: skip
    draft = {"d0": "draft.layers.0.attention.wq", "d1": "draft.layers.1.feed_forward.w1"}
    names = [f"k{i}" for i in (0, 1, 2, 3, 4, 7, 5, 6)]
    events = [*replayed(*draft, ts=100), *replayed(*draft, ts=200), *replayed(*names, ts=300)]
    bare = replay(tmp_path, *events)
    assert by_graph_nodes(bare, activities_of(bare)).is_empty()
    trace = replay(tmp_path, *annotated(events, target | draft))
    assert trace.kernels.collect()["annotation"].null_count() == 1
    found = by_graph_nodes(trace, activities_of(trace))
    assert sections(trace, found) == [
        *("0.0 attention", "0.1 mlp", "1.0 attention", "1.1 mlp"),
        *(None, "2.0 attention", "2.0 mlp", None, "2.1 attention", "2.1 attention", "2.1 moe", "epilogue"),
    ]


# --- a trace of the capture phase


def captured(*calls: tuple[str, int, str], around: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """A capture from 10 to 90 µs of (call, when, op), which run nothing."""
    events = [
        event("cuda_runtime", "cudaStreamBeginCapture", 10, 1),
        event("cuda_runtime", "cudaStreamEndCapture", 90, 1),
    ]
    for name, ts, op in calls:
        shapes: dict[str, Any] = {"Input Dims": [[ts, 8]]}
        events += [event("cpu_op", op, ts - 0.5, 2, **shapes), event("cuda_runtime", name, ts, 1, correlation=ts)]
    return [*events, *(around or [])]


def replayed(*names: str, streams: tuple[int, ...] = (7,), ts: int = 100) -> list[dict[str, Any]]:
    """A graph of kernels with these names, one after the other, on the streams in turn."""
    events = [event("cuda_runtime", "cudaGraphLaunch", ts, 5, correlation=ts)]
    for i, name in enumerate(names):
        stream = streams[i % len(streams)]
        args = {"correlation": ts, "device": 0, "stream": stream}
        events.append(event("kernel", name, 2000 + ts + i, 0.5, stream, **args) | {"pid": 0})
    return events


LAUNCH = "cudaLaunchKernel"
CALLS = [(LAUNCH, 15, "aten::embedding"), (LAUNCH, 21, "aten::mm"), (LAUNCH, 25, "aten::silu"),
         (LAUNCH, 41, "aten::mm"), (LAUNCH, 45, "aten::silu"), (LAUNCH, 60, "aten::mm")]  # fmt: skip
LAYERS = [module("Model_0", 12, 70), module("MyDecoderLayer_0", 20, 10), module("MyAttention_0", 21, 2),
          module("MyMLP_0", 24, 4), module("MyDecoderLayer_1", 40, 10)]  # fmt: skip
GEMM = "nvjet_tst_64x8"
SILU = "act_and_mul_kernel<silu>"
GRAPH = ["indexSelectSmallIndex", GEMM, SILU, GEMM, SILU, GEMM]


def replay(tmp_path: Path, *events: dict[str, Any]) -> Trace:
    return write(tmp_path / "replay.json", STEP, *events)


def capture_of(tmp_path: Path, *events: dict[str, Any]) -> Trace:
    return write(tmp_path / "capture.json", *events)


def sections(trace: Trace, found: pl.DataFrame) -> list[str | None]:
    rows = found.join(activities_of(trace).drop("section"), on="kernel_id").sort("start_ns")
    return list(told(rows.with_columns(correlation=pl.int_range(pl.len()))).values())


IN_LAYERS = ["prologue", "0.0 attention", "0.0 mlp", "0.1 other", "0.1 other", "epilogue"]


def test_a_replay_has_the_layers_of_its_capture(tmp_path):
    trace = replay(tmp_path, *kernels(50, 200), *replayed(*GRAPH))
    capture = capture_of(tmp_path, *captured(*CALLS, around=LAYERS))
    found = by_capture(trace, activities_of(trace), capture)
    assert sections(trace, found) == ["prologue", "epilogue", *IN_LAYERS]  # by the time at which they run
    assert set(found["confidence"]) == {0.9}
    classes = captured_classes(trace, activities_of(trace), capture)
    assert classes["label"].to_list() == ["MyDecoderLayer", "MyDecoderLayer"]


def test_what_is_not_captured_does_not_count(tmp_path):
    """Launched before and after the capture, or during it on a stream that is not captured: these run."""
    trace = replay(tmp_path, *replayed(*GRAPH))
    outside = [event("cuda_runtime", LAUNCH, 95, 1, correlation=95), *kernels(5, 50)]
    found = by_capture(trace, activities_of(trace), capture_of(tmp_path, *captured(*CALLS, around=[*LAYERS, *outside])))
    assert sections(trace, found) == IN_LAYERS


def test_layers_of_a_capture_by_its_annotations(tmp_path):
    trace = replay(tmp_path, *replayed(*GRAPH))
    around = [span("layers.0", 20, 10), span("layers.1", 40, 10)]
    found = by_capture(trace, activities_of(trace), capture_of(tmp_path, *captured(*CALLS, around=around)))
    assert sections(trace, found) == [row.replace("attention", "other").replace("mlp", "other") for row in IN_LAYERS]


def test_a_capture_without_layers_still_tells_the_ops(tmp_path):
    trace, capture = replay(tmp_path, *replayed(*GRAPH)), capture_of(tmp_path, *captured(*CALLS))
    assert by_capture(trace, activities_of(trace), capture).is_empty()
    ops = captured_ops(trace, activities_of(trace), capture)
    assert ops["op"].to_list() == [op for _, _, op in CALLS]
    assert [json.loads(args)["Input Dims"] for args in ops["args"]] == [[[ts, 8]] for _, ts, _ in CALLS]


def test_every_replay_of_a_graph(tmp_path):
    """The same capture serves each step, and a copy within a graph is a call of another name."""
    copy: dict[str, Any] = event("gpu_memcpy", "Memcpy DtoD", 5000, 1, 7, correlation=100, device=0, stream=7) | {
        "pid": 0
    }
    again = copy | {"ts": 6000, "args": copy["args"] | {"correlation": 1100}}
    trace = replay(tmp_path, NEXT_STEP, *replayed(*GRAPH), copy, *replayed(*GRAPH, ts=1100), again)
    capture = capture_of(tmp_path, *captured(*CALLS, ("cudaMemcpyAsync", 70, "aten::copy_"), around=LAYERS))
    found = by_capture(trace, activities_of(trace), capture)
    assert found.join(activities_of(trace).drop("section"), on="kernel_id").group_by("step", "layer").len().sort(
        "step", "layer").rows() == [(0, None, 3), (0, 0, 2), (0, 1, 2), (1, None, 3), (1, 0, 2), (1, 1, 2)]  # fmt: skip


def test_pieces_of_a_graph_fit_captures_in_a_row(tmp_path):
    """Three pieces for each of two batch sizes: which size was replayed is not known, its layers are."""
    pieces: list[dict[str, Any]] = []
    for batch in (0, 1):
        for piece in range(3):
            calls = captured((LAUNCH, 21, "aten::mm"), (LAUNCH, 41, "aten::silu"))
            inside = [module("MyDecoderLayer_0", 15, 40)] if piece == 1 else []
            for each in [*calls, *inside]:
                moved = json.loads(json.dumps(each))
                moved["ts"] += 100 * (3 * batch + piece)
                if "correlation" in moved["args"]:
                    moved["args"]["correlation"] += 100 * (3 * batch + piece)
                pieces.append(moved)
    trace = replay(tmp_path, *(e for ts in (100, 200, 300) for e in replayed(GEMM, SILU, ts=ts)))
    capture = capture_of(tmp_path, *pieces)
    ops = captured_ops(trace, activities_of(trace), capture)
    assert ops["op"].to_list() == 3 * ["aten::mm", "aten::silu"]
    assert ops["args"].null_count() == 6
    assert by_capture(trace, activities_of(trace), capture).is_empty()  # a third of the launches is in a layer


MISFITS = {
    "another number of launches": (
        replayed(*GRAPH), captured(*CALLS[:-1]), "captured graphs of 5 launches, replayed graphs of 6 kernels"),
    "other kernels": (
        replayed(*GRAPH[::-1]), captured(*CALLS), "the ops of the one do not go with the kernels of the other"),
    "nothing captured": (replayed(*GRAPH), kernels(20, 30), "no launches between the begin and the end"),
    "nothing replayed": (kernels(20, 30), captured(*CALLS), "replays no graph"),
    "several streams": (replayed(*GRAPH, streams=(7, 8)), captured(*CALLS), "several streams"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_a_capture_that_does_not_fit(name, tmp_path):
    events, capture, message = MISFITS[name]
    trace = replay(tmp_path, *events)
    for method in (by_capture, captured_ops):
        with pytest.raises(MissingDataError, match=message):
            method(trace, activities_of(trace), capture_of(tmp_path, *capture))


def test_node_ids_tell_the_order_across_streams(tmp_path):
    events = replayed(*GRAPH, streams=(7, 8))
    for i, each in enumerate(events[1:]):
        each["args"]["graph node id"] = 100 + i
        each["ts"] = 3000 - i  # in no order of time
    trace = replay(tmp_path, *events)
    ops = captured_ops(trace, activities_of(trace), capture_of(tmp_path, *captured(*CALLS)))
    by_time = ops.join(activities_of(trace), on="kernel_id").sort("start_ns", descending=True)
    assert by_time["op"].to_list() == [op for _, _, op in CALLS]


def test_a_run_shares_the_capture_of_one_rank(tmp_path):
    capture = capture_of(tmp_path, *captured(*CALLS, around=LAYERS))
    for rank in (0, 1):
        document = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2},
                    "traceEvents": [STEP, *replayed(*GRAPH)]}  # fmt: skip
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(document))
    run = load_run(sorted(tmp_path.glob("rank-*.json")), cache=False)
    found = by_capture(run, activities_of(run), capture).join(activities_of(run).drop("section"), on="kernel_id")
    assert found.group_by("rank", "layer").len().sort("rank", "layer").rows() == [
        (rank, layer, 2) for rank in (0, 1) for layer in (None, 0, 1)
    ]


@pytest.mark.shared
def test_the_capture_of_a_server(shared):
    """A decode step of 36 layers: 544 launches captured, 544 activities replayed, 15 in each layer."""
    folder = shared / "public/tracelens-sglang-decode"
    (path,), (capture_path,) = folder.glob("*.gz"), folder.glob("capture_traces/*.gz")
    trace, capture = loaded(path), loaded(capture_path)
    activities = activities_of(trace)
    found = by_capture(trace, activities, capture).join(activities.drop("section"), on="kernel_id")
    assert layer_sizes(found) == {15: (36, list(range(36)))}
    assert Counter(found["section"]) == {"layer": 540, "prologue": 11, "epilogue": 7}
    ops = captured_ops(trace, activities, capture).join(activities, on="kernel_id")
    assert set(ops.filter(pl.col("op") == "aten::mm")["category"]) == {"gemm"}
    assert set(ops.filter(pl.col("category") == "cast")["op"]) == {"aten::copy_"}
    order = ["norm", "gemm", "copy", "norm", "copy", "norm", "rope", "kv_cache", "attention", "attention", "gemm",
             "norm", "gemm", "activation", "gemm"]  # fmt: skip
    assert found.filter(pl.col("layer") == 20).sort("start_ns")["category"].to_list() == order


@pytest.mark.shared
def test_the_capture_of_a_server_in_pieces(shared):
    """25 graphs of 361 kernels; the compiled pieces end at attention and name no layer."""
    folder = shared / "public/tracelens-vllm-piecewise"
    (path,), (capture_path,) = folder.glob("*.gz"), folder.glob("capture_traces/*.gz")
    trace, capture = loaded(path), loaded(capture_path)
    assert by_capture(trace, activities_of(trace), capture).is_empty()
    ops = captured_ops(trace, activities_of(trace), capture)
    assert ops.height == 361
    assert ops["args"].null_count() == 0
