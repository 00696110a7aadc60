"""Layers of replayed graphs, from the trace of the phase in which they were captured.

A replay records one launch for hundreds of kernels, and no op or module. While a graph is captured nothing runs, but
each launch call is recorded, with the ops, modules and annotations around it. In order they are the replay's kernels.
"""

import polars as pl

from traceql.analyses.layer_calls import LAUNCHED, MIN_COVERED_FRAC, layer_labels, place
from traceql.analyses.layer_modules import layer_calls, layer_parts, module_calls
from traceql.analyses.layer_spans import annotated_calls, annotated_parts, host_spans
from traceql.analyses.layer_tables import PLACEMENT
from traceql.errors import MissingDataError
from traceql.tables import Column, Table
from traceql.trace import Trace

CONFIDENCE = 0.9
"""Every launch has its kernel, and what the ops say agrees; that it is the same graph is not recorded."""

CAPTURED_OPS = Table(
    "captured_ops",
    "One row per replayed GPU activity of which the capture trace has the launch. Sorted by kernel_id.",
    Column("kernel_id", pl.Int64, "GPU activity of the replay"),
    Column("op", pl.String, "Innermost CPU op around the captured launch", nullable=True),
    Column("args", pl.String, "Its arguments, JSON text; null where captures of several sizes fit", nullable=True),
)

_CAPTURED = r"(?i)Launch(?:Cooperative)?Kernel|Mem(?:cpy|set)\w*Async|MemcpyWithStream"
_KIND = {"memcpy": r"(?i)memcpy", "memset": r"(?i)memset"}
"""The kind of activity that a call other than a kernel launch makes."""
_OP_GROUP = {
    "gemm": r"^aten::(?:mm|addmm|bmm|baddbmm|_scaled_mm)$",
    "copy": r"^aten::copy_$",
    "nccl": r"^(?:c10d::|nccl:|record_param_comms$)",
}
"""The group of kernels that some ops launch, whatever the library."""
_MIN_AGREEMENT = 0.9
"""Share of the launches whose call and op agree with the kernel, of a capture that fits; of other graphs it is less."""

_LAUNCH = ["rank", "launch_id"]
_STEP = ["rank", "step"]


def by_capture(trace: Trace, activities: pl.DataFrame, capture: Trace) -> pl.DataFrame:
    """The `PLACEMENT` table by the layers of a capture-phase trace: modules, else annotations, around its launches.

    Args:
        trace: the trace or run that replays the graphs; several ranks may share the capture of one.
        activities: GPU activities with their step, as `Attribution` has them.
        capture: the trace in which they were captured.

    Empty where the capture has neither modules nor annotations of layers. A step is absent whose graphs do not fit.
    What a step launches before its graphs is prologue, after them epilogue, between them null.

    Raises:
        MissingDataError: no step's graphs fit: nothing was captured, or not as many launches as there are kernels.
    """
    if activities.is_empty():
        return PLACEMENT.empty()
    replayed = _replayed(trace, activities)
    launched = _launched(replayed, capture)
    calls, parts = _layers(capture, launched["rank"].unique())
    return _with_surroundings(place(launched, calls, parts, CONFIDENCE), replayed)


def captured_classes(trace: Trace, activities: pl.DataFrame, capture: Trace) -> pl.DataFrame:
    """One row per layer of each step: rank, step, model_pass, layer and its module class or annotation as `label`.

    Raises:
        MissingDataError: as `by_capture`.
    """
    launched = _launched(_replayed(trace, activities), capture)
    calls, _ = _layers(capture, launched["rank"].unique())
    return layer_labels(launched, calls)


def captured_ops(trace: Trace, activities: pl.DataFrame, capture: Trace) -> pl.DataFrame:
    """The `CAPTURED_OPS` table: for each replayed activity the op that launched it while the graph was captured.

    Args:
        trace: the trace or run that replays the graphs.
        activities: GPU activities with their step, as `Attribution` has them.
        capture: the trace in which they were captured.

    Raises:
        MissingDataError: as `by_capture`.
    """
    fitting = _fitting(_replayed(trace, activities), capture)
    args = capture.ops.select("op_id", "args").collect()
    known = fitting.join(args, on="op_id", how="left", validate="m:1").sort("kernel_id")
    return CAPTURED_OPS.check(known.select("kernel_id", "op", args=pl.when(pl.col("n_fitting") == 1).then("args")))


def _launched(replayed: pl.DataFrame, capture: Trace) -> pl.DataFrame:
    """The `LAUNCHED` table of the activities of fitting graphs, with the captured calls for launches."""
    fitting = _fitting(replayed, capture)
    return LAUNCHED.check(fitting.sort("call_ns", "start_ns", "kernel_id").select(LAUNCHED.names))


