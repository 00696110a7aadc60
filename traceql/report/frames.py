"""One table as CSV or Parquet. Integers stay exact."""

import io

import orjson
import polars as pl


def to_csv(frame: pl.DataFrame) -> bytes:
    """The table as CSV with a header line; null is an empty field, a list or struct is JSON text."""
    return without_nesting(frame).write_csv().encode()


def without_nesting(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with JSON text for lists and structs, which CSV cannot hold."""
    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
    return frame.with_columns(pl.Series(name, _json_texts(frame[name]), pl.String) for name in nested)


def _json_texts(values: pl.Series) -> list[str | None]:
    return [None if value is None else orjson.dumps(value, default=str).decode() for value in values.to_list()]


def to_parquet(frame: pl.DataFrame) -> bytes:
    """The table as a Parquet file."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()
