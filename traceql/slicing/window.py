"""What a slice holds: GPU activities by traceql's own attribution, and the time on the host that belongs to them."""

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from traceql import fmt
from traceql.analyses.attribution import Attribution
from traceql.analyses.layering import Layering
from traceql.analyses.summary import Selection
from traceql.errors import MissingDataError
from traceql.ingest.ranks import in_words
from traceql.slicing.stretches import FOREVER, Stretches
from traceql.trace import Trace

MARGIN_NS = 1_000_000
"""Around a kernel, unless told otherwise."""
_STEP = ["rank", "device", "step"]
_KERNEL = [
    "kernel_id",
    "rank",
    "device",
    "stream",
    "name",
    "short_name",
    "start_ns",
    "dur_ns",
    "correlation",
    "launch_id",
]
_END = pl.col("start_ns") + pl.col("dur_ns")


@dataclass(frozen=True)
class Wish:
    """What to cut out; each part narrows what the ones before it left."""

    steps: Selection = field(default_factory=Selection)
    layer: int | None = None
    time: tuple[int | None, int | None] | None = None
    """From and to, ns since the trace's first event; None for an open end."""
    around: str | None = None
    """A part of a kernel's name, literally: the name as recorded or as traceql shows it."""
    occurrence: int | None = None
    """Which of them, from 1 in order of start; None for the longest."""
    margin_ns: int = MARGIN_NS

    @property
    def by_step(self) -> bool:
        """Whether steps are chosen."""
        return self.steps != Selection()


@dataclass(frozen=True)
class Window:
    """What a slice holds, in the trace's time."""

    words: tuple[str, ...]
    """What was chosen, for people."""
    kernels: pl.DataFrame
    """The GPU activities."""
    calls: pl.DataFrame
    """The calls that launched them: rank, thread_id, start_ns, dur_ns."""
    host: dict[int, Stretches]
    """By rank: the time on the host of which everything is kept."""

    def gpu(self, rank: int) -> tuple[int, int] | None:
        """From the first to the last moment of the rank's activities."""
        timed = self.kernels.filter((pl.col("rank") == rank) & pl.col("start_ns").is_not_null())
        return timed.select(pl.min("start_ns"), end_ns=_END.max()).row(0) if timed.height else None

    def both(self, rank: int) -> Stretches:
        """The rank's time on the host, and that of its activities."""
        gpu = self.gpu(rank)
        return Stretches.union([self.host[rank], *([Stretches.one(*gpu)] if gpu else [])])


def find_window(trace: Trace, wish: Wish) -> Window:
    """The window of a wish.

    Raises:
        MissingDataError: nothing is in it; the hint says what there is.
    """
    kernels = trace.kernels.select(_KERNEL).collect()
    ranks = trace.threads.select(pl.col("rank").unique().sort()).collect()["rank"].to_list()
    host = {rank: Stretches.one(-FOREVER, FOREVER) for rank in ranks}
    words: list[str] = []
    if wish.by_step:
        kernels, host = _steps(trace, wish.steps, kernels, words)
        host = {rank: host.get(rank, Stretches.union([])) for rank in ranks}
    if wish.layer is not None:
        kernels, host = _layer(trace, wish.layer, kernels, words)
        host = {rank: host.get(rank, Stretches.union([])) for rank in ranks}
    if wish.time is not None:
        start, end = _time(trace, wish.time, words)
        kernels = _running(kernels, start, end)
        host = {rank: stretches.within(start, end) for rank, stretches in host.items()}
    if wish.around is not None:
        chosen = _occurrence(wish, kernels, words)
        start, end = chosen["start_ns"] - wish.margin_ns, chosen["start_ns"] + chosen["dur_ns"] + wish.margin_ns
        kernels = _running(kernels, start, end).filter(pl.col("rank") == chosen["rank"])
        none = Stretches.union([])
        host = {r: s.within(start, end) if r == chosen["rank"] else none for r, s in host.items()}
    if not kernels.height and not any(len(stretches.start) for stretches in host.values()):
        raise MissingDataError(f"nothing lies in {', '.join(words)} at once", "Leave one of the options out.")
    calls = trace.launches.select("launch_id", "rank", "thread_id", "start_ns", "dur_ns").collect()
    return Window(tuple(words), kernels, calls.join(kernels, on="launch_id", how="semi"), host)


def _running(kernels: pl.DataFrame, start: int, end: int) -> pl.DataFrame:
    """The activities that run in an interval, if only for a part of it."""
    return kernels.filter((pl.col("start_ns") < end) & (pl.max_horizontal(_END, pl.col("start_ns") + 1) > start))


# --- by step


def _steps(
    trace: Trace, selection: Selection, kernels: pl.DataFrame, words: list[str]
) -> tuple[pl.DataFrame, dict[int, Stretches]]:
    """The activities that the steps launched, and the steps' time on the host: from each mark to the next."""
    found = Attribution.of(trace)
    wanted = _selected(found.steps, selection)
    placed = found.placed.select("kernel_id", "step")
    kernels = kernels.join(placed, on="kernel_id", validate="1:1", maintain_order="left")
    kernels = kernels.join(wanted.select(_STEP), on=_STEP, how="semi", maintain_order="left").drop("step")
    marks = found.marks.sort("rank", "start_ns").with_columns(next_ns=pl.col("start_ns").shift(-1).over("rank"))
    marks = marks.join(wanted.select("rank", "step").unique(), on=["rank", "step"], how="semi", maintain_order="left")
    marks = marks.with_columns(until_ns=pl.max_horizontal("end_ns", "next_ns"))
    numbers = wanted["step"].unique().to_list()
    stages = " and ".join(wanted["stage"].unique().sort().to_list())
    words.append(f"{'step' if len(numbers) == 1 else 'steps'} {in_words(numbers)} ({stages})")
    return kernels, _by_rank(marks["rank"], marks["start_ns"], marks["until_ns"])


