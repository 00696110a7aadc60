"""What a kernel is for: the closed list of categories, and the patterns that find one by a kernel's name.

Both are data, in `rules/kernel_categories.yaml`; a user's file of the same form may come before it. Patterns
are regular expressions of the linear-time kind (no look-around, no back-references), so that no name and no
user's pattern can make them slow.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import polars as pl

from traceql.memo import remembered
from traceql.resources import resource
from traceql.yaml_files import Node, YamlReader

GROUPS = ("copy", "gemm", "nccl", "attention", "moe", "other")
"""The closed list of groups, in display order; `nccl` is all communication."""
KINDS = ("kernel", "memcpy", "memset")
OTHER = "other"
"""The category of what no row matches."""
MAX_MATCHED = 5000
"""Characters of a name that patterns see."""


@dataclass(frozen=True)
class Category:
    """One purpose that a GPU activity can have."""

    name: str
    group: str
    doc: str
    color: str
    """#rrggbb, for reports."""


@dataclass(frozen=True)
class Row:
    """Patterns that put a name into a category; the first row that matches wins."""

    category: str
    patterns: tuple[str, ...]
    examples: tuple[str, ...]
    counterexamples: tuple[str, ...]
    """Names that look alike and belong elsewhere."""
    kind: str
    where: str
    """file:line:column of the row."""


@dataclass(frozen=True)
class Categories:
    """The categories in display order and the rows in order of precedence."""

    categories: tuple[Category, ...]
    rows: tuple[Row, ...]

    def classify(self, names: Sequence[str], kinds: Sequence[str]) -> list[str]:
        """The category of each activity, given its full name and its kind (kernel, memcpy or memset)."""
        return [OTHER if row is None else self.rows[row].category for row in self.first_rows(names, kinds)]

    def first_rows(self, names: Sequence[str], kinds: Sequence[str]) -> list[int | None]:
        """The number of the first row that matches each (name, kind); null where none does."""
        frame = pl.DataFrame(
            {"name": [_encodable(name[:MAX_MATCHED]) for name in names], "kind": list(kinds)},
            schema={"name": pl.String, "kind": pl.String},
        )
        return frame.select(self._first_row).to_series().to_list()

    def group(self, category: str) -> str:
        """The group of a category.

        Raises:
            KeyError: there is no such category.
        """
        return self._groups[category]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that decides a category: the same for the same content, wherever it was loaded."""
        rows = [(row.category, row.patterns, row.kind) for row in self.rows]
        return hashlib.sha256(repr((self.categories, rows)).encode()).hexdigest()[:16]

    @cached_property
    def _groups(self) -> dict[str, str]:
        return {category.name: category.group for category in self.categories}

    @cached_property
    def _first_row(self) -> pl.Expr:
        return pl.coalesce(
            pl.when((pl.col("kind") == row.kind) & _matches(row)).then(pl.lit(number, pl.Int32))
            for number, row in enumerate(self.rows)
        ).alias("row")


def _matches(row: Row) -> pl.Expr:
    return pl.col("name").str.contains("(?s)" + "|".join(f"(?:{pattern})" for pattern in row.patterns))


def _encodable(name: str) -> str:
    """The name with lone surrogates, which UTF-8 cannot hold, replaced."""
    return name.encode("utf-8", "replace").decode()


def load_categories(user_file: Path | None = None) -> Categories:
    """The built-in categories; with `user_file` its rows first, and its categories last but for `other`.

    Raises:
        RuleError: a file is wrong; the message begins with file:line:column.
    """
    built_in = _built_in()
    if user_file is None:
        return built_in
    user = _read(user_file, built_in.categories)
    *named, other = built_in.categories
    return Categories((*named, *user.categories, other), (*user.rows, *built_in.rows))


@cache
def _built_in() -> Categories:
    path = resource("rules", "kernel_categories.yaml")
    return remembered(path, Categories, lambda: _read(path, ()))


def _read(path: Path, known: tuple[Category, ...]) -> Categories:
    """The categories that the file defines and its rows, which may also name `known` categories."""
    reader = YamlReader(path)
    fields = reader.mapping(reader.document(), required={"rows"}, optional={"categories"})
    categories: list[Category] = []
    for node in reader.items(fields["categories"]) if "categories" in fields else ():
        categories.append(_category(reader, node, [*known, *categories]))
    names = [category.name for category in (*known, *categories)]
    rows = tuple(_row(reader, node, names) for node in reader.items(fields["rows"]))
    return Categories(tuple(categories), rows)


def _category(reader: YamlReader, node: Node, earlier: Iterable[Category]) -> Category:
    fields = reader.mapping(node, required={"name", "group", "doc", "color"})
    name = reader.text(fields["name"])
    if name in {category.name for category in earlier}:
        reader.fail(fields["name"], f"category {name} is defined twice", "Choose another name.")
    group = reader.one_of(fields["group"], GROUPS, "group")
    color = reader.text(fields["color"])
    if len(color) != 7 or color[0] != "#" or any(c not in "0123456789abcdefABCDEF" for c in color[1:]):
        reader.fail(fields["color"], f"{color!r} is no color", "Write it as '#rrggbb', in quotes.")
    return Category(name, group, reader.text(fields["doc"]), color)


def _row(reader: YamlReader, node: Node, names: Sequence[str]) -> Row:
    fields = reader.mapping(node, required={"category", "match", "examples"}, optional={"not", "kind"})
    others = reader.texts(fields["not"]) if "not" in fields else []
    return Row(
        category=reader.one_of(fields["category"], names, "category"),
        patterns=tuple(_pattern(reader, pattern) for pattern in reader.texts(fields["match"])),
        examples=tuple(reader.text(example) for example in reader.texts(fields["examples"])),
        counterexamples=tuple(reader.text(name) for name in others),
        kind=reader.one_of(fields["kind"], KINDS, "kind") if "kind" in fields else "kernel",
        where=reader.where(node),
    )


def _pattern(reader: YamlReader, node: Node) -> str:
    pattern = reader.text(node)
    try:
        pl.Series([""]).str.contains(pattern)
    except pl.exceptions.ComputeError as error:
        why = next((line for line in str(error).splitlines() if line.startswith("error: ")), str(error))
        reader.fail(
            node,
            f"bad regular expression {pattern!r}: {why.removeprefix('error: ')}",
            "Patterns are RE2-like: no look-around, no back-references.",
        )
    return pattern
