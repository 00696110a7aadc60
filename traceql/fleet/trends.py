"""The steps of a store as a trend takes them."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

import polars as pl

from traceql.analyses.step_windows import COMPLETE
from traceql.analyses.trend import RUN_STEPS
from traceql.errors import MissingDataError, QueryError, nearest
from traceql.fleet.asking import table_of
from traceql.fleet.store import Store

_GROUPS = ("run", "commit", "date", "host")


def groups_of(store: Store) -> list[str]:
    """What runs can be grouped by: run, commit, date, host, model and the labels."""
    return list(dict.fromkeys((*_GROUPS, "model", *store.labels())))


def runs_of(store: Store, only: Iterable[tuple[str, str]] = ()) -> list[str]:
    """The runs in a store, or those of them that match, as `run_steps` takes them."""
    return _chosen(store, only)["run"].unique().sort().to_list()


def run_steps(store: Store, by: str = "run", only: Iterable[tuple[str, str]] = ()) -> pl.DataFrame:
    """Table `run_steps`: the complete, separable steps of all traces of a store.

    Args:
        store: the store.
        by: one of `groups_of`; `date` is the day, in UTC.
        only: of the same names, what their values must match, with * and ?; of several for a name one.

    Raises:
        InputError: a data file cannot be read.
        MissingDataError: the store holds no trace, or none that matches.
        QueryError: nothing is known by that name.
    """
    only = [*only]
    for name in (by, *(name for name, _ in only)):
        if name not in groups_of(store):
            raise QueryError(f"nothing is known of runs by the name {name[:80]!r}", nearest(name, groups_of(store)))
    if not store.entries:
        raise MissingDataError(f"{store.storage.location} holds no trace", "Put some into it with traceql ingest.")
    if store.identities().select(_value(by)).to_series().is_null().all():
        raise MissingDataError(
            f"of no run in {store.storage.location} the {by} is known",
            f"Ingest the traces again with --label {by}=VALUE: what is there is only labelled.",
        )
    traces = table_of(store, "traces").select("run", "rank", "gpu", "engine", "world_size", "control_tokens_per_s")
    steps = table_of(store, "step_facts").filter(COMPLETE).with_columns(group=_value(by))
    if by == "model":  # what is compared differs in it
        steps = steps.with_columns(model=pl.lit(None, pl.String))
    if only:
        steps = steps.join(_chosen(store, only).lazy(), on=["run", "rank"], how="semi")
    rows = steps.join(traces, on=["run", "rank"], how="left", validate="m:1").select(RUN_STEPS.names)
    try:
        return RUN_STEPS.check(rows.collect().sort("run", "rank", "device", "step"))
    except (OSError, pl.exceptions.ComputeError) as error:
        raise store.damage(error) from error


def _value(name: str) -> pl.Expr:
    """What runs are grouped or chosen by: of dates the day."""
    return pl.col("date").dt.strftime("%Y-%m-%d") if name == "date" else pl.col(name)


def _chosen(store: Store, only: Iterable[tuple[str, str]]) -> pl.DataFrame:
    """Run and rank of the traces that match."""
    patterns: dict[str, list[str]] = {}
    for name, pattern in only:
        patterns.setdefault(name, []).append(pattern)
    found = store.identities()
    for name, several in patterns.items():
        values = found.select(_value(name)).to_series().drop_nulls().unique()
        matching = [value for value in values if any(fnmatchcase(value, pattern) for pattern in several)]
        found = found.filter(_value(name).is_in(matching))
        if found.is_empty():
            shown = ", ".join(values.sort()[:5])
            raise MissingDataError(f"no run has {name} {' or '.join(several)[:80]}", f"There are: {shown or 'none'}.")
    return found.select("run", "rank")
