"""Small inputs, one difficulty each; `fixtures/cases/README.md` says what each is and what is right."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceql
from traceql.analyses import kernel_steps, step_categories, steps, summarize
from traceql.errors import InputError

CASES = Path(__file__).parent / "fixtures" / "cases"
BASE_NS = 1_761_955_200_000_000_000

STANDARD_PAIR = {"aten::mm": 30_000, "aten::add": 12_500}


def load(name: str, **options: Any) -> Any:
    return traceql.load(CASES / name, cache=False, **options)


def rows(frame: pl.LazyFrame, **where: Any) -> list[dict[str, Any]]:
    return frame.filter(**where).collect().to_dicts()


def durations(trace: Any, kind: str = "kernel") -> list[int]:
    return [row["dur_ns"] for row in rows(trace.kernels.drop_nulls("start_ns"), kind=kind)]


def quirks(trace: Any) -> dict[str, int]:
    return {quirk.id: quirk.count for quirk in trace.quirks}


def effects(trace: Any) -> set[str]:
    return {quirk.effect for quirk in trace.quirks}


def absolute_ns(trace: Any, time_ns: int) -> int:
    return trace.meta.base_time_ns + trace.meta.first_event_ns + time_ns


def busy_ns(trace: Any) -> int:
    """Busy time of a trace without complete steps: one window per device."""
    summary = summarize(trace)
    assert summary.scope == "trace"
    return summary.busy_ns


def by_op(trace: Any) -> dict[str | None, int]:
    """Kernel time by the name of the op that launched it."""
    op_names = {row["op_id"]: row["name"] for row in rows(trace.ops)}
    times: dict[str | None, int] = {}
    for row in rows(trace.kernels, kind="kernel"):
        op = op_names.get(row["op_id"])
        times[op] = times.get(op, 0) + row["dur_ns"]
    return times


def by_group(trace: Any, column: str = "dur_ns") -> dict[str, int]:
    frame = trace.kernels.group_by("group").agg(pl.col(column).sum()).collect()
    return dict(frame.iter_rows())


class TestDamagedText:
    """01 to 08: what JSON parsers refuse."""

    def test_01_single_backslashes_are_read_literally(self) -> None:
        trace = load("01-windows-backslash.json")
        assert [row["name"] for row in rows(trace.python_calls)] == [r"C:\project\decode.py(12): run\sampler"]
        assert durations(trace) == [61_250, 8_750]
        assert trace.meta.n_events == 5
        assert set(quirks(trace)) == {"illegal-escape"}

    def test_02_quotes_in_a_name_cost_at_most_that_event(self) -> None:
        trace = load("02-quotes-in-name.json")
        assert durations(trace) == [31_000, 9_000]
        assert len(rows(trace.launches)) == 2
        assert quirks(trace) == {"broken-event": 1}

    def test_03_bytes_that_are_not_utf8_are_replaced(self) -> None:
        trace = load("03-non-utf8-name.json")
        assert durations(trace) == [14_000, 7_000]
        assert trace.meta.n_events == 5
        (call,) = rows(trace.python_calls)
        assert "\ufffd" in call["name"]
        assert call["name"].endswith("\ufffd") is True
        assert "(5): caf" in call["name"]
        assert quirks(trace) == {"non-utf8": 1}

    def test_04_control_characters_in_strings_are_read(self) -> None:
        trace = load("04-control-characters.json")
        assert durations(trace) == [5_125, 3_375]
        assert [row["name"] for row in rows(trace.python_calls)] == ["plan\x02\tstage\ntwo\x1f(3): go"]
        assert set(quirks(trace)) == {"control-character"}

    def test_05_infinite_bandwidth_is_unknown(self) -> None:
        trace = load("05-inf-bandwidth.json")
        assert durations(trace) == [17_000]
        (copy,) = rows(trace.kernels, kind="memcpy")
        assert (copy["bytes"], copy["dur_ns"], copy["stream"]) == (640, 0, 9)
        assert {row["stream"] for row in rows(trace.kernels)} == {9}
        assert quirks(trace)["non-finite-number"] == 1

    def test_06_a_cut_file_gives_its_whole_events(self) -> None:
        trace = load("06-truncated.json")
        assert durations(trace) == [42_000, 13_500]
        assert trace.meta.n_events == 3
        assert quirks(trace)["truncated"] == 1

    def test_06_a_cut_gzip_stream_gives_what_inflates(self) -> None:
        trace = load("06-truncated.json.gz")
        found = durations(trace)
        assert 0 < len(found) <= 200
        assert set(found) == {10_000}
        assert quirks(trace)["truncated"] == 1

    def test_07_a_trailing_comma_is_ignored_and_counted(self) -> None:
        trace = load("07-trailing-comma.json")
        assert durations(trace) == [19_000, 2_500]
        assert quirks(trace)["stray-comma"] == 1
        assert "lost" not in effects(trace)

    def test_08_a_bare_array_needs_no_closing_bracket(self) -> None:
        trace = load("08-unterminated-array.json")
        assert durations(trace) == [8_000, 4_500]
        assert "lost" not in effects(trace)


class TestNumbersAndTime:
    """09 to 17: what floats and clocks do."""

    def test_09_integers_above_2_53_stay_distinct(self) -> None:
        trace = load("09-integers-over-2-53.json")
        assert by_op(trace) == {"aten::bmm": 21_000, "aten::sub": 6_000}
        assert {row["correlation"] for row in rows(trace.kernels)} == {2**53 + 2, 2**53 + 3}
        (comms,) = rows(trace.ops, name="record_param_comms")
        assert "17999999999999999999" in comms["args"]

    def test_10_a_duration_of_centuries_is_left_out(self) -> None:
        trace = load("10-absurd-duration.json")
        assert durations(trace) == [15_000, 45_000]
        assert quirks(trace)["impossible-duration"] == 1
        assert trace.meta.span_ns == 145_000

    def test_11_kernels_never_timed_do_not_stretch_the_trace(self) -> None:
        trace = load("11-zero-timestamps.json")
        assert trace.meta.event_counts["X kernel"] == 5
        assert len(rows(trace.kernels)) == 5
        assert quirks(trace)["untimed"] == 3
        assert sum(durations(trace)) == 45_000
        assert trace.meta.first_event_ns == 1_630_000_000_000_000_000
        assert trace.meta.span_ns == 93_000
        summary = summarize(trace)
        assert (summary.busy_ns, summary.wall_ns) == (45_000, 63_000)

    def test_12_a_zero_length_kernel_counts_and_is_no_overlap(self) -> None:
        trace = load("12-zero-length-kernel.json")
        assert durations(trace) == [20_000, 0, 9_000]
        assert busy_ns(trace) == 29_000

    def test_13_two_ranks_are_compared_in_absolute_time(self) -> None:
        starts: list[int] = []
        for rank in (0, 1):
            trace = load(f"13-two-base-times/rank{rank}.json")
            (kernel,) = rows(trace.kernels)
            assert (kernel["rank"], kernel["dur_ns"]) == (rank, 250_000)
            starts.append(absolute_ns(trace, kernel["start_ns"]))
        assert starts[1] - starts[0] == 625

    def test_14_display_unit_changes_nothing(self) -> None:
        assert durations(load("14-display-unit-ns.json")) == [5_500, 4_250]

    def test_15_kernels_of_one_stream_may_overlap(self) -> None:
        trace = load("15-dependent-launch-overlap.json")
        assert durations(trace) == [50_000, 35_000]
        assert busy_ns(trace) == 70_000

    def test_16_ends_equal_in_decimal_nest(self) -> None:
        trace = load("16-equal-ends-in-float.json")
        outer, inner = rows(trace.ops)
        assert (outer["name"], inner["name"]) == ("aten::matmul", "aten::mm")
        assert inner["parent_id"] == outer["op_id"]
        assert by_op(trace) == {"aten::mm": 6_750}

    def test_17_the_op_that_holds_the_launch_whole_owns_it(self) -> None:
        assert by_op(load("17-bleeding-runtime-call.json")) == {"aten::softmax": 26_000}


class TestHostAndSteps:
    """18 to 23, 38 and 67 to 72: frames, graphs and steps."""

    def test_18_a_frame_ends_with_its_caller(self) -> None:
        trace = load("18-python-frame-overrun.json")
        forward, wait, criterion = rows(trace.python_calls)
        assert forward["dur_ns"] == 200_000
        assert (wait["dur_ns"], wait["parent_id"]) == (180_000, forward["python_call_id"])
        assert criterion["parent_id"] is None
        assert by_op(trace) == {"aten::bmm": 12_000}
        assert quirks(trace) == {"python-frame-overrun": 1}

    def test_19_kernels_of_a_graph_belong_to_the_step_that_launched_it(self) -> None:
        trace = load("19-graph-launch.json")
        assert by_op(trace) == {None: 84_000, "aten::argmax": 16_000}
        assert by_group(trace)["gemm"] == 60_000
        assert by_group(trace)["attention"] == 18_000
        (step,) = steps(trace).to_dicts()
        assert (step["n_kernels"], step["kernel_ns"]) == (5, 100_000)
        assert "execute_context_0(0)_generation_8(8)" in step["label"]
        assert sorted(rows(trace.kernels.filter(graph_id=6).select("graph_node_id")), key=str) == [
            {"graph_node_id": node} for node in (1, 2, 3, 4)
        ]

    def test_20_no_rank_is_no_error(self) -> None:
        trace = load("20-no-distributed-info.json")
        assert trace.meta.rank is None
        assert durations(trace) == [37_000]
        assert trace.quirks == ()

    def test_21_without_steps_the_whole_trace_is_one_window(self) -> None:
        trace = load("21-no-profiler-step.json")
        assert durations(trace) == [27_000, 14_000]
        summary = summarize(trace)
        assert steps(trace).is_empty()
        assert (summary.scope, summary.n_windows) == ("trace", 1)
        assert (summary.busy_ns, summary.wall_ns) == (41_000, 54_000)

    def test_22_gpu_annotations_are_no_work_and_no_steps(self) -> None:
        trace = load("22-gpu-annotation-not-work.json")
        (step,) = steps(trace).to_dicts()
        assert (step["n_kernels"], step["kernel_ns"]) == (2, 41_000)
        assert (step["busy_ns"], step["wall_ns"]) == (41_000, 60_000)

    def test_23_the_launch_decides_the_step_on_any_thread(self) -> None:
        trace = load("23-gpu-step-span-too-short.json")
        (step,) = steps(trace).to_dicts()
        assert (step["n_kernels"], step["kernel_ns"], step["n_kernels_between"]) == (2, 115_000, 0)
        assert by_op(trace) == {"aten::linear": 44_000, "LinearBackward0": 71_000}

    def test_38_steps_are_in_order_of_time(self) -> None:
        table = steps(load("38-step-order.json"))
        assert ["#" + label.split("#")[1] for label in table["label"]] == ["#99", "#100", "#101"]
        assert table["kernel_ns"].to_list() == [12_000, 24_000, 36_000]
        assert table["annotation_ns"].to_list() == [850_000] * 3
        assert table["is_complete"].to_list() == [True, True, False]

    def test_67_windows_begin_with_work_launched_inside_the_annotation(self) -> None:
        trace = load("67-step-windows.json")
        table = steps(trace)
        assert table["wall_ns"].to_list() == [1_000_000, 1_000_000, 250_000]
        assert table["busy_ns"].to_list() == [280_000, 270_000, 250_000]
        assert table["idle_ns"].to_list() == [720_000, 730_000, 0]
        assert table["kernel_ns"].to_list() == [320_000] * 3
        assert table["n_kernels"].to_list() == [3] * 3
        assert table["n_kernels_between"].to_list() == [1] * 3
        assert table["is_complete"].to_list() == [True, True, False]
        assert table["separable"].to_list() == [True] * 3
        assert table["batch_size"].to_list() == [4, 4, 2]
        assert set(table["stage"]) == {"decode"}
        assert table["start_ns"][0] == 1_300_000 - 100_000
        shares = step_categories(trace).filter(step=0)
        by_name = dict(shares.group_by("group").agg(pl.col("exclusive_ns").sum()).iter_rows())
        assert by_name["gemm"] == 175_000
        assert by_name["attention"] == 75_000
        assert sum(by_name.values()) == 280_000
        assert summarize(trace).outside_wall_ns == 1_190_000

    def test_67_work_before_or_without_a_launch_has_no_step(self) -> None:
        trace = load("67-step-windows.json")
        names = trace.kernels.select("kernel_id", "name").collect()
        joined = names.join(kernel_steps(trace), on="kernel_id", how="left")
        steps_of = {
            name: joined.filter(name=name).sort("step")["step"].to_list()
            for name in ("k_warm", "k_orphan", "argmax", "gemm")
        }
        assert steps_of == {"k_warm": [None], "k_orphan": [None], "argmax": [0, 1, 2], "gemm": [0, 1, 2]}
        assert set(joined.filter(name="argmax")["section"]) == {"between"}
        assert set(joined.filter(name="gemm")["section"]) == {None}

    def test_68_nested_annotations_make_one_step(self) -> None:
        table = steps(load("68-nested-step-annotations.json"))
        assert table["n_kernels"].to_list() == [2, 2]
        assert table["n_kernels_between"].to_list() == [0, 1]
        assert table["wall_ns"].to_list() == [1_000_000, 290_000]
        assert table["busy_ns"].to_list() == [130_000, 170_000]
        assert table["annotation_ns"].to_list() == [100_000, 100_000]

    def test_69_odd_nanoseconds_go_to_the_first_by_start_stream_correlation(self) -> None:
        trace = load("69-odd-nanoseconds.json")
        table = steps(trace)
        assert table["wall_ns"].to_list() == [11, 6]
        assert table["busy_ns"].to_list() == [11, 6]
        shares = step_categories(trace).group_by("step", "group").agg(pl.col("exclusive_ns").sum())
        assert {(step, group): ns for step, group, ns in shares.iter_rows() if ns} == {
            (0, "gemm"): 7,
            (0, "nccl"): 4,
            (1, "nccl"): 6,
        }

    def test_70_a_step_number_seen_twice_is_two_steps_and_noted(self) -> None:
        trace = load("70-same-step-twice.json")
        assert steps(trace)["kernel_ns"].to_list() == [10_000, 20_000]

    def test_71_without_gpu_activity_gpu_time_is_unknown(self) -> None:
        trace = load("71-no-kernels.json")
        assert quirks(trace)["no-kernels"] > 0
        assert rows(trace.kernels) == []
        assert summarize(trace).n_windows == 0

    def test_72_steps_that_run_at_once_have_no_windows(self) -> None:
        trace = load("72-steps-out-of-order.json")
        table = steps(trace)
        assert table["separable"].to_list() == [False] * 3
        assert table["wall_ns"].to_list() == [None] * 3
        assert table["kernel_ns"].to_list() == [10_000, 20_000, 2_500_000]


class TestGpuRows:
    """24 to 30, 39, 41, 42, 73: what is work, and whose."""

    def test_24_collectives_under_three_spellings(self) -> None:
        trace = load("24-nccl-kernel-names.json")
        assert by_group(trace)["nccl"] == 60_000
        assert sum(durations(trace)) == 110_000
        assert busy_ns(trace) == 70_000

    def test_25_exclusive_time_shares_an_overlap(self) -> None:
        trace = load("25-compute-comm-overlap.json")
        assert by_group(trace) == {"gemm": 120_000, "nccl": 100_000}
        summary = summarize(trace)
        assert (summary.busy_ns, summary.idle_ns) == (180_000, 0)
        exclusive = dict(summary.groups.select("group", "exclusive_ns").iter_rows())
        assert exclusive["gemm"] == 100_000
        assert exclusive["nccl"] == 80_000

    def test_26_sync_events_are_waits(self) -> None:
        trace = load("26-sync-events.json")
        assert durations(trace) == [25_000, 12_000]
        assert len(rows(trace.kernels)) == 2
        assert {row["stream"] for row in rows(trace.kernels)} == {3}
        assert busy_ns(trace) == 37_000
        gpu_waits = {row["name"]: row["stream"] for row in rows(trace.syncs, side="gpu")}
        assert gpu_waits == {"Context Sync": None, "Stream Sync": 3, "Stream Wait Event": 3}
        assert [row["name"] for row in rows(trace.syncs, side="cpu")] == ["cudaDeviceSynchronize"]

    def test_27_driver_calls_launch_too(self) -> None:
        trace = load("27-driver-launch.json")
        (kernel,), (launch,) = rows(trace.kernels), rows(trace.launches)
        assert (launch["name"], launch["api"]) == ("cuLaunchKernelEx", "driver")
        assert kernel["launch_id"] == launch["launch_id"]
        assert kernel["start_ns"] - launch["start_ns"] == 48_000
        assert by_op(trace) == {"triton_red_fused_mean_1": 9_250}

    def test_28_work_launched_before_the_recording_stays_unattributed(self) -> None:
        trace = load("28-orphan-gpu-ops.json")
        assert by_op(trace) == {None: 33_000, "aten::mm": 11_000}
        assert [row["launch_id"] is None for row in rows(trace.kernels)] == [True, True, False]
        assert quirks(trace)["no-launch"] == 2

    def test_29_correlation_zero_links_nothing(self) -> None:
        trace = load("29-correlation-zero.json")
        assert by_op(trace) == {None: 67_000, "aten::bmm": 33_000}
        assert by_group(trace) == {"nccl": 67_000, "gemm": 33_000}
        assert quirks(trace)["zero-correlation"] == 2
        unlinked = trace.kernels.filter(pl.col("launch_id").is_null()).collect()
        assert unlinked.height == 2

    def test_30_correlation_and_external_id_are_two_number_spaces(self) -> None:
        assert by_op(load("30-id-namespaces.json")) == {"aten::bmm": 23_000}

    def test_39_an_external_id_that_repeats_the_correlation_does_not_mislead(self) -> None:
        trace = load("39-external-id-is-correlation.json")
        assert by_op(trace) == {"aten::bmm": 34_000, "aten::sub": 7_000}

    def test_41_streams_like_addresses_and_negative_threads(self) -> None:
        trace = load("41-large-stream-ids.json")
        assert {(row["device"], row["stream"]) for row in rows(trace.kernels)} == {
            (3, 140_234_567_890_144),
            (3, 0),
        }
        assert sum(durations(trace)) == 16_000
        assert busy_ns(trace) == 13_000
        (op,) = rows(trace.ops)
        (thread,) = rows(trace.threads, thread_id=op["thread_id"])
        assert thread["tid"] == "-1204567808"

    def test_73_numbers_that_no_rank_device_or_module_has(self) -> None:
        """A GPU event without a device has its process for one: not where that is a process of the host."""
        trace = load("73-numbers-out-of-range.json")
        assert (trace.meta.rank, trace.meta.world_size) == (None, None)
        assert [(row["rank"], row["device"]) for row in rows(trace.kernels)] == [(0, 0), (0, 2)]
        assert durations(trace) == [7_000, 9_000]
        (call,) = rows(trace.python_calls)
        assert (call["module_class"], call["module_instance"]) == ("Layer", None)

    def test_42_two_devices_do_not_overlap_each_other(self) -> None:
        trace = load("42-two-devices.json")
        assert sum(durations(trace)) == 90_000
        summary = summarize(trace)
        assert (summary.n_windows, summary.busy_ns, summary.idle_ns) == (2, 90_000, 0)


class TestContainers:
    """31 to 37, 40, 43: files and rows of other kinds."""

    @pytest.mark.parametrize("name", ["31-empty-events.json", "31-metadata-only.json"])
    def test_31_nothing_recorded_is_no_error(self, name: str) -> None:
        trace = load(name)
        assert rows(trace.kernels) == []
        assert steps(trace).is_empty()
        assert (trace.meta.first_event_ns, trace.meta.span_ns) == (None, None)
        summary = summarize(trace)
        assert (summary.n_windows, summary.wall_ns, summary.busy_ns) == (0, 0, 0)
        assert summary.n_kernels_total == 0

    @pytest.mark.parametrize(
        "name",
        [
            "32-gzip-named-json.json",
            "32-plain-named-gz.json.gz",
            "32-zstd-named-json.json",
            "32-xz-named-gz.gz",
        ],
    )
    def test_32_content_decides_not_the_name(self, name: str) -> None:
        trace = load(name)
        assert durations(trace) == [3_500, 2_000]
        assert trace.meta.name == name
        assert trace.meta.size_bytes == (CASES / "32-plain-named-gz.json.gz").stat().st_size

    def test_33_merged_ranks_share_no_ids(self) -> None:
        trace = load("33-merged-ranks.json")
        kernels = trace.kernels.join(trace.ops.select("op_id", op="name"), on="op_id", how="left")
        assert [(row["rank"], row["op"], row["dur_ns"]) for row in rows(kernels.sort("rank"))] == [
            (0, "aten::mm", 26_000),
            (1, "aten::linear", 41_000),
        ]
        assert quirks(trace)["merged-ranks"] > 0

    def test_34_odd_processes_are_no_work(self) -> None:
        trace = load("34-odd-pids.json")
        assert durations(trace) == [7_000]
        overhead = rows(trace.spans, side="overhead")
        assert [row["dur_ns"] for row in overhead] == [901_250, 20_500]
        assert busy_ns(trace) == 7_000

    def test_35_times_in_quotes_keep_their_digits(self) -> None:
        first, second = rows(load("35-numbers-as-strings.json").kernels)
        assert (first["dur_ns"], second["dur_ns"]) == (8_250, 3_750)
        assert second["start_ns"] - first["start_ns"] - first["dur_ns"] == 12_125

    def test_36_an_empty_event_is_skipped(self) -> None:
        trace = load("36-empty-event.json")
        assert durations(trace) == [13_000]
        assert "lost" not in effects(trace)

    def test_37_one_cast_recorded_three_times_is_one_cast(self) -> None:
        trace = load("37-nested-casts.json")
        casts = [(row["name"].split("<")[0], row["dur_ns"]) for row in rows(trace.kernels, category="cast")]
        assert casts == [("void at::native::unrolled_elementwise_kernel", ns) for ns in (11_000, 9_000)]
        (copy,) = rows(trace.kernels, kind="memcpy")
        assert (copy["dur_ns"], copy["group"]) == (5_000, "copy")
        assert copy["category"] != "cast"
        assert by_op(trace) == {"aten::copy_": 20_000}

    def test_40_metadata_after_the_events_is_read(self) -> None:
        trace = load("40-keys-after-events.json")
        assert (trace.meta.rank, trace.meta.world_size) == (2, 8)
        assert [device.name for device in trace.meta.devices] == ["Sample GPU"]
        assert durations(trace) == [6_000, 5_000]
        first = rows(trace.kernels)[0]
        assert absolute_ns(trace, first["start_ns"]) == BASE_NS + 2_000_000
        assert first["rank"] == 2

    def test_43_other_phases_add_no_time(self) -> None:
        trace = load("43-other-phases.json")
        assert durations(trace) == [8_000]
        spans = {row["name"]: row["dur_ns"] for row in rows(trace.spans)}
        assert spans == {"whole": 12_250, "part": 5_500}
        assert quirks(trace)["unclosed-span"] == 1


def nothing_said(trace: Any) -> bool:
    return trace.quirks == ()


def is_truncated(trace: Any) -> bool:
    return quirks(trace) == {"truncated": 1}


def broken_events(count: int) -> Callable[[Any], bool]:
    return lambda trace: quirks(trace).get("broken-event") == count


def deep_op_is_kept_or_counted(trace: Any) -> bool:
    return bool(rows(trace.ops, name="aten::deep")) or quirks(trace) == {"broken-event": 1}


def something_said(trace: Any) -> bool:
    return bool(trace.quirks)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("45-minified.json", nothing_said),
        ("46-crlf.json", nothing_said),
        ("47-byte-order-mark.json", nothing_said),
        ("48-gzip-members.json.gz", nothing_said),
        ("49-cut-after-array.json", is_truncated),
        ("49-cut-after-colon.json", is_truncated),
        ("49-cut-after-comma.json", is_truncated),
        ("49-cut-before-comma.json", is_truncated),
        ("49-cut-in-number.json", is_truncated),
        ("49-cut-in-string.json", is_truncated),
        ("50-missing-comma.json", something_said),
        ("51-objects-in-arguments.json", nothing_said),
        ("52-large-event.json.gz", nothing_said),
        ("53-escapes-in-names.json", nothing_said),
        ("54-decoy-keys.json", nothing_said),
        ("55-many-empty-events.json.gz", nothing_said),
        ("60-objects-after-events.json", nothing_said),
        ("61-not-objects.json", something_said),
        ("62-lone-surrogate.json", something_said),
        ("64-deep-nesting.json", deep_op_is_kept_or_counted),
        ("66-garbage-between-events.json", broken_events(1)),
    ],
)
def test_the_standard_pair_survives(name: str, says: Callable[[Any], bool]) -> None:
    """Whatever surrounds them, the two kernels and their ops are found exactly, and what was odd is said."""
    trace = load(name)
    assert by_op(trace) == STANDARD_PAIR
    assert len(rows(trace.kernels)) == 2
    assert busy_ns(trace) == 42_500
    assert says(trace), quirks(trace)


class TestFurtherInputs:
    """Facts beside the standard pair."""

    def test_44_numbers_that_are_none(self) -> None:
        trace = load("44-nan-and-infinities.json")
        assert by_op(trace) == STANDARD_PAIR | {None: 3_000}
        assert quirks(trace)["non-finite-number"] > 0
        assert "lost" not in effects(trace)

    def test_62_halves_of_surrogate_pairs_are_replaced_wherever_they_stand(self) -> None:
        trace = load("62-lone-surrogate.json")
        assert [device.name for device in trace.meta.devices] == ["Sample ? GPU"]
        (call,) = rows(trace.python_calls)
        assert call["name"] == "half \ufffd of a pair"
        (thread,) = rows(trace.threads, thread_id=call["thread_id"])
        assert (thread["tid"], thread["process_name"]) == ("\ufffd main", "whole \U0001f600 and \ufffd half")
        assert set(quirks(trace)) == {"non-utf8"}

    def test_53_names_with_escapes_are_exact(self) -> None:
        assert [row["name"] for row in rows(load("53-escapes-in-names.json").python_calls)] == [
            'say \\"hi\\" \\',
            'x"},{"ph": "X", "cat": "kernel", "name": "y\\',
            "ends in two backslashes \\\\",
            "[{ ]} \u00e9\u4f8b \U0001f600",
        ]

    def test_55_empty_events_are_counted(self) -> None:
        assert load("55-many-empty-events.json.gz").meta.n_events == 100_006

    @pytest.mark.parametrize("name", ["56-six-decimals.json", "57-exponents.json"])
    def test_56_57_other_ways_to_write_a_number(self, name: str) -> None:
        trace = load(name)
        (gemm,) = rows(trace.kernels, name="gemm")
        assert absolute_ns(trace, gemm["start_ns"]) == BASE_NS + 200_125
        assert gemm["dur_ns"] == 30_250

    def test_58_times_below_zero(self) -> None:
        trace = load("58-negative-times.json")
        assert trace.meta.first_event_ns == -100_500
        starts = [absolute_ns(trace, row["start_ns"]) - BASE_NS for row in rows(trace.kernels)]
        assert starts == [-20_250, 15_500]
        assert by_op(trace) == {"aten::mm": 30_000, None: 4_000}

    def test_59_the_last_of_duplicate_keys_holds(self) -> None:
        kernels = rows(load("59-duplicate-keys.json").kernels)
        assert [(row["name"], row["dur_ns"]) for row in kernels] == [
            ("first name", 30_000),
            ("add_kernel", 12_500),
        ]

    def test_60_arrays_after_the_events_hold_no_events(self) -> None:
        trace = load("60-objects-after-events.json")
        assert (trace.meta.rank, trace.meta.world_size, trace.meta.n_events) == (5, 6, 6)

    def test_63_what_can_be_read_of_odd_arguments_is_kept(self) -> None:
        trace = load("63-odd-arguments.json")
        assert by_op(trace) == STANDARD_PAIR | {None: 5_000}
        assert quirks(trace)["odd-arguments"] > 0
        assert "lost" not in effects(trace)

    def test_65_events_without_a_length_are_left_out_and_counted(self) -> None:
        trace = load("65-kernel-without-duration.json")
        assert by_op(trace) == STANDARD_PAIR
        assert quirks(trace)["unreadable-time"] == 2
        assert quirks(trace)["negative-duration"] == 1


LOSSY = {
    "02-quotes-in-name.json",
    "06-truncated.json",
    "06-truncated.json.gz",
    "10-absurd-duration.json",
    "43-other-phases.json",
    "49-cut-after-array.json",
    "49-cut-after-colon.json",
    "49-cut-after-comma.json",
    "49-cut-before-comma.json",
    "49-cut-in-number.json",
    "49-cut-in-string.json",
    "65-kernel-without-duration.json",
    "66-garbage-between-events.json",
}
TRACES = sorted(
    str(path.relative_to(CASES))
    for path in CASES.rglob("*")
    if path.is_file() and path.name != "README.md" and not path.name.startswith(("64-", "80-"))
)


@pytest.mark.parametrize("name", TRACES)
def test_strict_refuses_exactly_what_loses_something(name: str) -> None:
    if name in LOSSY:
        with pytest.raises(InputError) as caught:
            load(name, strict=True)
        assert Path(name).name in caught.value.message
        assert caught.value.hint
    else:
        assert load(name, strict=True).meta.n_events == load(name).meta.n_events


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.glob("80-*")))
def test_80_a_file_that_is_no_trace_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError) as caught:
        load(name)
    assert name in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("name", ["no-such-file.json", "."])
def test_80_what_cannot_be_opened_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        load(name)
