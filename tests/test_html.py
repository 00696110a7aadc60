"""The HTML report: what stands on the page, that it asks nobody for anything, and that no name can do harm."""

import base64
import hashlib
import json
import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from conftest import FIXTURES
from hypothesis import given
from hypothesis import strategies as st
from report_pages import BIG, GRAPH, HOSTILE, LONG, NO_STEPS, RUN, hostile_file, loaded, rendered
from test_cli import golden

from traceql import analyses, fmt
from traceql.analyses.layer_stats import layer_stats
from traceql.analyses.step_windows import STEPS
from traceql.cli.report import command, default_output
from traceql.errors import OutputError
from traceql.report.figures import heat, strip
from traceql.report.figures.bars import StepBars, step_bars
from traceql.report.figures.palette import palette
from traceql.report.figures.strip import MAX_NAME, Strip, layer_strip
from traceql.report.html import PLOTLY, Card, Cards, HtmlPage, PageSection, Text, dumps, render_html, words
from traceql.report.maps import Grid
from traceql.report.page import Column, Section, TextTable
from traceql.report.trace_material import Material
from traceql.report.trace_page import SECTIONS, TITLES, trace_page
from traceql.rules import built_in_rules
from traceql.trace import Trace

ADDRESSES = ("src", "href", "action", "data", "poster", "srcset", "formaction", "background")


