"""The command line and its pages: over summaries built by hand, and end to end over real traces."""

import array
import contextlib
import fcntl
import gzip
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import click
import msgspec
import polars as pl
import psutil
import pytest
from click.testing import CliRunner, Result
from rich.cells import cell_len
from waiting import until

from traceql.analyses.rank_stats import RANK_STATS, RunSummary
from traceql.analyses.stages import stages
from traceql.analyses.step_windows import STEPS, WINDOW_TIMES
from traceql.analyses.summary import (
    CATEGORIES,
    GROUPS,
    KERNEL_STATS,
    OP_STATS,
    STEP_STATS,
    Selection,
    Summary,
)
from traceql.cli import COMMANDS, main
from traceql.cli.options import StepRange
from traceql.cli.output import encodable, write_output
from traceql.errors import OutputError
from traceql.ingest.meta import Device, TraceMeta
from traceql.ingest.quirks import QuirkCounter
from traceql.report import frames, summary_document
from traceql.report.markdown import code, escape, render_markdown, words
from traceql.report.page import Column, Section, TextTable
from traceql.report.summary_page import SummaryView, summary_page
from traceql.report.text import cut, fit_table, render_text
from traceql.tables import Table

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "golden"
FIXTURES = Path(__file__).parent / "fixtures"
SGLANG = FIXTURES / "sglang" / "before-graph-TP-0.trace.json.zst"
GLM5 = FIXTURES / "glm5" / "tiny-pool-eager-TP-0.json.gz"

# --- summaries built by hand: three complete steps of 10 ms and a last one without an end ---


def table(kind: Table, *rows: dict[str, Any]) -> pl.DataFrame:
    return kind.check(pl.DataFrame([{**dict.fromkeys(kind.names), **row} for row in rows], schema=kind.schema))


def step(number: int, **changes: Any) -> dict[str, Any]:
    usual = {
        "rank": 0, "device": 0, "step": number, "label": "step[DECODE bs=8]", "stage": "decode",
        "batch_size": 8, "start_ns": number * 10_000_000, "wall_ns": 10_000_000, "annotation_ns": 2_000_000,
        "busy_ns": 9_000_000, "kernel_ns": 9_500_000, "idle_ns": 1_000_000, "n_kernels": 120,
        "n_kernels_between": 12, "is_complete": True, "separable": True,
        "method": "annotation", "confidence": 1.0,
    }  # fmt: skip
    return usual | changes


def times(exclusive_ns: int, kernel_ns: int, n_kernels: int) -> dict[str, Any]:
    return {
        "exclusive_ns": exclusive_ns,
        "kernel_ns": kernel_ns,
        "n_kernels": n_kernels,
        "ns_per_step": exclusive_ns / 3,
        "share": exclusive_ns / 30_000_000,
    }


def kernel_times(kernel_ns: int, n_kernels: int) -> dict[str, Any]:
    return {
        "n_kernels": n_kernels,
        "kernel_ns": kernel_ns,
        "ns_per_step": kernel_ns / 3,
        "share": kernel_ns / 3e7,
    }


def kernel(name: str, short_name: str, category: str, kernel_ns: int, n_kernels: int) -> dict[str, Any]:
    durations = {"median_dur_ns": kernel_ns / n_kernels, "min_dur_ns": 1000, "max_dur_ns": kernel_ns}
    names = {"name": name, "short_name": short_name, "category": category}
    return names | kernel_times(kernel_ns, n_kernels) | durations


def stat(figure: str, median: float) -> dict[str, Any]:
    return {"figure": figure, "median": median, "p10": median, "p90": median, "min": median, "max": median}


META = TraceMeta(
    name="decode.json.gz", size_bytes=64_200_000, n_events=210_345, span_ns=52_000_000, rank=0, world_size=2,
    devices=tuple(Device(number, "Example GPU", 143_000_000_000, 9, 0, 132) for number in range(2)),
    record_shapes=True, with_stack=False, engine="sglang", torch_version="2.9.1", cuda_runtime_version="12.8",
    event_counts={"X kernel": 372, "X cpu_op": 900},
)  # fmt: skip
GEMM_NAME = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
LONG_NAME = "void at::native::unrolled_elementwise_kernel<" + "at::native::direct_copy_kernel_cuda, " * 9 + "8>(int)"


def counted(**counts: int) -> Any:
    counter = QuirkCounter()
    for kind, count in counts.items():
        counter.add(kind.replace("_", "-"), count)
    return counter.quirks()


