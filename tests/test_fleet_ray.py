"""`traceql ingest --engine ray`, on a cluster of two nodes on this machine, one of whose workers is killed."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import FIXTURES
from msgspec import structs
from polars.testing import assert_frame_equal
from waiting import until

from traceql.fleet import ingesting, kept, local, sources
from traceql.fleet.asking import table_of
from traceql.fleet.store import Store

pytestmark = pytest.mark.slow

FILES = [
    *sorted((FIXTURES / "glm5").glob("tiny-*-eager-*")),
    *sorted((FIXTURES / "sglang").iterdir()),
    FIXTURES / "capture" / "annotated-eager-TP-0.trace.json.zst",
]


def free_ports(n):
    """Ports that nobody listens on; all bound at once, so that they differ."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def start(folder, *arguments):
    """A node, as a child of its own process group."""
    ports = dict(zip(("node-manager", "object-manager", "dashboard-agent-listen"), free_ports(3), strict=True))
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=1",
        f"--temp-dir={folder}", "--disable-usage-stats", "--object-store-memory=100000000", f"--memory={4 << 30}",
        *(f"--{name}-port={port}" for name, port in ports.items()), *arguments,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def is_open(port):
    """Whether somebody listens; Ray itself would try for minutes."""
    with socket.socket() as knocking:
        return knocking.connect_ex(("127.0.0.1", port)) == 0


def of_cluster(folder):
    """All processes of the cluster: they name its folder, or were started by those that do."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and any(folder in word for word in process.cmdline()):
                found |= {each.pid: each for each in (process, *process.children(recursive=True))}
    return [*found.values()]


def ended(processes, seconds):
    _, left = psutil.wait_procs(processes, timeout=seconds)
    return not left


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster of two nodes, which is gone afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else a token in the user's home is used, of whatever cluster
        ray = pytest.importorskip("ray")
        yield from nodes_of(ray)


def nodes_of(ray):
    """The address and the folder of a new cluster."""
    folder = tempfile.mkdtemp(prefix="tq-", dir="/tmp")  # sockets have short names
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    nodes = [start(folder, "--head", f"--port={port}", "--include-dashboard=false")]
    try:
        until(lambda: is_open(port), 120)
        nodes.append(start(folder, f"--address={address}"))
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        until(lambda: sum(node["Alive"] for node in ray.nodes()) == 2, 120)
        ray.shutdown()
        yield address, folder
    finally:
        ray.shutdown()
        processes = of_cluster(folder)
        for node in nodes:
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGTERM)
        if not ended(processes, 10):
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        for node in nodes:
            node.wait(timeout=10)
        assert ended(processes, 10)
        assert not of_cluster(folder)
        shutil.rmtree(folder, ignore_errors=True)


def frames(location):
    store = Store.open(location)
    return {name: table_of(store, name).collect() for name in kept.wanted(())}


def data(location):
    """The bytes of all data files."""
    return {
        file.relative_to(location): file.read_bytes() for file in Path(location).rglob("*.parquet")
    }  # fmt: skip


def ingest_on(address, store, *arguments):
    command = [sys.executable, "-m", "traceql", "ingest", *map(str, FILES), "--to", str(store), "--engine", "ray"]
    return subprocess.Popen(
        [*command, "--address", address, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    """What the local engine makes of the files."""
    store = tmp_path_factory.mktemp("fleet") / "local"
    assert not ingesting.ingest(sources.sources([*map(str, FILES)]), store, local.run_here).failed
    return store


def busy_worker(folder):
    """A worker of Ray's that is in the middle of a file."""
    for process in of_cluster(folder):
        with suppress(psutil.Error):
            if process.name().startswith("ray::ingest") or "ray::ingest" in " ".join(process.cmdline()):
                return process
    return None


@pytest.mark.parametrize("retries", ["1", "0"])
def test_a_killed_worker_and_the_same_tables_as_local(retries, cluster, by_hand, tmp_path):
    address, folder = cluster
    process = ingest_on(address, tmp_path / "store", "--retries", retries)
    worker = until(lambda: busy_worker(folder), 120)
    time.sleep(0.3)
    worker.kill()
    printed, errors = process.communicate(timeout=200)
    assert process.returncode == (0 if retries == "1" else 1), (printed, errors)
    if retries == "0":
        assert "its worker died" in " ".join(printed.split())
        again = ingest_on(address, tmp_path / "store")
        assert "1 of 7 files ingested (1 run), 6 there already" in " ".join(again.communicate()[0].split())
    assert data(tmp_path / "store") == data(by_hand)
    expected = frames(by_hand)
    for name, frame in frames(tmp_path / "store").items():
        assert_frame_equal(frame, expected[name])


def test_failures_and_memory(cluster, tmp_path):
    """A damaged file fails by itself; a file larger than any node is worked on alone."""
    from traceql.fleet.on_ray import run_on_ray  # noqa: PLC0415 - where Ray is

    bad = tmp_path / "bad.json.gz"
    bad.write_bytes(FILES[0].read_bytes()[:10])
    found = sources.sources([str(bad), str(FILES[0])])
    large = [structs.replace(source, json_bytes=1 << 50) for source in found]
    report = ingesting.ingest(large, tmp_path / "store", lambda tasks: run_on_ray(tasks, address=cluster[0]))
    assert len(report.ingested) == 1
    assert ["bad.json.gz" in failure.origin.location for failure in report.failed] == [True]


def test_no_cluster_is_an_error(tmp_path):
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "traceql", "ingest", str(FILES[0]), "--to", str(tmp_path / "store")]
    command += ["--engine", "ray", "--address", f"127.0.0.1:{port}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2, result
    assert f"no Ray cluster at 127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.stderr
