"""What casts are counted over: the windows of complete steps, else the whole trace as one a device."""

import polars as pl

from traceql.analyses.attribution import Attribution

PLACE = ["rank", "device"]
STEP_KEY = [*PLACE, "step"]
LAYER_KEY = ["model_pass", "layer"]
"""Keys of a device, of a step on it, and of a layer within a step."""


def step_windows(found: Attribution, complete: pl.DataFrame) -> pl.DataFrame:
    """rank, device, step, stage, wall_ns and work_ns of the complete steps."""
    work = _work(found.activities.join(complete, on=STEP_KEY, how="semi"), STEP_KEY)
    windows = complete.select(*STEP_KEY, "stage", "wall_ns").join(work, on=STEP_KEY, how="left", validate="1:1")
    return windows.with_columns(pl.col("work_ns").fill_null(0)).sort(STEP_KEY)


def whole_windows(found: Attribution) -> pl.DataFrame:
    """The same with the whole trace as one window a device, first to last activity, of no step and no stage."""
    end_ns = pl.col("start_ns") + pl.col("dur_ns")
    windows = found.activities.group_by(PLACE).agg(
        step=pl.lit(None, pl.Int64), stage=pl.lit(None, pl.String), wall_ns=end_ns.max() - pl.min("start_ns")
    )
    return windows.join(_work(found.activities, PLACE), on=PLACE, validate="1:1").sort(PLACE)


def _work(activities: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Kernel time without communication, inside of which ranks wait for each other."""
    return activities.group_by(by).agg(work_ns=pl.col("dur_ns").filter(pl.col("group") != "nccl").sum())


def layers_of_steps(layers: pl.DataFrame, found: Attribution, complete: pl.DataFrame) -> pl.DataFrame:
    """rank, device, step, pass, layer and type: the layers of the complete steps, of all steps where none is."""
    steps = complete if complete.height else found.steps
    places = found.activities.select("kernel_id", *STEP_KEY).join(steps, on=STEP_KEY, how="semi")
    of_steps = layers.drop_nulls("layer").join(places, on="kernel_id", validate="1:1")
    return of_steps.select(*STEP_KEY, *LAYER_KEY, "layer_type").unique()


def totals(windows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """n_steps, wall_ns and work_ns by rank, device and `by`."""
    return windows.group_by(*PLACE, *by).agg(pl.sum("wall_ns", "work_ns"), n_steps=pl.len().cast(pl.Int64))


def work_frac() -> pl.Expr:
    """Of the kernel time without communication, what kernel_ns takes; null where there is none."""
    return pl.when(pl.col("work_ns") > 0).then(pl.col("kernel_ns") / pl.col("work_ns"))
