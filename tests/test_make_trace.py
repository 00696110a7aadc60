"""The synthetic traces are what they claim: Kineto's layout, the founding figures, comparable ranks."""

import gzip
import io
import json
import re
from collections import Counter, defaultdict
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import make_trace
import pytest
import zstandard
from click.testing import CliRunner

FIXTURES = Path(__file__).parent / "fixtures"

FOUNDING_NS = {
    "copy_": 64_600_000,
    "gemm": 13_900_000,
    "nccl": 7_650_000,
}
STEP_NS = 93_200_000


def text_of(rank: int = 0, **options: Any) -> str:
    out = io.BytesIO()
    n_bytes = make_trace.make_rank(make_trace.Case(**options), rank, out)
    assert n_bytes == len(out.getvalue())
    return out.getvalue().decode()


def events_of(rank: int = 0, **options: Any) -> list[dict[str, Any]]:
    return json.loads(text_of(rank, **options), parse_float=Decimal)["traceEvents"]


def start(event: dict[str, Any]) -> int:
    return int(Decimal(event["ts"]) * 1000)


def end(event: dict[str, Any]) -> int:
    return start(event) + int(Decimal(event["dur"]) * 1000)


def with_cat(events: list[dict[str, Any]], *cats: str) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") in cats and event["ph"] == "X"]


