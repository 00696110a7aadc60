"""Rule files: YAML, one rule each, read strictly. Every fault is a `RuleError` with file, line and column.

Fields of a rule:

- `id` (as the file's name) · `severity` (info, warning, critical) · `table`, a name of `RESULTS`
- `when`: SQL, true for a row that is at fault · `group_by`: rows alike in these columns make one finding; without it
  all rows do · `cost`: SQL, the ns that a row costs · `order_by`: SQL, the row with the greatest is the worst; else by
  cost
- `message`, `fix`: templates over the worst row, `EXTRAS` included · `why`: text · `links`: URLs
- `needs`: without these the rule abstains
- `saving`: what the fix changes, kernels `scale`d by a `factor` or `replace`d by others
- `examples`: rows on which it `fires`, and on which it is `silent`
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from traceql import fmt
from traceql.analyses.needs import NEEDS
from traceql.analyses.results import RESULTS
from traceql.categories import Categories, load_categories
from traceql.errors import RuleError
from traceql.memo import remembered
from traceql.resources import resource
from traceql.rules.conditions import Condition, ConditionError, condition, figure
from traceql.rules.messages import check_template, rendered
from traceql.rules.model import SEVERITIES, Row, Rule, Saving
from traceql.rules.values import closed_values
from traceql.tables import KERNELS, Table
from traceql.yaml_files import Node, YamlReader

MAX_BYTES = 64 << 10
"""Of a rule file; the longest built-in one has 4 kB."""
EXTRAS = ("n_rows", "n_steps", "n_layers", "cost_ns_per_step", "share", "per")
"""What a message may name beside the columns of the worst row: figures of the finding, and `per`, what the figures a
step of `cast_groups` and `pool_casts` are over: `a step`; `in the whole trace` where no complete step is selected."""
MAX_ID = 80
"""Characters of an id."""
SUFFIXES = (".yaml", ".yml")

_REQUIRED = {"id", "severity", "table", "when", "message", "why", "fix", "examples"}
_OPTIONAL = {"group_by", "cost", "order_by", "needs", "links", "saving"}
_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
ID_FORM = "Small letters and digits, with single hyphens between words: slow-sampling."


def is_id(name: str) -> bool:
    """Whether a text can be a rule's id."""
    return len(name) <= MAX_ID and _ID.fullmatch(name) is not None


def load_rules(paths: Sequence[Path] = (), *, categories: Categories | None = None) -> tuple[Rule, ...]:
    """The built-in rules and those of the user's files and folders, in order of id.

    Args:
        paths: rule files, or folders of them.
        categories: those that conditions may name; the built-in ones unless given.

    Raises:
        RuleError: a file is wrong, an id stands twice, or a folder holds no rule.
    """
    known = categories or load_categories()
    own = [(path, read_rule(path, known)) for path in rule_files(paths)]
    rules = {rule.id: rule for rule in built_in_rules()}
    for path, rule in own:
        if rule.id in rules:
            raise RuleError(f"{path}: there is already a rule {rule.id}", "Choose another id.")
        rules[rule.id] = rule
    return tuple(rules[name] for name in sorted(rules))


def built_in_rules() -> tuple[Rule, ...]:
    """The rules in rules/findings, in order of id.

    Raises:
        RuleError: a file is wrong.
    """
    try:
        folder = resource("rules", "findings")
    except FileNotFoundError:
        return ()
    return tuple(_built_in(path) for path in sorted(folder.glob("*.yaml")))


def _built_in(path: Path) -> Rule:
    return remembered(path, Rule, lambda: read_rule(path, load_categories()))


