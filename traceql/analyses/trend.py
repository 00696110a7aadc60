"""How the step time went from one group of runs to the next: by run, commit, date, host or label.

Each group is compared with the last one before it of the same setting as `traceql diff` compares two sides: the same
steps, the same interval, the same verdicts. So a change that a trend finds is one that a comparison of the same traces
finds, and several series (of two models, say) in one store do not hide each other's changes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import polars as pl

from traceql.analyses.diff import verdict_of
from traceql.analyses.diff_sides import MIN_EFFECT, by_step, median_of
from traceql.arrays import Floats
from traceql.errors import MissingDataError
from traceql.tables import BATCH_SIZE, DEVICE, RANK, STAGE, STEP, Column, Table

RUN_STEPS = Table(
    "run_steps",
    "One row per complete, separable step of each trace: what a trend is made from.",
    Column("run", pl.String, "Run"),
    Column("group", pl.String, "What it is grouped by; null where that is not known", nullable=True),
    Column("date", pl.Datetime("us", "UTC"), "When its recording began", nullable=True),
    Column("gpu", pl.String, "Name of its GPUs", nullable=True),
    Column("engine", pl.String, "sglang, vllm or tensorrt-llm", nullable=True),
    Column("model", pl.String, "What it served", nullable=True),
    Column("world_size", pl.Int64, "Ranks of the job", nullable=True),
    Column("control_tokens_per_s", pl.Float64, "Of the run, without the profiler", nullable=True),
    RANK,
    DEVICE,
    STEP,
    STAGE,
    BATCH_SIZE,
    Column("wall_ns", pl.Int64, "Length of the window"),
)

TREND = Table(
    "trend",
    "One row per group of runs, by the date of its first; without a date last. Each is compared with the last before "
    "it of the same GPU, engine, model and world size. Steps of one stage and batch size count; of several ranks a "
    "step is the mean over them.",
    Column("group", pl.String, "Run, commit, date, host or value of the label"),
    Column("date", pl.Datetime("us", "UTC"), "When its first recording began", nullable=True),
    Column("n_runs", pl.Int64, "Runs"),
    Column("n_ranks", pl.Int64, "Ranks that steps are of, at the most"),
    Column("n_steps", pl.Int64, "Steps of all runs"),
    Column("median_step_ns", pl.Float64, "Median step; of several runs the mean of their medians"),
    Column("p10_step_ns", pl.Float64, "10th percentile over all steps (linear interpolation)"),
    Column("p90_step_ns", pl.Float64, "90th percentile"),
    Column("control_tokens_per_s", pl.Float64, "Tokens a second without the profiler, mean of the runs", nullable=True),
    Column("compared_with", pl.String, "The group before that it is compared with; null for the first", nullable=True),
    Column("delta_ns", pl.Float64, "Change of the median step; null without one to compare", nullable=True),
    Column("delta_frac", pl.Float64, "The same as a share of the step before", nullable=True),
    Column("low_frac", pl.Float64, "Its interval (95 %): low end; null where there is none", nullable=True),
    Column("high_frac", pl.Float64, "High end", nullable=True),
    Column("verdict", pl.String, "faster, slower, same or cannot tell; null for the first", nullable=True),
    Column("reason", pl.String, "Why it cannot be told", nullable=True),
)


_BREAKING = {"gpu": "GPU", "engine": "engine", "model": "model", "world_size": "world size"}
"""Facts in which only equal runs are compared; what is not known may be the same."""


@dataclass(frozen=True)
class TrendOptions:
    """Which steps are compared, and what counts as a change."""

    stage: str | None = None
    """None: decode where a run has it, else the commonest."""
    batch_size: int | None = None
    """None: that of most runs."""
    min_effect: float = MIN_EFFECT


@dataclass(frozen=True)
class Trend:
    """Groups of runs in order, and what changed between them."""

    stage: str
    batch_size: int | None
    options: TrendOptions
    groups: pl.DataFrame
    """Table `trend`."""
    left_out: tuple[str, ...]
    """Runs without such steps."""
    ungrouped: tuple[str, ...]
    """Runs of which it is not known what they are grouped by."""

    @property
    def regressions(self) -> pl.DataFrame:
        """The groups that are slower than the one before."""
        return self.groups.filter(verdict="slower")


@dataclass(frozen=True)
class _Group:
    """The steps of the runs of a group."""

    name: str
    date: datetime | None
    setting: Mapping[str, frozenset[str]]
    """Of each fact what is known of it."""
    n_ranks: int
    tokens_per_s: float | None
    walls: tuple[Floats, ...]
    """Of each run, in order of date."""


def trend(steps: pl.DataFrame, options: TrendOptions | None = None, *, runs: Iterable[str] = ()) -> Trend:
    """How the step time went.

    Args:
        steps: table `run_steps`.
        options: which steps count, and the smallest change that matters.
        runs: all runs, those without any step too.

    Raises:
        MissingDataError: there is no such step.
    """
    options = options or TrendOptions()
    stage, batch_size = _kind(steps, options)
    of_kind = pl.col("stage") == stage
    of_kind &= pl.col("batch_size").is_null() if batch_size is None else pl.col("batch_size") == batch_size
    chosen = steps.filter(of_kind & pl.col("group").is_not_null())
    if chosen.is_empty():
        raise MissingDataError(
            "of no run is known what to group it by", "Tell it with traceql ingest --label, or --by run."
        )
    groups = [_group(rows) for _, rows in chosen.group_by("group", maintain_order=True)]
    groups.sort(key=lambda group: (group.date is None, group.date or 0, group.name))
    ungrouped = steps.filter(pl.col("group").is_null())["run"].unique().sort().to_list()
    others = {*runs, *steps["run"]} - set(chosen["run"]) - set(ungrouped)
    rows = [_row(group, before, options) for group, before in _compared(groups)]
    table = TREND.check(pl.DataFrame(rows, schema=TREND.schema))
    return Trend(stage, batch_size, options, table, tuple(sorted(others)), tuple(ungrouped))


def _kind(steps: pl.DataFrame, options: TrendOptions) -> tuple[str, int | None]:
    """Stage and batch size to compare: of those asked for decode, then what most runs have, then most steps are of."""
    runs, counts = Counter[tuple[str, int | None]](), Counter[tuple[str, int | None]]()
    sums = steps.group_by("run", "stage", "batch_size").len()
    for stage, batch, n_steps in sums.select("stage", "batch_size", "len").rows():
        runs[stage, batch] += 1
        counts[stage, batch] += n_steps
    wanted = [
        kind for kind in runs
        if options.stage in (None, kind[0]) and options.batch_size in (None, kind[1])
    ]  # fmt: skip
    if not wanted:
        have = ", ".join(sorted(f"{stage} batch {batch}" for stage, batch in runs)) or "none"
        raise MissingDataError("no complete step is selected", f"Complete steps there are: {have}.")
    return max(wanted, key=lambda kind: (kind[0] == "decode", runs[kind], counts[kind], kind[1] or 0))


def _group(rows: pl.DataFrame) -> _Group:
    runs = rows.group_by("run").agg(pl.min("date"), pl.first("control_tokens_per_s"))
    runs = runs.sort("date", "run", nulls_last=True)
    paces = runs["control_tokens_per_s"].drop_nulls().to_list()
    dates = runs["date"].drop_nulls().to_list()
    return _Group(
        name=rows["group"][0],
        date=min(dates, default=None),
        setting={fact: frozenset(map(str, rows[column].drop_nulls().unique())) for column, fact in _BREAKING.items()},
        n_ranks=rows.group_by("run").agg(pl.n_unique("rank"))["rank"].max(),  # pyright: ignore[reportArgumentType] - a count
        tokens_per_s=sum(paces) / len(paces) if paces else None,
        walls=tuple(by_step(rows.filter(run=run), "wall_ns") for run in runs["run"]),
    )


def _compared(groups: Sequence[_Group]) -> Iterator[tuple[_Group, _Group | None]]:
    """Each group with the last one before it of its setting, else with the one before it; the first with none."""
    latest: dict[tuple[tuple[str, frozenset[str]], ...], _Group] = {}  # of each setting, the last one last
    before: _Group | None = None
    for group in groups:
        yield group, next((each for each in reversed(latest.values()) if not _differing(each, group)), before)
        setting = tuple(group.setting.items())
        latest.pop(setting, None)
        latest[setting] = before = group


def _differing(before: _Group, after: _Group) -> list[str]:
    """The facts in which two groups are known to differ, each with both sides."""
    return [
        f"{fact} {', '.join(sorted(before.setting[fact]))} before, {', '.join(sorted(after.setting[fact]))} after"
        for fact in after.setting
        if before.setting[fact] and after.setting[fact] and before.setting[fact] != after.setting[fact]
    ]


def _row(group: _Group, before: _Group | None, options: TrendOptions) -> dict[str, object]:
    every = np.concatenate(group.walls)
    row: dict[str, object] = {
        "group": group.name,
        "date": group.date,
        "n_runs": len(group.walls),
        "n_ranks": group.n_ranks,
        "n_steps": len(every),
        "median_step_ns": median_of(group.walls),
        "p10_step_ns": float(np.quantile(every, 0.1)),
        "p90_step_ns": float(np.quantile(every, 0.9)),
        "control_tokens_per_s": group.tokens_per_s,
    }
    return row | (_change(before, group, options.min_effect) if before else {})


def _change(before: _Group, after: _Group, min_effect: float) -> dict[str, object]:
    if differing := _differing(before, after):
        reason = f"not comparable: {'; '.join(differing)}"
        return {"compared_with": before.name, "verdict": "cannot tell", "reason": reason}
    median_ns = median_of(before.walls)
    delta_ns = median_of(after.walls) - median_ns
    interval, verdict, reason = verdict_of(before.walls, after.walls, min_effect)
    relative = interval.scaled(1 / median_ns) if interval and median_ns else None
    return {
        "compared_with": before.name,
        "delta_ns": delta_ns,
        "delta_frac": delta_ns / median_ns if median_ns else None,
        "low_frac": relative.low if relative else None,
        "high_frac": relative.high if relative else None,
        "verdict": verdict,
        "reason": reason,
    }