def a_summary(**changes: Any) -> Summary:
    usual: dict[str, Any] = {
        "trace": META, "selection": Selection(), "scope": "steps", "n_windows": 3,
        "wall_ns": 30_000_000, "busy_ns": 27_000_000, "idle_ns": 3_000_000,
        "steps": table(STEPS, *map(step, range(3)), step(3, is_complete=False, wall_ns=9_900_000)),
        "step_stats": table(
            STEP_STATS, stat("wall_ns", 10_000_000), stat("idle_ns", 1_000_000), stat("n_kernels", 120)
        ),
        "outliers": STEPS.empty(),
        "groups": table(
            GROUPS, {"group": "copy"} | times(21_000_000, 22_000_000, 300),
            {"group": "gemm"} | times(6_000_000, 6_500_000, 60),
        ),
        "categories": table(
            CATEGORIES, {"category": "cast", "group": "copy"} | times(21_000_000, 22_000_000, 300),
            {"category": "gemm", "group": "gemm"} | times(6_000_000, 6_500_000, 60),
        ),
        "kernels": table(
            KERNEL_STATS,
            kernel(LONG_NAME, "unrolled_elementwise_kernel<direct_copy>", "cast", 22_000_000, 300),
            kernel(GEMM_NAME, GEMM_NAME, "gemm", 6_500_000, 60),
        ),
        "ops": table(
            OP_STATS,
            {"op": None} | kernel_times(26_000_000, 350),
            {"op": "aten::mm"} | kernel_times(2_500_000, 10),
        ),
        "outside_kernel_ns": 2_000_000, "outside_n_kernels": 12, "outside_wall_ns": 22_000_000,
        "n_kernels_total": 372, "n_kernels_without_launch": 0, "n_kernels_without_op": 350,
        "quirks": (),
    }  # fmt: skip
    made: dict[str, Any] = usual | changes
    complete = made["steps"].filter(pl.col("is_complete") & pl.col("separable"))
    nothing = (WINDOW_TIMES.empty(), pl.DataFrame(schema={"kernel_id": pl.Int64, "group": pl.String}))
    made.setdefault("stages", stages(complete, *nothing))
    return Summary(**made)


def no_gpu_time(**changes: Any) -> Summary:
    nothing: dict[str, Any] = {
        "scope": "trace", "n_windows": 0, "wall_ns": 0, "busy_ns": 0, "idle_ns": 0, "steps": STEPS.empty(),
        "step_stats": STEP_STATS.empty(), "groups": GROUPS.empty(), "categories": CATEGORIES.empty(),
        "kernels": KERNEL_STATS.empty(), "ops": OP_STATS.empty(), "outside_kernel_ns": 0,
        "outside_n_kernels": 0, "outside_wall_ns": 0, "n_kernels_total": 0, "n_kernels_without_op": 0,
    }  # fmt: skip
    return a_summary(**nothing | changes)


def text(summary: Summary, width: int = 100, **view: Any) -> str:
    return render_text(summary_page(summary, SummaryView(**view)), width=width)


def golden(name: str, got: str) -> None:
    """Compares with tests/golden/NAME; `make golden` accepts what is there now."""
    path = GOLDEN / name
    if os.environ.get("TRACEQL_UPDATE_GOLDEN") == "1":
        path.write_text(got, encoding="utf-8")
    assert got == path.read_text(encoding="utf-8")


# --- the page ---


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_page_is_as_accepted_and_fits_its_width(width: int) -> None:
    page = text(a_summary(), width)
    assert max(map(cell_len, page.splitlines())) <= width
    golden(f"summary-{width}.txt", page)


def test_the_page_in_markdown_is_as_accepted() -> None:
    golden("summary.md", render_markdown(summary_page(a_summary(), SummaryView())))


@pytest.mark.parametrize("width", [20, 33, 47, 60, 72, 80, 100, 160, 240])
@pytest.mark.parametrize("by", ["group", "category", "kernel", "op", "step", "stage"])
def test_a_table_row_is_one_line_at_every_width(width: int, by: str) -> None:
    table = summary_page(a_summary(), SummaryView(by=by))[-1].table
    assert table is not None
    lines = render_text([Section("", (), table)], width=width).splitlines()
    assert len(lines) == len(table.rows) + 2 + (table.n_totals > 0)
    if width >= 60:
        assert max(map(cell_len, lines)) <= width


def test_the_headline_says_it_all() -> None:
    assert text(a_summary()).splitlines()[0] == (
        "decode step 10.000 ms (median of 3 complete steps, batch 8): copy 70.0 %, gemm 20.0 %; idle 10.0 %"
    )


def test_steps_of_several_stages_and_batches_are_not_called_decode() -> None:
    steps = table(STEPS, step(0), step(1, batch_size=4), step(2, stage="prefill", batch_size=None))
    decode, prefill = text(a_summary(steps=steps)).split("\n\n")[0].splitlines()
    assert decode.startswith("decode step 10.000 ms (median of 2 complete steps, batch 4 to 8): ")
    assert prefill.startswith("prefill step 10.000 ms (1 complete step): ")


def test_steps_of_no_known_stage_are_called_steps() -> None:
    line = text(a_summary(steps=table(STEPS, *(step(number, stage="unknown") for number in range(3)))))
    assert line.startswith("step 10.000 ms (median of 3 complete steps, batch 8): copy")