def rule_files(paths: Sequence[Path]) -> Iterator[Path]:
    """The rule files that the paths name, those of a folder by name.

    Raises:
        RuleError: a folder holds none.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise RuleError(f"{path}: no rule in this folder", f"Rules are files *{' or *'.join(SUFFIXES)}.")
        yield from files


def read_rule(path: Path, categories: Categories) -> Rule:
    """The rule of a file.

    Raises:
        RuleError: the file is wrong; the message begins with file:line:column.
    """
    reader = YamlReader(path, max_bytes=MAX_BYTES)
    root = reader.document(expected=f"A rule has the fields {', '.join(sorted(_REQUIRED))}.")
    reader.refuse_anchors(root)
    return _RuleReader(reader, reader.mapping(root, required=_REQUIRED, optional=_OPTIONAL), path, categories).rule()


@dataclass(frozen=True)
class Frame:
    """What conditions are about: a table, and the texts that its closed columns hold."""

    table: Table
    closed: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, table: Table, categories: Categories) -> "Frame":
        """That of a table, with these categories."""
        return cls(table, closed_values(table.name, categories))

    @cached_property
    def schema(self) -> dict[str, pl.DataType]:
        """The dtype of each column."""
        return dict(self.table.schema)

    def condition(self, text: str) -> Condition:
        """As `conditions.condition`."""
        return condition(text, self.schema, self.closed)

    def figure(self, text: str) -> Condition:
        """As `conditions.figure`."""
        return figure(text, self.schema, self.closed)


@dataclass(frozen=True)
class _RuleReader:
    """Makes a rule of the fields of its file."""

    reader: YamlReader
    fields: dict[str, Node]
    path: Path
    categories: Categories

    def rule(self) -> Rule:
        examples = self.reader.mapping(self.fields["examples"], required={"fires", "silent"})
        return Rule(
            id=self._id(),
            severity=self.reader.one_of(self.fields["severity"], SEVERITIES, "severity"),
            table=self._frame.table.name,
            when=self._sql(self.fields["when"], self._frame.condition),
            message=self._template(self.fields["message"]),
            why=self._line(self.fields["why"]),
            fix=self._template(self.fields["fix"]),
            fires=tuple(self._examples(examples["fires"])),
            silent=tuple(self._examples(examples["silent"])),
            group_by=self._names("group_by", self._frame.table.names, "column"),
            cost=self._optional_figure("cost"),
            order_by=self._optional_figure("order_by"),
            needs=self._names("needs", tuple(NEEDS), "need"),
            links=tuple(self._link(node) for node in self._list("links")),
            saving=self._saving(),
        )

    @cached_property
    def _frame(self) -> Frame:
        name = self.reader.one_of(self.fields["table"], tuple(RESULTS), "table")
        return Frame.of(RESULTS[name].table, self.categories)

    def _id(self) -> str:
        node = self.fields["id"]
        name = self.reader.text(node)
        if not is_id(name):
            self.reader.fail(node, f"{name[:80]!r} is no id", ID_FORM)
        if name != self.path.stem:
            self.reader.fail(node, f"the id is {name[:80]}, the file {self.path.name}", f"Name the file {name}.yaml.")
        return name

    def _list(self, field: str) -> list[Node]:
        return self.reader.texts(self.fields[field]) if field in self.fields else []

    def _names(self, field: str, known: Sequence[str], what: str) -> tuple[str, ...]:
        return tuple(self.reader.one_of(node, known, what) for node in self._list(field))

    def _line(self, node: Node) -> str:
        return fmt.visible(" ".join(self.reader.text(node).split()))

    def _link(self, node: Node) -> str:
        link = self.reader.text(node)
        if not re.fullmatch(r"https?://[!-~]+", link):
            self.reader.fail(node, f"{link[:80]!r} is no URL", "It begins with https://.")
        return link

    def _sql(self, node: Node, check: Callable[[str], Condition]) -> str:
        is_truth = node.id == "scalar" and str(node.tag).endswith(":bool")
        text = str(node.value).lower() if is_truth else self.reader.text(node)
        try:
            check(text)
        except ConditionError as error:
            self.reader.fail_inside(node, error.offset, error.message, error.hint)
        return text

    def _optional_figure(self, field: str) -> str | None:
        return self._number_or_sql(self.fields.get(field))

    def _number_or_sql(self, node: Node | None) -> str | None:
        """A figure: SQL over the rule's table, or a number."""
        if node is None:
            return None
        if str(node.tag).endswith((":int", ":float")):
            return str(self.reader.number(node))
        return self._sql(node, self._frame.figure)

    def _template(self, node: Node) -> str:
        text = self._line(node)
        names = {*self._frame.table.names, *EXTRAS}
        try:
            check_template(text, names)
        except ConditionError as error:
            self.reader.fail(node, error.message, error.hint)
        if not rendered(text, dict.fromkeys(names)):
            self.reader.fail(node, "the text is empty", "Say what is wrong.")
        return text

    def _saving(self) -> Saving | None:
        node = self.fields.get("saving")
        if node is None:
            return None
        optional = {"scale", "factor", "replace", "bytes", "rows", "bandwidth_bytes_per_s"}
        fields = self.reader.mapping(node, required=set(), optional=optional)
        kinds = [kind for kind in (_SCALE, _REPLACE) if kind.predicate in fields]
        if len(kinds) != 1 or not kinds[0].fits(fields):
            self.reader.fail(node, "not a saving", "Write {scale: SQL, factor: 0} or {replace: SQL, bytes: SQL}.")
        kernels = Frame.of(KERNELS, self.categories)
        rate = "bandwidth_bytes_per_s"
        return Saving(
            kernels=self._sql(fields[kinds[0].predicate], kernels.condition),
            factor=self.reader.number(fields["factor"]) if "factor" in fields else None,
            bytes=self._number_or_sql(fields.get("bytes")),
            rows=self._number_or_sql(fields.get("rows")),
            bandwidth_bytes_per_s=self.reader.number(fields[rate]) if rate in fields else None,
        )

    def _examples(self, node: Node) -> Iterator[Row]:
        rows = self.reader.items(node)
        if not rows:
            self.reader.fail(node, "no examples", "Give at least one row; columns left out are null.")
        for row in rows:
            yield self._example(row)

    def _example(self, node: Node) -> Row:
        table = self._frame.table
        fields = self.reader.mapping(node, required=set(), optional=set(table.names))
        row: Row = {}
        for name, value in fields.items():
            row[name] = self.reader.scalar(value)
            known = self._frame.closed.get(name)
            if known is not None and row[name] is not None:
                self.reader.one_of(value, known, name)
            try:
                pl.Series([row[name]], dtype=table.schema[name], strict=True)
            except (TypeError, pl.exceptions.PolarsError, OverflowError):
                self.reader.fail(value, f"{name} cannot be {row[name]!r}", f"It is of type {table.schema[name]}.")
        return row


@dataclass(frozen=True)
class _SavingKind:
    predicate: str
    one_of: Collection[str]
    """Exactly one of these must be there."""
    optional: Collection[str]

    def fits(self, fields: Collection[str]) -> bool:
        rest = set(fields) - {self.predicate, *self.optional}
        return len(rest) == 1 and rest <= set(self.one_of)


_SCALE = _SavingKind("scale", {"factor"}, ())
_REPLACE = _SavingKind("replace", {"bytes", "rows"}, {"bandwidth_bytes_per_s"})
