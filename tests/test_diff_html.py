"""The HTML page of a comparison: what it says first, that its figures add up, and that no name can do harm."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from report_pages import (
    AFTER_GRAPH,
    GRAPH,
    HOSTILE,
    LONG,
    POOL_RUN,
    RUN,
    compared,
    hostile_diff,
    hostile_file,
    rendered_diff,
)  # fmt: skip
from test_html import Page, check_alone, check_links

from traceql import fmt
from traceql.analyses.diff import Diff, diff
from traceql.analyses.diff_gates import Gate, judged
from traceql.analyses.diff_sides import Side
from traceql.analyses.diff_tables import COLLECTIVE_CHANGES, REPLACEMENTS
from traceql.analyses.recording import Recording
from traceql.categories import load_categories
from traceql.cli.html_files import write_diff_report
from traceql.cli.report import command, default_output
from traceql.errors import InputError, OutputError
from traceql.report.diff_html import FACTS, Compared, diff_html
from traceql.report.figures import deltas, dots, spans
from traceql.report.figures.palette import palette
from traceql.report.html import HtmlPage, Text, render_html
from traceql.run import load_run

COLORS = palette(load_categories().categories)


@pytest.fixture(scope="module")
def graph_diff() -> Diff:
    return compared(GRAPH, AFTER_GRAPH)


@pytest.fixture(scope="module")
def run_diff() -> Diff:
    return compared(POOL_RUN, RUN)


@pytest.fixture(scope="module")
def harmful_diff(tmp_path_factory: pytest.TempPathFactory) -> Diff:
    return hostile_diff(tmp_path_factory.mktemp("hostile"))


def page_of(found: Diff, **others: Any) -> HtmlPage:
    return diff_html(Compared(found, COLORS, **others))


def blocks(page: HtmlPage, anchor: str) -> tuple[Any, ...]:
    return next(section.blocks for section in page.sections if section.anchor == anchor)


def ms(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


# --- the page as a whole


@pytest.mark.parametrize("found", ["graph_diff", "run_diff", "harmful_diff"])
def test_a_page_stands_alone(found, request):
    html = rendered_diff(request.getfixturevalue(found)).html
    check_alone(html)
    check_links(Page(html))
    assert len(html) < 300_000  # no plotting library


def test_the_sections_in_order(run_diff):
    assert [section.anchor for section in page_of(run_diff).sections] == [
        "to-know", "comparable", "changes", "steps", "layers", "kernels", "replaced", "collectives", "facts",
    ]  # fmt: skip


def test_the_verdict_comes_first(graph_diff):
    head = page_of(graph_diff).tiles
    assert head[0].value == "faster"
    assert head[0].tone == "verdict faster"
    assert "84.0 → 18.9 ms" in head[0].note
    assert [tile.value for tile in head[1:4]] == ["84.025 ms", "18.896 ms", "−65.130 ms"]
    interval = graph_diff.interval
    assert head[3].note == f"95 %: {fmt.ms(interval.low)} to {fmt.ms(interval.high)} ms".replace("-", "−")
    assert "not host-bound → not host-bound" in head[4].note


def test_what_cannot_be_told_is_not_told(run_diff):
    head = page_of(run_diff).tiles
    assert head[0].value == "cannot tell"
    assert head[3].note == "no interval: too few steps"


def test_the_same_trace_twice():
    page = page_of(compared(RUN[0], RUN[0]))
    assert page.tiles[0].value == "same"
    assert [block.kind for block in blocks(page, "changes")] == ["spans", "text"]  # no waterfall
    assert "Nothing" in render_html(page).html


def test_what_is_not_alike_is_said_loudly(graph_diff):
    row = {"fact": ["GPU", "NCCL"], "before": ["A", None], "after": ["<b>B</b>", "2"], "breaks": [True, False]}
    page = page_of(replace(graph_diff, differences=pl.DataFrame(row)))
    first = blocks(page, "comparable")[0].section
    assert first.is_warning
    assert first.lines == ("Not comparable: they differ in GPU.",)
    assert any(block.section.is_warning for block in blocks(page, "to-know"))
    check_alone(render_html(page).html)


def test_gates_are_said(graph_diff):
    gates = [judged(graph_diff, Gate.parse("5%")), judged(graph_diff, Gate.parse_named("kv_cache:+0.1ms"))]
    section = blocks(page_of(graph_diff, gates=gates), "to-know")[0].section
    assert [line.split(":")[0] for line in section.lines] == ["gate passed", "gate failed"]
    assert section.is_warning


# --- figures


@pytest.mark.parametrize("found", ["graph_diff", "run_diff", "harmful_diff"])
def test_the_waterfall_adds_up(found, request):
    found = request.getfixturevalue(found)
    figure = spans.waterfall(found, COLORS)
    assert figure
    first, *changes, last = figure.rows
    assert (ms(first.value), ms(last.value)) == pytest.approx(
        (found.before.mean_wall_ns / 1e6, found.after.mean_wall_ns / 1e6), abs=6e-4
    )
    total = sum(ms(row.value) for row in changes)
    assert ms(first.value) + total == pytest.approx(ms(last.value), abs=6e-4 * len(figure.rows))
    check_chain(figure)


def check_chain(figure: spans.Spans) -> None:
    """Each bar begins where the one above ended, from the whole before to the whole after."""
    first, *changes, last = figure.rows
    at = first.bars[0].start + first.bars[0].width
    for row in changes:
        (bar,) = row.bars
        assert bar.tone == ("less" if row.value.startswith("−") else "more")
        begin, end = bar.start, bar.start + bar.width
        if bar.tone == "less":
            begin, end = end, begin
        assert begin == pytest.approx(at, abs=0.01)
        at = end
    assert last.bars[0].start + last.bars[0].width == pytest.approx(at, abs=0.01)
    assert all(bar.start >= 0 and bar.start + bar.width <= 100.01 for row in figure.rows for bar in row.bars)


def test_small_changes_are_taken_together(graph_diff):
    """40 categories that each change by 1 to 40 µs: the largest 16 have a bar, the others one."""
    changes = [(-1) ** n * n * 1e3 for n in range(1, 41)]
    row = {**graph_diff.waterfall.row(0, named=True), "before_ns_per_step": 1e6}
    made = pl.DataFrame([{**row, "name": f"c{n}", "delta_ns": ns} for n, ns in enumerate(changes)])
    one = pl.DataFrame({"wall_ns": [int(graph_diff.before.mean_wall_ns + sum(changes))]})
    after = replace(graph_diff.before, n_steps=1, recordings=(replace(graph_diff.before.recordings[0], steps=one),))
    figure = spans.waterfall(replace(graph_diff, waterfall=made, after=after), COLORS)
    assert figure
    assert len(figure.rows) == spans.MAX_SPANS + 3
    assert figure.rows[-2].label == "all others"
    assert ms(figure.rows[-2].value) == pytest.approx(sum(changes[:24]) / 1e6, abs=6e-4)
    check_chain(figure)
    assert ms(figure.ends[0].removesuffix(" ms")) > 80  # a cut axis: else 40 µs of 84 ms could not be seen


@given(st.lists(st.floats(0, 1e12), min_size=2, max_size=8).filter(lambda sums: max(sums) > min(sums)))
def test_an_axis_holds_all(sums):
    axis = spans._cut_axis(sums)
    assert all(-0.01 <= axis.percent(each) <= 100.01 for each in sums)
    assert axis.least >= 0
    assert axis.percent(max(sums)) - axis.percent(min(sums)) > 33


@pytest.mark.parametrize("found", ["graph_diff", "run_diff", "harmful_diff"])
def test_the_parts_of_both_steps_fill_them(found, request):
    found = request.getfixturevalue(found)
    figure = spans.mean_steps(found, COLORS)
    assert figure
    longest = max(found.before.mean_wall_ns, found.after.mean_wall_ns)
    for row, side in zip(figure.rows, (found.before, found.after), strict=True):
        assert sum(bar.width for bar in row.bars) == pytest.approx(100 * side.mean_wall_ns / longest, abs=0.05)
    assert figure.keys[-1] == ("idle", "")
    assert all(color == COLORS[name] for name, color in figure.keys[:-1])


def test_a_dot_for_each_step(graph_diff):
    figures = dots.step_dots(graph_diff)
    assert [[len(lane.dots) for lane in figure.lanes] for figure in figures] == [[29, 29], [29, 29]]
    before = figures[0].lanes[0]
    walls = graph_diff.before.walls[0]
    assert [dot[3] for dot in before.dots] == [f"{fmt.ms(wall)} ms" for wall in walls]
    assert [dot[0] for dot in before.dots] == graph_diff.before.recordings[0].steps["step"].to_list()
    order = np.argsort(walls, kind="stable")
    places = np.array([dot[1] for dot in before.dots])[order]
    assert (np.diff(places) >= 0).all()
    assert [dot[2] for dot in before.dots] == sorted(dot[2] for dot in before.dots)
    assert before.path.count("M") == 29
    shares = figures[1].lanes[1]
    assert shares.middle == 500  # of the axis, which goes as far to both sides
    assert shares.value == "−0.15 % to +0.21 %"


def test_far_steps_stand_at_the_edge(graph_diff):
    walls = (np.array([100.0] * 28 + [1000.0]) * 1e6,)
    (_, shares) = dots.step_dots(replace(graph_diff, before=replace(graph_diff.before, walls=walls)))
    far = shares.lanes[0].dots[-1]
    assert far[3] == "+900.0 %"
    assert 950 < far[1] < 1000


def test_many_steps_are_thinned(graph_diff):
    walls = np.full(4999, 1e6)
    walls[[1234, 4321]] = 3e6, 1e5
    numbers = pl.DataFrame({"step": range(4999), "rank": 0})
    recording = replace(graph_diff.before.recordings[0], steps=numbers)
    before = replace(graph_diff.before, recordings=(recording,), walls=(walls,))
    lane = dots.step_dots(replace(graph_diff, before=replace(before, n_steps=4999)))[0].lanes[0]
    assert len(lane.dots) <= dots.MAX_DOTS + 2
    assert {1234, 4321} <= {dot[0] for dot in lane.dots}
    assert lane.label == f"before ({fmt.count(len(lane.dots))} of 4,999 steps drawn)"


def test_several_recordings_have_lanes(monkeypatch):
    sides = [Recording.of(load_run([path], cache=False)) for path in (GRAPH, AFTER_GRAPH)]
    found = diff([sides[0], sides[0]], [sides[1]])
    assert [lane.label for lane in dots.step_dots(found)[0].lanes] == ["before 1", "before 2", "after"]
    assert "2 recordings" in page_of(found).tiles[1].note
    monkeypatch.setattr(dots, "MAX_LANES", 1)
    (first, _) = dots.step_dots(found)
    assert [lane.label for lane in first.lanes] == ["before 1", "after"]
    assert first.title.endswith("; 1 of 2")


def of_cast(side: Side) -> dict[str, float]:
    """Kernel time of casts in a mean step, by role."""
    rows = side.frame("kernels").filter(category="cast").group_by("role").agg(ns=pl.sum("kernel_ns"))
    return {role: ns / side.n_steps for role, ns in rows.iter_rows()}


def test_layers_by_category(graph_diff):
    figure = deltas.layer_deltas(graph_diff, COLORS)
    assert figure
    assert figure.columns[:2] == ("attention + moe\u00a0×\u00a075", "attention + mlp\u00a0×\u00a03")
    cast = figure.rows[0]
    assert (cast.label, cast.color) == ("cast", COLORS["cast"])
    sums = [of_cast(side) for side in (graph_diff.before, graph_diff.after)]
    for role, cell in zip(("attention + moe", "attention + mlp"), cast.cells, strict=False):
        assert ms(cell.text) == pytest.approx((sums[1].get(role, 0) - sums[0][role]) / 1e6, abs=6e-4)
    assert cast.cells[0].tone == "less5"
    kernels, wall = figure.rows[-2:]
    assert (kernels.is_total, wall.is_total) == (True, True)
    change = graph_diff.after.mean_wall_ns - graph_diff.before.mean_wall_ns
    assert sum(ms(cell.text) for cell in wall.cells) == pytest.approx(change / 1e6, abs=0.01)
    for place, cell in enumerate(kernels.cells):
        parts = [ms(row.cells[place].text) for row in figure.rows[:-2] if row.cells[place].text]
        assert sum(parts) == pytest.approx(ms(cell.text or "0"), abs=0.01)


def test_waiting_in_collectives(run_diff):
    figure = spans.waiting_bars(run_diff, COLORS)
    assert figure
    labels = [f"rank {rank} {side}, all_reduce" for rank in (0, 1) for side in ("before", "after")]
    assert [row.label for row in figure.rows] == labels
    rows = run_diff.collectives.filter(pl.col("rank").is_not_null()).sort("rank")
    most = float(rows.select(pl.max_horizontal("before_ns_per_step", "after_ns_per_step").max()).item())
    for number, row in enumerate(rows.iter_rows(named=True)):
        for place, side in enumerate(("before", "after")):
            drawn = figure.rows[2 * number + place]
            assert sum(bar.width for bar in drawn.bars) == pytest.approx(
                100 * row[f"{side}_ns_per_step"] / most, abs=0.01
            )
            waiting = sum(bar.width for bar in drawn.bars if bar.tone == "idle")
            assert waiting == pytest.approx(100 * row[f"{side}_waiting_ns_per_step"] / most, abs=0.01)
    assert max(bar.width for row in figure.rows for bar in row.bars if bar.tone == "idle") > 50


def test_waiting_that_is_not_known_is_not_drawn(run_diff):
    unknown = run_diff.collectives.with_columns(before_waiting_ns_per_step=pl.lit(None, pl.Float64))
    figure = spans.waiting_bars(replace(run_diff, collectives=unknown), COLORS)
    assert figure
    (bar,) = figure.rows[0].bars
    assert (bar.tone, bar.about.split(":")[0]) == ("", "waiting not known")
    assert spans.waiting_bars(replace(run_diff, collectives=unknown.clear()), COLORS) is None


def test_no_layers_no_shades(harmful_diff):
    assert deltas.layer_deltas(harmful_diff, COLORS) is None
    (block, *_) = blocks(page_of(harmful_diff), "layers")
    assert block.section.lines == ("No layers were found on either side: changes by layer cannot be told.",)


@given(st.floats(-1e12, 1e12), st.floats(1, 1e12))
def test_shades_of_changes(delta, most):
    level = deltas.delta_level(delta, most)
    assert abs(level) <= deltas.LEVELS
    assert level * delta >= 0
    assert deltas.delta_level(-delta, most) == -level
    assert abs(deltas.delta_level(2 * delta, most)) >= abs(level)
    assert deltas.delta_level(most, most) == deltas.LEVELS


# --- tables


def test_every_kernel_has_its_whole_name(graph_diff):
    (block,) = blocks(page_of(graph_diff), "kernels")
    assert isinstance(block, Text)
    table = block.section.table
    assert table
    assert len(table.rows) == len(block.full_names) == graph_diff.kernels.height
    for row, full, kernel in zip(table.rows, block.full_names, graph_diff.kernels.iter_rows(named=True), strict=True):
        assert full == kernel["name"]
        assert row[-1] == fmt.visible(kernel["short_name"])
        assert ms(row[0]) == pytest.approx(kernel["delta_ns"] / 1e6, abs=6e-4)
    assert block.section.lines == ("41 alike, 1 gone, 1 new (calls a step)",)
    assert all(column.title for column in table.columns)


def test_what_was_replaced(graph_diff):
    (block,) = blocks(page_of(graph_diff), "replaced")
    first = block.section.table.rows[0]
    assert first[1:] == ("75 → 75", "attention + moe", "unrolled_elementwise_kernel<direct_copy, bf16>",
                         "gather_cast_kernel")  # fmt: skip
    assert ms(first[0]) < -60


def test_facts_of_both_sides(graph_diff):
    (block,) = blocks(page_of(graph_diff), "facts")
    rows = {row[0]: row[1:] for row in block.section.table.rows}
    assert set(FACTS.values()) < set(rows)
    assert rows["GPU"] == ("NVIDIA H200", "NVIDIA H200")
    assert rows["step without the profiler"] == ("—", "—")


# --- names are hostile


def test_hostile_names_are_text(harmful_diff):
    page = Page(rendered_diff(harmful_diff, title="</title><script>x</script>").html)
    whole = page.all("data-full")
    for name in HOSTILE:
        assert fmt.visible(name) in whole
    assert LONG in whole
    assert page.text.count("gone") > 1


def test_hostile_texts_in_all_tables(graph_diff):
    """Whatever a frame holds: names of replaced kernels, of collectives, categories, roles and facts."""
    bad = HOSTILE[1]
    row = {**dict.fromkeys(REPLACEMENTS.names, 1), "role": bad, "before": bad, "after": LONG}
    collective = {**dict.fromkeys(COLLECTIVE_CHANGES.names, 1), "kind": bad}
    found = replace(
        graph_diff,
        replacements=pl.DataFrame([row], schema=REPLACEMENTS.schema),
        collectives=pl.DataFrame([collective], schema=COLLECTIVE_CHANGES.schema),
        waterfall=graph_diff.waterfall.with_columns(name=pl.format("{}{}", pl.lit(bad), "name")),
        roles=graph_diff.roles.with_columns(role=pl.format("{}{}", pl.lit(bad), "role")),
    )
    html = rendered_diff(found).html
    check_alone(html)
    assert not re.search("<img", html)
    assert html.count("&lt;img src=") > 30


# --- the command


def run(*args: Any) -> Any:
    return CliRunner().invoke(command, [*map(str, args), "--no-cache"], catch_exceptions=False)


def title_of(path: Path) -> str:
    found = re.search("<title>(.*)</title>", path.read_text())
    assert found
    return found[1]


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of which the command does not know the name."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_of_one_rank_are_compared(pages):
    result = run(POOL_RUN[0], RUN[0])
    assert result.exit_code == 0
    page = pages / "tiny-pool-eager-TP-0-to-tiny-gather-eager-TP-0.html"
    assert result.stderr == f"wrote {page.name} ({fmt.size(page.stat().st_size)})\n"
    assert title_of(page) == "tiny-pool-eager-TP-0.json.gz → tiny-gather-eager-TP-0.json.gz: what changed"


def test_two_ranks_are_a_run(pages):
    run(*RUN)
    assert "where each step" in title_of(pages / "tiny-gather-eager-TP-0-run.html")


def test_two_folders_of_the_same_ranks_are_compared(pages):
    for name, files in (("before", POOL_RUN), ("after", RUN)):
        (pages / name).mkdir()
        for file in files:
            shutil.copy(file, pages / name)
    run("before", "after", "--rank", 1)
    page = Page((pages / "before-to-after.html").read_text())
    assert "2 complete steps" in page.text
    assert "2 ranks" not in page.text


def test_two_folders_of_one_rank_each_are_a_run(pages):
    for number, file in enumerate(RUN):
        (pages / f"node{number}").mkdir()
        shutil.copy(file, pages / f"node{number}")
    run("node0", "node1")
    assert [path.name for path in pages.glob("*.html")] == ["node0-run.html"]


def test_a_run_can_be_compared_all_the_same(pages):
    run("--diff", *RUN, "-o", "page.html")
    assert title_of(pages / "page.html").endswith("what changed")


def test_what_is_not_known_is_asked(pages):
    files = [hostile_file(pages, name) for name in ("one.json", "two.json")]
    with pytest.raises(InputError, match=r"one\.json and two\.json may be") as raised:
        run(*files)
    assert "--diff" in raised.value.hint
    assert "--run" in raised.value.hint
    assert not list(pages.glob("*.html"))
    run("--run", *files)
    run("--diff", *files)
    assert {path.name for path in pages.glob("*.html")} == {"one-run.html", "one-to-two.html"}


def test_files_of_one_rank_are_no_run(pages):
    with pytest.raises(InputError, match="several files of one rank"):
        run("--run", POOL_RUN[0], RUN[0])


def test_other_jobs_are_refused_with_a_way_out(pages):
    with pytest.raises(InputError, match="different jobs") as raised:
        run(GRAPH, RUN[1])
    assert "--force" in raised.value.hint
    assert "--diff" in raised.value.hint


def test_a_baseline_is_a_side(pages):
    Recording.of(load_run([POOL_RUN[0]], cache=False)).save(pages / "main.traceql-baseline")
    run("main.traceql-baseline", RUN[0], "-o", "page.html")
    assert title_of(pages / "page.html").endswith("what changed")


@pytest.mark.parametrize("traces", [RUN[:1], [*RUN, *POOL_RUN]])
def test_a_comparison_is_of_two(traces, pages):
    result = CliRunner().invoke(command, ["--diff", *map(str, traces)])
    assert result.exit_code == click.UsageError.exit_code
    assert "BEFORE and AFTER" in result.stderr


def test_steps_can_be_selected(pages):
    run(GRAPH, AFTER_GRAPH, "--steps", "1:11", "-o", "page.html", "--title", "Mine")
    page = Page((pages / "page.html").read_text())
    assert "10 complete steps" in page.text
    assert title_of(pages / "page.html") == "Mine"
    assert [len(lane) for lane in page.data()[0]] == [10, 10]


def test_what_is_there_stays(pages):
    page = pages / "tiny-pool-eager-TP-0-to-tiny-gather-eager-TP-0.html"
    page.write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        run(POOL_RUN[0], RUN[0])
    with pytest.raises(OutputError, match="exists"):
        run(POOL_RUN[0], RUN[0], "-o", page)
    assert page.read_text() == "mine"
    run(POOL_RUN[0], RUN[0], "--force")  # to overwrite the page is not to take them together
    assert title_of(page).endswith("what changed")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.trace.json.zst", "b.json"], "a-to-b.html"),
        (["TP-*.json", "-"], "TP-to-after.html"),
        (["-", "x/run"], "before-to-run.html"),
    ],
)
def test_the_name_of_the_page(names, expected):
    assert default_output(tuple(map(Path, names)), is_diff=True) == Path(expected)


def test_assets_in_a_folder(tmp_path, run_diff, capsys):
    page = tmp_path / "page.html"
    write_diff_report(run_diff, page, title="Mine", assets="directory")
    assert {path.name for path in (tmp_path / "page_assets").iterdir()} == {"app.js", "style.css"}
    assert title_of(page) == "Mine"
    assert capsys.readouterr().err.startswith(f"wrote {page} (")


@pytest.mark.shared
def test_real_pairs(shared):
    """Eager against graph, and all ranks of a run: figures that add up at other sizes."""
    sglang, glm5 = shared / "sglang", shared / "glm5"
    pairs: list[tuple[Any, Any]] = [
        (sglang / "before-eager-TP-0.trace.json.zst", sglang / "after-graph-TP-0.trace.json.zst"),
        ([glm5 / f"glm5-pool-graph-TP-{rank}.json.gz" for rank in (0, 1)],
         [glm5 / f"glm5-gather-graph-TP-{rank}.json.gz" for rank in (0, 1)]),
    ]  # fmt: skip
    for before, after in pairs:
        found = compared(before, after)
        figure = spans.waterfall(found, COLORS)
        assert figure
        check_chain(figure)
        html = rendered_diff(found).html
        check_alone(html)
        assert len(html) < 500_000
        assert json.loads(json.dumps(Page(html).data()))
