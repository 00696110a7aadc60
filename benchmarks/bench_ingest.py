"""Measures what ingesting traces costs: processor time, memory of a worker, size of the store.

    python benchmarks/bench_ingest.py                         # synthetic traces of 40 to 640 MB, 1 to 16 of them
    python benchmarks/bench_ingest.py --cases 1x160,4x160
    python benchmarks/bench_ingest.py TRACE --repeat 5        # one of yours
    python benchmarks/bench_ingest.py --ask 10000             # questions about a store of 10,000 traces

Prints Markdown. Every run is `traceql ingest` as a fresh process into a fresh store, with the files in the page cache.
Processor time is that of the process and all its workers, which a busy machine stretches less than time by the clock.
Memory is taken in a further run of its own: the most that all processes had at once (Pss), over the workers at once.
The fit at the end is by least squares over all cases: a fixed part, a part for each file, and one for each GB of JSON.
"""

import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec
import numpy as np
from bench_load import MB, Measure, machine, warm
from make_trace import Case, fit_size, make_rank
from msgspec import structs

from traceql.fleet.asking import table_of
from traceql.fleet.manifest import DataFile, data_path
from traceql.fleet.store import Store

GB = 1000 * MB
CASES = "1x40,1x160,1x320,1x640,4x40,4x160,16x40"


@dataclass(frozen=True)
class Result:
    """The figures of one case."""

    n_files: int
    json_bytes: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    n_jobs: int
    store_bytes: int

    def row(self) -> str:
        """A line of the table."""
        json_gb = self.json_bytes / GB
        per_worker = self.peak_bytes / min(self.n_jobs, self.n_files)
        return (
            f"| {self.n_files} | {self.json_bytes / self.n_files / MB:.0f} | {self.wall_s:.2f} | {self.cpu_s:.2f} "
            f"| {self.cpu_s / json_gb:.1f} | {per_worker / MB:.0f} | {self.store_bytes / self.n_files / 1000:.0f} |"
        )


def synthetic(n_files: int, size_mb: float, folder: Path, case: Case) -> list[Path]:
    """Synthetic traces of the ranks of one job, each of about that size."""
    paths = [folder / f"job-TP-{rank}.json" for rank in range(n_files)]
    sized = replace(fit_size(case, size_mb), ranks=max(n_files, case.ranks))
    for rank, path in enumerate(paths):
        with path.open("wb") as out:
            make_rank(sized, rank, out)
    return paths


def measured(files: Sequence[Path], n_jobs: int, repeat: int, folder: Path) -> Result:
    """What ingesting the files takes: medians."""
    store = folder / "store"
    names = ",".join(repr(str(file)) for file in files)
    code = f"from traceql.cli import main; main(['ingest', {names}, '--to', {str(store)!r}, '--jobs', '{n_jobs}'])"
    measure = Measure("ingest", (sys.executable, "-c", code))
    for file in files:
        warm(file)
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(repeat):
        shutil.rmtree(store, ignore_errors=True)
        before, begin = _cpu_s(), time.perf_counter()
        subprocess.run(measure.command, check=True, stdout=subprocess.DEVNULL)
        walls.append(time.perf_counter() - begin)
        cpus.append(_cpu_s() - before)
    shutil.rmtree(store)
    peak = measure.peak_bytes()
    sizes = int(table_of(Store.open(store), "traces").collect()["json_bytes"].sum())
    n_bytes = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
    shutil.rmtree(store)
    return Result(len(files), sizes, statistics.median(walls), statistics.median(cpus), peak, n_jobs, n_bytes)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def fit(results: Sequence[Result]) -> str:
    """Processor seconds: a fixed part, a part for each file, one for each GB; and memory over the size of a trace."""
    terms = np.array([[1.0, each.n_files, each.json_bytes / GB] for each in results])
    fixed, per_file, per_gb = np.linalg.lstsq(terms, np.array([each.cpu_s for each in results]), rcond=None)[0]
    ones = [each for each in results if each.n_files == 1]
    sizes = np.array([each.json_bytes for each in ones]) / MB
    slope, base = np.polyfit(sizes, np.array([each.peak_bytes for each in ones]) / MB, 1)
    return (
        f"Processor time: {fixed:.2f} s + {per_file:.2f} s a file + {per_gb:.1f} s a GB of JSON. "
        f"Memory of one worker: {base:.0f} MB + {slope:.2f} bytes a byte of JSON."
    )


