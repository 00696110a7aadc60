"""`traceql merge`: nothing lost, processes and arrows told apart, one clock."""

import json
import re
from collections import Counter

import polars as pl
import pytest
from click.testing import CliRunner
from conftest import FIXTURES
from reference_slice import dropped, events_of, kernel_sums, text_of

import traceql
from traceql.analyses import clock_offsets, collectives
from traceql.cli import main

GLM5 = FIXTURES / "glm5"
RUN = [GLM5 / f"tiny-pool-eager-TP-{rank}.json.gz" for rank in (0, 1)]
GRAPHS = [GLM5 / f"tiny-gather-graph-TP-{rank}.json.gz" for rank in (0, 1)]


def run(*arguments):
    return CliRunner().invoke(main, ["merge", *map(str, arguments)])


def merged(sources, out, *options):
    result = run(*sources, "-o", out, *options)
    assert result.exit_code == 0, result.output
    return out


def moved(source, tmp_path, ns):
    """A copy of a trace whose host's clock is ahead."""
    text = text_of(source)
    base = json.loads(text)["baseTimeNanoseconds"]
    copy = tmp_path / f"late-{source.name.removesuffix('.gz')}"
    copy.write_text(text.replace(str(base), str(base + ns), 1))
    return copy


def as_recorded(event, rank, n_ranks):
    """An event of the merged trace without what merging changes, but for its time; and the rank."""
    event = dict(event)
    assert str(event["pid"]).startswith(f"[RANK{rank}] ")
    event["pid"] = event["pid"].removeprefix(f"[RANK{rank}] ")
    if event["ph"] in "stf":
        assert event["id"] % n_ranks == rank
        event["id"] //= n_ranks
    return event


def comparable(event, *without):
    return json.dumps(
        {key: value for key, value in event.items() if key not in {"start", "end", *without}},
        sort_keys=True,
        default=str,
    )


@pytest.mark.parametrize("sources", [RUN, GRAPHS], ids=["eager", "graph"])
def test_every_event_is_there_and_changed_only_as_told(sources, tmp_path):
    out = merged(sources, tmp_path / "all.json")
    written = events_of(out)
    tracks = {(e["pid"], e["tid"]) for e, _ in written if e["ph"] == "M" and "(overlap" in str(e["args"].get("name"))}
    for rank, source in enumerate(sources):
        wanted, have = Counter(), Counter()
        for event, _ in events_of(source):
            if event["ph"] != "M":
                wanted[comparable(event | {"pid": str(event["pid"])}, "tid", "ts")] += 1
        for event, _ in written:
            if event["ph"] != "M" and event["pid"].startswith(f"[RANK{rank}]"):
                have[comparable(as_recorded(event, rank, 2), "tid", "ts")] += 1
        assert have == wanted
        n_metadata = sum(e["ph"] == "M" for e, _ in events_of(source))
        mine = [e for e, _ in written if e["ph"] == "M" and e["pid"].startswith(f"[RANK{rank}]")]
        assert sum((e["pid"], e["tid"]) not in tracks for e in mine) >= n_metadata
    assert dropped(out) == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_times_of_a_rank_move_by_one_amount(rank, tmp_path):
    sources = [RUN[0], moved(RUN[1], tmp_path, 1234)]
    written = events_of(merged(sources, tmp_path / "all.json", "--force"))
    after = sorted(e["start"] for e, _ in written if e["ph"] == "X" and e["pid"].startswith(f"[RANK{rank}]"))
    before = sorted(e["start"] for e, _ in events_of(sources[rank]) if e["ph"] == "X")
    shifts = {b - a for a, b in zip(before, after, strict=True)}
    assert len(shifts) == 1
    if rank == 0:
        assert shifts == {0}


def test_a_clock_that_is_ahead_is_set_right(tmp_path):
    """Five milliseconds: after merging all ranks leave a collective together again."""
    late = moved(RUN[1], tmp_path, 5_000_000)
    out = tmp_path / "all.json.zst"
    result = run(RUN[0], late, "-o", out)
    assert re.search(
        r"rank 1: its clock was (5\.000|4\.999) ms ahead, ± \d+ ns over \d+ collectives.*; moved", result.stderr
    )
    found = clock_offsets(collectives(traceql.load(out, cache=False)))
    clock = found.filter(pl.col("rank") == 1).row(0, named=True)
    assert abs(clock["offset_ns"]) <= 3 * clock["spread_ns"]
    told = json.loads(text_of(out))["traceql"]["merged"]
    assert [part["file"] for part in told] == [RUN[0].name, late.name]
    assert told[0]["shift_ns"] == told[0]["correction_ns"] == 0
    assert abs(told[1]["correction_ns"] - 5_000_000) < 1000


def test_clocks_without_a_common_zero_are_set_by_collectives(tmp_path):
    """Files that do not say their absolute time begin together, and collectives put them right."""
    sources = []
    for source in RUN:
        sources.append(tmp_path / source.name.removesuffix(".gz"))
        sources[-1].write_text(re.sub(r'"baseTimeNanoseconds": \d+,', "", text_of(source)))
    out = tmp_path / "out" / "all.json"
    out.parent.mkdir()
    result = run(*sources, "-o", out)
    assert result.exit_code == 0, result.output
    clock = clock_offsets(collectives(traceql.load(out, cache=False))).row(1, named=True)
    assert abs(clock["offset_ns"]) <= 3 * clock["spread_ns"]


