"""What collectives add up to: how long each rank waits and why it is late, and what each kind and size takes."""

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.comm import collectives
from traceql.tables import RANK, Column, Table
from traceql.trace import Trace

RANK_WAITS = Table(
    "rank_waits",
    "One row per rank: its communication, what of it was waiting, and how often the others waited for it.",
    RANK,
    Column("n_collectives", pl.Int64, "Communication kernels"),
    Column("n_matched", pl.Int64, "Of them, matched with those of the other ranks"),
    Column("comm_kernel_ns", pl.Int64, "Sum of the durations of all communication kernels"),
    Column("waiting_ns", pl.Int64, "Sum of waiting, of the matched ones", nullable=True),
    Column("transfer_ns", pl.Int64, "Sum of transfer, of the matched ones", nullable=True),
    Column("comm_kernel_ns_per_step", pl.Float64, "Median over the complete steps", nullable=True),
    Column("waiting_ns_per_step", pl.Float64, "Median over the complete steps", nullable=True),
    Column("transfer_ns_per_step", pl.Float64, "Median over the complete steps", nullable=True),
    Column("waiting_p50_ns", pl.Float64, "Median of the waiting in one collective", nullable=True),
    Column("waiting_p90_ns", pl.Float64, "90th percentile (linear interpolation)", nullable=True),
    Column("waiting_p99_ns", pl.Float64, "99th percentile", nullable=True),
    Column("n_late", pl.Int64, "Collectives to which it came last", nullable=True),
    Column("lateness_ns", pl.Int64, "How much later than the first rank it came to those, added up", nullable=True),
    Column("n_late_host", pl.Int64, "Of n_late: its host launched after the first rank had started", nullable=True),
    Column("n_late_gpu", pl.Int64, "Of n_late: launched before that, but its stream was busy", nullable=True),
    Column(
        "late_because",
        pl.String,
        "host or gpu: which of the two makes more lateness in the median of the complete steps, or else (none there, "
        "or as much) of lateness_ns",
        nullable=True,
    ),
    Column("waits_for_rank", pl.Int16, "The rank that it waits longest for; as late_because", nullable=True),
)

COLLECTIVE_STATS = Table(
    "collective_stats",
    "One row per kind, group and size of collective, most kernel time first.",
    Column("kind", pl.String, "What it does"),
    Column("group", pl.String, "Name of the process group, where recorded", nullable=True),
    Column("group_size", pl.Int64, "Ranks in the group, where recorded", nullable=True),
    Column("bytes", pl.Int64, "The larger of input and output, where recorded", nullable=True),
    Column("n_kernels", pl.Int64, "Communication kernels, of all ranks"),
    Column("n_matched", pl.Int64, "Of them, matched with those of the other ranks"),
    Column("n_per_step", pl.Float64, "Of one rank, mean over the complete steps; null without", nullable=True),
    Column("kernel_ns", pl.Int64, "Sum of durations, of all ranks"),
    Column("transfer_median_ns", pl.Float64, "Median of transfer", nullable=True),
    Column("alg_bandwidth_bytes_per_s", pl.Float64, "Median", nullable=True),
    Column("bus_bandwidth_bytes_per_s", pl.Float64, "Median", nullable=True),
    Column("waiting_p50_ns", pl.Float64, "Median of waiting, over all ranks", nullable=True),
    Column("waiting_p90_ns", pl.Float64, "90th percentile (linear interpolation)", nullable=True),
    Column("waiting_p99_ns", pl.Float64, "99th percentile", nullable=True),
)

_PLACE = ["rank", "device"]


def rank_waits(trace: Trace) -> pl.DataFrame:
    """The `rank_waits` table of a run; what needs several ranks is null for one alone."""
    return rank_waits_of(collectives(trace), Attribution.of(trace).steps)


