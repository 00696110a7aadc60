"""`traceql slice`: what it keeps against a slow count, that it changes nothing, and what viewers make of it."""

import json
import shutil
from collections import Counter

import polars as pl
import pytest
from click.testing import CliRunner
from conftest import FIXTURES
from reference_slice import dropped, events_of, expected_step, keys_of, perfetto_thread, text_of

import traceql
from traceql.analyses import kernel_layers, kernel_steps, steps
from traceql.cli import main
from traceql.errors import TraceqlError

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
    rows = (
        trace.kernels.collect()
        if kernels is None
        else trace.kernels.collect().join(kernels, on="kernel_id", how="semi")
    )
    return dict(rows.group_by("category").agg(pl.sum("dur_ns")).rows()), rows.height


# --- what is kept, and that nothing is changed


@pytest.mark.parametrize(
    ("source", "step"),
    [(STACK, 0), (STACK, 1), (STACK, 2), (GRAPH, 1), pytest.param(SGLANG, 7, marks=pytest.mark.slow)],
    ids=lambda v: getattr(v, "name", v),
)
def test_a_step_is_exactly_what_a_slow_count_says(source, step, tmp_path):
    """Every kept text stands in the source, none twice; those not kept are none of the step's."""
    out = sliced(source, tmp_path / "step.json", "--step", step)
    assert_is_step(source, out, step)


def assert_is_step(source, out, step):
    events = events_of(source)
    expected = expected_step(events, is_step, step)
    written = events_of(out)
    wanted = Counter(events[i][1] for i in expected)
    have = Counter(text for _, text in written)
    moved, changed = wanted - have, have - wanted
    tracks = {(e["pid"], e["tid"]) for e, _ in written if e["ph"] == "M" and "(overlap" in str(e["args"].get("name"))}
    old = {(e["pid"], e.get("tid")) for e, _ in events}
    renumbered, without_tid = set(), Counter()
    for event, text in written:
        thread = event["pid"], event.get("tid")
        if text in changed and (event["ph"] != "M" or thread not in tracks):
            assert thread not in old
            renumbered |= {thread} - tracks
            without_tid[json.dumps({k: v for k, v in json.loads(text).items() if k != "tid"})] += 1
    odd = {thread for each in map(json.loads, moved) if perfetto_thread(each) != (thread := (each["pid"], each["tid"]))}
    assert len(renumbered) <= len(odd)
    assert without_tid == Counter(
        json.dumps({k: v for k, v in json.loads(text).items() if k != "tid"}) for text in moved.elements()
    )
    assert keys_of(out) == keys_of(source)


@pytest.mark.parametrize(
    "source", [STACK, GRAPH, pytest.param(SGLANG, marks=pytest.mark.slow)], ids=lambda path: path.name
)
def test_a_slice_has_the_figures_of_the_step(source, tmp_path):
    trace = traceql.load(source, cache=False)
    placed = kernel_steps(trace)
    for step in steps(trace)["step"].unique().sort()[:2]:
        out = sliced(source, tmp_path / "step.json.gz", "--step", step, "--force", "--no-cache")
        assert sums(traceql.load(out, cache=False)) == sums(trace, placed.filter(pl.col("step") == step))


