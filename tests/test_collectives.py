"""Collectives across ranks: matching, clocks, waiting and who is late; communication beside other work."""

import gzip
import json
from decimal import Decimal
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import reference_collectives
from click.testing import CliRunner
from conftest import FIXTURES
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from make_trace import FIRST_NS, Case, RankTrace, late_ns, make_rank, part_times
from polars.testing import assert_frame_equal

import traceql
from traceql.analyses.attribution import Attribution
from traceql.analyses.clocks import CLOCKS, clock_offsets
from traceql.analyses.comm import COLLECTIVES, collectives
from traceql.analyses.comm_stats import RANK_WAITS, collective_stats, rank_waits, rank_waits_of
from traceql.analyses.concurrency import COMM_OVERLAP, comm_overlap, comm_overlap_of
from traceql.analyses.summary import Selection
from traceql.cli.ranks import command
from traceql.errors import MissingDataError
from traceql.report.rank_report import RankReport
from traceql.report.ranks_words import comm_line, late_ranks, notes
from traceql.run import load_run

TINY = ("gather-eager", "gather-graph", "pool-eager", "pool-graph", "pool-nomark", "pool-stack")
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def load(*paths: Path) -> traceql.Trace:
    return load_run(paths, cache=False)


def tiny(name: str) -> list[Path]:
    return sorted((FIXTURES / "glm5").glob(f"tiny-{name}-TP-*"))


# --- made ranks: each kernel is (name, start_ns, dur_ns, more), inside a step annotation or not


def write_rank(
    folder: Path,
    rank: int,
    kernels: list[dict[str, Any]],
    *,
    steps: list[tuple[int, int]] = [],  # noqa: B006
    world_size: int = 2,
    shift_ns: int = 0,
) -> Path:
    """A trace of a rank: each kernel is launched at `call` (default: 100 ns before it starts), under an op."""
    events: list[dict[str, Any]] = []

    def event(cat: str, name: str, tid: int, start: int, dur: int, **args: Any) -> None:
        ts, long = (f"@{Decimal(ns) / 1000}@" for ns in (start + shift_ns, dur))
        row = {"pid": rank if cat == "kernel" else 9, "tid": tid, "ts": ts, "dur": long, "args": args}
        events.append({"ph": "X", "cat": cat, "name": name, **row})

    event("user_annotation", "warm-up", 9, 0, 1)
    for number, (start, end) in enumerate(steps):
        event("user_annotation", f"ProfilerStep#{number}", 9, start, end - start)
    for number, kernel in enumerate(kernels, 1):
        start, stream, call = kernel["start"], kernel.get("stream", 7), kernel.get("call", kernel["start"] - 100)
        event("kernel", kernel.get("name", ALL_REDUCE), stream, start, kernel["dur"],
              device=rank, stream=stream, correlation=number)  # fmt: skip
        event("cuda_runtime", "cudaLaunchKernel", 9, call, 20, correlation=number)
        if "comms" in kernel:
            event("cpu_op", "record_param_comms", 9, call - 5, 40, **kernel["comms"])
    info = {"rank": rank, "world_size": world_size}
    document = {"baseTimeNanoseconds": 10**18, "distributedInfo": info, "traceEvents": events}
    path = folder / f"made-TP-{rank}.json"
    path.write_text(json.dumps(document).replace('"@', "").replace('@"', ""))
    return path


def comms(elements: int, name: str = "allreduce", **more: Any) -> dict[str, Any]:
    sizes = {"In msg nelems": elements, "Out msg nelems": elements, "dtype": "BFloat16"}
    group = {"Process Group Name": "3", "Process Group Ranks": "[0, 1]", "Group size": 2}
    return {"Collective name": name, **sizes, **group, **more}


# --- the slow count


