"""Columns of tables, found by what they are about: as a page and as JSON."""

from collections.abc import Mapping, Sequence

from traceql.analyses.query import SCHEMA_VERSION
from traceql.report.page import Column, Section, TextTable
from traceql.report.plain import json_text
from traceql.tables import Column as TableColumn
from traceql.tables import Table

Found = Sequence[tuple[Table, TableColumn]]
"""Columns with their tables."""


def found_columns(tables: Mapping[str, Table], text: str) -> Found:
    """The columns whose name or meaning has the text in it, in whatever case."""
    return [
        (table, column)
        for table in tables.values()
        for column in table
        if text.lower() in column.name.lower() or text.lower() in column.doc.lower()
    ]


def found_page(found: Found) -> list[Section]:
    """These columns, each with its table."""
    columns = (Column("table"), Column("column"), Column("unit", drop=1), Column("meaning", fit="wrap"))
    rows = tuple((table.name, column.name, column.unit or "", column.doc) for table, column in found)
    return [Section(table=TextTable(columns, rows))]


def columns_json(tables: Mapping[str, Table], found: Found) -> bytes:
    """`schema_version` and `tables`: of each the name, meaning and columns, as `schema.json` of an export has them."""
    documents = [
        {"name": table.name, "doc": table.doc, "columns": [column.document for of, column in found if of is table]}
        for table in tables.values()
    ]
    return json_text({"schema_version": SCHEMA_VERSION, "tables": [each for each in documents if each["columns"]]})
