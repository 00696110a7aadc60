"""Every result table by its name: what rules are about, and what a query can name.

A row of `RESULTS` says where the table's columns are described and what makes its rows; both are imported when they
are first asked for, so that a command pays only for the tables it uses.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import polars as pl

from traceql import analyses
from traceql.analyses.attribution import Attribution
from traceql.analyses.layering import Layering
from traceql.analyses.summary import Selection, selected_steps, summarize
from traceql.tables import Table
from traceql.trace import Trace

STEP = ("rank", "device", "step")
"""The columns that name a step: those of them that a table has."""

Maker = Callable[[Trace, Selection], pl.DataFrame]


@dataclass(frozen=True)
class Result:
    """A result table: where its columns are, what makes its rows, what a trace must hold for it."""

    columns: str
    """`module:NAME` of its `Table`, the module below traceql.analyses."""
    rows: Maker
    """Makes it. Where it has no row a step it is made for the steps selected; others may give all steps."""
    needs: tuple[str, ...] = ()
    """As the field `needs` of a rule: without them a rule about it abstains."""
    empty_without: tuple[str, ...] = ()
    """The same names: without one of them it has no row, which is as it should be."""
    nothing: str = "there is nothing of the kind"
    """What it means that it has no row though all of these are there."""

    @property
    def table(self) -> Table:
        """The columns of the table."""
        return _named(self.columns)

    def make(self, trace: Trace, selection: Selection | None = None) -> pl.DataFrame:
        """The table of a trace or run; of the steps selected, where it goes by steps.

        Raises:
            MissingDataError: the trace does not hold what it is made from, or no step is selected.
        """
        selection = selection or Selection()
        return self.table.check(_of_steps(self.rows(trace, selection), trace, selection))


def _named(place: str) -> Any:
    module, name = place.split(":")
    return getattr(import_module(f"traceql.analyses.{module}"), name)


def _from(place: str) -> Maker:
    """A function of a trace alone, `module:function` below traceql.analyses."""

    def rows(trace: Trace, selection: Selection) -> pl.DataFrame:  # noqa: ARG001 - all makers are called alike
        return _named(place)(trace)

    return rows


def _selected(place: str) -> Maker:
    """A function of a trace and the steps selected."""

    def rows(trace: Trace, selection: Selection) -> pl.DataFrame:
        return _named(place)(trace, selection)

    return rows


def _of_steps(frame: pl.DataFrame, trace: Trace, selection: Selection) -> pl.DataFrame:
    """The rows of the steps selected; all rows where every step is, or where the table does not go by steps."""
    keys = [name for name in STEP if name in frame.columns]
    if selection == Selection() or "step" not in keys:
        return frame
    chosen = selected_steps(Attribution.of(trace).steps, selection)
    return frame.join(chosen, on=keys, how="semi", maintain_order="left")


def _collectives(trace: Trace, selection: Selection) -> pl.DataFrame:
    return _of_steps(_from("comm:collectives")(trace, selection), trace, selection)


RESULTS: dict[str, Result] = {
    "steps": Result(
        "step_windows:STEPS",
        lambda trace, _: Attribution.of(trace).steps,
        nothing="no step was found: nothing recorded tells where one begins",
    ),
    "step_categories": Result(
        "category_times:STEP_CATEGORIES",
        lambda trace, _: analyses.step_categories(trace),
        empty_without=("steps",),
        nothing="no step has a window",
    ),
    "step_pace": Result(
        "pace:STEP_PACE", _from("pace:step_pace"), empty_without=("steps",), nothing="no step has a window"
    ),
    "kernel_steps": Result("step_windows:KERNEL_STEPS", lambda trace, _: Attribution.of(trace).placed),
    "stages": Result(
        "stages:STAGES", lambda trace, steps: summarize(trace, steps).stages, empty_without=("complete-steps",)
    ),
    "groups": Result("summary:GROUPS", lambda trace, steps: summarize(trace, steps).groups),
    "categories": Result("summary:CATEGORIES", lambda trace, steps: summarize(trace, steps).categories),
    "kernel_stats": Result("summary:KERNEL_STATS", lambda trace, steps: summarize(trace, steps).kernels),
    "op_stats": Result("summary:OP_STATS", lambda trace, steps: summarize(trace, steps).ops, ("ops",)),
    "step_stats": Result(
        "summary:STEP_STATS", lambda trace, steps: summarize(trace, steps).step_stats, empty_without=("complete-steps",)
    ),
    "idle": Result("idle:IDLE", _from("idle:idle_gaps"), empty_without=("steps",), nothing="no step has a gap"),
    "idle_causes": Result(
        "pace:IDLE_CAUSES",
        lambda trace, steps: _named("pace:pace")(trace, steps).causes,
        empty_without=("windows",),
        nothing="no step has a gap",
    ),
    "launch_stats": Result(
        "pace:LAUNCH_STATS",
        lambda trace, steps: _named("pace:pace")(trace, steps).launches,
        ("launches",),
        empty_without=("windows",),
        nothing="no launch of a step is recorded",
    ),
    "queue_depth": Result(
        "pace:QUEUE_DEPTH",
        _from("pace:queue_depth"),
        ("launches",),
        nothing="no activity has a launch that is recorded",
    ),
    "clocks": Result(
        "clocks:CLOCKS",
        lambda trace, steps: _named("clocks:clock_offsets")(_collectives(trace, steps)),
        empty_without=("several-ranks", "communication"),
        nothing="no collective was matched across ranks",
    ),
    "comm_overlap": Result("concurrency:COMM_OVERLAP", _from("concurrency:comm_overlap")),
    "collectives": Result("comm:COLLECTIVES", _from("comm:collectives"), empty_without=("communication",)),
    "collective_stats": Result(
        "comm_stats:COLLECTIVE_STATS",
        lambda trace, steps: _named("comm_stats:collective_stats")(
            _collectives(trace, steps), selected_steps(Attribution.of(trace).steps, steps)
        ),
        empty_without=("communication",),
    ),
    "rank_waits": Result(
        "comm_stats:RANK_WAITS",
        lambda trace, steps: _named("comm_stats:rank_waits_of")(
            _collectives(trace, steps), selected_steps(Attribution.of(trace).steps, steps)
        ),
        empty_without=("communication",),
    ),
    "layers": Result("layer_tables:LAYERS", lambda trace, _: Layering.of(trace).layers, ("layers",)),
    "layer_types": Result("layer_tables:LAYER_TYPES", lambda trace, _: Layering.of(trace).types, ("layers",)),
    "kernel_layers": Result("layer_tables:KERNEL_LAYERS", lambda trace, _: Layering.of(trace).placed, ("layers",)),
    "step_sections": Result("layer_tables:STEP_SECTIONS", lambda trace, _: Layering.of(trace).sections, ("layers",)),
    "step_layer_categories": Result(
        "layer_tables:STEP_LAYER_CATEGORIES", lambda trace, _: Layering.of(trace).categories, ("layers",)
    ),
    "step_facts": Result("step_facts:STEP_FACTS", _from("step_facts:step_facts"), empty_without=("steps",)),
    "typical_steps": Result(
        "step_facts:TYPICAL_STEPS", _selected("step_facts:typical_steps"), empty_without=("windows",)
    ),
    "host_waits": Result(
        "host_waits:HOST_WAITS",
        _from("host_waits:host_waits"),
        ("launches",),
        nothing="no host thread waits for the GPU",
    ),
    "comm_tails": Result(
        "comm_tails:COMM_TAILS", _selected("comm_tails:comm_tails"), empty_without=("communication", "windows")
    ),
    "critical_path": Result(
        "critical_path:CRITICAL_PATH", _selected("critical_path:critical_path"), empty_without=("complete-steps",)
    ),
    "gemms": Result(
        "gemms:GEMMS",
        _selected("gemms:gemms"),
        ("ops",),
        empty_without=("shapes", "windows"),
        nothing="no matrix product was launched by an operator with recorded shapes",
    ),
    "attention_fallbacks": Result(
        "attention_fallbacks:ATTENTION_FALLBACKS",
        _selected("attention_fallbacks:attention_fallbacks"),
        empty_without=("windows",),
        nothing="attention is done by kernels of its own",
    ),
    "cast_pairs": Result(
        "cast_pairs:CAST_PAIRS",
        _selected("cast_pairs:cast_pairs"),
        empty_without=("windows",),
        nothing="no cast is undone by another",
    ),
    "casts": Result("casts:CASTS", _from("casts:casts"), nothing="no kernel casts or copies"),
    "cast_groups": Result(
        "casts:CAST_GROUPS",
        lambda trace, steps: _named("casts:cast_report")(trace, steps).groups,
        nothing="no kernel casts or copies",
    ),
    "pool_casts": Result(
        "pool_casts:POOL_CASTS", _selected("pool_casts:pool_casts"), nothing="no cast of a whole KV pool was found"
    ),
    "device_peaks": Result("device_peaks:DEVICE_PEAKS", _from("device_peaks:device_peaks")),
}
"""Every result table by its name; registering one is one row."""
