"""Communication of each step: how long nothing else runs, and how long it waits for other ranks in it."""

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.comm import COLLECTIVES, collectives
from traceql.analyses.concurrency import comm_overlap
from traceql.analyses.once import once
from traceql.trace import Trace

_STEP = ["rank", "device", "step"]


@once
def step_comm(trace: Trace) -> pl.DataFrame:
    """One row per step with a window: rank, device, step, comm_ns, exposed_comm_ns, comm_waiting_ns. Worked out once.

    The first two times are unions within the window, as in `comm_overlap`; comm_waiting_ns is the waiting in the
    matched collectives that the step launched, null where there is none, and so for one rank alone.
    """
    overlap = comm_overlap(trace).filter(pl.col("step").is_not_null())
    rows = overlap.select(*_STEP, "comm_ns", exposed_comm_ns="exposed_ns")
    return rows.join(_waiting(trace), on=_STEP, how="left", validate="1:1", maintain_order="left")


def _waiting(trace: Trace) -> pl.DataFrame:
    """By step: waiting for other ranks; without rows for one rank alone, whose kernels match with no other's."""
    if Attribution.of(trace).activities["rank"].n_unique() < 2:
        return COLLECTIVES.empty().select(*_STEP, comm_waiting_ns="waiting_ns")
    matched = collectives(trace).filter(pl.col("waiting_ns").is_not_null() & pl.col("step").is_not_null())
    return matched.group_by(_STEP).agg(comm_waiting_ns=pl.sum("waiting_ns"))
