"""Console blocks of the pages that show real output: below `<!-- run -->`, each command and what it prints.

`<!-- run head=N -->` keeps the first N lines of each output. A command goes on behind a line
that ends in a backslash. Commands run in a folder that looks like tests/fixtures.
"""

import contextlib
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from traceql.cli import main

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
_BLOCK = re.compile(r"(<!-- run(?: head=(\d+))? -->\n\n?```console\n)(.*?)(^```$)", re.DOTALL | re.MULTILINE)
_CUT = "...\n"
_FINE = (0, 1)
"""Exit statuses: without findings and with them."""


def refreshed(page: str) -> str:
    """The page with what its commands print now.

    Raises:
        AssertionError: a command cannot run.
    """
    with _beside_fixtures():
        return _BLOCK.sub(lambda block: block[1] + "".join(_run(block[3], block[2])) + block[4], page)


def carried_over(page: str, earlier: str) -> str:
    """The page with the outputs that an earlier one shows for the same commands; what is not there is run."""
    known = {(block[2], "".join(_commands(block[3]))): block[3] for block in _BLOCK.finditer(earlier)}

    def output(block: re.Match[str]) -> str:
        shown = known.get((block[2], "".join(_commands(block[3]))))
        return refreshed(block[0]) if shown is None else block[1] + shown + block[4]

    return _BLOCK.sub(output, page)


def _commands(body: str) -> list[str]:
    return re.findall(r"^\$ (?:.*\\\n)*.*\n", body, re.MULTILINE)


def _run(body: str, head: str | None) -> Iterator[str]:
    for number, command in enumerate(_commands(body)):
        *typed, (program, *arguments) = _piped(command)
        assert program == "traceql", command
        done = CliRunner().invoke(main, arguments, input=" ".join(typed[0][1:]) if typed else None)
        assert done.exit_code in _FINE, (command, done.output)
        lines = done.stdout.splitlines(keepends=True)
        n_shown = int(head) if head else len(lines)
        cut = [_CUT] if len(lines) > n_shown else []
        yield from ["\n"] * (number > 0)
        yield from (command, *lines[:n_shown], *cut)


def _piped(command: str) -> list[list[str]]:
    """The words of a command, `traceql ...` or `echo ... | traceql ...`."""
    words = shlex.split(command[2:].replace("\\\n", ""))
    if words[0] != "echo":
        return [words]
    pipe = words.index("|")
    return [words[:pipe], words[pipe + 1 :]]


@contextlib.contextmanager
def _beside_fixtures() -> Iterator[None]:
    """A folder of its own with a copy of the fixtures, so that what a command writes harms nothing."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(FIXTURES, folder, dirs_exist_ok=True)
        with contextlib.chdir(folder):
            yield
