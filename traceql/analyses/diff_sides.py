"""The two sides of a comparison: which steps of which recordings are compared, and what each side has of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceql.analyses import comm
from traceql.analyses.pace import HOST_BOUND_FRAC
from traceql.analyses.recording import Recording
from traceql.arrays import Floats
from traceql.errors import InputError, MissingDataError
from traceql.ingest.ranks import in_words

MIN_EFFECT = 0.01
"""The smallest change of the step time that matters, as a share of it, unless told otherwise."""
_KEY = ["rank", "device", "step"]
_HOST_CAUSES = ("launch", "sync")


@dataclass(frozen=True)
class DiffOptions:
    """Which steps are compared, and what counts as a change."""

    stage: str | None = None
    """None: decode where both sides have it, else the commonest stage of both."""
    batch_size: int | None = None
    """None: the commonest batch size of both sides."""
    first_step: int | None = None
    end_step: int | None = None
    min_effect: float = MIN_EFFECT


@dataclass(frozen=True)
class Side:
    """One side of a comparison, of the steps compared."""

    recordings: tuple[Recording, ...]
    """With nothing but the steps compared."""
    n_steps: int
    """Windows (rank, device, step) of all recordings: what totals are divided by."""
    walls: tuple[Floats, ...]
    """Of each recording the wall of each step in ns, mean over ranks, in order of time."""

    @property
    def ranks(self) -> list[int]:
        """The ranks of its steps."""
        return self.frame("steps")["rank"].unique().sort().to_list()

    @property
    def median_wall_ns(self) -> float:
        """Median step; of several recordings the mean of their medians."""
        return median_of(self.walls)

    @property
    def mean_wall_ns(self) -> float:
        """Mean over all windows: what the waterfall starts from or ends at."""
        return self.total("steps", "wall_ns") / self.n_steps

    def wall_quantile_ns(self, part: float) -> float:
        """The wall that a part of the steps of all recordings stay below (linear interpolation)."""
        return float(np.quantile(np.concatenate(self.walls), part))

    def total(self, table: str, column: str) -> int:
        """Sum of a column over all recordings."""
        return sum(int(getattr(recording, table)[column].sum()) for recording in self.recordings)

    def frame(self, table: str) -> pl.DataFrame:
        """A table of all recordings, with their number in `recording`."""
        frames = [
            getattr(recording, table).with_columns(recording=pl.lit(number, pl.Int64))
            for number, recording in enumerate(self.recordings)
        ]
        return pl.concat(frames)

    def times(self, kind: str, name: str | None = None) -> tuple[Floats, ...]:
        """Of each recording the time that each step had for a category or for idle time; as `walls`."""
        wanted = (pl.col("kind") == kind) & (pl.lit(value=True) if name is None else pl.col("name") == name)
        found: list[Floats] = []
        for recording in self.recordings:
            sums = recording.shares.filter(wanted).group_by(_KEY).agg(share_ns=pl.sum("wall_ns"))
            steps = recording.steps.join(sums, on=_KEY, how="left", validate="1:1")
            found.append(by_step(steps.with_columns(pl.col("share_ns").fill_null(0)), "share_ns"))
        return tuple(found)

    @property
    def kernel_ns(self) -> int:
        """Kernel time of all steps without communication."""
        shares = self.frame("shares").filter(pl.col("name") != comm.CATEGORY)
        return int(shares["kernel_ns"].sum())

    @property
    def host_idle_frac(self) -> float:
        """Share of the wall in which the GPU waits for the host."""
        shares = self.frame("shares").filter(pl.col("kind") == "idle", pl.col("name").is_in(_HOST_CAUSES))
        return int(shares["wall_ns"].sum()) / max(self.total("steps", "wall_ns"), 1)

    @property
    def is_host_bound(self) -> bool:
        """Whether the host sets the pace."""
        return self.host_idle_frac >= HOST_BOUND_FRAC

    @property
    def graph_frac(self) -> float:
        """Share of the activities that graphs launched."""
        return self.total("steps", "n_graph_kernels") / max(self.total("steps", "n_kernels"), 1)


@dataclass(frozen=True)
class Sides:
    """Both sides of a comparison, in steps of one stage and batch size."""

    before: Side
    after: Side
    stage: str
    batch_size: int | None
    """None: of any."""


def chosen_sides(before: Sequence[Recording], after: Sequence[Recording], options: DiffOptions) -> Sides:
    """The sides with nothing but the steps compared.

    Raises:
        InputError: two recordings of a side have no rank in common: they are no repetitions.
        MissingDataError: a side has no complete step, or none that the options select.
    """
    for name, side in (("before", before), ("after", after)):
        _check_steps(side)
        _check_repetitions(name, side)
    ranks = _common_ranks(before, after)
    stage, batch_size = _common_steps(before, after, options)
    a, b = (_side(recordings, ranks, stage, batch_size, options) for recordings in (before, after))
    return Sides(a, b, stage, batch_size)


def _check_steps(recordings: Sequence[Recording]) -> None:
    """Refuses a side that no choice of steps could compare.

    Raises:
        MissingDataError: none of its recordings has a complete step.
    """
    if all(recording.steps.is_empty() for recording in recordings):
        names = ", ".join(recording.facts.name for recording in recordings)
        raise MissingDataError(
            f"no complete step to compare in {names}",
            "A step is complete when another one follows it: record two or more.",
        )


def _check_repetitions(name: str, recordings: Sequence[Recording]) -> None:
    """Refuses the ranks of one run in place of recordings: their steps are as long as each other's, and vary together.

    Raises:
        InputError: two recordings have no rank in common.
    """
    told = [(recording, set(recording.steps["rank"])) for recording in recordings if recording.steps.height]
    for number, (one, ranks) in enumerate(told):
        for other, others in told[:number]:
            if not ranks & others:
                raise InputError(
                    f"{name}: {other.facts.name} and {one.facts.name} are of ranks {in_words(others)} and "
                    f"{in_words(ranks)}, no two recordings of the same",
                    "Name the ranks of a run as one: a folder, or a quoted pattern such as 'run/*TP-*.json.gz'.",
                )


def _common_ranks(before: Sequence[Recording], after: Sequence[Recording]) -> pl.Series | None:
    """The ranks of both sides where they have several and not the same; else None: all."""
    ranks = [set(pl.concat([r.steps for r in side])["rank"].unique().to_list()) for side in (before, after)]
    common = ranks[0] & ranks[1]
    return pl.Series(sorted(common), dtype=pl.Int16) if common and ranks[0] != ranks[1] else None


def _common_steps(
    before: Sequence[Recording], after: Sequence[Recording], options: DiffOptions
) -> tuple[str, int | None]:
    """Stage and batch size to compare: as asked for, else decode or the commonest that both have."""
    counts = [Counter[tuple[str, int | None]](), Counter[tuple[str, int | None]]()]
    for count, side in zip(counts, (before, after), strict=True):
        for recording in side:
            count.update(recording.steps.select("stage", "batch_size").rows())
    a, b = counts
    wanted = [
        (stage, batch) for stage, batch in sorted(set(a) | set(b), key=str)
        if options.stage in (None, stage) and options.batch_size in (None, batch)
    ]  # fmt: skip
    if not wanted:
        have = ", ".join(f"{stage} batch {batch}" for stage, batch in sorted(set(a) | set(b), key=str)) or "none"
        raise MissingDataError("no complete step is selected", f"Complete steps there are: {have}.")
    in_both = [kind for kind in wanted if kind in a and kind in b]
    if in_both:
        return max(in_both, key=lambda kind: (kind[0] == "decode", min(a[kind], b[kind]), kind[1] or 0))
    stages = Counter({stage: min(_of(a, stage), _of(b, stage)) for stage, _ in wanted})
    stage = max(stages, key=lambda stage: (stages[stage] > 0, stage == "decode", stages[stage], stage))
    return stage, options.batch_size


def _of(counts: Counter[tuple[str, int | None]], stage: str) -> int:
    return sum(n for (of_stage, _), n in counts.items() if of_stage == stage)


def _side(
    recordings: Sequence[Recording], ranks: pl.Series | None, stage: str, batch_size: int | None, options: DiffOptions
) -> Side:
    """The side with nothing but the steps compared; every stage where it has none of that stage."""
    wanted = pl.lit(value=True)
    if ranks is not None:
        wanted &= pl.col("rank").is_in(ranks.implode())
    if options.first_step is not None:
        wanted &= pl.col("step") >= options.first_step
    if options.end_step is not None:
        wanted &= pl.col("step") < options.end_step
    of_kind = pl.col("stage") == stage
    if batch_size is not None:
        of_kind &= pl.col("batch_size") == batch_size
    has_kind = any(recording.steps.filter(wanted & of_kind).height for recording in recordings)
    if options.stage is not None or options.batch_size is not None or has_kind:
        wanted &= of_kind
    every = (recording.only(wanted) for recording in recordings)
    chosen = tuple(recording for recording in every if recording.steps.height)
    n_steps = sum(recording.steps.height for recording in chosen)
    if not n_steps:
        raise MissingDataError(
            f"{recordings[0].facts.name} has no complete step of those compared",
            "Choose others with --stage, --batch-size or --steps; the last step of a recording is never complete.",
        )
    walls = tuple(by_step(recording.steps, "wall_ns") for recording in chosen)
    return Side(chosen, n_steps, walls)


def by_step(steps: pl.DataFrame, column: str) -> Floats:
    """A column of each step, mean over its ranks and devices, in order of steps."""
    return steps.group_by("step").agg(pl.mean(column)).sort("step")[column].to_numpy()


def median_of(values: Sequence[Floats]) -> float:
    """The median; of several recordings the mean of their medians."""
    return float(np.mean([np.median(each) for each in values]))
