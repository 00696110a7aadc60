"""Scores predictions of `traceql whatif` against pairs of recordings: prints benchmarks/whatif.md.

    python benchmarks/score_whatif.py TRACES > benchmarks/whatif.md

TRACES is a folder with the recordings named below. A prediction is scored by the change of the median step, not by the
step itself, beside the null model that nothing changes.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.replay import Costs, Replay, windows
from traceql.analyses.replay_costs import Changes, Scaling
from traceql.analyses.replay_graph import ReplayGraph
from traceql.analyses.summary import Selection, summarize
from traceql.analyses.whatif import WhatIf, what_if
from traceql.rules.savings import matching_kernels, moved_ns
from traceql.run import load_run
from traceql.trace import Trace

CAST = "category = 'cast'"
POOL_CAST = "category = 'cast' and n_elements_max > 1000000"
GATHERED_BYTES = 32_800 * 576 * (1 + 2)
"""What sglang's fix moves in a layer: 8 requests of about 4,100 rows of 576, read as FP8 and written as BF16."""


def glm5(name: str) -> tuple[str, ...]:
    return tuple(f"glm5/glm5-{name}-TP-{rank}.json.gz" for rank in (0, 1))


def sglang(name: str) -> tuple[str, ...]:
    return (f"sglang/{name}-TP-0.trace.json.zst",)


def sglang_tp2(name: str) -> tuple[str, ...]:
    return tuple(f"sglang-tp2/{name}-TP-{rank}.trace.json.zst" for rank in (0, 1))


def no_casts(trace: Trace) -> Changes:
    return Changes((Scaling(matching_kernels(trace, CAST), factor=0.0),))


def gathered(trace: Trace) -> Changes:
    length_ns = moved_ns(trace, GATHERED_BYTES)
    return Changes((Scaling(matching_kernels(trace, POOL_CAST), length_ns=length_ns),))


def as_graphs(trace: Trace) -> Changes:  # noqa: ARG001 - all changes are made alike
    return Changes(graph=True)


@dataclass(frozen=True)
class Pair:
    """Two recordings, and the change that leads from one to the other."""

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    change: Callable[[Trace], Changes]
    allowed: float | None
    """Part of the measured change by which the predicted one may differ; None: it must say that there is no gain."""


PAIRS = (
    Pair("glm5 pool → gather, graph", glm5("pool-graph"), glm5("gather-graph"), no_casts, 0.05),
    Pair("sglang before → after, graph", sglang("before-graph"), sglang("after-graph"), gathered, 0.05),
    Pair("sglang-tp2 before → after, graph", sglang_tp2("before-graph"), sglang_tp2("after-graph"), gathered, 0.05),
    Pair("glm5 pool, eager → graph", glm5("pool-eager"), glm5("pool-graph"), as_graphs, 0.10),
    Pair("glm5 gather, eager → graph", glm5("gather-eager"), glm5("gather-graph"), as_graphs, 0.10),
    Pair("sglang before, eager → graph", sglang("before-eager"), sglang("before-graph"), as_graphs, 0.10),
    Pair("glm5 pool → gather, eager", glm5("pool-eager"), glm5("gather-eager"), no_casts, None),
    Pair("sglang before → after, eager", sglang("before-eager"), sglang("after-eager"), gathered, None),
)

ALONE = (
    *(glm5(name) for name in ("pool-eager", "gather-eager", "pool-graph", "gather-graph")),
    ("glm5/glm5-pool-eager-stack-TP-0.json.zst",),
    *(sglang(f"{name}{stack}") for name in ("before-eager", "after-eager", "before-graph", "after-graph")
      for stack in ("", "-stack")),
    *(sglang_tp2(name) for name in ("before-graph", "after-graph")),
)  # fmt: skip


def load(folder: Path, names: Sequence[str]) -> Trace:
    return load_run([folder / name for name in names])


def measured_ns(trace: Trace) -> float:
    """Median wall of the complete steps, as `traceql summarize` counts it."""
    steps = summarize(trace, Selection()).steps.filter("is_complete")
    return float(steps["wall_ns"].median())  # pyright: ignore[reportArgumentType]


