"""Values in the text of an event, and tracks for slices that overlap, against what json and a slow count say."""

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_slice import perfetto_ns

from traceql.ingest.event_text import replaced
from traceql.slicing.tracks import as_read, exact, lanes

KEYS = ("pid", "tid", "ts", "id")
texts = st.text(st.sampled_from('abc"\\{}[]:, \n_tidps'), max_size=8)
scalars = st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(texts | st.sampled_from(KEYS), v, max_size=3)
)
events = st.dictionaries(st.sampled_from([*KEYS, "args", "name", "ph", "x:"]), values, min_size=1)


@given(events, st.sampled_from([None, 1, 4]), st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")]))
def test_only_the_events_own_values_are_replaced(event, indent, separators):
    """Whatever stands in names and arguments; what is an object or a list itself stays."""
    text = json.dumps(event, indent=indent, separators=separators).encode()
    found = json.loads(replaced(text, {key.encode(): b'"new"' for key in KEYS}))
    assert found == {k: "new" if k in KEYS and not isinstance(v, dict | list) else v for k, v in event.items()}


@pytest.mark.parametrize("text", [b'{"tid": 1, "args": {"tid": 2}, "tid": 3}', b'{"tid": 1,"name": "tid" ,"tid":3}'])
def test_of_a_key_that_stands_twice_the_last_counts(text):
    assert json.loads(replaced(text, {b"tid": b"4"}))["tid"] == 4
    assert json.loads(replaced(text, {b"tid": lambda old: old + b"0"}))["tid"] == 30


def test_every_other_byte_stays():
    text = b'{ "ph" : "X",\r\n\t"name": "a \\"tid\\": 5", "tid":7 ,"args":{"tid":  8}}'
    assert replaced(text, {b"tid": b"99", b"id": b"0"}) == text.replace(b'"tid":7', b'"tid":99')


def crosses(one, other):
    (a, b), (c, d) = sorted([one, other], key=lambda each: (each[0], -each[1]))
    return a < c < b < d


slices = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(0, 12)), max_size=14)


@given(slices, st.sampled_from([0, 10**15, 1694128201553123 * 1000]), st.sampled_from([as_read, exact]))
def test_on_a_track_nothing_crosses(found, begin, read):
    """Neither exactly nor as Perfetto reads it; what crosses nothing stays on its own track."""
    thread, start, dur = (np.array([each[i] for each in found], np.int64) for i in range(3))
    start += begin
    lane = lanes(thread, start, dur, read)
    spans = [(start, start + dur), (read(start), read(start) + read(dur))]
    crossed = set()
    for i, j in combinations(range(len(found)), 2):
        if thread[i] == thread[j] and any(crosses((s[i], e[i]), (s[j], e[j])) for s, e in spans):
            assert lane[i] != lane[j]
            crossed |= {i, j}
    assert all(lane[i] == 0 for i in range(len(found)) if i not in crossed)


@given(st.integers(0, 2**62))
def test_times_are_read_as_perfetto_reads_them(ns):
    """As its own engine reads them (tests/test_viewers.py)."""
    text = f"{ns // 1000}.{ns % 1000:03d}"
    assert as_read(np.array([ns]))[0] == perfetto_ns(text)
