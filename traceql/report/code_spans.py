"""Where a text for people holds something to type: between backticks, as all texts of traceql have it."""

import re
from collections.abc import Iterator

_SPAN = re.compile(r"`([^`]+)`")


def code_spans(text: str) -> Iterator[tuple[str, bool]]:
    """The pieces of a text in order, and of each whether it stood between backticks, which are left out.

    A backtick without another one stays what it is.
    """
    end = 0
    for span in _SPAN.finditer(text):
        yield text[end : span.start()], False
        yield span[1], True
        end = span.end()
    yield text[end:], False