def test_a_layer_is_what_the_layers_command_counts(tmp_path):
    trace = traceql.load(STACK, cache=False)
    of_layer = kernel_layers(trace).filter(pl.col("layer") == 2)
    placed = kernel_steps(trace).filter(pl.col("step") == 1).join(of_layer, on="kernel_id", how="semi")
    assert placed.height
    out = sliced(STACK, tmp_path / "layer.json", "--step", "1", "--layer", "2")
    assert sums(traceql.load(out, cache=False)) == sums(trace, placed)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (STACK, ("--step", "1:")),
        (STACK, ("--layer", "1")),
        (STACK, ("--time", "10ms:20ms")),
        (STACK, ("--around", "copy")),
        (GRAPH, ("--layer", "1", "--step", "1")),
        pytest.param(SGLANG, ("--around", "moe", "--margin", "2ms"), marks=pytest.mark.slow),
        pytest.param(SGLANG, ("--time", "100ms:101ms"), marks=pytest.mark.slow),
    ],
    ids=lambda v: getattr(v, "name", " ".join(v) if isinstance(v, tuple) else v),
)
def test_every_slice_is_whole(source, options, tmp_path):
    """Kernels have the launches that the source has, launches what is around them, arrows both ends; all are shown."""
    out = sliced(source, tmp_path / "slice.json", *options)
    before, after = events_of(source), events_of(out)
    calls = {}
    for event, _ in before:
        if event.get("cat") in {"cuda_runtime", "cuda_driver"}:
            calls.setdefault(event["args"].get("correlation"), []).append(event)
    kept_calls = Counter(
        (e["args"].get("correlation"), e["start"]) for e, _ in after if e.get("cat") in {"cuda_runtime", "cuda_driver"}
    )
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


# --- by time, and around a kernel


def test_time_takes_what_runs_in_it_if_only_for_a_part(tmp_path):
    """Also where the trace is cut in the middle of a kernel; what launched it comes along from before."""
    trace = traceql.load(STACK, cache=False)
    chosen = trace.kernels.collect().sort("dur_ns").row(-1, named=True)
    middle = chosen["start_ns"] + chosen["dur_ns"] // 2
    out = sliced(STACK, tmp_path / "moment.json", "--time", f"{middle}ns:{middle + 1}ns")
    kernels = traceql.load(out, cache=False).kernels.collect()
    assert kernels["dur_ns"].to_list() == [chosen["dur_ns"]]
    assert kernels["launch_id"].null_count() == 0


def test_around_says_which_it_took(tmp_path):
    out = tmp_path / "around.json"
    result = run(STACK, "--around", "direct_copy, bf16", "--margin", "50us", "-o", out)
    assert "(occurrence 35 of 36, the longest; 106.0 µs" in result.stderr
    copies = traceql.load(STACK, cache=False).kernels.filter(
        pl.col("short_name").str.contains("direct_copy, bf16", literal=True)
    )
    chosen = copies.sort("start_ns").collect()
    assert chosen["dur_ns"].max() == chosen["dur_ns"][34]
    third = run(STACK, "--around", "direct_copy, bf16", "--occurrence", "3", "-o", out, "--force")
    assert "(occurrence 3 of 36; " in third.stderr
    assert "1.000 ms around" in third.stderr


def test_a_name_is_matched_literally(tmp_path):
    assert run(STACK, "--around", ".*", "-o", tmp_path / "none.json").exit_code == 2
    assert run(STACK, "--around", "[bf16", "-o", tmp_path / "none.json").exit_code == 2


def test_options_narrow_each_other(tmp_path):
    step = traceql.load(sliced(STACK, tmp_path / "step.json", "--step", "1"), cache=False).kernels.collect()
    both = sliced(STACK, tmp_path / "both.json", "--step", "1", "--around", "copy", "--margin", "100us")
    found = traceql.load(both, cache=False).kernels.collect()
    assert 0 < found.height < step.height
    assert set(found["correlation"]) < set(step["correlation"])


# --- tracks


