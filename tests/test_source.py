"""Sources: every way a trace can be stored, cut off, damaged, or be something else."""

import gzip
import io
import json
import lzma
import os
import pickle
import random
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
import zstandard

from traceql.errors import InputError
from traceql.ingest.looks import looks_like, not_a_trace
from traceql.ingest.source import open_source

EVENTS = [{"ph": "X", "cat": "kernel", "name": f"k{n}", "ts": n * 7, "dur": n % 13} for n in range(20_000)]
TRACE = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS}).encode()
SMALL = b'{"traceEvents": []}'
NOISE = json.dumps({"traceEvents": [random.Random(1).randbytes(2_500_000).hex()]}).encode()
"""5 MB that compress to half."""


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def gz(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=1)


def xz(data: bytes) -> bytes:
    return lzma.compress(data, preset=0)


COMPRESS = {"gzip": gz, "zstd": zstd, "xz": xz}
SKIPPABLE = bytes.fromhex("532a4d18") + (5).to_bytes(4, "little") + b"hello"


def stored(folder: Path, data: bytes, name: str = "a.json") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def content(path: Path) -> tuple[bytes, bool]:
    """(all blocks joined, whether it was truncated)."""
    with open_source(path) as source:
        return b"".join(source.blocks()), source.truncated


def refusal(path: Path) -> InputError:
    with pytest.raises(InputError) as caught, open_source(path) as source:
        list(source.blocks())
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value


@pytest.fixture(params=COMPRESS)
def compress(request):
    return COMPRESS[request.param]


def test_plain_file(tmp_path):
    path = stored(tmp_path, TRACE, "rank0.json.gz")  # the name says gzip, the content does not
    with open_source(path) as source:
        blocks = list(source.blocks())
        assert b"".join(blocks) == TRACE
        assert (source.name, source.stored_bytes, source.read_bytes) == (
            "rank0.json.gz",
            len(TRACE),
            len(TRACE),
        )
        assert not source.truncated


def test_blocks_are_of_one_to_four_megabytes(tmp_path):
    for data in (NOISE, *(compress(NOISE) for compress in COMPRESS.values())):
        with open_source(stored(tmp_path, data)) as source:
            sizes = [len(block) for block in source.blocks()]
        assert len(sizes) > 3
        assert all(1 << 20 <= size <= 4 << 20 for size in sizes[:-1])
        assert 0 < sizes[-1] <= 4 << 20


def test_compressed_under_any_name(tmp_path, compress):
    data = compress(TRACE)
    with open_source(stored(tmp_path, data)) as source:
        assert b"".join(source.blocks()) == TRACE
        assert source.read_bytes == source.stored_bytes == len(data)
        assert not source.truncated


