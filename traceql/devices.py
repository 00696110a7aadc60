"""What a GPU can do at most: memory, bandwidth and dense throughput, found by the name that the trace records.

The figures are data, in `rules/devices.yaml`, each row with the source of its figures. A figure that is not known is
null, and so is a device whose name matches no row.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import polars as pl

from traceql.memo import remembered
from traceql.resources import resource
from traceql.yaml_files import Node, YamlReader

DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")
"""The dtypes of operands that a throughput may be given for."""
MAX_NAME = 200
"""Characters of a recorded name that are looked at."""


@dataclass(frozen=True)
class DeviceSpec:
    """One kind of GPU."""

    name: str
    match: str
    """Pattern that is found in the recorded name."""
    memory_bytes: int
    peak_bytes_per_s: float
    """Memory bandwidth."""
    flops_per_s: dict[str, float]
    """Dense, by dtype of the operands; a dtype that is not there is unknown, or not supported."""
    capability: str | None
    """NVIDIA's compute capability, e.g. 9.0."""
    source: str


@dataclass(frozen=True)
class Devices:
    """The known kinds of GPU, in order of precedence."""

    rows: tuple[DeviceSpec, ...]

    def find(self, name: str | None) -> DeviceSpec | None:
        """The first kind whose pattern is found in the name that `deviceProperties` records; null for none."""
        if not name:
            return None
        text = pl.Series([name[:MAX_NAME].encode("utf-8", "replace").decode()])
        return next((spec for spec in self.rows if text.str.contains(spec.match).item()), None)


@cache
def known_devices() -> Devices:
    """The devices of rules/devices.yaml.

    Raises:
        RuleError: the file is wrong; the message begins with file:line:column.
    """
    path = resource("rules", "devices.yaml")
    return remembered(path, Devices, lambda: read_devices(path))


def read_devices(path: Path) -> Devices:
    """The devices of a YAML file.

    Raises:
        RuleError: the file is wrong; the message begins with file:line:column.
    """
    reader = YamlReader(path)
    rows = reader.items(reader.mapping(reader.document(), required={"rows"})["rows"])
    specs: list[DeviceSpec] = []
    for node in rows:
        spec = _spec(reader, node)
        if spec.name in {earlier.name for earlier in specs}:
            reader.fail(node, f"device {spec.name} stands twice", "Choose another name.")
        specs.append(spec)
    return Devices(tuple(specs))


def _spec(reader: YamlReader, node: Node) -> DeviceSpec:
    fields = reader.mapping(
        node, required={"name", "match", "memory_gib", "gb_per_s", "tflops", "source"}, optional={"capability"}
    )
    tflops = reader.mapping(fields["tflops"], required=frozenset(), optional=frozenset(DTYPES))
    return DeviceSpec(
        name=reader.text(fields["name"]),
        match=_pattern(reader, fields["match"]),
        memory_bytes=int(_positive(reader, fields["memory_gib"]) * 2**30),
        peak_bytes_per_s=_positive(reader, fields["gb_per_s"]) * 1e9,
        flops_per_s={dtype: _positive(reader, value) * 1e12 for dtype, value in tflops.items()},
        capability=reader.text(fields["capability"]) if "capability" in fields else None,
        source=reader.text(fields["source"]),
    )


def _positive(reader: YamlReader, node: Node) -> float:
    number = reader.number(node)
    if not number:
        reader.fail(node, "expected a number above 0", "Leave out what is not known.")
    return number


def _pattern(reader: YamlReader, node: Node) -> str:
    pattern = reader.text(node)
    try:
        pl.Series([""]).str.contains(pattern)
    except pl.exceptions.ComputeError:
        reader.fail(node, f"bad regular expression {pattern[:80]!r}", "Patterns are RE2-like.")
    return pattern
