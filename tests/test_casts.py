"""Casts and copies: against the slow count of `reference_casts.py`, on real recordings, and in small stories."""

import json
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
import reference_casts
from click.testing import CliRunner
from conftest import FIXTURES
from polars.testing import assert_frame_equal
from test_truth import METAMORPHIC, REAL, rewrite

import traceql
from traceql.analyses.captured import with_capture
from traceql.analyses.casts import CAST_GROUPS, CASTS, CastReport, cast_groups, cast_report, casts
from traceql.analyses.pool_casts import pool_casts
from traceql.analyses.summary import Selection
from traceql.cli.casts import command
from traceql.errors import MissingDataError
from traceql.names import ITEM_BYTES, BlockWork, block_work
from traceql.report.casts_page import casts_page
from traceql.report.casts_words import casts_line
from traceql.report.page import View
from traceql.report.text import render_text
from traceql.run import load_run
from traceql.trace import Trace

POOL_EAGER = FIXTURES / "glm5" / "tiny-pool-eager-TP-0.json.gz"


def loaded(path: Path) -> Trace:
    return traceql.load(path, cache=False)


# --- against the slow count


def check_against_reference(path: Path, trace: Trace) -> None:
    """Each launch of an ATen copy kernel: kind, dtypes and range of elements."""
    zero = trace.meta.first_event_ns or 0
    kernels = trace.kernels.filter(pl.col("name").str.contains(reference_casts.ATEN_COPY.pattern)).collect()
    columns = ("name", "category", "src_dtype", "dst_dtype", "n_elements_min", "n_elements_max")
    found = kernels.filter(kind="kernel").select(pl.col("start_ns") + zero, *columns).rows()
    assert sorted(found, key=str) == sorted((cast.row for cast in reference_casts.casts(path)), key=str)


def check_sums(report: CastReport) -> None:
    """Groups add up to the casts of the steps counted; ranges are ranges; a copy keeps its dtype, a cast does not."""
    rows, groups = report.casts, report.groups
    if report.scope == "steps":
        rows = rows.join(report.windows, on=["rank", "device", "step"], how="semi")
    assert groups["n_casts"].sum() == rows.height
    assert groups["kernel_ns"].sum() == rows["dur_ns"].sum()
    assert set(groups["group_id"]) == set(rows["group_id"])
    n_steps = report.windows.group_by("rank", "device").agg(n_steps=pl.len())
    both = groups.join(n_steps, on=["rank", "device"], how="left")
    assert both["n_casts"].to_list() == (both["n_per_step"] * both["n_steps"]).round(6).to_list()
    assert (report.casts["n_elements_min"] <= report.casts["n_elements_max"]).all()
    known = report.casts.filter(pl.col("src_dtype").is_not_null() & pl.col("dst_dtype").is_not_null())
    is_same = known["src_dtype"] == known["dst_dtype"]
    assert is_same.to_list() == (known["kind"] == "copy").to_list()
    guessed = report.casts.filter(size_evidence="grid").drop_nulls("peak_frac")
    assert (guessed["peak_frac"] <= 1).all()


@pytest.mark.parametrize("path", [path for path in REAL if path.suffix == ".gz"], ids=lambda path: path.name)
def test_every_copy_kernel_against_the_slow_count(path):
    trace = loaded(path)
    check_against_reference(path, trace)
    check_sums(cast_report(trace))


def check_pool_time(path: Path, n_per_step: int) -> None:
    report = cast_report(loaded(path))
    (pool,) = report.groups.filter("is_whole_pool").rows(named=True)
    expected = reference_casts.pool_ns_by_step(path, reference_casts.casts(path), 1 << 20)
    assert pool["kernel_ns"] == sum(expected)
    assert pool["n_casts"] == n_per_step * len(expected)


@pytest.mark.parametrize("name", ["tiny-pool-graph-TP-0.json.gz", "tiny-pool-eager-TP-1.json.gz"])
def test_pool_time_against_the_slow_count(name):
    check_pool_time(FIXTURES / "glm5" / name, 4)


def everything(path: Path) -> dict[str, pl.DataFrame]:
    report = cast_report(loaded(path))
    return {"casts": report.casts, "groups": report.groups}


@pytest.mark.parametrize("path", METAMORPHIC, ids=lambda path: path.name)
@pytest.mark.parametrize("change", [{"seed": 5}, {"shift_us": "1751328000123456.789"}], ids=str)
def test_order_and_clock_do_not_matter(path, change, tmp_path):
    found, expected = everything(rewrite(path, tmp_path / path.name, **change)), everything(path)
    for name, frame in expected.items():
        assert_frame_equal(found[name], frame)


