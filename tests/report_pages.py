"""Pages for the tests of the HTML report: of fixtures, and of a trace whose names are meant to do harm."""

import json
from pathlib import Path
from typing import Any

from conftest import FIXTURES

from traceql.analyses.diff import Diff
from traceql.categories import load_categories
from traceql.diffing import Reading, diff
from traceql.report.diff_html import Compared, diff_html
from traceql.report.figures.palette import palette
from traceql.report.html import Assets, Rendered, render_html
from traceql.report.trace_material import Material
from traceql.report.trace_page import trace_page
from traceql.run import load_run
from traceql.trace import Trace

GRAPH = FIXTURES / "sglang" / "before-graph-TP-0.trace.json.zst"
AFTER_GRAPH = FIXTURES / "sglang" / "after-graph-TP-0.trace.json.zst"
POOL_RUN = [FIXTURES / "glm5" / f"tiny-pool-eager-TP-{rank}.json.gz" for rank in (0, 1)]
RUN = [FIXTURES / "glm5" / f"tiny-gather-eager-TP-{rank}.json.gz" for rank in (0, 1)]
NO_STEPS = FIXTURES / "glm5" / "tiny-pool-nomark-TP-0.json.gz"

LONG = ("void long_kernel<" + "at::native::Functor<float, " * 200)[:4999] + ">"
"""5,000 characters."""
HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    '"><img src="https://example.invalid/x" onerror="window.hacked = 1">',
    "' onmouseover='window.hacked = 1",
    "<!--<script>",
    "&lt;b&gt; &amp; {{ 7 * 7 }} {% raw %} ${1} `x`",
    "]]></style></title></textarea>",
    "javascript:alert(1)",
    "gemm\u202ereversed\x1b[31m\nnewline",
    LONG,
)
BIG = 2**53 + 1


def rendered(*paths: Path, title: str | None = None, assets: Assets = "inline") -> Rendered:
    """The page of a trace or run."""
    trace = load_run(paths, cache=False)
    return render_html(trace_page(Material.of(trace), title), assets=assets, folder="page_assets")


def compared(before: Path | list[Path], after: Path | list[Path]) -> Diff:
    """What changed between two sides, read anew."""
    return diff(before, after, reading=Reading(cache=False))


def rendered_diff(found: Diff, title: str | None = None, assets: Assets = "inline") -> Rendered:
    """The page of a comparison."""
    page = diff_html(Compared(found, palette(load_categories().categories)), title)
    return render_html(page, assets=assets, folder="page_assets")


def hostile_events(n_steps: int = 4, names: tuple[str, ...] = HOSTILE, longer_us: int = 0) -> list[dict[str, Any]]:
    """Steps that each run one kernel of every hostile name, on a stream whose number no double holds."""
    events: list[dict[str, Any]] = []
    correlation = 0
    for step in range(n_steps):
        begin = step * 1000
        mark = {"name": f"step[DECODE bs=2] {HOSTILE[0]}", "pid": 9, "tid": 9, "ts": begin, "dur": 900}
        events.append({"ph": "X", "cat": "user_annotation", **mark})
        for place, name in enumerate(names):
            correlation += 1
            times = {"ts": begin + place * 5, "dur": 2, "args": {"correlation": correlation}}
            events.append({"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": 9, **times, "dur": 4})
            events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, **times})
            args = {"device": 0, "stream": BIG, "correlation": correlation}
            at = {"ts": begin + 100 + place * 60, "dur": 50 - place + longer_us}
            events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": BIG, **at, "args": args})
    return events


def hostile_file(folder: Path, name: str = "<img src=x onerror=window.hacked=1>.json", **made: Any) -> Path:
    """The file of such a trace, with a name of its own kind."""
    path = folder / name
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": HOSTILE[1]}],
        "traceEvents": hostile_events(**made),
    }
    path.write_text(json.dumps(document))
    return path


def hostile_diff(folder: Path) -> Diff:
    """A comparison in which hostile kernels are gone, new and longer."""
    after = hostile_file(folder, "<b>after.json", n_steps=10, names=HOSTILE[2:], longer_us=3)
    return compared(hostile_file(folder, n_steps=10, names=HOSTILE[:-2]), after)


def loaded(*paths: Path) -> Trace:
    """The trace or run, read anew."""
    return load_run(paths, cache=False)
