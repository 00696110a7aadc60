"""Run by each Python process of a captured server as it starts: sets up the patches, then the next `sitecustomize`.

Only what Python itself brings is used here: traceql need not be installed where the server runs.
"""

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import traceql_hook  # pyright: ignore[reportMissingImports] - found in this folder, which is on the path

_HERE = Path(__file__).resolve().parent


def _run_next() -> None:
    """Runs the `sitecustomize` that would have run without this folder, under its own name."""
    others = [entry for entry in sys.path if Path(entry).resolve() != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


traceql_hook.install()  # pyright: ignore[reportUnknownMemberType]
_run_next()
