"""`traceql whatif`: what steps would take if kernels were shorter, or the host faster."""

import math
from typing import TYPE_CHECKING, Any

import click

from traceql.cli.request import Request, takes_request
from traceql.errors import MissingDataError

if TYPE_CHECKING:
    from traceql.analyses.replay_costs import Scaling
    from traceql.trace import Trace

TOP = 15
"""Bottlenecks on a page and in JSON, unless told otherwise."""
LONGEST_NS = 10**12
"""A kernel longer than this is a slip of the pen."""


class Amount(click.FloatRange):
    """A number from 0 on; `nan` is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class HostFactor(Amount):
    """A factor, or `auto` (None)."""

    def __init__(self) -> None:
        super().__init__(min=0, max=1000)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; None for auto."""
        return None if value == "auto" else super().convert(value, param, ctx)


FACTOR = Amount(min=0, max=1000)
"""A factor that durations are multiplied by."""
BYTES = Amount(min=0, max=1e15)


@click.command("whatif", epilog="""Example: traceql whatif traces/ --scale "category = 'cast'" 0 --graph""")
@click.option("--scale", "scales", type=(str, FACTOR), multiple=True, metavar="SQL FACTOR",
              help="Kernels for which SQL is true take FACTOR times as long; may be given several times. SQL is of one "
              "row of table kernels, with step, and section, layer and block.")  # fmt: skip
@click.option("--replace", metavar="SQL",
              help="Each kernel for which SQL is true is replaced by one that moves --bytes, or --rows.")  # fmt: skip
@click.option("--bytes", "n_bytes", type=BYTES, metavar="N",
              help="Bytes that what replaces a kernel reads and writes.")  # fmt: skip
@click.option("--rows", "n_rows", type=BYTES, metavar="N",
              help="The same as rows of --row-bytes each.")  # fmt: skip
@click.option("--row-bytes", type=BYTES, metavar="N",
              help="Bytes of a row, read and written: 576 × (1 + 2) = 1728.")  # fmt: skip
@click.option("--bandwidth", type=Amount(min=0, min_open=True, max=1e9), metavar="GB/S",
              help="At which it moves them. [default: the device's peak]")  # fmt: skip
@click.option("--graph", is_flag=True, help="Each step is launched as one CUDA graph: no launch cost.")
@click.option("--host", "host_factor", type=HostFactor(), default="1", metavar="FACTOR",
              help="The host's own work takes FACTOR times as long: the profiler's slowing taken out. auto: as in the "
              "unprofiled control runs of the capture whose manifest lies beside TRACE.")  # fmt: skip
@click.option(
    "--by",
    type=click.Choice(["limit", "bottleneck", "step"]),
    help="Only this table. csv and parquet hold one table [default: bottleneck], json always all.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N",
              help=f"The N longest bottlenecks. [default: {TOP} in table, markdown and json, else all]")  # fmt: skip
@click.option("--full-names", is_flag=True, help="Kernel names never cut.")
@takes_request()
def command(
    request: Request,
    *,
    scales: tuple[tuple[str, float], ...],
    replace: str | None,
    n_bytes: float | None,
    n_rows: float | None,
    row_bytes: float | None,
    bandwidth: float | None,
    graph: bool,
    host_factor: float | None,
    by: str | None,
    top: int | None,
    full_names: bool,
) -> None:
    """What steps would take with a fix: a replay of what waits for what, with other costs.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Several, a folder or a pattern are the ranks of a run (--force: even if they look like different jobs);
    a collective ends on all ranks together, so give them all.
    Without a change the recording is replayed as it is. Figures are of the complete decode steps.
    """
    moved_bytes = _moved_bytes(replace, n_bytes, n_rows, row_bytes, bandwidth)
    request.check_output()

    from traceql.analyses.replay_costs import Changes  # noqa: PLC0415 - polars: only when it is used
    from traceql.analyses.whatif import what_if  # noqa: PLC0415
    from traceql.report import whatif_document, whatif_page  # noqa: PLC0415
    from traceql.report.page import View  # noqa: PLC0415

    trace = request.trace()
    scalings = [_scaled(trace, text, factor) for text, factor in scales]
    if replace is not None and moved_bytes is not None:
        scalings.append(_replaced(trace, replace, moved_bytes, bandwidth))
    if host_factor is None:
        host_factor = _calibrated(trace, request)
    found = what_if(trace, Changes(tuple(scalings), graph, host_factor), request.selection())
    shown = top or (None if request.is_data else TOP)
    request.write(
        page=lambda: whatif_page.whatif_page(found, View(by, shown, full_names)),
        table=lambda: whatif_document.table_of(found, by or "bottleneck", shown),
        document=lambda: whatif_document.to_json(found, shown),
    )


def _calibrated(trace: "Trace", request: Request) -> float:
    """The factor that takes the profiler's slowing out, from the control runs of the capture.

    Raises:
        MissingDataError: no manifest of these traces lies beside them, or it has no control run.
    """
    from traceql.analyses.whatif import host_factor  # noqa: PLC0415 - polars: only when it is used
    from traceql.diffing import control_pace  # noqa: PLC0415
    from traceql.ingest.trace_files import trace_files  # noqa: PLC0415

    pace = control_pace([file.path for file in trace_files(request.traces)])
    if pace is None:
        raise MissingDataError(
            "--host auto: no manifest of a capture with control runs lies beside the trace",
            "Record with `traceql capture sglang`, or name a factor.",
        )
    return host_factor(trace, pace.step_ns, request.selection())


def _moved_bytes(
    replace: str | None,
    n_bytes: float | None,
    n_rows: float | None,
    row_bytes: float | None,
    bandwidth: float | None,
) -> float | None:
    """The bytes that replace a kernel; None where nothing is replaced.

    Raises:
        click.UsageError: the options do not fit together.
    """
    if replace is None:
        if any(option is not None for option in (n_bytes, n_rows, row_bytes, bandwidth)):
            raise click.UsageError("--bytes, --rows, --row-bytes and --bandwidth go with --replace.")
        return None
    if (n_bytes is None) == (n_rows is None) or (n_rows is None) != (row_bytes is None):
        raise click.UsageError("--replace needs --bytes, or --rows and --row-bytes.")
    return n_bytes if n_rows is None or row_bytes is None else n_rows * row_bytes


def _scaled(trace: "Trace", text: str, factor: float) -> "Scaling":
    from traceql.analyses.replay_costs import Scaling  # noqa: PLC0415
    from traceql.rules.savings import matching_kernels  # noqa: PLC0415

    return Scaling(matching_kernels(trace, text), factor=factor, text=text)


def _replaced(trace: "Trace", text: str, moved_bytes: float, bandwidth: float | None) -> "Scaling":
    from traceql.analyses.replay_costs import Scaling  # noqa: PLC0415
    from traceql.rules.savings import matching_kernels, moved_ns  # noqa: PLC0415

    length_ns = moved_ns(trace, moved_bytes, None if bandwidth is None else bandwidth * 1e9)
    if length_ns > LONGEST_NS:
        raise click.UsageError(f"at that bandwidth each replacement would take {length_ns / 1e9:,.0f} s.")
    return Scaling(matching_kernels(trace, text), length_ns=length_ns, text=text)
