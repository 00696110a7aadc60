"""Pages as text, for terminals and for files: tables without frames, fitted to the width."""

import io
from dataclasses import replace

from rich.box import Box
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table
from rich.text import Text

from traceql import fmt
from traceql.report.page import Column, Fit, Section, TextTable

_GAP = 2
_LEAST_WIDTH = 20
"""To what a text that may be cut or wrapped is narrowed before a column is dropped."""
_YIELDING: tuple[Fit, ...] = ("wrap", "end", "middle", "open")
_NO_BREAK, _HELD = "\u00a0", "\ue000"
"""rich breaks lines at a no-break space, so a private character stands for it while it lays them out."""
_HEAT = dict(zip("▁▂▃▄▅▆▇█", ("blue", "blue", "cyan", "cyan", "yellow", "yellow", "red", "red"), strict=True))
"""Colours that a terminal of 16 has, told apart by colour-blind readers too; the height says the same."""
_RULE = Box("    \n    \n -- \n    \n -- \n    \n    \n    \n", ascii=True)


def render_text(sections: list[Section], *, width: int, color: bool = False) -> str:
    """The sections as lines of at most `width` cells, blank lines between them.

    Open columns (full names) may stick out. Without `color` there are no escape codes at all.
    """
    page = io.StringIO()
    console = Console(
        file=page,
        width=max(width, _LEAST_WIDTH),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    for number, section in enumerate(sections):
        if number:
            console.print()
        _print_section(console, section, color=color)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().replace(_HELD, " ").splitlines())


def _print_section(console: Console, section: Section, *, color: bool) -> None:
    title_style, line_style = ("bold red", "red") if section.is_warning else ("bold", "")
    if section.title:
        console.print(Text(section.title, title_style))
    for line in section.lines:
        console.print(Text(line.replace(_NO_BREAK, _HELD), line_style if section.title else "bold"))
    if section.table is not None:
        width = console.width
        table = fit_table(section.table, width)
        if table.has_records and _width(table) > width:
            _print_records(console, section.table)
        else:
            console.width = max(width, _width(table))
            console.print(_rich_table(table))
            console.width = width
    for note in section.notes:
        console.print(Text(note, "dim" if color else ""))


def _print_records(console: Console, table: TextTable) -> None:
    """Each row as a list of its columns, whole texts wrapped."""
    titles = [column.title for column in table.columns]
    for number, row in enumerate(table.rows, start=1):
        record = TextTable((Column(""), Column("", fit="wrap")), tuple(zip(titles, row, strict=True)))
        console.print(Text(f"row {number}", "bold"))
        console.print(_rich_table(record))


def fit_table(table: TextTable, width: int) -> TextTable:
    """The table without the columns for which `width` has no room, its long texts cut to what is left."""
    while _width(table, _YIELDING) > width and any(column.drop for column in table.columns):
        table = _without(table, max(range(len(table.columns)), key=lambda i: table.columns[i].drop))
    for index, column in enumerate(table.columns):
        if column.fit in ("end", "middle"):
            excess = max(_width(table) - width, 0)
            table = _cut_column(table, index, max(_column_width(table, index) - excess, _LEAST_WIDTH))
    return table


def cut(text: str, width: int, fit: str = "end") -> str:
    """The text in at most `width` cells, an ellipsis at its end or in its middle for what is left out."""
    if cell_len(text) <= width:
        return text
    n_tail = (width - 1) // 2 if fit == "middle" else 0
    head = chop_cells(text, width - 1 - n_tail)[0]
    tail = chop_cells(text[::-1], n_tail)[0][::-1] if n_tail else ""
    return f"{head}{fmt.ELLIPSIS}{tail}"


def _column_width(table: TextTable, index: int) -> int:
    return max(cell_len(text) for text in (table.columns[index].title, *(row[index] for row in table.rows)))


def _width(table: TextTable, narrowed: tuple[Fit, ...] = ("wrap",)) -> int:
    """The table's width when columns that fit in a way `narrowed` are as narrow as they go."""
    widths = [_column_width(table, index) for index in range(len(table.columns))]
    least = [
        min(width, _LEAST_WIDTH) if column.fit in narrowed else width
        for column, width in zip(table.columns, widths, strict=True)
    ]
    return sum(least) + _GAP * (len(least) - 1)


def _without(table: TextTable, index: int) -> TextTable:
    columns = table.columns[:index] + table.columns[index + 1 :]
    return replace(table, columns=columns, rows=tuple(row[:index] + row[index + 1 :] for row in table.rows))


def _cut_column(table: TextTable, index: int, width: int) -> TextTable:
    fit = table.columns[index].fit
    rows = tuple((*row[:index], cut(row[index], width, fit), *row[index + 1 :]) for row in table.rows)
    return replace(table, rows=rows)


def _rich_table(table: TextTable) -> Table:
    has_titles = any(column.title for column in table.columns)
    drawn = Table(
        box=_RULE, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0), show_header=has_titles,
        header_style="bold",
    )  # fmt: skip
    for column in table.columns:
        overflow = "fold" if column.fit == "wrap" else "ellipsis"
        drawn.add_column(Text(column.title), justify=column.align, no_wrap=column.fit != "wrap", overflow=overflow)
    n_plain = len(table.rows) - table.n_totals
    for number, row in enumerate(table.rows, start=1):
        cells = (_cell(text, column) for text, column in zip(row, table.columns, strict=True))
        drawn.add_row(*cells, end_section=number == n_plain and table.n_totals > 0)
    return drawn


def _cell(text: str, column: Column) -> Text:
    """A text of a column; blocks of a heat column in the colour of their height."""
    cell = Text(text)
    if column.is_heat:
        for place, sign in enumerate(text):
            if sign in _HEAT:
                cell.stylize(_HEAT[sign], place, place + 1)
    return cell