def overlapping(*slices: tuple[float, float], tid: int | str = 7):
    """A trace of kernels on one stream, each launched."""
    events = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": "stream 7"}}]
    for i, (ts, dur) in enumerate(slices):
        args = {"device": 0, "stream": 7, "correlation": i + 1}
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": i, "dur": 0.5}
        events += [
            {"ph": "X", "cat": "kernel", "name": f"k{i}", "pid": 0, "tid": tid, "ts": ts, "dur": dur, "args": args},
            launch | {"args": {"correlation": i + 1}},
            {"ph": "s", "id": i + 1, "pid": 9, "tid": 9, "ts": i, "cat": "ac2g", "name": "ac2g"},
            {"ph": "f", "id": i + 1, "pid": 0, "tid": tid, "ts": ts, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        ]
    return {"schemaVersion": 1, "traceEvents": events}


def tids_of(tmp_path, document):
    source, out = tmp_path / "source.json", tmp_path / "out.json"
    source.write_text(json.dumps(document))
    result = run(source, "--time", "0ns:", "-o", out, "--force", "--no-cache")
    assert result.exit_code == 0, result.output
    events = json.loads(out.read_text())["traceEvents"]
    assert dropped(out) == 0
    return {e["name"]: e["tid"] for e in events if e.get("cat") == "kernel"}, events


def test_what_overlaps_goes_to_an_extra_track_with_its_arrow(tmp_path):
    tids, events = tids_of(tmp_path, overlapping((10, 10), (15, 10), (12, 4), (30, 5)))
    extra = tids["k1"]
    assert tids == {"k0": 7, "k1": extra, "k2": 7, "k3": 7}
    named = {e["tid"]: e["args"] for e in events if e["name"] == "thread_name"}
    placed = {e["tid"]: e["args"] for e in events if e["name"] == "thread_sort_index"}
    assert named[extra] == {"name": "stream 7 (overlap 1)"}
    assert placed[extra] == {"sort_index": 7}
    assert {e["tid"] for e in events if e["ph"] == "f" and e["id"] == 2} == {extra}
    assert {e["tid"] for e in events if e["ph"] == "f" and e["id"] != 2} == {7}


def test_nested_equal_and_touching_slices_stay(tmp_path):
    tids, _ = tids_of(tmp_path, overlapping((10, 10), (10, 10), (10, 4), (14, 6), (20, 3), (23, 0)))
    assert set(tids.values()) == {7}


def test_three_at_once_take_two_extra_tracks(tmp_path):
    tids, _ = tids_of(tmp_path, overlapping((10, 10), (11, 10), (12, 10), (20.5, 1)))
    assert len(set(tids.values())) == 3


def test_what_only_a_viewer_sees_overlap_is_moved_too(tmp_path):
    """1.001 µs and 1694128201553123.001 µs are not what a double makes of them: touching slices cross by some ns."""
    begin = 1694128201553123
    document = overlapping((begin + 0.1, 0.3), (begin + 0.4, 0.3), (begin + 0.7, 0.3))
    text = json.dumps(document)
    for digit in (1, 4, 7):
        assert f"{begin + digit / 10}" in text
    tids_of(tmp_path, document)


def numbered(*threads: int):
    """A trace of process 9, whose threads have a name and two slices each that end later from thread to thread."""
    events = []
    for i, tid in enumerate(threads):
        events.append({"ph": "M", "name": "thread_name", "pid": 9, "tid": tid, "args": {"name": f"thread {tid}"}})
        events += [
            {"ph": "X", "cat": "cpu_op", "name": f"{tid}", "pid": 9, "tid": tid, "ts": ts + i, "dur": 10}
            for ts in (0, 20)
        ]
    return {"schemaVersion": 1, "traceEvents": events}


@pytest.mark.parametrize("odd", [0, -5, 1 << 32, 94235817463296])
def test_a_thread_that_a_viewer_takes_for_another_gets_its_own_number(odd, tmp_path):
    """Perfetto takes such a number for that of the process, which its main thread has too."""
    source, out = tmp_path / "source.json", tmp_path / "out.json"
    source.write_text(json.dumps(numbered(odd, 9)))
    assert dropped(source) == 2
    result = run(source, "--time", "0ns:", "-o", out, "--no-cache")
    assert "1 thread renumbered: " in result.stderr
    assert "overlap" not in result.stderr
    assert dropped(out) == 0
    events = json.loads(out.read_text())["traceEvents"]
    main = [event for event in events if event["tid"] == 9]
    other = [event for event in events if event["tid"] != 9]
    assert main == numbered(odd, 9)["traceEvents"][3:]
    [new] = {event["tid"] for event in other}
    assert new in range(1, 2**31)
    assert [event | {"tid": odd} for event in other] == numbered(odd, 9)["traceEvents"][:3]


def test_odd_numbers_that_nothing_is_taken_for_stay(tmp_path):
    tids = {event["tid"] for event in tids_of(tmp_path, numbered(-5, 7))[1]}
    assert tids == {-5, 7}


def test_of_two_odd_numbers_the_first_stays(tmp_path):
    tids = {event["tid"] for event in tids_of(tmp_path, numbered(-5, -6, 7))[1]}
    assert tids == {-5, 7, 10}  # 9 is the process


def test_a_thread_named_by_text_keeps_its_stream(tmp_path):
    """The extra track's name ends in the stream's number, as old traces need it."""
    document = overlapping((10, 10), (15, 10), tid="stream 7")
    for event in document["traceEvents"]:
        event.get("args", {}).pop("stream", None)
    tids, _ = tids_of(tmp_path, document)
    assert set(tids.values()) == {"stream 7", "overlap 1, stream 7"}
    streams = traceql.load(tmp_path / "out.json", cache=False).kernels.select("stream").unique().collect()
    assert streams["stream"].to_list() == [7]


# --- what else a file can hold


def assert_survives(path, tmp_path):
    """The whole time of a file: sound JSON with the same rows in each table."""
    out = sliced(path, tmp_path / "all.json", "--time", "0ns:", "--force", "--no-cache")
    json.loads(out.read_bytes())
    trace, again = traceql.load(path, cache=False), traceql.load(out, cache=False)
    for table in ("kernels", "launches", "ops", "python_calls", "spans", "syncs", "memory"):
        before = getattr(trace, table).collect()
        if table == "kernels":
            before = before.filter(pl.col("start_ns").is_not_null())  # never timed: in no stretch of time
        assert getattr(again, table).collect().height == before.height, (path.name, table)


@pytest.mark.parametrize(
    "name",
    [
        "01-windows-backslash", "02-quotes-in-name", "03-non-utf8-name", "04-control-characters", "05-inf-bandwidth",
        "06-truncated", "08-unterminated-array", "40-keys-after-events", "49-cut-in-string", "50-missing-comma",
        "51-objects-in-arguments", "54-decoy-keys", "59-duplicate-keys", "62-lone-surrogate", "63-odd-arguments",
        "66-garbage-between-events",
    ],
)  # fmt: skip
def test_what_must_be_mended_is_written_as_sound_json(name, tmp_path):
    assert_survives(CASES / f"{name}.json", tmp_path)


def test_numbers_that_do_not_fit_are_taken_as_the_reader_takes_them(tmp_path):
    """Else the kernels of a trace would be none of the file's, and a slice would be without them."""
    assert_survives(CASES / "73-numbers-out-of-range.json", tmp_path)


@pytest.mark.slow
def test_everything_of_every_case_survives(tmp_path):
    n_read = 0
    for path in sorted(CASES.glob("*")):
        try:
            has_time = traceql.load(path, cache=False).meta.span_ns is not None
        except TraceqlError:
            continue
        if has_time:
            assert_survives(path, tmp_path)
            n_read += 1
    assert n_read > 60


def test_counters_brackets_and_asynchronous_events_stay_together(tmp_path):
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 0, "dur": 1},
        {"ph": "B", "cat": "x", "name": "outer", "pid": 1, "tid": 1, "ts": 2},
        {"ph": "B", "cat": "x", "name": "inner", "pid": 1, "tid": 1, "ts": 3},
        {"ph": "E", "cat": "x", "pid": 1, "tid": 1, "ts": 4},
        {"ph": "b", "cat": "y", "name": "long", "id": "0x1", "pid": 1, "tid": 1, "ts": 5},
        {"ph": "b", "cat": "y", "name": "short", "id": "0x2", "pid": 1, "tid": 1, "ts": 5},
        {"ph": "e", "cat": "y", "name": "short", "id": "0x2", "pid": 1, "tid": 1, "ts": 6},
        {"ph": "C", "name": "early", "pid": 1, "tid": 1, "ts": 9, "args": {"n": 1}},
        {"ph": "C", "name": "counter", "pid": 1, "tid": 1, "ts": 11, "args": {"n": 2}},
        {"ph": "i", "name": "instant", "pid": 1, "tid": 1, "ts": 12},
        {"ph": "E", "cat": "x", "pid": 1, "tid": 1, "ts": 15},
        {"ph": "e", "cat": "y", "name": "long", "id": "0x1", "pid": 1, "tid": 1, "ts": 30},
    ]  # fmt: skip
    source = tmp_path / "source.json"
    source.write_text(json.dumps({"traceEvents": events}))
    out = sliced(source, tmp_path / "out.json", "--time", "10us:20us", "--no-cache")
    kept = json.loads(out.read_text())["traceEvents"]
    assert [(e["ph"], e.get("name"), e["ts"]) for e in kept] == [
        ("B", "outer", 2), ("b", "long", 5), ("C", "counter", 11), ("i", "instant", 12), ("E", None, 15),
        ("e", "long", 30),
    ]  # fmt: skip


