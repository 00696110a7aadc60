"""What is worked out of a whole trace once, however many tables and rules ask for it."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from traceql.trace import Trace

Value = TypeVar("Value")


def once(make: Callable[[Trace], Value]) -> Callable[[Trace], Value]:
    """The function, whose value for a trace or run is kept while that is; the value must not hold the trace itself."""
    known: WeakKeyDictionary[Trace, Value] = WeakKeyDictionary()

    @wraps(make)
    def of(trace: Trace) -> Value:
        if trace not in known:
            known[trace] = make(trace)
        return known[trace]

    return of
