"""A rule's examples are its tests: the rule must fire on some rows and be silent on others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from traceql.analyses.results import RESULTS
from traceql.categories import Categories
from traceql.rules.loading import Frame
from traceql.rules.model import Row, Rule
from traceql.rules.running import fired

_NUMBER = "number of the example"


@dataclass(frozen=True)
class Failure:
    """An example on which the rule does not do what it says."""

    rule: Rule
    example: Row
    expected: str
    """fires or silent."""

    @property
    def text(self) -> str:
        """What went wrong, in a line."""
        what = "is silent, but should fire" if self.expected == "fires" else "fires, but should be silent"
        return f"{self.rule.id} {what} on {self.example}"


def failures(rule: Rule, categories: Categories) -> Iterator[Failure]:
    """The examples that fail. All rows are judged in one frame; columns that they leave out are null."""
    frame = Frame.of(RESULTS[rule.table].table, categories)
    rows = _frame([*rule.fires, *rule.silent], frame)
    hits = set(fired(rows, rule, frame)[_NUMBER])
    for number, example in enumerate((*rule.fires, *rule.silent)):
        should_fire = number < len(rule.fires)
        if (number in hits) != should_fire:
            yield Failure(rule, example, "fires" if should_fire else "silent")


def _frame(rows: Sequence[Row], frame: Frame) -> pl.DataFrame:
    columns = {
        name: pl.Series([row.get(name) for row in rows], dtype=dtype, strict=False)
        for name, dtype in frame.schema.items()
    }
    return pl.DataFrame(columns).with_row_index(_NUMBER)
