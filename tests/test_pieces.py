"""Cutting, decoding and putting together again, whatever the piece size, layout and nesting."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceql.ingest import pieces
from traceql.ingest.assemble import assemble
from traceql.ingest.pieces import PieceReader
from traceql.ingest.quirks import QuirkCounter
from traceql.ingest.worker import decode_pieces

text = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ['},{"ph"', '"', "\\", "}, {", "[]", '\\"},{\\"x', '"traceEvents": [']
)
nested = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=12,
)
event = st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "i", "f", "M", "Q"]),
        "cat": st.sampled_from(["kernel", "cpu_op", "ac2g", "own,category"]),
        "name": text,
        "pid": st.integers(-1, 3) | st.sampled_from(["Spans", ""]),
        "tid": st.integers(0, 3),
        "ts": st.integers(0, 10**6),
        "dur": st.integers(0, 100),
    },
    optional={"args": st.dictionaries(text, nested, max_size=3)},
)
layouts = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}, {"indent": 1}])


def blocks(data: bytes, size: int):
    return (data[i : i + size] for i in range(0, len(data), size))


def read(data: bytes, block_size: int = 64):
    reader = PieceReader(blocks(data, block_size))
    quirks = QuirkCounter()
    decoded = decode_pieces(reader)
    return reader, assemble([decoded], quirks), dict(quirks.counts())


def rows(events, table: str):
    arrays = events.tables.get(table)
    if arrays is None:
        return []
    columns = (arrays["name"], arrays["thread"], arrays["ts"], arrays["dur"])
    return [(events.names[n], *events.threads[t], int(ts), int(dur)) for n, t, ts, dur in zip(*columns, strict=True)]


def expected(events, category: str):
    return [
        (e["name"], e["pid"], e["tid"], e["ts"] * 1000, e["dur"] * 1000)
        for e in events
        if e["ph"] == "X" and e["cat"] == category
    ]


@pytest.fixture(params=[1, 40, 300], autouse=True, scope="module")
def piece_bytes(request):
    saved = pieces.PIECE_BYTES, pieces._WINDOW_BYTES
    pieces.PIECE_BYTES, pieces._WINDOW_BYTES = request.param, max(request.param // 2, 1)
    yield
    pieces.PIECE_BYTES, pieces._WINDOW_BYTES = saved


@settings(max_examples=60)
@given(
    st.lists(event, max_size=12),
    layouts,
    st.integers(1, 200),
    st.booleans(),
    st.dictionaries(text, nested, max_size=2),
)
def test_every_event_is_read_once(events, layout, block_size, bare, keys):
    keys.pop("traceEvents", None)
    whole = events if bare else {**keys, "traceEvents": events, "traceName": '},{"x'}
    reader, found, quirks = read(json.dumps(whole, **layout).encode(), block_size)
    quirks.pop("odd-arguments", None)  # an argument may happen to have a name that is read
    assert quirks == {}
    assert found.event_counts == Counter((e["ph"], e["cat"]) for e in events)
    for category, table in (("kernel", "gpu"), ("cpu_op", "ops")):
        assert sorted(rows(found, table), key=repr) == sorted(expected(events, category), key=repr)
    assert found.after_events is not None
    assert reader.is_wrapped is not bare


@settings(max_examples=60)
@given(st.lists(event, min_size=1, max_size=8), layouts, st.data())
def test_a_cut_file_loses_only_what_is_behind_the_cut(events, layout, data):
    whole = json.dumps({"schemaVersion": 1, "traceEvents": events}, **layout).encode()
    first = whole.index(b"[") + 1
    cut = data.draw(st.integers(first, len(whole) - 2))
    _, found, quirks = read(whole[:cut])
    if found.after_events is None and quirks:
        assert quirks == {"truncated": 1}
    names = rows(found, "gpu")
    assert sorted(names, key=repr) == sorted(expected(events, "kernel")[: len(names)], key=repr)


def test_an_event_larger_than_many_pieces():
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": i, "dur": 1, "args": {"list": [{"a": 1}] * 500}}
        for i in range(3)
    ]
    _, found, quirks = read(json.dumps({"traceEvents": events}).encode())
    assert (len(found.tables["gpu"]["ts"]), quirks) == (3, {})


@pytest.mark.parametrize(
    "args", ['[{}, {"k": 1}, [2, {}, {"k": 3}]]', '[{}, {"k": 1}, {"k": [{}, {"k": 3}]}, 4, [5, {}, {"k": 6}]]']
)
def test_a_piece_may_begin_and_end_at_any_depth_of_an_event(args):
    event = f'{{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {{"list": {args}}}}}'
    for size in range(1, 90):
        _, found, quirks = read(f'{{"traceEvents": [{event}, {event}]}}'.encode(), size)
        assert (len(found.tables["gpu"]["ts"]), quirks) == (2, {})


def test_arrays_of_objects_behind_the_events_are_no_events():
    text = json.dumps(
        {
            "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}],
            "more": [{"ph": "X"}] * 50,
        }
    )
    _, found, quirks = read(text.encode())
    assert (found.event_counts, quirks) == (Counter({("X", "kernel"): 1}), {})


def test_one_broken_event_in_the_middle():
    good = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}'
    broken = '{"ph": "X", "cat": "kernel", "name": "a "quoted" name", "ts": 1, "dur": 1}'
    text = f'{{"traceEvents": [{", ".join([good] * 20 + [broken] + [good] * 20)}]}}'
    _, found, quirks = read(text.encode())
    assert len(found.tables["gpu"]["ts"]) == 40
    assert quirks == {"broken-event": 1}
