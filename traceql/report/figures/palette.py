"""The colours of categories: the same in every figure."""

from collections.abc import Iterable

from traceql.categories import Category


def palette(categories: Iterable[Category]) -> dict[str, str]:
    """The colour of each category, in display order."""
    return {category.name: category.color for category in categories}
