"""The page of `traceql ranks`: one function a section, in the order of the page."""

from collections.abc import Callable
from typing import Any

import polars as pl

from traceql import fmt
from traceql.report.page import Column, Section, TextTable, View, made, top_title
from traceql.report.rank_report import RankReport
from traceql.report.ranks_words import comm_line, kind_word, late_ranks, notes
from traceql.report.stage_words import several_stages

SectionMaker = Callable[[RankReport, View], Section | None]


def ranks_page(report: RankReport, view: View) -> list[Section]:
    """The sections of the page: all, or the headline, the limits and the table that `view.by` names."""
    if report.ranks.is_empty():
        return [Section(lines=("No GPU activity: nothing to compare.",))]
    return made(OVERVIEW if view.by is None else (headline, limits, SECTIONS[view.by]), report, view)


def headline(report: RankReport, view: View) -> Section:  # noqa: ARG001 - all sections are called alike
    """How long a step takes on the median rank and the worst; communication; who is late."""
    stages = several_stages("Medians", report.steps.filter("is_complete"))
    lines = (_pace(report), comm_line(report) or "no communication", *late_ranks(report), stages)
    return Section(lines=tuple(filter(None, lines)))


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


def limits(report: RankReport, view: View) -> Section | None:  # noqa: ARG001
    """What is missing, loud enough to be read before the figures."""
    lines = notes(report)
    return Section("Not everything is there", lines=tuple(lines), is_warning=True) if lines else None


def ranks(report: RankReport, view: View) -> Section:  # noqa: ARG001
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


def collectives(report: RankReport, view: View) -> Section | None:
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
        for row in stats[: view.top].iter_rows(named=True)
    )
    unknown = (
        () if stats["bytes"].count() else ("Sizes were not recorded (CUDA graphs and older PyTorch record none).",)
    )
    notes = ("Of one collective: median transfer, and the waiting of all ranks.", *unknown)
    return Section(top_title("Collectives", len(rows), stats.height), table=TextTable(columns, rows), notes=notes)


def clocks(report: RankReport, view: View) -> Section | None:  # noqa: ARG001
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


def steps(report: RankReport, view: View) -> Section:  # noqa: ARG001
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


OVERVIEW: tuple[SectionMaker, ...] = (headline, limits, ranks, collectives, clocks)
SECTIONS: dict[str, SectionMaker] = {"rank": ranks, "collective": collectives, "clock": clocks, "step": steps}
