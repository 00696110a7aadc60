"""Who waits for whom and why, and what limits what is known of it, in sentences."""

from typing import Any

import polars as pl

from traceql import fmt
from traceql.report.quirks import quirk_lines
from traceql.report.rank_report import RankReport

LATE_SHARE = 0.05
"""Part of a step from which on waiting for a rank is worth a word."""
_MAIN_SHARE = 0.9
_MOST_NAMED = 8
_WORDS = {"send_recv": "send/receive", "other": "communication"}
_REASONS = {
    "host": "its host launches late",
    "gpu": "its GPU is still busy when the others start",
}


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
    if report.missing:
        per += " (waiting for ranks not given included)"
    if not worst["waiting_ns"]:
        return f"{what}: {transfer} transfer{per}, no waiting"
    whom = f"for rank {worst['waits_for_rank']} on rank {worst['rank']}"
    line = f"{what}: {transfer} transfer{per}, {waiting} waiting {whom}"
    return line if report.missing or late_ranks(report) else f"{line}: in step"


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
        late = "is late among those given" if report.missing else "is late"
        lines.append(f"rank {row['rank']} {late}: {last}; {why}")
    return lines


_INCOMPARABLE = ("other-times", "mixed-jobs", "no-common-clock")
"""Oddities of a run because of which its ranks may not be compared."""


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
    lines += quirk_lines(quirk for quirk in report.quirks if quirk.id in _INCOMPARABLE)
    return lines


def _unmatched(report: RankReport) -> list[str]:
    n_all = report.kernels.height
    n_unmatched = report.kernels["collective_id"].null_count()
    if report.ranks.height < 2 or not n_unmatched:
        return []
    amount = f"{fmt.count(n_unmatched)} of {fmt.plural(n_all, 'communication kernel')}"
    return [f"{amount} not matched across the ranks: their waiting is not known."]
