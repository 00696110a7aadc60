"""What a page is made of: sections of finished text, the same for every form it is printed in."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from traceql import fmt

Align = Literal["left", "right"]
Fit = Literal["keep", "end", "middle", "wrap", "open"]


@dataclass(frozen=True)
class Column:
    """A column of finished text.

    `drop` is how early it goes where the page is too narrow: the highest first, 0 never. `fit` is what
    happens to a text that is still too long: the page makes room for it (`keep`), it is cut at the end or in
    the middle, wrapped, or (`open`, last column only) sticks out.
    """

    title: str
    align: Align = "left"
    drop: int = 0
    fit: Fit = "keep"
    is_code: bool = False
    """Its texts are names from the trace: Markdown sets them as code."""
    is_heat: bool = False
    """Its texts are blocks ▁ to █ whose height is a quantity: a terminal colours them."""


@dataclass(frozen=True)
class TextTable:
    """Rows of finished text, as long as `columns`; the last `n_totals` rows are set off from the others."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    n_totals: int = 0
    has_records: bool = False
    """Where even its narrowed columns are wider than the page, each row becomes a list of title and text."""


@dataclass(frozen=True)
class Section:
    """One part of a page. Empty parts are not printed."""

    title: str = ""
    lines: tuple[str, ...] = ()
    table: TextTable | None = None
    notes: tuple[str, ...] = ()
    """Printed below the table, less loud than `lines`."""
    is_warning: bool = False


@dataclass(frozen=True)
class View:
    """How much of a page is shown: one table (`by`) or all, the first `top` rows (None: all), names cut or whole."""

    by: str | None = None
    top: int | None = 15
    full_names: bool = False


def top_title(title: str, n_shown: int, n_all: int) -> str:
    """The title of a table, with how many of its rows are shown where these are not all."""
    return title if n_shown == n_all else f"{title}: top {fmt.count(n_shown)} of {fmt.count(n_all)}"


_Found = TypeVar("_Found")
_View = TypeVar("_View")


def made(makers: Iterable[Callable[[_Found, _View], Section | None]], found: _Found, view: _View) -> list[Section]:
    """What each maker makes of a result, in their order; one that has nothing to say returns None."""
    sections = (maker(found, view) for maker in makers)
    return [section for section in sections if section is not None]
