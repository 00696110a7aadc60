"""Findings that somebody has accepted: `[[suppress]]` entries of a project file, each with a reason and an end.

```toml
[[suppress]]
rule = "host-bound-decode"
reason = "eager on purpose while we debug"
expires = 2027-01-31              # optional: from the next day on it does not suppress any more
where = "cost_ns_per_step < 5e6"  # optional: SQL over the finding and its worst row
```
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, cast

import polars as pl

from traceql.analyses.results import RESULTS
from traceql.categories import Categories
from traceql.errors import RuleError, nearest
from traceql.rules.conditions import POLARS_FAULTS, ConditionError, condition, first_line
from traceql.rules.model import FINDINGS, Finding, Rule
from traceql.rules.values import closed_values

FILE = "traceql.toml"
MAX_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Suppression:
    """One entry of a project file."""

    rule: str
    reason: str
    expires: date | None
    where: pl.Expr | None
    """Over a finding's row and its worst row."""
    is_expired: bool
    place: str
    """The file and the entry's number."""

    def covers(self, finding: Finding) -> bool:
        """Whether it accepts the finding.

        Raises:
            RuleError: `where` fails on it.
        """
        if finding.rule.id != self.rule:
            return False
        if self.where is None:
            return True
        row = pl.DataFrame([finding.worst | finding.row()], schema=_schema(finding.rule))
        try:
            return bool(row.select(self.where.fill_null(False)).item())
        except POLARS_FAULTS as error:
            raise RuleError(f"{self.place}: where: {first_line(error)}", "Ask for something simpler.") from error

    @property
    def expired_note(self) -> str:
        """That it does not suppress any more."""
        return f"{self.place}: the suppression of {self.rule} expired on {self.expires}"


def _schema(rule: Rule) -> dict[str, pl.DataType]:
    """What `where` is about: the columns of a finding, and those of the rule's table beside them."""
    return dict(RESULTS[rule.table].table.schema) | dict(FINDINGS.schema)


def find_config(folder: Path) -> Path | None:
    """The project file of a folder: its own, else that of the nearest folder above."""
    places = (place / FILE for place in (folder, *folder.parents))
    return next((place for place in places if place.is_file()), None)


def load_suppressions(
    path: Path, rules: Sequence[Rule], categories: Categories, *, today: date | None = None
) -> tuple[Suppression, ...]:
    """The suppressions of a project file.

    Args:
        path: the file.
        rules: the rules that it may name.
        categories: those that a condition may name.
        today: what expiry is judged by; the day it is unless given.

    Raises:
        RuleError: the file is wrong.
    """
    entries = _document(path).get("suppress", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in cast("list[object]", entries)):
        raise RuleError(f"{path}: suppress is no list of tables", "Write [[suppress]] above each.")
    known = {rule.id: rule for rule in rules}
    return tuple(
        _suppression(f"{path}: suppress {number}", entry, known, categories, today or date.today())
        for number, entry in enumerate(cast("list[dict[str, Any]]", entries), start=1)
    )


def _document(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise RuleError(f"{path}: longer than {MAX_BYTES:,} bytes", "Shorten it.")
        document = tomllib.loads(data.decode())
    except OSError as error:
        raise RuleError(f"{path}: {error.strerror}", "Check the path.") from error
    except (ValueError, RecursionError) as error:  # tomllib and decode raise kinds of it
        raise RuleError(f"{path}: {str(error)[:200]}", "The file must be TOML.") from error
    unknown = sorted(document.keys() - {"suppress"})
    if unknown:
        raise RuleError(f"{path}: unknown field {unknown[0][:80]!r}", nearest(unknown[0], ["suppress"]))
    return document


_FIELDS: Mapping[str, type] = {"rule": str, "reason": str, "expires": date, "where": str}


def _suppression(
    place: str, entry: Mapping[str, Any], known: Mapping[str, Rule], categories: Categories, today: date
) -> Suppression:
    for name, value in entry.items():
        if name not in _FIELDS:
            raise RuleError(f"{place}: unknown field {name[:80]!r}", nearest(name, _FIELDS))
        if type(value) is not _FIELDS[name] or value == "":
            raise RuleError(f"{place}: {name} is no {_FIELDS[name].__name__}", _EXAMPLE)
    if missing := [name for name in ("rule", "reason") if name not in entry]:
        raise RuleError(f"{place}: missing: {', '.join(missing)}", _EXAMPLE)
    if entry["rule"] not in known:
        raise RuleError(f"{place}: unknown rule {entry['rule'][:80]!r}", nearest(entry["rule"], known))
    expires = entry.get("expires")
    return Suppression(
        rule=entry["rule"],
        reason=" ".join(entry["reason"].split()),
        expires=expires,
        where=_where(place, entry.get("where"), known[entry["rule"]], categories),
        is_expired=expires is not None and expires < today,
        place=place,
    )


_EXAMPLE = 'Write rule = "its-id", reason = "why it is accepted" and, if you like, expires = 2027-01-31.'


def _where(place: str, text: str | None, rule: Rule, categories: Categories) -> pl.Expr | None:
    if text is None:
        return None
    try:
        return condition(text, _schema(rule), closed_values(rule.table, categories)).expr
    except ConditionError as error:
        raise RuleError(f"{place}: where: {error.message}", error.hint) from error