QUERIES = (
    "SELECT run, COUNT(*) AS n FROM traces GROUP BY run ORDER BY run LIMIT 5",
    "SELECT run, MEDIAN(wall_ns) AS ns FROM step_facts WHERE is_complete GROUP BY run ORDER BY ns DESC LIMIT 5",
    "SELECT short_name, SUM(kernel_ns) AS ns FROM kernel_stats GROUP BY short_name ORDER BY ns DESC LIMIT 5",
    "SELECT step, MEDIAN(wall_ns) AS ns FROM step_facts WHERE run = 'run7' GROUP BY step ORDER BY step LIMIT 5",
)


def many(store: Path, n_traces: int) -> None:
    """Makes a store of one trace one of many: runs of 8 ranks, with the same rows under other names."""
    opened = Store.open(store)
    (first,) = opened.entries
    for number in range(n_traces):
        run, rank, digest = f"run{number // 8}", number % 8, f"{number:064x}"
        tables: dict[str, DataFile] = {}
        for name in ("traces", "step_facts", "kernel_stats"):
            path = data_path(name, run, rank, f"{number:016x}", first.recipe)
            (store / path).parent.mkdir(parents=True, exist_ok=True)
            (store / path).write_bytes((store / str(first.tables[name].path)).read_bytes())
            tables[name] = structs.replace(first.tables[name], path=path)
        origin = structs.replace(first.origin, location=f"/traces/{run}-TP-{rank}.json")
        entry = structs.replace(first, digest=digest, run=run, rank=rank, tables=tables, origin=origin)
        (store / entry.path).write_bytes(msgspec.json.encode(entry))


def asked(n_traces: int, repeat: int, folder: Path, case: Case) -> str:
    """The table of what questions take about a store of many traces."""
    (file,) = synthetic(1, 40, folder, case)
    store = folder / "store"
    ingest = (sys.executable, "-m", "traceql", "ingest", str(file), "--to", str(store))
    subprocess.run(ingest, check=True, stdout=subprocess.DEVNULL)
    many(store, n_traces)
    out = [f"A store of {n_traces:,} traces in runs of 8.\n", "| what | s | peak MB |", "|---|---:|---:|"]
    commands = [("query", str(store), sql) for sql in QUERIES]
    for arguments in (*commands, ("trend", str(store), "--by", "date"), ("ingest", str(file), "--to", str(store))):
        measure = Measure(arguments[0], (sys.executable, "-m", "traceql", *arguments))
        seconds = statistics.median(measure.seconds() for _ in range(repeat))
        what = f"`{arguments[2]}`" if arguments[0] == "query" else f"`traceql {arguments[0]}`"
        out.append(f"| {what} | {seconds:.2f} | {measure.peak_bytes() / MB:.0f} |")
    return "\n".join(out)


@click.command(epilog="Example: python benchmarks/bench_ingest.py --cases 1x160,4x160")
@click.argument("trace", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(1), help="Timed runs of each.")
@click.option("--cases", default=CASES, show_default=True, help="FILESxMB, several with commas.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1), help="Workers.")
@click.option("--stack", is_flag=True, help="Synthetic traces with Python frames.")
@click.option("--ask", default=0, help="Instead: time questions about a store of so many traces.")
def main(trace: Path | None, repeat: int, cases: str, jobs: int, stack: bool, ask: int) -> None:
    """Print a Markdown table of what ingesting TRACE, or synthetic traces, takes."""
    click.echo(f"{machine()}\n")
    if ask:
        with tempfile.TemporaryDirectory(prefix="traceql-bench-") as name:
            click.echo(asked(ask, repeat, Path(name), Case(stack=stack)))
        return
    click.echo(f"Medians of {repeat} runs, {jobs} workers.\n")
    click.echo("| files | MB of JSON each | s | CPU s | CPU s per GB | peak MB a worker | kB of store a file |")
    click.echo("|---:|---:|---:|---:|---:|---:|---:|")
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="traceql-bench-") as name:
        folder = Path(name)
        if trace:
            click.echo(measured([trace.resolve()], jobs, repeat, folder).row())
            return
        for text in cases.split(","):
            n_files, _, size_mb = text.partition("x")
            files = synthetic(int(n_files), float(size_mb), folder, Case(stack=stack))
            results.append(measured(files, jobs, repeat, folder))
            click.echo(results[-1].row())
            for file in files:
                file.unlink()
    if len(results) > 3:
        click.echo(f"\n{fit(results)}")


if __name__ == "__main__":
    main()
