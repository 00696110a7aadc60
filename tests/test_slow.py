"""Traces of the size that traceql is for: minutes, not seconds."""

import subprocess
import sys
import time
from pathlib import Path

import make_trace
import psutil
import pytest
from isal import igzip

import traceql
from traceql.ingest.reader import read_trace

pytestmark = pytest.mark.slow

MB = 10**6
TABLES = ("kernels", "launches", "ops", "python_calls", "spans", "syncs", "memory", "threads")


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """One rank of the founding case with Python frames, about 240 MB."""
    path = tmp_path_factory.mktemp("large") / "rank0.json"
    with path.open("wb") as file:
        make_trace.make_rank(make_trace.Case(steps=20, stack=True), 0, file)
    assert path.stat().st_size > 200 * MB
    return path


def test_the_number_of_processes_changes_nothing(large):
    alone, shared = read_trace(large, n_workers=1), read_trace(large, n_workers=3)
    for name, frame in alone.tables.items():  # threads are numbered in the order in which processes met them
        other = shared.tables[name].drop("thread_id", strict=False)
        assert frame.drop("thread_id", strict=False).equals(other), name
    assert alone.meta == shared.meta
    assert alone.quirks == shared.quirks == ()


def test_compressed_and_cached_are_the_same_trace(large, tmp_path, monkeypatch):
    packed = tmp_path / "rank0.json.gz"
    packed.write_bytes(igzip.compress(large.read_bytes(), compresslevel=1))
    monkeypatch.setenv("TRACEQL_CACHE_DIR", str(tmp_path / "cache"))
    plain = traceql.load(large, cache=False)
    for again in (traceql.load(packed), traceql.load(packed)):  # read, then from the cache
        for name in TABLES:
            frame = getattr(plain, name).drop("thread_id", strict=False).collect()
            assert frame.equals(getattr(again, name).drop("thread_id", strict=False).collect()), name


def test_memory_stays_near_that_of_the_columns(large):
    """All processes together, in proportional set size, stay below three times the file."""
    command = [sys.executable, "-m", "traceql", "summarize", str(large), "--no-cache", "--by", "group"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, _tree_bytes(process.pid))
            time.sleep(0.05)
    assert process.returncode == 0
    assert peak < 3 * large.stat().st_size


def _tree_bytes(pid: int) -> int:
    total = 0
    try:
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            total += process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        pass
    return total
