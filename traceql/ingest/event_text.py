"""Values in the text of an event: found and replaced, every other byte as it stands."""

import re
from collections.abc import Mapping

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_MEMBER = re.compile(rb'"(pid|tid|ts|id|bp)"\s*:\s*(' + _STRING + rb"|[^\s,{}\[\]\"]+)", re.DOTALL)
_TOKEN = re.compile(_STRING + rb"|[{}\[\],:]|[^\s{}\[\],:\"]+", re.DOTALL)

Span = tuple[int, int]


def replaced(text: bytes, values: Mapping[bytes, bytes]) -> bytes:
    """The event's text with other values for some of its own keys (those of `args` are not its own).

    Args:
        text: an object, as JSON.
        values: the new value, as JSON, of a key; a key that the event does not have is left out.
    """
    spans = members(text, values)
    for key, (start, end) in sorted(spans.items(), key=lambda item: item[1], reverse=True):
        text = b"".join((text[:start], values[key], text[end:]))
    return text


def members(text: bytes, keys: Mapping[bytes, bytes]) -> dict[bytes, Span]:
    """Where the values of some of the event's own keys stand; of a key that it has twice the last one counts."""
    stop = text.find(b'"args"')
    head = text if stop < 0 else text[:stop]
    if b"{" not in head[1:]:  # as Kineto writes: all keys before the arguments, which come last
        found = {match[1]: match.span(2) for match in _MEMBER.finditer(head)}
        if all(text.count(b'"%b"' % key) == (key in found) for key in keys):
            return {key: span for key, span in found.items() if key in keys}
    return {key: span for key, span in _scanned(text).items() if key in keys}


def _scanned(text: bytes) -> dict[bytes, Span]:
    """Where the values of all keys of an object stand that are no objects or arrays themselves."""
    spans: dict[bytes, Span] = {}
    depth = 0
    key: bytes | None = None
    awaits_value = False
    for token in _TOKEN.finditer(text):
        sign = token.group()
        if sign in b"{[":
            depth += 1
            awaits_value = awaits_value and depth == 1
        elif sign in b"}]":
            depth -= 1
        elif depth == 1 and sign == b":":
            awaits_value = True
        elif depth == 1 and sign == b",":
            key, awaits_value = None, False
        elif depth == 1 and awaits_value and key is not None:
            spans[key] = token.span()
            awaits_value = False
        elif depth == 1 and sign.startswith(b'"'):
            key = sign[1:-1]
    return spans
