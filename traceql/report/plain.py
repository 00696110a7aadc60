"""What documents are made of: rows of frames and selections as plain data, and the JSON text of it all."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import polars as pl

from traceql.analyses.summary import Selection


def plain_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as plain data; what is not finite is null."""
    return [plain_row(row) for row in frame.iter_rows(named=True)]


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row as plain data; what is not finite is null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def plain_selection(selection: Selection) -> dict[str, Any]:
    """The steps asked for as plain data."""
    return {"first_step": selection.first_step, "end_step": selection.end_step, "stage": selection.stage}


def json_text(document: Mapping[str, Any], default: Callable[[Any], Any] | None = None) -> bytes:
    """A document as JSON text, indented, with a line end; `default` makes plain what is not."""
    return orjson.dumps(document, default, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
