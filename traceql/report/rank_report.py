"""The ranks of a run side by side, as data: medians of their steps, communication, waiting and clocks."""

from dataclasses import dataclass

import polars as pl

from traceql.analyses.attribution import Attribution
from traceql.analyses.clocks import clock_offsets
from traceql.analyses.comm import collectives
from traceql.analyses.comm_stats import RANK_WAITS, collective_stats, rank_waits_of
from traceql.analyses.concurrency import comm_overlap_of
from traceql.analyses.pace import idle_by_step
from traceql.analyses.summary import Selection, selected_steps
from traceql.ingest.meta import TraceMeta
from traceql.ingest.quirks import Quirk
from traceql.tables import Column, Table
from traceql.trace import Trace

RANKS = Table(
    "ranks",
    "One row per rank: medians over its complete steps, its communication, and when it is late. Sorted by rank.",
    Column("rank", pl.Int16, "Process rank"),
    Column("n_steps", pl.Int64, "Steps"),
    Column("n_complete", pl.Int64, "Of them, with a next step that ends their window"),
    Column("wall_ns", pl.Float64, "Median step", nullable=True),
    Column("busy_ns", pl.Float64, "Median union of GPU activity", nullable=True),
    Column("kernel_ns", pl.Float64, "Median sum of durations", nullable=True),
    Column("comm_ns", pl.Float64, "Median union of communication", nullable=True),
    Column("exposed_ns", pl.Float64, "Median time in which only communication runs", nullable=True),
    Column("host_idle_frac", pl.Float64, "Median share of wall in which the GPU waits for the host", nullable=True),
    *(Column(each.name, each.dtype, each.doc, nullable=True) for each in RANK_WAITS if each.name != "rank"),
)
_PLACE = ["rank", "device"]


@dataclass(frozen=True)
class RankReport:
    """What is known of the ranks of a run, over the steps selected."""

    parts: tuple[TraceMeta, ...]
    selection: Selection
    steps: pl.DataFrame
    """The rows of `steps` selected."""
    ranks: pl.DataFrame
    """Table `ranks`."""
    collectives: pl.DataFrame
    """Table `collective_stats`."""
    clocks: pl.DataFrame
    """Table `clocks`; of the whole recording, whatever is selected."""
    overlap: pl.DataFrame
    """Table `comm_overlap`."""
    kernels: pl.DataFrame
    """Table `collectives`: every communication kernel."""
    quirks: tuple[Quirk, ...]

    @classmethod
    def of(cls, trace: Trace, selection: Selection | None = None) -> "RankReport":
        """Works it out for a run, or for one trace.

        Raises:
            MissingDataError: the selection names no step.
        """
        selection = selection or Selection()
        found = Attribution.of(trace)
        every = collectives(trace)
        steps = selected_steps(found.steps, selection)
        chosen = every
        overlap = comm_overlap_of(found.activities, steps)
        if selection != Selection():
            chosen = every.join(steps, on=[*_PLACE, "step"], how="semi")
            overlap = overlap.filter(pl.col("step").is_not_null())
        places = found.activities["rank"].unique().sort()
        return cls(
            parts=trace.parts,
            selection=selection,
            steps=steps,
            ranks=_ranks(places, steps, overlap, idle_by_step(trace), rank_waits_of(chosen, steps)),
            collectives=collective_stats(chosen, steps),
            clocks=clock_offsets(every),
            overlap=overlap,
            kernels=chosen,
            quirks=trace.quirks,
        )

    @property
    def missing(self) -> list[int]:
        """The ranks of the job of which there is no file."""
        return sorted(set(range(self.world_size or 0)) - set(self.ranks["rank"]))

    @property
    def world_size(self) -> int | None:
        """Ranks of the job, where recorded."""
        return max((part.world_size for part in self.parts if part.world_size is not None), default=None)


def _ranks(
    places: pl.Series, steps: pl.DataFrame, overlap: pl.DataFrame, pace: pl.DataFrame, waits: pl.DataFrame
) -> pl.DataFrame:
    key = [*_PLACE, "step"]
    counts = steps.group_by("rank").agg(
        n_steps=pl.len().cast(pl.Int64), n_complete=pl.sum("is_complete").cast(pl.Int64)
    )
    complete = (
        steps.filter("is_complete")
        .join(overlap.select(*key, "comm_ns", "exposed_ns"), on=key, how="left", validate="1:1")
        .join(pace.select(*key, "host_idle_frac"), on=key, how="left", validate="1:1")
    )
    figures = ("wall_ns", "busy_ns", "kernel_ns", "comm_ns", "exposed_ns", "host_idle_frac")
    medians = complete.group_by("rank").agg(pl.median(*figures))
    rows = pl.DataFrame({"rank": places}, {"rank": pl.Int16})
    for frame in (counts, medians, waits):
        rows = rows.join(frame, on="rank", how="left", validate="1:1")
    return RANKS.check(rows.with_columns(pl.col("n_steps", "n_complete").fill_null(0)).sort("rank"))
