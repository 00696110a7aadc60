"""What is to be said with the answer to a query: what the tables that it names lack, and texts that no row has."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import polars as pl

from traceql.analyses.needs import why_columns_null, why_empty
from traceql.analyses.query_faults import Named
from traceql.analyses.sql_tokens import Token, tokens
from traceql.analyses.summary import Selection
from traceql.errors import nearest
from traceql.tables import INPUT_TABLES, Table
from traceql.trace import Trace

_WHOLE = (*(table.name for table in INPUT_TABLES), "kernel_layers", "queue_depth")
"""Tables that are never of some steps alone."""
_WORD = re.compile(r"\w+")
_MOST_VALUES = 30
"""Of a column with more different texts they are not listed."""
_MOST_TEXTS = 3
"""Of more texts that no row has they are counted: a query may list hundreds, and each is looked for in all columns."""


def missing(
    trace: Trace,
    sql: str,
    answer: pl.DataFrame,
    named: Named,
    *,
    tables: Mapping[str, Table],
    selection: Selection | None,
) -> Iterator[str]:
    """Of each table named: why it is empty, or why a column that is asked for is null throughout."""
    words = {word.lower() for word in _WORD.findall(sql)}
    for written, frame in named.items():
        name = written.lower()
        asked = [
            column.name
            for column in tables[name]
            if column.nullable and (column.name in words or column.name in answer.columns)
        ]
        known = frame.select(pl.len().alias(""), *(pl.col(column).count() for column in asked)).collect()
        if known[""].item() == 0:
            yield f"{name} is empty: {why_empty(trace, name, selection)}"
            continue
        empty = [column for column in asked if known[column].item() == 0]
        for reason, columns in why_columns_null(trace, empty).items():
            are = "is" if len(columns) == 1 else "are"
            yield f"{name}.{', '.join(columns)} {are} null in every row: {reason}"


def whole(named: Named, selection: Selection | None) -> Iterator[str]:
    """The tables named that hold all steps though some were selected, where no other one brings in the steps."""
    if selection in (None, Selection()) or any("step" in frame.collect_schema() for frame in named.values()):
        return
    of_trace = [name for name in map(str.lower, named) if name in _WHOLE]
    if of_trace:
        hold = "holds" if len(of_trace) == 1 else "hold"
        yield (
            f"{' and '.join(of_trace)} {hold} all steps: --steps and --stage are of results that go by steps. "
            "JOIN kernel_steps USING (kernel_id) brings in those selected."
        )


def never(sql: str, named: Named) -> Iterator[str]:
    """Of each text that a column is compared with: that no row has it, and which is near.

    A misspelt category matches nothing and is no fault, so the answer would look as if nothing of the kind ran.
    """
    pieces = [piece for piece in tokens(sql) if not piece.is_blank]
    own = {name.name for word, name in pairwise(pieces) if word.name == "as"}
    asked: dict[str, list[str]] = {}
    for column, text in dict.fromkeys(_compared(pieces)):
        asked.setdefault(column, []).append(text)
    for column in (each for each in asked if each not in own):
        known = {value for frame in named.values() for value in _values(frame, column)}
        absent = [text for text in asked[column] if text not in known] if known else []
        for text in absent[:_MOST_TEXTS]:
            yield f"no row has {text[:80]!r} as its {column}. {_advice(text, sorted(known), named)}"
        if len(absent) > _MOST_TEXTS:
            yield f"no row has {len(absent) - _MOST_TEXTS:,} more of the texts that the query compares {column} with."


def _advice(text: str, known: Sequence[str], named: Named) -> str:
    same = next((value for value in known if value.lower() == text.lower()), None)
    if same is not None:
        return f"Did you mean {same}?"
    if others := sorted({column for frame in named.values() for column in _with_text(frame, text)}):
        return f"Rows have it as their {' and '.join(others)}."
    hint = nearest(text, known)
    if hint.startswith("Did") or len(known) <= _MOST_VALUES:
        return hint.replace("Known:", "There are:")
    return f"LIKE '%{text[:80]}%' finds parts of texts."


def _with_text(frame: pl.LazyFrame, text: str) -> list[str]:
    """The columns in which some row has that text."""
    texts = [name for name, dtype in frame.collect_schema().items() if dtype == pl.String]
    found = frame.select((pl.col(name) == text).any() for name in texts).collect()
    return [name for name in texts if found[name].item()]


def _values(frame: pl.LazyFrame, column: str) -> list[str]:
    """The different texts of a column; none where the table has no such column of texts."""
    if frame.collect_schema().get(column) != pl.String:
        return []
    return frame.select(pl.col(column).drop_nulls().unique()).collect().to_series().to_list()


def _compared(pieces: Sequence[Token]) -> Iterator[tuple[str, str]]:
    """Each column and text of `column = 'text'` and `column IN ('text', ...)`."""
    for at, piece in enumerate(pieces):
        following = pieces[at + 1 : at + 3]
        if piece.kind not in ("word", "quoted") or len(following) < 2:
            continue
        if following[0].text == "=" and following[1].kind == "string":
            yield piece.name, _unquoted(following[1])
        elif following[0].name == "in" and following[1].text == "(":
            for listed in pieces[at + 3 :]:
                if listed.kind == "string":
                    yield piece.name, _unquoted(listed)
                elif listed.text != ",":
                    break


def _unquoted(piece: Token) -> str:
    return piece.text[1:-1].replace("''", "'")