@pytest.mark.parametrize("name", ["31-empty-events", "31-metadata-only", "71-no-kernels"])
def test_nothing_recorded_gives_empty_tables(name):
    report = cast_report(loaded(FIXTURES / "cases" / f"{name}.json"))
    assert_frame_equal(report.casts, CASTS.empty())
    assert_frame_equal(report.groups, CAST_GROUPS.empty())
    assert casts_line(report) is None
    assert page_lines(report) == ["No GPU activity: casts are unknown."]


def test_nested_conversions_count_once():
    """aten::to > aten::_to_copy > aten::copy_ record one conversion three times."""
    table = casts(loaded(FIXTURES / "cases" / "37-nested-casts.json"))
    found = table.select("kind", "src_dtype", "dst_dtype", "dur_ns", "op", "outer_op").rows()
    assert found == [
        ("cast", "fp16", "fp32", 11_000, "aten::copy_", "aten::to"),
        ("copy", "fp16", "fp16", 5_000, "aten::copy_", None),
        ("cast", "fp32", "bf16", 9_000, "aten::copy_", "aten::to"),
    ]
    assert table["written_bytes_min"].to_list() == [16 * 64 * 4, 16 * 64 * 2, 16 * 64 * 2]


# --- the work of a block

DIRECT = (
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::"
    "{lambda()#12}::operator()() const::{lambda(c10::BFloat16)#1}"
)
ARRAY = "std::array<char*, 2ul>"
OFFSETS = "TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>"
CAST = "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1>>(int)"
UNROLLED = f"void at::native::unrolled_elementwise_kernel<{DIRECT}, {ARRAY}, {OFFSETS}, {CAST}"
TO_FP8 = "at::native::float8_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}"
FLOAT8 = f"void at::native::vectorized_elementwise_kernel<4, {TO_FP8}, {ARRAY}>(int)"
WORK = {
    UNROLLED: BlockWork(128, 512, 512),
    UNROLLED.replace(ARRAY, f"{ARRAY}, 8"): BlockWork(128, 1024, 1024),
    FLOAT8: BlockWork(128, 512, 1024),
    FLOAT8.replace("<4,", "<8,"): BlockWork(128, 1024, 1024),
    FLOAT8.replace("<4,", "<16,"): None,
    FLOAT8.replace("c10::BFloat16", "c10::Float8_e4m3fn"): None,
    f"void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<{DIRECT}>>(int)": BlockWork(
        128, 256, 256
    ),
    f"void at::native::elementwise_kernel<(int)128, (int)4, {DIRECT}>(int)": BlockWork(128, 512, 512),
    f"void at::native::elementwise_kernel<512, 1, {DIRECT}>(int)": BlockWork(512, 512, 512),
    f"void at::native::elementwise_kernel_manual_unroll<128, 8, {DIRECT}>(int)": BlockWork(128, 1024, 1024),
    "void at::native::reduce_kernel<512, 1, int>": None,
    "elementwise_kernel<": None,
    "elementwise_kernel<99999, 99999, x": None,
    "": None,
}


@pytest.mark.parametrize("name", WORK, ids=lambda name: name[:60])
def test_the_work_of_a_block(name):
    assert block_work(name) == WORK[name]


def test_every_dtype_has_a_size():
    assert ITEM_BYTES["bf16"] == 2
    assert ITEM_BYTES["fp8_e4m3"] == 1
    assert ITEM_BYTES["complex64"] == 8


# --- small stories: steps of four layers

KV_WRITE = FLOAT8
POOL_BLOCKS = 5_000


def kernel(name: str, correlation: int, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    recorded = {"device": 0, "stream": 7, "correlation": correlation, "grid": [1, 1, 1], "block": [128, 1, 1], **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": recorded}


def call(correlation: int, ts: float) -> dict[str, Any]:
    args = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 1, "ts": ts, "dur": 1,
            "args": args}  # fmt: skip


def op(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": 1, "ts": ts, "dur": dur, "args": args}


def mark(name: str, ts: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 9, "tid": 1, "ts": ts, "dur": 900}


def written(tmp_path: Path, events: list[dict[str, Any]], gpu: str | None = "NVIDIA H200") -> Trace:
    path = tmp_path / "story.json"
    devices = [{"id": 0, "name": gpu}] if gpu is not None else []
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events}))
    return loaded(path)


