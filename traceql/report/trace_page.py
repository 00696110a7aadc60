"""The HTML page of one trace or run: one function a section, in the order of the page.

What a section shows was worked out by an analysis and put into words by the page of its command; here it is chosen and
joined with figures. A trace that does not hold what a section is about makes the section say so, not the page fail.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import polars as pl

from traceql import fmt
from traceql.analyses.attribution import Attribution
from traceql.analyses.category_times import step_categories
from traceql.analyses.counted_steps import counted_steps
from traceql.analyses.rank_stats import RunSummary
from traceql.analyses.summary import Summary
from traceql.categories import GROUPS
from traceql.report import casts_page, check_page, idle_page, layers_page, numbers, ranks_page, summary_page
from traceql.report import summary_words as words
from traceql.report.casts_words import casts_lines
from traceql.report.figures.bars import step_bars
from traceql.report.figures.heat import layer_maps, spread_levels, waiting_map
from traceql.report.figures.strip import layer_strip
from traceql.report.html import Block, Card, Cards, HtmlPage, PageSection, Text, Tile
from traceql.report.html_tables import full_names, short, untitled
from traceql.report.idle_words import pace_line
from traceql.report.page import Section, TextTable, View
from traceql.report.quirks import losses as losses_of
from traceql.report.remarks import remarks
from traceql.report.stage_words import step_name
from traceql.report.summary_page import SummaryView
from traceql.report.trace_material import Material
from traceql.rules import Finding

MAX_KERNELS = 300
"""Rows of the kernel table."""
MAX_ROWS = 100
"""Rows of any other long table."""
MAX_GAPS = 25
MAX_SHORT = 120
"""Characters of a short name in a table; the whole name is beside it."""
MAX_CARDS = 30
MAX_JUMPS = 4

Row = dict[str, Any]
SectionMaker = Callable[[Material], PageSection | None]


def trace_page(material: Material, title: str | None = None) -> HtmlPage:
    """The page of a trace or run."""
    made = (maker(material) for maker in SECTIONS)
    now = datetime.now(UTC)
    return HtmlPage(
        title=title or f"{fmt.visible(material.summary.trace.name)}: where each step's time goes",
        lines=_head_lines(material),
        tiles=tuple(_tiles(material)),
        sections=tuple(section for section in made if section is not None),
        made=f"{now:%Y-%m-%d %H:%M} UTC, from {fmt.visible(material.summary.trace.name)}",
        colors=material.colors,
    )


# --- the head


def _head_lines(material: Material) -> tuple[str, ...]:
    said = remarks(material.trace, material.summary, material.layers) if material.has_gpu_time else ()
    return summary_page.headline(material.summary, SummaryView(remarks=said)).lines


def _tiles(material: Material) -> Iterator[Tile]:
    """The step, tokens a second, who sets the pace, what takes most, and who is late.

    Of several stages they are of the one that takes most time.
    """
    summary = material.summary
    if not material.has_gpu_time:
        return
    stage = summary.stages.row(0, named=True) if summary.scope == "steps" else None
    step, steps = ("step", "")
    if stage and words.has_stages(summary):
        step, steps = step_name(stage["stage"]), step_name(stage["stage"], 2)
    if stage and (wall_ns := _typical_wall_ns(summary, stage)):
        yield Tile(fmt.duration(wall_ns), f"a {step}, median", "as profiled")
        yield from _tokens(stage, wall_ns)
        yield from _bound(material.pace.steps.filter(stage=stage["stage"]), material.pace.comm, steps)
    group, group_ns, idle_ns, whole_ns = _most(summary, stage)
    whole = f"of the wall of {steps}" if steps else "of the wall"
    if group is not None:
        yield Tile(
            fmt.percent(numbers.ratio(group_ns, whole_ns)), f"{whole} is {fmt.visible(group)}", "most of all groups"
        )
    yield Tile(fmt.percent(numbers.ratio(idle_ns, whole_ns)), f"{whole} the GPU is idle")
    if material.findings.found:
        worst = material.findings.found[0]
        note = f"costliest: {worst.rule.id}"
        number, noun = fmt.plural(len(material.findings.found), "finding").split(" ")
        yield Tile(number, noun, note)


def _typical_wall_ns(summary: Summary, stage: Row) -> float | None:
    """The median step of a stage; of a run that of the median rank, as in the headline."""
    if not isinstance(summary, RunSummary) or words.has_stages(summary):
        return stage["median_wall_ns"]
    placed = words.ranked(summary)
    return placed[(len(placed) - 1) // 2]["wall_ns"] if placed else None


def _most(summary: Summary, stage: Row | None) -> tuple[str | None, int, int, int]:
    """The group with most time, its time, idle time and the whole: of a stage, else of all windows."""
    if stage is not None:
        group = max(GROUPS, key=lambda name: stage[f"{name}_ns"])
        return group, stage[f"{group}_ns"], stage["idle_ns"], stage["wall_ns"]
    group, group_ns = next(summary.groups.select("group", "exclusive_ns").iter_rows(), (None, 0))
    return group, group_ns, summary.idle_ns, summary.wall_ns


def _tokens(stage: Row, wall_ns: float) -> Iterator[Tile]:
    """Tokens a second where all steps decode one batch size: each step gives each request a token."""
    batch = stage["batch_size_min"]
    if stage["stage"] != "decode" or not batch or batch != stage["batch_size_max"]:
        return
    rate = 1e9 / wall_ns
    note = f"batch {batch}: {rate * batch:,.0f} in all; one token a step (more with speculation)"
    yield Tile(f"{rate:,.1f}", "tokens/s per sequence", note)


def _bound(steps: pl.DataFrame, comm: pl.DataFrame, told: str) -> Iterator[Tile]:
    """Who sets the pace, in the words of the sentence about it; where devices differ, whether the host does on any."""
    lines = [pace_line(of_device, comm) or "" for _, of_device in steps.group_by("rank", "device")]
    verdicts = [next((verdict for verdict in _VERDICTS if verdict in line), None) for line in lines]
    known = [verdict for verdict in (HOST_BOUND, *_VERDICTS) if verdict in verdicts]
    if known:
        n_devices = verdicts.count(known[0])
        where = "" if n_devices == len(verdicts) else f"on {n_devices} of {fmt.plural(len(verdicts), 'device')}"
        yield Tile(known[0], _VERDICTS[known[0]], ", ".join(filter(None, [told, where])))


HOST_BOUND = "host-bound"
_VERDICTS = {
    "neither host-bound nor GPU-bound": "the GPU waits for a batch, another stream or another rank",
    HOST_BOUND: "a shorter kernel shortens the step little",
    "GPU mostly idle": "though its kernels were launched in time",
    "GPU-bound": "a shorter kernel shortens the step",
}
"""In `pace_line`, and what each means; what holds others in it is before these."""


# --- the sections


def findings(material: Material) -> PageSection:
    """What is wrong, as cards."""
    found = material.findings
    head = check_page.headline(found)
    blocks: list[Block] = [Text(head)]
    if found.found:
        blocks.append(Cards(tuple(_card(material, each) for each in found.found[:MAX_CARDS])))
    if len(found.found) > MAX_CARDS:
        blocks.append(Text(Section(notes=(f"{len(found.found) - MAX_CARDS} more: traceql check.",))))
    others = check_page.check_page(replace(found, found=()))[1:]
    blocks += [Text(section, is_folded=True) for section in others]
    return PageSection("findings", "Findings", tuple(blocks))


PLACES = {
    "casts": ("casts", "cast_groups", "cast_pairs", "pool_casts"),
    "ranks": ("collectives", "collective_stats", "comm_tails", "rank_waits", "clocks"),
    "idle": ("idle", "idle_causes", "step_pace", "launch_stats", "queue_depth", "host_waits"),
    "layers": ("layers", "layer_types", "kernel_layers", "step_sections", "step_layer_categories"),
    "steps": ("steps", "step_facts", "step_stats"),
    "categories": ("groups", "categories", "step_categories"),
    "kernels": ("kernel_stats", "op_stats", "gemms", "attention_fallbacks", "kernel_steps"),
}
"""The section that shows what each result table holds."""
PLACES_OF_RULES = {
    "rank-skew": "ranks",
    "exposed-communication": "ranks",
    "unknown-kernels": "gaps-in-knowledge",
    "tiny-kernels": "kernels",
}
"""Where a rule is about something else than most that its table holds."""


def _card(material: Material, finding: Finding) -> Card:
    target = _target(material, finding)
    return Card(
        severity=finding.rule.severity,
        rule=finding.rule.id,
        cost="" if finding.cost_ns_per_step is None else check_page.cost(finding),
        message=finding.message,
        why=finding.rule.why,
        fix=finding.fix,
        extent=check_page.finding_section(finding).notes[2],
        target=target,
        target_title=TITLES[target],
        steps=_first_of(finding, "step"),
        layers=_first_of(finding, "layer"),
        evidence=Section("Evidence", table=check_page.finding_section(finding, with_evidence=True).table),
        links=finding.rule.links,
    )


def _target(material: Material, finding: Finding) -> str:
    by_table = {table: place for place, tables in PLACES.items() for table in tables}
    place = PLACES_OF_RULES.get(finding.rule.id) or by_table.get(finding.rule.table, "idle")
    if not material.has_gpu_time:
        return "facts"
    return "categories" if place == "ranks" and material.ranks is None else place


def _first_of(finding: Finding, column: str) -> tuple[int, ...]:
    """The first few numbers of steps or layers in the evidence."""
    return tuple(finding.evidence[column].drop_nulls().unique(maintain_order=True).to_list()[:MAX_JUMPS])


def losses(material: Material) -> PageSection | None:
    """What of the file could not be read."""
    section = losses_of(material.summary, View())
    return None if section is None else PageSection("losses", "Incomplete", (Text(section),))


def ranks(material: Material) -> PageSection | None:
    """The ranks of a run side by side, and who is late."""
    report = material.ranks
    if report is None:
        return None
    if report.ranks.is_empty():
        return PageSection("ranks", TITLES["ranks"], (Text(ranks_page.ranks_page(report, View())[0]),))
    view = View(top=MAX_ROWS)
    table = ranks_page.ranks(report, view)
    table = replace(table, title="Rank by rank", notes=("Shaded: more than the rank with the least.", *table.notes))
    blocks: list[Block] = [Text(ranks_page.headline(report, view))]
    blocks += [Text(section) for section in [ranks_page.limits(report, view)] if section]
    blocks.append(Text(table, levels=_spread(table.table)))
    waiting = waiting_map(report.kernels, report.ranks["rank"].to_list())
    blocks += [waiting] if waiting else []
    others = (ranks_page.collectives(report, view), ranks_page.clocks(report, view))
    blocks += [Text(section, is_folded=True) for section in others if section]
    return PageSection("ranks", TITLES["ranks"], tuple(blocks))


_SHADED = ("step ms", "busy", "kernel time", "comm", "transfer", "waiting", "exposed", "host idle", "last in")


def _spread(table: TextTable | None) -> tuple[tuple[int, ...], ...]:
    """How dark the figures of the ranks are: each column against its least."""
    if table is None:
        return ()
    none = [0] * len(table.rows)
    columns = [
        spread_levels([_number(row[number]) for row in table.rows]) if column.title in _SHADED else none
        for number, column in enumerate(table.columns)
    ]
    return tuple(zip(*columns, strict=True))


def _number(text: str) -> float | None:
    """The number that a finished text begins with."""
    try:
        return float(text.replace(",", "").removesuffix("%").strip().removeprefix("<"))
    except ValueError:
        return None


def steps(material: Material) -> PageSection:
    """Each step as a bar, and their spread."""
    found = Attribution.of(material.trace)
    times = step_categories(found.activities.lazy(), found.placed, found.times)
    bars = step_bars(material.summary.steps, times, material.colors)
    blocks: list[Block] = []
    if bars is None:
        lines = words.no_gpu_time(material.summary) if not material.has_gpu_time else (_no_windows(material),)
        blocks.append(Text(Section(lines=lines)))
    else:
        blocks.append(bars)
    view = SummaryView(top=MAX_ROWS)
    makers = (summary_page.stages, summary_page.step_times, summary_page.outliers)
    made = (maker(material.summary, view) for maker in makers)
    blocks += [Text(section) for section in made if section]
    if material.summary.steps.height:
        every = summary_page.steps(replace(material.summary, steps=material.summary.steps.head(MAX_KERNELS)), view)
        blocks.append(Text(replace(every, title=_counted("All steps", material.summary.steps.height)), is_folded=True))
    return PageSection("steps", TITLES["steps"], tuple(blocks))


def _counted(title: str, n_all: int, most: int = MAX_KERNELS) -> str:
    return title if n_all <= most else f"{title}: {most} of {fmt.count(n_all)}"


def _no_windows(material: Material) -> str:
    if material.summary.steps.is_empty():
        return f"{words.no_steps(material.summary).capitalize()}: the trace is taken as one window a device."
    return "No step has a window of its own: steps overlap, or launched nothing on the GPU."


def categories(material: Material) -> PageSection | None:
    """What a step consists of."""
    if not material.has_gpu_time:
        return None
    view = SummaryView()
    table = summary_page.categories(material.summary, view)
    groups = summary_page.groups(material.summary, view)
    blocks = (Text(untitled(table)), Text(replace(groups, title="By group", notes=()), is_folded=True))
    return PageSection("categories", TITLES["categories"], blocks)


def layers(material: Material) -> PageSection | None:
    """The layers: their types, the map by category, and the odd ones."""
    if not material.has_gpu_time:
        return None
    stats, view = material.layers, View()
    blocks: list[Block] = [Text(layers_page.headline(stats, view))]
    if stats.types.height:
        blocks.append(Text(layers_page.types(stats, view)))
        blocks += layer_maps(stats, material.colors)
        odd = layers_page.odd(stats, view)
        blocks += [Text(odd)] if odd else []
        every = layers_page.all_layers(replace(stats, of_layers=stats.of_layers.head(MAX_KERNELS)), view)
        blocks.append(Text(replace(every, title=_counted("All layers", stats.of_layers.height)), is_folded=True))
    rest = layers_page.unattributed(stats, view)
    blocks += [Text(rest)] if rest else []
    return PageSection("layers", TITLES["layers"], tuple(blocks))


def strip(material: Material) -> PageSection | None:
    """The kernels of one step in time."""
    if not material.has_gpu_time:
        return None
    counted = counted_steps(Attribution.of(material.trace).steps, material.selection)
    found = layer_strip(material.trace, material.layers, counted, material.colors)
    blocks: tuple[Block, ...] = (found,) if found else (Text(Section(lines=(_no_windows(material),))),)
    return PageSection("strip", TITLES["strip"], blocks)


def kernels(material: Material) -> PageSection | None:
    """The kernels with most time; and the ops that launched them."""
    if not material.has_gpu_time:
        return None
    stats = material.summary.kernels
    table = summary_page.kernels(material.summary, SummaryView(top=MAX_KERNELS))
    full = full_names(stats["name"].head(MAX_KERNELS))
    notes = (*table.notes, "Names are shortened; the button copies the whole name.")
    section = short(replace(table, title=_counted("", stats.height), notes=notes), MAX_SHORT)
    blocks: list[Block] = [Text(section, full_names=full if section.table else ())]
    ops = summary_page.ops(material.summary, SummaryView(top=MAX_ROWS))
    blocks.append(Text(short(ops, MAX_SHORT), is_folded=True))
    return PageSection("kernels", TITLES["kernels"], tuple(blocks))


def casts(material: Material) -> PageSection | None:
    """What casts and copies cost, and how fast they are against the device's peak."""
    if not material.has_gpu_time:
        return None
    report, view = material.casts, View(top=MAX_ROWS)
    lines = casts_lines(report)
    made = [Section(lines=lines)] if lines else []
    if report.groups.filter(pl.col("kind") != "custom").height:
        made.append(untitled(casts_page.groups(report, view)))
    made += filter(None, [casts_page.custom(report, view)])
    blocks = [Text(short(section, MAX_SHORT)) for section in made]
    if report.casts.filter(pl.col("kind") != "custom").height:
        few = casts_page.longest(report, View(top=MAX_GAPS))
        blocks.append(Text(short(few, MAX_SHORT), is_folded=True))
    return PageSection("casts", TITLES["casts"], tuple(blocks))


