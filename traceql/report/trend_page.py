"""The page of `traceql trend`."""

from collections.abc import Iterator, Sequence

from traceql import fmt
from traceql.analyses.change import LEVEL
from traceql.analyses.trend import Trend
from traceql.report.page import Column, Section, TextTable

_TOLD = 5
"""Changes that the head of the page tells, and runs that a note names."""


def trend_page(trend: Trend, by: str) -> list[Section]:
    """What was found, a row for each group, and what was left out."""
    lines = (_head(trend, by), *_changes(trend))
    return [Section(lines=lines, table=_table(trend, by), notes=tuple(_notes(trend, by)))]


def _head(trend: Trend, by: str) -> str:
    batch = "" if trend.batch_size is None else f", batch {trend.batch_size}"
    n_runs = int(trend.groups["n_runs"].sum())
    of_runs = "" if by == "run" else f" ({fmt.plural(n_runs, 'run')})"
    groups = fmt.plural(trend.groups.height, fmt.visible(by))
    return f"{fmt.visible(trend.stage)} step{batch}, {groups}{of_runs}, by date"


def _changes(trend: Trend) -> list[str]:
    """The changes that are real, the latest first; or that there is none."""
    if trend.groups.height < 2:
        return ["a trend takes two to compare: ingest another run, or group them by something else"]
    names = trend.groups["group"].to_list()
    told = [
        f"{row['verdict']}: {fmt.visible(row['group'])} than {fmt.visible(before)} "
        f"by {fmt.percent(abs(row['delta_frac']))} ({_interval(row['low_frac'], row['high_frac'])})"
        for before, row in zip(names, trend.groups[1:].iter_rows(named=True), strict=False)
        if row["verdict"] in ("slower", "faster")
    ]  # fmt: skip
    if not told:
        return ["no change that is certain"]
    more = [f"and {len(told) - _TOLD} more before"] if len(told) > _TOLD else []
    return [*told[::-1][:_TOLD], *more]


def _table(trend: Trend, by: str) -> TextTable:
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
                fmt.visible(row["group"]),
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


def _notes(trend: Trend, by: str) -> Iterator[str]:
    yield (
        f"Each is compared with the one before it, as traceql diff does: {LEVEL:.0%} interval of the median step, a "
        f"change of {fmt.percent(trend.options.min_effect)} matters."
    )
    for row in trend.groups.filter(verdict="cannot tell").iter_rows(named=True):
        yield f"{fmt.visible(row['group'])}: cannot tell: {fmt.visible(row['reason'])}"
    if trend.left_out:
        yield f"Without such steps: {_some(trend.left_out)}."
    if trend.ungrouped:
        yield f"Without {fmt.visible(by)}, so left out: {_some(trend.ungrouped)}."


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
    return ", ".join(map(fmt.visible, names[:_TOLD])) + more


def _signed(share: float | None) -> str:
    if share is None:
        return fmt.UNKNOWN
    return fmt.signed(share, f"{abs(share) * 100:,.1f} %")


def _interval(low: float | None, high: float | None) -> str:
    return fmt.UNKNOWN if low is None or high is None else f"{_signed(low)} to {_signed(high)}"
