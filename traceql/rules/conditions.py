"""SQL over one row of a table: read word by word, so that nothing but the columns of that row can be in it.

A condition is cut into tokens and every word in it must be a column, a keyword or a function of the closed lists
below; only then polars parses it. So an aggregate, a window, a subquery or a function that reads files cannot even be
written, whatever polars' SQL learns to do. Columns are passed on in quotes, so that those named like a keyword
(`group`) need none.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from traceql.errors import RuleError, nearest

MAX_LENGTH = 2000
"""Characters of a condition: polars' parser recurses, and needs a long one for nothing good."""

FUNCTIONS = (
    "abs", "ceil", "coalesce", "ends_with", "exp", "floor", "greatest", "if", "least", "length", "ln", "lower", "mod",
    "nullif", "power", "regexp_like", "round", "sign", "sqrt", "starts_with", "strpos", "upper",
)  # fmt: skip
"""Functions that take the values of one row and give one value."""
KEYWORDS = frozenset([
    "and", "or", "not", "in", "is", "null", "true", "false", "between", "like", "ilike", "case", "when", "then", "else",
    "end",
])  # fmt: skip
_AGGREGATES = frozenset([
    "sum", "min", "max", "avg", "mean", "median", "count", "first", "last", "any_value", "stddev", "variance", "var",
    "std", "quantile", "quantile_cont", "mode", "array_agg", "string_agg", "corr", "covar",
])  # fmt: skip
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<text>'(?:[^']|'')*')"
    r'|(?P<quoted>"[^"]*")'
    r"|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<open>\()|(?P<close>\))|(?P<comma>,)"
    r"|(?P<sign><=|>=|<>|!=|==|\|\||[=<>+*/%-])",
    re.ASCII,
)
_VALUES = frozenset(["number", "text", "column"])
_EQUAL = frozenset(["=", "==", "!=", "<>"])


POLARS_FAULTS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""What polars raises where it cannot evaluate an expression."""


class ConditionError(RuleError):
    """A condition is wrong. What raises it to the user knows the file it stands in."""

    def __init__(self, message: str, hint: str, offset: int = 0) -> None:
        super().__init__(message, hint)
        self.offset = offset
        """Where in the condition, in characters."""


@dataclass(frozen=True)
class _Token:
    kind: str
    """number, text, column, function, keyword, open, close, comma or sign."""
    text: str
    offset: int

    @property
    def sql(self) -> str:
        """What polars gets. A decimal fraction is written as a float: without exponent it would be a Decimal."""
        if self.kind == "column":
            return f'"{self.text}"'
        if self.kind == "number":
            digits = self.text.replace("_", "")
            return f"{digits}e0" if "." in digits and "e" not in digits.lower() else digits
        return self.text

    @property
    def is_value(self) -> bool:
        return self.kind in _VALUES or self.text.lower() in {"null", "true", "false"}

    @property
    def literal(self) -> str:
        return self.text[1:-1].replace("''", "'")


@dataclass(frozen=True)
class Condition:
    """An expression over one row, with the columns it reads and the type of its value."""

    expr: pl.Expr
    dtype: pl.DataType


def condition(text: str, schema: Mapping[str, pl.DataType], closed: Mapping[str, Collection[str]]) -> Condition:
    """SQL over one row of a table, true or false.

    Args:
        text: the SQL.
        schema: the columns of the table.
        closed: columns that only hold certain texts; a comparison with any other is refused.

    Raises:
        ConditionError: it is not SQL over one row, or no truth value.
    """
    found = _expression(text, schema, closed)
    if found.dtype != pl.Boolean:
        raise ConditionError(f"it is no condition but of type {found.dtype}", "Compare it with something: dur_ns > 0.")
    return found


def figure(text: str, schema: Mapping[str, pl.DataType], closed: Mapping[str, Collection[str]]) -> Condition:
    """SQL over one row of a table, a number; what is not finite is null.

    Raises:
        ConditionError: it is not SQL over one row, or no number.
    """
    found = _expression(text, schema, closed)
    if not found.dtype.is_numeric():
        raise ConditionError(f"it is no number but of type {found.dtype}", "Name a column of numbers, e.g. dur_ns.")
    value = found.expr.cast(pl.Float64)
    return Condition(pl.when(value.is_finite()).then(value), pl.Float64())


def _expression(text: str, schema: Mapping[str, pl.DataType], closed: Mapping[str, Collection[str]]) -> Condition:
    tokens = _tokens(text, tuple(schema))
    _refuse_missing_operators(tokens)
    _refuse_unknown_values(tokens, closed)
    try:
        expr = pl.sql_expr(" ".join(token.sql for token in tokens))
        value = _one_row(schema).select(expr.alias("value"))["value"]
    except (*POLARS_FAULTS, TypeError, ValueError) as error:
        raise ConditionError(first_line(error), "Write SQL over the columns of one row.") from error
    if isinstance(value.dtype, pl.Null) or value.len() != 1:
        raise ConditionError("it has no value", "Compare a column with something: dur_ns > 0.")
    return Condition(expr, value.dtype)


def _one_row(schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """A row of which nothing is known."""
    return pl.DataFrame({name: [None] for name in schema}, schema=dict(schema))


def first_line(error: BaseException) -> str:
    """What an error of polars says, without the plan that it adds."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else "it is not SQL"