def test_progress_moves_with_the_blocks(tmp_path, compress):
    with open_source(stored(tmp_path, compress(NOISE))) as source:
        seen = [source.read_bytes for _ in source.blocks()]
        assert seen[0] < seen[len(seen) // 2] < seen[-1] == source.stored_bytes


def test_several_members(tmp_path, compress):
    parts = [TRACE[at : at + 400_000] for at in range(0, len(TRACE), 400_000)]
    assert content(stored(tmp_path, b"".join(map(compress, parts)))) == (TRACE, False)


def test_tiny_members(tmp_path, compress):
    parts = [TRACE[at : at + 100] for at in range(0, 20_000, 100)]
    assert content(stored(tmp_path, b"".join(map(compress, parts)))) == (TRACE[:20_000], False)


def test_members_that_hold_nothing(tmp_path, compress):
    assert content(stored(tmp_path, compress(b"") + compress(TRACE) + compress(b""))) == (TRACE, False)


@pytest.mark.parametrize("rest", [b"garbage", b"\0" * 100_000, b"\0", b"\x1f", b"{}"])
def test_bytes_after_the_last_member_do_no_harm(tmp_path, compress, rest):
    assert content(stored(tmp_path, compress(TRACE) + rest)) == (TRACE, False)


def test_padding_between_members(tmp_path, compress):
    assert content(stored(tmp_path, compress(TRACE) + b"\0" * 512 + compress(TRACE))) == (TRACE * 2, False)


def test_skippable_zstd_frames(tmp_path):
    data = SKIPPABLE + zstd(TRACE) + SKIPPABLE + SKIPPABLE + zstd(TRACE) + SKIPPABLE
    assert content(stored(tmp_path, data)) == (TRACE * 2, False)


def test_zstd_with_a_long_window(tmp_path):
    params = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    assert content(stored(tmp_path, packer.compress(TRACE) + packer.flush())) == (TRACE, False)


def test_gzip_cut_off(tmp_path):
    """All that the standard library can inflate is there, but for the bits that are in flight."""
    data = gzip.compress(TRACE)
    for cut in (200, 1000, len(data) // 2, len(data) - 9, len(data) - 8, len(data) - 1):
        found, truncated = content(stored(tmp_path, data[:cut]))
        expected = zlib.decompressobj(31).decompress(data[:cut])
        assert truncated
        assert TRACE.startswith(found)
        assert len(expected) - 300 <= len(found) <= len(expected)


@pytest.mark.parametrize("kind", ["zstd", "xz"])
def test_others_cut_off(tmp_path, kind):
    data = COMPRESS[kind](TRACE)
    found, truncated = content(stored(tmp_path, data[: len(data) // 2]))
    assert truncated
    assert TRACE.startswith(found)
    assert len(found) > len(TRACE) // 4


def test_second_member_cut_off(tmp_path, compress):
    data = compress(TRACE)
    found, truncated = content(stored(tmp_path, data + data[: len(data) // 2]))
    assert truncated
    assert found.startswith(TRACE)
    assert (TRACE * 2).startswith(found)


def test_a_wrong_checksum_at_the_end_costs_no_content(tmp_path):
    for compress in (gzip.compress, zstd):
        data = bytearray(compress(TRACE))
        data[-2] ^= 1
        assert content(stored(tmp_path, bytes(data))) == (TRACE, True)


def test_damaged_in_the_middle(tmp_path, compress):
    data = bytearray(compress(NOISE))
    at = len(data) // 2
    data[at : at + 64] = b"\xff" * 64
    found, truncated = content(stored(tmp_path, bytes(data)))
    assert truncated
    good = len(NOISE) // 2 - (1 << 18)  # near enough: what was before the damage
    assert found[:good] == NOISE[:good]


@pytest.mark.parametrize("start", ["1f8b0800000000000003", "28b52ffd", "fd377a585a00", "1f8b00"])
def test_compressed_garbage(tmp_path, start):
    error = refusal(stored(tmp_path, bytes.fromhex(start) + b"garbage of every sort" * 50))
    assert "cannot be inflated" in error.message


def test_cut_off_before_any_content(tmp_path, compress):
    assert "cut off before any content" in refusal(stored(tmp_path, compress(TRACE)[:8])).message


def test_gzip_of_random_bytes(tmp_path, compress):
    assert "binary data" in refusal(stored(tmp_path, compress(random.Random(2).randbytes(5000)))).message


def test_compressed_twice(tmp_path, compress):
    assert "compressed twice" in refusal(stored(tmp_path, compress(gzip.compress(TRACE)))).message


@pytest.mark.parametrize("kind", ["gzip", "xz"])
def test_memory_stays_small(tmp_path, kind):
    """However well the content packs, no more than a few blocks of it are held at once."""
    pytest.importorskip("resource")
    path = stored(tmp_path, COMPRESS[kind](b'{"traceEvents": [' + b" " * (1 << 27) + b"]}"))
    script = (
        "import resource, sys\n"
        "from traceql.ingest.source import open_source\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with open_source(sys.argv[1]) as source:\n"
        "    total = sum(map(len, source.blocks()))\n"
        "print(total, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    total, grown_mb = map(int, subprocess.check_output([sys.executable, "-c", script, path]).split())
    assert total == (1 << 27) + 19
    assert grown_mb < 40


def test_byte_order_mark_is_dropped(tmp_path, compress):
    assert content(stored(tmp_path, b"\xef\xbb\xbf" + TRACE)) == (TRACE, False)
    assert content(stored(tmp_path, compress(b"\xef\xbb\xbf" + TRACE))) == (TRACE, False)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_refused(tmp_path, encoding):
    error = refusal(stored(tmp_path, SMALL.decode().encode(encoding)))
    assert "UTF-16" in error.message
    assert "iconv" in error.hint


def test_white_space_before_the_trace_is_fine(tmp_path):
    found, truncated = content(stored(tmp_path, b" \r\n\t" + b" " * (3 << 20) + TRACE))
    assert (found.lstrip(), truncated) == (TRACE, False)


def test_closing_early(tmp_path, compress):
    with open_source(stored(tmp_path, compress(TRACE))) as source:
        assert TRACE.startswith(next(source.blocks()))


def test_name_that_is_not_utf_8(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.json"
    try:
        Path(os.fsdecode(path)).write_bytes(SMALL)
    except OSError:
        pytest.skip("this file system wants UTF-8 names")
    with open_source(os.fsdecode(path)) as source:
        assert source.name == "\ufffd.json"


SHOW = (
    "from traceql.ingest.source import open_source\n"
    "with open_source('-') as source:\n"
    "    total = sum(map(len, source.blocks()))\n"
    "    print(total, source.name, source.stored_bytes, source.read_bytes, source.truncated)\n"
)


@pytest.mark.parametrize("kind", ["plain", *COMPRESS])
def test_standard_input_is_a_pipe(kind):
    data = COMPRESS.get(kind, bytes)(TRACE)
    with subprocess.Popen([sys.executable, "-c", SHOW], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        for piece in (data[:1], data[1:3], data[3:5000], data[5000:]):  # sniffing must wait for enough
            process.stdin.write(piece)
            process.stdin.flush()
        process.stdin.close()
        assert process.stdout.read().decode().split() == [
            str(len(TRACE)),
            "-",
            "None",
            str(len(data)),
            "False",
        ]


def test_standard_input_without_a_trace():
    shown = subprocess.run([sys.executable, "-c", SHOW], input=b"", capture_output=True, check=False)
    assert b"InputError: standard input is empty" in shown.stderr
    shown = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, SHOW], capture_output=True, check=False
    )
    assert b"InputError: standard input is closed" in shown.stderr


def test_standard_input_is_a_terminal():
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    try:
        shown = subprocess.run([sys.executable, "-c", SHOW], stdin=theirs, capture_output=True, check=False)
    finally:
        os.close(ours)
        os.close(theirs)
    assert b"InputError: standard input is a terminal" in shown.stderr


def test_named_pipe(tmp_path):
    """What a shell gives for <(zcat trace.json.gz)."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = subprocess.Popen([sys.executable, "-c", f"open({str(path)!r}, 'wb').write(b'[' + b' ' * 3000000 + b']')"])
    with open_source(path) as source:
        assert source.stored_bytes is None
        assert sum(map(len, source.blocks())) == 3_000_002
    assert writer.wait() == 0


def test_missing_file(tmp_path):
    assert "does not exist" in refusal(tmp_path / "no.json").message
    assert "cannot be opened" in refusal(Path("a\0b")).message


def test_forbidden_file(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = stored(tmp_path, TRACE)
    path.chmod(0)
    assert "may not be read" in refusal(path).message


def test_a_folder_names_files_in_it(tmp_path):
    assert "no .json file" in refusal(tmp_path).hint
    for name in ("d.json", "b.json.gz", "a.json", "c.json", "notes.txt"):
        stored(tmp_path, SMALL, name)
    error = refusal(tmp_path)
    assert "is a folder" in error.message
    assert "a.json, b.json.gz, c.json." in error.hint


@pytest.mark.parametrize("pack", [bytes, *COMPRESS.values()])
@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b" \n\t\n", "white space"),
        (b" " * (1 << 21), "white space"),
    ],
)
def test_nothing_in_it(tmp_path, pack, data, fault):
    assert fault in refusal(stored(tmp_path, pack(data))).message


def sqlite_file(tmp_path: Path, *tables: str) -> bytes:
    with sqlite3.connect(tmp_path / "db") as database:
        for table in tables:
            database.execute(f"CREATE TABLE {table} (a INTEGER)")
    database.close()
    return (tmp_path / "db").read_bytes()


def zip_file(*names: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name in names:
            file.writestr(name, SMALL)
    return data.getvalue()


def tar_file() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        entry = tarfile.TarInfo("a.json")
        entry.size = len(SMALL)
        file.addfile(entry, io.BytesIO(SMALL))
    return data.getvalue()


def perfetto_file() -> bytes:
    """Packets with a length, as TraceWriter makes them; some of 91 and 123 bytes, which read as [ and {."""
    packets = [bytes((8, n)) + b"\x12" + bytes(n % 256 for n in range(size)) for n, size in enumerate((88, 120, 300))]
    return b"".join(b"\n" + varint(len(packet)) + packet for packet in packets)


def varint(number: int) -> bytes:
    return bytes((number,)) if number < 128 else bytes((number & 127 | 128, number >> 7))


def test_sqlite(tmp_path):
    assert (
        "Nsight Systems export"
        in refusal(stored(tmp_path, sqlite_file(tmp_path, "CUPTI_ACTIVITY_KIND_KERNEL"))).message
    )
    (tmp_path / "db").unlink()
    assert "rocprof database" in refusal(stored(tmp_path, sqlite_file(tmp_path, "rocpd_kernelapi"))).message
    (tmp_path / "db").unlink()
    assert "a SQLite database" in refusal(stored(tmp_path, sqlite_file(tmp_path, "anything"))).message


CHAKRA = {
    "schema": "1.1.1-chakra.0.0.4",
    "pid": 1,
    "time": "now",
    "start_ts": 1,
    "nodes": [{"id": 1, "name": "p"}],
}
SNAPSHOT = {
    "segments": [{"device": 0, "address": 1, "total_size": 2, "blocks": [{"size": 1}]}],
    "device_traces": [[]],
}


@pytest.mark.parametrize(
    ("data", "what"),
    [
        pytest.param(b"\x07\0NVIDIA", "binary data", id="binary"),
        pytest.param(b"NVIDIA Tegra Profiler Report, 1.0\0\1\2", "an Nsight Systems report", id="nsys"),
        pytest.param(zip_file("a.json"), "a zip archive", id="zip"),
        pytest.param(zip_file("archive/data.pkl", "archive/data/0"), "a PyTorch checkpoint", id="pt"),
        pytest.param(pickle.dumps(SNAPSHOT), "a Python pickle", id="pickle"),
        pytest.param(pickle.dumps([1, 2], protocol=2), "a Python pickle", id="pickle-2"),
        pytest.param(tar_file(), "a tar archive", id="tar"),
        pytest.param(perfetto_file(), "a binary Perfetto trace", id="perfetto"),
        pytest.param(b"BZh91AY&SY", "bzip2", id="bzip2"),
        pytest.param(b"PAR1\x15\0", "a Parquet file", id="parquet"),
        pytest.param(b"\n<!DOCTYPE html><html></html>", "an HTML page", id="html"),
        pytest.param(b"<HTML><body>403", "an HTML page", id="html-upper"),
        pytest.param(b"<?xml version='1.0'?><Error/>", "XML", id="xml"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer", id="lfs"),
        pytest.param(b"-----  -----\n Name  Self CPU %\n", "key_averages()", id="table"),
        pytest.param(b'"Kind","Agent","Name"\n"K",1,"f<a, b>(int, int)"\n', "a CSV table", id="csv"),
        pytest.param(b"Time (%),Total (ns),Name\n1.0,2,k\n", "a CSV table", id="csv-nsys"),
        pytest.param(b"Error: no such profile\n", "text that begins with “Error: no such profile”", id="text"),
        pytest.param("Größe\tx\x1b[0m".encode("latin-1"), "text that begins with “Gr��e·x·[0m”", id="latin-1"),
        pytest.param(b"[2026-05-01 12:00:00] server_args=...", "text that begins with “[2026-05-01", id="log"),
        pytest.param(b"[rank0] loading\n", "text that begins with “[rank0]", id="log-rank"),
        pytest.param(b"{'traceEvents': []}", "a printed Python dictionary", id="dict"),
        pytest.param(b'{"a": 1}\n{"a": 2}\n', "one JSON value a line", id="ndjson"),
        pytest.param(b'"text"', "a single JSON value", id="string"),
        pytest.param(b" 12.5\n", "a single JSON value", id="number"),
        pytest.param(b"null", "a single JSON value", id="null"),
        pytest.param(b"[1, 2, 3]", "a JSON list of numbers", id="numbers"),
        pytest.param(b'["a", "b"]', "a JSON list of strings", id="strings"),
        pytest.param(json.dumps([[1.5, 2.5], [[0, 1], [2, 3]]]).encode(), "memory timeline", id="timeline"),
        pytest.param(json.dumps([[0.5] * 60_000, [1]]).encode(), "memory timeline", id="timeline-long"),
        pytest.param(json.dumps(SNAPSHOT).encode(), "a memory snapshot", id="snapshot"),
        pytest.param(
            json.dumps({**SNAPSHOT, "segments": SNAPSHOT["segments"] * 5000}).encode(),
            "a memory snapshot",
            id="snapshot-long",
        ),
        pytest.param(json.dumps({"rocprofiler-sdk-tool": [{"metadata": {}}]}).encode(), "rocprofv3", id="rocprofv3"),
        pytest.param(json.dumps(CHAKRA, indent=2).encode(), "an execution trace", id="chakra"),
        pytest.param(
            b'{"$schema": "https://www.speedscope.app/file-format-schema.json", "shared": {}}',
            "speedscope",
            id="speedscope",
        ),
        pytest.param(
            b'{"backend": "sglang", "request_rate": Infinity, "mean_ttft_ms": 1.5}',
            "a serving benchmark",
            id="benchmark-inf",
        ),
        pytest.param(b'{"backend": "vllm", "mean_ttft_ms": 1.5}', "a serving benchmark", id="benchmark"),
    ],
)
def test_what_it_looks_like(tmp_path, data, what):
    message = refusal(stored(tmp_path, data)).message
    assert message.startswith("a.json is ")
    assert what in message
    assert message.endswith(", not a trace")


MAYBE_A_TRACE = [
    b"{}",
    b"[]",
    b"[{}]",
    b"{",
    b"[",
    b'{"traceEvents": [',
    b'{"traceEvents":\n[]}\n{"traceEvents": []}'[:20],
    b'[\n{"ph": "M"},\n{"ph": "X"}\n',
    b'\n{"schemaVersion": 1, "deviceProperties": [{"name": "a\x01b"}]',
    b'{"displayTimeUnit": "ms", "otherData": {"nodes": 1, "schema": 2, "device_traces": 3}, "x": [',
    b'{"nodes": {"traceEvents": 1}, "schema": "2", "traceEvents": []}',
    b'{"name": "D:\\proj", "x',
    b'{"name": "\xff\xfe"',
    b'{"a": inf, "traceEv',
    b"\xef\xbb\xbf" + SMALL,
    TRACE,
]


@pytest.mark.parametrize("head", MAYBE_A_TRACE, ids=lambda head: head[:30].decode("utf-8", "replace"))
def test_what_may_be_a_trace_is_not_refused(tmp_path, head):
    assert looks_like(head) is None
    assert content(stored(tmp_path, head))[0] == head.removeprefix(b"\xef\xbb\xbf")


@pytest.mark.parametrize("cut", range(1, 400, 7))
def test_no_beginning_of_a_trace_is_refused(cut):
    """The look must not depend on where the head ends."""
    for indent in (None, 0, 2):
        for trace in (
            EVENTS[:50],
            {"traceEvents": EVENTS[:50], "nodes": 1},
            {"x": {"schema": 1}, "traceEvents": []},
        ):
            assert looks_like(json.dumps(trace, indent=indent).encode()[:cut]) is None


@pytest.mark.shared
def test_real_traces_are_not_refused(shared):
    n_files = 0
    for path in shared.rglob("*.json*"):
        with open_source(path) as source:
            assert next(source.blocks())
        n_files += 1
    assert n_files > 50


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"{}", "x is no trace: an empty JSON object"),
        (b"[]", "x is no trace: an empty JSON list"),
        (
            b'{"a": 1, "b": [2], "c": {"d": 3}}',
            "x is no trace: a JSON object with a, b, c, without traceEvents",
        ),
        (b'{"a": 1, "b": [2', "x is no trace: a JSON object with a, b, without traceEvents"),
        (b'{"traceEvents": 5}', "x is no trace: its traceEvents is no list but a number"),
        (b'[{"id": 1, "text": "a"}, {"ph": 1}]', "x is no trace: a JSON list of objects with id, text"),
        (b"[{}]", "x is no trace: a JSON list of objects with nothing in them"),
        (b"{garbage", "x is no trace: JSON was expected, and this is none"),
        (b'"text"', "x is a single JSON value, not a trace"),
    ],
)
def test_description_of_what_has_no_events(head, message):
    error = not_a_trace(head, "x")
    assert error.message == message
    assert error.hint
