"""What is odd about a file, as sentences and as the section that every page about a trace begins with."""

from collections.abc import Iterable
from typing import Protocol

from traceql import fmt
from traceql.ingest.quirks import Quirk
from traceql.report.page import Section


class HasQuirks(Protocol):
    """A result that knows what is odd about the file that it is of."""

    @property
    def quirks(self) -> Iterable[Quirk]:
        """The oddities."""
        ...


def quirk_lines(quirks: Iterable[Quirk]) -> tuple[str, ...]:
    """One sentence a quirk, with its count."""
    return tuple(f"{quirk.text} ({fmt.count(quirk.count)} × {quirk.id})" for quirk in quirks)


def losses(found: HasQuirks, view: object) -> Section | None:  # noqa: ARG001 - all sections are called alike
    """What of the file could not be read: the figures miss it."""
    lost = [quirk for quirk in found.quirks if quirk.effect == "lost"]
    if not lost:
        return None
    return Section("Incomplete: parts of this trace are lost", lines=quirk_lines(lost), is_warning=True)
