"""The time of layers: each step's window cut where its sections and layers begin on the main line."""

import numpy as np
import polars as pl

from traceql.analyses.exclusive import exclusive_time
from traceql.analyses.layer_tables import STEP_LAYER_CATEGORIES, STEP_SECTIONS

_PLACE = ["rank", "device"]
_STEP = [*_PLACE, "step"]
KEY = [*_STEP, "section", "model_pass", "layer"]
_SPENT = ("exclusive_ns", "kernel_ns", "n_kernels")


def section_starts(main: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The stretches of each window: columns of `KEY`, start_ns, wall_ns; in order.

    Args:
        main: the main line's activities with their section, model_pass and layer.
        steps: the `steps` table; those without a window have no stretches.

    A stretch runs from the start of the first of consecutive activities of one section and layer to that of the next;
    the first one from the start of the window. When the last one has ended, what is left of the window is `between`.
    """
    windows = steps.filter(pl.col("wall_ns").is_not_null()).select(
        *_STEP, window_ns="start_ns", window_end_ns=pl.col("start_ns") + pl.col("wall_ns")
    )
    line = main.join(windows, on=_STEP, validate="m:1").sort(*_STEP, "start_ns", "kernel_id")
    line = line.filter(pl.col("start_ns") < pl.col("window_end_ns"))
    changes = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()) for name in KEY)
    end_ns = (pl.col("start_ns") + pl.col("dur_ns")).max().over(_STEP)
    first = line.with_columns(end_ns=end_ns, begins=changes).filter("begins")
    left = first.unique(_STEP).filter(pl.col("end_ns") < pl.col("window_end_ns")).select(
        *_STEP, "window_end_ns", section=pl.lit("between"), start_ns="end_ns"
    )  # fmt: skip
    is_first = pl.int_range(pl.len()).over(_STEP) == 0
    first = first.with_columns(start_ns=pl.when(is_first).then("window_ns").otherwise("start_ns"))
    unseen = windows.join(first, on=_STEP, how="anti").select(*_STEP, "window_end_ns", start_ns="window_ns")
    rows = pl.concat([first.select(*KEY, "start_ns", "window_end_ns"), left, unseen], how="diagonal")
    rows = rows.sort(*_STEP, "start_ns", maintain_order=True)
    following = pl.col("start_ns").shift(-1).over(_STEP)
    return rows.select(*KEY, "start_ns", wall_ns=pl.coalesce(following, "window_end_ns") - pl.col("start_ns"))


def times_in(activities: pl.DataFrame, stretches: pl.DataFrame) -> pl.DataFrame:
    """Exclusive time of each activity in each stretch: columns of `KEY`, kernel_id, exclusive_ns.

    Args:
        activities: all GPU activities: kernel_id, rank, device, stream, start_ns, dur_ns, correlation.
        stretches: as `section_starts` makes them; they do not overlap.
    """
    timed = activities.filter(pl.col("start_ns").is_not_null())
    known = stretches.filter(pl.col("wall_ns") > 0).sort("start_ns")
    parts: list[pl.DataFrame] = []
    for place, of_place in known.group_by(_PLACE, maintain_order=True):
        here = timed.filter((pl.col("rank") == place[0]) & (pl.col("device") == place[1]))
        start_ns = of_place["start_ns"].to_numpy()
        borders = np.unique(np.concatenate([start_ns, start_ns + of_place["wall_ns"].to_numpy()]))
        regions = of_place.select(*KEY, region=np.searchsorted(borders, start_ns) + 1)
        spent = exclusive_time(here, borders).join(regions, on="region", validate="m:1")
        parts.append(spent.select(*KEY, "kernel_id", "exclusive_ns"))
    empty = stretches.clear().select(KEY).with_columns(kernel_id=pl.lit(0, pl.Int64), exclusive_ns=pl.lit(0, pl.Int64))
    return pl.concat([empty, *parts])


def layer_categories(activities: pl.DataFrame, spent: pl.DataFrame) -> pl.DataFrame:
    """Table `step_layer_categories`.

    Args:
        activities: all GPU activities with their step, section, layer, category and group.
        spent: as `times_in` makes it.
    """
    key = [*KEY, "category", "group"]
    in_steps = activities.filter(pl.col("step").is_not_null())
    launched = in_steps.group_by(key).agg(kernel_ns=pl.sum("dur_ns"), n_kernels=pl.len().cast(pl.Int64))
    named = activities.select("kernel_id", "category", "group")
    ran = spent.join(named, on="kernel_id", validate="m:1").group_by(key).agg(pl.sum("exclusive_ns"))
    both = launched.join(ran, on=key, how="full", coalesce=True, nulls_equal=True, validate="1:1")
    both = both.with_columns(pl.col(_SPENT).fill_null(0)).sort(key)
    return STEP_LAYER_CATEGORIES.check(both.select(STEP_LAYER_CATEGORIES.names))


def step_sections(activities: pl.DataFrame, stretches: pl.DataFrame, spent: pl.DataFrame) -> pl.DataFrame:
    """Table `step_sections`; arguments as in `layer_categories` and `section_starts`.

    A section that runs in several stretches (an epilogue after each pass) is one row: it starts where the first does.
    """
    walls = stretches.group_by(KEY).agg(pl.min("start_ns"), pl.sum("wall_ns"))
    busy = spent.group_by(KEY).agg(busy_ns=pl.sum("exclusive_ns"))
    in_steps = activities.filter(pl.col("step").is_not_null())
    launched = in_steps.group_by(KEY).agg(kernel_ns=pl.sum("dur_ns"), n_kernels=pl.len().cast(pl.Int64))
    rows = walls.join(busy, on=KEY, how="left", nulls_equal=True, validate="1:1").with_columns(
        pl.col("busy_ns").fill_null(0)
    )
    rows = rows.join(launched, on=KEY, how="full", coalesce=True, nulls_equal=True, validate="1:1")
    rows = rows.with_columns(pl.col("kernel_ns", "n_kernels").fill_null(0))
    rows = rows.sort(*_STEP, "start_ns", "section", "model_pass", "layer")
    return STEP_SECTIONS.check(rows.select(STEP_SECTIONS.names))
