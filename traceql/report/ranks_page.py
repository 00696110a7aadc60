"""The page of `traceql ranks`: the ranks of a run side by side, who waits, for whom and why.

As JSON (`to_json`) it is one object: `selection`; `n_ranks`, `world_size` and `missing_ranks`; `headline`, the
sentence about communication or null; `ranks[]`, one object per rank with the columns of table `ranks`;
`collectives[]`, one per kind, group and size (table `collective_stats`); `clocks[]` (table `clocks`); `steps[]`, one
per step window with communication exposed and overlapped (table `comm_overlap`); `notes[]`, what limits the figures,
in words; `quirks[]`. Null is unknown: with one rank, all that only several tell.
"""

from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import orjson
import polars as pl

from traceql import fmt
from traceql.analyses.attribution import Attribution
from traceql.analyses.clocks import clock_offsets
from traceql.analyses.comm import (
    RANK_WAITS,
    collective_stats,
    collectives_of,
    rank_waits_of,
)
from traceql.analyses.concurrency import comm_overlap_of
from traceql.analyses.pace import idle_by_step
from traceql.analyses.summary import Selection, selected_steps
from traceql.ingest.meta import TraceMeta
from traceql.ingest.quirks import Quirk
from traceql.report.page import Column, Section, TextTable
from traceql.report.plain import plain_rows
from traceql.tables import Column as DataColumn
from traceql.tables import Table
from traceql.trace import Trace

RANKS = Table(
    "ranks",
    "One row per rank: medians over its complete steps, its communication, and when it is late. Sorted by rank.",
    DataColumn("rank", pl.Int16, "Process rank"),
    DataColumn("n_steps", pl.Int64, "Steps"),
    DataColumn("n_complete", pl.Int64, "Of them, with a next step that ends their window"),
    DataColumn("wall_ns", pl.Float64, "Median step", nullable=True),
    DataColumn("busy_ns", pl.Float64, "Median union of GPU activity", nullable=True),
    DataColumn("kernel_ns", pl.Float64, "Median sum of durations", nullable=True),
    DataColumn("comm_ns", pl.Float64, "Median union of communication", nullable=True),
    DataColumn("exposed_ns", pl.Float64, "Median time in which only communication runs", nullable=True),
    DataColumn("host_idle_frac", pl.Float64, "Median share of wall in which the GPU waits for the host", nullable=True),
    *(DataColumn(each.name, each.dtype, each.doc, nullable=True) for each in RANK_WAITS if each.name != "rank"),
)

LATE_SHARE = 0.05
"""Part of a step from which on waiting for a rank is worth a word."""
_MAIN_SHARE = 0.9
_MOST_NAMED = 8
_PLACE = ["rank", "device"]
_WORDS = {"send_recv": "send/receive", "other": "communication"}
_REASONS = {
    "host": "its host launches late",
    "gpu": "its GPU is still busy when the others start",
}
BY = {"rank": "ranks", "collective": "collectives", "clock": "clocks", "step": "overlap", "kernel": "kernels"}
"""What `--by` names, and the report's table of it; `kernel` is data only."""


@dataclass(frozen=True)
class RankReport:
    """What is known of the ranks of a run, over the steps selected."""

    parts: tuple[TraceMeta, ...]
    selection: Selection
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
    def of(cls, trace: Trace, selection: Selection | None = None, found: Attribution | None = None) -> "RankReport":
        """Works it out for a run, or for one trace.

        Raises:
            MissingDataError: the selection names no step.
        """
        selection = selection or Selection()
        found = found or Attribution.of(trace)
        every = collectives_of(trace, found)
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


# --- words


