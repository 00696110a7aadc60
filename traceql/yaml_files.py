"""Strict reading of YAML data files: every fault is a `RuleError` that says file, line and column.

YAML 1.2, so that no word is a surprise boolean. Duplicate and unknown fields are errors, with the nearest known name.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NoReturn, Protocol, cast

from traceql.errors import RuleError, nearest

Scalar = str | int | float | bool | None


class _Mark(Protocol):
    """A place in a YAML file, counted from 0."""

    line: int
    column: int


class Node(Protocol):
    """What is used of ruamel's nodes, which carry no type hints."""

    id: str
    """scalar, sequence or mapping."""
    tag: object
    value: object
    style: str | None
    """Of a scalar: a quote or the sign of a block; None when it stands plain."""
    anchor: str | None
    start_mark: _Mark
    end_mark: _Mark


class _Fault(Protocol):
    """What is used of ruamel's errors."""

    problem: str | None
    problem_mark: _Mark | None
    context_mark: _Mark | None


class YamlReader:
    """Strict reading of one YAML file: every fault is a `RuleError` that says where."""

    def __init__(self, path: Path, *, max_bytes: int | None = None) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def document(self, *, expected: str = "It must have a list `rows`.") -> Node:
        """The one document of the file.

        Args:
            expected: what to say of an empty file.
        """
        from ruamel.yaml import YAML  # noqa: PLC0415 - slow to import, and mostly what is read is remembered
        from ruamel.yaml.error import MarkedYAMLError  # noqa: PLC0415
        from ruamel.yaml.reader import ReaderError  # noqa: PLC0415

        text = self._text()
        try:
            node = cast("Node | None", YAML(typ="safe", pure=True).compose(text))  # pyright: ignore[reportUnknownMemberType]
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
            self._fail_at(0, 0, "the file is empty", expected)
        return node

    def refuse_anchors(self, root: Node) -> None:
        """Fails where a node has an anchor: with aliases a short file stands for an endless one."""
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if node.anchor:
                self.fail(node, f"an anchor, &{node.anchor[:40]}", "Write out what it stands for.")
            if node.id == "sequence":
                waiting += cast("list[Node]", node.value)
            elif node.id == "mapping":
                waiting += [part for pair in cast("list[tuple[Node, Node]]", node.value) for part in pair]

    def mapping(
        self, node: Node, *, required: AbstractSet[str], optional: AbstractSet[str] = frozenset()
    ) -> dict[str, Node]:
        """The fields of a mapping; all required, none unknown, none twice."""
        if node.id != "mapping":
            self.fail(node, "expected fields", f"Write `field: value`: {', '.join(sorted(required | optional))}.")
        fields: dict[str, Node] = {}
        for key, value in cast("list[tuple[Node, Node]]", node.value):
            name = self.one_of(key, sorted(required | optional), "field")
            if name in fields:
                self.fail(key, f"field {name} stands twice", "Keep one of the two.")
            fields[name] = value
        if missing := sorted(required - fields.keys()):
            self.fail(node, f"missing: {', '.join(missing)}", "Add what is missing.")
        return fields

    def items(self, node: Node) -> list[Node]:
        """The items of a list."""
        if node.id != "sequence":
            self.fail(node, "expected a list", "Begin each item with `- `.")
        return cast("list[Node]", node.value)

    def texts(self, node: Node) -> list[Node]:
        """A text, or a list of at least one."""
        nodes = self.items(node) if node.id == "sequence" else [node]
        if not nodes:
            self.fail(node, "the list is empty", "Give at least one.")
        return nodes

    def text(self, node: Node) -> str:
        """A text that is not empty."""
        if node.id != "scalar" or str(node.tag) != "tag:yaml.org,2002:str" or not node.value:
            self.fail(node, "expected a text", "Put it in quotes.")
        return cast("str", node.value)

    def scalar(self, node: Node) -> Scalar:
        """A text, number, true, false or null."""
        kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if node.id != "scalar" or kind not in _SCALARS:
            self.fail(node, "expected a text, a number, true, false or null", "Put a text in quotes.")
        try:
            return _SCALARS[kind](cast("str", node.value))
        except ValueError:
            self.fail(
                node, f"{str(node.value)[:80]!r} is no number", "A text stands in quotes; a whole number has 64 bits."
            )

    def number(self, node: Node) -> float:
        """A number that is not negative."""
        value = self.scalar(node)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            self.fail(node, "expected a number that is not negative", "Write it with digits.")
        return value

    def one_of(self, node: Node, known: Sequence[str], what: str) -> str:
        """A text that is one of the known names."""
        name = self.text(node)
        if name not in known:
            self.fail(node, f"unknown {what} {name[:80]!r}", nearest(name, known))
        return name

    def where(self, node: Node) -> str:
        """file:line:column of a node."""
        return self._place(node.start_mark.line, node.start_mark.column)

    def fail_inside(self, node: Node, offset: int, message: str, hint: str) -> NoReturn:
        """As `fail`, at a character of a text where it stands on one line; else at its beginning."""
        start, end = node.start_mark, node.end_mark
        inside = offset + bool(node.style) if start.line == end.line else 0
        self._fail_at(start.line, start.column + inside, message, hint)

    def fail(self, node: Node, message: str, hint: str) -> NoReturn:
        """Raises a `RuleError` that says where."""
        raise RuleError(f"{self.where(node)}: {message}", hint)

    def _fail_at(self, line: int, column: int, message: str, hint: str) -> NoReturn:
        raise RuleError(f"{self._place(line, column)}: {message}", hint)

    def _place(self, line: int, column: int) -> str:
        return f"{self._path}:{line + 1}:{column + 1}"

    def _text(self) -> str:
        try:
            with self._path.open("rb") as file:
                data = file.read(-1 if self._max_bytes is None else self._max_bytes + 1)
        except OSError as error:
            raise RuleError(f"{self._path}: {error.strerror}", "Check the path.") from error
        if self._max_bytes is not None and len(data) > self._max_bytes:
            raise RuleError(f"{self._path}: longer than {self._max_bytes:,} bytes", "Take it apart.")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line, column = _position(data[: error.start].decode("utf-8-sig"), None)
            self._fail_at(line, column, "not UTF-8", "Save the file as UTF-8.")


_NOT_YAML = "The file must be YAML 1.2."


def _integer(text: str) -> int:
    number = int(text.replace("_", ""), 0 if text.lstrip("+-")[:2].lower() in ("0x", "0o", "0b") else 10)
    if not -(2**63) <= number < 2**63:
        raise ValueError("more than 64 bits")
    return number


def _float(text: str) -> float:
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


_SCALARS: dict[str, Callable[[str], Scalar]] = {
    "str": str,
    "int": _integer,
    "float": _float,
    "bool": lambda text: text.lower() == "true",
    "null": lambda _: None,
}
"""What a plain YAML value is read into, by the end of its tag."""


def _position(text: str, end: int | None) -> tuple[int, int]:
    """Line and column, from 0, of a place in a text."""
    before = text[:end]
    return before.count("\n"), len(before) - before.rfind("\n") - 1
