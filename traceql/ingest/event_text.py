"""Values in the text of an event: found and replaced, every other byte as it stands."""

import re
from collections.abc import Callable, Iterator, Mapping

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_SCALAR = rb"(?:" + _STRING + rb"|[^\s,{}\[\]\"]+)"
_HEAD = re.compile(rb'\{(?:\s*"[^"\\]*"\s*:\s*' + _SCALAR + rb"\s*,)*", re.DOTALL)
_MEMBER = re.compile(rb'"(pid|tid|ts|id)"\s*:\s*(' + _SCALAR + rb")", re.DOTALL)
_TOKEN = re.compile(_STRING + rb"|[{}\[\],:]|[^\s{}\[\],:\"]+", re.DOTALL)

NewValue = bytes | Callable[[bytes], bytes]
Member = tuple[bytes, int, int]


def replaced(text: bytes, values: Mapping[bytes, NewValue]) -> bytes:
    """The event's text with other values for some of its own keys (those of `args` are not its own).

    Args:
        text: an object, as JSON.
        values: for each key among pid, tid, ts and id the new value as JSON, or what makes it of the old one. A key
            that the event does not have stays away.
    """
    parts: list[bytes] = []
    done = 0
    for key, start, end in _members(text, values):
        new = values[key]
        parts += (text[done:start], new if isinstance(new, bytes) else new(text[start:end]))
        done = end
    parts.append(text[done:])
    return b"".join(parts)


def _members(text: bytes, keys: Mapping[bytes, object]) -> list[Member]:
    """Key, begin and end of the values of some keys, in order; of a key that stands twice the last one counts."""
    head = _HEAD.match(text)
    stop = head.end() if head else 0
    if not any(text.find(_QUOTED[key], stop) >= 0 for key in keys):  # as Kineto writes: arguments come last
        return [(m[1], *m.span(2)) for m in _MEMBER.finditer(text, 0, stop) if m[1] in keys]
    found = {key: (key, start, end) for key, start, end in _scanned(text) if key in keys}
    return sorted(found.values(), key=lambda member: member[1])


_QUOTED = {key: b'"' + key + b'"' for key in (b"pid", b"tid", b"ts", b"id")}


def _scanned(text: bytes) -> Iterator[Member]:
    """Key, begin and end of the values of an object that are no objects or arrays themselves."""
    depth = 0
    key: bytes | None = None
    awaits_value = False
    for token in _TOKEN.finditer(text):
        sign = token.group()
        if sign in (b"{", b"["):
            depth += 1
            awaits_value = False
        elif sign in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and sign == b":":
            awaits_value = True
        elif depth == 1 and sign == b",":
            key, awaits_value = None, False
        elif depth == 1 and awaits_value and key is not None:
            yield (key, *token.span())
            awaits_value = False
        elif depth == 1 and sign.startswith(b'"'):
            key = sign[1:-1]
