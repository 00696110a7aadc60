"""A recording run again with other costs: when each host call and GPU activity would come then."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from traceql.analyses.replay_graph import ReplayGraph
from traceql.arrays import Ints

NEVER_NS = -(2**62)
"""The delay of an edge that holds nothing up."""

_STEP = ["rank", "device", "step"]


@dataclass(frozen=True, eq=False)
class Costs:
    """What the graph's parts take: those recorded, or others."""

    length_ns: Ints
    """Of each activity."""
    delay_ns: Ints
    """Of each edge, beside the length."""

    @classmethod
    def recorded(cls, graph: ReplayGraph) -> "Costs":
        """Those under which a replay gives the recording back."""
        return cls(graph.length_ns, graph.delay_ns)

    @classmethod
    def typical(cls, graph: ReplayGraph) -> "Costs":
        """Those with the delays that are typical of their kind; the host's own work stays as recorded."""
        return cls(graph.length_ns, graph.typical_ns)


@dataclass(frozen=True, eq=False)
class Replay:
    """A graph with costs, run once."""

    graph: ReplayGraph
    costs: Costs

    @cached_property
    def edge_ns(self) -> Ints:
        """How long each edge takes in all; an activity does not start before what it overlaps."""
        work = np.where(self.graph.activity >= 0, self.costs.length_ns[self.graph.activity], 0)
        whole = work + self.costs.delay_ns
        return np.where(self.costs.delay_ns <= NEVER_NS, NEVER_NS, np.maximum(whole, 0))

    @cached_property
    def time_ns(self) -> Ints:
        """When each node comes: after the last of what it waits for; without any, when it was recorded."""
        graph = self.graph
        time = graph.time_ns.copy()
        time[graph.target[self.edge_ns > NEVER_NS]] = NEVER_NS
        moments: list[int] = time.tolist()
        # The edges are in order of their target, and lead forward: all that a source waits for has been seen.
        sources: list[int] = graph.source.tolist()
        for source, target, edge_ns in zip(sources, graph.target.tolist(), self.edge_ns.tolist(), strict=True):
            moment = moments[source] + edge_ns
            if moment > moments[target]:  # noqa: PLR1730 - `max` takes three times as long
                moments[target] = moment
        return np.array(moments, np.int64)

    @cached_property
    def held_by(self) -> Ints:
        """Of each node the edge that held it up: the one after which it comes; -1 for none."""
        graph = self.graph
        is_holding = self.time_ns[graph.source] + self.edge_ns == self.time_ns[graph.target]
        holding = np.flatnonzero(is_holding)[::-1]
        held_by = np.full(len(graph.time_ns), -1)
        held_by[graph.target[holding]] = holding
        return held_by

    @cached_property
    def starts(self) -> pl.DataFrame:
        """The activities with start_ns as replayed, and the node."""
        start = self.time_ns[self.graph.activities["node"].to_numpy()]
        columns = ("kernel_id", *_STEP, "section", "node")
        return self.graph.activities.select(columns).with_columns(start_ns=pl.Series(start))


def windows(starts: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The complete, separable steps as replayed: rank, device, step, start_ns, wall_ns, first and last node.

    Args:
        starts: `Replay.starts`.
        steps: the `steps` table.

    `first_node` begins the window and `end_node` the next one. As recorded, a window begins with the first activity
    launched inside the step's annotation; which one that is may change.
    """
    inside = starts.filter(pl.col("step").is_not_null() & pl.col("section").is_null()).sort("start_ns", "node")
    firsts = inside.unique(_STEP, keep="first", maintain_order=True).sort(_STEP)
    place = ["rank", "device"]
    firsts = firsts.select(*_STEP, "start_ns", first_node="node").with_columns(
        end_ns=pl.col("start_ns").shift(-1).over(place), end_node=pl.col("first_node").shift(-1).over(place)
    )
    whole = steps.filter(pl.col("is_complete") & pl.col("wall_ns").is_not_null())
    known = whole.select(*_STEP, "stage", "batch_size", recorded_wall_ns="wall_ns")
    found = known.join(firsts, on=_STEP, validate="1:1").filter(pl.col("end_ns").is_not_null())
    return found.with_columns(wall_ns=pl.col("end_ns") - pl.col("start_ns")).sort(_STEP)
