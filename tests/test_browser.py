"""The HTML report in a real browser: it loads from disk without a complaint or a request, draws, sorts, finds, jumps.

`TRACEQL_UPDATE_GOLDEN=1` also renews the pictures in docs/img.
"""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium
from report_pages import (
    AFTER_GRAPH,
    GRAPH,
    HOSTILE,
    POOL_RUN,
    RUN,
    compared,
    hostile_diff,
    hostile_file,
    rendered,
    rendered_diff,
)

from traceql import fmt

pytestmark = pytest.mark.browser

IMAGES = Path(__file__).parents[1] / "docs" / "img"
DRAWN = "document.querySelectorAll('.plot .bars path').length"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {"graph": [GRAPH], "run": RUN, "hostile": [hostile_file(folder)]}
    files = {name: folder / f"{name}.html" for name in made}
    for name, traces in made.items():
        files[name].write_text(rendered(*traces).html)
    return files


@pytest.fixture(scope="module")
def diff_pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("diff-pages")
    made = {"graph": compared(GRAPH, AFTER_GRAPH), "run": compared(POOL_RUN, RUN), "hostile": hostile_diff(folder)}
    files = {name: folder / f"{name}.html" for name in made}
    for name, found in made.items():
        files[name].write_text(rendered_diff(found).html)
    return files


def opened(browser: Chromium, page: Path, **look: Any) -> float:
    seconds = browser.open(page, **look)
    browser.wait_for(DRAWN)
    return seconds


def texts(browser: Chromium, selector: str) -> list[str]:
    return browser.ask(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent.trim())")


def text(browser: Chromium, selector: str) -> str:
    return browser.ask(f"document.querySelector({json.dumps(selector)}).textContent.trim()")


def is_seen(browser: Chromium, selector: str) -> bool:
    """Whether an element lies within the window."""
    find = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
    return browser.ask(f"(r => r.bottom > 0 && r.top < innerHeight && r.height > 0)({find})")


# --- loading