def comm_line(report: RankReport) -> str | None:
    """Communication in one sentence, for the summary too: None where there is none.

    `all-reduce: 1.173 ms transfer a step, 116.657 ms waiting for rank 1 on rank 0`
    """
    with_comm = report.ranks.filter(pl.col("comm_kernel_ns") > 0)
    if with_comm.is_empty():
        return None
    what = _main_kind(report.collectives)
    known = with_comm.filter(pl.col("waiting_ns").is_not_null())
    if known.is_empty():
        amount, per = _amount(
            with_comm.sort("comm_kernel_ns", "rank", descending=True).row(0, named=True), "comm_kernel"
        )
        return f"{what}: {amount}{per}; waiting cannot be told from transfer {_why_unknown(report)}"
    worst = known.sort(_waiting(), pl.col("rank"), descending=[True, False]).row(0, named=True)
    (transfer, per), (waiting, _) = _amount(worst, "transfer"), _amount(worst, "waiting")
    if not worst["waiting_ns"]:
        return f"{what}: {transfer} transfer{per}, no waiting"
    whom = f"for rank {worst['waits_for_rank']} on rank {worst['rank']}"
    line = f"{what}: {transfer} transfer{per}, {waiting} waiting {whom}"
    return line if late_ranks(report) else f"{line}: in step"


def _waiting() -> pl.Expr:
    return pl.coalesce("waiting_ns_per_step", "waiting_ns")


def _amount(row: dict[str, Any], name: str) -> tuple[str, str]:
    """The median of a step in words and `a step`; where there are no steps, the sum and nothing."""
    per_step = row[f"{name}_ns_per_step"]
    return (fmt.duration(row[f"{name}_ns"]), "") if per_step is None else (fmt.duration(per_step), " a step")


def _main_kind(stats: pl.DataFrame) -> str:
    """The kind of nearly all communication time, else `communication`."""
    kinds = stats.group_by("kind").agg(pl.sum("kernel_ns")).sort("kernel_ns", "kind", descending=[True, False])
    share = kinds.select(pl.first("kernel_ns") / pl.sum("kernel_ns")).item()
    return kind_word(kinds["kind"][0]) if share >= _MAIN_SHARE else "communication"


def kind_word(kind: str) -> str:
    """A kind of collective as one writes it: `all-reduce`."""
    return _WORDS.get(kind, kind.replace("_", "-"))


def _why_unknown(report: RankReport) -> str:
    if report.ranks.height == 1:
        world = report.world_size
        return f"with {f'one of {world} ranks' if world and world > 1 else 'one rank'}"
    return "(no collective could be matched across the ranks)"


def late_ranks(report: RankReport) -> list[str]:
    """The ranks for which others wait a good part of the step, with the reason: `rank 1 is late (...)`."""
    lines: list[str] = []
    known = report.ranks.filter(pl.col("n_late") > 0).sort("lateness_ns", "rank", descending=[True, False])
    for row in known.iter_rows(named=True):
        waiting = report.ranks.filter(waits_for_rank=row["rank"]).filter(
            _waiting() > LATE_SHARE * pl.coalesce("wall_ns", "comm_kernel_ns")
        )
        if waiting.is_empty():
            continue
        why = _REASONS.get(row["late_because"] or "", "the trace does not tell why")
        last = f"last in {fmt.count(row['n_late'])} of {fmt.count(row['n_matched'])} collectives"
        lines.append(f"rank {row['rank']} is late: {last}; {why}")
    return lines


def notes(report: RankReport) -> list[str]:
    """What limits the figures: ranks missing, steps that differ, kernels not matched."""
    lines: list[str] = []
    if report.missing:
        named = ", ".join(map(str, report.missing[:_MOST_NAMED])) + (", …" if len(report.missing) > _MOST_NAMED else "")
        lines.append(
            f"{fmt.count(len(report.missing))} of {fmt.plural(report.world_size or 0, 'rank')} not given ({named}): "
            "waiting for those is not told from transfer."
        )
    counts = dict(report.ranks.select("rank", "n_steps").iter_rows())
    if len(set(counts.values())) > 1:
        each = ", ".join(f"rank {rank}: {n}" for rank, n in counts.items())
        lines.append(f"The ranks have different numbers of steps ({each}); only what all have is matched.")
    lines += _unmatched(report)
    return lines


def _unmatched(report: RankReport) -> list[str]:
    n_all = report.kernels.height
    n_unmatched = report.kernels["collective_id"].null_count()
    if report.ranks.height < 2 or not n_unmatched:
        return []
    amount = f"{fmt.count(n_unmatched)} of {fmt.plural(n_all, 'communication kernel')}"
    return [f"{amount} not matched across the ranks: their waiting is not known."]


# --- the page