def kernels_by_step(events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The kernels of each step, by the time of their launch; what follows an annotation belongs to it."""
    begins = sorted(start(event) for event in with_cat(events, "user_annotation"))
    launched = {event["args"]["correlation"]: start(event) for event in with_cat(events, "cuda_runtime", "cuda_driver")}
    steps: list[list[dict[str, Any]]] = [[] for _ in begins]
    for kernel in with_cat(events, "kernel"):
        launch = launched[kernel["args"]["correlation"]]
        steps[sum(begin <= launch for begin in begins) - 1].append(kernel)
    return [sorted(step, key=start) for step in steps]


def founding_group(name: str) -> str:
    if "direct_copy_kernel_cuda" in name:
        return "copy_"
    if name.startswith("nccl"):
        return "nccl"
    return "gemm" if "gemm" in name.lower() or "gemv" in name.lower() else "other"


SMALL = {"ranks": 2, "steps": 4, "layers": 6}
EVERY_KIND = [
    {},
    {"mode": "graph"},
    {"stack": True, "frames_per_launch": 3},
    {"minified": True},
    {"skew_us": 30.0, "offset_us": 250.5, "drift_ppm": 12.0},
]


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_step_has_the_figures_of_the_founding_case(mode: str) -> None:
    steps = kernels_by_step(events_of(steps=3, mode=mode))
    for step, following in pairwise(steps):
        times: Counter[str] = Counter()
        for kernel in step:
            times[founding_group(kernel["name"])] += end(kernel) - start(kernel)
        wall = start(following[0]) - start(step[0])
        gaps = [start(b) - end(a) for a, b in pairwise([*step, following[0]])]
        assert wall == STEP_NS
        assert {group: times[group] for group in FOUNDING_NS} == FOUNDING_NS
        assert min(gaps) > 0
        assert sum(gaps) + sum(times.values()) == STEP_NS


def test_the_cast_is_in_every_layer_and_recorded_as_torch_records_it() -> None:
    events = events_of(steps=1)
    casts = [kernel for kernel in with_cat(events, "kernel") if "LoadWithCast" in kernel["name"]]
    assert len(casts) == 78
    durations = [end(cast) - start(cast) for cast in casts]
    assert max(durations) < 1.05 * min(durations)
    assert len(set(durations)) > 1

    ops = {op["args"]["External id"]: op for op in with_cat(events, "cpu_op")}
    copies = [ops[cast["args"]["External id"]] for cast in casts]
    assert {copy["name"] for copy in copies} == {"aten::copy_"}
    assert copies[0]["args"]["Input type"][:2] == ["c10::BFloat16", "c10::Float8_e4m3fn"]
    assert copies[0]["args"]["Input Dims"][:2] == [[495_001, 1, 576]] * 2
    assert copies[0]["args"]["Input Strides"][:2] == [[576, 576, 1]] * 2
    assert casts[0]["args"]["grid"] == [-(-495_001 * 576 // 512), 1, 1]


@pytest.mark.parametrize("options", EVERY_KIND)
def test_the_known_answer_is_what_the_file_holds(options: dict[str, Any]) -> None:
    case = make_trace.Case(**SMALL, **{**options, "offset_us": 0.0, "drift_ppm": 0.0})
    for rank in range(2):
        answer = make_trace.part_times(case, rank)
        trace = make_trace.RankTrace(case, rank)
        part_of = {kernel.name: kernel.part for kernel in trace.kernels}
        steps = kernels_by_step(events_of(rank, **vars(case)))
        for step, following in pairwise(steps):
            times: Counter[str] = Counter()
            for kernel in step:
                times[part_of[kernel["name"]]] += end(kernel) - start(kernel)
            times["idle"] = start(following[0]) - start(step[0]) - sum(times.values())
            assert times == answer


def test_collectives_end_together_on_the_true_clock() -> None:
    clocks = {"offset_us": 250.5, "drift_ppm": 12.0, "skew_us": 30.0}
    options = {**SMALL, "ranks": 3, **clocks}
    case = make_trace.Case(**options)

    def all_reduces(rank: int, **changed: Any) -> list[dict[str, Any]]:
        events = events_of(rank, **{**options, **changed})
        return [kernel for kernel in with_cat(events, "kernel") if kernel["name"].startswith("nccl")]

    true = [all_reduces(rank, offset_us=0.0, drift_ppm=0.0) for rank in range(3)]
    assert len(true[0]) == 4 * 6 * 2
    for first, middle, last in zip(*true, strict=True):
        assert end(first) == end(middle) == end(last)
        assert start(last) - start(middle) == start(middle) - start(first) == 15_000

    for rank in range(3):
        shown = all_reduces(rank)
        for seen, real in zip(shown, true[rank], strict=True):
            since_begin = end(real) - make_trace.FIRST_NS
            assert end(seen) == make_trace.clock_ns(case, rank, since_begin)
            expected = since_begin + rank * 250_500 + since_begin * rank * 12e-6
            assert abs(end(seen) - make_trace.FIRST_NS - expected) <= 1


@pytest.mark.parametrize("options", EVERY_KIND)
def test_launches_come_before_their_kernels_and_ids_are_unique(options: dict[str, Any]) -> None:
    events = events_of(1, **SMALL, **options)
    launches = {event["args"]["correlation"]: event for event in with_cat(events, "cuda_runtime", "cuda_driver")}
    assert len(launches) == len(with_cat(events, "cuda_runtime", "cuda_driver"))
    for kernel in with_cat(events, "kernel"):
        assert end(launches[kernel["args"]["correlation"]]) <= start(kernel)
    own = [event["args"]["External id"] for event in with_cat(events, "cpu_op", "user_annotation")]
    assert sorted(own) == list(range(1, len(own) + 1))
    indices = [event["args"]["Ev Idx"] for event in events if "Ev Idx" in event.get("args", {})]
    assert indices == list(range(len(indices)))
    flows = Counter((event["ph"], event["id"]) for event in events if event.get("cat") == "ac2g")
    assert {id_ for phase, id_ in flows if phase == "s"} == {id_ for phase, id_ in flows if phase == "f"}
    assert sum(n for (phase, _), n in flows.items() if phase == "f") == len(with_cat(events, "kernel"))


@pytest.mark.parametrize("options", EVERY_KIND)
def test_host_events_are_nested_and_a_launch_lies_in_its_op(options: dict[str, Any]) -> None:
    events = events_of(**SMALL, **options)
    host = with_cat(events, "python_function", "user_annotation", "cpu_op", "cuda_runtime", "cuda_driver")
    open_ends: list[int] = []
    for event in sorted(host, key=lambda event: (start(event), -end(event))):
        while open_ends and open_ends[-1] <= start(event):
            open_ends.pop()
        assert not open_ends or end(event) <= open_ends[-1], event
        open_ends.append(end(event))
    ops = {op["args"]["External id"]: op for op in with_cat(events, "cpu_op")}
    for launch in with_cat(events, "cuda_runtime", "cuda_driver"):
        if "External id" in launch["args"]:
            op = ops[launch["args"]["External id"]]
            assert start(op) < start(launch)
            assert end(launch) < end(op)


def test_python_frames_lie_in_their_parents_and_layers_hold_their_launches() -> None:
    events = events_of(**SMALL, stack=True, frames_per_launch=3)
    frames = {frame["args"]["Python id"]: frame for frame in with_cat(events, "python_function")}
    assert sorted(frames) == list(range(1, len(frames) + 1))
    for frame in frames.values():
        parent = frame["args"]["Python parent id"]
        if parent is not None:
            assert start(frames[parent]) <= start(frame)
            assert end(frame) <= end(frames[parent])
    layers = [frame for frame in frames.values() if frame["name"].startswith("nn.Module: ")]
    assert [frame["args"]["Python module id"] for frame in layers] == list(range(6)) * 4

    casts = [op for op in with_cat(events, "cpu_op") if op["args"]["Input Dims"][:1] == [[495_001, 1, 576]]]
    copies = [op for op in casts if op["name"] == "aten::copy_"]
    assert len(copies) == len(layers)
    for layer, copy in zip(layers, sorted(copies, key=start), strict=True):
        assert start(layer) < start(copy)
        assert end(copy) < end(layer)


def shape(event_text: str) -> str:
    """The text of an event without its values: strings, numbers and lists become one letter."""
    text = re.sub(r'(": )"(?:[^"\\]|\\.)*"', r"\1S", event_text)
    text = re.sub(r'(": )\[.*?\](?=, "|,? {6}"|\n)', r"\1L", text)
    text = re.sub(r"(: )(null|-?\d+\.\d{3})(?=[,\n])", r"\1T", text)
    return re.sub(r"(: )-?\d+(\.\d+)?", r"\1N", text)


def shapes(text: str) -> dict[tuple[str, str], set[str]]:
    """The layouts of the events of a file, by phase and category."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    body = text[text.index('"traceEvents": [\n') :]
    for match in re.finditer(r"^  \{\n.*?^  \}", body, re.MULTILINE | re.DOTALL):
        event = json.loads(match[0])
        found[event["ph"], event.get("cat", event["name"])].add(shape(match[0]))
    return found


def real_traces() -> list[Path]:
    """Small traces that torch wrote, where the checkout has them as fixtures."""
    return sorted(FIXTURES.rglob("tiny-pool-*-TP-0.json.gz"))


@pytest.mark.skipif(not real_traces(), reason="no recorded traces among the fixtures")
def test_every_event_is_laid_out_like_one_that_kineto_wrote() -> None:
    real: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in real_traces():
        for kind, layouts in shapes(gzip.decompress(path.read_bytes()).decode()).items():
            real[kind] |= layouts
    kinds: list[dict[str, Any]] = [{}, {"mode": "graph"}, {"stack": True}]
    for options in kinds:
        for kind, layouts in shapes(text_of(ranks=2, steps=1, layers=4, **options)).items():
            assert layouts <= real[kind], kind


def test_the_frame_around_the_events() -> None:
    text = text_of(1, ranks=2, steps=1, layers=2)
    assert text.startswith('\n  {\n    "schemaVersion": 1,\n    "deviceProperties": [\n    {\n      "id": 0, "name": ')
    assert text.endswith('\n  }\n  ],\n  "traceName": "synthetic-eager-TP-1.json"\n}')
    trace = json.loads(text)
    assert trace["synthetic"].startswith("traceql benchmarks/make_trace.py: --ranks 2 ")
    assert trace["distributedInfo"]["rank"] == 1
    assert trace["distributedInfo"]["world_size"] == len(trace["deviceProperties"]) == 2
    gpu = trace["deviceProperties"][1]
    assert (gpu["name"], gpu["computeMajor"], gpu["computeMinor"], gpu["numSms"]) == (
        "NVIDIA RTX PRO 6000 Blackwell",
        12,
        0,
        188,
    )
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names[-4:] == [
        "PyTorch Profiler (0)",
        "process_sort_index",
        "Iteration Start: PyTorch Profiler",
        "Record Window End",
    ]
    assert names.count("step[DECODE bs=1]") == 2


def test_minified_is_the_same_trace_without_white_space() -> None:
    minified = text_of(**SMALL, minified=True)
    assert json.loads(minified) == json.loads(text_of(**SMALL))
    assert not re.search(r"[\s]", re.sub(r'"(?:[^"\\]|\\.)*"', "", minified))
    assert re.search(r'"ts":\d{13}\.\d{3},"dur":\d+\.\d{3}', minified)


def test_a_seed_gives_one_trace() -> None:
    assert text_of(**SMALL) == text_of(**SMALL)
    other = text_of(**SMALL, seed=1)
    assert other != text_of(**SMALL)
    assert len(other) == pytest.approx(len(text_of(**SMALL)), rel=0.001)


@pytest.mark.parametrize(
    ("options", "size_mb"),
    [
        ({"layers": 6}, 3.0),
        ({"layers": 6, "mode": "graph", "minified": True}, 2.0),
        ({"layers": 6, "steps": 2, "stack": True}, 3.0),
        ({"layers": 6, "steps": 20, "stack": True}, 3.0),
    ],
)
def test_size_is_near_the_request(options: dict[str, Any], size_mb: float) -> None:
    case = make_trace.fit_size(make_trace.Case(**options), size_mb)
    assert make_trace.make_rank(case, 0, io.BytesIO()) == pytest.approx(size_mb * 1e6, rel=0.1)
    if options.get("steps") == 2:
        assert case.steps == 2


def test_the_command_writes_a_file_per_rank_plain_or_compressed(tmp_path: Path) -> None:
    def written(*options: str) -> dict[str, bytes]:
        folder = tmp_path / "-".join(("out", *options))
        arguments = [str(folder), "--ranks", "2", "--steps", "2", "--layers", "4", *options]
        result = CliRunner().invoke(make_trace.main, arguments)
        assert result.exit_code == 0, result.output
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    plain = written()
    assert sorted(plain) == ["synthetic-eager-TP-0.trace.json", "synthetic-eager-TP-1.trace.json"]
    assert plain["synthetic-eager-TP-1.trace.json"].decode() == text_of(1, ranks=2, steps=2, layers=4)
    for packed, unpack in (("--gz", gzip.decompress), ("--zst", unpack_zst)):
        files = written(packed, "--only-rank", "0")
        assert {name.replace(packed.replace("--", "."), ""): unpack(data) for name, data in files.items()} == {
            "synthetic-eager-TP-0.trace.json": plain["synthetic-eager-TP-0.trace.json"]
        }


def unpack_zst(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
