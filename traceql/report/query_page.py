"""Answers to queries and descriptions of tables, as text and as JSON."""

from collections.abc import Sequence
from typing import Any

import orjson
import polars as pl

from traceql import fmt
from traceql.report.page import Column, Section, TextTable
from traceql.report.plain import plain_rows
from traceql.tables import Table

SHOWN = 100
"""Rows of an answer that are printed; data holds all."""


def query_page(answer: pl.DataFrame) -> list[Section]:
    """The answer as a table: numbers as they are, names cut where the page is too narrow."""
    columns = tuple(
        Column(
            fmt.visible(name), "right" if dtype.is_numeric() else "left", fit="keep" if dtype.is_numeric() else "end"
        )
        for name, dtype in answer.schema.items()
    )
    rows = tuple(tuple(_text(value) for value in row) for row in answer.head(SHOWN).iter_rows())
    lines = () if rows else ("no rows",)
    more = (f"{SHOWN} of {answer.height:,} rows; --format csv, json or parquet holds all",)
    return [
        Section(
            lines=lines, table=TextTable(columns, rows) if rows else None, notes=more if answer.height > SHOWN else ()
        )
    ]


def _text(value: Any) -> str:
    if value is None:
        return fmt.UNKNOWN
    return f"{value:.6g}" if isinstance(value, float) else fmt.visible(str(value))


def query_json(answer: pl.DataFrame) -> bytes:
    """`columns`, each with its dtype, and `rows`."""
    document = {
        "columns": [{"name": name, "dtype": str(dtype)} for name, dtype in answer.schema.items()],
        "rows": plain_rows(answer),
    }
    return orjson.dumps(document, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


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
    columns = (Column("column"), Column("type", drop=2), Column("null", drop=1), Column("meaning", fit="wrap"))
    rows = tuple(
        (column.name, str(pl.Schema({"": column.dtype})[""]), "may be" if column.nullable else "", column.doc)
        for column in table
        if column.name not in shared
    )
    notes = (f"In front of these: {', '.join(map(fmt.visible, shared))}.",) if shared else ()
    return [Section(table.name, (table.doc,), TextTable(columns, rows), notes)]
