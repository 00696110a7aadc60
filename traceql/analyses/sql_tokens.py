"""SQL as pieces of text: comments, texts in quotes, names, numbers and signs."""

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?(?:\*/|$))
    |(?P<string>'(?:[^']|'')*(?:'|$))
    |(?P<quoted>"(?:[^"]|"")*(?:"|$)|`[^`]*(?:`|$))
    |(?P<decimal>(?:\d+\.\d*|\.\d+)(?![\w.]))
    |(?P<word>\w+)
    |(?P<space>\s+)
    |(?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True)
class Token:
    """A piece of SQL: comment, string, quoted, decimal (a number with a point, no exponent), word, space or sign."""

    kind: str
    text: str

    @property
    def is_open(self) -> bool:
        """Whether it lacks its end: what is typed next belongs to it."""
        if self.kind == "comment":
            return self.text.startswith("--") or len(self.text) < 4 or not self.text.endswith("*/")
        if self.kind in ("string", "quoted"):
            return len(self.text) < 2 or self.text.count(self.text[0]) % 2 == 1
        return False

    @property
    def is_blank(self) -> bool:
        """Whether it is white space or a comment."""
        return self.kind in ("space", "comment")

    @property
    def name(self) -> str:
        """As a table, column or function is looked up."""
        return self.text.strip("\"'`").lower()


def tokens(text: str) -> list[Token]:
    """The pieces of a text, which together are the text."""
    return [Token(match.lastgroup or "sign", match[0]) for match in _TOKEN.finditer(text)]
