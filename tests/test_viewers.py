"""Written traces in Perfetto's own engine: it drops nothing, shows each slice on its thread, and draws every arrow."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium
from click.testing import CliRunner
from conftest import FIXTURES
from perfetto import Perfetto
from reference_slice import dropped, events_of, perfetto_ns, perfetto_thread, text_of

import traceql
from traceql.cli import main

pytestmark = pytest.mark.browser

STACK = FIXTURES / "glm5" / "tiny-pool-stack-TP-0.json.gz"
SGLANG = FIXTURES / "sglang" / "after-graph-TP-0.trace.json.zst"
RUN = [FIXTURES / "glm5" / f"tiny-pool-eager-TP-{rank}.json.gz" for rank in (0, 1)]
CASES = FIXTURES / "cases"
DROPPED = "slice_drop_overlapping_complete_event"
LARGEST_BYTES = 3_000_000
"""Of the public files that are tried, packed: the engine takes a second for 10,000 events."""


@pytest.fixture(scope="module")
def perfetto(browser: Chromium) -> Iterator[Perfetto]:
    engine = Perfetto(browser)
    yield engine
    engine.close()


def written(command: str, sources: list[Path], out: Path, *options: str) -> Path:
    result = CliRunner().invoke(main, [command, *map(str, sources), "-o", str(out), "--force", "--no-cache", *options])
    assert result.exit_code == 0, result.output
    return out


def faults(perfetto: Perfetto) -> dict[Any, Any]:
    """What the engine lost of the trace it has, by the name of the statistic."""
    return dict(perfetto.rows("SELECT name, value FROM stats WHERE value AND severity != 'info'"))


def tracks_of(perfetto: Perfetto) -> Counter[frozenset[Any]]:
    """What is on each of its threads: how often (name, begin, length)."""
    threads = defaultdict[Any, Counter[Any]](Counter)
    for track, *shown in perfetto.rows("SELECT track_id, name, ts, dur FROM slice"):
        threads[track][tuple(shown)] += 1
    return Counter(frozenset(found.items()) for found in threads.values())


def _track(event: dict[str, Any]) -> tuple[Any, ...]:
    """Where it belongs: on its thread, but for instants that are those of all."""
    return () if event["ph"] != "X" and event.get("s") == "g" else (event["pid"], event["tid"])


def assert_is_shown(perfetto: Perfetto, path: Path) -> None:
    """Every slice and instant, thread by thread as in the file, and every arrow."""
    perfetto.load(text_of(path).encode())
    assert faults(perfetto) == {}
    events = [event for event, _ in events_of(path)]
    threads = defaultdict[Any, Counter[Any]](Counter)
    for event in events:
        if event["ph"] in "XiI":
            times = perfetto_ns(event["ts"]), perfetto_ns(event.get("dur", 0))
            threads[_track(event)][event["name"], *times] += 1
    assert tracks_of(perfetto) == Counter(frozenset(found.items()) for found in threads.values())
    begun = {(e["cat"], e["name"], e["id"]) for e in events if e["ph"] == "s"}
    ends = [(e["cat"], e["name"], e["id"]) for e in events if e["ph"] in "tf"]
    assert perfetto.rows("SELECT count(*) FROM flow") == [(sum(end in begun for end in ends),)]


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (STACK, ("--step", "1")),
        (STACK, ("--layer", "2")),
        (SGLANG, ("--step", "5")),
        (SGLANG, ("--time", "100ms:110ms")),
        (CASES / "15-dependent-launch-overlap.json", ("--time", "0ns:")),
        (CASES / "16-equal-ends-in-float.json", ("--time", "0ns:")),
        (CASES / "18-python-frame-overrun.json", ("--time", "0ns:")),
        (CASES / "41-large-stream-ids.json", ("--time", "0ns:")),
    ],
    ids=lambda value: getattr(value, "name", " ".join(value) if isinstance(value, tuple) else value),
)
def test_a_slice_is_shown_whole(perfetto, source, options, tmp_path):
    assert_is_shown(perfetto, written("slice", [source], tmp_path / "slice.json", *options))


@pytest.mark.parametrize("options", [(), ("--step", "1")], ids=["everything", "a step"])
def test_a_merged_run_is_shown_whole(perfetto, options, tmp_path):
    out = written("merge", RUN, tmp_path / "all.json", *options)
    assert_is_shown(perfetto, out)
    kernels = Counter(e["pid"] for e, _ in events_of(out) if e.get("cat") == "kernel")
    shown = perfetto.rows(
        "SELECT process.name, count(*) FROM slice JOIN thread_track ON track_id = thread_track.id"
        " JOIN thread USING (utid) JOIN process USING (upid) WHERE slice.category = 'kernel' GROUP BY upid"
    )
    assert Counter(dict(shown)) == kernels
    assert len(kernels) == 2


@pytest.mark.parametrize(
    "source",
    [STACK, RUN[0], *sorted(CASES.glob("1[5-8]-*.json")), CASES / "41-large-stream-ids.json"],
    ids=lambda path: path.name,
)
def test_as_recorded_slices_are_lost(perfetto, source):
    """Without what slicing does about them: so the tests above can fail, and the rule of tests/reference_slice.py is
    that of the engine."""
    perfetto.load(text_of(source).encode())
    assert faults(perfetto)[DROPPED] == dropped(source) > 0


def test_times_and_threads_are_read_as_the_rule_says(perfetto):
    times = ["0", "1.0", "1.0015", "0.1239", "5410.005", "8218390381.4509", "1e3"]
    times += [f"1694128201553{us}.{ns:03d}" for us in (123, 124, 987) for ns in range(0, 1000, 37)]
    numbers = [0, 1, 9, -1, -9, 2**31, 2**32 - 1, 2**32, 2**32 + 9, 94235817463296, "9", "stream 7", ""]
    slices = [{"ph": "X", "name": text, "pid": 1, "tid": "t", "dur": 0} for text in times]
    text = ", ".join(json.dumps(each)[:-1] + f', "ts": {each["name"]}}}' for each in slices)
    perfetto.load(f'{{"traceEvents": [{text}]}}'.encode())
    assert dict(perfetto.rows("SELECT name, ts FROM slice")) == {each: perfetto_ns(each) for each in times}
    slices = [
        {"ph": "X", "name": f"{pid!r} {tid!r}", "pid": pid, "tid": tid, "ts": at, "dur": 0}
        for at, (pid, tid) in enumerate((pid, tid) for pid in (9, 0, -1, "[RANK0] 9") for tid in numbers)
    ]
    perfetto.load(json.dumps({"traceEvents": slices}).encode())
    expected, found = defaultdict(set), defaultdict(set)
    for each in slices:
        expected[perfetto_thread(each)].add(each["name"])
    for track, name in perfetto.rows("SELECT track_id, name FROM slice"):
        found[track].add(name)
    assert sorted(map(sorted, found.values())) == sorted(map(sorted, expected.values()))


def test_public_traces_are_shown_whole(perfetto, shared, tmp_path):
    """A sixth of each; as recorded, some lose dozens of slices, as they overlap or as threads are taken for one."""
    n_shown = 0
    for source in sorted((shared / "public").rglob("*.json*")):
        span_ns = traceql.load(source).meta.span_ns
        if not span_ns or source.stat().st_size > LARGEST_BYTES:
            continue
        out = written("slice", [source], tmp_path / "slice.json", "--time", f"{span_ns // 3}ns:{span_ns // 2 + 1}ns")
        if any(event["ph"] == "X" for event, _ in events_of(out)):  # one has begin and end marks alone
            assert_is_shown(perfetto, out)
            n_shown += 1
    assert n_shown > 35


def test_a_merged_server_is_shown_whole(perfetto, shared, tmp_path):
    sources = sorted((shared / "sglang-tp2").glob("after-graph-TP-*"))
    assert_is_shown(perfetto, written("merge", sources, tmp_path / "all.json", "--step", "5:7"))
