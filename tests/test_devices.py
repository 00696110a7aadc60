"""What GPUs can do at most: the data of rules/devices.yaml, how a name finds its row, and wrong files."""

from pathlib import Path

import polars as pl
import pytest

from traceql.devices import DTYPES, Devices, known_devices, read_devices
from traceql.errors import RuleError

NAMES = {
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 Blackwell Workstation",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 Blackwell Server",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "RTX PRO 6000 Blackwell Max-Q",
    "NVIDIA GeForce RTX 5090": "RTX 5090",
    "NVIDIA GeForce RTX 5090 Laptop GPU": None,
    "NVIDIA B200": "B200",
    "NVIDIA GB200": "GB200",
    "NVIDIA H200": "H200",
    "NVIDIA H200 NVL": "H200 NVL",
    "NVIDIA GH200 480GB": "GH200 96 GB",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 NVL": "H100 NVL",
    "NVIDIA H800": "H800 SXM",
    "NVIDIA H20": "H20",
    "NVIDIA L40S": "L40S",
    "NVIDIA L40": None,
    "NVIDIA L4": "L4",
    "NVIDIA A100-SXM4-40GB": "A100 SXM 40 GB",
    "NVIDIA A100-SXM4-80GB": "A100 SXM 80 GB",
    "NVIDIA A100 80GB PCIe": "A100 PCIe 80 GB",
    "NVIDIA A100-PCIE-40GB": "A100 PCIe 40 GB",
    "Tesla V100-SXM2-32GB": "V100 SXM2 32 GB",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI300X VF": "MI300X",
    "AMD Instinct MI325X": "MI325X",
    "AMD Instinct MI355X": "MI355X",
    "AMD Radeon Graphics": None,
    "": None,
    None: None,
    "Sample GPU\ud800": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_finds_its_row(name):
    found = known_devices().find(name)
    assert (found.name if found else None) == NAMES[name]


def test_every_row_is_found_by_a_name():
    assert {spec.name for spec in known_devices().rows} - set(NAMES.values()) == {
        "GH200 144 GB", "V100 SXM2 16 GB", "V100 PCIe 32 GB", "V100 PCIe 16 GB"
    }  # fmt: skip


def test_units():
    h200 = known_devices().find("NVIDIA H200")
    assert h200 is not None
    assert h200.peak_bytes_per_s == 4.8e12
    assert h200.memory_bytes == 141 * 2**30
    assert h200.flops_per_s["bf16"] == pytest.approx(989.4e12)
    assert "fp4" not in h200.flops_per_s
    assert h200.capability == "9.0"


def test_figures_are_plausible():
    """Narrower operands are never slower, dense figures of whole TFLOPS or more, and each row says its source."""
    for spec in known_devices().rows:
        speeds = [spec.flops_per_s[d] for d in ("fp32", "tf32", "bf16", "fp8", "fp4") if d in spec.flops_per_s]
        assert speeds == sorted(speeds), spec.name
        assert set(spec.flops_per_s) <= set(DTYPES)
        assert all(1e13 <= flops <= 2e16 for flops in spec.flops_per_s.values()), spec.name
        assert 3e11 <= spec.peak_bytes_per_s <= 8e12, spec.name
        assert len(spec.source) > 10
        if {"bf16", "fp16"} <= set(spec.flops_per_s):
            assert spec.flops_per_s["bf16"] == spec.flops_per_s["fp16"]


ROW = "rows: [{name: X, match: X, memory_gib: 1, gb_per_s: 2.5, tflops: {fp32: 3}, source: nowhere}]"
WRONG = {
    "no rows": ("{}", "missing: rows"),
    "unknown dtype": (ROW.replace("fp32", "fp33"), "fp33"),
    "no number": (ROW.replace("2.5", "fast"), "expected a number"),
    "zero": (ROW.replace("2.5", "0"), "above 0"),
    "negative": (ROW.replace("2.5", "-1"), "not negative"),
    "bad pattern": (ROW.replace("match: X", "match: '('"), "regular expression"),
    "twice": (ROW.replace("rows: [", "rows: [" + ROW.removeprefix("rows: [").removesuffix("]") + ", "), "stands twice"),
    "unknown field": (ROW.replace("source:", "sauce: a, source:"), "sauce"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_an_error_with_its_place(case, tmp_path):
    text, expected = WRONG[case]
    path = tmp_path / "devices.yaml"
    path.write_text(text)
    with pytest.raises(RuleError, match=r"devices\.yaml:1:") as error:
        read_devices(path)
    assert expected in error.value.message


def test_a_right_file(tmp_path):
    path = tmp_path / "devices.yaml"
    path.write_text(ROW)
    found = read_devices(path)
    assert isinstance(found, Devices)
    assert found.rows[0].peak_bytes_per_s == 2.5e9
    assert found.rows[0].capability is None


@pytest.mark.shared
def test_the_recorded_devices(shared: Path):
    """Of the traces at hand: two AMD machines do not say what they are, and some kinds are not in the list."""
    import traceql  # noqa: PLC0415

    unknown: set[str | None] = set()
    for path in sorted(shared.glob("public/*/*.gz")):
        trace = traceql.load(path)
        if trace.kernels.select(pl.len()).collect().item():
            unknown |= {d.name for d in trace.meta.devices if known_devices().find(d.name) is None}
    assert unknown == {
        None, "AMD Radeon Graphics", "NVIDIA A100-PG509-200", "Tesla V100-DGXS-32GB", "AMD Instinct MI210"
    }  # fmt: skip
