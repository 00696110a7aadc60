"""What changed between two recordings of the same service: whether it is real, and where it comes from.

Both sides are compared in steps of one stage and batch size. Totals are whole nanoseconds over a number of steps, so
that categories and idle time add up to the change of the mean step exactly, swapped sides negate it, and chains add up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceql.analyses import change
from traceql.analyses.change import Interval
from traceql.analyses.diff_kernels import Sequences, kernel_changes, replacements
from traceql.analyses.diff_sides import DiffOptions, Side, chosen_sides, median_of
from traceql.analyses.diff_tables import (
    COLLECTIVE_CHANGES,
    COMPARED_STEPS,
    DIFFERENCES,
    ROLE_CHANGES,
    WATERFALL,
    Totals,
    deltas,
)
from traceql.analyses.recording import Recording
from traceql.arrays import Floats
from traceql.ingest.ranks import in_words


@dataclass(frozen=True)
class Diff:
    """The comparison of two sides."""

    options: DiffOptions
    stage: str
    batch_size: int | None
    before: Side
    after: Side
    verdict: str
    """faster, slower, same or cannot tell."""
    reason: str | None
    """Why it cannot be told; None where it can."""
    interval: Interval | None
    """Of the change of the median step, in ns; None with fewer steps or recordings than it takes."""
    waterfall: pl.DataFrame
    """Table `waterfall`: adds up to the change of the mean step."""
    roles: pl.DataFrame
    """Table `role_changes`."""
    kernels: pl.DataFrame
    """Table `kernel_changes`."""
    replacements: pl.DataFrame
    """Table `replacements`."""
    collectives: pl.DataFrame
    """Table `collective_changes`."""
    steps: pl.DataFrame
    """Table `compared_steps`."""
    differences: pl.DataFrame
    """Table `differences`: in what else the recordings differ."""
    n_left_out: tuple[int, int]
    """Complete steps before and after that are not compared."""

    @property
    def delta_ns(self) -> float:
        """Change of the median step."""
        return self.after.median_wall_ns - self.before.median_wall_ns

    @property
    def relative(self) -> Interval | None:
        """The interval as a share of the step before."""
        median_ns = self.before.median_wall_ns
        return self.interval.scaled(1 / median_ns) if self.interval and median_ns else None

    @property
    def is_comparable(self) -> bool:
        """Whether nothing differs that makes the step times say something else."""
        return not self.differences["breaks"].any()


def diff(before: Sequence[Recording], after: Sequence[Recording], options: DiffOptions | None = None) -> Diff:
    """What changed from one side to the other, each of one recording or several of the same setting.

    Raises:
        InputError: two recordings of a side have no rank in common: they are no repetitions.
        MissingDataError: a side has no complete step, or none that the options select.
    """
    options = options or DiffOptions()
    sides = chosen_sides(before, after, options)
    a, b = sides.before, sides.after
    interval, verdict, reason = verdict_of(a.walls, b.walls, options.min_effect)
    return Diff(
        options=options,
        stage=sides.stage,
        batch_size=sides.batch_size,
        before=a,
        after=b,
        verdict=verdict,
        reason=reason,
        interval=interval,
        waterfall=_waterfall(a, b),
        roles=_role_changes(a, b),
        kernels=kernel_changes(Totals(a.frame("kernels"), a.n_steps), Totals(b.frame("kernels"), b.n_steps)),
        replacements=replacements(*(Sequences(s.frame("sequences"), s.frame("kernels"), s.n_steps) for s in (a, b))),
        collectives=_collective_changes(a, b),
        steps=_compared(a, b),
        differences=_differences(a, b, before, after),
        n_left_out=(_height(before) - a.n_steps, _height(after) - b.n_steps),
    )


def _height(recordings: Sequence[Recording]) -> int:
    return sum(recording.steps.height for recording in recordings)


def _compared(before: Side, after: Side) -> pl.DataFrame:
    sides = (
        side.frame("steps").with_columns(side=pl.lit(name)) for name, side in (("before", before), ("after", after))
    )
    return COMPARED_STEPS.check(pl.concat(sides).select(COMPARED_STEPS.names))


# --- the verdict ---


def verdict_of(
    before: Sequence[Floats], after: Sequence[Floats], min_effect: float
) -> tuple[Interval | None, str, str | None]:
    """The interval of the change of the median step, the verdict, and why there is none.

    Args:
        before: the walls of the steps in order of time, an array a recording.
        after: the same.
        min_effect: the smallest change that matters, as a share of before.
    """
    pairs = zip(before, after, strict=False)
    if len(before) == len(after) and all(np.array_equal(a, b) for a, b in pairs):
        return Interval(0.0, 0.0, 0.0), "same", None
    n_steps = min(sum(map(len, side)) for side in (before, after))
    if n_steps < change.MIN_STEPS:
        return None, "cannot tell", f"{n_steps} complete steps on a side; it takes {change.MIN_STEPS}"
    median_ns = median_of(before)
    if not median_ns:
        return None, "cannot tell", "the median step before has no length"
    found = interval_of(before, after)
    relative = found.scaled(1 / median_ns)
    verdict = change.verdict(relative, min_effect)
    if verdict == "cannot tell":
        return found, verdict, f"too uncertain: a change of {min_effect * 100:g} % matters"
    drifted = _largest_drift([*before, *after])
    if verdict != "same" and abs(drifted) >= abs(relative.difference):
        return found, "cannot tell", "step times drift within a recording as much as they differ between the two"
    return found, verdict, None


def interval_of(before: Sequence[Floats], after: Sequence[Floats]) -> Interval:
    """The change of the median of two sides' values per step, an array a recording.

    Recordings are the samples where a side has several.
    """
    if max(len(before), len(after)) > 1:
        a, b = (np.array([np.median(values) for values in side]) for side in (before, after))
        return change.recording_interval(a, b)
    return change.interval(before[0], after[0])


def _largest_drift(recordings: Sequence[Floats]) -> float:
    """The largest sure drift within a recording, as a share of its step; 0 where none is sure."""
    drifts = [change.drift(walls) for walls in recordings]
    sure = [found.difference for found in drifts if found and (found.low > 0 or found.high < 0)]
    return max(sure, key=abs, default=0.0)


# --- where it comes from ---


def _waterfall(before: Side, after: Side) -> pl.DataFrame:
    key = ["kind", "name", "group"]

    def totals(side: Side) -> Totals:
        rows = side.frame("shares").group_by(key).agg(total_ns=pl.sum("wall_ns"), walls="wall_ns")
        absent = [[0] * (side.n_steps - len(walls)) for walls in rows["walls"].to_list()]
        medians = [float(np.median([*walls, *zeros])) for walls, zeros in zip(rows["walls"], absent, strict=True)]
        return Totals(rows.drop("walls").with_columns(pl.Series("median_ns", medians, pl.Float64)), side.n_steps)

    rows = deltas(totals(before), totals(after), key, ["median_ns"])
    rows = rows.sort(pl.col("kind") == "idle", pl.col("delta_ns").abs() * -1, "name")
    return WATERFALL.check(rows.select(WATERFALL.names))


def _role_changes(before: Side, after: Side) -> pl.DataFrame:
    def totals(side: Side) -> Totals:
        sums = pl.col("n_layers", "busy_ns", "kernel_ns", "n_kernels").sum()
        return Totals(side.frame("roles").group_by("role").agg(sums, total_ns=pl.sum("wall_ns")), side.n_steps)

    rows = deltas(totals(before), totals(after), ["role"])
    return ROLE_CHANGES.check(rows.sort(pl.col("delta_ns").abs() * -1, "role").select(ROLE_CHANGES.names))


def _collective_changes(before: Side, after: Side) -> pl.DataFrame:
    """Kernel time of collectives, told apart into waiting and the rest where all were matched across ranks.

    By rank only where both sides have the rank: what a side has not recorded is not nothing.
    """
    ranks = sorted({*before.ranks} & {*after.ranks})
    frames = [_of_rank(before, after, rank) for rank in (None, *(ranks if len(ranks) > 1 else ()))]
    return COLLECTIVE_CHANGES.check(pl.concat(frames).sort("kind", "rank", nulls_last=False))


def _of_rank(before: Side, after: Side, rank: int | None) -> pl.DataFrame:
    """The collectives of a rank, per step of it; those of all without."""

    def totals(side: Side) -> Totals:
        rows, steps = side.frame("collectives"), side.frame("steps")
        if rank is not None:
            rows, steps = rows.filter(rank=rank), steps.filter(rank=rank)
        waiting = pl.when(pl.col("waiting_ns").null_count() == 0).then(pl.sum("waiting_ns")).cast(pl.Int64)
        by_kind = rows.group_by("kind")
        sums = by_kind.agg(pl.sum("n_kernels"), total_ns=pl.sum("kernel_ns"), waiting_ns=waiting)
        return Totals(sums, steps.height or 1)

    rows = deltas(totals(before), totals(after), ["kind"])
    return rows.with_columns(rank=pl.lit(rank, pl.Int16)).select(COLLECTIVE_CHANGES.names)


# --- what else differs ---


def _differences(
    before: Side, after: Side, all_before: Sequence[Recording], all_after: Sequence[Recording]
) -> pl.DataFrame:
    """Facts in which the recordings differ; of each whether step times are not comparable because of it.

    What one side does not tell may be the same.
    """
    a, b = (_described(side, recordings) for side, recordings in ((before, all_before), (after, all_after)))
    rows = [
        (fact, a[fact], b[fact], fact in _BREAKING and None not in (a[fact], b[fact]))
        for fact in a
        if a[fact] != b[fact]
    ]
    return DIFFERENCES.check(pl.DataFrame(rows, schema=DIFFERENCES.schema, orient="row"))


_BREAKING = ("GPU", "stage", "batch size", "layers a step", "world size", "engine")


def _described(side: Side, recordings: Sequence[Recording]) -> dict[str, str | None]:
    def told(field: str) -> str | None:
        values = sorted({_text(getattr(recording.facts, field)) for recording in recordings} - {None}, key=str)
        return ", ".join(map(str, values)) or None

    steps = side.frame("steps")
    return {
        "GPU": told("gpus"),
        "engine": told("engine"),
        "PyTorch": told("torch_version"),
        "CUDA runtime": told("cuda_runtime_version"),
        "NCCL": told("nccl_version"),
        "world size": told("world_size"),
        "ranks recorded": told("n_ranks"),
        "rank": in_words(side.ranks) if told("world_size") else None,
        "stage": _listed(steps["stage"].replace("unknown", None)),
        "batch size": _listed(steps["batch_size"]),
        "layers a step": _listed(steps["n_layers"].filter(steps["n_layers"] > 0)),
        "steps found by": told("step_methods"),
        "launched by": "CUDA graphs" if side.graph_frac > 0.5 else "the host, kernel by kernel",
        "shapes recorded": told("record_shapes"),
        "stacks recorded": told("with_stack"),
        "memory recorded": told("profile_memory"),
    }


def _listed(values: pl.Series) -> str | None:
    return ", ".join(map(str, values.drop_nulls().unique().sort().to_list())) or None


def _text(value: object) -> str | None:
    if value is None or value == ():
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