def decoding(
    *, n_steps: int = 4, n_layers: int = 4, cast_us: float = 20, name: str = UNROLLED, blocks: Any = POOL_BLOCKS,
    before: str = "set_kv_buffer_kernel", before_us: float = 2, writes: str = KV_WRITE, n_prefills: int = 0,
    prefill_cast: tuple[str, int] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Steps of 1000 µs under CUDA graphs: in each layer the KV write, a kernel, the cast, attention and a GEMM."""
    events: list[dict[str, Any]] = []
    for step in range(n_steps):
        begin, at = step * 1000.0, step * 1000.0 + 20
        is_prefill = step >= n_steps - n_prefills
        events.append(mark("step[EXTEND bs=1 toks=9]" if is_prefill else "step[DECODE bs=1]", begin))
        grid = [blocks(step) if callable(blocks) else blocks, 1, 1]
        layer = [("rms_norm_kernel", 5, {}), (writes, 2, {}), (before, before_us, {}), (name, cast_us, {"grid": grid}),
                 ("BatchMLAPagedAttentionKernel", 30, {}), ("nvjet_sm90_tst_64x8", 40, {})]  # fmt: skip
        if is_prefill:
            place = layer.index((name, cast_us, {"grid": grid}))
            layer[place : place + 1] = (
                [(prefill_cast[0], cast_us, {"grid": [prefill_cast[1], 1, 1]})] if prefill_cast else []
            )
        for number, (kernel_name, dur, args) in enumerate(layer * n_layers):
            correlation = step * 1000 + number + 1
            events += [call(correlation, begin + 1 + number), kernel(kernel_name, correlation, at, dur, **args)]
            at += dur + 1
    return events


def the_pool(trace: Trace) -> dict[str, Any]:
    """The group with most time, of those that are casts to bf16."""
    return cast_groups(trace).filter(pl.col("dst_dtype").is_in(["bf16"])).row(0, named=True)


def test_a_pool_of_moderate_size_under_graphs(tmp_path):
    """5,000 rows of 512 take a tenth of the step; only the destination and the grid are known."""
    trace = written(tmp_path, decoding())
    pool = the_pool(trace)
    assert pool["is_whole_pool"] is True
    assert (pool["n_elements_min"], pool["n_elements_max"]) == (4_999 * 512 + 1, 5_000 * 512)
    assert (pool["src_dtype"], pool["likely_src_dtype"], pool["likely_src_confidence"]) == (None, "fp8_e4m3", 0.8)
    assert pool["n_per_step"] == 4
    assert pool["written_bytes_max"] == 2 * pool["n_elements_max"]
    assert pool["read_bytes_max"] == pool["n_elements_max"]
    assert pool["gb_per_s"] == pytest.approx(3 * (4_999 * 512 + 1) / 20_000)
    assert pool["peak_frac"] == pytest.approx(pool["gb_per_s"] / 4800)
    assert (pool["dtype_evidence"], pool["size_evidence"]) == ("kernel_name", "grid")
    line = casts_line(cast_report(trace))
    assert line is not None
    assert line.startswith("4 casts a step of the whole KV pool to bf16 take 0.08 of 1.00 ms (8.0 %), 7.68 MB each")


NO_POOLS = {
    "gathered just before": ({"before": "void vectorized_gather_kernel<16, long>"}, False, "gathered"),
    "grows with the context": ({"blocks": lambda step: POOL_BLOCKS + step}, False, "changes from step to step"),
    "in two of the steps only": ({"blocks": lambda step: POOL_BLOCKS if step else 9}, False, "not equally often"),
    "small": ({"blocks": 900}, False, "small"),
    "short": ({"cast_us": 2.5, "blocks": POOL_BLOCKS}, False, "% of the kernel time"),
    "of one step": ({"n_steps": 2}, None, "one step"),
    "narrowing": ({"name": FLOAT8.replace("float8_copy", "bfloat16_copy").replace("c10::BFloat16", "float"),
                   "writes": "x"}, False, "8-bit"),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_POOLS)
def test_what_is_no_pool(case, tmp_path):
    about, verdict, reason = NO_POOLS[case]
    found = cast_groups(written(tmp_path, decoding(**about))).filter(dst_dtype="bf16")
    assert set(found["is_whole_pool"]) == {verdict}
    assert any(reason in text for text in found["whole_pool_reason"])
    assert found["likely_src_dtype"].null_count() == found.height


def test_a_scatter_before_it_is_no_gather(tmp_path):
    trace = written(tmp_path, decoding(before="void at::native::index_elementwise_kernel<128, 4, index_put_kernel>"))
    assert the_pool(trace)["is_whole_pool"] is True


def test_a_gather_too_short_to_have_written_it(tmp_path):
    """Half a microsecond, when the cast takes twenty: it gathered something else."""
    trace = written(tmp_path, decoding(before="void vectorized_gather_kernel<16, long>", before_us=0.5))
    assert the_pool(trace)["is_whole_pool"] is True


def test_a_pool_cast_in_decode_only(tmp_path):
    """Prefill steps without it say nothing about the decode steps."""
    pool = the_pool(written(tmp_path, decoding(n_steps=7, n_prefills=3)))
    assert pool["is_whole_pool"] is True
    assert "4 steps" in pool["whole_pool_reason"]
    assert pool["n_per_step"] == 4 * 4 / 6


ELEMENTWISE = f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<{DIRECT}>>(int)"


def cast_of_one_prefill(
    tmp_path: Path, blocks: int, *, name: str = ELEMENTWISE, **about: Any
) -> tuple[dict[str, Any], list[float]]:
    """The group of the casts in one prefill step after four of decode, whose casts come from another kernel.

    And how many casts of whole pools there are a step.
    """
    trace = written(tmp_path, decoding(n_steps=6, n_prefills=2, prefill_cast=(name, blocks), **about))
    found = cast_groups(trace).filter(pl.col("short_name").str.starts_with("elementwise_kernel"), dst_dtype="bf16")
    return found.row(0, named=True), pool_casts(trace)["n_per_step"].unique().to_list()


def test_a_pool_of_other_steps_in_a_single_prefill(tmp_path):
    """One step cannot tell whether its size ever changes; that decode steps cast the same pool whole does."""
    group, n_per_step = cast_of_one_prefill(tmp_path, POOL_BLOCKS)
    assert (group["is_whole_pool"], group["whole_pool_confidence"]) == (True, 0.85)
    assert "another stage" in group["whole_pool_reason"]
    assert n_per_step == [(4 * 4 + 4) / 5]


NOT_THE_POOL = {
    "larger": (POOL_BLOCKS + 1, {}, None, [4 * 4 / 5]),
    "smaller": (POOL_BLOCKS - 1, {}, None, [4 * 4 / 5]),
    "copied": (
        POOL_BLOCKS,
        {"name": ELEMENTWISE.replace("gpu_kernel_impl", "gpu_kernel_impl_nocast")},
        None,
        [4 * 4 / 5],
    ),
    "of no pool": (POOL_BLOCKS, {"cast_us": 2.5}, False, []),
}


@pytest.mark.parametrize("case", NOT_THE_POOL)
def test_no_pool_of_other_steps_in_a_single_prefill(case, tmp_path):
    blocks, about, verdict, n_per_step = NOT_THE_POOL[case]
    group, found = cast_of_one_prefill(tmp_path, blocks, **about)
    assert (group["is_whole_pool"], found) == (verdict, n_per_step)


def test_without_kv_writes_the_source_stays_unknown(tmp_path):
    pool = the_pool(written(tmp_path, decoding(writes="set_mla_kv_buffer_kernel")))
    assert pool["is_whole_pool"] is True
    assert pool["likely_src_dtype"] is None
    assert (pool["read_bytes_min"], pool["gb_per_s"], pool["peak_frac"]) == (None, None, None)
    assert pool["written_bytes_min"] is not None


def test_an_unknown_device_has_no_peak(tmp_path):
    report = cast_report(written(tmp_path, decoding(), gpu=""))
    assert report.groups["peak_frac"].null_count() == report.groups.height
    assert report.groups["gb_per_s"].count()
    assert any("does not name the GPU" in line for line in page_lines(report))
    assert "peak" not in str(casts_line(report))


def test_a_guess_faster_than_the_device_is_dropped(tmp_path):
    """2.56 million elements written in half a microsecond: 10 TB/s."""
    row = casts(written(tmp_path, decoding(cast_us=0.5))).filter(dst_dtype="bf16").row(0, named=True)
    assert (row["n_elements_min"], row["n_elements_max"], row["size_evidence"]) == (None, None, None)
    assert row["written_bytes_min"] is None
    assert row["dtype_evidence"] == "kernel_name"


def test_other_blocks_prove_no_size(tmp_path):
    """The rule is known for blocks of 128 threads: AMD's have 256."""
    event = kernel(UNROLLED, 1, 10, 20, grid=[5000, 1, 1], block=[256, 1, 1])
    row = casts(written(tmp_path, [call(1, 5), event])).row(0, named=True)
    assert (row["n_elements_max"], row["size_evidence"], row["dst_dtype"]) == (None, None, "bf16")


def groups_of(tmp_path: Path, *kernels: tuple[float, dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The groups of casts by one kernel: how many, bytes written at least, and their time; most time first."""
    events: list[dict[str, Any]] = []
    for number, (dur, args) in enumerate(kernels, 1):
        events += [call(number, number * 1000), kernel(UNROLLED, number, number * 1000 + 5, dur, **args)]
    report = cast_report(written(tmp_path, events))
    check_sums(report)
    return report.groups.select("n_casts", "written_bytes_min", "kernel_ns").rows()


def test_what_has_no_known_size_takes_none_from_another(tmp_path):
    """Two long casts of unknown size, and a short one of few elements, by the same kernel: not three of few."""
    unknown, few = {"grid": [5000, 1, 1], "block": [256, 1, 1]}, {"grid": [16, 1, 1]}
    found = groups_of(tmp_path, (664, unknown), (3, few), (664, unknown))
    assert found == [(2, None, 1_328_000), (1, 2 * (15 * 512 + 1), 3_000)]


@pytest.mark.parametrize(("durs", "is_known"), [((0.5, 20, 20), True), ((0.5, 0.5, 20), False)])
def test_launches_with_one_grid_are_of_one_size_or_none(durs, is_known, tmp_path):
    found = groups_of(tmp_path, *((dur, {"grid": [POOL_BLOCKS, 1, 1]}) for dur in durs))
    least = 2 * ((POOL_BLOCKS - 1) * 512 + 1) if is_known else None
    assert found == [(3, least, round(sum(durs) * 1000))]


HOSTILE = [[2**62, 2**62, 2**62], [0, 1, 1], [-5, 1, 1], [2**31 - 1, 65535, 65535], [1], "x", None]


@pytest.mark.parametrize("grid", HOSTILE, ids=str)
def test_a_hostile_grid_proves_no_size(grid, tmp_path):
    event = kernel(UNROLLED, 1, 10, 20, grid=grid)
    assert casts(written(tmp_path, [call(1, 5), event]))["n_elements_max"].to_list() == [None]


def test_launches_of_one_op_are_one_cast(tmp_path):
    """More than 2^31 - 1 elements: two launches, each with half of the blocks; then a copy of its own."""
    n = 2**31 + 512
    args = {"Input type": ["c10::BFloat16", "c10::Float8_e4m3fn", ""], "Input Dims": [[n], [n], []]}
    half = n // 512 // 2 + 1
    events = [
        op("aten::to", 0, 50), op("aten::copy_", 1, 40, **args),
        call(1, 5), kernel(UNROLLED, 1, 100, 2000, grid=[half, 1, 1]),
        call(2, 10), kernel(UNROLLED, 2, 2100, 2000, grid=[n // 512 - half, 1, 1]),
        op("aten::copy_", 60, 9, **{**args, "Input Dims": [[512], [512], []]}), call(3, 62),
        kernel(UNROLLED, 3, 4200, 5),
    ]  # fmt: skip
    first, second = casts(written(tmp_path, events)).rows(named=True)
    assert (first["n_launches"], first["dur_ns"], first["outer_op"]) == (2, 4_000_000, "aten::to")
    assert first["n_elements_min"] <= n <= first["n_elements_max"]
    assert (first["dtype_evidence"], first["size_evidence"]) == ("op_args", "grid")
    assert (second["n_launches"], second["n_elements_min"], second["size_evidence"]) == (1, 512, "op_args")
    assert (second["read_bytes_min"], second["written_bytes_min"], second["shape"]) == (512, 1024, "[512]")


def test_a_device_copy_moves_bytes_of_any_dtype(tmp_path):
    copy = kernel("Memcpy DtoD (Device -> Device)", 1, 10, 2, bytes=4096) | {"cat": "gpu_memcpy"}
    host = kernel("Memcpy HtoD (Pageable -> Device)", 2, 20, 2, bytes=4096) | {"cat": "gpu_memcpy"}
    (row,) = casts(written(tmp_path, [call(1, 5), copy, call(2, 7), host])).rows(named=True)
    assert (row["kind"], row["read_bytes_min"], row["written_bytes_max"]) == ("copy", 4096, 4096)
    assert (row["size_evidence"], row["src_dtype"], row["n_elements_min"]) == ("bytes", None, None)
    assert row["gb_per_s"] == pytest.approx(4.096)


CUSTOM = ["per_token_cast_to_fp8_kernel", "_dequantize_k_cache_fast_kernel", "_quantize_k_cache_fast_kernel",
          "set_mla_kv_buffer_fp8_quant_kernel", "cast_back_impl", "gather_cast_kernel"]  # fmt: skip


@pytest.mark.parametrize("name", CUSTOM)
def test_custom_kernels_are_listed_apart(name, tmp_path):
    report = cast_report(written(tmp_path, [call(1, 5), kernel(name, 1, 10, 20)]))
    assert report.groups.select("kind", "n_casts", "is_whole_pool").rows() == [("custom", 1, None)]
    line = casts_line(report)
    assert line is not None
    assert line.startswith("no casts")


# --- words, data, the command


def page_lines(report: CastReport, width: int = 160, **view: Any) -> list[str]:
    return render_text(casts_page(report, View(**view)), width=width).splitlines()


def test_the_page(tmp_path):
    lines = page_lines(cast_report(written(tmp_path, decoding())), by="group", full_names=True)
    assert "Casts and copies" in lines
    assert any(line.startswith("Whole pool (confidence 0.") for line in lines)
    (pool,) = [line for line in lines if line.startswith("whole pool")]
    assert pool.split() == [
        "whole", "pool", "4", "0.080", "8.0", "%", "20.0", "~2.6", "M", "7.68", "MB", "384", "GB/s", "8.0", "%",
        "fp8_e4m3?", "→", "bf16", *pool.split()[18:],
    ]  # fmt: skip
    assert pool.endswith("unrolled_elementwise_kernel<direct_copy, bf16>")
    assert max(map(len, page_lines(cast_report(written(tmp_path, decoding())), width=80))) <= 80


def test_the_headline_without_a_pool():
    line = casts_line(cast_report(loaded(FIXTURES / "glm5" / "tiny-gather-graph-TP-0.json.gz")))
    assert line is not None
    assert line.endswith("none converts a whole KV pool")


def test_the_headline_of_a_run_names_the_rank():
    line = casts_line(cast_report(load_run(sorted(FIXTURES.glob("glm5/tiny-pool-graph-TP-*")), cache=False)))
    assert line is not None
    assert line.startswith("4 casts a step of the whole KV pool to bf16 take ")
    assert "the most of 2)" in line


def run(*arguments: object) -> Any:
    return CliRunner().invoke(command, [*map(str, arguments), "--no-cache"])


def test_json_has_all_of_it():
    result = run(POOL_EAGER, "--format", "json", "--top", 3)
    assert result.exit_code == 0, result.output
    document, report = orjson.loads(result.stdout), cast_report(loaded(POOL_EAGER))
    assert document["headline"] == casts_line(report)
    assert document["device"]["spec"] == "H200"
    assert document["device"]["peak_bytes_per_s"] == 4.8e12
    assert len(document["casts"]) == 3
    assert document["n_casts"] == report.casts.height
    assert len(document["groups"]) == report.groups.height
    assert document["custom"] == []
    assert (document["scope"], document["n_steps_counted"]) == ("steps", 2)


@pytest.mark.parametrize(("by", "columns"), [("group", CAST_GROUPS), ("cast", CASTS), ("custom", CAST_GROUPS)])
def test_csv_has_one_table(by, columns):
    lines = run(POOL_EAGER, "--format", "csv", "--by", by).stdout.splitlines()
    assert lines[0].split(",") == columns.names
    assert (len(lines) > 1) == (by != "custom")


def test_markdown_of_some_steps(tmp_path):
    text = run(POOL_EAGER, "--format", "markdown", "--steps", "1", "--by", "cast").stdout
    assert text.startswith("**4 casts")
    assert run(POOL_EAGER, "-o", tmp_path / "casts.parquet", "--by", "cast").exit_code == 0
    assert pl.read_parquet(tmp_path / "casts.parquet").columns == CASTS.names


def test_wrong_calls():
    assert run(POOL_EAGER, "--all", "--top", 3).exit_code == 2
    assert run().exit_code == 2
    with pytest.raises(MissingDataError, match="no step"):
        cast_report(loaded(POOL_EAGER), Selection(first_step=7))


# --- real figures

POOLS = {
    # casts a step, ms a step, recorded shape, least and most elements, source
    "sglang/before-graph-TP-0.trace.json.zst": (78, 66.2, None, 285_120_513, 285_121_024, None),
    "sglang/before-eager-TP-0.trace.json.zst": (78, 67.8, "[495001,1,576]", 285_120_576, 285_120_576, "fp8_e4m3"),
    "glm5/glm5-pool-graph-TP-0.json.gz": (78, 67.6, None, 285_119_489, 285_120_000, None),
    "glm5/glm5-pool-eager-TP-0.json.gz": (78, 67.6, "[495000,1,576]", 285_120_000, 285_120_000, "fp8_e4m3"),
    "glm5/glm5-pool-eager-TP-1.json.gz": (78, 67.6, "[495000,1,576]", 285_120_000, 285_120_000, "fp8_e4m3"),
    "sglang-tp2/before-graph-TP-1.trace.json.zst": (78, 67.7, None, 285_120_513, 285_121_024, None),
}


@pytest.mark.shared
@pytest.mark.parametrize("name", POOLS)
def test_the_recorded_pools(shared, name):
    trace = traceql.load(shared / name)
    report = cast_report(trace)
    check_sums(report)
    n, ms, shape, least, most, src = POOLS[name]
    (pool,) = report.groups.filter("is_whole_pool").rows(named=True)
    assert (pool["n_per_step"], pool["shape"], pool["src_dtype"], pool["dst_dtype"]) == (n, shape, src, "bf16")
    assert pool["ns_per_step"] / 1e6 == pytest.approx(ms, abs=0.06)
    assert (pool["n_elements_min"], pool["n_elements_max"]) == (least, most)
    assert pool["likely_src_dtype"] == (None if src else "fp8_e4m3")
    assert pool["in_every_layer"] is True
    assert pool["n_layers"] == 78
    assert 855e6 <= pool["read_bytes_min"] + pool["written_bytes_min"] <= 856e6
    assert 0.84e6 <= pool["median_dur_ns"] <= 0.88e6
    assert pool["gb_per_s"] == pytest.approx(1000, rel=0.02)
    assert pool["peak_frac"] == pytest.approx(pool["gb_per_s"] / 4800)


@pytest.mark.shared
def test_pool_time_of_a_recording_against_the_slow_count():
    """Of the committed one, which takes the slow count a quarter of a minute to read."""
    check_pool_time(FIXTURES / "sglang" / "before-graph-TP-0.trace.json.zst", 78)


GATHERED = ["sglang/after-eager-TP-0.trace.json.zst", "sglang/after-graph-TP-0.trace.json.zst",
            "glm5/glm5-gather-eager-TP-0.json.gz", "glm5/glm5-gather-graph-TP-1.json.gz"]  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("name", GATHERED)
def test_the_fix_converts_no_pool(shared, name):
    report = cast_report(traceql.load(shared / name))
    check_sums(report)
    assert report.groups.filter("is_whole_pool").is_empty()


@pytest.mark.shared
def test_what_the_fix_leaves(shared):
    """After the fix the rows gathered are cast: 32.8 thousand to 33.1 thousand of 576, 78 a step, in every layer."""
    groups = cast_groups(traceql.load(shared / "sglang/after-eager-TP-0.trace.json.zst"))
    left = groups.row(0, named=True)
    assert (left["src_dtype"], left["dst_dtype"], left["n_per_step"], left["in_every_layer"]) == (
        "fp8_e4m3", "bf16", 78, True)  # fmt: skip
    assert 32_800 * 576 <= left["n_elements_min"] < left["n_elements_max"] <= 33_100 * 576
    assert left["ns_per_step"] / 1e6 == pytest.approx(4.46, abs=0.01)
    assert "gathered" in left["whole_pool_reason"]


@pytest.mark.shared
def test_the_headline_of_the_founding_case(shared):
    line = casts_line(cast_report(traceql.load(shared / "sglang/before-graph-TP-0.trace.json.zst")))
    assert line == (
        "78 casts a step of the whole KV pool to bf16 take 66.2 of 84.0 ms (79 %), 855 MB each at 1.0 TB/s, "
        "21 % of this GPU's peak (if it holds fp8_e4m3, as its writes do)"
    )


@pytest.mark.shared
def test_true_counts_lie_in_the_range_of_the_grid(shared):
    """Each eager cast or copy, the op of which records its elements, with what the grid alone would say."""
    n_checked = 0
    for path in [*shared.glob("glm5/*"), *shared.glob("sglang*/*"), *shared.glob("public/*/*.gz")]:
        trace = traceql.load(path)
        exact = pl.col("n_elements_min") == pl.col("n_elements_max")
        columns = ("name", "grid_x", "grid_y", "grid_z", "block_x", "n_elements_min")
        kernels = trace.kernels.filter((pl.col("evidence") == "op_args") & (pl.col("kind") == "kernel") & exact)
        for name, x, y, z, block, n in kernels.select(columns).unique().collect().rows():
            work = block_work(name)
            if work and work.n_threads == block:
                blocks = x * y * z
                assert (blocks - 1) * work.least < n <= blocks * work.most, (path.name, name, n)
                n_checked += 1
    assert n_checked > 200


SOURCES = {
    # (source, destination): conversions and ms; then copies without change and ms, as SOURCES.md counts them; without
    # those that convert on the host (of xdit 4, 1 and 2, 0.006 ms) and move by memcpy
    "tracelens-qwen-h100-mi300/h100_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (
        {("fp32", "bf16"): (51, 0.901), ("bf16", "fp32"): (49, 1.432), ("int64", "fp32"): (1, 0.003)}, (96, 2.766)),
    "tracelens-qwen-h100-mi300/mi300_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (
        {("fp32", "bf16"): (51, 0.685), ("bf16", "fp32"): (49, 1.055), ("int64", "fp32"): (1, 0.003)}, (96, 1.448)),
    "tracelens-xdit-flux/profile_trace_rank_0.json.gz": (
        {("fp32", "bf16"): (81, 0.868), ("bf16", "fp32"): (77, 0.853), ("int64", "fp32"): (1, 0.006),
         ("int64", "int32"): (1, 0.005), ("bool", "int64"): (1, 0.007), ("fp32", "int64"): (1, 0.005)}, None),
    "tracelens-sglang-prefill/sglang_Qwen3-8B_prefilldecode.json.gz": (
        {("int64", "int32"): (2, 0.007), ("int32", "int64"): (1, 0.006), ("bf16", "fp32"): (1, 0.010)}, None),
    "tracelens-b200-vllm/eager_trace.json.gz": ({("int32", "int64"): (1, 0.003)}, None),
    "samfast-a100/amg_example_trace.json.gz": ({("bool", "int16"): (32, 10.767), ("int16", "int32"): (32, 0.097),
                                                ("bool", "int64"): (1, 5.600)}, None),
}  # fmt: skip


def milliseconds(rows: pl.DataFrame) -> float:
    return sum(rows["dur_ns"].to_list()) / 1e6


@pytest.mark.shared
@pytest.mark.parametrize("name", SOURCES)
def test_the_conversions_of_public_traces(shared, name):
    conversions, same = SOURCES[name]
    table = casts(traceql.load(shared / "public" / name)).filter(op="aten::copy_")
    for (src, dst), (n, ms) in conversions.items():
        found = table.filter(kind="cast", src_dtype=src, dst_dtype=dst)
        assert (found.height, round(milliseconds(found), 3)) == (n, ms), (src, dst)
    if same is not None:
        copies = table.filter(kind="copy")
        assert (copies.height, round(milliseconds(copies), 3)) == same


@pytest.mark.shared
def test_sums_of_every_public_trace(shared):
    for path in sorted(shared.glob("public/*/*.gz")):
        check_sums(cast_report(traceql.load(path)))


# --- what a capture trace tells


@pytest.mark.shared
def test_a_capture_trace_tells_what_graphs_copy(shared):
    folder = shared / "public" / "tracelens-sglang-decode"
    (capture_file,) = (folder / "capture_traces").glob("*.gz")
    trace, capture = traceql.load(folder / "sglang_Qwen3-8B_decode.json.gz"), traceql.load(capture_file)
    bare, told = casts(trace), casts(with_capture(trace, capture))
    assert not (bare["dtype_evidence"] == "capture_trace").any()
    captured = told.filter(pl.col("dtype_evidence") == "capture_trace")
    counts = captured.group_by("kind", "src_dtype", "dst_dtype", "n_elements_max").len().sort("n_elements_max")
    assert counts.rows() == [
        ("copy", "bf16", "bf16", 32 * 8 * 128, 36),  # keys of batch 32, 8 heads of 128
        ("copy", "bf16", "bf16", 32 * 32 * 128, 36),  # queries: 32 heads
        ("cast", "bf16", "fp32", 32 * 151_936, 1),  # logits over the vocabulary
    ]
    both = bare.join(captured, on="kernel_id", validate="1:1")
    assert both.height == captured.height
    with pytest.raises(MissingDataError, match="captur"):
        with_capture(trace, trace)
