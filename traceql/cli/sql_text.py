"""The text of SQL as a person types it: where a statement ends, and what a word in it may become."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from traceql.analyses.dialect import FUNCTIONS
from traceql.analyses.sql_tokens import Token, tokens

KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "OFFSET", "JOIN", "LEFT JOIN", "FULL JOIN",
    "CROSS JOIN", "ON", "USING", "AS", "AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ILIKE", "IS NULL", "IS NOT NULL",
    "ASC", "DESC", "DISTINCT", "CASE", "WHEN", "THEN", "ELSE", "END", "WITH", "UNION", "UNION ALL", "OVER",
    "PARTITION BY", "CAST", "EXPLAIN", "NULL", "TRUE", "FALSE",
)  # fmt: skip
_SOURCES = ("FROM", "JOIN")
_CLAUSES = (*_SOURCES, "SELECT", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "ON", "USING", "WITH", "UNION")


def statements(text: str) -> tuple[list[str], str]:
    """The statements that a `;` ends, without it, and what is left. Empty ones are left out."""
    parts = [""]
    for token in tokens(text):
        if token == Token("sign", ";"):
            parts.append("")
        else:
            parts[-1] += token.text
    *ended, rest = parts
    return [part.strip() for part in ended if not is_blank(part)], rest


def is_blank(text: str) -> bool:
    """Whether there is nothing but white space and comments."""
    return all(token.is_blank for token in tokens(text))


@dataclass(frozen=True)
class Candidate:
    """What the word at the cursor may become, and what it is."""

    text: str
    what: str


def word_before(before: str) -> str:
    """The word that ends at the cursor, `before` being all up to there."""
    match = re.search(r"\w*$", before)
    return match[0] if match else ""


def candidates(before: str, after: str, columns: Mapping[str, Sequence[str]]) -> list[Candidate]:
    """What may stand at the cursor: tables where a table is asked for, else columns, functions and keywords.

    Args:
        before: the statement up to the cursor.
        after: the rest of it.
        columns: the columns of every table.

    Names that begin with the word at the cursor come first, then those that contain it; none within a text or comment.
    """
    word = word_before(before)
    typed = tokens(before)
    if typed and typed[-1].is_open:
        return []
    past = [token for token in tokens(before.removesuffix(word)) if not token.is_blank]
    previous = past[-1].text.upper() if past else ""
    named = _named(tokens(before.removesuffix(word) + " " + after), columns)
    if previous == ".":
        table = named.get(past[-2].name) if len(past) > 1 else None
        return _matching(word, ((name, f"of {table}") for name in columns.get(table or "", ())))
    if _clause(past) in _SOURCES and previous in (*_SOURCES, ","):
        own = ((name, "of this query") for name in _own_tables(past) if name not in columns)
        return _matching(word, (*((name, "table") for name in columns), *own))
    sources = {name: columns[name] for name in named.values()} or (columns if word else {})
    names = {column: f"of {table}" for table in reversed(list(sources)) for column in sources[table]}
    aliases = {alias: f"is {table}" for alias, table in named.items() if alias != table}
    return [*_matching(word, (names | aliases).items()), *_words(word, past)]


def _words(word: str, past: Sequence[Token]) -> list[Candidate]:
    """Functions and keywords that begin so; at the start of a statement what may begin one."""
    if not past:
        first = [(text, "keyword") for text in ("SELECT", "WITH", "FROM", "EXPLAIN")]
        return _matching(word, first, only_beginning=True)
    if not word:
        return []
    known = (*((text, "function") for text in FUNCTIONS), *((text, "keyword") for text in KEYWORDS))
    cased = ((text.lower() if word.islower() else text, what) for text, what in known)
    return _matching(word, cased, only_beginning=True)


def _matching(word: str, names: Iterable[tuple[str, str]], *, only_beginning: bool = False) -> list[Candidate]:
    wanted = word.lower()
    found = [Candidate(text, what) for text, what in names if wanted in text.lower()]
    begins = [each for each in found if each.text.lower().startswith(wanted)]
    return begins if only_beginning else begins + [each for each in found if each not in begins]


def _clause(past: Iterable[Token]) -> str:
    """The keyword whose clause the cursor is in, not that of a subquery that has ended."""
    open_clauses = [""]
    for token in past:
        if token.text == "(":
            open_clauses.append("")
        elif token.text == ")" and len(open_clauses) > 1:
            open_clauses.pop()
        elif token.kind == "word" and token.text.upper() in _CLAUSES:
            open_clauses[-1] = token.text.upper()
    return open_clauses[-1]


def _named(pieces: Iterable[Token], columns: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The tables that a statement names, by alias and by name."""
    past = [token for token in pieces if not token.is_blank]
    named: dict[str, str] = {}
    for index, token in enumerate(past):
        if index and token.name in columns and past[index - 1].text.upper() in (*_SOURCES, ","):
            named[token.name] = token.name
            alias = next(_aliases(past[index + 1 : index + 3]), None)
            if alias:
                named[alias] = token.name
    return named


def _aliases(following: Sequence[Token]) -> Iterator[str]:
    """The alias after a table's name, `AS` or not."""
    for token in following:
        if token.text.upper() == "AS":
            continue
        if token.kind in ("word", "quoted") and token.text.upper() not in _NO_ALIAS:
            yield token.name
        return


_NO_ALIAS = {keyword.split()[0] for keyword in KEYWORDS}


def _own_tables(past: Sequence[Token]) -> Iterator[str]:
    """Tables that a statement makes for itself: WITH name AS (...)."""
    for name, word, sign in zip(past, past[1:], past[2:], strict=False):
        if word.text.upper() == "AS" and sign.text == "(":
            yield name.text
