"""The HTML report in a real browser: it loads from disk without a complaint or a request, draws, sorts, finds, jumps.

`TRACEQL_UPDATE_GOLDEN=1` also renews the pictures in docs/img.
"""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium, find_chromium
from report_pages import GRAPH, HOSTILE, RUN, hostile_file, rendered

from traceql import fmt

pytestmark = pytest.mark.browser

IMAGES = Path(__file__).parents[1] / "docs" / "img"
DRAWN = "document.querySelectorAll('.plot .bars path').length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    path = find_chromium()
    if path is None:
        pytest.fail("Chromium is not installed; Debian has it as chromium-headless-shell")
    chromium = Chromium(path)
    yield chromium
    chromium.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {"graph": [GRAPH], "run": RUN, "hostile": [hostile_file(folder)]}
    files = {name: folder / f"{name}.html" for name in made}
    for name, traces in made.items():
        files[name].write_text(rendered(*traces).html)
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


@pytest.mark.parametrize(
    ("name", "width", "dark", "anchor"),
    [("graph", 1280, False, ""), ("graph", 1280, True, "#layers"), ("run", 390, False, "#ranks")],
)
def test_pictures(browser, pages, name, width, dark, anchor, tmp_path):
    """What docs/report.md shows is what a browser shows, in size at least."""
    height = 900 if width > 600 else 844
    browser.open(pages[name], width=width, height=height, dark=dark, anchor=anchor)
    browser.wait_for(DRAWN)
    file = f"report-{name}-{width}{'-dark' if dark else ''}.png"
    browser.picture(tmp_path / file)
    data = (tmp_path / file).read_bytes()
    if os.environ.get("TRACEQL_UPDATE_GOLDEN") == "1":
        IMAGES.mkdir(exist_ok=True)
        (IMAGES / file).write_bytes(data)
    for picture in (data, (IMAGES / file).read_bytes()):
        assert struct.unpack(">II", picture[16:24]) == (width, height)
        assert len(picture) < 250_000