def _selected(steps: pl.DataFrame, selection: Selection) -> pl.DataFrame:
    if not steps.height:
        raise MissingDataError("no steps were found in the trace", "Cut by --time or --around instead.")
    wanted = steps
    if selection.first_step is not None:
        wanted = wanted.filter(pl.col("step") >= selection.first_step)
    if selection.end_step is not None:
        wanted = wanted.filter(pl.col("step") < selection.end_step)
    if selection.stage is not None:
        wanted = wanted.filter(pl.col("stage") == selection.stage)
    if not wanted.height:
        by_stage = steps.group_by("stage").agg(pl.col("step").unique()).sort("stage").rows()
        known = "; ".join(f"{in_words(numbers)} (stage {stage})" for stage, numbers in by_stage)
        raise MissingDataError("there is no such step", f"The steps are {known}.")
    return wanted


def _by_rank(ranks: pl.Series, starts: pl.Series, ends: pl.Series) -> dict[int, Stretches]:
    rank, start, end = ranks.to_numpy(), starts.to_numpy(), ends.to_numpy()
    return {int(r): Stretches.of(start[rank == r], end[rank == r]) for r in np.unique(rank)}


# --- by layer


def _layer(
    trace: Trace, layer: int, kernels: pl.DataFrame, words: list[str]
) -> tuple[pl.DataFrame, dict[int, Stretches]]:
    """The activities of the layer in what is left, and for each step the time of the calls that launched them."""
    found = Layering.of(trace)
    if not found.layers.height:
        reason = found.notes[0] if found.notes else "nothing recorded tells"
        raise MissingDataError(f"no layers were found: {reason}", "Cut by --steps, --time or --around instead.")
    placed = found.placed.filter(pl.col("layer") == layer).select("kernel_id", "model_pass")
    steps = Attribution.of(trace).placed.select("kernel_id", "step")
    rows = kernels.join(placed, on="kernel_id", validate="1:1", maintain_order="left").join(
        steps, on="kernel_id", validate="1:1", maintain_order="left"
    )
    if not rows.height:
        known = in_words(found.layers["layer"].unique().to_list())
        raise MissingDataError(f"there is no layer {layer} here", f"The layers are {known}.")
    calls = trace.launches.select("launch_id", call_ns="start_ns", call_end_ns=_END).collect()
    spans = (
        rows.join(calls, on="launch_id", validate="m:1")
        .group_by("rank", "step", "model_pass")
        .agg(pl.min("call_ns"), pl.max("call_end_ns"))
    )
    words.append(f"layer {layer}")
    return rows.select(kernels.columns), _by_rank(spans["rank"], spans["call_ns"], spans["call_end_ns"])


# --- by time


def _time(trace: Trace, time: tuple[int | None, int | None], words: list[str]) -> tuple[int, int]:
    span_ns = trace.meta.span_ns
    if span_ns is None:
        raise MissingDataError("the trace holds nothing that has a time", "Was anything recorded?")
    start, end = time[0] or 0, span_ns + 1 if time[1] is None else time[1]
    if start > span_ns:
        raise MissingDataError(
            f"the trace ends before {fmt.duration(start)}",
            f"It lasts {fmt.duration(span_ns)}; times count from its first event.",
        )
    words.append(f"{fmt.duration(start)} to {fmt.duration(min(end, span_ns))}")
    return start, end


# --- around a kernel


def _occurrence(wish: Wish, kernels: pl.DataFrame, words: list[str]) -> dict[str, int]:
    """The chosen one of the activities whose name holds the text."""
    text = wish.around or ""
    is_named = pl.col("name").str.contains(text, literal=True) | pl.col("short_name").str.contains(text, literal=True)
    named = kernels.filter(is_named & pl.col("start_ns").is_not_null()).sort("start_ns", "kernel_id")
    if not named.height:
        longest = kernels.filter(pl.col("dur_ns").is_not_null()).sort("dur_ns", descending=True)["short_name"]
        known = ", ".join(fmt.visible(name[:60]) for name in longest.unique(maintain_order=True).head(3))
        raise MissingDataError(
            f"no GPU activity here has {fmt.visible(text[:80])!r} in its name",
            f"It is matched literally, case and all; the longest here are {known}." if known else "There are none.",
        )
    number = wish.occurrence or 1 + int(named["dur_ns"].arg_max() or 0)
    if number > named.height:
        raise MissingDataError(
            f"there is no occurrence {number} of {fmt.visible(text[:80])!r}",
            f"There are {fmt.count(named.height)} here.",
        )
    chosen = named.row(number - 1, named=True)
    which = f"occurrence {number:,} of {named.height:,}" + ("" if wish.occurrence else ", the longest")
    words.append(
        f"{fmt.duration(wish.margin_ns)} around {fmt.visible(chosen['short_name'][:60])} ({which}; "
        f"{fmt.duration(chosen['dur_ns'])} at {fmt.duration(chosen['start_ns'])}, rank {chosen['rank']}, "
        f"device {chosen['device']}, stream {chosen['stream']})"
    )
    return chosen