def _tokens(text: str, columns: tuple[str, ...]) -> list[_Token]:
    if len(text) > MAX_LENGTH:
        raise ConditionError(f"it is longer than {MAX_LENGTH:,} characters", "Take it apart into several rules.")
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or text.startswith("--", at):
            what = "an open quote" if text[at] in "'\"" else f"{text[at : at + 2]!r} "
            raise ConditionError(f"{what.strip()} has no meaning here", _ALLOWED, at)
        if match.lastgroup != "space":
            tokens.append(_token(match, text, columns))
        at = match.end()
    if not tokens:
        raise ConditionError("it is empty", "Compare a column with something: dur_ns > 0.")
    return tokens


_ALLOWED = "Allowed: columns, numbers, 'texts', comparisons, and/or/not, in, like, case, and functions of one row."


def _token(match: re.Match[str], text: str, columns: tuple[str, ...]) -> _Token:
    kind, word, at = match.lastgroup or "", match[0], match.start()
    after = text[match.end() : match.end() + 1]
    if kind in ("number", "word") and (after in ("'", '"') or (kind == "number" and (after.isalnum() or after == "_"))):
        raise ConditionError(f"{word[:40]!r} runs into {after!r}", "Put a space or an operator between them.", at)
    if kind == "quoted":
        return _Token("column", _known_column(word[1:-1], columns, at), at)
    if kind != "word":
        return _Token(kind, word, at)
    is_call = text[match.end() :].lstrip().startswith("(")
    if word.lower() in KEYWORDS and word not in columns:
        return _Token("keyword", word, at)
    if not is_call:
        return _Token("column", _known_column(word, columns, at), at)
    if word.lower() not in FUNCTIONS:
        raise ConditionError(*_unknown_function(word), at)
    return _Token("function", word, at)


def _known_column(name: str, columns: tuple[str, ...], offset: int) -> str:
    if name not in columns:
        raise ConditionError(f"unknown column {name[:80]!r}", nearest(name, columns), offset)
    return name


def _unknown_function(name: str) -> tuple[str, str]:
    if name.lower() in _AGGREGATES:
        return f"{name[:80]} is an aggregate", "A condition is about one row; use a table that has the figure."
    return f"unknown function {name[:80]!r}", nearest(name.lower(), FUNCTIONS)


def _refuse_missing_operators(tokens: Sequence[_Token]) -> None:
    """Two values in a row would be a value and its alias."""
    for left, right in pairwise(tokens):
        if (left.is_value or left.kind == "close") and (right.is_value or right.kind in ("function", "open")):
            raise ConditionError(f"an operator is missing before {right.text[:40]!r}", _ALLOWED, right.offset)


def _refuse_unknown_values(tokens: Sequence[_Token], closed: Mapping[str, Collection[str]]) -> None:
    for column, text in _compared(tokens):
        known = closed.get(column.text)
        if known is not None and text.literal not in known:
            message = f"{column.text} is never {text.literal[:80]!r}"
            raise ConditionError(message, nearest(text.literal, known), text.offset)


def _compared(tokens: Sequence[_Token]) -> list[tuple[_Token, _Token]]:
    """Every (column, text) that an equality or a list compares."""
    pairs: list[tuple[_Token, _Token]] = []
    for at, token in enumerate(tokens):
        if token.kind != "column":
            continue
        words = [token.text.lower() for token in tokens[at + 1 : at + 3]]
        if words[:1] and words[0] in _EQUAL:
            pairs += [(token, other) for other in tokens[at + 2 : at + 3] if other.kind == "text"]
        if at >= 2 and tokens[at - 1].text in _EQUAL and tokens[at - 2].kind == "text":
            pairs.append((token, tokens[at - 2]))
        n_words = 1 if words[:1] == ["in"] else 2 if words == ["not", "in"] else 0
        if n_words:
            pairs += [(token, other) for other in _listed(tokens, at + n_words + 1)]
    return pairs


def _listed(tokens: Sequence[_Token], start: int) -> list[_Token]:
    """The texts of the list that begins at a token."""
    end = next((at for at in range(start, len(tokens)) if tokens[at].kind == "close"), len(tokens))
    return [token for token in tokens[start:end] if token.kind == "text"]
