"""Applies patches to a server's modules as they are imported, and says in a file what was applied.

The environment variable TRACEQL_PATCHES says which, as `traceql.capture.patches.environment` writes it. Works with
what Python itself brings, 3.10 or newer.
"""

import json
import os
import sys

from .finder import PatchFinder
from .report import Reporter

VARIABLE = "TRACEQL_PATCHES"


def install() -> None:
    """Puts the patches of this process's environment in front of its imports; does nothing where there are none."""
    text = os.environ.get(VARIABLE)
    if text:
        wanted = json.loads(text)
        sys.meta_path.insert(0, PatchFinder(wanted["patches"], Reporter(wanted["folder"])))