@pytest.mark.parametrize("name", TINY)
def test_waiting_and_transfer_are_what_the_slow_count_says(name: str) -> None:
    paths = tiny(name)
    found = collectives(load(*paths))
    expected = reference_collectives.collectives(paths)
    assert len(expected) == 24
    first = min(arrival.start - arrival.lag for arrival in expected[0])
    columns = ["rank", "dur_ns", "waiting_ns", "transfer_ns", "arrival_lag_ns"]
    shown = found.with_columns(pl.col("recorded_start_ns") - pl.col("recorded_start_ns").min())
    assert_frame_equal(found["start_ns"].to_frame(), found.select(start_ns="recorded_start_ns"))  # one host, one clock
    for number, together in enumerate(expected):
        rows = shown.filter(collective_id=number).sort("rank")
        assert rows.select(columns).rows() == [(a.rank, a.dur, a.waiting, a.transfer, a.lag) for a in together]
        assert rows["recorded_start_ns"].to_list() == [a.start - first for a in together]


NUMBERS = st.integers


@st.composite
def made_collectives(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Per collective and rank (start, end): the ranks come when they like and leave at about the same time."""
    n_ranks = draw(NUMBERS(2, 4))
    now, result = 1000, []
    for _ in range(draw(NUMBERS(1, 7))):
        starts = [now + draw(NUMBERS(0, 300)) for _ in range(n_ranks)]
        end = max(starts) + draw(NUMBERS(1, 50))
        result.append([(start, end + draw(NUMBERS(0, 9))) for start in starts])
        now = end + draw(NUMBERS(10, 400))
    return result


@settings(
    max_examples=25, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(made=made_collectives())
def test_made_ranks_are_counted_to_the_nanosecond(made: list[list[tuple[int, int]]], tmp_path: Path) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    n_ranks = len(made[0])
    paths = []
    for rank in range(n_ranks):
        kernels = [{"start": c[rank][0], "dur": c[rank][1] - c[rank][0]} for c in made]
        paths.append(write_rank(tmp_path, rank, kernels, world_size=n_ranks))
    found = collectives(load(*paths))
    expected = reference_collectives.collectives(paths)
    by_id = found.sort("collective_id", "rank").select("rank", "dur_ns", "waiting_ns", "transfer_ns", "arrival_lag_ns")
    assert by_id.rows() == [(a.rank, a.dur, a.waiting, a.transfer, a.lag) for together in expected for a in together]
    assert found.filter((pl.col("waiting_ns") < 0) | (pl.col("waiting_ns") > pl.col("dur_ns"))).is_empty()
    assert found.filter(pl.col("transfer_ns") > pl.col("dur_ns")).is_empty()


# --- what must not matter


def test_the_order_of_files_changes_nothing(tmp_path: Path) -> None:
    made = [write_rank(tmp_path, r, [{"start": 1000 + 70 * r, "dur": 500 - 70 * r}], world_size=3) for r in range(3)]
    expected = collectives(load(*made))
    assert expected["waiting_ns"].to_list() == [140, 70, 0]
    for order in permutations(made):
        assert_frame_equal(collectives(load(*order)), expected)


def test_a_common_shift_of_all_ranks_changes_nothing(tmp_path: Path) -> None:
    kernels = [[{"start": 1000 * k + 31 * r * k, "dur": 400 - 31 * r * k} for k in range(1, 5)] for r in range(2)]
    results = []
    for name, shift in (("as-is", 0), ("shifted", 86_400_000_000_123)):
        (tmp_path / name).mkdir()
        paths = [write_rank(tmp_path / name, r, kernels[r], shift_ns=shift) for r in range(2)]
        results.append(collectives(load(*paths)))
    assert results[0]["waiting_ns"].sum() > 0
    assert_frame_equal(results[0], results[1])


# --- one rank, none, and no communication


def test_one_rank_cannot_tell_waiting_from_transfer() -> None:
    trace = load(tiny("gather-eager")[0])
    found = collectives(trace)
    assert found.height == 24
    for column in (
        "collective_id",
        "match",
        "waiting_ns",
        "transfer_ns",
        "arrival_lag_ns",
        "bus_bandwidth_bytes_per_s",
    ):
        assert found[column].null_count() == 24
    waits = rank_waits(trace).row(0, named=True)
    assert (waits["waiting_ns"], waits["transfer_ns"], waits["n_late"]) == (None, None, None)
    line = comm_line(RankReport.of(trace))
    assert line is not None
    assert line.endswith("waiting cannot be told from transfer with one of 2 ranks")


def test_a_trace_without_communication_has_none() -> None:
    trace = load(FIXTURES / "cases" / "12-zero-length-kernel.json")
    assert_frame_equal(collectives(trace), COLLECTIVES.empty())
    assert_frame_equal(rank_waits(trace), RANK_WAITS.empty())
    assert_frame_equal(clock_offsets(COLLECTIVES.empty()), CLOCKS.empty())
    assert comm_line(RankReport.of(trace)) is None


def test_a_trace_without_gpu_activity_has_none() -> None:
    trace = load(FIXTURES / "cases" / "31-empty-events.json")
    report = RankReport.of(trace)
    assert report.ranks.is_empty()
    assert_frame_equal(report.overlap, COMM_OVERLAP.empty())
    assert run(str(FIXTURES / "cases" / "31-empty-events.json")) == "No GPU activity: nothing to compare.\n"


# --- what was recorded, and what the names say


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("void sglang::cross_device_reduce_1stage<__nv_bfloat16, 2>(sglang::RankData*)", "all_reduce"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()", "all_reduce"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>()", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL()", "reduce_scatter"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)", "broadcast"),
        ("ncclDevKernel_SendRecv(ncclDevComm*)", "send_recv"),
        ("void moeA2AAllToAllKernel()", "all_to_all"),
        ("ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)", "other"),
    ],
)
def test_the_name_tells_the_kind(name: str, kind: str, tmp_path: Path) -> None:
    found = collectives(load(write_rank(tmp_path, 0, [{"name": name, "start": 500, "dur": 10}])))
    assert found["kind"].to_list() == [kind]


def test_sizes_and_bandwidth_come_from_what_was_recorded(tmp_path: Path) -> None:
    """An all-gather of 2 ranks: 1000 bf16 in, 2000 out, in 400 ns: 4000 B / 400 ns = 10 GB/s, the bus half of it."""
    gather = comms(1000, "_allgather_base") | {"Out msg nelems": 2000}
    paths = [write_rank(tmp_path, r, [{"start": 900 - 50 * r, "dur": 400 + 50 * r, "comms": gather}]) for r in range(2)]
    row = collectives(load(*paths)).row(0, named=True)
    assert (row["kind"], row["group"], row["group_size"]) == ("all_gather", "3", 2)
    assert (row["in_bytes"], row["out_bytes"], row["transfer_ns"]) == (2000, 4000, 400)
    assert row["alg_bandwidth_bytes_per_s"] == pytest.approx(10e9)
    assert row["bus_bandwidth_bytes_per_s"] == pytest.approx(5e9)


def test_real_sizes_are_read() -> None:
    found = collectives(load(*tiny("gather-eager")))
    assert set(found["kind"]) == {"all_reduce"}
    assert set(found["group"]) == {"0"}
    assert set(found["in_bytes"]) == {6144 * 2}
    assert set(found["match"]) == {"order"}


def test_sequence_numbers_match_although_a_rank_missed_some(tmp_path: Path) -> None:
    """Rank 1 began to record two collectives later."""

    def kernels(rank: int) -> list[dict[str, Any]]:
        numbers = range(2 * rank, 5)
        return [{"start": 1000 * n + 10 * rank, "dur": 100, "comms": comms(8, Seq=n)} for n in numbers]

    paths = [write_rank(tmp_path, rank, kernels(rank)) for rank in range(2)]
    found = collectives(load(*paths))
    assert found.filter(rank=0)["match"].to_list() == [None, None, "sequence", "sequence", "sequence"]
    assert found.filter(rank=1)["waiting_ns"].to_list() == [0, 0, 0]
    assert found.filter(rank=0)["waiting_ns"].to_list() == [None, None, 10, 10, 10]
    assert any("not matched" in note for note in notes(RankReport.of(load(*paths))))


def test_unequal_counts_without_steps_are_not_matched(tmp_path: Path) -> None:
    paths = [write_rank(tmp_path, r, [{"start": 1000 * n, "dur": 100} for n in range(1, 5 - r)]) for r in range(2)]
    assert collectives(load(*paths))["collective_id"].null_count() == 7


def test_other_sizes_are_not_matched(tmp_path: Path) -> None:
    paths = [write_rank(tmp_path, r, [{"start": 1000, "dur": 100, "comms": comms(8 + r)}]) for r in range(2)]
    assert collectives(load(*paths))["collective_id"].null_count() == 2


def test_an_unequal_step_is_left_out_and_the_others_matched(tmp_path: Path) -> None:
    steps = [(1000 * n, 1000 * n + 900) for n in range(1, 5)]
    every = [{"start": 1000 * n + 200 + 90 * k, "dur": 50} for n in range(1, 5) for k in range(3)]
    paths = [write_rank(tmp_path, r, every[r:], steps=steps) for r in range(2)]
    found = collectives(load(*paths))
    by_step = found.group_by("step", maintain_order=True).agg(pl.col("collective_id").count()).sort("step")
    assert by_step.rows() == [(0, 0), (1, 6), (2, 6), (3, 6)]


def test_streams_stand_for_groups_that_were_not_recorded(tmp_path: Path) -> None:
    """Two communicators whose kernels interleave in another order on each rank."""
    starts = ({7: (1000, 3000), 9: (1500, 2500)}, {7: (1010, 2600), 9: (1200, 3010)})
    for rank, of_stream in enumerate(starts):
        kernels = [{"start": s, "dur": 4000 + 10 * n - s, "stream": stream}
                   for n, (stream, both) in enumerate(of_stream.items()) for s in both]  # fmt: skip
        write_rank(tmp_path, rank, kernels)
    found = collectives(load(tmp_path))
    pairs = found.sort("rank").group_by("collective_id").agg("stream", "recorded_start_ns").sort("collective_id")
    assert all(len(set(streams)) == 1 for streams in pairs["stream"])
    assert sorted(map(tuple, pairs["recorded_start_ns"].to_list())) == [
        (1000, 1010), (1500, 1200), (2500, 3010), (3000, 2600)
    ]  # fmt: skip


def test_kernels_of_different_groups_are_not_taken_for_one_collective(tmp_path: Path) -> None:
    """Equal names and counts, but the ranks leave milliseconds apart: not one communicator."""
    irregular = [n * 10_000_000 + n * n % 7 * 1_000_000 for n in range(1, 21)]
    paths = [
        write_rank(tmp_path, r, [{"start": s + r * (n % 3) * 900_000, "dur": 500} for n, s in enumerate(irregular)])
        for r in range(2)
    ]
    assert collectives(load(*paths))["collective_id"].null_count() == 40


# --- clocks, and the truth of synthetic ranks


def synthetic(folder: Path, case: Case, ranks: range | None = None) -> Path:
    for rank in ranks or range(case.ranks):
        with (folder / f"{RankTrace(case, rank).name}.json").open("wb") as file:
            make_rank(case, rank, file)
    return folder


SMALL = Case(ranks=2, steps=3, layers=6)


@pytest.mark.parametrize(
    "case",
    [
        Case(ranks=3, steps=3, layers=6, skew_us=40.0),
        Case(ranks=2, steps=3, layers=6, skew_us=25.0, offset_us=1234.5, mode="graph"),
        Case(ranks=4, steps=3, layers=6, skew_us=30.0, offset_us=-250.0, drift_ppm=20.0),
    ],
    ids=["skew", "offset", "drift"],
)
def test_synthetic_ranks_are_recovered(case: Case, tmp_path: Path) -> None:
    """Offset within 2 ns, drift within 0.1 ppm, each waiting within 3 ns (the clocks write whole ns)."""
    trace = load(synthetic(tmp_path, case))
    found = collectives(trace)
    assert found["collective_id"].null_count() == 0
    clocks = clock_offsets(found)
    zero_ns = min(part.first_event_ns for part in trace.parts if part.first_event_ns is not None) - FIRST_NS
    for row in clocks.iter_rows(named=True):
        offset_ns = row["rank"] * (case.offset_us * 1000 + zero_ns * case.drift_ppm / 1e6)
        assert row["offset_ns"] == pytest.approx(offset_ns, abs=2)
        if row["rank"]:
            assert row["drift_ppm"] == pytest.approx(row["rank"] * case.drift_ppm, abs=0.1)
    for rank in range(case.ranks):
        waiting = found.filter(rank=rank)["waiting_ns"] - (late_ns(case, case.ranks - 1) - late_ns(case, rank))
        assert waiting.abs().max() <= 3  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
    waits = rank_waits(trace)
    n_collectives = 2 * case.layers
    last = waits.row(-1, named=True)
    assert last["n_late"] == n_collectives * case.steps
    assert last["lateness_ns"] == pytest.approx(last["n_late"] * late_ns(case, case.ranks - 1), rel=1e-3)
    assert waits["n_late"].to_list()[:-1] == [0] * (case.ranks - 1)
    on_the_last_clock = 1 + (case.ranks - 1) * case.drift_ppm / 1e6  # durations stay as recorded
    transfer = part_times(case, case.ranks - 1)["all_reduce"] * on_the_last_clock
    assert waits["transfer_ns_per_step"].to_list() == pytest.approx([transfer] * case.ranks, abs=n_collectives)
    assert set(waits["waits_for_rank"].to_list()[:-1]) == {case.ranks - 1}


def test_a_rank_that_began_a_step_later_is_matched_by_the_ends(tmp_path: Path) -> None:
    """Its step 0 is the others' step 1."""
    case = Case(ranks=2, steps=5, layers=4, skew_us=20.0)
    synthetic(tmp_path, case)
    path = tmp_path / f"{RankTrace(case, 1).name}.json"
    document = json.loads(path.read_text(), parse_float=str)
    for event in document["traceEvents"]:
        for field in ("ts", "dur"):
            if field in event:
                event[field] = f"@{event[field]}@"
    marks = sorted(float(e["ts"].strip("@")) for e in document["traceEvents"] if e.get("cat") == "user_annotation")
    document["traceEvents"] = [
        e for e in document["traceEvents"]
        if e.get("ph") == "M" or "ts" not in e or float(e["ts"].strip("@")) >= marks[1]
    ]  # fmt: skip
    path.write_text(json.dumps(document).replace('"@', "").replace('@"', ""))
    trace = load(tmp_path)
    found = collectives(trace)
    n_each = 2 * case.layers
    assert found.filter(rank=0)["step"].n_unique() == 5
    assert found.filter(pl.col("rank") == 1, pl.col("step").is_not_null())["step"].n_unique() == 4
    matched = found.filter(pl.col("collective_id").is_not_null())
    assert matched.height == 2 * 4 * n_each
    assert set(matched.filter(rank=0)["waiting_ns"]) == {20_000}
    assert any("different numbers of steps" in note for note in notes(RankReport.of(trace)))


def test_one_host_s_clock_is_left_alone(tmp_path: Path) -> None:
    found = clock_offsets(collectives(load(synthetic(tmp_path, SMALL))))
    assert not found["is_offset_applied"].any()
    assert found["n_collectives"].to_list() == [0, 3 * 2 * 6]


def test_few_collectives_do_not_move_a_clock(tmp_path: Path) -> None:
    paths = [
        write_rank(tmp_path, r, [{"start": 1000 * n + 400 * r, "dur": 100} for n in range(1, 4)]) for r in range(2)
    ]
    found = clock_offsets(collectives(load(*paths)))
    assert found.row(1, named=True) == {
        "rank": 1, "offset_ns": 400.0, "spread_ns": 0.0, "drift_ppm": None, "n_collectives": 3,
        "is_offset_applied": False, "is_drift_applied": False,
    }  # fmt: skip


# --- who is late, and why


@pytest.mark.parametrize(("call", "because"), [(1600, "host"), (1100, "gpu")])
def test_why_a_rank_is_late(call: int, because: str, tmp_path: Path) -> None:
    """Rank 0 starts at 1200; rank 1 at 1700, launched after or before that."""
    paths = [
        write_rank(tmp_path, 0, [{"start": 1200, "dur": 600}]),
        write_rank(tmp_path, 1, [{"start": 1700, "dur": 100, "call": call}]),
    ]
    late = rank_waits(load(*paths)).row(1, named=True)
    assert (late["n_late"], late["lateness_ns"], late["late_because"]) == (1, 500, because)
    assert (late["n_late_host"], late["n_late_gpu"]) == ((1, 0) if because == "host" else (0, 1))


def of_a_rank(step: int, lag_ns: int, *, launched: int = 0, waiting_ns: int = 0, for_rank: int = 1) -> dict[str, Any]:
    """A row of `collectives` of rank 1, that comes `lag_ns` after the first at 1000, or waits for another rank."""
    return dict.fromkeys(COLLECTIVES.names) | {
        "rank": 1, "device": 0, "stream": 7, "kernel_id": 0, "step": step, "collective_id": 0, "match": "order",
        "kind": "all_reduce", "recorded_start_ns": 0, "start_ns": 1000 + lag_ns, "dur_ns": 100, "launch_ns": launched,
        "arrival_lag_ns": lag_ns, "last_rank": 1 if lag_ns else for_rank, "waiting_ns": waiting_ns, "transfer_ns": 100,
    }  # fmt: skip


def test_one_collective_does_not_say_why_a_rank_is_late() -> None:
    """Rank 1 begins to record late, and its host is late once, by more than its GPU is in all steps together."""
    begun_late = of_a_rank(0, 24_000_000, launched=2000)
    later = [of_a_rank(step, 3000) for step in range(1, 9)]
    waits = [of_a_rank(0, 0, waiting_ns=9_000_000, for_rank=2)]
    waits += [of_a_rank(step, 0, waiting_ns=5000, for_rank=3) for step in range(1, 9)]
    rows = pl.DataFrame([begun_late, *later, *waits], schema=COLLECTIVES.schema)
    steps = pl.DataFrame({"rank": [1] * 9, "device": [0] * 9, "step": range(9), "is_complete": [True] * 9})
    steps = steps.cast({"rank": pl.Int16, "device": pl.Int16})
    found = rank_waits_of(rows, steps).row(0, named=True)
    assert (found["late_because"], found["waits_for_rank"]) == ("gpu", 3)
    assert (found["n_late_host"], found["n_late_gpu"], found["lateness_ns"]) == (1, 8, 24_024_000)
    without = rank_waits_of(rows, steps.with_columns(is_complete=pl.lit(value=False))).row(0, named=True)
    assert (without["late_because"], without["waits_for_rank"]) == ("host", 2)


def test_the_line_names_who_waits_for_whom() -> None:
    report = RankReport.of(load(*tiny("gather-eager")))
    line = comm_line(report)
    assert line is not None
    assert line.startswith("all-reduce: ")
    assert line.endswith("waiting for rank 1 on rank 0")
    assert len(late_ranks(report)) == 1


# --- communication beside other work


def test_a_collective_partly_under_compute() -> None:
    trace = load(FIXTURES / "cases" / "25-compute-comm-overlap.json")
    assert comm_overlap(trace).rows() == [(0, 0, None, 100_000, 60_000, 40_000, 120_000, 180_000)]


@settings(max_examples=60, derandomize=True)
@given(
    st.lists(st.tuples(NUMBERS(0, 60), NUMBERS(1, 30), st.booleans()), max_size=8),
    st.lists(NUMBERS(0, 90), min_size=2, max_size=5, unique=True).map(sorted),
)
def test_overlap_is_counted_nanosecond_by_nanosecond(work: list[tuple[int, int, bool]], borders: list[int]) -> None:
    rows = [(0, 0, start, dur, "comm" if is_comm else "gemm") for start, dur, is_comm in work]
    place = {"rank": pl.Int16, "device": pl.Int16}
    activities = pl.DataFrame(
        rows, {**place, "start_ns": pl.Int64, "dur_ns": pl.Int64, "category": pl.String}, orient="row"
    )
    windows = [(0, 0, n, a, b - a) for n, (a, b) in enumerate(pairwise(borders))]
    steps = pl.DataFrame(windows, {**place, "step": pl.Int64, "start_ns": pl.Int64, "wall_ns": pl.Int64}, orient="row")
    intervals = [(start, start + dur, is_comm) for start, dur, is_comm in work]
    expected = [reference_collectives.overlap(intervals, a, a + wall) for *_, a, wall in windows]
    found = comm_overlap_of(activities, steps)
    assert found.select("comm_ns", "exposed_ns", "compute_ns").rows() == expected
    assert found.filter(pl.col("comm_ns") != pl.col("exposed_ns") + pl.col("overlapped_ns")).is_empty()
    assert found.filter(pl.col("busy_ns") != pl.col("exposed_ns") + pl.col("compute_ns")).is_empty()


def test_busy_of_the_overlap_is_busy_of_the_steps() -> None:
    trace = load(*tiny("gather-eager"))
    steps = Attribution.of(trace).steps
    assert comm_overlap(trace)["busy_ns"].to_list() == steps["busy_ns"].to_list()


# --- the command


def run(*args: str) -> str:
    result = CliRunner().invoke(command, [*args, "--no-cache"], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_page_says_it_all() -> None:
    page = run(*map(str, tiny("gather-eager")))
    assert page.splitlines()[0].startswith("2 ranks, step ")
    for title in ("Ranks", "Collectives", "Clocks"):
        assert title in page.splitlines()
    assert "rank 1 is late" in page


def test_json_has_the_tables() -> None:
    document = json.loads(run(*map(str, tiny("gather-eager")), "--format", "json"))
    assert [row["rank"] for row in document["ranks"]] == [0, 1]
    assert [row["n_collectives"] for row in document["ranks"]] == [24, 24]
    (stats,) = document["collectives"]
    assert (stats["kind"], stats["bytes"], stats["n_per_step"], stats["n_kernels"]) == ("all_reduce", 12288, 8.0, 48)
    assert [row["n_collectives"] for row in document["clocks"]] == [0, 24]
    assert len(document["steps"]) == 6
    assert document["missing_ranks"] == []


@pytest.mark.parametrize("by", ["rank", "collective", "clock", "step", "kernel"])
def test_csv_holds_one_table(by: str) -> None:
    n_rows = {"rank": 2, "collective": 1, "clock": 2, "step": 6, "kernel": 48}
    assert len(run(*map(str, tiny("pool-eager")), "--by", by, "--format", "csv").splitlines()) == 1 + n_rows[by]


def test_markdown_is_a_form_too() -> None:
    assert "| rank |" in run(*map(str, tiny("pool-eager")), "--format", "markdown")


def test_a_missing_rank_is_said(tmp_path: Path) -> None:
    case = Case(ranks=4, steps=3, layers=4, skew_us=30.0)
    synthetic(tmp_path, case, range(3))
    page = run(str(tmp_path))
    assert "1 of 4 ranks not given (3)" in page
    report = RankReport.of(load(tmp_path))
    assert report.missing == [3]
    assert report.ranks["waits_for_rank"].to_list() == [2, 2, None]
    line = str(comm_line(report))
    assert " a step (waiting for ranks not given included), " in line
    assert not line.endswith("in step")  # who knows, of the one that is missing


@pytest.mark.shared
def test_who_is_late_is_only_known_of_the_ranks_given(shared: Path) -> None:
    """Rank 7 comes last in most of the collectives of the eight: without it others look late, and transfer long."""
    paths = sorted((shared / "public" / "param-dlrm-8ranks").iterdir())
    every, some = RankReport.of(load(*paths)), RankReport.of(load(*paths[:7]))
    assert late_ranks(every)[0].startswith("rank 7 is late: last in 5 of 8 collectives")
    assert all("late among those given" in line for line in late_ranks(some))
    assert str(comm_line(some)).startswith("communication: 1.525 ms transfer (waiting for ranks not given included), ")


def test_steps_can_be_selected() -> None:
    trace = load(*tiny("gather-eager"))
    report = RankReport.of(trace, Selection(1, 2))
    assert set(report.kernels["step"]) == {1}
    assert report.ranks["n_steps"].to_list() == [1, 1]
    with pytest.raises(MissingDataError, match="no step"):
        RankReport.of(trace, Selection(90, 91))


# --- the trace collection


def ms(ns: float | None) -> float:
    assert ns is not None
    return round(ns / 1e6, 3)


@pytest.mark.shared
def test_glm5_gather_eager_waits_for_the_host_of_rank_1(shared: Path) -> None:
    report = RankReport.of(load(*sorted((shared / "glm5").glob("glm5-gather-eager-TP-*.json.gz"))))
    first, second = report.ranks.rows(named=True)
    assert [ms(row["comm_kernel_ns_per_step"]) for row in (first, second)] == [117.820, 1.180]
    assert [ms(row["waiting_ns_per_step"]) for row in (first, second)] == [116.668, 0.004]
    assert ms(first["transfer_ns_per_step"]) == 1.173
    assert (second["n_late"], second["n_matched"], second["late_because"]) == (1385, 1560, "host")
    assert comm_line(report) == "all-reduce: 1.173 ms transfer a step, 116.668 ms waiting for rank 1 on rank 0"
    assert len(late_ranks(report)) == 1


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "comm", "waiting"),
    [("before", [1.350, 1.171], [0.257, 0.110]), ("after", [1.315, 1.152], [0.257, 0.073])],
)
def test_sglang_tp2_is_in_step(name: str, comm: list[float], waiting: list[float], shared: Path) -> None:
    report = RankReport.of(load(*sorted((shared / "sglang-tp2").glob(f"{name}-graph-TP-*.zst"))))
    assert [ms(value) for value in report.ranks["comm_kernel_ns_per_step"]] == comm
    assert [ms(value) for value in report.ranks["waiting_ns_per_step"]] == waiting
    assert report.kernels["collective_id"].null_count() == 0
    assert report.ranks["late_because"].to_list() == ["gpu", "gpu"]  # of a graph, that its host launches in time
    assert late_ranks(report) == []
    line = comm_line(report)
    assert line is not None
    assert line.endswith(": in step")