def test_a_merged_file_gives_one_of_its_ranks(tmp_path):
    source = CASES / "33-merged-ranks.json"
    ranks = traceql.load(source, cache=False).kernels.group_by("rank").len().collect()
    assert ranks.height == 2
    for rank, n in ranks.rows():
        out = sliced(source, tmp_path / f"{rank}.json", "--rank", rank, "--time", "0ns:", "--no-cache")
        assert traceql.load(out, cache=False).kernels.collect()["rank"].to_list() == [rank] * n


# --- the command


def test_packed_or_not_the_content_is_the_same(tmp_path):
    plain = sliced(STACK, tmp_path / "a.json", "--step", "1").read_text()
    for name in ("a.json.gz", "a.json.zst"):
        assert text_of(sliced(STACK, tmp_path / name, "--step", "1")) == plain
    assert run(STACK, "--step", "1").stdout == plain
    piped = CliRunner().invoke(main, ["slice", "-", "--step", "1"], input=STACK.read_bytes())
    assert piped.stdout == plain


def test_a_cut_off_source_is_cut_as_far_as_it_goes(tmp_path):
    source = tmp_path / "cut.json"
    source.write_text(text_of(STACK)[:1_500_000])
    result = run(source, "--time", "0ns:", "-o", tmp_path / "out.json", "--no-cache")
    assert result.exit_code == 0
    assert "source: The file ends in the middle" in result.stderr
    assert len(json.loads((tmp_path / "out.json").read_text())["traceEvents"]) > 1000


