"""Sentences about a summary, in plain words: what it covers, what was recorded, what is missing."""

from typing import Any, cast

import polars as pl

from traceql import fmt
from traceql.analyses.rank_stats import RunSummary
from traceql.analyses.step_windows import complete_steps
from traceql.analyses.summary import OUTLIER_PEERS, Selection, Summary
from traceql.ingest.meta import Device
from traceql.ingest.ranks import in_words, missing_ranks
from traceql.report import numbers
from traceql.report.stage_words import of_all_stages, step_name

OPEN = Selection()
_CPU_OPS = (" cpu_op", " operator")
"""Ends of the names that events of CPU operators are counted by: of today, and of 2020."""


def steps_covered(summary: Summary) -> pl.DataFrame:
    """The steps whose windows a summary covers; none when it covers the whole trace."""
    if summary.scope != "steps":
        return summary.steps.clear()
    return complete_steps(summary.steps).filter(pl.col("wall_ns").is_not_null())


def is_multi_device(summary: Summary) -> bool:
    """Whether a step number alone does not name a step."""
    return summary.steps.select("rank", "device").n_unique() > 1


def median_wall_ns(summary: Summary) -> float | None:
    """The median wall of the steps covered."""
    medians = summary.step_stats.filter(figure="wall_ns")["median"]
    return medians[0] if len(medians) else None


def median_beside(summary: Summary, step: dict[str, Any]) -> float | None:
    """The median wall of the steps covered that are of the same rank, device, stage and batch size as a step."""
    steps = steps_covered(summary)
    alike = steps.join(pl.DataFrame([step], schema=steps.schema), on=OUTLIER_PEERS, how="semi", nulls_equal=True)
    return cast("float | None", alike["wall_ns"].median())


def subject(summary: Summary) -> str:
    """What the headline is about: `decode step 84.025 ms (median of 29 complete steps, batch 8)`."""
    if isinstance(summary, RunSummary):
        return _run_subject(summary)
    if summary.scope != "steps":
        wall = fmt.duration(numbers.ratio(summary.wall_ns, summary.n_windows))
        return f"GPU activity {wall} ({no_steps(summary)}: {_one_window(summary)})"
    return stage_subject(summary, summary.stages.row(0, named=True))


def stage_subject(summary: Summary, stage: dict[str, Any]) -> str:
    """The same of one stage, a row of `stages`."""
    steps = steps_covered(summary).filter(stage=stage["stage"])
    number = f"median of {_windows(steps)}" if steps.height > 1 else "1 complete step"
    about = [number, *_batch(steps["batch_size"].drop_nulls())]
    name = step_name(stage["stage"]) if has_stages(summary) else _step_name(steps)
    return f"{name} {fmt.duration(stage['median_wall_ns'])} ({', '.join(about)})"


def has_stages(summary: Summary) -> bool:
    """Whether the steps are of several stages, of which one figure for all would say nothing."""
    return summary.stages.height > 1