def test_rows_and_idle_add_up_to_the_wall() -> None:
    rows = [line.split() for line in text(a_summary(), by="group").splitlines()]
    shown = {row[0]: row[1:3] for row in rows if row and row[0] in ("copy", "gemm", "idle", "wall")}
    assert shown == {"copy": ["7.000", "70.0"], "gemm": ["2.000", "20.0"], "idle": ["1.000", "10.0"],
                     "wall": ["10.000", "100.0"]}  # fmt: skip


def test_by_shows_headline_and_that_table_only() -> None:
    page = summary_page(a_summary(), SummaryView(by="kernel"))
    assert [section.title for section in page] == ["", "Kernels"]


def test_losses_come_right_after_the_headline_also_with_by() -> None:
    page = summary_page(a_summary(quirks=counted(truncated=1, no_launch=4)), SummaryView(by="op"))
    assert [section.title for section in page] == ["", "Incomplete: parts of this trace are lost", "Ops"]
    assert page[1].lines[0].startswith("The file ends in the middle")


def test_top_limits_the_kernels_and_says_so() -> None:
    page = text(a_summary(), by="kernel", top=1)
    assert "Kernels: top 1 of 2" in page
    assert "nvjet" not in page


def test_long_names_are_cut_unless_full_names_are_asked_for() -> None:
    assert LONG_NAME in text(a_summary(), 80, by="kernel", full_names=True)
    assert LONG_NAME not in text(a_summary(), 80, by="kernel")


def test_kernel_time_without_an_op_is_explained() -> None:
    assert "91.2 % of the kernel time has no op: launched by CUDA graphs" in text(a_summary(), by="op")
    no_ops = a_summary(trace=msgspec.structs.replace(META, event_counts={}))
    assert "no op: the trace holds no CPU ops" in text(no_ops, by="op")
    of_2020 = a_summary(trace=msgspec.structs.replace(META, event_counts={"X Operator": 31}))
    assert "no op: launched by CUDA graphs" in text(of_2020, by="op")


def test_outliers_are_named() -> None:
    slow = table(STEPS, step(1, wall_ns=25_000_000))
    assert "step 1: 25.000 ms, 2.50 × the median" in text(a_summary(outliers=slow))


def test_the_last_step_says_why_it_does_not_count() -> None:
    assert "incomplete: no next step" in text(a_summary(), by="step")


def test_two_devices_are_told_apart() -> None:
    steps = table(STEPS, step(0), step(1), step(0, device=1), step(1, device=1))
    page = text(a_summary(steps=steps, n_windows=4), by="step")
    assert "median of 4 complete steps on 2 devices" in " ".join(page.split())
    assert re.search(r"^rank +device +step", page, re.MULTILINE)


def test_overlapping_steps_have_unknown_wall() -> None:
    steps = table(STEPS, step(0), step(1, separable=False, wall_ns=None, busy_ns=None, idle_ns=None))
    page = text(a_summary(steps=steps), by="step")
    assert re.search(r"^ *1 .* — .*overlaps other steps", page, re.MULTILINE)


def test_unrecognised_kernels_are_named() -> None:
    categories = table(CATEGORIES, {"category": "other", "group": "other"} | times(27_000_000, 27_000_000, 300))
    kernels = table(KERNEL_STATS, kernel("mystery", "mystery", "other", 27_000_000, 300))
    assert "90.0 % of the wall is in `other`: mystery (90.0 %)" in text(
        a_summary(categories=categories, kernels=kernels)
    )


