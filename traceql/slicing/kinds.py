"""What an event is to a slice, by its phase and category."""

from enum import IntEnum

from traceql.ingest.decode import ROUTES, SPAN_SIDES


class Kind(IntEnum):
    """A kind of event."""

    METADATA = 0
    """Names and order of processes and threads."""
    GPU = 1
    """A GPU activity."""
    HOST = 2
    """A call, operator, Python frame, annotation or overhead on the host."""
    GPU_SPAN = 3
    """The copy of an annotation on the GPU."""
    SYNC = 4
    """A recorded wait on the GPU."""
    OTHER = 5
    """Another slice with a length."""
    MOMENT = 6
    """An instant, a counter, or anything else at one time."""
    FLOW = 7
    """One end of an arrow."""
    BRACKET = 8
    """The begin or end of a slice, an event each."""
    ASYNC = 9
    """A part of an asynchronous event; its parts share an id."""


SLICES = (Kind.GPU, Kind.HOST, Kind.GPU_SPAN, Kind.SYNC, Kind.OTHER)
"""Events with a length of their own (phase X)."""
LINKED = (Kind.FLOW, Kind.ASYNC)
"""Events that belong together with others by an id."""

_PHASES = {
    "M": Kind.METADATA, "s": Kind.FLOW, "t": Kind.FLOW, "f": Kind.FLOW, "B": Kind.BRACKET, "E": Kind.BRACKET,
    **dict.fromkeys("bneSTpF", Kind.ASYNC),
}  # fmt: skip
_TABLES = {"gpu": Kind.GPU, "ops": Kind.HOST, "calls": Kind.HOST, "python": Kind.HOST, "syncs": Kind.SYNC}


class Kinds(dict[tuple[str, str], Kind]):
    """The kind of each (phase, category)."""

    def __missing__(self, key: tuple[str, str]) -> Kind:
        kind = self[key] = _kind(*key)
        return kind


def _kind(phase: str, category: str) -> Kind:
    if phase != "X":
        return _PHASES.get(phase, Kind.MOMENT)
    route = ROUTES.get(category.lower())
    if route is None:
        return Kind.OTHER
    if route.table == "spans":
        return Kind.GPU_SPAN if SPAN_SIDES[route.code] == "gpu" else Kind.HOST
    return _TABLES.get(route.table, Kind.OTHER)
