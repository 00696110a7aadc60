"""The steps of a store as a trend takes them."""

import polars as pl

from traceql.analyses.trend import RUN_STEPS
from traceql.errors import MissingDataError, QueryError, nearest
from traceql.fleet.asking import table_of
from traceql.fleet.store import Store

_GROUPS = ("run", "commit", "date", "host")


def groups_of(store: Store) -> list[str]:
    """What runs can be grouped by: run, commit, date, host, model and the labels."""
    return list(dict.fromkeys((*_GROUPS, "model", *store.labels())))


def run_steps(store: Store, by: str = "run") -> pl.DataFrame:
    """Table `run_steps`: the complete, separable steps of all traces of a store.

    Args:
        store: the store.
        by: one of `groups_of`; `date` is the day, in UTC.

    Raises:
        InputError: a data file cannot be read.
        MissingDataError: the store holds no trace.
        QueryError: nothing is known by that name.
    """
    if by not in groups_of(store):
        raise QueryError(f"runs cannot be grouped by {by[:80]!r}", nearest(by, groups_of(store)))
    if not store.entries:
        raise MissingDataError(f"{store.storage.location} holds no trace", "Put some into it with traceql ingest.")
    group = pl.col("date").dt.strftime("%Y-%m-%d") if by == "date" else pl.col(by)
    traces = table_of(store, "traces").select("run", "rank", "gpu", "engine", "world_size", "control_tokens_per_s")
    steps = table_of(store, "step_facts").filter("is_complete", "separable").with_columns(group=group)
    if by == "model":  # what is compared differs in it
        steps = steps.with_columns(model=pl.lit(None, pl.String))
    rows = steps.join(traces, on=["run", "rank"], how="left", validate="m:1").select(RUN_STEPS.names)
    try:
        return RUN_STEPS.check(rows.collect().sort("run", "rank", "device", "step"))
    except (OSError, pl.exceptions.ComputeError) as error:
        raise store.damage(error) from error