def rank_waits_of(collectives: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The `rank_waits` table.

    Args:
        collectives: the `collectives` table, or part of it.
        steps: the `steps` whose medians are asked for; of them the complete ones count.
    """
    is_matched = pl.col("collective_id").is_not_null()
    some = is_matched.any()
    is_last = (pl.col("rank") == pl.col("last_rank")) & (pl.col("arrival_lag_ns") > 0)
    first_ns = pl.col("start_ns") - pl.col("arrival_lag_ns")
    by_host, by_gpu = is_last & (pl.col("launch_ns") > first_ns), is_last & (pl.col("launch_ns") <= first_ns)
    late = collectives.filter(is_last).with_columns(
        late_because=pl.when(by_host).then(pl.lit("host")).when(by_gpu).then(pl.lit("gpu"))
    )
    because = _mostly(late.drop_nulls("late_because"), steps, of="arrival_lag_ns", by="late_because")
    waiting = collectives.filter(pl.col("waiting_ns") > 0).with_columns(waits_for_rank="last_rank")
    whom = _mostly(waiting, steps, of="waiting_ns", by="waits_for_rank")
    rows = collectives.group_by("rank").agg(
        n_collectives=pl.len().cast(pl.Int64),
        n_matched=is_matched.sum().cast(pl.Int64),
        comm_kernel_ns=pl.sum("dur_ns"),
        waiting_ns=pl.when(some).then(pl.sum("waiting_ns")),
        transfer_ns=pl.when(some).then(pl.sum("transfer_ns")),
        **_percentiles(),
        n_late=pl.when(some).then(is_last.sum().cast(pl.Int64)),
        lateness_ns=pl.when(some).then(pl.col("arrival_lag_ns").filter(is_last).sum()),
        n_late_host=pl.when(some).then(by_host.sum().cast(pl.Int64)),
        n_late_gpu=pl.when(some).then(by_gpu.sum().cast(pl.Int64)),
    )
    for known in (_per_step(collectives, steps), because, whom):
        rows = rows.join(known, on="rank", how="left", validate="1:1")
    return RANK_WAITS.check(rows.select(RANK_WAITS.names).sort("rank"))


def _percentiles() -> dict[str, pl.Expr]:
    return {f"waiting_p{p}_ns": pl.col("waiting_ns").quantile(p / 100, "linear") for p in (50, 90, 99)}


def _per_step(collectives: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Medians over the complete steps of each rank; a step without communication counts with nothing."""
    parts = {"dur_ns": "comm_kernel_ns", "waiting_ns": "waiting_ns", "transfer_ns": "transfer_ns"}
    sums = collectives.group_by(*_PLACE, "step").agg(
        *(pl.sum(part).alias(f"{name}_per_step") for part, name in parts.items()),
        is_matched=pl.col("collective_id").is_not_null().any(),
    )
    names = [f"{name}_per_step" for name in parts.values()]
    each = steps.filter("is_complete").select(*_PLACE, "step").join(sums, on=[*_PLACE, "step"], how="left")
    medians = each.group_by("rank").agg(pl.col(names).fill_null(0).median(), pl.col("is_matched").any())
    known = pl.when("is_matched").then(pl.col(names[1:]))
    return medians.select("rank", names[0], known)


def _mostly(rows: pl.DataFrame, steps: pl.DataFrame, *, of: str, by: str) -> pl.DataFrame:
    """For each rank the value of `by` with most of a time: in its median complete step, else in all, else the lowest.

    A single collective may be longer than those of all steps together: ranks begin to record up to a step apart.
    """
    key = [*_PLACE, "step"]
    complete = steps.filter("is_complete").select(key)
    each = rows.group_by(*key, by).agg(pl.sum(of))
    kinds = each.select("rank", "device", by).unique().join(complete, on=_PLACE)
    in_step = kinds.join(each, on=[*key, by], how="left", validate="1:1").with_columns(pl.col(of).fill_null(0))
    medians = in_step.group_by("rank", by).agg(median=pl.median(of))
    found = each.group_by("rank", by).agg(pl.sum(of)).join(medians, on=["rank", by], how="left", validate="1:1")
    found = found.with_columns(pl.col("median").fill_null(0)).sort(
        "rank", "median", of, pl.col(by).cast(pl.String), descending=[False, True, True, False]
    )
    return found.group_by("rank", maintain_order=True).agg(pl.first(by))


def collective_stats(collectives: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The `collective_stats` table.

    Args:
        collectives: the `collectives` table, or part of it.
        steps: the `steps` over which counts a step are taken; of them the complete ones count.
    """
    key = ["kind", "group", "group_size", "bytes"]
    sized = collectives.with_columns(bytes=pl.max_horizontal("in_bytes", "out_bytes"))
    stats = sized.group_by(key).agg(
        n_kernels=pl.len().cast(pl.Int64),
        n_matched=pl.col("collective_id").count().cast(pl.Int64),
        kernel_ns=pl.sum("dur_ns"),
        transfer_median_ns=pl.median("transfer_ns"),
        **{f"{name}_bandwidth_bytes_per_s": pl.median(f"{name}_bandwidth_bytes_per_s") for name in ("alg", "bus")},
        **_percentiles(),
    )
    complete = steps.filter("is_complete").select(*_PLACE, "step")
    n_steps = complete.group_by(_PLACE).agg(n_steps=pl.len())
    counts = sized.join(complete, on=[*_PLACE, "step"], how="semi").group_by(*key, *_PLACE).agg(n=pl.len())
    counts = counts.join(n_steps, on=_PLACE, validate="m:1").group_by(key).agg(
        n_per_step=(pl.col("n") / pl.col("n_steps")).mean()
    )  # fmt: skip
    stats = stats.join(counts, on=key, how="left", nulls_equal=True, validate="1:1").select(COLLECTIVE_STATS.names)
    return COLLECTIVE_STATS.check(stats.sort("kernel_ns", *key, descending=[True, *[False] * len(key)]))