@pytest.mark.shared
def test_param_dlrm_8_ranks(shared: Path) -> None:
    """One step, 5 all-to-alls (by SendRecv) and 3 all-reduces on each of 8 GPUs of one host; whole µs."""
    report = RankReport.of(load(shared / "public" / "param-dlrm-8ranks"))
    assert report.ranks["n_matched"].to_list() == [8] * 8
    assert report.missing == []
    assert [round(ns / 1000) for ns in report.ranks["comm_kernel_ns"]] == [
        5798, 11336, 3492, 9774, 6587, 6251, 3558, 1746
    ]  # fmt: skip
    assert report.clocks["offset_ns"].abs().max() <= 4000  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
    assert report.ranks.sort("lateness_ns")["rank"].to_list()[-1] == 7
    kinds = collective_stats(report.kernels, Attribution.of(load(shared / "public" / "param-dlrm-8ranks")).steps)
    assert sorted(kinds["kind"]) == ["all_reduce", "send_recv"]


@pytest.mark.shared
def test_every_run_adds_up(shared: Path) -> None:
    for pattern in ("glm5/glm5-pool-eager-TP-*", "glm5/glm5-gather-graph-TP-*", "public/hta-nccl/*.gz"):
        trace = load(*sorted(shared.glob(pattern)))
        found, overlap = collectives(trace), comm_overlap(trace)
        assert found.filter((pl.col("waiting_ns") < 0) | (pl.col("waiting_ns") > pl.col("dur_ns"))).is_empty()
        assert found.filter(pl.col("transfer_ns") > pl.col("dur_ns")).is_empty()
        assert overlap.filter(pl.col("comm_ns") != pl.col("exposed_ns") + pl.col("overlapped_ns")).is_empty()


@pytest.mark.shared
def test_training_that_hides_its_communication(shared):
    """deepseek-train: all-to-all on its own stream under compute, which is what that profile was published to show."""
    path = shared / "public" / "deepseek-train" / "train.json.gz"
    trace = traceql.load(path, cache=False)
    names = set(trace.kernels.filter(pl.col("category") == "comm").collect()["name"])
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    running = [
        (e["ts"], e["ts"] + e["dur"], e["name"] in names)
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    edges = sorted({t for start, end, _ in running for t in (start, end)})
    comm_us = exposed_us = 0
    for left, right in pairwise(edges):
        kinds = {is_comm for start, end, is_comm in running if start <= left and end >= right}
        comm_us += (right - left) * (True in kinds)
        exposed_us += (right - left) * (kinds == {True})
    found = comm_overlap(trace).row(0, named=True)
    assert (found["comm_ns"], found["exposed_ns"]) == (comm_us * 1000, exposed_us * 1000)
    assert (found["comm_ns"], found["exposed_ns"]) == (113_030_000, 4_149_000)
    kinds = dict(collectives(trace).group_by("kind").agg(pl.sum("dur_ns")).rows())
    assert kinds == {"all_to_all": 80_452_000, "other": 32_578_000}
