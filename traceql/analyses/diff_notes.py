"""What a comparison must say beside its figures, so that nobody is fooled: who sets the pace, what waits, what hides.

Figures in texts are ms a step; means over the steps compared unless said otherwise.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from traceql.analyses import change
from traceql.analyses.diff import Diff, Side

Figure = float | int | str | None

_LEAST_OUTLIER = 0.05
"""A first step that differs by less, as a share of the median, is no outlier."""
_HIDDEN = 0.5
"""Kernel time is hidden where the step changes by less than this part of it."""


@dataclass(frozen=True)
class Note:
    """One thing to know about a comparison."""

    kind: str
    """not_comparable, host_bound, hidden, collective, profiler, recorded, drift, warm_up, left_out or launched."""
    text: str
    figures: dict[str, Figure] = field(default_factory=dict[str, Figure])
    """What the text rests on: times in ns, shares 0 to 1."""


def notes(diff: Diff) -> tuple[Note, ...]:
    """All notes of a comparison, the most important first."""
    makers: tuple[Callable[[Diff], Iterator[Note]], ...] = (
        _not_comparable, _host_bound, _hidden, _collectives, _profiler, _recorded, _drifts, _warm_ups, _left_out,
        _launched,
    )  # fmt: skip
    return tuple(note for maker in makers for note in maker(diff))


def hidden(diff: Diff) -> str | None:
    """`faster` or `slower`, which the step did not become although kernel time without communication changed; or None.

    It is so where that time changed by as much of the step as matters, and the mean step by less than half of it.
    """
    kernel_ns, step_ns = _kernel_delta_ns(diff), _step_delta_ns(diff)
    if abs(kernel_ns) < max(diff.options.min_effect * diff.before.mean_wall_ns, 1) or step_ns / kernel_ns >= _HIDDEN:
        return None
    return "faster" if kernel_ns < 0 else "slower"


def idle_delta_ns(diff: Diff) -> float:
    """Change of the idle time of the mean step."""
    return float(diff.waterfall.filter(pl.col("kind") == "idle")["delta_ns"].sum())


def _kernel_delta_ns(diff: Diff) -> float:
    return diff.after.kernel_ns / diff.after.n_steps - diff.before.kernel_ns / diff.before.n_steps


def _step_delta_ns(diff: Diff) -> float:
    return diff.after.mean_wall_ns - diff.before.mean_wall_ns


def _ms(ns: float) -> str:
    digits = 1 if abs(ns) >= 10e6 else 2
    text = f"{abs(ns) / 1e6:,.{digits}f}"
    return f"−{text}" if ns < 0 and text.strip("0.") else text


def _change_of(ns: float) -> str:
    return f"{'falls' if ns < 0 else 'grows'} by {_ms(abs(ns))}"


def _share(share: float) -> str:
    return f"{share:.0%}".replace("%", " %") if share >= 0.0995 else f"{share * 100:.1f} %"


def _not_comparable(diff: Diff) -> Iterator[Note]:
    broken = diff.differences.filter("breaks")["fact"].to_list()
    if broken:
        yield Note("not_comparable", f"the two sides are not alike ({', '.join(broken)}): step times say little")


def _host_bound(diff: Diff) -> Iterator[Note]:
    a, b = diff.before, diff.after
    if not (a.is_host_bound or b.is_host_bound):
        return
    when = {(True, True): "before and after", (True, False): "before", (False, True): "after"}
    shares = f"{_share(a.host_idle_frac)} of the step before and {_share(b.host_idle_frac)} after"
    text = f"host-bound {when[a.is_host_bound, b.is_host_bound]}: the GPU waits for the host {shares}"
    if a.is_host_bound and b.is_host_bound:
        text += "; a shorter kernel then shortens the step little or not at all"
    figures: dict[str, Figure] = {
        "before_host_idle_frac": a.host_idle_frac,
        "after_host_idle_frac": b.host_idle_frac,
    }
    yield Note("host_bound", text, figures)


def _hidden(diff: Diff) -> Iterator[Note]:
    missed = hidden(diff)
    if missed is None:
        return
    kernel_ns, step_ns, idle_ns = _kernel_delta_ns(diff), _step_delta_ns(diff), idle_delta_ns(diff)
    comm_ns = float(diff.waterfall.filter(pl.col("group") == "nccl")["delta_ns"].sum())
    text = f"kernel time without communication {_change_of(kernel_ns)} ms a step, the step {_change_of(step_ns)}"
    where = [
        f"{what} {'grows' if ns > 0 else 'shrinks'} by {_ms(abs(ns))}"
        for what, ns in (("idle time", idle_ns), ("time in collectives", comm_ns))
        if ns * kernel_ns < 0 and abs(ns) > 0.05 * abs(kernel_ns)
    ]
    bound = diff.before.is_host_bound or diff.after.is_host_bound
    why = "the host sets the pace" if bound else "the GPU was not what the step waited for"
    found = f"; {' and '.join(where)}" if where else ""
    kept = "the time saved is hidden, not lost" if missed == "faster" else "the time added is hidden"
    figures: dict[str, Figure] = {
        "kernel_delta_ns": kernel_ns, "step_delta_ns": step_ns, "idle_delta_ns": idle_ns, "comm_delta_ns": comm_ns,
    }  # fmt: skip
    yield Note("hidden", f"{text}: {why}, {kept}{found}", figures)


def _collectives(diff: Diff) -> Iterator[Note]:
    least_ns = diff.options.min_effect * diff.before.mean_wall_ns
    for row in diff.collectives.filter(pl.col("rank").is_null()).iter_rows(named=True):
        if abs(row["delta_ns"]) < least_ns:
            continue
        kind = str(row["kind"]).replace("_", "-")
        text = f"{kind} takes {_ms(abs(row['delta_ns']))} ms a step {'more' if row['delta_ns'] > 0 else 'less'}"
        before_ns, after_ns = row["before_waiting_ns_per_step"], row["after_waiting_ns_per_step"]
        figures: dict[str, Figure] = {"collective": row["kind"], "delta_ns": row["delta_ns"], "waiting_delta_ns": None}
        if before_ns is None or after_ns is None:
            n_ranks = max(len(diff.before.ranks), len(diff.after.ranks))
            why = "with one rank" if n_ranks == 1 else "where not all are matched across the ranks"
            yield Note("collective", f"{text}; waiting cannot be told from transfer {why}", figures)
            continue
        waiting_ns = after_ns - before_ns
        figures["waiting_delta_ns"] = waiting_ns
        transfer_ns = row["delta_ns"] - waiting_ns
        sign = 1 if row["delta_ns"] > 0 else -1
        parts = f"{_ms(sign * waiting_ns)} waiting for the slower rank, {_ms(sign * transfer_ns)} transfer"
        yield Note("collective", f"{text}: {parts}{_by_rank(diff, row['kind'])}", figures)


def _by_rank(diff: Diff, kind: str) -> str:
    """What the median step of each rank spends in it, of at most four ranks those with the largest change."""
    rows = {
        rank: (_median_ns(diff.before, kind, rank), _median_ns(diff.after, kind, rank))
        for rank in sorted({*diff.before.ranks} & {*diff.after.ranks})
    }
    if len(rows) < 2:
        return ""
    first = sorted(rows, key=lambda rank: -abs(rows[rank][1] - rows[rank][0]))[:4]
    told = ", ".join(f"{_ms(rows[rank][0])} → {_ms(rows[rank][1])} on rank {rank}" for rank in sorted(first))
    return f"; its time in the median step: {told}"


def _median_ns(side: Side, kind: str, rank: int) -> float:
    steps = side.frame("steps").filter(rank=rank)
    times = side.frame("collectives").filter(kind=kind, rank=rank)["kernel_ns"].to_list()
    return float(np.median([*times, *[0] * (steps.height - len(times))]))


def _profiler(diff: Diff) -> Iterator[Note]:
    """Unprofiled figures beside profiled ones; without, a warning where the host sets the pace."""
    controls = [
        [known for r in side.recordings if (known := r.facts.control_step_ns) is not None]
        for side in (diff.before, diff.after)
    ]
    if all(controls):
        a_ns, b_ns = (float(np.mean(known)) for known in controls)
        profiled = f"{_ms(diff.before.median_wall_ns)} → {_ms(diff.after.median_wall_ns)}"
        longer = f"{_share(abs(1 - b_ns / a_ns))} {'shorter' if b_ns <= a_ns else 'longer'}"
        text = f"without the profiler a step takes {_ms(a_ns)} → {_ms(b_ns)} ms, {longer}; with it {profiled}"
        yield Note("profiler", text, {"before_control_step_ns": a_ns, "after_control_step_ns": b_ns})
    elif diff.before.is_host_bound or diff.after.is_host_bound:
        text = (
            "the profiler slows the host, so it may hide a gain or a loss here: "
            "no control runs without it are beside the traces (traceql capture records them)"
        )
        yield Note("profiler", text)


def _recorded(diff: Diff) -> Iterator[Note]:
    """Profiler options of one side only, where they count: each slows the host."""
    options = diff.differences.filter(pl.col("fact").str.ends_with(" recorded") & (pl.col("fact") != "ranks recorded"))
    if options.height and (diff.before.is_host_bound or diff.after.is_host_bound):
        what = " and ".join(fact.removesuffix(" recorded") for fact in options["fact"])
        text = f"{what} are not recorded alike: recording them slows the host, and with it a host-bound step"
        yield Note("recorded", text)


def _drifts(diff: Diff) -> Iterator[Note]:
    for name, side in (("before", diff.before), ("after", diff.after)):
        for number, walls in enumerate(side.walls):
            found = change.drift(walls)
            if found is None or found.low <= 0 <= found.high or abs(found.difference) < diff.options.min_effect:
                continue
            which = f" {number + 1}" if len(side.walls) > 1 else ""
            longer = "longer" if found.difference > 0 else "shorter"
            text = (
                f"{name}{which}: steps get {_share(abs(found.difference))} {longer} from the first half to the second"
            )
            yield Note("drift", text, {"side": name, "recording": number, "drift": found.difference})


def _warm_ups(diff: Diff) -> Iterator[Note]:
    for name, side in (("before", diff.before), ("after", diff.after)):
        for number, walls in enumerate(side.walls):
            middle = float(np.median(walls))
            spread = float(np.median(np.abs(walls - middle)))
            off_ns = abs(float(walls[0]) - middle)
            if off_ns > change.OUTLIER_MADS * spread and off_ns > _LEAST_OUTLIER * middle:
                step = int(side.recordings[number].steps["step"].to_numpy().min())
                added_ns, most = _added_by(side, number, step)
                text = (
                    f"{name}: its first step, {step}, takes {_ms(float(walls[0]))} ms, the median {_ms(middle)}; it "
                    f"makes the mean step {_ms(abs(added_ns))} ms {'longer' if added_ns > 0 else 'shorter'}, "
                    f"most of it {most} (--steps {step + 1}: leaves it out)"
                )
                figures: dict[str, Figure] = {
                    "side": name, "recording": number, "wall_ns": float(walls[0]), "mean_delta_ns": added_ns,
                    "mostly": most,
                }  # fmt: skip
                yield Note("warm_up", text, figures)


def _added_by(side: Side, number: int, step: int) -> tuple[float, str]:
    """What a step of a recording adds to the mean step of its side, and the category or idle cause with most of it."""
    is_it = (pl.col("recording") == number) & (pl.col("step") == step)
    n_windows = side.frame("steps").filter(is_it).height
    all_ns, its_ns = pl.sum("wall_ns"), pl.col("wall_ns").filter(is_it).sum()
    added = all_ns / side.n_steps - (all_ns - its_ns) / (side.n_steps - n_windows)
    rows = side.frame("shares").group_by("kind", "name").agg(added_ns=added)
    total_ns = float(rows["added_ns"].sum())
    most = rows.sort(pl.col("added_ns") * (-1 if total_ns > 0 else 1), "kind", "name").row(0, named=True)
    return total_ns, f"idle: {most['name']}" if most["kind"] == "idle" else str(most["name"])


def _left_out(diff: Diff) -> Iterator[Note]:
    if any(diff.n_left_out):
        batch = "" if diff.batch_size is None else f" of batch {diff.batch_size}"
        ranks = ", ".join(map(str, sorted({*diff.before.ranks, *diff.after.ranks})))
        stage = "" if diff.stage == "unknown" else f"{diff.stage} "
        a, b = diff.n_left_out
        first, end = ("" if step is None else step for step in (diff.options.first_step, diff.options.end_step))
        chosen = f" {first}:{end}" if (first, end) != ("", "") else ""
        compared = f"{stage}steps{chosen}{batch} of rank {ranks}"
        text = f"only {compared} are compared: {a} of before and {b} of after are left out"
        yield Note("left_out", text, {"before": a, "after": b})


def _launched(diff: Diff) -> Iterator[Note]:
    a, b = diff.before.graph_frac, diff.after.graph_frac
    if (a > 0.5) != (b > 0.5):
        eager, graph = ("after", "before") if a > b else ("before", "after")
        text = (
            f"{eager} is launched by the host kernel by kernel, {graph} by CUDA graphs: a graph records neither ops "
            "nor a launch per kernel, so what is missing there is not gone"
        )
        yield Note("launched", text, {"before_graph_frac": a, "after_graph_frac": b})


__all__ = ["Note", "hidden", "idle_delta_ns", "notes"]