def test_kernels_without_launch_are_counted() -> None:
    page = text(a_summary(n_kernels_without_launch=5))
    assert "5 of 372 GPU activities have no launch in the trace" in page


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        (no_gpu_time(), "No GPU activity: this is a CPU-only trace, GPU time is unknown."),
        (no_gpu_time(quirks=counted(no_kernels=1)), "GPU time is unknown: launches were recorded, but no"),
        (no_gpu_time(quirks=counted(no_kernels=1, not_a_gpu=9)), "the device of this trace is not a GPU, and what ran"),
        (no_gpu_time(n_kernels_total=2), "the GPU activities of this trace carry no times."),
        (no_gpu_time(trace=TraceMeta(name="x", size_bytes=2, n_events=0)), "Nothing was recorded"),
        (a_summary(scope="trace", n_windows=1, steps=STEPS.empty(), step_stats=STEP_STATS.empty()),
         "GPU activity 30.000 ms (no steps found: the whole trace is one window"),
        (a_summary(scope="trace", n_windows=2, steps=STEPS.empty(), selection=Selection(40, 50)),
         "GPU activity 15.000 ms (no such step: one window a device"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_in_words(summary: Summary, words: str) -> None:
    assert words in " ".join(text(summary).split())


@pytest.mark.parametrize("by", [None, "group", "category", "kernel", "op", "step"])
def test_an_empty_trace_has_a_page_of_each_kind(by: str | None) -> None:
    nothing = no_gpu_time(trace=TraceMeta(name="x", size_bytes=2, n_events=0))
    page = text(nothing, by=by)
    assert page.startswith("Nothing was recorded")
    assert " 0.0" not in page
    assert render_markdown(summary_page(nothing, SummaryView(by=by))).startswith("**Nothing was recorded")


# --- names that try something ---

WILD = "evil[/red][bold]\x1b[2J\x1b]0;t\x07 a|b `tick` <script>\n=1+1"


def wild_summary() -> Summary:
    return a_summary(kernels=table(KERNEL_STATS, kernel(WILD, WILD, "cast", 22_000_000, 300)))


@pytest.mark.parametrize("color", [False, True])
def test_names_are_printed_literally_and_cannot_steer_the_terminal(color: bool) -> None:
    page = render_text(summary_page(wild_summary(), SummaryView(by="kernel")), width=200, color=color)
    assert r"evil[/red][bold]\x1b[2J\x1b]0;t\x07 a|b `tick` <script>\n=1+1" in page
    assert set(re.findall("\x1b.{2}", page)) <= ({"\x1b[1", "\x1b[0", "\x1b[2"} if color else set())
    assert ("\x1b" in page) == color


def test_names_are_code_in_markdown_whatever_they_hold() -> None:
    page = render_markdown(summary_page(wild_summary(), SummaryView(by="kernel")))
    assert r"| ``evil[/red][bold]\x1b[2J\x1b]0;t\x07 a\|b `tick` <script>\n=1+1`` |" in page


def test_markdown_escapes() -> None:
    assert escape("a|b *c* _d_ <e> [f] `g` \\") == r"a\|b \*c\* \_d\_ \<e\> \[f\] \`g\` \\"
    assert code("`a``b`") == "``` `a``b` ```"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run `traceql ranks a|b`, then *look*", r"run `traceql ranks a|b`, then \*look\*"),
        ("`?`: not recorded", "`?`: not recorded"),
        ("a ` alone", r"a \` alone"),
        ("an empty `` one", r"an empty \`\` one"),
    ],
)
def test_what_is_to_be_typed_is_code_in_markdown(text: str, shown: str) -> None:
    assert words(text) == shown


def test_csv_quotes_what_it_must() -> None:
    got = frames.to_csv(summary_document.table_of(wild_summary(), "kernel"))
    assert pl.read_csv(got)["name"].to_list() == [WILD]


def test_json_keeps_the_name_as_recorded() -> None:
    assert json.loads(summary_document.to_json(wild_summary()))["kernels"][0]["name"] == WILD


# --- fitting ---


@pytest.mark.parametrize(
    ("fit", "expected"),
    [("end", "abcdefghi…"), ("middle", "abcde…wxyz")],
    ids=["at the end", "in the middle"],
)
def test_long_texts_are_cut(fit: str, expected: str) -> None:
    assert cut("abcdefghijklmnopqrstuvwxyz", 10, fit) == expected
    assert cut("abcdefghij", 10, fit) == "abcdefghij"


def test_wide_characters_count_double() -> None:
    assert cell_len(cut("名前名前名前名前", 9, "middle")) <= 9


def test_columns_go_by_priority() -> None:
    columns = (Column("name"), Column("first to go", drop=9), Column("stays longer", drop=1))
    whole = TextTable(columns, (("a", "b", "c"),))
    titles = [[column.title for column in fit_table(whole, width).columns] for width in (40, 25, 10)]
    assert titles == [["name", "first to go", "stays longer"], ["name", "stays longer"], ["name"]]


def test_a_long_line_wraps_at_words() -> None:
    assert render_text([Section("", ("word " * 20,))], width=24).splitlines()[0] == "word word word word word"


# --- data ---

TIMES = ["exclusive_ns", "kernel_ns", "n_kernels", "ns_per_step", "share"]
KERNEL_TIMES = ["n_kernels", "kernel_ns", "ns_per_step", "share"]
CONTRACT = {
    "steps": STEPS.names,
    "groups": ["group", *TIMES],
    "categories": ["category", "group", *TIMES],
    "kernels": ["name", "short_name", "category", *KERNEL_TIMES],
    "ops": ["op", *KERNEL_TIMES],
    "step_stats": ["figure", "median", "p10", "p90", "min", "max"],
}


