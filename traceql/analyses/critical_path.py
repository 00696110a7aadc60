"""What a step's wall consists of: the chain of host calls, kernels and waits that made it as long as it was.

The chain is walked back from the beginning of the next step's window: from each moment to the one that it came after,
up to the beginning of the step's own window. It may lead to another rank, through a collective for which that came
last. Its stretches add up to the wall, to the nanosecond.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.replay import Costs, Replay, windows
from traceql.analyses.replay_delays import ARRIVAL, CROSS, HOST, LAUNCH, STREAM, WAIT
from traceql.analyses.replay_graph import ReplayGraph
from traceql.analyses.summary import Selection, selected_steps
from traceql.arrays import Ints
from traceql.errors import MissingDataError
from traceql.ingest.meta import TraceMeta
from traceql.ingest.quirks import Quirk
from traceql.tables import DEVICE, RANK, STAGE, STEP, Column, Table
from traceql.trace import Trace

LIMITS = ("host", "gpu", "communication", "dependency", "unknown")
"""What a path is spent in, the level at which one says what limits a step."""
KINDS: Mapping[str, tuple[str, str]] = {
    "host": ("host", "the host's work between two of its calls, and in them"),
    "launch": ("host", "from a launch call to the start of its activity"),
    "sync": ("host", "from the end of what a host wait waits for to its return"),
    "kernel": ("gpu", "a kernel, copy or fill runs"),
    "gap": ("gpu", "between two activities of a stream"),
    "communication": ("communication", "a collective runs; with all ranks at hand only from the last arrival on"),
    "dependency": ("dependency", "from the end of an activity to the start of one of another stream"),
    "unknown": ("unknown", "before the first moment recorded"),
}
"""Every kind of stretch: its limit, and its meaning."""

CRITICAL_PATH = Table(
    "critical_path",
    "One row per stretch of a step's critical path; the stretches of a step add up to its wall. Complete, separable "
    "steps. Sorted by rank, device, step, start.",
    Column("rank", pl.Int16, "Process rank of the step"),
    Column("device", pl.Int16, "GPU ordinal of the step"),
    STEP,
    Column("start_ns", pl.Int64, "Start; of a replay with changes, the replayed one"),
    Column("dur_ns", pl.Int64, "Length, above zero"),
    Column("kind", pl.String, ", ".join(KINDS)),
    Column("limit", pl.String, "What it counts as: " + ", ".join(LIMITS)),
    Column("on_rank", pl.Int16, "Rank that the stretch is on: another one, where the step waited for that"),
    Column("kernel_id", pl.Int64, "The activity that runs, or that begins after it", nullable=True),
    Column("launch_id", pl.Int64, "The call that the host gets to, that launches, or that waits", nullable=True),
)

PATH_PARTS = Table(
    "path_parts",
    "One row per limit, kind and name on the critical paths of the steps counted, most time first.",
    Column("limit", pl.String, ", ".join(LIMITS)),
    Column("kind", pl.String, "As in `critical_path`"),
    Column("category", pl.String, "Category of the kernel; null for all but kernels", nullable=True),
    Column("name", pl.String, "Short name of the kernel, or name of the call", nullable=True),
    Column("ns_per_step", pl.Float64, "Time on the path: mean over the steps counted"),
    Column("share", pl.Float64, "The same as a share of the wall of those steps; null without wall", nullable=True),
    Column("n_per_step", pl.Float64, "Number of stretches in a step: mean"),
)

PATH_STEPS = Table(
    "path_steps",
    "One row per complete, separable step selected: what its critical path is spent in. Sorted by rank, device, step.",
    RANK,
    DEVICE,
    STEP,
    STAGE,
    Column("wall_ns", pl.Int64, "Length of the window"),
    *(Column(f"{limit}_ns", pl.Int64, f"Of the path: {limit}") for limit in LIMITS),
    Column("other_rank_ns", pl.Int64, "Of the path: on another rank, which this one waited for"),
    Column("limited_by", pl.String, "The limit with most time"),
)

_STEP = ["rank", "device", "step"]
_KIND_OF_EDGE = {
    HOST: "host",
    LAUNCH: "launch",
    STREAM: "gap",
    CROSS: "dependency",
    WAIT: "sync",
    ARRIVAL: "communication",
}


@dataclass(frozen=True)
class CriticalPath:
    """What limits the steps of a trace or run, as recorded."""

    trace: TraceMeta
    selection: Selection
    path: pl.DataFrame
    """Table `critical_path`, of the steps counted."""
    parts: pl.DataFrame
    """Table `path_parts`."""
    steps: pl.DataFrame
    """Table `path_steps`."""
    notes: tuple[str, ...]
    """What the replay rests on."""
    quirks: tuple[Quirk, ...]


def critical_paths(trace: Trace, selection: Selection | None = None) -> CriticalPath:
    """The critical path of each complete step selected, as recorded.

    Raises:
        MissingDataError: the selection names no step, or no complete one.
    """
    selection = selection or Selection()
    check_steps(trace, selection)
    graph = ReplayGraph.of(trace)
    replay = Replay(graph, Costs.recorded(graph))
    counted = counted_windows(trace, replay, selection)
    path = paths(replay, counted)
    return CriticalPath(
        trace=trace.meta,
        selection=selection,
        path=path,
        parts=path_parts(path, counted, graph),
        steps=path_steps(path, counted),
        notes=graph_notes(trace, graph),
        quirks=trace.quirks,
    )


def critical_path(trace: Trace, selection: Selection | None = None) -> pl.DataFrame:
    """The `critical_path` table of a trace or run, as recorded.

    Raises:
        MissingDataError: as `critical_paths`.
    """
    return critical_paths(trace, selection).path


def check_steps(trace: Trace, selection: Selection) -> None:
    """Finds out before the work whether there is a step to replay.

    Raises:
        MissingDataError: the selection names no complete, separable step.
    """
    chosen = selected_steps(Attribution.of(trace).steps, selection)
    if chosen.filter(pl.col("is_complete") & pl.col("wall_ns").is_not_null()).is_empty():
        raise MissingDataError(
            "there is no complete step to replay",
            "A step is complete when another one follows it; steps that run at once are not separable.",
        )


def counted_windows(trace: Trace, replay: Replay, selection: Selection) -> pl.DataFrame:
    """The complete, separable steps selected, as replayed: rows of `replay.windows`."""
    steps = Attribution.of(trace).steps
    chosen = selected_steps(steps, selection)
    return windows(replay.starts, steps).join(chosen, on=_STEP, how="semi", maintain_order="left")


def graph_notes(trace: Trace, graph: ReplayGraph) -> tuple[str, ...]:
    """What a replay of this trace or run rests on besides what was recorded, in sentences."""
    notes: list[str] = []
    n_given, n_ranks = graph.activities["rank"].n_unique(), trace.meta.world_size
    if n_ranks is not None and n_given < n_ranks and graph.activities["is_comm"].any():
        notes.append(
            f"Of {n_ranks} ranks {n_given} given: what those wait for the others in collectives stays as recorded."
        )
    if graph.n_inferred and graph.inferred_confidence is not None:
        notes.append(
            f"{_number(graph.n_inferred, 'dependency', 'dependencies')} between streams of graphs inferred from "
            f"recorded times, seen in {graph.inferred_confidence * 100:.0f} % of the replays of their graph."
        )
    if graph.n_guessed:
        notes.append(
            f"{_number(graph.n_guessed, 'activity', 'activities')} began long after all that is known to be waited "
            "for: put after what had ended last."
        )
    if graph.n_dropped:
        n_dropped = _number(graph.n_dropped, "dependency", "dependencies")
        notes.append(f"{n_dropped} left out, since recorded times contradict them.")
    return tuple(notes)


def _number(number: int, noun: str, nouns: str) -> str:
    return f"{number:,} {noun if number == 1 else nouns}"


# --- the walk


def paths(replay: Replay, steps: pl.DataFrame) -> pl.DataFrame:
    """The `critical_path` table of a replay.

    Args:
        replay: a graph with costs.
        steps: rows of `replay.windows` of that replay.
    """
    walked = [_walk(replay, *window) for window in steps.select("end_node", "start_ns").rows()]
    sizes = [len(edges) for edges in walked]
    edges = np.array([edge for each in walked for edge in each], np.int64)
    step = np.repeat(np.arange(steps.height), sizes)
    rows = pl.concat([_work(replay, edges, step), _rest(replay, edges, step), _before(replay, walked, steps)])
    return _clipped(rows, steps)


def _walk(replay: Replay, node: int, start_ns: int) -> list[int]:
    """The edges back from a node to a time."""
    held_by, source, time = replay.held_by, replay.graph.source, replay.time_ns
    edges: list[int] = []
    while time[node] > start_ns and held_by[node] >= 0:
        edges.append(int(held_by[node]))
        node = int(source[edges[-1]])
    return edges


def _work(replay: Replay, edges: Ints, step: Ints) -> pl.DataFrame:
    """The part of each edge in which its activity runs."""
    graph = replay.graph
    activity = graph.activity[edges]
    chosen = activity >= 0
    edges, step, activity = edges[chosen], step[chosen], activity[chosen]
    begin = replay.time_ns[graph.source[edges]]
    end = np.minimum(begin + replay.costs.length_ns[activity], replay.time_ns[graph.target[edges]])
    rows = graph.activities.select("rank", "kernel_id", "is_comm")[activity]
    kind = pl.when("is_comm").then(pl.lit("communication")).otherwise(pl.lit("kernel"))
    return _stretches(
        step,
        begin,
        end,
        rows.select(kind=kind, on_rank="rank", kernel_id="kernel_id", launch_id=pl.lit(None, pl.Int64)),
    )


def _rest(replay: Replay, edges: Ints, step: Ints) -> pl.DataFrame:
    """The part of each edge after its activity."""
    graph = replay.graph
    activity, target = graph.activity[edges], graph.target[edges]
    work = np.where(activity >= 0, replay.costs.length_ns[activity], 0)
    end = replay.time_ns[target]
    begin = np.minimum(replay.time_ns[graph.source[edges]] + work, end)
    kinds = np.array([_KIND_OF_EDGE[kind] for kind in range(len(_KIND_OF_EDGE))])[graph.edge_kind[edges]]
    about = _about_nodes(graph)[target].with_columns(kind=pl.Series(kinds, dtype=pl.String))
    return _stretches(step, begin, end, about.select("kind", "on_rank", "kernel_id", "launch_id"))


def _before(replay: Replay, walked: list[list[int]], steps: pl.DataFrame) -> pl.DataFrame:
    """What lies between the beginning of the window and the first moment that the path leads to."""
    last = [
        int(replay.graph.source[edges[-1]]) if edges else end_node
        for edges, end_node in zip(walked, steps["end_node"], strict=True)
    ]
    end = replay.time_ns[np.array(last, np.int64)]
    about = steps.select(
        kind=pl.lit("unknown"),
        on_rank="rank",
        kernel_id=pl.lit(None, pl.Int64),
        launch_id=pl.lit(None, pl.Int64),
    )
    return _stretches(np.arange(steps.height), steps["start_ns"].to_numpy(), end, about)


def _stretches(step: Ints, begin: Ints, end: Ints, about: pl.DataFrame) -> pl.DataFrame:
    times = {"window": step, "begin_ns": begin, "end_ns": end}
    return about.with_columns(**{name: pl.Series(values, dtype=pl.Int64) for name, values in times.items()})


def _about_nodes(graph: ReplayGraph) -> pl.DataFrame:
    """Of each node its rank, and the activity that starts or the call that is made."""
    n_nodes = len(graph.time_ns)
    rank, kernel, launch = (np.full(n_nodes, -1) for _ in range(3))
    calls, waits = graph.calls, graph.calls.filter("is_wait")
    node = graph.activities["node"].to_numpy()
    rank[node], kernel[node] = graph.activities["rank"].to_numpy(), graph.activities["kernel_id"].to_numpy()
    launch[node] = graph.activities["launch_id"].fill_null(-1).to_numpy()
    for rows, column in ((calls, "node"), (waits, "return_node")):
        rank[rows[column].to_numpy()] = rows["rank"].to_numpy()
        launch[rows[column].to_numpy()] = rows["launch_id"].to_numpy()
    ranks = pl.Series("on_rank", rank).cast(pl.Int16)
    return pl.DataFrame([ranks, pl.Series("kernel_id", kernel), pl.Series("launch_id", launch)]).with_columns(
        pl.when(pl.col(key) >= 0).then(key) for key in ("kernel_id", "launch_id")
    )


def _clipped(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The stretches within the windows of their steps, as table `critical_path`."""
    borders = steps.select(*_STEP, window_ns="start_ns", window_end_ns="end_ns").with_row_index("window")
    borders = borders.with_columns(pl.col("window").cast(pl.Int64))
    limits = pl.col("kind").replace_strict({kind: limit for kind, (limit, _) in KINDS.items()}, return_dtype=pl.String)
    found = rows.join(borders, on="window", validate="m:1").with_columns(
        start_ns=pl.max_horizontal("begin_ns", "window_ns"), stop_ns=pl.min_horizontal("end_ns", "window_end_ns")
    )
    found = found.with_columns(dur_ns=pl.col("stop_ns") - pl.col("start_ns"), limit=limits)
    found = found.filter(pl.col("dur_ns") > 0).with_columns(pl.col("on_rank").cast(pl.Int16))
    return CRITICAL_PATH.check(found.select(CRITICAL_PATH.names).sort(*_STEP, "start_ns"))