def ranks_page(report: RankReport, by: str | None = None, top: int = 15) -> list[Section]:
    """The sections of a report: all, or the headline and the table that `by` names."""
    if report.ranks.is_empty():
        return [Section(lines=("No GPU activity: nothing to compare.",))]
    makers = {"rank": rank_section, "collective": collective_section, "clock": clock_section, "step": step_section}
    chosen = (
        [makers[by](report, top)] if by else [makers[name](report, top) for name in ("rank", "collective", "clock")]
    )
    return [section for section in (headline(report), limits(report), *chosen) if section is not None]


def headline(report: RankReport) -> Section:
    """How long a step takes on the median rank and the worst; communication; who is late."""
    return Section(
        lines=tuple(filter(None, [_pace(report), comm_line(report) or "no communication", *late_ranks(report)]))
    )


def _pace(report: RankReport) -> str:
    n_ranks = fmt.plural(report.ranks.height, "rank")
    timed = report.ranks.filter(pl.col("wall_ns").is_not_null()).sort("wall_ns", "rank")
    if timed.is_empty():
        return f"{n_ranks}, no complete step"
    middle, worst = timed.row((timed.height - 1) // 2, named=True), timed.row(-1, named=True)
    line = f"{n_ranks}, step {fmt.duration(middle['wall_ns'])} on rank {middle['rank']}"
    if worst["rank"] == middle["rank"]:
        return line
    return f"{line} (median), {fmt.duration(worst['wall_ns'])} on rank {worst['rank']} (slowest)"


def limits(report: RankReport) -> Section | None:
    """What is missing, loud enough to be read before the figures."""
    lines = notes(report)
    return Section("Not everything is there", lines=tuple(lines), is_warning=True) if lines else None


def rank_section(report: RankReport, top: int) -> Section:  # noqa: ARG001 - all sections are called alike
    """A row per rank."""
    columns = (
        Column("rank", "right"),
        Column("steps", "right", drop=5),
        Column("step ms", "right"),
        Column("busy", "right", drop=3),
        Column("kernel time", "right", drop=4),
        Column("comm", "right"),
        Column("transfer", "right", drop=1),
        Column("waiting", "right"),
        Column("exposed", "right", drop=2),
        Column("host idle", "right", drop=3),
        Column("for rank", "right", drop=2),
        Column("last in", "right", drop=2),
        Column("because of", drop=2),
    )
    has_steps = bool(report.ranks["n_complete"].sum())
    rows = tuple(
        (
            str(row["rank"]),
            fmt.count(row["n_complete"]),
            *(fmt.ms(row[name]) for name in ("wall_ns", "busy_ns", "kernel_ns")),
            *(fmt.ms(row[f"{name}_ns{'_per_step' * has_steps}"]) for name in ("comm_kernel", "transfer", "waiting")),
            fmt.ms(row["exposed_ns"]),
            fmt.percent(row["host_idle_frac"]),
            fmt.count(row["waits_for_rank"]),
            fmt.percent(row["n_late"] / row["n_matched"] if row["n_matched"] else None),
            row["late_because"] or fmt.UNKNOWN,
        )
        for row in report.ranks.iter_rows(named=True)
    )
    basis = "Medians over complete steps" if has_steps else "No complete step: sums over the recording"
    lines = (
        f"{basis}, ms. comm: communication kernels; of it transfer, as if all ranks came at once, and waiting.",
        "exposed: only communication runs. host idle: share of the step in which the GPU waits for the host.",
        "last in: collectives to which the rank came last. host: launched after the first rank had started; gpu: busy.",
    )
    return Section("Ranks", table=TextTable(columns, rows), notes=lines)


def collective_section(report: RankReport, top: int) -> Section | None:
    """A row per kind, group and size of collective."""
    stats = report.collectives
    if stats.is_empty():
        return None
    several = stats["group"].n_unique() > 1
    columns = (
        Column("collective"),
        *((Column("group", drop=2),) if several else ()),
        Column("size", "right"),
        Column("ranks", "right", drop=5),
        Column("n/step", "right", drop=3),
        Column("transfer µs", "right"),
        Column("bus bandwidth", "right", drop=1),
        Column("waiting µs p50", "right"),
        Column("p90", "right", drop=4),
        Column("p99", "right"),
    )
    rows = tuple(
        (
            kind_word(row["kind"]),
            *((fmt.UNKNOWN if row["group"] is None else fmt.visible(row["group"]),) if several else ()),
            fmt.size(row["bytes"]),
            fmt.count(row["group_size"]),
            fmt.count(row["n_per_step"]),
            fmt.us(row["transfer_median_ns"]),
            fmt.value("bytes_per_s", row["bus_bandwidth_bytes_per_s"]),
            *(fmt.us(row[f"waiting_p{p}_ns"]) for p in (50, 90, 99)),
        )
        for row in stats.head(top).iter_rows(named=True)
    )
    shown = f": top {len(rows)} of {stats.height}" if len(rows) < stats.height else ""
    unknown = () if stats["bytes"].count() else ("Sizes were not recorded (CUDA graphs record none).",)
    notes = ("Of one collective: median transfer, and the waiting of all ranks.", *unknown)
    return Section(f"Collectives{shown}", table=TextTable(columns, rows), notes=notes)


def clock_section(report: RankReport, top: int) -> Section | None:  # noqa: ARG001
    """A row per rank: its clock against that of the lowest."""
    if report.clocks.height < 2:
        return None
    columns = (
        Column("rank", "right"),
        Column("offset", "right"),
        Column("spread", "right"),
        Column("drift ppm", "right"),
        Column("collectives", "right", drop=1),
        Column("corrected"),
    )
    rows = tuple(
        (
            str(row["rank"]),
            fmt.duration(row["offset_ns"]),
            fmt.duration(row["spread_ns"]),
            fmt.UNKNOWN if row["drift_ppm"] is None else f"{row['drift_ppm']:.3f}",
            fmt.count(row["n_collectives"]),
            _correction(row),
        )
        for row in report.clocks.iter_rows(named=True)
    )
    lowest = report.clocks["rank"][0]
    notes = (
        f"Against the clock of rank {lowest}, from the ends of collectives, which all ranks leave together.",
        "Corrected is only what is clear of the spread.",
    )
    return Section("Clocks", table=TextTable(columns, rows), notes=notes)


def _correction(row: dict[str, Any]) -> str:
    parts = [name for name in ("offset", "drift") if row[f"is_{name}_applied"]]
    return " and ".join(parts) or "no"


def step_section(report: RankReport, top: int) -> Section:  # noqa: ARG001
    """A row per step window: communication exposed and overlapped."""
    names = ("busy_ns", "compute_ns", "comm_ns", "exposed_ns", "overlapped_ns")
    columns = (
        Column("rank", "right"),
        Column("device", "right", drop=1),
        Column("step", "right"),
        *(Column(f"{name.removesuffix('_ns')} ms", "right") for name in names),
    )
    rows = tuple(
        (str(row["rank"]), str(row["device"]), fmt.count(row["step"]), *(fmt.ms(row[name]) for name in names))
        for row in report.overlap.iter_rows(named=True)
    )
    notes = ("Unions of time within each window: exposed + overlapped = comm, exposed + compute = busy.",)
    return Section("Communication by step", table=TextTable(columns, rows), notes=notes)


# --- as data


def table_of(report: RankReport, by: str, top: int | None = None) -> pl.DataFrame:
    """The table that `by` names, all rows or the first `top`."""
    frame: pl.DataFrame = getattr(report, BY[by])
    return frame if top is None else frame.head(top)


def to_json(report: RankReport, top: int | None = None) -> bytes:
    """The report as one JSON object, indented; `top` shortens `collectives` only."""
    return orjson.dumps(document(report, top), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def document(report: RankReport, top: int | None = None) -> dict[str, Any]:
    """The report as plain data, in the form that the head of this module describes."""
    return {
        "selection": asdict(report.selection),
        "n_ranks": report.ranks.height,
        "world_size": report.world_size,
        "missing_ranks": report.missing,
        "headline": comm_line(report),
        "ranks": plain_rows(report.ranks),
        "collectives": plain_rows(table_of(report, "collective", top)),
        "clocks": plain_rows(report.clocks),
        "steps": plain_rows(report.overlap),
        "notes": notes(report),
        "quirks": msgspec.to_builtins(report.quirks),
    }
