"""Measures how long traceql takes for a trace, how much memory, and against what.

    python benchmarks/bench_load.py                       # a synthetic trace of 160 MB
    python benchmarks/bench_load.py TRACE --repeat 7
    python benchmarks/bench_load.py --scaling             # 160, 320, 640, 1280 MB

Prints Markdown. Every run is a fresh process, timed from start to end; its output is thrown away. Runs
are interleaved (a b c d e a b c d e ...), so that noise hits all alike, and the file is in the page cache.
Memory is taken in a further run of its own, since looking slows a process down: the sum of Pss (a shared
page counts once) of the process and all its descendants, every 10 ms; a shorter peak can be missed.

The yardstick is `orjson.loads` of the whole file, unpacked beforehand, without garbage collector and without
the time to free the objects: as fast as Python can have the trace as objects.
"""

import io
import lzma
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Protocol

import click
import psutil
import zstandard
from isal import igzip
from make_trace import Case, fit_size, make_rank

ROOT = Path(__file__).parent.parent
"""The checkout whose traceql is measured."""
SAMPLE_S = 0.01
MB = 1_000_000
SCALING_MB = (160, 320, 640, 1280)

YARDSTICK = """
import gc, os, sys
gc.disable()
import orjson
with open(sys.argv[1], "rb") as file:
    orjson.loads(file.read())
os._exit(0)
"""
LOAD = """
import sys
import traceql
traceql.load(sys.argv[1], cache=False)
"""


class Readable(Protocol):
    """What gives bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, none at the end."""
        ...


UNPACKERS: dict[bytes, Callable[[IO[bytes]], Readable]] = {
    b"\x1f\x8b": lambda file: igzip.GzipFile(fileobj=file),
    b"\x28\xb5\x2f\xfd": lambda file: zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True),
    b"\xfd7zXZ": lzma.LZMAFile,
}
"""How a file is unpacked, by its first bytes."""


