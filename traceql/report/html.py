"""Pages as HTML: one self-contained file that asks no host for anything, safe with whatever names a trace holds.

A page is blocks in sections, filled with finished text by whoever makes it (`trace_page`); here they are only printed.
Each block names the macro of templates/parts.html.j2 that prints it. Everything is escaped by autoescape, data for
scripts goes through `tojson`, and a content security policy allows no script but the page's own.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal, Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from traceql import __version__
from traceql.report.code_spans import code_spans
from traceql.report.page import Section
from traceql.resources import resource

Assets = Literal["inline", "cdn", "directory"]
"""Where scripts and style are: in the page; the plotting library on a public host; all in a folder beside the page."""

PLOTLY = "plotly-basic.min.js"
PLOTLY_URL = "https://cdn.jsdelivr.net/npm/plotly.js-basic-dist-min@4.1.1/plotly-basic.min.js"
"""The very file that is kept in templates/vendor; the page carries its hash."""
EXACT = 2**53
"""Above it JavaScript's numbers skip integers."""


class Block(Protocol):
    """A part of a section."""

    kind: ClassVar[str]
    """The macro of templates/parts.html.j2 that prints it."""


@dataclass(frozen=True)
class Text:
    """A section of finished text, as all pages have them, with what its table has on screen besides."""

    kind: ClassVar[str] = "text"
    section: Section
    full_names: tuple[str, ...] = ()
    """Of each row what its last column shortens: to be shown whole, searched and copied."""
    levels: tuple[tuple[int, ...], ...] = ()
    """Of each row how dark each cell is, 0 to 9; none for no shading."""
    is_folded: bool = False
    """Only the title is shown until it is opened."""


@dataclass(frozen=True)
class Tile:
    """One figure of the page's head."""

    value: str
    label: str
    note: str = ""
    tone: str = ""
    """Classes of its look, for the figure that stands above all others."""


@dataclass(frozen=True)
class Card:
    """A finding: what is wrong, what it costs, why, what to do, and where on the page to look."""

    severity: str
    rule: str
    cost: str
    message: str
    why: str
    fix: str
    extent: str
    target: str
    """Anchor of the section that shows it."""
    target_title: str
    steps: tuple[int, ...]
    """Steps that can be jumped to."""
    layers: tuple[int, ...]
    evidence: Section
    links: tuple[str, ...] = ()

    @property
    def web_links(self) -> tuple[str, ...]:
        """Those that a browser may follow."""
        return tuple(link for link in self.links if link.startswith(("https://", "http://")))


@dataclass(frozen=True)
class Cards:
    """Findings, the costliest first."""

    kind: ClassVar[str] = "cards"
    cards: tuple[Card, ...]


@dataclass(frozen=True)
class PageSection:
    """A section of a page: its anchor, its entry in the contents, and its blocks in order."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class HtmlPage:
    """A page: its title, what it says in the first ten seconds, and its sections."""

    title: str
    lines: tuple[str, ...]
    tiles: tuple[Tile, ...]
    sections: tuple[PageSection, ...]
    made: str
    """When and from what."""
    colors: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of each category: the same everywhere."""


@dataclass(frozen=True)
class Rendered:
    """A page as text, and the files that must lie in the folder beside it, by name."""

    html: str
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


def render_html(page: HtmlPage, *, assets: Assets = "inline", folder: str = "assets") -> Rendered:
    """The page as HTML.

    Args:
        page: what it shows.
        assets: where scripts and style are.
        folder: name of the folder beside the page, for `directory`.
    """
    has_plot = any(block.kind == "bars" for section in page.sections for block in section.blocks)
    scripts = {**({PLOTLY: _vendored(PLOTLY)} if has_plot else {}), "app.js": _template_text("app.js")}
    style = _template_text("style.css")
    is_apart = assets == "directory"
    html = (
        _environment()
        .get_template("report.html.j2")
        .render(
            page=page,
            version=__version__,
            policy=_policy(scripts, assets),
            style=style,
            style_file=f"{folder}/style.css" if is_apart else "",
            scripts=[_script(name, text, assets, folder) for name, text in scripts.items()],
        )
    )
    files = {"style.css": style, **scripts} if is_apart else {}
    return Rendered(html, {name: text.encode() for name, text in files.items()})


@dataclass(frozen=True)
class _Script:
    """A script: its text, or the address that has it and (elsewhere than beside the page) the hash it must have."""

    text: str = ""
    source: str = ""
    integrity: str = ""


def _script(name: str, text: str, assets: Assets, folder: str) -> _Script:
    if assets == "directory":
        return _Script(source=f"{folder}/{name}")
    if assets == "cdn" and name == PLOTLY:
        return _Script(source=PLOTLY_URL, integrity=_hash(text))
    return _Script(text=_unclosed(text))


def _unclosed(script: str) -> str:
    """A script that cannot end its element too early."""
    return re.sub("</(?=script)|<!(?=--)", lambda match: match[0].replace("<", "\\x3c"), script, flags=re.IGNORECASE)


def _hash(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _policy(scripts: Mapping[str, str], assets: Assets) -> str:
    """What the page may load: its own scripts, by their hash, and nothing else from anywhere."""
    here = "'self' file:"
    allowed = [f"'{_hash(_unclosed(text))}'" for text in scripts.values()]
    sources = {"inline": allowed, "cdn": [*allowed, PLOTLY_URL], "directory": [here]}[assets]
    style = f"{here} 'unsafe-inline'" if assets == "directory" else "'unsafe-inline'"
    return (
        f"default-src 'none'; script-src {' '.join(sources)}; style-src {style}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


# --- the templates


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(resource("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["words"] = words  # pyright: ignore[reportUnknownMemberType]
    environment.policies["json.dumps_function"] = dumps
    environment.policies["json.dumps_kwargs"] = {}
    return environment


@cache
def _template_text(name: str) -> str:
    return resource("templates", name).read_text(encoding="utf-8")


@cache
def _vendored(name: str) -> str:
    return resource("templates", "vendor", name).read_text(encoding="utf-8")


def words(text: str) -> Markup:
    """A sentence as HTML: what stands in it between backticks as code, all escaped."""
    pieces = code_spans(text)
    return Markup().join(Markup("<code>{}</code>").format(piece) if is_code else piece for piece, is_code in pieces)


def dumps(value: Any) -> str:
    """JSON for a script: integers that JavaScript cannot hold are texts, what is no number is null."""
    return json.dumps(_exact(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _exact(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _exact(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [_exact(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT:
        return str(value)
    return value
