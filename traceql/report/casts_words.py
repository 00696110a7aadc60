"""What casts and copies cost, in one sentence."""

from dataclasses import replace
from typing import Any

import polars as pl

from traceql import fmt
from traceql.analyses.casts import CastReport
from traceql.analyses.pool_verdicts import POOL_FRAC
from traceql.report import numbers
from traceql.report.stage_words import stage_name, stages_by_time

Row = dict[str, Any]


def casts_lines(report: CastReport) -> tuple[str, ...]:
    """What casts and copies cost; where the complete steps are of several stages, a sentence each.

    The cost of all in a step of any would be a share of neither. Nothing without GPU activity.
    """
    stages = stages_by_time(report.windows) if report.scope == "steps" else []
    if len(stages) < 2:
        return tuple(filter(None, [casts_line(report)]))
    lines = ((stage, casts_line(_of_stage(report, stage))) for stage in stages)
    return tuple(f"{stage_name(stage)}: {line}" for stage, line in lines if line)


def _of_stage(report: CastReport, stage: str) -> CastReport:
    """What is counted in the steps of one stage; sizes and speeds of groups stay those of all."""
    windows = report.windows.filter(stage=stage)
    casts = report.casts.join(windows, on=["rank", "device", "step"], how="semi")
    groups = report.groups.join(casts, on="group_id", how="semi", maintain_order="left")
    return replace(report, windows=windows, casts=casts, groups=groups)


def casts_line(report: CastReport) -> str | None:
    """What casts and copies cost, in one sentence; of several devices that one where it is most.

    Figures are medians over the steps counted. None without GPU activity.
    """
    if report.windows.is_empty():
        return None
    places = [_Place(report, rank, device) for rank, device in report.windows.select("rank", "device").unique().rows()]
    place = max(places, key=lambda place: (place.pool_ns, place.cast_ns, -place.rank, -place.device))
    line = place.pool_line() if place.pools.height else place.plain_line()
    return f"{line} (rank {place.rank}, device {place.device}: the most of {len(places)})" if len(places) > 1 else line


class _Place:
    """The figures of one device."""

    def __init__(self, report: CastReport, rank: int, device: int) -> None:
        self.rank, self.device = rank, device
        self._windows = report.windows.filter(rank=rank, device=device)
        self._groups = report.groups.filter(rank=rank, device=device)
        self._casts = report.casts.filter(rank=rank, device=device)
        self._scope = report.scope
        self.pools = self._groups.filter(pl.col("is_whole_pool"))
        self._pool_casts = self._casts.join(self.pools, on="group_id", how="semi")
        self.pool_ns = self._per_step(self._pool_casts)
        self.cast_ns = self._per_step(self._casts.filter(kind="cast"))

    def pool_line(self) -> str:
        """`78 casts a step of the whole KV pool to bf16 take 66.2 of 84.0 ms (79 %), 855 MB each at 1.0 TB/s, ...`."""
        pool = self.pools.row(0, named=True)
        number = fmt.count(self._counted(self._pool_casts).height / self._windows.height)
        return (
            f"{number} casts a step of the whole KV pool {_dtypes_in_words(pool)} take "
            f"{self._of_wall(self.pool_ns)}{_speed_in_words(pool)}"
        )

    def plain_line(self) -> str:
        """`casts take 4.8 of 168.1 ms a step (3 %), copies 0.0 of ...; none converts a whole KV pool`."""
        copy_ns = self._per_step(self._casts.filter(kind="copy"))
        what = "a step" if self._scope == "steps" else "in the whole trace"
        costs = f"casts take {self._of_wall(self.cast_ns)} {what}, copies {self._share(copy_ns)}"
        open_cases = self._groups.filter(
            (pl.col("kind") == "cast") & pl.col("is_whole_pool").is_null() & (pl.col("work_frac") >= POOL_FRAC)
        )
        if not self._groups.filter(kind="cast").height:
            return f"no casts; copies take {self._of_wall(copy_ns)} {what}"
        if open_cases.height:
            return f"{costs}; whether one converts a whole KV pool: {open_cases['whole_pool_reason'][0]}"
        return f"{costs}; none converts a whole KV pool"

    def _counted(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those in the steps counted."""
        return rows.join(self._windows, on="step", how="semi") if self._scope == "steps" else rows

    def _per_step(self, rows: pl.DataFrame) -> float:
        """Their time in a step: median; in the whole trace where no step is counted."""
        if self._scope != "steps":
            return numbers.total(rows["dur_ns"])
        spent = rows.group_by("step").agg(pl.sum("dur_ns"))
        known = self._windows.select("step").join(spent, on="step", how="left", validate="1:1")
        return numbers.median(known["dur_ns"].fill_null(0)) or 0.0

    @property
    def _wall_ns(self) -> float:
        return numbers.median(self._windows["wall_ns"]) or 0.0

    def _of_wall(self, ns: float) -> str:
        return f"{fmt.part_of(ns, self._wall_ns)} ({self._share(ns)})"

    def _share(self, ns: float) -> str:
        return fmt.rounded_percent(numbers.ratio(ns, self._wall_ns))


def _dtypes_in_words(pool: Row) -> str:
    known = f"from {pool['src_dtype']} " if pool["src_dtype"] else ""
    return f"{known}to {pool['dst_dtype']}"


def _speed_in_words(pool: Row) -> str:
    written, read = pool["written_bytes_min"], pool["read_bytes_min"]
    if read is None:
        return f", {fmt.size(written)} written each; its source dtype is not known"
    guess = f" (if it holds {pool['likely_src_dtype']}, as its writes do)" if pool["likely_src_dtype"] else ""
    rate = "" if pool["gb_per_s"] is None else f" at {speed(pool['gb_per_s'])}"
    peak = "" if pool["peak_frac"] is None else f", {pool['peak_frac'] * 100:.0f} % of this GPU's peak"
    return f", {fmt.size(read + written)} each{rate}{peak}{guess}"


def speed(gb_per_s: float | None) -> str:
    """GB/s with the unit that suits them."""
    if gb_per_s is None:
        return fmt.UNKNOWN
    return f"{gb_per_s / 1000:.1f} TB/s" if gb_per_s >= 999.5 else f"{gb_per_s:.{0 if gb_per_s >= 9.95 else 2}f} GB/s"
