"""What a kernel is for: the closed list of categories, and the patterns that find one by a kernel's name.

Both are data, in `rules/kernel_categories.yaml`; a user's file of the same form may come before it. Patterns
are regular expressions of the linear-time kind (no look-around, no back-references), so that no name and no
user's pattern can make them slow.
"""

import difflib
import hashlib
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NoReturn, Protocol, cast

import polars as pl
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError

from traceql.errors import RuleError
from traceql.resources import resource

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
    return _read(resource("rules", "kernel_categories.yaml"), ())


# --- reading a category file ------------------------------------------------------------------------------


class _Mark(Protocol):
    """A place in a YAML file, counted from 0."""

    line: int
    column: int


class _Node(Protocol):
    """What is used of ruamel's nodes, which carry no type hints."""

    id: str
    """scalar, sequence or mapping."""
    tag: object
    value: object
    start_mark: _Mark


class _Fault(Protocol):
    """What is used of ruamel's errors."""

    problem: str | None
    problem_mark: _Mark | None
    context_mark: _Mark | None


class _Reader:
    """Strict reading of one YAML file: every fault is a `RuleError` that says where."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def document(self) -> _Node:
        """The one document of the file."""
        text = self._text()
        try:
            node = cast("_Node | None", YAML(typ="safe", pure=True).compose(text))  # pyright: ignore[reportUnknownMemberType]
        except MarkedYAMLError as error:
            fault = cast("_Fault", error)
            mark = fault.problem_mark or fault.context_mark
            line, column = (mark.line, mark.column) if mark else (0, 0)
            self._fail_at(line, column, fault.problem or "not YAML", _NOT_YAML)
        except ReaderError as error:
            line, column = _position(text, cast("int", error.position))  # pyright: ignore[reportUnknownMemberType]
            self._fail_at(line, column, "a control character", _NOT_YAML)
        except RecursionError:
            self._fail_at(0, 0, "nested too deeply", _NOT_YAML)
        if node is None:
            self._fail_at(0, 0, "the file is empty", "It must have a list `rows`.")
        return node

    def mapping(
        self, node: _Node, *, required: AbstractSet[str], optional: AbstractSet[str] = frozenset()
    ) -> dict[str, _Node]:
        """The fields of a mapping; all required, none unknown, none twice."""
        if node.id != "mapping":
            self.fail(node, "expected fields", f"Write `field: value`: {', '.join(sorted(required | optional))}.")
        fields: dict[str, _Node] = {}
        for key, value in cast("list[tuple[_Node, _Node]]", node.value):
            name = self.one_of(key, sorted(required | optional), "field")
            if name in fields:
                self.fail(key, f"field {name} stands twice", "Keep one of the two.")
            fields[name] = value
        if missing := sorted(required - fields.keys()):
            self.fail(node, f"missing: {', '.join(missing)}", "Add what is missing.")
        return fields

    def items(self, node: _Node) -> list[_Node]:
        """The items of a list."""
        if node.id != "sequence":
            self.fail(node, "expected a list", "Begin each item with `- `.")
        return cast("list[_Node]", node.value)

    def texts(self, node: _Node) -> list[_Node]:
        """A text, or a list of at least one."""
        nodes = self.items(node) if node.id == "sequence" else [node]
        if not nodes:
            self.fail(node, "the list is empty", "Give at least one.")
        return nodes

    def text(self, node: _Node) -> str:
        """A text that is not empty."""
        if node.id != "scalar" or str(node.tag) != "tag:yaml.org,2002:str" or not node.value:
            self.fail(node, "expected a text", "Put it in quotes.")
        return cast("str", node.value)

    def one_of(self, node: _Node, known: Sequence[str], what: str) -> str:
        """A text that is one of the known names."""
        name = self.text(node)
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            advice = f"Did you mean {nearest[0]}?" if nearest else f"Known: {', '.join(known)}."
            self.fail(node, f"unknown {what} {name[:80]!r}", advice)
        return name

    def where(self, node: _Node) -> str:
        """file:line:column of a node."""
        return self._place(node.start_mark.line, node.start_mark.column)

    def fail(self, node: _Node, message: str, hint: str) -> NoReturn:
        raise RuleError(f"{self.where(node)}: {message}", hint)

    def _fail_at(self, line: int, column: int, message: str, hint: str) -> NoReturn:
        raise RuleError(f"{self._place(line, column)}: {message}", hint)

    def _place(self, line: int, column: int) -> str:
        return f"{self._path}:{line + 1}:{column + 1}"

    def _text(self) -> str:
        try:
            data = self._path.read_bytes()
        except OSError as error:
            raise RuleError(f"{self._path}: {error.strerror}", "Check the path.") from error
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line, column = _position(data[: error.start].decode("utf-8-sig"), None)
            self._fail_at(line, column, "not UTF-8", "Save the file as UTF-8.")


_NOT_YAML = "The file must be YAML 1.2."


def _position(text: str, end: int | None) -> tuple[int, int]:
    """Line and column, from 0, of a place in a text."""
    before = text[:end]
    return before.count("\n"), len(before) - before.rfind("\n") - 1


def _read(path: Path, known: tuple[Category, ...]) -> Categories:
    """The categories that the file defines and its rows, which may also name `known` categories."""
    reader = _Reader(path)
    fields = reader.mapping(reader.document(), required={"rows"}, optional={"categories"})
    categories: list[Category] = []
    for node in reader.items(fields["categories"]) if "categories" in fields else ():
        categories.append(_category(reader, node, [*known, *categories]))
    names = [category.name for category in (*known, *categories)]
    rows = tuple(_row(reader, node, names) for node in reader.items(fields["rows"]))
    return Categories(tuple(categories), rows)


def _category(reader: _Reader, node: _Node, earlier: Iterable[Category]) -> Category:
    fields = reader.mapping(node, required={"name", "group", "doc", "color"})
    name = reader.text(fields["name"])
    if name in {category.name for category in earlier}:
        reader.fail(fields["name"], f"category {name} is defined twice", "Choose another name.")
    group = reader.one_of(fields["group"], GROUPS, "group")
    color = reader.text(fields["color"])
    if len(color) != 7 or color[0] != "#" or any(c not in "0123456789abcdefABCDEF" for c in color[1:]):
        reader.fail(fields["color"], f"{color!r} is no color", "Write it as '#rrggbb', in quotes.")
    return Category(name, group, reader.text(fields["doc"]), color)


def _row(reader: _Reader, node: _Node, names: Sequence[str]) -> Row:
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


def _pattern(reader: _Reader, node: _Node) -> str:
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