def _layers(capture: Trace, ranks: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The `LAYER_CALLS` and `LAYER_PARTS` tables of a capture: of its modules, else of its annotations."""
    modules = module_calls(capture)
    calls = layer_calls(modules, _captured(capture))
    parts = layer_parts(modules, calls)
    if not calls.height:
        spans = host_spans(capture)
        calls = annotated_calls(spans)
        parts = annotated_parts(spans, calls)
    return _of_ranks(calls, ranks), _of_ranks(parts, ranks)


def _replayed(trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """The activities of steps, `between` left out, with their call; of a graph launch their `position` in the graph.

    On one stream time tells the position. On several only node ids do, taken to count in the order of capture: no
    recorded trace with such ids was at hand, and ops that do not go with the kernels refuse a wrong order.
    """
    calls = trace.launches.select("launch_id", "thread_id", call="name", graph_call_ns="start_ns")
    nodes = trace.kernels.select("kernel_id", "kind", "graph_node_id")
    rows = (
        activities.lazy()
        .filter(pl.col("step").is_not_null() & pl.col("section").is_null())
        .join(calls, on="launch_id", validate="m:1")
        .join(nodes, on="kernel_id", validate="1:1")
        .collect()
    )
    by_node = (pl.col("graph_node_id").n_unique() == pl.len()) & (pl.col("graph_node_id").null_count() == 0)
    one_stream = (pl.struct("device", "stream").n_unique() == 1).over(_LAUNCH)
    order = pl.when(one_stream).then("start_ns").otherwise("graph_node_id")
    is_graph = pl.col("call").str.contains("GraphLaunch")
    known = is_graph & (by_node.over(_LAUNCH) | one_stream)
    rows = rows.with_columns(order=order, is_graph=is_graph, n_nodes=pl.len().over(_LAUNCH).cast(pl.Int64))
    position = pl.int_range(pl.len(), dtype=pl.Int64).over(_LAUNCH, order_by=["order", "kernel_id"])
    return rows.with_columns(position=pl.when(known).then(position))


def _captured(capture: Trace) -> pl.DataFrame:
    """The launches between the begin and the end of a capture on a thread, by number of the capture and position."""
    calls = capture.launches.select("rank", "thread_id", "launch_id", "op_id", "name", call_ns="start_ns").collect()
    calls = calls.sort("call_ns", "launch_id")
    begins = pl.col("name").str.contains("StreamBeginCapture")
    border = begins | pl.col("name").str.contains("StreamEndCapture")
    last_border = pl.when(border).then(begins).forward_fill().over("rank", "thread_id")
    calls = calls.with_columns(
        capture_no=(begins.cum_sum().over("rank", "thread_id") - 1).cast(pl.Int64), is_captured=last_border
    )
    calls = calls.filter(pl.col("is_captured") & pl.col("name").str.contains(_CAPTURED))
    ran = capture.kernels.select("launch_id").collect().drop_nulls()
    ops = capture.ops.select("op_id", op="name").collect()
    first_ns = pl.col("call_ns").min().over("rank", "thread_id", "capture_no")
    return (
        calls.join(ran, on="launch_id", how="anti")
        .join(ops, on="op_id", how="left", validate="m:1")
        .with_columns(capture_no=first_ns.rank("dense").over("rank").cast(pl.Int64) - 1)
        .sort("call_ns", "launch_id")
        .with_columns(position=pl.int_range(pl.len(), dtype=pl.Int64).over("rank", "capture_no"))
        .select("rank", "thread_id", "capture_no", "position", "call_ns", "op_id", "op", captured="name")
    )


def _of_ranks(rows: pl.DataFrame, ranks: pl.Series) -> pl.DataFrame:
    """The rows for each of the ranks: those of one rank stand for all."""
    if rows["rank"].n_unique() != 1:
        return rows
    return rows.drop("rank").join(ranks.alias("rank").to_frame(), how="cross")


def _fitting(replayed: pl.DataFrame, capture: Trace) -> pl.DataFrame:
    """The activities of replayed graphs with the captured call of each, for the steps that the capture fits."""
    graphs = replayed.filter(pl.col("position").is_not_null())
    captured = _of_ranks(_captured(capture), replayed["rank"].unique())
    fits = _fits(graphs, captured)
    pairs = (
        graphs.drop("thread_id", "call", "op_id")
        .join(fits, on=_LAUNCH, validate="m:1")
        .join(captured, on=["rank", "capture_no", "position"], validate="m:1")
    )
    agreeing = pairs.filter(_agrees().mean().over(_STEP) >= _MIN_AGREEMENT)
    if not agreeing.height:
        raise MissingDataError(_misfit(replayed, captured, paired=pairs.height > 0), _HINT)
    return agreeing


def _fits(graphs: pl.DataFrame, captured: pl.DataFrame) -> pl.DataFrame:
    """Of each graph launch the first capture that fits (`capture_no`), and how many do (`n_fitting`).

    The graphs of a step fit as many captures in a row, each with as many launches as its graph has kernels.
    """
    sizes = captured.group_by("rank", "capture_no").agg(n=pl.len()).sort("rank", "capture_no")
    of_rank = dict(sizes.group_by("rank", maintain_order=True).agg("n").iter_rows())
    launches = graphs.unique(_LAUNCH).sort("graph_call_ns").group_by(_STEP, maintain_order=True)
    starts_of: dict[tuple[int, ...], list[int]] = {}
    found: list[tuple[int, int, int, int]] = []
    for rank, _, launch_ids, needed in launches.agg("launch_id", "n_nodes").iter_rows():
        key = (rank, *needed)
        if key not in starts_of:
            starts_of[key] = _places(needed, of_rank.get(rank, []))
        if starts := starts_of[key]:
            found += [(rank, launch_id, starts[0] + i, len(starts)) for i, launch_id in enumerate(launch_ids)]
    schema = {"rank": pl.Int16, "launch_id": pl.Int64, "capture_no": pl.Int64, "n_fitting": pl.Int64}
    return pl.DataFrame(found, schema=schema, orient="row")


def _places(needed: list[int], have: list[int]) -> list[int]:
    """Where the one list stands within the other."""
    return [i for i in range(len(have) - len(needed) + 1) if have[i : i + len(needed)] == needed]


def _agrees() -> pl.Expr:
    """Whether the captured call, and the op where it tells, are of the kind of the replayed activity."""
    kind = pl.coalesce(
        *(pl.when(pl.col("captured").str.contains(call)).then(pl.lit(name)) for name, call in _KIND.items()),
        pl.lit("kernel"),
    )
    group = pl.coalesce(
        *(pl.when(pl.col("op").str.contains(op)).then(pl.lit(name)) for name, op in _OP_GROUP.items()), "group"
    )
    return (kind == pl.col("kind")) & (group == pl.col("group"))


_HINT = "Give the trace that was recorded while these graphs were captured, of the same server and batch size."


def _misfit(replayed: pl.DataFrame, captured: pl.DataFrame, *, paired: bool) -> str:
    """Why no step's graphs fit."""
    graphs = replayed.filter("is_graph")
    if not graphs.height:
        return "The trace replays no graph in its steps."
    if not captured.height:
        return "The capture trace has no launches between the begin and the end of a stream capture."
    if graphs["position"].null_count() == graphs.height:
        return "The graphs run on several streams and no node ids were recorded, so the order of capture is not known."
    sizes = captured.group_by("rank", "capture_no").agg(n=pl.len())["n"]
    kernels = graphs.unique(_LAUNCH)["n_nodes"]
    found = f"captured graphs of {_sizes(sizes)} launches, replayed graphs of {_sizes(kernels)} kernels"
    if paired:
        return (
            f"The capture trace does not fit: {found}, but the ops of the one do not go with the kernels of the other."
        )
    return f"The capture trace does not fit: {found}."


def _sizes(sizes: pl.Series) -> str:
    """The different sizes in order, at most five of them."""
    different = [str(size) for size in sizes.unique().sort()]
    return ", ".join(different[:5]) + (", ..." if len(different) > 5 else "")


def _with_surroundings(placed: pl.DataFrame, replayed: pl.DataFrame) -> pl.DataFrame:
    """Adds what the steps launched outside of the fitting graphs; leaves out steps of which layers are too few."""
    rows = replayed.join(placed, on="kernel_id", how="left", suffix="_found", validate="1:1")
    in_graph = pl.col("confidence").is_not_null()
    call_ns = pl.col("graph_call_ns")
    first_ns, last_ns = (
        bound.over(_STEP) for bound in (call_ns.filter(in_graph).min(), call_ns.filter(in_graph).max())
    )
    section = (
        pl.when(in_graph).then("section_found")
        .when(call_ns < first_ns).then(pl.lit("prologue"))
        .when(call_ns > last_ns).then(pl.lit("epilogue"))
    )  # fmt: skip
    in_layer = (pl.col("section_found") == "layer").fill_null(False)
    covered = in_layer.mean().over("rank", "device", "step") >= MIN_COVERED_FRAC
    found = rows.filter(covered).with_columns(section=section, confidence=pl.lit(CONFIDENCE))
    return PLACEMENT.check(found.sort("kernel_id").select(PLACEMENT.names))
