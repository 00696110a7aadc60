"""`traceql layers`: which layers take the time of a step, and the kernels of one layer."""

from pathlib import Path

import click

from traceql.cli.options import capture_option
from traceql.cli.request import Request, takes_request

METHODS = ["auto", "module", "annotation", "graph-node", "capture", "sequence"]
"""As in `traceql.analyses.layering`, which help is not to wait for."""


@click.command("layers", epilog="Example: traceql layers trace.json.gz --stage decode --layer 12")
@click.option("--layer", type=click.IntRange(min=0), metavar="N",
              help="The kernels of layer N, one row each, in the step with the median wall of that layer.")  # fmt: skip
@click.option("--pass", "model_pass", type=click.IntRange(min=0), metavar="N",
              help="With --layer: of forward pass N of the step, as draft models have. [default: 0]")  # fmt: skip
@click.option("--layer-method", "method", type=click.Choice(METHODS), default="auto",
              help="How layers are found. [default: auto, for each step the first that applies]")  # fmt: skip
@capture_option
@click.option("--layers", "n_layers", type=click.IntRange(min=1), metavar="N",
              help="The number of layers you know; refused when no step has as many.")  # fmt: skip
@click.option(
    "--by",
    type=click.Choice(["type", "layer", "category", "kernel"]),
    help="Only this table. csv and parquet hold one table [default: type, with --layer kernel], json always all.",
)
@click.option("--full-names", is_flag=True, help="Kernel names as recorded, never cut.")
@takes_request()
def command(
    request: Request,
    *,
    layer: int | None,
    model_pass: int | None,
    method: str,
    capture: Path | None,
    n_layers: int | None,
    by: str | None,
    full_names: bool,
) -> None:
    """Which layers take the time of a step, and the kernels of one layer.

    TRACE is a torch.profiler (Kineto, Chrome JSON) trace, plain or compressed; - reads standard input.
    Several, a folder or a pattern are the ranks of a run (--force: even if they look like different jobs).
    Printed are the types of layers, a map of layers by category, the slowest and the odd layers. CUDA graphs
    record no layers: there they are found in the order of the kernels.
    """
    if layer is None and (model_pass is not None or by == "kernel"):
        raise click.UsageError("--pass and --by kernel need --layer.")
    request.check_output(capture)

    from traceql.analyses.layer_stats import layer_kernels, layer_stats  # noqa: PLC0415 - polars: only when it is used
    from traceql.analyses.layering import Layering  # noqa: PLC0415
    from traceql.report import layers_document, layers_page  # noqa: PLC0415
    from traceql.report.page import View  # noqa: PLC0415

    trace = request.trace()
    layering = Layering.of(trace, method, n_layers=n_layers, capture=request.other_trace(capture))
    stats = layer_stats(trace, request.selection(), layering)
    kernels = None if layer is None else layer_kernels(trace, layering, stats.counted, layer, model_pass or 0)
    request.write(
        page=lambda: layers_page.layers_page(stats, View(by=by, full_names=full_names), kernels),
        table=lambda: layers_document.table_of(stats, by, kernels),
        document=lambda: layers_document.to_json(stats, kernels),
    )