def _run_subject(summary: RunSummary) -> str:
    """`decode step 85.200 ms on rank 0 (median rank of 2, ...); slowest rank 1: 85.300 ms`.

    The median rank is the middle one by median wall, of an even number the faster of the middle two.
    """
    placed = ranked(summary)
    middle, slowest = placed[(len(placed) - 1) // 2], placed[-1]
    if summary.scope == "steps":
        steps = steps_covered(summary)
        about = [
            f"median of {_windows_of(middle)}{' of all stages' if has_stages(summary) else ''}",
            *_batch(steps["batch_size"].drop_nulls()),
        ]
        what = _step_name(steps)
    else:
        what, about = "GPU activity", [no_steps(summary), "one window a device"]
    about = ", ".join([f"median rank of {len(placed)}", *about])
    text = f"{what} {fmt.duration(middle['wall_ns'])} on {place(summary, middle)} ({about})"
    if slowest["wall_ns"] == middle["wall_ns"]:
        return text
    return f"{text}; slowest {place(summary, slowest)}: {fmt.duration(slowest['wall_ns'])}"


def ranked(summary: RunSummary) -> list[dict[str, Any]]:
    """The rows of `rank_stats` that have a wall, the fastest first."""
    known = summary.ranks.filter(pl.col("wall_ns").is_not_null())
    return known.sort("wall_ns", "rank", "device").rows(named=True)


def place(summary: RunSummary, row: dict[str, Any]) -> str:
    """`rank 0`, with the device where a rank has several."""
    has_one = summary.ranks["rank"].is_unique().all()
    return f"rank {row['rank']}" if has_one else f"rank {row['rank']}, device {row['device']}"


def _windows_of(rank: dict[str, Any]) -> str:
    return fmt.plural(rank["n_steps"], "complete step")


def _step_name(steps: pl.DataFrame) -> str:
    stages = steps["stage"].unique().to_list()
    return f"{stages[0]} step" if len(stages) == 1 and stages[0] != "unknown" else "step"


def _one_window(summary: Summary) -> str:
    return "the whole trace is one window" if summary.n_windows == 1 else "one window a device"


def _windows(steps: pl.DataFrame) -> str:
    n_steps, devices = fmt.plural(steps.height, "complete step"), steps.select("rank", "device").n_unique()
    return n_steps if devices == 1 else f"{n_steps} on {fmt.plural(devices, 'device')}"


def _batch(sizes: pl.Series) -> list[str]:
    if sizes.is_empty():
        return []
    least, most = min(sizes.to_list()), max(sizes.to_list())
    return [f"batch {least}" if least == most else f"batch {least} to {most}"]


def no_steps(summary: Summary) -> str:
    """Why no step is covered."""
    if summary.steps.height:
        return "no complete step selected" if summary.selection != OPEN else "no complete step"
    return "no such step" if summary.selection != OPEN else "no steps found"


def no_gpu_time(summary: Summary) -> tuple[str, ...]:
    """Why there is no GPU time to speak of, and what to record instead."""
    if not summary.trace.n_events:
        return ("Nothing was recorded: the trace has no events.",)
    quirks = {quirk.id for quirk in summary.quirks}
    if "not-a-gpu" in quirks:
        return ("No GPU activity: the device of this trace is not a GPU, and what ran on it is not analysed.",)
    if "no-kernels" in quirks:
        return (
            "GPU time is unknown: launches were recorded, but no GPU activity.",
            "Check that CUPTI (or roctracer) works in the serving process, then record again.",
        )
    if summary.n_kernels_total:
        return ("GPU time is unknown: the GPU activities of this trace carry no times.",)
    return (
        "No GPU activity: this is a CPU-only trace, GPU time is unknown.",
        "Record with `activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`.",
    )


def gpus(summary: Summary) -> str:
    """The GPUs of the host, equal ones together."""
    devices = summary.trace.devices
    kinds = list(dict.fromkeys(_gpu(device) for device in devices))
    counts = [sum(_gpu(device) == kind for device in devices) for kind in kinds]
    return ", ".join(kind if n == 1 else f"{n} × {kind}" for kind, n in zip(kinds, counts, strict=True)) or "unknown"


def _gpu(device: Device) -> str:
    name = "unknown GPU" if device.name is None else fmt.visible(device.name)
    memory = None if device.total_memory_bytes is None else fmt.size(device.total_memory_bytes)
    sms = None if device.n_sms is None else f"{device.n_sms} SMs"
    about = ", ".join(filter(None, [memory, sms]))
    return f"{name} ({about})" if about else name


def rank(summary: Summary) -> str:
    """`0 of 8`, as numbered by the job; of a run all ranks, and which are missing."""
    trace = summary.trace
    if isinstance(summary, RunSummary):
        return _ranks(summary)
    if trace.rank is None:
        return "unknown"
    return f"{trace.rank}" if trace.world_size is None else f"{trace.rank} of {trace.world_size}"


def _ranks(summary: RunSummary) -> str:
    have = summary.ranks["rank"].unique().sort().to_list()
    missing = missing_ranks([summary.trace.world_size], have)
    size = "" if summary.trace.world_size is None else f" of {summary.trace.world_size}"
    return f"{in_words(have)}{size}{f' (without {in_words(missing)})' if missing else ''}"


def software(summary: Summary) -> str:
    """Engine and versions, as far as recorded (of a run: alike in all files)."""
    trace = summary.trace
    parts = (
        ("engine", trace.engine),
        ("torch", trace.torch_version),
        (f"{'HIP' if _is_amd(summary) else 'CUDA'} runtime", trace.cuda_runtime_version),
        ("driver", trace.cuda_driver_version),
        ("NCCL", trace.nccl_version),
    )
    return ", ".join(f"{name} {fmt.visible(known)}" for name, known in parts if known is not None) or "not recorded"


def _is_amd(summary: Summary) -> bool:
    return any("AMD" in (device.name or "") for device in summary.trace.devices)


def recorded(summary: Summary) -> str:
    """The profiler's options: what the trace can and cannot answer."""
    trace = summary.trace
    options = (
        ("shapes", trace.record_shapes),
        ("stacks", trace.with_stack),
        ("memory", trace.profile_memory),
    )
    words = {True: "yes", False: "no", None: "unknown"}
    return ", ".join(f"{name} {words[on]}" for name, on in options)


def steps_found(summary: Summary) -> str:
    """How many steps there are, how they were found and how many count."""
    steps = summary.steps
    if steps.is_empty():
        return f"{no_steps(summary)}: {_one_window(summary)}" if summary.n_windows else no_steps(summary)
    methods = ", ".join(steps["method"].unique(maintain_order=True).to_list())
    confidence = f"confidence {round(min(steps['confidence'].to_list()), 2)}"
    overlapping = steps.height - int(steps["separable"].sum())
    parts = [
        f"{steps.height} by {methods.replace('_', ' ')} ({confidence})",
        f"{int(steps['is_complete'].sum())} complete",
        *([f"{overlapping} overlap others and count by launch only"] if overlapping else []),
    ]
    return ", ".join(parts)


def selected(selection: Selection) -> str:
    """The selection in words; empty for all."""
    first, end = selection.first_step, selection.end_step
    numbered = f"steps {'' if first is None else first}:{'' if end is None else end}"
    parts = [
        *([numbered] if (first, end) != (None, None) else []),
        *([f"stage {selection.stage}"] if selection.stage else []),
    ]
    return ", ".join(parts)


def without_op(summary: Summary) -> str | None:
    """What part of the kernel time no op accounts for, and why."""
    bare_ns = numbers.total(summary.ops.filter(pl.col("op").is_null())["kernel_ns"])
    if not bare_ns:
        return None
    why = "launched by CUDA graphs, or outside of any recorded op"
    if not any(name.lower().endswith(_CPU_OPS) for name in summary.trace.event_counts):
        why = "the trace holds no CPU ops"
    share = numbers.ratio(bare_ns, numbers.total(summary.ops["kernel_ns"]))
    return f"{fmt.percent(share)} of the kernel time has no op: {why}."


def without_launch(summary: Summary) -> str | None:
    """How many GPU activities have no launch in the trace."""
    if not summary.n_kernels_without_launch:
        return None
    without, of_all = fmt.count(summary.n_kernels_without_launch), fmt.count(summary.n_kernels_total)
    return f"{without} of {of_all} GPU activities have no launch in the trace: they belong to no step."


def outside(summary: Summary) -> str | None:
    """What lies outside of all windows."""
    if summary.scope != "steps" or not (summary.outside_n_kernels or summary.outside_wall_ns):
        return None
    activities = fmt.plural(summary.outside_n_kernels, "GPU activity", "GPU activities")
    return (
        f"Outside of the windows: {fmt.duration(summary.outside_wall_ns)} of the GPU's span; "
        f"{activities} ({fmt.duration(summary.outside_kernel_ns)}) of no step."
    )


def means(summary: Summary) -> str:
    """What the per-step figures of the tables are means over: `29 steps`, `58 steps of 2 ranks`."""
    windows = fmt.plural(summary.n_windows, "step" if summary.scope == "steps" else "window")
    if isinstance(summary, RunSummary):
        windows = f"{windows} of {fmt.plural(summary.ranks['rank'].n_unique(), 'rank')} (each rank's steps count)"
    return f"{windows}{of_all_stages(summary.stages)}"


def about_ranks(summary: RunSummary) -> tuple[str, ...]:
    """What the figures of the ranks are."""
    what = (
        "Medians of each rank's complete steps" if summary.scope == "steps" else "One window for each rank and device"
    )
    note = f"{what}; communication is kernel time, waiting for other ranks included."
    return (note, *filter(None, [_unequal_steps(summary)]))


def _unequal_steps(summary: RunSummary) -> str | None:
    """That some ranks have fewer complete steps than others."""
    counts = summary.ranks.filter(pl.col("device").is_not_null())["n_steps"].to_list()
    if summary.scope != "steps" or min(counts) == max(counts):
        return None
    return f"Ranks have from {min(counts)} to {fmt.plural(max(counts), 'complete step')}: means weigh them accordingly."


def step_note(step: dict[str, Any]) -> str:
    """Why a step is not in the statistics; empty when it is."""
    if not step["separable"]:
        return "overlaps other steps"
    if step["wall_ns"] is None:
        return "no GPU activity"
    return "" if step["is_complete"] else "incomplete: no next step"
