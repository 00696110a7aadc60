"""Answers to queries and descriptions of tables, as pages."""

from collections.abc import Sequence
from typing import Any

from traceql import fmt
from traceql.analyses.query import Answer
from traceql.report.page import Column, Section, TextTable
from traceql.tables import Table

SHOWN = 100
"""Rows of an answer that are printed; data holds all."""


def query_page(answer: Answer, *, whole: str = "--format csv, json or parquet") -> list[Section]:
    """The answer as a table: numbers as they are, names cut where the page is too narrow; notes below.

    Of more columns than a page has room for each row is a list.

    Args:
        answer: the answer.
        whole: what holds all rows, to be named where some are left out.
    """
    frame = answer.frame
    columns = tuple(
        Column(
            fmt.visible(name), "right" if dtype.is_numeric() else "left", fit="keep" if dtype.is_numeric() else "end"
        )
        for name, dtype in frame.schema.items()
    )
    rows = tuple(tuple(_text(value) for value in row) for row in frame.head(SHOWN).iter_rows())
    lines = () if rows else ("no rows",)
    more = [f"{SHOWN} of {frame.height:,} rows; {whole} holds all"] if frame.height > SHOWN else []
    notes = (*more, *query_notes(answer))
    return [Section(lines=lines, table=TextTable(columns, rows, has_records=True) if rows else None, notes=notes)]


def query_notes(answer: Answer) -> list[str]:
    """The notes of an answer, fit to be printed."""
    return [f"note: {fmt.visible(note)}" for note in answer.notes]


def _text(value: Any) -> str:
    if value is None:
        return fmt.UNKNOWN
    return _float(value) if isinstance(value, float) else fmt.visible(str(value))


def _float(value: float) -> str:
    """Six digits, and all of those before the point: a mean of nanoseconds is no power of ten."""
    if 1e5 <= abs(value) < 1e15:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.6g}"


def tables_page(tables: dict[str, Table]) -> list[Section]:
    """Every table with the first sentence of its description."""
    rows = tuple((name, table.doc.split(". ")[0].rstrip(".")) for name, table in tables.items())
    return [Section(table=TextTable((Column("table"), Column("holds", fit="wrap")), rows))]


def store_page(tables: dict[str, Table], n_rows: dict[str, int], said: str, shared: Sequence[str]) -> list[Section]:
    """Every table of a store with its rows; what is said of it, and the columns that all tables have."""
    rows = tuple(
        (name, fmt.count(n_rows.get(name, 0)), table.doc.split(". ")[0].rstrip(".")) for name, table in tables.items()
    )
    columns = (Column("table"), Column("rows", "right"), Column("holds", fit="wrap"))
    note = f"Each begins with {', '.join(map(fmt.visible, shared))}."
    return [Section(lines=(said,), table=TextTable(columns, rows), notes=(note,))]


def table_page(table: Table, shared: Sequence[str] = ()) -> list[Section]:
    """A table's columns: type, whether it may be null, meaning; and those that a store puts in front."""
    columns = (
        Column("column"), Column("type", drop=2), Column("unit"), Column("null", drop=1), Column("meaning", fit="wrap"),
    )  # fmt: skip
    rows = tuple(
        (column.name, column.type_name, column.unit or "", "may be" if column.nullable else "", column.doc)
        for column in table
        if column.name not in shared
    )
    notes = (f"In front of these: {', '.join(map(fmt.visible, shared))}.",) if shared else ()
    return [Section(table.name, (table.doc,), TextTable(columns, rows), notes)]