def test_one_rank_of_a_run(tmp_path):
    run_of_two = [FIXTURES / "glm5" / f"tiny-pool-graph-TP-{rank}.json.gz" for rank in (0, 1)]
    refused = run(*run_of_two, "--step", "1", "-o", tmp_path / "out.json")
    assert refused.exit_code == 2
    assert "a slice is of one rank, and 2 are named" in refused.stderr
    assert "traceql merge" in refused.stderr
    one = sliced(run_of_two[1], tmp_path / "one.json", "--step", "1")
    result = run(*run_of_two, "--rank", "1", "--step", "1", "-o", tmp_path / "out.json")
    assert result.exit_code == 0
    assert (tmp_path / "out.json").read_text() == one.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((STACK,), "name a window"),
        ((STACK, "--step", "9"), "The steps are 0 to 2 (stage unknown)."),
        ((STACK, "--layer", "9"), "The layers are 0 to 3."),
        ((STACK, "--time", "1s:"), "It lasts 44.246 ms"),
        ((STACK, "--time", "5:6"), "is not a time such as 12.5ms"),
        ((STACK, "--time", "6ms:5ms"), "must end after its begin"),
        ((STACK, "--around", "nothing"), "no GPU activity here has 'nothing' in its name"),
        ((STACK, "--around", "copy", "--occurrence", "100"), "There are"),
        ((STACK, "--step", "1", "--margin", "1ms"), "need --around"),
        ((STACK, "--step", "1", "--time", ":1ms"), "nothing lies in step 1"),
        ((STACK, "--step", "1", "--rank", "4"), "there is no rank 4"),
    ],
)
def test_faults_are_told_with_what_there_is(arguments, said, tmp_path):
    out = tmp_path / "out.json"
    result = run(*arguments, "-o", out)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_unasked(tmp_path):
    source = tmp_path / "trace.json.gz"
    shutil.copy(STACK, source)
    before = source.read_bytes()
    assert "is the trace itself" in run(source, "--step", "1", "-o", source, "--force").stderr
    other = tmp_path / "other.json"
    other.write_text("mine")
    assert "exists" in run(source, "--step", "1", "-o", other).stderr
    assert "does not say how to pack" in run(source, "--step", "1", "-o", tmp_path / "out.txt").stderr
    assert run(source, "--step", "77", "-o", other, "--force").exit_code == 2
    assert source.read_bytes() == before
    assert other.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.json", "trace.json.gz"]