class Page(HTMLParser):
    """A page as a parser sees it: its elements with their attributes, and their texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.text = ""
        self._inside: list[tuple[str, dict[str, str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = (tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        self._inside = [element]

    def handle_data(self, data: str) -> None:
        tag, attributes = self._inside[0] if self._inside else ("", {})
        if tag == "script":
            self.scripts.append((attributes, data))
        elif tag != "style":
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = []

    def all(self, attribute: str) -> list[str]:
        """The values of an attribute, of all elements that have it."""
        return [attributes[attribute] for _, attributes in self.elements if attribute in attributes]

    def data(self) -> list[Any]:
        """The data of the figures."""
        return [json.loads(text) for attributes, text in self.scripts if attributes.get("type") == "application/json"]


@pytest.fixture(scope="module")
def graph_page() -> str:
    return rendered(GRAPH).html


@pytest.fixture(scope="module")
def run_page() -> str:
    return rendered(*RUN).html


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return rendered(hostile_file(tmp_path_factory.mktemp("hostile"))).html


@pytest.fixture(scope="module")
def graph_trace() -> Trace:
    return loaded(GRAPH)


# --- the page as a whole


def check_links(page: Page) -> None:
    """Every link within the page leads somewhere, and every id is there once."""
    ids = Counter(page.all("id"))
    assert max(ids.values()) == 1
    parts = {part["id"] for data in page.data() if "parts" in data for part in data["parts"]}
    steps = {n for data in page.data() if "places" in data for bar in data["places"][0]["bars"]
             for n in range(bar["first"], bar["last"] + 1)}  # fmt: skip
    known = {*ids, *parts, *(f"step-{step}" for step in steps)}
    links = [link for link in page.all("href") if link.startswith("#")]
    assert links
    assert {link[1:] for link in links} <= known


def check_alone(html: str) -> None:
    """The page asks nobody for anything, and no script runs but those whose hash its policy names."""
    page = Page(html)
    for tag, attributes in page.elements:
        loads = [attributes[name] for name in ADDRESSES if name in attributes]
        assert tag not in ("img", "iframe", "object", "embed", "base", "form", "audio", "video", "frame")
        assert not [name for name in attributes if name.startswith("on")]
        assert tag == "a" or all(link == "data:," or link.startswith("#") for link in loads), (tag, loads)
    (policy,) = [content for content in page.all("content") if "script-src" in content]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    ours = [text for attributes, text in page.scripts if not attributes]
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in ours}
    assert hashes == set(rules["script-src"].split())
    assert not re.search(r"url\(|@import", "".join(re.findall("<style>(.*?)</style>", html, re.DOTALL)))


@pytest.mark.parametrize("page", ["graph_page", "run_page", "hostile_page"])
def test_a_page_stands_alone(page, request):
    html = request.getfixturevalue(page)
    check_alone(html)
    check_links(Page(html))


def test_the_sections_in_order(graph_page):
    page = Page(graph_page)
    headings = [attributes["id"] for tag, attributes in page.elements if tag == "h2"]
    assert headings == [f"{name}-title" for name in TITLES if name != "ranks"]
    assert [link for link in page.all("href") if link.startswith("#")][1 : len(headings) + 1] == [
        f"#{name.removesuffix('-title')}" for name in headings
    ]


def test_the_head_says_what_matters(graph_page):
    text = Page(graph_page).text
    assert "decode step 84.025 ms (median of 29 complete steps, batch 8)" in text
    assert "11.9" in text.split("Findings")[0]  # tokens/s of each sequence: 1000 / 84.025
    assert "batch 8: 95 in all" in text
    assert "GPU-bound" in text.split("Findings")[0]
    assert "whole-pool-kv-cast" in text


def test_a_run_has_ranks(run_page):
    page = Page(run_page)
    assert "ranks-title" in page.all("id")
    assert "Rank by rank" in page.text
    assert re.search(r'class="right s[1-9]"', run_page)
    assert [place["label"] for data in page.data() if "places" in data for place in data["places"]] == [
        "rank 0, device 0",
        "rank 1, device 1",
    ]


def test_the_size(graph_page):
    assert 1_190_000 < len(graph_page.encode()) < 1_800_000  # the plotting library is 1.19 MB of it


@pytest.mark.shared
def test_the_size_and_time_of_the_largest(shared, tmp_path):
    """640 MB of JSON, two million events: the page is below 6 MB."""
    html = rendered(shared / "glm5" / "glm5-pool-eager-stack-TP-0.json.zst").html
    assert len(html.encode()) < 6_000_000
    check_alone(html)
    (shown,) = [data for data in Page(html).data() if "parts" in data]
    assert len([part for part in shown["parts"] if part["id"].startswith("layer-")]) == 78
    assert sum(len(part["kernels"]) for part in shown["parts"]) == 4256


@pytest.mark.shared
def test_every_trace_has_a_page(shared):
    files = [path for path in sorted(shared.glob("*/**/*.json*")) if path.stat().st_size < 1_000_000]
    assert len(files) > 60
    for path in files:
        page = rendered(path).html
        check_alone(page)
        check_links(Page(page))


# --- what was not recorded


ODD = (
    "06-truncated", "09-integers-over-2-53", "12-zero-length-kernel", "21-no-profiler-step", "28-orphan-gpu-ops",
    "31-empty-events", "33-merged-ranks", "41-large-stream-ids", "42-two-devices", "62-lone-surrogate",
    "65-kernel-without-duration", "71-no-kernels",
)  # fmt: skip
"""Cases that leave out, or hold too much of, what a section shows."""


@pytest.mark.parametrize("name", ODD)
def test_an_odd_trace_has_a_page(name):
    html = rendered(FIXTURES / "cases" / f"{name}.json").html
    check_alone(html)
    check_links(Page(html))


@pytest.mark.slow
def test_every_odd_trace_has_a_page():
    paths = sorted((FIXTURES / "cases").glob("[1-7]*-*.json"))
    assert len(paths) > 50
    for path in paths:
        html = rendered(path).html
        check_alone(html)
        check_links(Page(html))


def test_without_gpu_activity():
    html = rendered(FIXTURES / "cases" / "31-metadata-only.json").html
    page = Page(html)
    assert "No GPU activity" in page.text or "Nothing was recorded" in page.text
    assert "kernels-title" not in page.all("id")
    assert len(html) < 100_000  # nothing to draw: no plotting library


def test_without_steps(tmp_path):
    html = rendered(FIXTURES / "cases" / "42-two-devices.json").html
    text = Page(html).text
    assert "the trace is taken as one window a device" in text or "No step has a window" in text
    assert "layers-title" in Page(html).all("id")


def test_each_section_of_a_trace_without_step_marks():
    """Steps are found by repetition there; the page has all that one with marks has."""
    material = Material.of(loaded(NO_STEPS))
    found = [maker(material) for maker in SECTIONS]
    assert {section.anchor for section in found if section} == set(TITLES) - {"ranks"}


# --- names are hostile


def test_hostile_names_are_text(hostile_page):
    page = Page(hostile_page)
    whole = page.all("data-full")
    for name in HOSTILE:
        assert fmt.visible(name) in whole
    assert LONG in whole
    assert {tag for tag, _ in page.elements} <= {
        "html", "head", "meta", "title", "link", "style", "body", "a", "header", "h1", "p", "dl", "div", "dt", "dd",
        "nav", "ul", "li", "main", "section", "h2", "h3", "article", "span", "b", "details", "summary", "table",
        "thead", "tbody", "tfoot", "tr", "th", "td", "code", "button", "i", "label", "input", "output", "figure",
        "figcaption", "select", "option", "noscript", "script", "svg", "path", "footer",
    }  # fmt: skip


def test_hostile_names_in_data_of_scripts(hostile_page):
    (shown,) = [data for data in Page(hostile_page).data() if "parts" in data]
    assert shown["streams"] == [str(BIG)]
    names = {name for name, _ in shown["names"]}
    assert all(len(name) <= MAX_NAME for name in names)
    raw = "".join(re.findall('<script type="application/json">(.*?)</script>', hostile_page, re.DOTALL))
    assert not re.search("[<>&]", raw)


def test_a_hostile_title():
    html = render_html(replace(a_page(), title="</title><script>x</script>")).html
    check_alone(html)
    assert "&lt;/title&gt;&lt;script&gt;x&lt;/script&gt;" in html


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see `traceql idle`, `a<b>`", "see <code>traceql idle</code>, <code>a&lt;b&gt;</code>"),
        ("`?`: <i>", "<code>?</code>: &lt;i&gt;"),
        ("a ` alone", "a ` alone"),
        ("an empty `` one", "an empty `` one"),
        ("<script>", "&lt;script&gt;"),
    ],
)
def test_what_is_to_be_typed_is_code(text, shown):
    assert words(text) == shown


def test_only_web_addresses_are_links(tmp_path):
    """The links of a rule of one's own; a rule's texts are as little to be trusted as names."""
    links = ["javascript:alert(1)", "https://example.invalid/why", "<b>docs</b>"]
    rule = replace(built_in_rules()[0], links=tuple(links), table="steps", when="step >= 0", message="<b>", needs=())
    material = Material.of(loaded(RUN[0]), rules=[replace(rule, group_by=(), cost=None, order_by=None, saving=None)])
    html = render_html(trace_page(material)).html
    check_alone(html)
    assert [link for link in Page(html).all("href") if not link.startswith("#")] == ["data:,", links[1]]
    assert "&lt;b&gt;docs&lt;/b&gt;" in html


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**53, str(2**53)),
        (2**53 + 1, f'"{2**53 + 1}"'),
        (-(2**60), f'"-{2**60}"'),
        (True, "true"),
        (math.nan, "null"),
        ({"a": (math.inf, 1.5, None)}, '{"a":[null,1.5,null]}'),
    ],
)
def test_numbers_for_scripts(value, text):
    assert dumps(value) == text


# --- tables, as accepted


def a_page(*sections: PageSection) -> HtmlPage:
    return HtmlPage("a title", ("line",), (), sections, "now", {"gemm": "#0072B2"})


def main_of(html: str) -> str:
    found = re.search('<main id="main">(.*?)</main>', html, re.DOTALL)
    assert found
    return re.sub(r"\n\s*\n+", "\n", found[1]).strip() + "\n"


def test_a_table_is_as_accepted():
    columns = (Column("ms", "right"), Column("category", drop=1), Column("kernel", fit="middle", is_code=True, drop=2))
    rows = (("1.5", "gemm", "a<b>"), ("—", "a<b", "c"), ("2", "", ""))
    section = Section("Title <i>", ("A line & more.",), TextTable(columns, rows, 1), ("A note.",), is_warning=True)
    block = Text(section, full_names=("whole a<b>", "whole c"), levels=((9, 0, 0), (0, 0, 0)))
    folded = Text(Section("Folded", ("A line.",)), is_folded=True)
    golden("report-table.html", main_of(render_html(a_page(PageSection("here", "Here", (block, folded)))).html))


def test_a_card_is_as_accepted():
    evidence = Section("Evidence", table=TextTable((Column("step", "right"),), (("3",),)))
    card = Card(
        "critical", "a-rule", "1.5 ms a step (10.0 %)", "It is <wrong>.", "Because & so.", "Do it.", "Seen in 1 row.",
        "casts", "Casts and copies", (3,), (0, 7), evidence, ("https://example.invalid/", "see <here>"),
    )  # fmt: skip
    golden("report-card.html", main_of(render_html(a_page(PageSection("here", "Here", (Cards((card,)),)))).html))


def test_the_tables_of_a_trace_are_as_accepted(graph_trace):
    page = trace_page(Material.of(graph_trace))
    kept = [section for section in page.sections if section.anchor in ("categories", "casts")]
    golden("report-tables.html", main_of(render_html(a_page(*kept)).html))


def test_long_tables_can_be_searched():
    def tools(n: int) -> bool:
        table = TextTable((Column("a"),), (("x",),) * n)
        html = render_html(a_page(PageSection("here", "Here", (Text(Section(table=table)),)))).html
        return 'type="search"' in main_of(html)

    assert not tools(8)
    assert tools(9)


# --- figures


def bars_of(trace: Trace) -> StepBars:
    colors = palette(trace.categories.categories)
    found = step_bars(analyses.steps(trace), analyses.step_categories(trace), colors)
    assert found
    return found


def test_bars_add_up_to_the_wall(graph_trace):
    (place,) = bars_of(graph_trace).places
    walls = analyses.steps(graph_trace)["wall_ns"].to_list()
    for number, (bar, wall) in enumerate(zip(place["bars"], walls, strict=True)):
        assert sum(trace["y"][number] for trace in place["data"]) == pytest.approx(wall / 1e6, abs=1e-3)
        assert bar["wall"] == pytest.approx(wall / 1e6, abs=1e-4)
    colors = {category.name: category.color for category in graph_trace.categories.categories}
    assert all(t["marker"] == ({"color": colors[t["meta"]]} if t["meta"] != "idle" else {}) for t in place["data"])


def many_steps(n: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    number = pl.int_range(n, dtype=pl.Int64, eager=True)
    row = {**dict.fromkeys(STEPS.names), "rank": 0, "device": 0, "stage": "decode", "batch_size": 4, "method": "x",
           "label": "", "kernel_ns": 0, "n_kernels": 1, "n_kernels_between": 0, "is_complete": True,
           "separable": True, "confidence": 1.0}  # fmt: skip
    steps = pl.DataFrame([row] * n, schema=STEPS.schema).with_columns(
        step=number, start_ns=number * 1000, wall_ns=1_000_000 + number * 1000, busy_ns=600_000 + number * 1000,
        idle_ns=pl.lit(400_000, pl.Int64),
    )  # fmt: skip
    times = steps.select("rank", "device", "step", category=pl.lit("gemm"), exclusive_ns="busy_ns")
    return steps, times


@pytest.mark.parametrize(("n", "per_bar", "n_bars"), [(200, 1, 200), (201, 2, 101), (1001, 6, 167)])
def test_many_steps_are_taken_together(n, per_bar, n_bars):
    steps, times = many_steps(n)
    found = step_bars(steps, times, {"gemm": "#0072B2"})
    assert found
    (place,) = found.places
    assert (found.per_bar, len(place["bars"])) == (per_bar, n_bars)
    assert [trace["meta"] for trace in place["data"]] == ["gemm", "idle"]
    assert place["bars"][-1]["last"] == n - 1
    for number, bar in enumerate(place["bars"]):
        covered = range(bar["first"], bar["last"] + 1)
        assert place["data"][0]["y"][number] == pytest.approx(0.6 + sum(covered) / len(covered) / 1000, abs=1e-4)
        assert sum(trace["y"][number] for trace in place["data"]) == pytest.approx(bar["wall"], abs=1e-3)


def test_no_step_no_bars():
    assert step_bars(STEPS.empty(), many_steps(1)[1], {}) is None


def test_the_map_of_layers(graph_trace):
    stats = layer_stats(graph_trace)
    (found,) = heat.layer_maps(stats, palette(graph_trace.categories.categories))
    assert found.columns == tuple(str(layer) for layer in range(78))
    assert found.rows[0].label == "cast"
    assert found.rows[0].color == "#D55E00"
    of_cast = stats.categories.filter(category="cast", section="layer")
    assert found.rows[0].total == fmt.ms(float(of_cast["exclusive_ns_per_step"].sum()))
    assert [float(value) for value in found.rows[0].values] == pytest.approx(
        (of_cast.sort("layer")["exclusive_ns_per_step"] / 1e6).to_list(), abs=5e-4
    )
    assert [row.label for row in found.rows[-found.n_totals :]] == ["idle", "all"]
    busy = sum(float(row.total) for row in found.rows[: -found.n_totals])
    assert busy + float(found.rows[-2].total) == pytest.approx(float(found.rows[-1].total), abs=0.02)


def test_many_layers_share_cells():
    grid = Grid(500, heat.MAX_CELLS)
    assert grid.per_cell == 3
    assert grid.labels[0] == "0 to 2"
    assert grid.labels[-1] == "498 to 499"
    times = pl.DataFrame({"layer": list(range(500)), "ns": [float(layer) for layer in range(500)]})
    assert grid.means(times)[0] == 1
    assert grid.means(times)[-1] == 498.5


@given(st.lists(st.integers(0, 9), max_size=60))
def test_paths_cover_the_cells(levels):
    cells = [0] * len(levels)
    for level, path in heat.level_paths(levels):
        for start, width, back in re.findall(r"M(\d+) 0h(\d+)v1h-(\d+)z", path):
            assert width == back
            for cell in range(int(start), int(start) + int(width)):
                assert cells[cell] == 0
                cells[cell] = level
    assert cells == levels


@given(st.floats(0, 1e12, allow_nan=False), st.floats(1e-3, 1e12, allow_nan=False))
def test_levels_grow_with_values(value, top):
    found = heat.level(value, top)
    assert 0 <= found <= heat.LEVELS
    assert (found == 0) == (value == 0)
    assert found <= heat.level(value * 2, top)
    assert heat.level(top, top) == heat.LEVELS


@pytest.mark.parametrize(
    ("column", "levels"), [([10, 10], [0, 0]), ([1, 10], [0, 8]), ([None, 5.0], [0, 0]), ([], []), ([0, 0], [0, 0])]
)
def test_ranks_are_shaded_by_what_they_have_more(column, levels):
    assert heat.spread_levels(column) == levels


def strip_of(trace: Trace) -> Strip:
    stats = layer_stats(trace)
    found = layer_strip(trace, stats, analyses.steps(trace), palette(trace.categories.categories))
    assert found
    return found


def test_the_strip_has_every_kernel_of_its_step(graph_trace):
    data = strip_of(graph_trace).data
    step = analyses.steps(graph_trace).filter(pl.col("is_complete")).sort("wall_ns", "step").row(14, named=True)
    assert data["wall"] == step["wall_ns"]
    assert sum(len(part["kernels"]) for part in data["parts"]) == step["n_kernels"]
    assert sum(mark[1] for part in data["parts"] for mark in part["kernels"]) == step["kernel_ns"]
    assert [part["at"] for part in data["parts"]] == sorted(part["at"] for part in data["parts"])
    layers = [part for part in data["parts"] if part["id"].startswith("layer-0-")]
    assert len(layers) == 78
    assert all(sum(share for _, share in part["mix"]) <= 1.001 for part in data["parts"])


def test_the_strip_keeps_the_longest(graph_trace, monkeypatch):
    whole = {part["id"]: part for part in strip_of(graph_trace).data["parts"]}
    monkeypatch.setattr(strip, "MAX_MARKS", 21)
    for part in strip_of(graph_trace).data["parts"]:
        every = whole[part["id"]]["kernels"]
        assert len(part["kernels"]) == min(len(every), 21)
        assert part["hidden"] == len(every) - len(part["kernels"])
        longest = sorted((mark[1] for mark in every), reverse=True)[:21]
        assert sorted((mark[1] for mark in part["kernels"]), reverse=True) == longest
        assert part["kernels"] == sorted(part["kernels"], key=lambda mark: mark[0])


def test_waiting_by_rank_and_step():
    rows = {"rank": [0, 0, 0, 1, 1], "step": [0, 0, 1, 0, None], "waiting_ns": [1_000_000, 500_000, 0, None, 7]}
    found = heat.waiting_map(pl.DataFrame(rows), [0, 1])
    assert isinstance(found, heat.HeatMap)
    assert [(row.label, row.values) for row in found.rows] == [
        ("rank 0", ("1.500", "0.000")),
        ("rank 1", ("0.000", "0.000")),
    ]
    assert heat.waiting_map(pl.DataFrame({**rows, "waiting_ns": [0] * 5}), [0, 1]) is None


# --- the command


def run(*args: Any) -> Any:
    return CliRunner().invoke(command, [str(arg) for arg in args], catch_exceptions=False)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["trace.json.gz"], "trace.html"),
        (["a.trace.json.zst"], "a.html"),
        (["x.pt.trace.json"], "x.html"),
        (["run"], "run.html"),
        (["t-0.json", "t-1.json"], "t-0-run.html"),
        (["-"], "report.html"),
        (["TP-*.json"], "TP.html"),
    ],
)
def test_the_name_of_the_page(names, expected):
    assert default_output(tuple(Path(name) for name in names)) == Path(expected)


def test_the_command_writes_a_page(tmp_path):
    page = tmp_path / "page.html"
    result = run(RUN[0], "-o", page, "--title", "Mine", "--no-cache")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == f"wrote {page} ({fmt.size(page.stat().st_size)})\n"
    assert "<title>Mine</title>" in page.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_what_is_there_stays(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        run(RUN[0], "-o", page, "--no-cache")
    assert page.read_text() == "mine"
    run(RUN[0], "-o", page, "--no-cache", "--force")
    assert page.read_text().startswith("<!doctype html>")


def test_assets_in_a_folder(tmp_path):
    page = tmp_path / "page.html"
    run(RUN[0], "-o", page, "--no-cache", "--assets", "directory")
    assert {path.name for path in (tmp_path / "page_assets").iterdir()} == {PLOTLY, "app.js", "style.css"}
    assert len(page.read_bytes()) < 400_000
    page.unlink()
    with pytest.raises(OutputError, match="page_assets exists"):
        run(RUN[0], "-o", page, "--no-cache", "--assets", "directory")
    assert not page.exists()


def test_the_library_from_elsewhere_has_its_hash():
    html = rendered(RUN[0], assets="cdn").html
    (source,) = [attributes for tag, attributes in Page(html).elements if tag == "script" and "src" in attributes]
    ours = (FIXTURES.parents[1] / "templates" / "vendor" / PLOTLY).read_bytes()
    assert source["integrity"] == f"sha256-{base64.b64encode(hashlib.sha256(ours).digest()).decode()}"
    version = re.search(rb"plotly.js \(basic - minified\) v([\d.]+)", ours[:200])
    assert version
    assert f"@{version[1].decode()}/" in source["src"]


def test_steps_can_be_selected(tmp_path):
    page = tmp_path / "page.html"
    run(RUN[0], "-o", page, "--no-cache", "--steps", "1:")
    (bars,) = [data for data in Page(page.read_text()).data() if "places" in data]
    assert [bar["first"] for bar in bars["places"][0]["bars"]] == [1, 2]
