"""The page of `traceql trend`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from traceql import fmt
from traceql.analyses.change import LEVEL
from traceql.analyses.trend import Trend
from traceql.report.page import Column, Section, TextTable

_NOUNS = ("run", "commit", "date", "host", "model")
"""What groups are that are not by a label."""
_TOLD = 5
"""Changes that the head of the page tells, and runs that a note names."""


def trend_page(trend: Trend, by: str) -> list[Section]:
    """What was found, a row for each group, and what was left out."""
    names = _Names.of(trend, by)
    lines = (_head(trend, by), *_changes(trend, names))
    return [Section(lines=lines, table=_table(trend, by, names), notes=tuple(_notes(trend, by, names)))]


@dataclass(frozen=True)
class _Names:
    """How groups and runs are named on the page: runs without the folder that all are in."""

    folder: str
    is_of_runs: bool
    """Whether the groups are runs."""

    @classmethod
    def of(cls, trend: Trend, by: str) -> "_Names":
        runs = [*trend.left_out, *trend.ungrouped, *(trend.groups["group"].to_list() if by == "run" else [])]
        folders = [run.rpartition("/")[0].split("/") for run in runs]
        n_alike = next(
            (place for place, parts in enumerate(zip(*folders, strict=False)) if len({*parts}) > 1),
            min(map(len, folders), default=0),
        )
        return cls("/".join(folders[0][:n_alike]) if len(runs) > 1 else "", by == "run")

    def run(self, name: str) -> str:
        """A run."""
        return fmt.visible(name.removeprefix(f"{self.folder}/") if self.folder else name)

    def group(self, name: str) -> str:
        """A group."""
        return self.run(name) if self.is_of_runs else fmt.visible(name)


def _head(trend: Trend, by: str) -> str:
    batch = "" if trend.batch_size is None else f", batch {trend.batch_size}"
    n_runs = int(trend.groups["n_runs"].sum())
    of_runs = "" if by == "run" else f" ({fmt.plural(n_runs, 'run')})"
    n = trend.groups.height
    groups = fmt.plural(n, by) if by in _NOUNS else f"{fmt.plural(n, 'value')} of {fmt.visible(by)}"
    step = "step of no known stage" if trend.stage == "unknown" else f"{fmt.visible(trend.stage)} step"
    return f"{step}{batch}, {groups}{of_runs}, by date"


def _changes(trend: Trend, names: _Names) -> list[str]:
    """The changes that are real, the latest first; or that there is none."""
    if trend.groups.height < 2:
        return ["a trend takes two to compare: ingest another run, or group them by something else"]
    told = [
        f"{row['verdict']}: {names.group(row['group'])} than {names.group(row['compared_with'])} "
        f"by {fmt.percent(abs(row['delta_frac']))} ({_interval(row['low_frac'], row['high_frac'])})"
        for row in trend.groups.filter(pl.col("verdict").is_in(["slower", "faster"])).iter_rows(named=True)
    ]  # fmt: skip
    if not told:
        return ["no change that is certain"]
    more = [f"and {len(told) - _TOLD} more before"] if len(told) > _TOLD else []
    return [*told[::-1][:_TOLD], *more]


def _table(trend: Trend, by: str, names: _Names) -> TextTable:
    has_pace = trend.groups["control_tokens_per_s"].null_count() < trend.groups.height
    columns = [
        Column(fmt.visible(by), fit="middle"),
        *([] if by == "date" else [Column("recorded", drop=2)]),
        Column("runs", "right", drop=5),
        Column("ranks", "right", drop=4),
        Column("steps", "right", drop=3),
        Column("ms/step", "right"),
        Column("p10", "right", drop=1),
        Column("p90", "right", drop=1),
        *([Column("tokens/s", "right", drop=2)] if has_pace else []),
        Column("change", "right"),
        Column("interval", "right", drop=2),
        Column("verdict"),
    ]
    rows: list[tuple[str, ...]] = []
    for row in trend.groups.iter_rows(named=True):
        date = row["date"].strftime("%Y-%m-%d %H:%M") if row["date"] else fmt.UNKNOWN
        pace = row["control_tokens_per_s"]
        rows.append(
            (
                names.group(row["group"]),
                *([] if by == "date" else [date]),
                *(fmt.count(row[name]) for name in ("n_runs", "n_ranks", "n_steps")),
                *(fmt.ms(row[name]) for name in ("median_step_ns", "p10_step_ns", "p90_step_ns")),
                *([fmt.UNKNOWN if pace is None else f"{pace:,.1f}"] if has_pace else []),
                _signed(row["delta_frac"]) if row["verdict"] else "",
                _interval(row["low_frac"], row["high_frac"]) if row["verdict"] else "",
                row["verdict"] or "",
            )
        )
    return TextTable(tuple(columns), tuple(rows))


def _notes(trend: Trend, by: str, names: _Names) -> Iterator[str]:
    yield (
        f"Each is compared with the last before it of the same GPU, engine, model and world size, as diff does: "
        f"{LEVEL * 100:.0f} % interval of the median step, a change of {fmt.percent(trend.options.min_effect)} matters."
    )
    if names.folder:
        yield f"Runs are paths below {fmt.visible(names.folder)}."
    for row in trend.groups.filter(verdict="cannot tell").iter_rows(named=True):
        yield f"{names.group(row['group'])}: cannot tell: {fmt.visible(row['reason'])}"
    if trend.left_out:
        yield f"Without such steps: {_some(trend.left_out, names)}."
    if trend.ungrouped:
        yield f"Without {fmt.visible(by)}, so left out: {_some(trend.ungrouped, names)}."


def _some(runs: Sequence[str], names: _Names) -> str:
    more = f" and {len(runs) - _TOLD} more" if len(runs) > _TOLD else ""
    return ", ".join(map(names.run, runs[:_TOLD])) + more


def _signed(share: float | None) -> str:
    if share is None:
        return fmt.UNKNOWN
    return fmt.signed(share, f"{abs(share) * 100:,.1f} %")


def _interval(low: float | None, high: float | None) -> str:
    return fmt.UNKNOWN if low is None or high is None else f"{_signed(low)} to {_signed(high)}"