def test_json_has_the_documented_keys() -> None:
    document = json.loads(summary_document.to_json(a_summary(quirks=counted(no_launch=2))))
    assert {name: list(document[name][0]) for name in CONTRACT} == CONTRACT
    assert list(document["idle"]) == ["idle_ns", "ns_per_step", "share"]
    assert list(document["outside"]) == ["kernel_ns", "n_kernels", "wall_ns"]
    assert list(document["quirks"][0]) == ["id", "effect", "count", "text"]
    assert {"name", "rank", "world_size", "devices", "n_events", "span_ns"} <= set(document["trace"])
    documented = set(re.findall(r"^\| `(\w+)", (ROOT / "docs/json.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(document) | set(document["trace"]) | {*STEPS.names} <= documented


def test_json_keeps_integers_and_says_null_for_unknown() -> None:
    big = 2**53 + 1
    document = json.loads(summary_document.to_json(a_summary(outside_kernel_ns=big)))
    assert document["outside"]["kernel_ns"] == big
    nothing = json.loads(summary_document.to_json(no_gpu_time()))
    assert nothing["idle"] == {"idle_ns": None, "ns_per_step": None, "share": None}
    assert (nothing["wall_ns"], nothing["busy_ns"], nothing["kernels"]) == (None, None, [])


def test_json_has_null_where_a_share_is_not_a_number() -> None:
    groups = a_summary().groups.with_columns(share=pl.lit(float("nan")))
    assert json.loads(summary_document.to_json(a_summary(groups=groups)))["groups"][0]["share"] is None


@pytest.mark.parametrize("by", list(summary_document.TABLES))
def test_csv_and_parquet_hold_the_same_table(by: str) -> None:
    frame = summary_document.table_of(a_summary(), by)
    assert pl.read_parquet(io.BytesIO(frames.to_parquet(frame))).equals(frame)
    assert pl.read_csv(frames.to_csv(frame)).columns == frame.columns


def test_top_shortens_data_only_when_asked() -> None:
    assert summary_document.table_of(a_summary(), "kernel").height == 2
    assert len(json.loads(summary_document.to_json(a_summary(), top=1))["kernels"]) == 1


# --- output ---


def test_signs_a_terminal_cannot_show_are_replaced() -> None:
    assert encodable("12 µs … — − × ✓", "ascii") == "12 us ~ - - x ?"
    assert encodable("12 µs …", "utf-8") == "12 µs …"


def test_a_file_appears_whole_with_the_usual_rights(tmp_path: Path) -> None:
    output, plain = tmp_path / "out.json", tmp_path / "plain"
    plain.write_text("")
    write_output("{}", output)
    assert output.read_text() == "{}"
    assert output.stat().st_mode == plain.stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "plain"]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_output("new", link)
    assert (link.is_symlink(), target.read_text()) == (True, "new")


def test_what_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write_output("x", tmp_path / ("n" * 300))
    assert list(tmp_path.iterdir()) == []


# --- options ---


@pytest.mark.parametrize(
    ("given", "steps"),
    [("5:10", (5, 10)), ("5:", (5, None)), (":10", (None, 10)), (":", (None, None)), ("7", (7, 8))],
)
def test_step_ranges(given: str, steps: tuple[int | None, int | None]) -> None:
    assert StepRange().convert(given, None, None) == steps


@pytest.mark.parametrize("given", ["", "a:b", "-1:3", "3:3", "5:2", "1:2:3", "1.5"])
def test_wrong_step_ranges_are_refused(given: str) -> None:
    with pytest.raises(click.BadParameter):
        StepRange().convert(given, None, None)


# --- the command, without a trace ---


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def process(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traceql", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120, **options)


def test_help_comes_without_the_heavy_imports() -> None:
    code = "import sys, traceql.cli; traceql.cli.main(['--help'], standalone_mode=False); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    heavy = {"polars", "numpy", "rich", "msgspec", "orjson", "jinja2", "ruamel", "traceql.cli.summarize"}
    assert "summarize" in loaded
    assert heavy & set(loaded.split()) == set()


@pytest.mark.parametrize("command", [[], ["summarize"], ["cache"], ["cache", "info"], ["cache", "clear"]])
def test_every_help_ends_in_an_example(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert result.output.rstrip().rsplit("\n\n", 1)[1].strip().startswith("Example: traceql ")


def test_every_command_is_there_under_its_name() -> None:
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert command.name == name


def test_an_unknown_command_is_a_usage_error() -> None:
    assert run("sumarize").exit_code == 2


def test_version() -> None:
    assert re.fullmatch(r"traceql, version \d+\.\d+\.\d+\S*\n", run("--version").output)


def bad_inputs(folder: Path) -> dict[str, Path]:
    (folder / "page.json").write_text("<!DOCTYPE html><html><body>404</body></html>")
    (folder / "empty.json").write_bytes(b"")
    return {
        "missing": folder / "missing.json",
        "folder": folder,
        "html": folder / "page.json",
        "empty": folder / "empty.json",
    }


@pytest.mark.parametrize("kind", ["missing", "folder", "html", "empty"])
def test_a_bad_input_is_two_lines_on_stderr_and_nothing_else(kind: str, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    result = run("summarize", "--no-cache", bad_inputs(tmp_path)[kind], "-o", output)
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]
    assert not output.exists()


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    output.write_text("precious")
    result = run("summarize", tmp_path / "never-read.json", "-o", output)
    assert (result.exit_code, output.read_text()) == (2, "precious")
    assert "--force" in result.stderr


def test_the_trace_is_never_overwritten(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("[]")
    result = run("summarize", trace, "-o", trace, "--force")
    assert (result.exit_code, trace.read_text()) == (2, "[]")
    assert "is the trace itself" in result.stderr


@pytest.mark.parametrize("output", ["", "missing/out.json"])
def test_an_output_that_cannot_be_is_refused_before_the_work(output: str, tmp_path: Path) -> None:
    result = run("summarize", tmp_path / "never-read.json", "-o", tmp_path / output)
    assert result.exit_code == 2
    assert "folder" in result.stderr


# --- the command, on real traces ---


def summarize(trace: Path, *arguments: str | Path) -> Result:
    result = run("summarize", "--no-cache", trace, *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result


def test_the_answer_for_a_real_decode_trace_is_as_accepted() -> None:
    page = summarize(SGLANG).stdout
    assert re.match(r"decode step 84\.0\d\d ms \(median of 29 complete steps, batch 8\): copy \d", page)
    assert "\x1b" not in page
    assert max(map(cell_len, page.splitlines())) <= 100
    golden("sglang-before-graph.txt", page)


@pytest.mark.parametrize("trace", [SGLANG, GLM5], ids=["sglang", "glm5"])
def test_groups_and_categories_with_idle_add_up_to_the_wall(trace: Path) -> None:
    document = json.loads(summarize(trace, "--format", "json").stdout)
    for rows in (document["groups"], document["categories"]):
        assert sum(row["exclusive_ns"] for row in rows) + document["idle"]["idle_ns"] == document["wall_ns"]
    complete = [step for step in document["steps"] if step["is_complete"]]
    assert sum(step["wall_ns"] for step in complete) == document["wall_ns"]
    assert len(complete) == document["n_windows"]


@pytest.mark.parametrize("by", ["group", "category", "kernel", "op", "step", "stage"])
def test_every_table_of_a_real_trace_in_every_form(by: str, tmp_path: Path) -> None:
    csv = pl.read_csv(summarize(GLM5, "--by", by, "--format", "csv").stdout.encode(), infer_schema_length=None)
    output = tmp_path / "table.parquet"
    assert summarize(GLM5, "--by", by, "-o", output).stdout == ""
    parquet = pl.read_parquet(output)
    assert (csv.columns, csv.height) == (parquet.columns, parquet.height)
    assert parquet.height > 0
    golden(f"glm5-by-{by}.txt", summarize(GLM5, "--by", by, "--top", "5").stdout)
    assert summarize(GLM5, "--by", by, "--format", "markdown").stdout.count("\n| ---") == 1


def test_some_steps_only() -> None:
    document = json.loads(summarize(SGLANG, "--steps", "5:10", "--stage", "decode", "--format", "json").stdout)
    assert [step["step"] for step in document["steps"]] == [5, 6, 7, 8, 9]
    assert document["n_windows"] == 5


RUN = [FIXTURES / "glm5" / f"tiny-gather-eager-TP-{rank}.json.gz" for rank in range(2)]


def run_document(*arguments: str | Path) -> dict[str, Any]:
    result = run("summarize", "--no-cache", *arguments, "--format", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("properties", "keys", "told"),
    [
        ({"name": "AMD Instinct MI300X"}, {"hip_runtime_version": 60443483}, "HIP runtime 6.4.43483"),
        ({"name": "NVIDIA H200"}, {"cuda_runtime_version": 12080}, "CUDA runtime 12.8"),
    ],
)
def test_versions_are_told_as_their_makers_write_them(properties: Any, keys: Any, told: str, tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"stream": 7}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, **properties}], **keys, "traceEvents": [kernel]}))
    assert told in CliRunner().invoke(main, ["summarize", str(path), "--no-cache"]).stdout


def test_the_page_of_a_run_is_as_accepted() -> None:
    page = run("summarize", "--no-cache", *reversed(RUN)).stdout
    first, second, *_ = page.splitlines()
    assert first == ("step 7.427 ms on rank 1 (median rank of 2, median of 2 complete steps); slowest rank 0: 7.703 ms")
    assert second.startswith("all ranks: nccl ")
    golden("glm5-run.txt", page)
    golden("glm5-run-steps.txt", run("summarize", "--no-cache", *RUN, "--by", "step").stdout)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_page_of_a_run_fits(width: int) -> None:
    page = render_text(summary_page(a_run(), SummaryView()), width=width)
    assert max(map(cell_len, page.splitlines())) <= width


def a_run(**changes: Any) -> RunSummary:
    rank = dict.fromkeys(RANK_STATS.names) | {"device": 0, "name": "x-TP-0.json.gz", "n_steps": 2}
    rows = [rank | {"rank": i, "wall_ns": wall, "idle_ns": 1e6} for i, wall in enumerate((10e6, 30e6, 20e6, 12e6))]
    steps = table(STEPS, *(step(number, rank=rank) for rank in range(4) for number in range(2)))
    usual: dict[str, Any] = vars(a_summary(steps=steps, n_windows=8)) | {"ranks": table(RANK_STATS, *rows)}
    return RunSummary(**usual | changes)


def test_a_run_of_an_even_number_of_ranks_is_led_by_the_faster_middle_one() -> None:
    line = text(a_run(), 200).splitlines()[0]
    assert line == (
        "decode step 12.000 ms on rank 3 (median rank of 4, median of 2 complete steps, batch 8); "
        "slowest rank 1: 30.000 ms"
    )


def test_ranks_of_equal_steps_have_no_slowest_one() -> None:
    ranks = a_run().ranks.with_columns(wall_ns=pl.lit(10e6))
    assert "slowest" not in text(a_run(ranks=ranks))


def test_unequal_numbers_of_steps_are_said() -> None:
    assert "Ranks have from" not in text(a_run())
    ranks = a_run().ranks.with_columns(n_steps=pl.int_range(4))
    assert "Ranks have from 0 to 3 complete steps" in text(a_run(ranks=ranks))


def test_missing_ranks_and_files_left_out_are_on_the_page(tmp_path: Path) -> None:
    for path, rank in zip(RUN, (b"0", b"3"), strict=True):
        data = gzip.decompress(path.read_bytes())
        data = data.replace(b'"world_size": 2', b'"world_size": 4').replace(b'"rank": 1', b'"rank": ' + rank)
        (tmp_path / path.name).write_bytes(data)
    (tmp_path / "manifest.json").write_text("{}")
    page = " ".join(run("summarize", "--no-cache", tmp_path).stdout.split())
    assert "ranks 0, 3 of 4 (without 1, 2)" in page
    assert "Ranks of the job without a file: 1, 2. (2 × missing-rank)" in page
    assert "left out: manifest.json. (1 × not-a-trace)" in page
    assert "tiny-gather-eager-TP-1.json.gz (rank 3). (1 × rank-conflict)" in page


def test_a_run_is_named_by_files_a_folder_or_a_pattern(tmp_path: Path) -> None:
    for path in RUN:
        shutil.copy(path, tmp_path)
    documents = [run_document(*RUN), run_document(tmp_path), run_document(tmp_path / "tiny-*")]
    assert documents[0] == documents[1] == documents[2]
    ranks = documents[0]["ranks"]
    assert [(row["rank"], row["name"], row["n_steps"]) for row in ranks] == [(0, RUN[0].name, 2), (1, RUN[1].name, 2)]
    assert documents[0]["trace"]["rank"] is None
    assert documents[0]["trace"]["world_size"] == 2
    assert {step["rank"] for step in documents[0]["steps"]} == {0, 1}
    assert run_document(RUN[0])["ranks"] == []


def test_only_the_ranks_asked_for() -> None:
    one, alone = run_document(*RUN, "--rank", "1"), run_document(RUN[1])
    assert (one["groups"], one["step_stats"]) == (alone["groups"], alone["step_stats"])
    assert (one["trace"]["name"], one["ranks"]) == (RUN[1].name, [])
    assert run_document(*RUN, "--rank", "1", "--rank", "0")["ranks"] == run_document(*RUN)["ranks"]
    result = run("summarize", "--no-cache", *RUN, "--rank", "2")
    assert (result.exit_code, result.stderr) == (2, "error: there is no rank 2\nhint: The ranks are 0, 1.\n")


def test_files_of_one_rank_are_refused_unless_forced() -> None:
    other = FIXTURES / "glm5" / "tiny-pool-eager-TP-0.json.gz"
    result = run("summarize", "--no-cache", RUN[0], other)
    assert result.exit_code == 2
    assert "several files of one rank" in result.stderr
    assert "--force" in result.stderr
    forced = run_document(RUN[0], other, "--force")
    assert [row["name"] for row in forced["ranks"]] == [RUN[0].name, other.name]
    assert "ranks-numbered" in {quirk["id"] for quirk in forced["quirks"]}


def test_no_trace_of_a_folder_is_overwritten(tmp_path: Path) -> None:
    shutil.copy(RUN[0], tmp_path)
    trace = tmp_path / RUN[0].name
    for given in (tmp_path, f"{tmp_path}/*", trace):
        result = run("summarize", "--no-cache", given, "-o", trace, "--force")
        assert (result.exit_code, trace.read_bytes()) == (2, RUN[0].read_bytes())
        assert "is the trace itself" in result.stderr


def test_what_belongs_together_stays_on_one_line() -> None:
    for width in range(40, 110):
        head = text(a_summary(), width).split("\n\n")[0]
        assert "\u00a0" not in head
        for part in ("copy 70.0 %", "gemm 20.0 %", "idle 10.0 %"):
            assert any(part in line for line in head.splitlines())


def test_what_is_not_recorded_of_the_software_is_left_out() -> None:
    assert "software  engine sglang, torch 2.9.1, CUDA runtime 12.8\n" in text(a_summary())
    bare = TraceMeta(name="x", size_bytes=2, n_events=9)
    assert "software  not recorded\n" in text(a_summary(trace=bare))


def test_confidence_is_a_number() -> None:
    assert "4 by annotation (confidence 1.0), 3 complete" in text(a_summary())
    steps = a_summary().steps.with_columns(confidence=pl.lit(0.85))
    assert "(confidence 0.85)" in text(a_summary(steps=steps))


def test_force_overwrites(tmp_path: Path) -> None:
    output = tmp_path / "out.md"
    output.write_text("old")
    summarize(GLM5, "-o", output, "--force")
    assert output.read_text(encoding="utf-8").startswith("**")
    assert [path.name for path in tmp_path.iterdir()] == ["out.md"]


def test_standard_input_and_binary_output_go_through_pipes() -> None:
    command = [sys.executable, "-m", "traceql", "summarize", "--no-cache", "-", "--format", "parquet"]
    done = subprocess.run(command, cwd=ROOT, input=GLM5.read_bytes(), capture_output=True, check=True, timeout=120)
    assert (done.stdout[:4], done.stderr) == (b"PAR1", b"")


def test_text_in_an_old_locale_is_plain() -> None:
    done = process("summarize", "--no-cache", GLM5, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "median us" in done.stdout


def test_a_closed_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "traceql", "summarize", "--no-cache", str(GLM5), "--format", "json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert (child.stderr.read(), child.wait(120)) == (b"", 141)


@pytest.mark.parametrize("command", ["summarize", "check", "casts", "shell"])
def test_a_name_too_long_for_the_system_is_an_error_of_a_line(command: str) -> None:
    done = CliRunner().invoke(main, [command, "x" * 5000])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"error: File name too long: {'x' * 200}\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_closed_in_the_middle_is_no_error(unbuffered: str) -> None:
    """Unbuffered, Python's write ends early and without a fault; the exit status would be 0."""
    sql = "SELECT a.name, a.dur_ns FROM kernels a CROSS JOIN (SELECT kernel_id FROM kernels LIMIT 100) b"
    command = [sys.executable, "-m", "traceql", "query", str(GLM5), sql, "--format", "csv"]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == b"name,dur_ns\n"
        child.stdout.close()
        assert (child.stderr.read(), child.wait(120)) == (b"", 141)


def waits_for_input(process_id: int, pipe: int) -> bool:
    """Whether it has read all that its pipe held, and sleeps."""
    n_left = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, n_left)
    return not n_left[0] and psutil.Process(process_id).status() == psutil.STATUS_SLEEPING


def test_an_interrupt_is_a_short_line() -> None:
    command = [sys.executable, "-m", "traceql", "summarize", "--no-cache", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(b'{"traceEvents": [' + b" " * 1_000_000)  # more than a pipe holds: it reads now
        child.stdin.flush()
        pipe = child.stdin.fileno()
        until(lambda: waits_for_input(child.pid, pipe))  # a signal just before a blocking read is seen after it only
        child.send_signal(signal.SIGINT)
        try:
            assert child.wait(60) == 130
        finally:
            child.kill()
        assert child.stderr.read() == b"interrupted\n"


# --- the command, on a terminal ---


def on_terminal(*arguments: str | Path, columns: int = 80, **environment: str) -> tuple[int, str]:
    """Exit status and all that appears on a terminal of that width."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    command = [sys.executable, "-m", "traceql", *map(str, arguments)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=variables | {"TERM": "xterm"} | environment,
    ) as child:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
            while block := os.read(ours, 65536):
                shown += block
    os.close(ours)
    return child.returncode, shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_progress_and_bold_titles_in_its_width() -> None:
    status, shown = on_terminal("summarize", "--no-cache", SGLANG, columns=60)
    assert status == 0
    assert "reading before-graph-TP-0" in shown
    page = shown[shown.rindex("decode step") :]
    assert "\x1b[1mGroups\x1b[0m" in page
    assert max(cell_len(re.sub("\x1b\\[[0-9;]*m", "", line)) for line in page.splitlines()) <= 60


def test_no_color_is_respected() -> None:
    status, shown = on_terminal("summarize", "--no-cache", GLM5, NO_COLOR="1")
    page = shown[shown.rindex("Step times") :]
    assert status == 0
    assert "\x1b" not in page


def test_a_terminal_gets_no_binary() -> None:
    status, shown = on_terminal("summarize", GLM5, "--format", "parquet")
    assert status == 2
    assert shown.startswith("error: Parquet is binary")


# --- the cache ---


def test_the_cache_is_filled_shown_and_cleared(tmp_path: Path) -> None:
    home = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    first = process("summarize", GLM5, env=home)
    assert re.search(r": 1 trace, \d", process("cache", "info", env=home).stdout)
    assert process("summarize", GLM5, env=home).stdout == first.stdout
    assert process("cache", "clear", env=home).stdout.startswith("removed 1 trace, ")
    assert re.search(r": 0 traces, 0 B\n$", process("cache", "info", env=home).stdout)


# --- the documents ---


def test_generated_documents_are_current() -> None:
    """In a process of its own: click remembers the help options of commands that other tests ran without the group."""
    checked = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(checked, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), "run: make docs"


def test_the_readme_opens_with_two_commands_that_set_themselves_up() -> None:
    first, second = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    set_up = "python3 -m venv .venv && .venv/bin/pip install "
    assert first.startswith(set_up)
    assert second.startswith(set_up)
    assert str(SGLANG.relative_to(ROOT)) in first
    assert second.endswith("-m pytest\n")
