"""How many layers a step has, of which types, and what they take, in sentences."""

from traceql import fmt
from traceql.analyses.layer_stats import LayerStats
from traceql.report import numbers
from traceql.report.stage_words import several_stages

METHODS = {
    "module": "module calls",
    "annotation": "annotations",
    "graph-node": "annotated graph nodes",
    "capture": "the capture trace",
    "sequence": "the kernel sequence",
}
"""By what layers are found, in words."""

_TOLD_TYPES = 4
"""In a sentence; the others are counted."""


def layers_line(stats: LayerStats) -> str | None:
    """How many layers a step has, of which types, in one sentence; None where none are found.

    `78 layers a step: 3 × attention + mlp 0.96 ms, 75 × attention + moe 1.08 ms`. Figures are means.
    """
    return _line(stats) if stats.types.height else None


def _line(stats: LayerStats) -> str:
    several = f" in {stats.types.height} types" if stats.types.height > _TOLD_TYPES else ""
    return f"{_number_of_layers(stats)}{several}: {', '.join(_types_told(stats))}"


def _number_of_layers(stats: LayerStats) -> str:
    number = numbers.total(stats.types["n_layers"]) / stats.counted.height
    return f"{fmt.count(number)} {'layer' if number == 1 else 'layers'} a step"


def _types_told(stats: LayerStats) -> list[str]:
    """Each type with its layers a step and the mean time of one; those with most time where there are many."""
    n_types = stats.types.height
    told = stats.types.top_k(_TOLD_TYPES, by=time_column(stats, "{}_ns")).sort("layer_type")
    per_layer = time_column(stats, "{}_ns_per_layer")
    texts = [
        f"{fmt.count(row['layers_per_step'])} × {_blocks_of(row['label'])} {_short(row[per_layer])}"
        for row in told.iter_rows(named=True)
    ]
    return [*texts, f"{n_types - told.height} more"] if told.height < n_types else texts


def _blocks_of(label: str) -> str:
    """The label without the module class, which a table has room for."""
    return fmt.visible(label.rsplit(": ", 1)[-1])


def time_column(stats: LayerStats, column: str) -> str:
    """A column of walls; of kernel time where steps have no windows."""
    return column.format("wall" if stats.has_walls else "kernel")


def _short(ns: float | None) -> str:
    """With two decimals of a ms where it has as much."""
    return f"{ns / 1e6:,.2f} ms" if ns is not None and ns >= 100_000 else fmt.duration(ns)


def _found_by(stats: LayerStats) -> str:
    methods = [name for texts in stats.types["method"].to_list() for name in texts.split(", ")]
    named = " and ".join(METHODS[name] for name in dict.fromkeys(methods))
    confidences = stats.types["confidence"].to_list()
    least, most = f"{min(confidences):.2f}", f"{max(confidences):.2f}"
    return f"found by {named}, confidence {least}{'' if least == most else f' to {most}'}"


def headline_text(stats: LayerStats) -> str:
    """The answer in a sentence."""
    if not stats.types.height:
        return _without_layers(stats)
    n_types = stats.types.height
    types = f"{_number_of_layers(stats)} in {fmt.plural(n_types, 'type')}: {', '.join(_types_told(stats))}"
    return "; ".join((types, _part_of_step(stats), _found_by(stats)))


def stages_text(stats: LayerStats) -> str | None:
    """That the figures are means over steps of several stages, whose layers may run different kernels."""
    return several_stages("Means", stats.counted)


def _without_layers(stats: LayerStats) -> str:
    if stats.chosen.is_empty():
        return "No steps found: layers are told within steps."
    which = "the step" if stats.chosen.height == 1 else f"the {stats.chosen.height} steps"
    return f"No layers found in {which} looked at."


def _part_of_step(stats: LayerStats) -> str:
    """`83.9 ms of 84.1 ms a step`; kernel time is said to be that."""
    n, walls = stats.counted.height, stats.has_walls
    spent = numbers.total(stats.types[time_column(stats, "{}_ns")]) / n
    whole = numbers.total(stats.counted[time_column(stats, "{}_ns")]) / n
    form = _tenths if whole >= 10e6 else _short
    return f"{form(spent)} of {form(whole)}{'' if walls else ' kernel time'} a step"


def _tenths(ns: float) -> str:
    return f"{ns / 1e6:,.1f} ms"
