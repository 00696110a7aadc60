"""Pages as GitHub-flavoured Markdown."""

import re
from collections.abc import Iterator

from traceql.report.code_spans import code_spans
from traceql.report.page import Column, Section, TextTable

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&$])")


def render_markdown(sections: list[Section]) -> str:
    """The sections with headings and pipe tables; Markdown or HTML inside the texts is shown literally."""
    return "\n\n".join(block for section in sections for block in _blocks(section)) + "\n"


def _blocks(section: Section) -> Iterator[str]:
    if section.title:
        yield f"## {escape(section.title)}"
    if section.lines:
        yield (_list(section) if section.title else "\n\n".join(f"**{words(line)}**" for line in section.lines))
    if section.table is not None:
        yield _table(section.table)
    yield from (words(note) for note in section.notes)


def _list(section: Section) -> str:
    return "\n".join(f"- {words(line)}" for line in section.lines)


def _table(table: TextTable) -> str:
    rules = ["---:" if column.align == "right" else "---" for column in table.columns]
    rows = (_row(_cell(column, text) for column, text in zip(table.columns, row, strict=True)) for row in table.rows)
    return "\n".join((_row(escape(column.title) for column in table.columns), _row(iter(rules)), *rows))


def _row(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(column: Column, text: str) -> str:
    return code(text).replace("|", "\\|") if column.is_code and text else escape(text)  # a pipe would end the cell


def words(text: str) -> str:
    """A sentence: what stands in it between backticks as code, all else literally."""
    return "".join(code(piece) if is_code else escape(piece) for piece, is_code in code_spans(text))


def escape(text: str) -> str:
    """The text with a backslash before every character that Markdown or HTML would act on."""
    return _SPECIAL.sub(r"\\\1", text.replace("\u00a0", " "))


def code(text: str) -> str:
    """The text as a code span: fenced by more backticks than it holds."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"
