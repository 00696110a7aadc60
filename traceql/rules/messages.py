"""Texts with figures in them: jinja2 templates that can show the values of a row, and nothing else.

A template may print a value, pass it through one of `FILTERS` and ask `if`: no loops, calls, attributes, arithmetic,
macros, imports. So it ends at once, runs no code and reads no file, whatever stands in it.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any

from jinja2 import StrictUndefined, TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from traceql import fmt
from traceql.errors import nearest
from traceql.rules.conditions import ConditionError

MAX_TEMPLATE = 4000
"""Characters of a template."""
MAX_NODES = 400
"""Parts of a template: jinja2 and Python recurse into nested ones."""
MAX_TEXT = 600
"""Characters of a finished text; what is longer ends in an ellipsis."""
MAX_VALUE = 120
"""Characters of a value in it (kernel names run to thousands), cut in the middle."""
UNKNOWN = "unknown"
_MANY = 1000
"""From which on no decimal of a count is told."""

Number = int | float


def _shown(form: Callable[[Number | None], str]) -> Callable[[object], str]:
    """A filter: a number in the form of `fmt`; null is unknown, a text stays as it is."""

    def shown(value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return _text(value)
        text = form(value)
        return UNKNOWN if text == fmt.UNKNOWN else text

    return shown


def _text(value: object) -> str:
    """A value as text; a long one is cut in the middle."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = UNKNOWN if value is None else str(value)
    half = MAX_VALUE // 2
    return text if len(text) <= MAX_VALUE else f"{text[:half]}{fmt.ELLIPSIS}{text[1 - half :]}"


def _count(number: Number | None) -> str:
    """A count; of many, without the half that the median of an even number of steps may have."""
    is_many = number is not None and math.isfinite(number) and abs(number) >= _MANY
    return fmt.count(round(number) if is_many and number is not None else number)


def _step(stage: object) -> str:
    """What a step of a stage is called."""
    return "step" if stage in (None, "unknown") else f"{_text(stage)} step"


FILTERS: Mapping[str, Callable[[object], str]] = {
    "ns": _shown(fmt.duration),
    "bytes": _shown(fmt.size),
    "percent": _shown(fmt.percent),
    "count": _shown(_count),
    "rate": _shown(lambda number: fmt.value("bytes_per_s", number)),
    "step": _step,
}
"""ns: 12.3 µs · bytes: 856 MB · percent: 69.3 % · count: 1,234 · rate: 1.02 TB/s · step: decode step."""

_NODES = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Filter, nodes.Const, nodes.If, nodes.CondExpr,
    nodes.Test, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not,
)  # fmt: skip
_TESTS = ("none",)


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    # Autoescape is off: the texts are no HTML, and what prints them escapes as its form demands.
    environment = ImmutableSandboxedEnvironment(
        autoescape=False, undefined=StrictUndefined, finalize=_text, cache_size=0, optimized=False
    )
    environment.globals = {}
    environment.filters = dict(FILTERS)
    environment.tests = {"none": _is_none}
    return environment


def _is_none(value: object) -> bool:
    return value is None


def check_template(template: str, names: Collection[str]) -> None:
    """Refuses a template that does anything but show the named values.

    Raises:
        ConditionError: it does, or it is no template.
    """
    if len(template) > MAX_TEMPLATE:
        raise ConditionError(f"it is longer than {MAX_TEMPLATE:,} characters", "Shorten it.")
    try:
        parts = list(_walk(_environment().parse(template)))
        for part in parts:
            _check_node(part, names)
        _environment().from_string(template)
    except (TemplateError, SyntaxError, RecursionError, ValueError) as error:
        raise ConditionError(f"no template: {str(error).splitlines()[0][:200]}", _ALLOWED) from error


_ALLOWED = "Write {{ column }}, {{ dur_ns | ns }} or {% if column is none %}...{% endif %}; filters: " + ", ".join(
    FILTERS
)


def _walk(template: nodes.Template) -> Iterator[nodes.Node]:
    """All parts of a template.

    Raises:
        ConditionError: there are too many.
    """
    waiting: list[nodes.Node] = [template]
    for _ in range(MAX_NODES):
        if not waiting:
            return
        node = waiting.pop()
        waiting += node.iter_child_nodes()
        yield node
    raise ConditionError(f"it has more than {MAX_NODES} parts", "Shorten it.")


def _check_node(node: nodes.Node, names: Collection[str]) -> None:
    if not isinstance(node, _NODES):
        raise ConditionError(f"a template cannot have: {type(node).__name__.lower()}", _ALLOWED)
    if isinstance(node, nodes.Name) and node.name not in names:
        raise ConditionError(f"unknown column {node.name[:80]!r}", nearest(node.name, names))
    if isinstance(node, nodes.Filter) and node.name not in FILTERS:
        raise ConditionError(f"unknown filter {node.name[:80]!r}", nearest(node.name, FILTERS))
    if isinstance(node, nodes.Filter) and (node.args or node.kwargs or node.dyn_args or node.dyn_kwargs):
        raise ConditionError(f"the filter {node.name} takes no arguments", _ALLOWED)
    if isinstance(node, nodes.Test) and node.name not in _TESTS:
        raise ConditionError(f"unknown test {node.name[:80]!r}", nearest(node.name, _TESTS))


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """A checked template with the values of a row: one line without control characters.

    A condition about an unknown value cannot be answered; then what stands in braces is left out.
    """
    try:
        text = _environment().from_string(template).render(values)
    except (TemplateError, TypeError):
        text = _BRACES.sub(fmt.ELLIPSIS, template)
    line = fmt.visible(" ".join(text.split()))
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}{fmt.ELLIPSIS}"


_BRACES = re.compile(r"\{[{%#].*?[%}#]\}", re.DOTALL)