def test_the_result_is_a_run_to_traceql(tmp_path):
    out = merged(RUN, tmp_path / "all.json.gz")
    both, again = traceql.load_run(RUN, cache=False), traceql.load(out, cache=False)
    for table in ("kernels", "launches", "ops", "spans", "syncs"):
        counts = [getattr(trace, table).group_by("rank").len().sort("rank").collect().rows() for trace in (both, again)]
        assert counts[0] == counts[1], table
    time = pl.sum("dur_ns")
    sums = [
        trace.kernels.group_by("rank", "category").agg(time).sort(pl.all()).collect().rows() for trace in (both, again)
    ]
    assert sums[0] == sums[1]


def test_processes_say_their_rank_in_order(tmp_path):
    written = [event for event, _ in events_of(merged(RUN, tmp_path / "all.json"))]
    names = {e["pid"]: e["args"]["name"] for e in written if e["name"] == "process_name"}
    assert {event["pid"] for event in written} <= set(names) | {"[RANK0] ", "[RANK1] "}
    for pid, name in names.items():
        rank, own = pid.removeprefix("[RANK").split("] ", 1)
        assert name.startswith(f"rank {rank} · ")
        assert name.endswith(own)
    places = {e["pid"]: e["args"]["sort_index"] for e in written if e["name"] == "process_sort_index"}
    in_order = sorted(places, key=places.__getitem__)
    assert in_order == sorted(in_order, key=lambda pid: pid[:7])


def test_arrows_stay_within_their_rank(tmp_path):
    ends = {}
    for event, _ in events_of(merged(RUN, tmp_path / "all.json")):
        if event["ph"] in "sf":
            ends.setdefault((event["cat"], event["name"], event["id"]), set()).add(event["pid"][:7])
    assert all(len(ranks) == 1 for ranks in ends.values())
    assert {rank for ranks in ends.values() for rank in ranks} == {"[RANK0]", "[RANK1]"}


def test_one_step_of_each_rank(tmp_path):
    out = merged(RUN, tmp_path / "step.json", "--step", "1")
    written = events_of(out)
    for rank, source in enumerate(RUN):
        one = tmp_path / f"{rank}.json"
        assert CliRunner().invoke(main, ["slice", str(source), "--step", "1", "-o", str(one)]).exit_code == 0
        mine = [(e, t) for e, t in written if e["pid"].startswith(f"[RANK{rank}]")]
        assert kernel_sums(mine) == kernel_sums(events_of(one))
    assert dropped(out) == 0


def test_time_is_that_of_the_run(tmp_path):
    """One stretch of the run, not of each file: the second rank's clock is 5 ms ahead, and set right."""
    sources = [RUN[0], moved(RUN[1], tmp_path, 5_000_000)]
    every = [e for e, _ in events_of(merged(sources, tmp_path / "all.json")) if e["ph"] == "X"]
    zero = min(e["start"] for e in every if e["pid"].startswith("[RANK0]") and e["cat"] != "Trace")
    out = merged(sources, tmp_path / "part.json", "--time", "10ms:12ms")
    kernels = [e for e, _ in events_of(out) if e.get("cat") == "kernel"]
    assert {e["pid"][:7] for e in kernels} == {"[RANK0]", "[RANK1]"}
    wanted = [
        e for e in every if e["cat"] == "kernel" and e["start"] < zero + 12_000_000 and e["end"] > zero + 10_000_000
    ]
    assert abs(len(kernels) - len(wanted)) <= 2  # the clock of the part is set for its own middle
    assert all(e["start"] < zero + 12_001_000 and e["end"] > zero + 9_999_000 for e in kernels)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((RUN[0],), "one trace is no run to merge"),
        ((*RUN, "--rank", "0"), "one trace is no run to merge"),
        ((*RUN, "--rank", "5"), "there is no rank 5"),
        ((*RUN, "--step", "9"), "nothing of any rank lies in the window"),
        ((RUN[0], GRAPHS[0]), "several files of one rank"),
    ],
)
def test_faults_are_told(arguments, said, tmp_path):
    result = run(*arguments, "-o", tmp_path / "out.json")
    assert result.exit_code == 2
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_ranks_of_two_recordings_are_told(tmp_path):
    other = RUN[1].with_name(RUN[1].name.replace("pool", "gather"))
    assert other != RUN[1]
    result = run(RUN[0], other, "-o", tmp_path / "out.json")
    assert result.exit_code == 0
    assert "of another recording" in result.stderr


@pytest.mark.shared
@pytest.mark.parametrize("name", ["before", "after"])
def test_both_ranks_of_a_server(name, shared, tmp_path):
    sources = sorted((shared / "sglang-tp2").glob(f"{name}-graph-TP-*"))
    out = merged(sources, tmp_path / "all.json")
    again = traceql.load(out, cache=False)
    traces = [traceql.load(source) for source in sources]
    counts = Counter()
    for trace in traces:
        counts.update(trace.meta.event_counts)
    mine = Counter(again.meta.event_counts)
    mine["M"] = counts["M"]
    assert mine == counts
    assert dropped(out) == 0
