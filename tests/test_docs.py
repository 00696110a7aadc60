"""The pages of docs/: each has its place in the site, and what they show commands print is what these print."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from traceql.cli import COMMANDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def listed(entries):
    """The pages of a navigation, however deep."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            for value in entry.values():
                yield from listed([value] if isinstance(value, str) else value)


def test_every_page_has_its_place_in_the_site():
    places = list(listed(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    assert len(places) == len(set(places))
    assert set(places) == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}, "see nav in zensical.toml"


@pytest.mark.parametrize("page", ["tutorial.md", "faq.md", "attribution.md", "export.md", "index.md"])
def test_commands_that_are_named_are_there(page):
    named = set(re.findall(r"`traceql ([a-z-]+)", (DOCS / page).read_text(encoding="utf-8")))
    assert named <= set(COMMANDS)


@pytest.mark.slow
def test_what_pages_show_is_what_commands_print():
    command = [sys.executable, str(DOCS / "generate.py"), "--check", "--run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), "run: make docs"
