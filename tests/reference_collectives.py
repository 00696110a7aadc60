"""The slow, simple count of collectives that the product is compared with: json and loops, nothing of traceql.

For runs in which every rank records the same collectives, in order, on one clock.
"""

from dataclasses import dataclass
from pathlib import Path

import reference


@dataclass(eq=False)
class Arrival:
    """A rank's kernel of a collective."""

    rank: int
    start: int
    dur: int
    waiting: int = 0
    transfer: int = 0
    lag: int = 0


def arrivals(path: Path) -> list[Arrival]:
    """The NCCL kernels of a file in order of time, on the absolute clock."""
    metadata, _ = reference.read_events(path)
    base = int(metadata.get("baseTimeNanoseconds", 0))
    kernels = [a for a in reference.load(path).activities if a.name.startswith("nccl")]
    return [Arrival(a.rank, base + a.start, a.dur) for a in sorted(kernels, key=lambda a: a.start)]


def collectives(paths: list[Path]) -> list[list[Arrival]]:
    """The arrivals of each collective: the k-th kernels of all ranks, with what the ranks together tell."""
    of_rank = [arrivals(path) for path in paths]
    result: list[list[Arrival]] = []
    for k in range(len(of_rank[0])):
        together = [kernels[k] for kernels in of_rank]
        first = min(arrival.start for arrival in together)
        last = max(arrival.start for arrival in together)
        for arrival in together:
            arrival.waiting = max(0, min(last - arrival.start, arrival.dur))
            arrival.transfer = min(other.dur for other in together)
            arrival.lag = arrival.start - first
        result.append(together)
    return result


def overlap(intervals: list[tuple[int, int, bool]], begin: int, end: int) -> tuple[int, int, int]:
    """(communication, exposed, other work) within a window, nanosecond by nanosecond; bool: is communication."""
    comm = exposed = other = 0
    for now in range(begin, end):
        running = {is_comm for start, stop, is_comm in intervals if start <= now < stop}
        comm += True in running
        exposed += running == {True}
        other += False in running
    return comm, exposed, other
