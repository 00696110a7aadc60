"""Where each decode step's milliseconds go, from a torch.profiler trace of LLM serving.

`traceql.load(path)` reads a trace; `traceql.analyses` holds one function per question, `traceql.query` answers those in
SQL, `traceql.check` runs the rules, `traceql.diff` compares.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceql import analyses
    from traceql.analyses.query import query
    from traceql.diffing import diff
    from traceql.rules.checking import check
    from traceql.run import load_run
    from traceql.trace import Trace, load

__version__ = "0.1.0"
__all__ = ["Trace", "__version__", "analyses", "check", "diff", "load", "load_run", "query"]

_HOMES = {
    "Trace": "traceql.trace",
    "check": "traceql.rules.checking",
    "diff": "traceql.diffing",
    "load": "traceql.trace",
    "load_run": "traceql.run",
    "query": "traceql.analyses.query",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for only then, so that `traceql --help` need not wait for polars."""
    if name == "analyses":
        return import_module("traceql.analyses")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