def idle(material: Material) -> PageSection | None:
    """Why the GPU was idle."""
    if not material.has_gpu_time:
        return None
    found, view = material.pace, View(top=MAX_GAPS)
    if not found.counted.height:
        return PageSection("idle", TITLES["idle"], (Text(idle_page.headline(found, view)),))
    causes = untitled(idle_page.causes(found, view))
    shown = (idle_page.headline(found, view), causes, idle_page.bounds(found, view))
    more = (idle_page.gaps(found, view), idle_page.launches(found, view))
    blocks = (*map(Text, shown), *(Text(short(section, MAX_SHORT), is_folded=True) for section in more))
    return PageSection("idle", TITLES["idle"], blocks)


def gaps_in_knowledge(material: Material) -> PageSection | None:
    """GPU time that belongs to no step, launch or op, and kernels that no category knows."""
    summary, view = material.summary, SummaryView()
    made = (summary_page.unattributed(summary, view), summary_page.unrecognised(summary, view))
    blocks: list[Block] = [Text(section) for section in made if section]
    unknown = summary.kernels.filter(pl.col("category") == "other")
    if unknown.height:
        table = summary_page.kernels(replace(summary, kernels=unknown), SummaryView(top=MAX_ROWS))
        section = replace(table, title=_counted("Kernels without a category", unknown.height, MAX_ROWS), notes=())
        full = full_names(unknown["name"].head(MAX_ROWS))
        blocks.append(Text(short(section, MAX_SHORT), full_names=full, is_folded=True))
    if not blocks and not material.has_gpu_time:
        return None
    if not blocks:
        blocks.append(Text(Section(lines=("Nothing: every GPU activity has a step, a launch, an op and a category.",))))
    return PageSection("gaps-in-knowledge", TITLES["gaps-in-knowledge"], tuple(blocks))


def facts(material: Material) -> PageSection:
    """What was recorded, where and how; and what is odd about the file."""
    view = SummaryView()
    odd = summary_page.oddities(material.summary, view) or Section(lines=("Nothing odd about the file.",))
    return PageSection(
        "facts", TITLES["facts"], (Text(untitled(summary_page.facts(material.summary, view))), Text(odd))
    )


TITLES = {
    "findings": "Findings",
    "ranks": "Ranks",
    "steps": "Steps",
    "categories": "Categories",
    "layers": "Layers",
    "strip": "One step in time",
    "kernels": "Kernels",
    "casts": "Casts and copies",
    "idle": "Idle time",
    "gaps-in-knowledge": "Not attributed, not recognised",
    "facts": "Trace",
}
"""Anchors of sections that links lead to, and their titles."""

SECTIONS: tuple[SectionMaker, ...] = (
    losses,
    findings,
    ranks,
    steps,
    categories,
    layers,
    strip,
    kernels,
    casts,
    idle,
    gaps_in_knowledge,
    facts,
)
