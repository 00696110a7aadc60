"""Numbers of columns, for showing."""

import polars as pl


def ratio(part: float, whole: float) -> float | None:
    """A part as a fraction of the whole; None where there is no whole."""
    return part / whole if whole else None


def total(column: pl.Series) -> float:
    """The sum of a column of numbers; 0 when it is empty."""
    return float(column.sum())


def median(column: pl.Series) -> float | None:
    """The median of a column of numbers; None when it is empty."""
    return column.cast(pl.Float64).median()  # pyright: ignore[reportReturnType] - of floats it is one


def least(column: pl.Series) -> float | None:
    """The least of a column of numbers; None when it is empty."""
    return column.cast(pl.Float64).min()  # pyright: ignore[reportReturnType]


def most(column: pl.Series) -> float | None:
    """The greatest of a column of numbers; None when it is empty."""
    return column.cast(pl.Float64).max()  # pyright: ignore[reportReturnType]