# --- what it adds up to


def path_parts(path: pl.DataFrame, steps: pl.DataFrame, graph: ReplayGraph) -> pl.DataFrame:
    """The `path_parts` table.

    Args:
        path: the `critical_path` table.
        steps: the windows that it is of.
        graph: whose kernels and calls it names.
    """
    kernels = graph.activities.select("kernel_id", "short_name", kernel_category="category")
    calls = graph.calls.select("launch_id", call="name")
    runs = pl.col("kind").is_in(["kernel", "communication"])
    named = path.join(kernels, on="kernel_id", how="left", validate="m:1").join(
        calls, on="launch_id", how="left", validate="m:1"
    )
    by_call = pl.when(pl.col("limit") == "host").then("call")
    named = named.with_columns(
        category=pl.when(runs).then("kernel_category"), name=pl.when(runs).then("short_name").otherwise(by_call)
    )
    key = ["limit", "kind", "category", "name"]
    wall_ns = int(steps["wall_ns"].sum())
    ns = pl.col("dur_ns").sum()
    parts = named.group_by(key).agg(
        ns_per_step=ns / steps.height,
        share=ns / wall_ns if wall_ns else pl.lit(None, pl.Float64),
        n_per_step=pl.len() / steps.height,
    )
    return PATH_PARTS.check(parts.select(PATH_PARTS.names).sort("ns_per_step", *key, descending=[True, *[False] * 4]))


def path_steps(path: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The `path_steps` table, of the windows that a `critical_path` table is of."""
    sums = path.group_by(_STEP).agg(
        *(pl.col("dur_ns").filter(pl.col("limit") == limit).sum().alias(f"{limit}_ns") for limit in LIMITS),
        other_rank_ns=pl.col("dur_ns").filter(pl.col("on_rank") != pl.col("rank")).sum(),
    )
    columns = [f"{limit}_ns" for limit in LIMITS]
    rows = steps.select(*_STEP, "stage", "wall_ns").join(sums, on=_STEP, how="left", validate="1:1")
    rows = rows.with_columns(pl.col(*columns, "other_rank_ns").fill_null(0))
    most = pl.coalesce(
        pl.when(pl.col(f"{limit}_ns") == pl.max_horizontal(columns)).then(pl.lit(limit)) for limit in LIMITS
    )
    return PATH_STEPS.check(rows.with_columns(limited_by=most).select(PATH_STEPS.names).sort(_STEP))
