"""What `traceql export` wrote, as a page."""

from collections.abc import Sequence
from pathlib import Path

from traceql import fmt
from traceql.report.page import Column, Section, TextTable
from traceql.report.table_files import SCHEMA_FILE, TableFile

_COLUMNS = (
    Column("table"),
    Column("rows", "right"),
    Column("size", "right", drop=1),
    Column("empty because", fit="wrap"),
)


def export_page(folder: Path, files: Sequence[TableFile]) -> list[Section]:
    """The files, with rows and size, and why those are empty that are."""
    rows = tuple(
        (file.name, fmt.count(file.n_rows), fmt.size(file.n_bytes), fmt.visible(file.why_empty or "")) for file in files
    )
    total = fmt.size(sum(file.n_bytes for file in files))
    what = f"{fmt.plural(len(files), 'table')}, {total}: {fmt.visible(str(folder))}; {SCHEMA_FILE} says what they hold"
    return [Section(lines=(what,), table=TextTable(_COLUMNS, rows))]
