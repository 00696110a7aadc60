"""Rows of frames as plain data, for documents."""

import math
from collections.abc import Mapping
from typing import Any

import polars as pl


def plain_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as plain data; what is not finite is null."""
    return [plain_row(row) for row in frame.iter_rows(named=True)]


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row as plain data; what is not finite is null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