@dataclass(frozen=True)
class Measure:
    """Something to run and to time."""

    label: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    reads_trace: bool = True

    def start(self) -> "subprocess.Popen[bytes]":
        """Starts it as a process of its own."""
        return subprocess.Popen(
            self.command,
            cwd=ROOT,
            env={**os.environ, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def seconds(self) -> float:
        """The time of one run, from start to end."""
        begin = time.perf_counter()
        process = self.start()
        self.finish(process)
        return time.perf_counter() - begin

    def peak_bytes(self) -> int:
        """The most memory that one run and its descendants had at once."""
        process = self.start()
        peak = 0
        while process.poll() is None:
            peak = max(peak, tree_bytes(process.pid))
            time.sleep(SAMPLE_S)
        self.finish(process)
        return peak

    def finish(self, process: "subprocess.Popen[bytes]") -> None:
        """Waits for the end.

        Raises:
            click.ClickException: it failed; a figure of it would mean nothing.
        """
        _, errors = process.communicate()
        if process.returncode:
            raise click.ClickException(f"{self.label} failed:\n{errors.decode(errors='replace')[-2000:]}")


def tree_bytes(pid: int) -> int:
    """Sum of Pss of a process and its descendants; what ends meanwhile counts as nothing."""
    try:
        root = psutil.Process(pid)
        return sum(own_bytes(process) for process in (root, *root.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


def own_bytes(process: psutil.Process) -> int:
    """Pss of one process."""
    try:
        return process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return 0


def measures(trace: Path, plain: Path, cache: Path) -> dict[str, Measure]:
    """What is measured, by the name that `--only` takes."""
    python = sys.executable
    summarize = (python, "-m", "traceql", "summarize", str(trace))
    cut = (python, "-m", "traceql", "slice", str(trace), "--step", "5")
    cached = {"TRACEQL_CACHE_DIR": str(cache)}
    return {
        "yardstick": Measure("`orjson.loads`, no GC", (python, "-c", YARDSTICK, str(plain))),
        "load": Measure("`traceql.load(cache=False)`", (python, "-c", LOAD, str(trace))),
        "summarize": Measure("`traceql summarize --no-cache`", (*summarize, "--no-cache")),
        "cached": Measure("`traceql summarize`, second run", summarize, cached),
        "slice": Measure("`traceql slice --step 5 --no-cache`", (*cut, "--no-cache")),
        "slice-cached": Measure("`traceql slice --step 5`, after another command", cut, cached),
        "help": Measure("`traceql --help`", (python, "-m", "traceql", "--help"), reads_trace=False),
    }


@dataclass(frozen=True)
class Result:
    """The figures of one measure."""

    measure: Measure
    seconds: list[float]
    peak_bytes: int

    @property
    def median_s(self) -> float:
        """Median of the runs."""
        return statistics.median(self.seconds)


def run_all(chosen: Mapping[str, Measure], repeat: int) -> dict[str, Result]:
    """Runs the measures in turn, `repeat` times, then each once more for its memory."""
    for name in chosen.keys() & {"cached", "slice-cached"}:
        chosen[name].seconds()
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(repeat):
        for name, measure in chosen.items():
            seconds[name].append(measure.seconds())
    return {name: Result(measure, seconds[name], measure.peak_bytes()) for name, measure in chosen.items()}


def machine() -> str:
    """Processor, cores, Python and libraries; no names of hosts or users."""
    cores = len(os.sched_getaffinity(0))
    memory_gb = psutil.virtual_memory().total / 1e9
    names = ("traceql", "polars", "msgspec", "orjson", "isal", "zstandard")
    libraries = ", ".join(f"{name} {library_version(name)}" for name in names)
    return (
        f"{cores} cores ({processor()}), {memory_gb:.0f} GB memory, {platform.system()}, "
        f"Python {platform.python_version()}, {libraries}"
    )


def processor() -> str:
    """Model of the processor, where the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def library_version(name: str) -> str:
    """Version of an installed package; a checkout that is not installed has none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "(checkout)"


def unpacked(trace: Path, folder: Path) -> Path:
    """The trace as plain JSON: the file itself, or an unpacked copy in the folder."""
    with trace.open("rb") as file:
        head = file.read(8)
        file.seek(0)
        for magic, unpack in UNPACKERS.items():
            if head.startswith(magic):
                plain = folder / "plain.json"
                with plain.open("wb") as out:
                    shutil.copyfileobj(unpack(file), out, 1 << 20)
                return plain
    return trace


def synthetic(case: Case, size_mb: float, folder: Path) -> Path:
    """A synthetic trace of rank 0 of about that size."""
    path = folder / f"synthetic-{size_mb:g}MB.json"
    with path.open("wb") as out:
        make_rank(fit_size(case, size_mb), 0, out)
    return path


def warm(path: Path) -> None:
    """Reads a file once, so that it is in the page cache."""
    with path.open("rb") as file:
        while file.read(16 * MB):
            pass


def comparison(trace: Path, folder: Path, only: Sequence[str], repeat: int) -> str:
    """The table of all measures of one trace."""
    plain = unpacked(trace, folder)
    every = measures(trace, plain, folder / "cache")
    for path in {trace, plain}:
        warm(path)
    results = run_all({name: every[name] for name in every if name in only}, repeat)
    json_mb = plain.stat().st_size / MB
    packed = "" if plain == trace else f", packed {trace.stat().st_size / MB:.1f} MB"
    yardstick = results["yardstick"].median_s if "yardstick" in results else None
    rows = [comparison_row(result, yardstick, json_mb) for result in results.values()]
    out = io.StringIO()
    print(f"{trace.name}: {json_mb:.1f} MB of JSON{packed}. Medians of {repeat} runs.\n", file=out)
    print("| what | median s | min s | × yardstick | peak MB | MB/s |", file=out)
    print("|---|---:|---:|---:|---:|---:|", file=out)
    print(*rows, sep="\n", file=out)
    return out.getvalue()


def comparison_row(result: Result, yardstick_s: float | None, json_mb: float) -> str:
    """One line of the table; ratio and rate only where the trace is read."""
    reads = result.measure.reads_trace
    ratio = f"{result.median_s / yardstick_s:.2f}" if yardstick_s and reads else "-"
    rate = f"{json_mb / result.median_s:.0f}" if reads else "-"
    times = f"{result.median_s:.3f} | {min(result.seconds):.3f}"
    return f"| {result.measure.label} | {times} | {ratio} | {result.peak_bytes / MB:.0f} | {rate} |"


def scaling(case: Case, sizes_mb: Sequence[float], folder: Path, only: Sequence[str], repeat: int) -> str:
    """The table of `traceql.load` (and what else was chosen) over sizes; one file on the disk at a time."""
    out = io.StringIO()
    print(f"Synthetic, {case.mode}{' with stacks' if case.stack else ''}. Medians of {repeat} runs.\n", file=out)
    print("| MB of JSON | what | median s | s per 100 MB | peak MB |", file=out)
    print("|---:|---|---:|---:|---:|", file=out)
    for size_mb in sizes_mb:
        trace = synthetic(case, size_mb, folder)
        every = measures(trace, trace, folder / "cache")
        results = run_all({name: every[name] for name in every if name in only}, repeat)
        json_mb = trace.stat().st_size / MB
        for result in results.values():
            per_100 = 100 * result.median_s / json_mb
            figures = f"{result.median_s:.3f} | {per_100:.3f} | {result.peak_bytes / MB:.0f}"
            print(f"| {json_mb:.0f} | {result.measure.label} | {figures} |", file=out)
        trace.unlink()
    return out.getvalue()


NAMES = tuple(measures(Path(), Path(), Path()))


@click.command(epilog="Example: python benchmarks/bench_load.py trace.json.gz --repeat 7")
@click.argument("trace", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--repeat", default=5, show_default=True, type=click.IntRange(1), help="Timed runs of each.")
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Measure these; may be given more than once.")
@click.option("--size-mb", default=160.0, show_default=True, help="Size of the synthetic trace.")
@click.option("--mode", default="eager", show_default=True, type=click.Choice(["eager", "graph"]))
@click.option("--stack", is_flag=True, help="Synthetic traces with Python frames.")
@click.option("--scaling", "over_sizes", is_flag=True, help="Synthetic traces of several sizes; default: load.")
@click.option("--sizes", default=",".join(map(str, SCALING_MB)), show_default=True, help="MB, for --scaling.")
def main(
    trace: Path | None,
    repeat: int,
    only: tuple[str, ...],
    size_mb: float,
    mode: str,
    stack: bool,
    over_sizes: bool,
    sizes: str,
) -> None:
    """Print a Markdown table of times and memory for TRACE, or for synthetic traces."""
    case = Case(mode="graph" if mode == "graph" else "eager", stack=stack)
    click.echo(f"{machine()}\n")
    with tempfile.TemporaryDirectory(prefix="traceql-bench-") as name:
        folder = Path(name)
        if over_sizes:
            sizes_mb = [float(size) for size in sizes.split(",")]
            click.echo(scaling(case, sizes_mb, folder, only or ("load",), repeat))
        else:
            path = trace.resolve() if trace else synthetic(case, size_mb, folder)
            click.echo(comparison(path, folder, only or NAMES, repeat))


if __name__ == "__main__":
    main()
