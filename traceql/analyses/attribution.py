"""Everything that steps need, worked out once: marks, which step launched what, windows, exclusive times."""

from dataclasses import dataclass

import polars as pl

from traceql.analyses.once import once
from traceql.analyses.step_marks import step_marks
from traceql.analyses.step_windows import kernel_steps, steps
from traceql.trace import Trace

_COLUMNS = (
    "kernel_id", "rank", "device", "stream", "name", "short_name", "category", "group", "start_ns", "dur_ns",
    "correlation", "launch_id", "op_id",
)  # fmt: skip


_METHOD_VERSION = 1
"""Raised whenever steps, windows or exclusive times are found in another way: what is kept of the old one is stale."""


@dataclass(frozen=True)
class Attribution:
    """The steps of a trace and what belongs to them."""

    marks: pl.DataFrame
    """Table `step_marks`."""
    activities: pl.DataFrame
    """GPU activities with their step and section."""
    placed: pl.DataFrame
    """Table `kernel_steps`."""
    steps: pl.DataFrame
    """Table `steps`."""
    times: pl.DataFrame
    """Table `window_times`."""

    @classmethod
    def of(cls, trace: Trace) -> "Attribution":
        """That of a trace or run: worked out when it is first asked for, and kept while the trace is."""
        return _attribution(trace)

    @property
    def outside_wall_ns(self) -> int:
        """From the first to the last GPU activity of each device, what lies in no window; added up."""
        span = self.activities.group_by("rank", "device").agg(
            ns=(pl.col("start_ns") + pl.col("dur_ns")).max() - pl.min("start_ns")
        )
        return int(span["ns"].sum()) - int(self.steps["wall_ns"].sum())


@once
def _attribution(trace: Trace) -> Attribution:
    kernels = trace.kernels.select(_COLUMNS).collect()

    def worked_out() -> dict[str, pl.DataFrame]:
        launches = trace.launches.select("launch_id", "rank", "thread_id", "name", "start_ns", "dur_ns")
        launches = launches.collect().lazy()
        marks = step_marks(trace.spans, launches, trace.syncs, kernels.lazy())
        placed = kernel_steps(kernels.lazy(), launches, marks)
        found, times = steps(kernels.lazy(), marks, placed)
        return {"marks": marks, "placed": placed, "steps": found, "times": times}

    frames = trace.kept(f"steps-{_METHOD_VERSION}", worked_out)
    activities = kernels.sort("kernel_id").hstack(frames["placed"].drop("kernel_id"))  # a row for each, in order
    return Attribution(activities=activities, **frames)
