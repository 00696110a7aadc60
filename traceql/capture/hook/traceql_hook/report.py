"""What a process says of its patches: JSON lines in a file of its own."""

import json
import os
import sys
import time
from pathlib import Path


class Reporter:
    """Appends to `patches-PID.jsonl` in a folder. Losing a line never stops a server.

    Args:
        folder: where the files are; it exists.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def __call__(self, patch: str, state: str, **facts: object) -> None:
        """Adds a line.

        Args:
            patch: whose line it is.
            state: what happened: applied, refused, or a word of the patch's own.
            facts: what else there is to say, as JSON can hold it.
        """
        line = {"time_s": time.time(), "pid": os.getpid(), "patch": patch, "state": state, **facts}
        try:
            with (self._folder / f"patches-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            sys.stderr.write(f"traceql: {patch} {state}, which cannot be reported: {error}\n")
