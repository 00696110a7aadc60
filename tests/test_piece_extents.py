"""What a slice need not decode: pieces far from its window are skipped, and nothing is missed by it."""

import json
import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import FIXTURES
from reference_slice import text_of

import traceql
from traceql.analyses.summary import Selection
from traceql.errors import MissingDataError
from traceql.ingest import pieces, source
from traceql.ingest.piece_extents import PIECES, FarPieces
from traceql.ingest.pieces import Piece, PieceReader
from traceql.slicing.cut import Written, cut
from traceql.slicing.stretches import Stretches
from traceql.slicing.window import Wish, find_window
from traceql.trace import Trace

PACKED = FIXTURES / "glm5" / "tiny-pool-stack-TP-0.json.gz"
ALONE = set("XiICstf")


@pytest.fixture(params=[2_000, 30_000])
def small_pieces(request, monkeypatch):
    """Pieces as a file of some hundred MB has them, in a small one."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", request.param)
    monkeypatch.setattr(source, "_BLOCK_BYTES", request.param)
    return request.param


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """A recording with Python stacks, unpacked: blocks of a packed file are not as small as wanted here."""
    path = tmp_path_factory.mktemp("stack") / "stack.json"
    path.write_text(text_of(PACKED))
    return path


def read(path: Path) -> Trace:
    return traceql.load(path, cache=False, n_workers=1)


def pieces_of(trace: Trace) -> pl.DataFrame:
    assert trace.pieces is not None
    return trace.pieces.collect()


def document(path: Path, trace: Trace, wish: Wish) -> bytes | None:
    try:
        return b"".join(cut(path, trace, find_window(trace, wish), Written()))
    except MissingDataError:
        return None


def windows(trace: Trace, seed: int, n: int) -> list[Wish]:
    """Some stretches of the trace, short and long, at its ends too."""
    rng = random.Random(seed)
    span = trace.meta.span_ns or 1
    starts = [0, span - 1, *(rng.randrange(span) for _ in range(n))]
    return [Wish(time=(start, start + rng.choice((1, 1000, span // 100, span // 4)))) for start in starts]


def check_nothing_is_missed(path: Path, wishes: list[Wish]) -> int:
    """With and without what is known of the pieces a slice is the same to the byte; how many had something in them."""
    trace = read(path)
    found = [document(path, trace, wish) for wish in wishes]
    assert found == [document(path, replace(trace, pieces=None), wish) for wish in wishes]
    return sum(each is not None for each in found)


def test_a_slice_misses_nothing(small_pieces, stack) -> None:
    trace = read(stack)
    assert pieces_of(trace).height > 2_000_000 / small_pieces / 3
    wishes = [*windows(trace, 1, 3), Wish(Selection(1, 2)), Wish(Selection(0, 1), layer=1), Wish(around="copy")]
    assert check_nothing_is_missed(stack, wishes) > 4


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))])
def test_a_slice_of_a_damaged_file_misses_nothing(small_pieces, seed, stack, tmp_path) -> None:
    """Bytes lost, changed, or no text: events that lie in two pieces are put together as without skipping."""
    rng = random.Random(seed)
    text = bytearray(stack.read_bytes())
    for _ in range(12):
        at = rng.randrange(1000, len(text) - 1000)
        kind = rng.randrange(4)
        if kind == 0:
            del text[at : at + rng.randrange(1, 200)]
        elif kind == 1:
            text[at] = rng.choice(b'"}{],\xff\x00')
        elif kind == 2:
            text[at:at] = b'{"a": [{"b": 1}, {"c": 2}]},'
        else:
            text[at:at] = b"\xe9"
    path = tmp_path / "damaged.json"
    path.write_bytes(text if seed % 2 else text[: len(text) * 2 // 3])
    assert check_nothing_is_missed(path, windows(read(path), seed, 2)) > 1


def test_what_belongs_together_is_found_however_far(small_pieces, tmp_path) -> None:
    """Begin and end, the parts of an asynchronous event, names of threads: in pieces of their own, far away."""
    thread = {"pid": 9, "tid": 1}
    far = [{"ph": "X", "cat": "cpu_op", "name": f"op{i}", "ts": 10_000 + i, "dur": 1} | thread for i in range(2000)]
    events = [
        {"ph": "B", "name": "outer", "ts": 1} | thread,
        {"ph": "b", "cat": "request", "id": 3, "name": "r", "ts": 2} | thread,
        *far,
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 90_000, "dur": 9, "pid": 0, "tid": 7, "args": {"stream": 7}},
        {"ph": "C", "name": "power", "ts": 90_003, "pid": 9, "args": {"w": 1}},
        *({**event, "ts": event["ts"] + 100_000} for event in far),
        {"ph": "e", "cat": "request", "id": 3, "name": "r", "ts": 300_000} | thread,
        {"ph": "E", "ts": 300_001} | thread,
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
    ]
    path = tmp_path / "far.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read(path)
    assert pieces_of(trace)["first_ns"].count() > 4
    written = document(path, trace, Wish(time=(90_000_000, 90_005_000)))
    assert written is not None
    assert [event["ph"] for event in json.loads(written)["traceEvents"]] == list("BbXCeEM")


def slow_extent(events: list[dict[str, Any]]) -> tuple[int, int] | None:
    """From the first start to the last end, in ns, of events that may be left out."""
    if not {event.get("ph") for event in events} <= ALONE:
        return None
    starts = [int(Decimal(event["ts"]) * 1000) for event in events]
    ends = [start + int(Decimal(event.get("dur", 0)) * 1000) for start, event in zip(starts, events, strict=True)]
    return min(starts), max(ends)


def test_extents_against_a_slow_count(small_pieces, stack) -> None:
    """Each piece by itself, with json and decimals."""
    table = pieces_of(read(stack))
    with source.open_source(stack) as opened:
        found = list(PieceReader(opened.blocks()))
    assert table["n_bytes"].to_list()[:-1] == [len(piece.data) for piece in found[:-1]]
    n_known = 0
    for piece, (first, last) in zip(found[:-1], table.select("first_ns", "last_ns").iter_rows(), strict=False):
        try:
            events = json.loads(b"[" + piece.data + b"]", parse_float=Decimal)
        except json.JSONDecodeError:
            assert first is None
            continue
        expected = slow_extent(events)
        assert (first is None) is (expected is None)
        if expected is not None:
            assert first == expected[0]
            assert expected[1] <= last <= expected[1] + 1  # what has no length counts as 1 ns
            n_known += 1
    assert n_known > table.height * 0.8


def test_the_last_piece_and_one_of_another_length_are_read() -> None:
    table = PIECES.check(pl.DataFrame({"n_bytes": [4, 4], "first_ns": [0, None], "last_ns": [9, None]}, PIECES.schema))
    nothing = Stretches.union([])
    far = FarPieces(table, nothing.meet)
    assert Piece(0, b"1234", is_last=False) in far
    assert Piece(0, b"12345", is_last=False) not in far
    assert Piece(0, b"1234", is_last=True) not in far
    assert Piece(1, b"1234", is_last=False) not in far
    assert Piece(2, b"1234", is_last=False) not in far


def test_the_cache_keeps_what_is_known_of_pieces(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, second = traceql.load(PACKED), traceql.load(PACKED)
    assert pieces_of(first).equals(pieces_of(second))
    assert pieces_of(first).height
