"""How long each edge of a replay takes beside the work at its source: what is typical, and who owes the rest."""

from dataclasses import dataclass, replace

import numpy as np

from traceql.arrays import Bools, Ints

HOST, LAUNCH, STREAM, CROSS, WAIT, ARRIVAL = range(6)
"""Kinds of edges (see `replay_graph`); of two that hold a node up alike the first counts."""
AFTER_END = (STREAM, CROSS, WAIT)
"""Edges from the end of an activity; the others begin where their source does."""

UNKNOWN_NS = np.iinfo(np.int64).min
FAR_NS = 20_000
"""A gap longer than this waited for something that is not recorded, and is no example of a gap."""
_USUAL_NS = {
    (LAUNCH, False): 8_000,
    (LAUNCH, True): 120_000,
    (STREAM, False): 1_000,
    (STREAM, True): 250,
    (CROSS, False): 1_500,
    (CROSS, True): 500,
    (WAIT, False): 10_000,
    (WAIT, True): 10_000,
    (ARRIVAL, False): 0,
    (ARRIVAL, True): 0,
}
"""Delay by kind, and whether inside a graph, where a recording shows none: medians over the traces of two H200."""


@dataclass(frozen=True, eq=False)
class Timed:
    """The edges with the recorded times around them, in order of target and kind. All arrays have one value an edge."""

    kind: Ints
    target: Ints
    free_ns: Ints
    """Recorded end of what it waits for: from then on only the delay holds the target up."""
    reached_ns: Ints
    """Recorded time of the target."""
    typical_ns: Ints
    """What the delay is at least, where that is known of the edge itself; else UNKNOWN_NS."""
    in_graph: Bools
    """Between two activities of a graph, or from its launch."""

    @property
    def gap_ns(self) -> Ints:
        """Most that the delay can be."""
        return self.reached_ns - self.free_ns


def delays(edges: Timed, n_nodes: int) -> tuple[Ints, Ints]:
    """The delay of each edge: the typical one of its kind, but for the edge that held its target up longest; and those.

    The second array has the typical delay of every edge: what is known of its kind, whatever held its target up.

    Typical is the median over those edges of the recording that held their target up alone, by kind and inside or
    outside of graphs; it is cut where the record leaves less. The edge whose target would come last by it gets what
    the recorded time of the target leaves, so that the latest of all edges of a node gives its recorded time.
    """
    typical = _typical(edges, n_nodes)
    delay = np.minimum(typical, edges.gap_ns)
    left = edges.gap_ns - delay
    order = np.lexsort((edges.kind, left, edges.target))
    first = np.ones(len(order), np.bool_)
    first[1:] = edges.target[order][1:] != edges.target[order][:-1]
    holding = order[first]
    delay[holding] = edges.gap_ns[holding]
    return delay, typical


def _typical(edges: Timed, n_nodes: int) -> Ints:
    result = edges.typical_ns.copy()
    examples = _examples(edges, n_nodes)
    for (kind, in_graph), usual_ns in _USUAL_NS.items():
        mine = (edges.kind == kind) & (edges.in_graph == in_graph)
        known = edges.gap_ns[mine & examples]
        result[mine & (result == UNKNOWN_NS)] = int(np.median(known)) if len(known) else usual_ns
    return result


def _examples(edges: Timed, n_nodes: int) -> Bools:
    """Edges that held their target up for sure: all others were free before this one's source was."""
    after = np.isin(edges.kind, (STREAM, CROSS))
    ended = _latest(edges, after, n_nodes)[edges.target]
    launched = _latest(edges, edges.kind == LAUNCH, n_nodes)[edges.target]
    begun = _latest(replace(edges, free_ns=edges.free_ns + edges.typical_ns), edges.kind == HOST, n_nodes)[edges.target]
    is_drained = (edges.kind == LAUNCH) & (ended <= edges.free_ns)
    is_queued = after & (ended == edges.free_ns) & (launched <= edges.free_ns - FAR_NS) & (edges.gap_ns <= FAR_NS)
    is_awaited = (edges.kind == WAIT) & (begun <= edges.free_ns)
    return is_drained | is_queued | is_awaited


def _latest(edges: Timed, chosen: Bools, n_nodes: int) -> Ints:
    """Of each node when the last of the chosen edges to it was free; long ago without any."""
    result = np.full(n_nodes, UNKNOWN_NS)
    np.maximum.at(result, edges.target[chosen], edges.free_ns[chosen])
    return result
