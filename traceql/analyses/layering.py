"""The layers of a trace, and what belongs to them: the frames on top of what the methods find."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import polars as pl

from traceql.analyses import layer_kinds, layer_times
from traceql.analyses.attribution import Attribution
from traceql.analyses.layer_capture import by_capture, captured_classes
from traceql.analyses.layer_modules import by_modules, layer_classes
from traceql.analyses.layer_nodes import by_graph_nodes
from traceql.analyses.layer_sequence import by_sequence
from traceql.analyses.layer_spans import by_annotations
from traceql.analyses.layer_tables import KERNEL_LAYERS, LAYERS, PLACEMENT
from traceql.analyses.main_line import with_main_line
from traceql.errors import InputError, MissingDataError
from traceql.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

_METHOD_VERSION = 5
"""Of all that decides about layers: raised whenever it does, so that what a cache kept of the old one is stale."""

METHODS = ("module", "annotation", "graph-node", "capture", "sequence")
"""In the order in which they are tried."""

_STEP = ["rank", "device", "step"]
_LAYER = [*_STEP, "model_pass", "layer"]
_MISSING = {
    "module": "Record with Python stacks (with_stack=True), and without CUDA graphs: a replay has no module calls.",
    "annotation": "Put record_function spans such as `layer_3` around the layers; a graph replay has none.",
    "graph-node": "Capture the graphs with torch.cuda.graph(..., enable_annotations=True); it needs CUDA 13.1.",
    "capture": "Give the trace of the graphs' capture with --capture-trace FILE.",
    "sequence": "The order of kernels shows no layers here.",
}


@dataclass(frozen=True)
class Layering:
    """The layers of a trace or run."""

    placed: pl.DataFrame
    """Table `kernel_layers`."""
    layers: pl.DataFrame
    """Table `layers`."""
    sections: pl.DataFrame
    """Table `step_sections`."""
    categories: pl.DataFrame
    """Table `step_layer_categories`."""
    types: pl.DataFrame
    """Table `layer_types`."""
    notes: tuple[str, ...]
    """What could not be taken apart, and why."""

    @classmethod
    def of(
        cls, trace: Trace, method: str = "auto", *, n_layers: int | None = None, capture: Trace | None = None
    ) -> "Layering":
        """That of a trace or run: worked out when it is first asked for, and kept while the trace is.

        Args:
            trace: the trace or run.
            method: one of `METHODS`, or `auto`: for each step the first that applies.
            n_layers: how many layers a step has, where the caller knows it.
            capture: the trace of the capture phase of the graphs that this trace replays.

        Raises:
            InputError: no such method.
            MissingDataError: the method does not apply to any step; no step has n_layers layers; or the capture does
                not fit.
        """
        if method not in ("auto", *METHODS):
            raise InputError(f"unknown layer method {method!r}", f"Known: auto, {', '.join(METHODS)}.")
        known = _known.setdefault(trace, {})
        key = (method, capture)
        if key not in known:
            known[key] = cls._of(trace, method, capture)
        found = known[key]
        if method != "auto" and not found.layers.height:
            raise MissingDataError(f"method {method} finds no layers: " + "; ".join(found.notes), _MISSING[method])
        if n_layers is not None:
            _check_number(found.layers, n_layers)
        return found

    @classmethod
    def _of(cls, trace: Trace, method: str, capture: Trace | None) -> "Layering":
        def worked_out() -> dict[str, pl.DataFrame]:
            return _frames(trace, method, capture)

        name = f"layers-{_METHOD_VERSION}-{method}-{trace.categories.fingerprint}"
        frames = worked_out() if capture else trace.kept(name, worked_out)
        frames = dict(frames)
        notes = tuple(frames.pop("notes")["note"].to_list())
        return cls(notes=notes, **frames)


_known: WeakKeyDictionary[Trace, dict[tuple[str, Trace | None], Layering]] = WeakKeyDictionary()


def _frames(trace: Trace, method: str, capture: Trace | None) -> dict[str, pl.DataFrame]:
    found = Attribution.of(trace)
    activities = found.activities
    main = with_main_line(activities)
    placement, notes = _placement(trace, activities, main, method, capture)
    joined = _joined(activities, placement)
    inside = joined.filter(pl.col("layer").is_not_null())
    labels = _labels(trace, activities, placement, capture)
    typed, types = layer_kinds.layer_types(inside, labels)
    joined = joined.join(typed, on=_LAYER, how="left", validate="m:1", maintain_order="left")
    on_main = joined.join(main.filter("is_main").select("kernel_id"), on="kernel_id", how="semi")
    stretches = layer_times.section_starts(on_main, found.steps)
    spent = layer_times.times_in(joined, stretches)
    sections = layer_times.step_sections(joined, stretches, spent)
    return {
        "placed": KERNEL_LAYERS.check(joined.sort("kernel_id").select(KERNEL_LAYERS.names)),
        "layers": _layers(joined, sections),
        "sections": sections,
        "categories": layer_times.layer_categories(joined, spent),
        "types": types,
        "notes": pl.DataFrame({"note": notes}, schema={"note": pl.String}),
    }


def _placement(
    trace: Trace, activities: pl.DataFrame, main: pl.DataFrame, method: str, capture: Trace | None
) -> tuple[pl.DataFrame, list[str]]:
    """What the methods find, each step by the first that applies: table `layer_placement` with `method`; and notes."""
    refused: dict[str, int] = {}

    def sequence(left: pl.DataFrame) -> pl.DataFrame:
        placed, reasons = by_sequence(main.join(left, on=_STEP, how="semi"))
        refused.update(reasons)
        return placed

    def within(left: pl.DataFrame) -> pl.DataFrame:
        return activities.join(left, on=_STEP, how="semi")

    def captured(left: pl.DataFrame) -> pl.DataFrame:
        return by_capture(trace, within(left), capture) if capture else PLACEMENT.empty()

    ladder: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
        "module": lambda left: by_modules(trace, within(left)),
        "annotation": lambda left: by_annotations(trace, within(left)),
        "graph-node": lambda left: by_graph_nodes(trace, within(left)),
        "capture": captured,
        "sequence": sequence,
    }
    left = main.select(_STEP).unique(maintain_order=True)
    n_steps = left.height
    parts = [PLACEMENT.empty().with_columns(method=pl.lit("", pl.String))]
    for name, place in ladder.items():
        if method in ("auto", name) and left.height:
            placed = _with_blocks(place(left), main)
            parts.append(placed.with_columns(method=pl.lit(name)))
            done = main.join(placed.select("kernel_id"), on="kernel_id", how="semi").select(_STEP).unique()
            left = left.join(done, on=_STEP, how="anti", maintain_order="left")
    all_steps = f"{n_steps} step{'' if n_steps == 1 else 's'}"
    notes = [f"{n} of {all_steps}: {reason}" for reason, n in sorted(refused.items())]
    if left.height and not notes:
        notes = [f"{left.height} of {all_steps}: nothing recorded tells"]
    if capture and "capture" not in _methods(parts):
        notes.append("the capture trace was not used: it names no layers, or other methods come first")
    if not n_steps:
        notes = ["no steps were found, and layers are looked for in steps"]
    return pl.concat(parts), notes


def _with_blocks(placed: pl.DataFrame, main: pl.DataFrame) -> pl.DataFrame:
    """The placement with the halves of layers of which nothing tells more than the layer, read from their kernels."""
    untold = pl.col("block") == "other"
    if placed.filter(pl.col("layer").is_not_null()).select(untold.mean()).item() != 1.0:
        return placed
    steps = main.join(placed.select("kernel_id"), on="kernel_id", how="semi").select(_STEP).unique()
    read, _ = by_sequence(main.join(steps, on=_STEP, how="semi"))
    halves = read.select("kernel_id", "model_pass", "layer", half="block")
    rows = placed.join(
        halves, on=["kernel_id", "model_pass", "layer"], how="left", validate="1:1", maintain_order="left"
    )
    return PLACEMENT.check(rows.with_columns(block=pl.coalesce("half", "block")).drop("half"))


def _methods(parts: list[pl.DataFrame]) -> set[str]:
    return {part["method"][0] for part in parts if part.height}


def _joined(activities: pl.DataFrame, placement: pl.DataFrame) -> pl.DataFrame:
    """All activities with section, model_pass, layer, block, method and confidence."""
    is_between = pl.col("section") == "between"
    renamed = placement.rename({"section": "in_step"})
    return (
        activities.join(renamed, on="kernel_id", how="left", validate="1:1", maintain_order="left")
        .with_columns(
            section=pl.when(is_between).then("section").otherwise("in_step"),
            method=pl.when(pl.col("in_step").is_not_null()).then("method"),
            confidence=pl.when(pl.col("in_step").is_not_null()).then("confidence"),
        )
        .drop("in_step")
    )


def _labels(
    trace: Trace, activities: pl.DataFrame, placement: pl.DataFrame, capture: Trace | None
) -> pl.DataFrame | None:
    """The module class of each layer that was found by modules, of the trace or of the capture."""
    methods = placement["method"].unique()
    found: list[pl.DataFrame] = []
    if (methods == "module").any():
        found.append(layer_classes(trace, activities))
    if capture and (methods == "capture").any():
        found.append(captured_classes(trace, activities, capture))
    if not found:
        return None
    devices = activities.select(_STEP).unique()
    return pl.concat(found).join(devices, on=["rank", "step"], validate="m:m").select(*_LAYER, "label")


def _layers(joined: pl.DataFrame, sections: pl.DataFrame) -> pl.DataFrame:
    facts = (
        joined.filter(pl.col("layer").is_not_null())
        .group_by(_LAYER)
        .agg(pl.first("layer_type", "method"), pl.min("confidence"))
    )
    rows = sections.filter(pl.col("section") == "layer").join(facts, on=_LAYER, validate="1:1").sort(_LAYER)
    return LAYERS.check(rows.select(LAYERS.names))


def _check_number(layers: pl.DataFrame, n_layers: int) -> None:
    """Refuses a number of layers that no step has.

    Raises:
        MissingDataError: with the numbers found.
    """
    counts = layers.group_by(*_STEP, "model_pass").agg(n=pl.len())["n"].value_counts().sort("n")
    if n_layers in counts["n"].to_list():
        return
    found = ", ".join(f"{n} layers in {times} passes" for n, times in counts.rows()) or "no layers at all"
    raise MissingDataError(f"no step has {n_layers} layers: {found}", "Leave --layers out to see what was found.")
