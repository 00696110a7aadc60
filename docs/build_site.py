"""Builds the documentation as a site, in build/site, and refuses what would be broken without a network.

Links between pages and to headings are checked by zensical; here that pictures are there, and that no page asks another
host for anything.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"
_ASKED = re.compile(r"""<(?:link|script|img|iframe|source)\b[^>]*?\b(?:href|src)=["']?([^"'\s>]+)""")
_ALLOWED = re.compile(r'<link\b[^>]*rel=["\']?canonical')


def build() -> list[str]:
    """Builds the site; what is wrong with it."""
    command = [Path(sys.executable).with_name("zensical"), "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        return ["zensical found what is said above"]
    for tool in SITE.glob("*.py"):  # the folder of pages holds what makes them too
        tool.unlink()
    return [fault for page in sorted(SITE.rglob("*.html")) for fault in _faults(page)]


def _faults(page: Path) -> Iterator[str]:
    text = _ALLOWED.sub("", page.read_text(encoding="utf-8"))
    for asked in _ASKED.findall(text):
        if re.match(r"(?:https?:)?//", asked):
            yield f"{page.relative_to(SITE)} asks for {asked}"
        elif not asked.startswith(("data:", "#")) and not _is_there(page, asked):
            yield f"{page.relative_to(SITE)} shows {asked}, which is not there"


def _is_there(page: Path, asked: str) -> bool:
    path = re.sub(r"[?#].*", "", asked)
    return ((SITE / path[1:]) if path.startswith("/") else page.parent / path).exists()


if __name__ == "__main__":
    faults = build()
    print(*faults, sep="\n", end="\n" if faults else "")
    sys.exit(bool(faults))