def pair_row(folder: Path, pair: Pair) -> str:
    trace = load(folder, pair.before)
    found = what_if(trace, pair.change(trace))
    before, after = found.recorded_wall_ns, measured_ns(load(folder, pair.after))
    measured, predicted = before - after, found.saved_ns
    verdict = _no_gain(found) if pair.allowed is None else _within(predicted, measured, pair.allowed)
    cells = (
        pair.name,
        _ms(before),
        _ms(after),
        _ms(found.predicted_wall_ns),
        _ms(measured),
        _ms(predicted),
        f"{(predicted - measured) / measured:+.1%}",
        f"{(found.predicted_wall_ns - after) / after:+.1%}",
        f"{(before - after) / after:+.1%}",
        found.limit,
        verdict,
    )
    return _row(cells)


def _no_gain(found: WhatIf) -> str:
    return "no gain said" if not found.is_gain else "**gain said**"


def _within(predicted: float, measured: float, allowed: float) -> str:
    is_near = abs(predicted - measured) <= allowed * abs(measured)
    return f"{'within' if is_near else '**not** within'} {allowed:.0%}"


def alone_row(folder: Path, names: tuple[str, ...]) -> str:
    trace = load(folder, names)
    steps = Attribution.of(trace).steps
    begin = time.perf_counter()
    graph = ReplayGraph.of(trace)
    built = time.perf_counter()
    replay = Replay(graph, Costs.recorded(graph))
    found = windows(replay.starts, steps)
    run = time.perf_counter()
    typical = windows(Replay(graph, Costs.typical(graph)).starts, steps)
    name = names[0].replace("-TP-0", "").split(".")[0] + (f" ({len(names)} ranks)" if len(names) > 1 else "")
    cells = (
        name,
        f"{graph.activities.height:,}",
        f"{found.height}",
        f"{_error(found):.2%}",
        f"{_error(typical):.2%}",
        f"{built - begin:.2f}",
        f"{run - built:.2f}",
    )
    return _row(cells)


def _error(found: pl.DataFrame) -> float:
    """Median over the steps of the difference of walls, as a part of the recorded one."""
    apart = (pl.col("wall_ns") - pl.col("recorded_wall_ns")).abs() / pl.col("recorded_wall_ns")
    return float(found.select(apart.median()).item())


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.2f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


INTRO = """# How well `traceql whatif` predicts

Printed by `benchmarks/score_whatif.py`. Each row is a pair of recordings (torch.profiler, H200): the change is applied
to the first one in a replay, and the median step is compared with that of the second. Times in ms. A prediction is
scored by the change, which is what is asked for; the last error columns compare the steps themselves with the null
model, that nothing changes.

| pair | before | after | predicted | change | predicted change | error of the change | error of the step |\
 null model's error of the step | limited then by | |
| --- | --: | --: | --: | --: | --: | --: | --: | --: | --- | --- |"""

CHANGES = f"""
Changes: `pool → gather` takes all casts away (`--scale "{CAST}" 0`), `before → after` replaces each of the
pool's casts by {GATHERED_BYTES / 1e6:.1f} MB moved at the peak bandwidth of the device table, `eager → graph` is
`--graph`. The null model's error of the change is −100 % in every row.

The eager pairs are host-bound: the measured differences are those of the host between two processes, and no kernel
that gets shorter accounts for them. A replay cannot tell them beforehand; it says that there is no gain.
The constants of `--graph` are means over some of these graph traces (see docs/whatif.md), so its rows are no blind
test of them; together they make up about 1 ms of a step.

## With nothing changed

A replay gives its recording back by construction: what an activity waited beyond the typical delay of its kind is kept
with what held it up. How much the dependencies explain shows the column after it, where every gap and latency is
replaced by the typical one of its kind, and only the host's own work is as recorded.

| recording | activities | steps | error | error with typical delays | s to build | s to run |
| --- | --: | --: | --: | --: | --: | --: |"""


def main() -> None:
    folder = Path(sys.argv[1])
    print(INTRO)
    for pair in PAIRS:
        print(pair_row(folder, pair))
    print(CHANGES)
    for names in ALONE:
        print(alone_row(folder, names))


if __name__ == "__main__":
    main()
