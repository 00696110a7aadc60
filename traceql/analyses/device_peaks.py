"""The devices that ran something, and what each can do at most."""

import polars as pl

from traceql.devices import DeviceSpec, known_devices
from traceql.tables import DEVICE, RANK, Column, Table
from traceql.trace import Trace

DEVICE_PEAKS = Table(
    "device_peaks",
    "One row per rank and device: what it is and can do at most (rules/devices.yaml). Sorted by rank, device.",
    RANK,
    DEVICE,
    Column("name", pl.String, "As the trace names it", nullable=True),
    Column("spec", pl.String, "The row of rules/devices.yaml; null for an unknown device", nullable=True),
    Column("peak_bytes_per_s", pl.Float64, "Peak memory bandwidth", nullable=True),
    Column("source", pl.String, "Where that figure is from", nullable=True),
)

_PLACE = ["rank", "device"]


def device_peaks(trace: Trace) -> pl.DataFrame:
    """The `device_peaks` table of a trace or run: of the devices that ran something."""
    places = trace.kernels.select(_PLACE).unique().collect().sort(_PLACE).rows()
    rows = [_device_row(trace, rank, device) for rank, device in places]
    return DEVICE_PEAKS.check(pl.DataFrame(rows, schema=DEVICE_PEAKS.schema, orient="row"))


def _device_row(trace: Trace, rank: int, device: int) -> tuple[object, ...]:
    name = _device_name(trace, rank, device)
    spec: DeviceSpec | None = known_devices().find(name)
    figures = (spec.name, spec.peak_bytes_per_s, spec.source) if spec else (None, None, None)
    return (rank, device, name, *figures)


def _device_name(trace: Trace, rank: int, device: int) -> str | None:
    """The name of a device of a rank's file; of a number that the file does not list, if all it lists are alike."""
    part = next((part for part in trace.parts if part.rank == rank), trace.meta)
    names = {listed.id: listed.name for listed in part.devices}
    if device in names:
        return names[device]
    return next(iter(names.values())) if len(set(names.values())) == 1 else None
