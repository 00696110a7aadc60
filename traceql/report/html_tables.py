"""Tables on pages for the browser: long texts are cut, and whole names stand beside them."""

from collections.abc import Iterable
from dataclasses import replace

from traceql import fmt
from traceql.report.page import Section
from traceql.report.text import cut

MAX_FULL = 5000
"""Characters of a whole name."""


def untitled(section: Section) -> Section:
    """The section without its title, which stands above already."""
    return replace(section, title="")


def short(section: Section, most: int) -> Section:
    """The section with the texts of its table cut to `most` characters."""
    if section.table is None:
        return section
    rows = tuple(tuple(cut(text, most, "middle") for text in row) for row in section.table.rows)
    return replace(section, table=replace(section.table, rows=rows))


def full_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names whole, as far as a page has room."""
    return tuple(cut(fmt.visible(name), MAX_FULL, "middle") for name in names)
