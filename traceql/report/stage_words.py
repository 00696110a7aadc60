"""Stages in sentences: of which steps a figure is, where these are of several stages."""

import polars as pl

from traceql import fmt

_UNKNOWN = "unknown"


def stages_by_time(windows: pl.DataFrame) -> list[str]:
    """The stages of some steps, most wall first.

    Args:
        windows: stage and wall_ns of the steps.
    """
    sums = windows.group_by("stage").agg(pl.sum("wall_ns")).sort("wall_ns", "stage", descending=[True, False])
    return sums["stage"].to_list()


def stage_name(stage: str) -> str:
    """A stage as what a sentence begins with: `decode`, `unknown stage`."""
    return "unknown stage" if stage == _UNKNOWN else stage


def step_name(stage: str, number: int = 1) -> str:
    """What steps of one stage among several are called: `decode step`, `steps of unknown stage`."""
    noun = "step" if number == 1 else "steps"
    return f"{noun} of unknown stage" if stage == _UNKNOWN else f"{stage} {noun}"


def counts_in_words(steps: pl.DataFrame) -> str:
    """How many steps there are of each stage, the most first: `20 decode, 20 prefill and 18 mixed`.

    Args:
        steps: stage of each.
    """
    each = [f"{fmt.count(number)} {stage}" for stage, number in _counts(steps)]
    return " and ".join(filter(None, [", ".join(each[:-1]), *each[-1:]]))


def several_stages(what: str, steps: pl.DataFrame) -> str | None:
    """That figures are over steps of several stages, and how to have one of these; None where they are of one.

    Args:
        what: the figures: `Means`.
        steps: stage of each.
    """
    stages = [stage for stage, _ in _counts(steps)]
    if len(stages) < 2:
        return None
    known = next(stage for stage in stages if stage != _UNKNOWN)
    return f"{what} over {counts_in_words(steps)} steps: `--stage {known}` tells those of one stage."


def of_all_stages(steps: pl.DataFrame) -> str:
    """The same as the end of a phrase about these steps; empty where they are of one stage."""
    return " of all stages (`--stage` tells one)" if steps["stage"].n_unique() > 1 else ""


def _counts(steps: pl.DataFrame) -> list[tuple[str, int]]:
    return steps["stage"].value_counts().sort("count", "stage", descending=[True, False]).rows()
