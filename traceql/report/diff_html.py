"""The HTML page that compares two sides: one function a section, in the order of the page.

What a section says was put into words by the page of `traceql diff`; here it is joined with figures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from msgspec import structs

from traceql import fmt
from traceql.analyses.change import LEVEL
from traceql.analyses.diff import Diff, Side
from traceql.analyses.diff_gates import Judgement
from traceql.analyses.diff_notes import idle_delta_ns, notes
from traceql.analyses.recording import Facts
from traceql.report import diff_page
from traceql.report.diff_page import DiffView
from traceql.report.diff_words import gate_line, signed_ms, verdict_line
from traceql.report.figures.deltas import layer_deltas
from traceql.report.figures.dots import step_dots
from traceql.report.figures.spans import mean_steps, waiting_bars, waterfall
from traceql.report.html import Block, HtmlPage, PageSection, Text, Tile
from traceql.report.html_tables import full_names, short, untitled
from traceql.report.page import Column, Section, TextTable
from traceql.report.text import cut

MAX_KERNELS = 300
"""Rows of the kernel table."""
MAX_ROWS = 100
"""Rows of any other long table."""
MAX_SHORT = 160
"""Characters of a name in a table; the whole name is beside it where there is one."""
LOUD = ("not_comparable", "hidden")
"""Kinds of notes without which the verdict misleads."""


@dataclass(frozen=True)
class Compared:
    """What the page is made of."""

    diff: Diff
    colors: Mapping[str, str]
    """Of each category."""
    gates: Sequence[Judgement] = ()


SectionMaker = Callable[[Compared], PageSection | None]


def diff_html(compared: Compared, title: str | None = None) -> HtmlPage:
    """The page of a comparison."""
    made = (maker(compared) for maker in SECTIONS)
    before, after = (_names(side) for side in (compared.diff.before, compared.diff.after))
    return HtmlPage(
        title=title or f"{before} → {after}: what changed",
        lines=(),
        tiles=tuple(_tiles(compared.diff)),
        sections=tuple(section for section in made if section is not None),
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, from {before} and {after}",
        colors=dict(compared.colors),
    )


def _names(side: Side) -> str:
    first, *others = (fmt.visible(recording.facts.name) for recording in side.recordings)
    return f"{first} and {len(others)} more" if others else first


# --- the head


def _tiles(diff: Diff) -> Iterator[Tile]:
    """The verdict and what it rests on: both step times, their change with its interval, and what was compared."""
    a, b = diff.before, diff.after
    sentence = verdict_line(diff)
    yield Tile(diff.verdict, "verdict", sentence, tone=f"verdict {diff.verdict.replace(' ', '-')}")
    step = "step" if diff.stage == "unknown" else f"{diff.stage} step"
    yield Tile(f"{fmt.ms(a.median_wall_ns)} ms", f"median {step} before", _steps_of(a))
    yield Tile(f"{fmt.ms(b.median_wall_ns)} ms", f"median {step} after", _steps_of(b))
    yield Tile(f"{signed_ms(diff.delta_ns)} ms", "change", _interval(diff))
    shares = " → ".join(fmt.percent(side.host_idle_frac) for side in (a, b))
    bound = " → ".join("host-bound" if side.is_host_bound else "not host-bound" for side in (a, b))
    yield Tile(shares, "GPU waits for the host", bound)
    kernel_ns = b.total("steps", "kernel_ns") / b.n_steps - a.total("steps", "kernel_ns") / a.n_steps
    yield Tile(
        f"{signed_ms(kernel_ns)} ms", "kernel time of the mean step", f"idle {signed_ms(idle_delta_ns(diff))} ms"
    )


def _steps_of(side: Side) -> str:
    n = sum(map(len, side.walls))
    ranks = f", {len(side.ranks)} ranks" if len(side.ranks) > 1 else ""
    recordings = f" of {len(side.walls)} recordings" if len(side.walls) > 1 else ""
    return f"{fmt.plural(n, 'complete step')}{recordings}{ranks}"


def _interval(diff: Diff) -> str:
    if diff.interval is None:
        return "no interval: too few steps"
    low, high = signed_ms(diff.interval.low), signed_ms(diff.interval.high)
    return f"{LEVEL * 100:g} %: {low} to {high} ms"


# --- the sections


def to_know(compared: Compared) -> PageSection | None:
    """Gates, and what must be known to read the figures."""
    said = notes(compared.diff)
    loud = tuple(fmt.visible(note.text) for note in said if note.kind in LOUD)
    quiet = tuple(fmt.visible(note.text) for note in said if note.kind not in LOUD)
    gates = tuple(gate_line(gate) for gate in compared.gates)
    failed = any(gate.is_failed for gate in compared.gates)
    made = (Section(lines=gates, is_warning=failed), Section(lines=loud, is_warning=True), Section(lines=quiet))
    blocks = tuple(Text(section) for section in made if section.lines)
    return PageSection("to-know", "What to know", blocks) if blocks else None


def comparable(compared: Compared) -> PageSection:
    """Whether the sides can be compared: in what they differ."""
    diff = compared.diff
    section = diff_page.comparability(diff, DiffView())
    broken = ", ".join(diff.differences.filter("breaks")["fact"])
    line = f"Not comparable: they differ in {broken}." if broken else "Nothing that was recorded speaks against it."
    blocks = (Text(Section(lines=(line,), is_warning=bool(broken))), Text(replace(section, title="")))
    return PageSection("comparable", "Comparable?", blocks)


def changes(compared: Compared) -> PageSection:
    """Where the change comes from: bars, and the same as a table."""
    diff, colors = compared.diff, compared.colors
    table = untitled(diff_page.waterfall(diff, DiffView()))
    made: tuple[Block | None, ...] = (waterfall(diff, colors), mean_steps(diff, colors), Text(table))
    return PageSection("changes", "Where the change comes from", tuple(block for block in made if block))


def steps(compared: Compared) -> PageSection:
    """The steps of both sides, side by side."""
    diff = compared.diff
    few = replace(diff, steps=diff.steps.group_by("side", maintain_order=True).head(MAX_ROWS))
    title = _counted("Steps", few.steps.height, diff.steps.height)
    table = replace(diff_page.steps(few, DiffView()), title=title)
    return PageSection("steps", "Step times", (*step_dots(diff), Text(table, is_folded=True)))


def layers(compared: Compared) -> PageSection:
    """Changes by layer type."""
    diff = compared.diff
    shades = layer_deltas(diff, compared.colors)
    table = diff_page.layer_types(diff, DiffView())
    blocks: list[Block] = [shades] if shades else [Text(Section(lines=(_no_layers(diff),)))]
    blocks += [Text(short(table, MAX_SHORT), is_folded=shades is not None)] if table else []
    return PageSection("layers", "Layers", tuple(blocks))


def _no_layers(diff: Diff) -> str:
    n = [diff.roles[f"{side}_n_layers_per_step"].sum() for side in ("before", "after")]
    where = "on either side" if not any(n) else "before" if not n[0] else "after"
    return f"No layers were found {where}: changes by layer cannot be told."


def kernels(compared: Compared) -> PageSection:
    """Kernels gone, new, called more or less often, or longer."""
    diff = compared.diff
    section = diff_page.kernels(diff, DiffView(top=MAX_KERNELS))
    counts = ", ".join(
        f"{n} {status}" for status, n in diff.kernels["status"].value_counts(sort=True).sort("status").rows()
    )
    notes_below = (*section.notes, "Names are shortened; the button copies the whole name.")
    title = _counted("", min(diff.kernels.height, MAX_KERNELS), diff.kernels.height)
    section = replace(
        short(section, MAX_SHORT), title=title, lines=section.lines or (f"{counts} (calls a step)",), notes=notes_below
    )
    full = full_names(diff.kernels["name"].head(MAX_KERNELS))
    return PageSection("kernels", "Kernels", (Text(_with_titles(section, "status"), full_names=full),))


def replaced(compared: Compared) -> PageSection:
    """What took the place of what in the layers."""
    found = compared.diff.replacements
    if found.is_empty():
        blocks = (Text(Section(lines=("Nothing: the same kernels run in the layers.",))),)
        return PageSection("replaced", "Replaced in the layers", blocks)
    columns = (
        Column("change ms", "right"),
        Column("calls", "right", drop=1),
        Column("layer type", fit="wrap", drop=2),
        Column("before", fit="wrap", is_code=True),
        Column("after", fit="wrap", is_code=True),
    )
    rows = tuple(
        (
            signed_ms(row["delta_ns"]),
            " → ".join(fmt.count(row[f"{side}_n_per_step"]) for side in ("before", "after")),
            *(
                cut(fmt.visible(row[name] or "(nothing)"), MAX_SHORT * 2, "middle")
                for name in ("role", "before", "after")
            ),
        )
        for row in found.head(MAX_ROWS).iter_rows(named=True)
    )
    notes_below = (
        "Layers aligned kernel by kernel; kernel time and calls of a mean step. What only moved is left out.",
    )
    title = _counted("", len(rows), found.height)
    section = Section(title, table=TextTable(columns, rows), notes=notes_below)
    return PageSection("replaced", "Replaced in the layers", (Text(section),))


def collectives(compared: Compared) -> PageSection | None:
    """Time in collectives, waiting and transfer."""
    section = diff_page.collectives(compared.diff, DiffView())
    if section is None:
        return None
    bars = waiting_bars(compared.diff, compared.colors)
    table = Text(untitled(section))
    return PageSection("collectives", "Collectives", (bars, table) if bars else (table,))


FACTS = {
    "name": "recording",
    "gpus": "GPU",
    "engine": "engine",
    "torch_version": "PyTorch",
    "cuda_runtime_version": "CUDA runtime",
    "nccl_version": "NCCL",
    "world_size": "world size",
    "n_ranks": "ranks recorded",
    "record_shapes": "shapes recorded",
    "with_stack": "stacks recorded",
    "profile_memory": "memory recorded",
    "control_step_ns": "step without the profiler",
    "control_tokens_per_s": "the same, all requests",
}
"""What a recording says about itself, and how it is called."""


def facts(compared: Compared) -> PageSection:
    """What both sides say about themselves."""
    sides = compared.diff.before, compared.diff.after
    columns = (Column("fact"), Column("before", fit="wrap"), Column("after", fit="wrap"))
    rows = [(title, *(_told(side, name) for side in sides)) for name, title in FACTS.items()]
    measured = [
        ("mean step", *(f"{fmt.ms(side.mean_wall_ns)} ms" for side in sides)),
        ("kernels launched by graphs", *(fmt.percent(side.graph_frac) for side in sides)),
    ]
    return PageSection("facts", "Both sides", (Text(Section(table=TextTable(columns, (*rows, *measured)))),))


def _told(side: Side, name: str) -> str:
    """What the recordings of a side say, each answer once."""
    values = (_fact(recording.facts, name) for recording in side.recordings)
    return cut(", ".join(dict.fromkeys(values)), MAX_SHORT * 4)


def _fact(told: Facts, name: str) -> str:
    value = structs.asdict(told)[name]
    if isinstance(value, tuple):
        return fmt.visible(", ".join(value)) or fmt.UNKNOWN  # pyright: ignore[reportUnknownArgumentType]
    return fmt.value(name, value)


# --- texts


def _counted(title: str, n: int, n_all: int) -> str:
    return title if n == n_all else f"{title}: {fmt.count(n)} of {fmt.count(n_all)}".removeprefix(": ")


def _with_titles(section: Section, title: str) -> Section:
    """The section with a title for the columns of its table that have none: else they cannot be sorted by."""
    if section.table is None:
        return section
    columns = tuple(replace(column, title=column.title or title) for column in section.table.columns)
    return replace(section, table=replace(section.table, columns=columns))


SECTIONS: tuple[SectionMaker, ...] = (
    to_know,
    comparable,
    changes,
    steps,
    layers,
    kernels,
    replaced,
    collectives,
    facts,
)