@pytest.mark.parametrize("name", ["graph", "run", "hostile"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_loads_quietly_and_draws(browser, pages, name, width):
    seconds = opened(browser, pages[name], width=width)
    assert seconds < 2
    assert browser.complaints() == []
    assert browser.requests() == [pages[name].resolve().as_uri()]
    assert browser.ask("document.documentElement.scrollWidth") == width
    for figure in (".plot .main-svg", ".heat .cells svg", ".whole-step svg", ".lanes svg"):
        size = f"(r => Math.min(r.width, r.height))(document.querySelector('{figure}').getBoundingClientRect())"
        if name != "hostile" or figure != ".heat .cells svg":  # that trace has no layers
            assert browser.ask(size) > 10, figure
    assert browser.ask("document.querySelectorAll('.lanes rect[data-mark]').length") > 5
    bars = "[...document.querySelectorAll('.plot .bars path')].filter(p => p.getBBox().height > 1).length"
    assert browser.ask(bars) > 3


def test_the_bars_are_the_steps(browser, pages):
    opened(browser, pages["graph"])
    n_steps = len(texts(browser, "select.step option"))
    n_categories = len(texts(browser, ".keys button"))
    assert n_steps == 30
    assert browser.ask(DRAWN) == n_steps * n_categories
    fills = browser.ask("[...new Set([...document.querySelectorAll('.plot .bars path')].map(p => p.style.fill))]")
    swatches = browser.ask("[...document.querySelectorAll('.keys i[style]')].map(i => i.style.background)")
    assert set(swatches) <= set(fills)  # a category has one colour


# --- hostile names


def test_hostile_names_do_nothing(browser, pages):
    opened(browser, pages["hostile"])
    assert browser.ask("window.hacked") is None
    assert browser.ask("document.images.length") == 0
    assert browser.ask("document.querySelectorAll('b').length") == browser.ask(
        "document.querySelectorAll('article b, .step-detail b').length"
    )
    browser.click("#kernels .whole")
    names = texts(browser, "#kernels code.name")
    assert {fmt.visible(name) for name in HOSTILE} == set(names)
    for number in range(len(HOSTILE)):
        browser.ask("document.querySelector('.lanes').focus()")
        browser.press("ArrowRight" if number else "ArrowLeft")
        assert text(browser, ".strip .said")
    browser.click(".strip .fold summary")
    browser.wait_for("document.querySelectorAll('.list tbody tr').length")
    assert "<!--<script>" in texts(browser, ".list tbody code")
    assert f"stream {2**53 + 1}" in text(browser, ".strip .said")
    assert browser.ask("window.hacked") is None
    assert browser.complaints() == []


# --- tables


def column(browser: Chromium, number: int) -> list[str]:
    return texts(browser, f"#kernels > .part .sortable tbody tr:not([hidden]) td:nth-child({number})")


def test_a_table_is_sorted_by_a_click(browser, pages):
    opened(browser, pages["graph"])
    shares = column(browser, 2)
    assert len(shares) > 20
    assert [float(each) for each in shares] == sorted((float(each) for each in shares), reverse=True)
    browser.click("#kernels .sortable th:nth-child(4) button")
    lengths = [float(each.replace(",", "")) for each in column(browser, 4)]
    assert lengths == sorted(lengths, reverse=True)
    assert browser.ask("document.querySelector('#kernels th:nth-child(4)').ariaSort") == "descending"
    browser.click("#kernels .sortable th:nth-child(4) button")
    assert [float(each.replace(",", "")) for each in column(browser, 4)] == sorted(lengths)
    browser.click("#kernels .sortable th:nth-child(5) button")
    assert column(browser, 5) == sorted(column(browser, 5))
    assert browser.ask("document.querySelector('#kernels th:nth-child(4)').ariaSort") is None


def test_sizes_and_times_are_sorted_with_their_units(browser, pages):
    opened(browser, pages["graph"])
    titles = texts(browser, "#casts > .part .sortable th")
    place = titles.index("moved") + 1
    browser.click(f"#casts .sortable th:nth-child({place}) button")
    moved = texts(browser, f"#casts .part .sortable tbody tr td:nth-child({place})")
    units = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    known = [float(each.split()[0]) * units[each.split("–")[0].split()[1]] for each in moved if each != "—"]
    assert len(set(known)) > 3
    assert known == sorted(known, reverse=True)
    assert "—" not in moved[: len(known)]  # what is not known comes last


def test_a_table_can_be_searched(browser, pages):
    opened(browser, pages["graph"])
    every = column(browser, 6)
    browser.click("#kernels input[type=search]")
    browser.type("gemm SM90")
    some = column(browser, 6)
    assert 0 < len(some) < len(every)
    assert text(browser, "#kernels output") == f"{len(some)} of {len(every)}"
    assert set(column(browser, 5)) <= {"gemm", "moe_gemm"}


def test_a_whole_name_is_copied(browser, pages):
    opened(browser, pages["graph"])
    browser.ask("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.click("#kernels tbody tr:nth-child(1) button.copy")
    whole = browser.ask("document.querySelector('#kernels tbody tr code').dataset.full")
    assert browser.wait_for("window.copied") == whole
    assert len(whole) > len(text(browser, "#kernels tbody tr code"))
    assert browser.wait_for("document.querySelector('#kernels button.copy').textContent == 'copied'")


# --- jumping


def test_a_finding_leads_to_its_layer(browser, pages):
    opened(browser, pages["graph"])
    link = browser.ask("document.querySelector('.card a[href^=\"#layer-\"]').hash")
    browser.click('.card a[href^="#layer-"]')
    assert text(browser, ".strip .about").startswith(f"layer {link.rsplit('-', 1)[-1]} ")
    browser.wait_for(
        "(r => r.top < innerHeight && r.bottom > 0)(document.querySelector('.strip').getBoundingClientRect())"
    )


def test_a_finding_leads_to_its_step_and_section(browser, pages):
    opened(browser, pages["graph"])
    step = browser.ask("document.querySelector('.card a[href^=\"#step-\"]').hash").removeprefix("#step-")
    browser.click('.card a[href^="#step-"]')
    assert text(browser, ".step-detail b") == f"step {step}"
    browser.click(".card .jumps a:first-child")
    target = browser.ask("document.querySelector('.card .jumps a').hash")
    browser.wait_for(f"location.hash === '{target}'")
    browser.wait_for(
        f"(r => r.top >= -5 && r.top < innerHeight)(document.querySelector('{target}').getBoundingClientRect())"
    )


def test_an_address_with_a_layer_opens_there(browser, pages):
    browser.open(pages["graph"], anchor="#layer-0-12")
    browser.wait_for(DRAWN)
    assert text(browser, ".strip .about").startswith("layer 12 ")


def test_the_contents_lead_to_sections(browser, pages):
    opened(browser, pages["run"])
    links = browser.ask("[...document.querySelectorAll('nav a')].map(a => a.hash)")
    assert links[:3] == ["#findings", "#ranks", "#steps"]
    for link in links:
        browser.ask(f"document.querySelector('nav a[href=\"{link}\"]').click()")
        browser.wait_for(
            f"(r => r.top < innerHeight && r.bottom > 0)(document.querySelector('{link} h2').getBoundingClientRect())"
        )


# --- figures


def test_a_bar_is_chosen_by_a_click(browser, pages):
    opened(browser, pages["graph"])
    browser.ask("document.querySelector('.plot').scrollIntoView({block: 'center', behavior: 'instant'})")
    bar = "document.querySelectorAll('.plot .bars .point')[7].getBoundingClientRect()"  # of the first category
    browser.click_at(*browser.ask(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({bar})"))
    browser.wait_for("document.querySelector('.step-detail b').textContent == 'step 7'")
    rows = texts(browser, ".step-detail td:nth-child(2)")
    amounts = [float(row.removesuffix(" ms").replace(",", "")) for row in rows]
    assert amounts == sorted(amounts, reverse=True)
    wall = float(text(browser, ".step-detail p").split(": ")[1].split(" ms")[0])
    assert sum(amounts) == pytest.approx(wall, abs=0.02)


def test_steps_are_chosen_by_keyboard(browser, pages):
    opened(browser, pages["graph"])
    browser.ask("document.querySelector('.bars .next').focus()")
    before = text(browser, ".step-detail b")
    browser.press("Enter")
    after = text(browser, ".step-detail b")
    assert after != before


def test_a_category_can_be_hidden(browser, pages):
    opened(browser, pages["graph"])
    before = browser.ask(DRAWN)
    browser.click('.keys button[data-name="cast"]')
    browser.wait_for(f"{DRAWN} === {before - 30}")
    assert browser.ask("document.querySelector('.keys button[data-name=cast]').ariaPressed") == "false"
    browser.click('.keys button[data-name="cast"]')
    browser.wait_for(f"{DRAWN} === {before}")


def test_another_rank_can_be_chosen(browser, pages):
    opened(browser, pages["run"])
    before = text(browser, ".step-detail p")
    browser.ask(
        "(s => { s.value = '1'; s.dispatchEvent(new Event('change')); })(document.querySelector('select.place'))"
    )
    assert text(browser, ".step-detail p") != before
    assert browser.complaints() == []


def test_a_heat_map_by_keyboard_and_mouse(browser, pages):
    opened(browser, pages["graph"])
    browser.ask("document.querySelector('#layers .map').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        browser.press(key)
    second = text(browser, "#layers .map tbody tr:nth-child(2) th")
    assert text(browser, "#layers .said").startswith(f"layer 2, {second}: ")
    browser.press("Enter")
    assert text(browser, ".strip .about").startswith("layer 2 ")
    browser.ask("document.querySelector('#layers .map').scrollIntoView({block: 'center', behavior: 'instant'})")
    box = browser.ask(
        "(r => [r.x, r.y, r.width, r.height])(document.querySelector('#layers .cells svg').getBoundingClientRect())"
    )
    browser.click_at(box[0] + box[2] * 40.5 / 78, box[1] + box[3] / 2)
    assert text(browser, "#layers .said").startswith("layer 40, cast: 0.8")
    assert text(browser, ".strip .about").startswith("layer 40 ")


def test_the_strip_by_keyboard_and_mouse(browser, pages):
    opened(browser, pages["graph"])
    browser.click(".strip .next")
    first = text(browser, ".strip .about")
    browser.click(".strip .next")
    assert text(browser, ".strip .about") != first
    browser.ask("document.querySelector('.lanes').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    said = text(browser, ".strip .said")
    assert said.endswith(tuple(f"stream {n}" for n in range(10_000)))
    assert browser.ask("document.querySelectorAll('.lanes rect.on').length") == 1
    browser.click(".whole-step g:nth-of-type(5) .edge")
    assert text(browser, ".strip .about") != first


def test_everything_is_reached_with_tab(browser, pages):
    opened(browser, pages["graph"])
    kinds: set[str] = set()
    for _ in range(160):
        browser.press("Tab")
        kinds.add(browser.ask("(e => e.className || e.tagName.toLowerCase())(document.activeElement)"))
    assert {"skip", "a", "button", "summary", "scroll", "step", "map", "lanes", "part-choice", "next"} <= kinds


# --- looks


def test_dark_and_light(browser, pages):
    colors: dict[bool, Any] = {}
    look = "[getComputedStyle(document.body).backgroundColor, document.querySelector('.plot .xtick text').style.fill]"
    for dark in (False, True):
        opened(browser, pages["graph"], dark=dark)
        colors[dark] = browser.ask(look)
    assert colors[False][0] == "rgb(255, 255, 255)"
    assert colors[True][0] == "rgb(20, 23, 27)"
    assert colors[True][1] != colors[False][1]
    browser.look(1280, dark=False)
    browser.wait_for(f"JSON.stringify({look}) === '{json.dumps(colors[False], separators=(',', ':'))}'")


def test_print(browser, pages):
    opened(browser, pages["graph"], dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask("getComputedStyle(document.querySelector('.table .scroll')).maxHeight") == "none"
    browser.call("Emulation.setEmulatedMedia", media="")


def test_without_the_library_the_rest_works(browser, tmp_path):
    """`--assets cdn` where there is no network: the bars say so, and steps can still be chosen."""
    page = tmp_path / "page.html"
    page.write_text(rendered(GRAPH, assets="cdn").html)
    browser.call("Network.setBlockedURLs", urls=["*cdn*"])
    browser.open(page)
    browser.call("Network.setBlockedURLs", urls=[])
    assert "could not be loaded" in text(browser, ".plot")
    assert "cast" in texts(browser, ".step-detail td:first-child")
    assert browser.ask("document.querySelectorAll('.lanes rect[data-mark]').length") > 5


def test_assets_beside_the_page(browser, tmp_path):
    made = rendered(RUN[0], assets="directory")
    (tmp_path / "page_assets").mkdir()
    for name, data in made.files.items():
        (tmp_path / "page_assets" / name).write_bytes(data)
    page = tmp_path / "page.html"
    page.write_text(made.html)
    opened(browser, page)
    assert browser.complaints() == []
    assert {url.rsplit("/", 1)[-1] for url in browser.requests()} == {"page.html", *made.files}


# --- the page of a comparison


@pytest.mark.parametrize("name", ["graph", "run", "hostile"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_comparison_loads_quietly_and_draws(browser, diff_pages, name, width):
    assert browser.open(diff_pages[name], width=width) < 2
    assert browser.complaints() == []
    assert browser.requests() == [diff_pages[name].resolve().as_uri()]
    assert browser.ask("document.documentElement.scrollWidth") == width
    assert is_seen(browser, ".tiles .verdict .value")
    size = "(r => Math.min(r.width, r.height))(document.querySelector('{}').getBoundingClientRect())"
    for figure in (".spans .track", ".spans .track i", ".dots .lane svg"):
        assert browser.ask(size.format(figure)) > 10, figure
    n_dots = browser.ask("document.querySelector('.dots .marks').getAttribute('d').split('M').length - 1")
    assert n_dots == {"graph": 29, "run": 2, "hostile": 9}[name]
    shades = browser.ask("document.querySelectorAll('.deltas td[class*=less]').length")
    assert shades > 3 or name == "hostile"  # that trace has no layers


def test_the_bars_of_the_waterfall_meet(browser, diff_pages):
    browser.open(diff_pages["graph"])
    bars = browser.ask(
        "[...document.querySelectorAll('.spans')[0].querySelectorAll('.track i')].map(i => "
        "(r => [i.className, r.left, r.right])(i.getBoundingClientRect()))"
    )
    assert bars[0][0] == bars[-1][0] == "whole"
    at = bars[0][2]
    for tone, left, right in bars[1:-1]:
        begin, end = (right, left) if tone == "less" else (left, right)
        assert begin == pytest.approx(at, abs=2.1)  # what is shorter than two pixels is drawn as two
        at = end
    assert bars[-1][2] == pytest.approx(at, abs=2.1)


def diff_column(browser: Chromium, number: int) -> list[str]:
    return texts(browser, f"#kernels tbody tr:not([hidden]) td:nth-child({number})")


def test_changes_are_sorted_with_their_signs(browser, diff_pages):
    browser.open(diff_pages["graph"])
    browser.click("#kernels th:nth-child(1) button")
    changes = [float(each.replace("−", "-").replace(",", "")) for each in diff_column(browser, 1)]
    assert changes == sorted(changes, reverse=True)
    assert changes[0] > 0 > changes[-1]
    browser.click("#kernels th:nth-child(5) button")
    calls = diff_column(browser, 5)
    known = [float(each.split(" ")[0].replace(",", "")) for each in calls if not each.startswith("—")]
    assert known == sorted(known, reverse=True)
    assert calls[-1].startswith("—")  # a new kernel had no length before


def test_gone_kernels_are_found(browser, diff_pages):
    browser.open(diff_pages["graph"])
    browser.click("#kernels input[type=search]")
    browser.type("gone")
    assert diff_column(browser, 6) == ["gone"]
    assert text(browser, "#kernels output") == "1 of 43"


def test_steps_as_dots_by_keyboard_and_mouse(browser, diff_pages):
    browser.open(diff_pages["graph"])
    browser.ask("document.querySelector('.dots .map').focus()")
    browser.press("ArrowRight")
    assert text(browser, ".dots .said").startswith("before, step 0: ")
    for key in ("ArrowRight", "ArrowDown"):
        browser.press(key)
    assert text(browser, ".dots .said").startswith("after, step 1: ")
    assert browser.ask("document.querySelectorAll('.dots .on').length") == 1
    browser.ask("document.querySelector('.dots .map').scrollIntoView({block: 'center', behavior: 'instant'})")
    place = browser.ask("JSON.parse(document.querySelector('.dots script').textContent)[0][17]")
    box = browser.ask(
        "(r => [r.x, r.y, r.width, r.height])(document.querySelector('.dots .lane svg').getBoundingClientRect())"
    )
    browser.click_at(box[0] + box[2] * place[1] / 1000, box[1] + box[3] * place[2] / 100)
    assert text(browser, ".dots .said") == f"before, step {place[0]}: {place[3]}"


def test_hostile_names_in_a_comparison_do_nothing(browser, diff_pages):
    browser.open(diff_pages["hostile"])
    browser.click("#kernels .whole")
    assert {fmt.visible(name) for name in HOSTILE} <= set(texts(browser, "#kernels code.name"))
    browser.ask("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert browser.ask("window.hacked") is None
    assert browser.ask("document.images.length + document.querySelectorAll('main b').length") == 0
    assert browser.complaints() == []
    assert browser.requests() == [diff_pages["hostile"].resolve().as_uri()]


def test_a_comparison_is_reached_with_tab(browser, diff_pages):
    browser.open(diff_pages["run"])
    kinds: set[str] = set()
    for _ in range(120):
        browser.press("Tab")
        kinds.add(browser.ask("(e => e.className || e.tagName.toLowerCase())(document.activeElement)"))
    assert {"skip", "a", "button", "summary", "scroll", "map", "input", "copy"} <= kinds
    assert browser.ask("[...document.querySelectorAll('th button')].every(each => each.textContent.trim())")


# How the text of a cell of some class stands out from its ground (WCAG 2: 4.5 is asked for).
CONTRAST = """
(name => {
  const cell = document.createElement('td');
  cell.className = name;
  document.querySelector('.deltas tr').append(cell);
  const linear = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).map(Number).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(cell);
  const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => y - x);
  cell.remove();
  return (a + 0.05) / (b + 0.05);
})
"""


@pytest.mark.parametrize("dark", [False, True])
def test_figures_can_be_read_on_every_shade(browser, diff_pages, dark):
    browser.open(diff_pages["graph"], dark=dark)
    for name in (f"{tone}{level}" for tone in ("less", "more") for level in range(1, 6)):
        assert browser.ask(f"{CONTRAST.strip()}('{name}')") > 4.5, name
    colors = browser.ask(
        "['.track .less', '.track .more'].map(e => getComputedStyle(document.querySelector(e)).backgroundColor)"
    )
    assert len(set(colors)) == 2


def test_a_comparison_in_print(browser, diff_pages):
    browser.open(diff_pages["graph"], dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask("getComputedStyle(document.querySelector('.track .less')).printColorAdjust") == "exact"
    browser.call("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize(
    ("name", "width", "dark", "anchor"),
    [("graph", 1280, False, ""), ("graph", 1280, True, "#steps"), ("run", 390, False, "")],
)
def test_pictures_of_comparisons(browser, diff_pages, name, width, dark, anchor, tmp_path):
    """As `test_pictures`."""
    height = 900 if width > 600 else 844
    browser.open(diff_pages[name], width=width, height=height, dark=dark, anchor=anchor)
    check_picture(browser, f"report-diff-{name}-{width}{'-dark' if dark else ''}.png", width, height, tmp_path)


@pytest.mark.parametrize(
    ("name", "width", "dark", "anchor"),
    [("graph", 1280, False, ""), ("graph", 1280, True, "#layers"), ("run", 390, False, "#ranks")],
)
def test_pictures(browser, pages, name, width, dark, anchor, tmp_path):
    """What docs/report.md shows is what a browser shows, in size at least."""
    height = 900 if width > 600 else 844
    browser.open(pages[name], width=width, height=height, dark=dark, anchor=anchor)
    browser.wait_for(DRAWN)
    check_picture(browser, f"report-{name}-{width}{'-dark' if dark else ''}.png", width, height, tmp_path)


def check_picture(browser: Chromium, file: str, width: int, height: int, tmp_path: Path) -> None:
    """Takes it, keeps it where golden files are renewed, and compares sizes."""
    browser.picture(tmp_path / file)
    data = (tmp_path / file).read_bytes()
    if os.environ.get("TRACEQL_UPDATE_GOLDEN") == "1":
        IMAGES.mkdir(exist_ok=True)
        (IMAGES / file).write_bytes(data)
    for picture in (data, (IMAGES / file).read_bytes()):
        assert struct.unpack(">II", picture[16:24]) == (width, height)
        assert len(picture) < 250_000