# --- real traces


def assert_has_figures(source, tmp_path):
    """Of a step in the middle, and of a stretch of time: the sums are those of the whole trace, and all is shown."""
    trace = traceql.load(source)
    found = steps(trace)
    span_ns = trace.meta.span_ns
    assert span_ns
    start, end = span_ns // 3, span_ns // 2 + 1
    ends = pl.max_horizontal(pl.col("start_ns") + pl.col("dur_ns"), pl.col("start_ns") + 1)
    running = trace.kernels.filter((pl.col("start_ns") < end) & (ends > start)).select("kernel_id").collect()
    windows = [(("--time", f"{start}ns:{end}ns"), running)]
    if found.height:
        step = found["step"].unique().sort().to_list()[found["step"].n_unique() // 2]
        windows.append((("--step", step), kernel_steps(trace).filter(pl.col("step") == step)))
    for options, kernels in windows:
        result = run(source, *options, "-o", tmp_path / "slice.json", "--force")
        if result.exit_code == 2:
            assert kernels.height == 0
            assert "no event lies in" in result.stderr
            continue
        assert result.exit_code == 0, result.output
        assert sums(traceql.load(tmp_path / "slice.json", cache=False)) == sums(trace, kernels), options
        assert dropped(tmp_path / "slice.json") == 0, options


@pytest.mark.shared
def test_public_traces_have_their_figures(shared, tmp_path):
    n_read = 0
    for source in sorted((shared / "public").rglob("*.json*")):
        trace = traceql.load(source)
        if trace.meta.span_ns:
            assert_has_figures(source, tmp_path)
            n_read += 1
    assert n_read > 35


@pytest.mark.shared
def test_steps_of_public_traces_are_what_a_slow_count_says(shared, tmp_path):
    n_read = 0
    for source in sorted((shared / "public").rglob("*.json.gz")):
        found = steps(traceql.load(source))
        if (
            found.height
            and (found["method"] == "annotation").all()
            and found["label"].str.contains("^ProfilerStep#").all()
        ):
            marks = [e for e, _ in events_of(source) if e.get("cat") == "user_annotation" and is_step(e["name"])]
            if len(marks) == found["step"].n_unique():
                step = len(marks) // 2
                assert_is_step(source, sliced(source, tmp_path / "step.json", "--step", step, "--force"), step)
                n_read += 1
    assert n_read > 8


@pytest.mark.shared
@pytest.mark.parametrize("name", ["before-eager-stack", "after-eager", "after-graph-stack"])
def test_traces_of_a_server_have_their_figures(name, shared, tmp_path):
    assert_has_figures(shared / "sglang" / f"{name}-TP-0.trace.json.zst", tmp_path)


@pytest.mark.shared
def test_the_largest_trace_has_its_figures(shared, tmp_path):
    assert_has_figures(shared / "glm5" / "glm5-pool-eager-stack-TP-0.json.zst", tmp_path)
