"""The founding case's table, from a synthetic trace of it: a test of what is printed, not of what is true."""

import json
from pathlib import Path

import make_trace
import pytest
from click.testing import CliRunner

from traceql.cli import main


@pytest.fixture(scope="module")
def founding_case(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("founding") / "rank0.json"
    with path.open("wb") as file:
        make_trace.make_rank(make_trace.Case(steps=4), 0, file)
    return path


def summarize(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["summarize", *arguments, "--no-cache"])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_founding_table(founding_case):
    lines = [line.split() for line in summarize(str(founding_case), "--by", "group").splitlines() if line]
    rows = {line[0]: line[1:4] for line in lines if len(line) > 4}
    assert rows["copy"] == ["64.610", "69.3", "%"]
    assert rows["gemm"] == ["13.900", "14.9", "%"]
    assert rows["nccl"] == ["7.650", "8.2", "%"]
    assert rows["wall"] == ["93.200", "100.0", "%"]


def test_the_cast_stands_apart_from_other_copies(founding_case):
    page = summarize(str(founding_case))
    assert "decode step 93.200 ms" in page
    categories = json.loads(summarize(str(founding_case), "--format", "json"))["categories"]
    by_name = {row["category"]: row for row in categories}
    assert by_name["cast"]["ns_per_step"] == 64_600_000
    assert round(by_name["cast"]["share"], 3) == 0.693
    assert by_name["cast"]["n_kernels"] == 3 * 78
    assert by_name["gather"]["ns_per_step"] == 10_000


def test_it_says_that_it_is_synthetic(founding_case):
    with founding_case.open() as file:
        assert "synthetic" in json.load(file)
