"""`traceql check` and `traceql rules`: formats, exit statuses, suppressions, and names that would break out of them."""

import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result
from conftest import FIXTURES
from polars.testing import assert_frame_equal

import traceql
from traceql.analyses.summary import Selection
from traceql.cli import COMMANDS, main
from traceql.cli.check import SEVERITIES as CLI_SEVERITIES
from traceql.report.check_formats import to_github, to_junit, to_sarif
from traceql.report.check_page import check_page
from traceql.report.markdown import render_markdown
from traceql.report.text import render_text
from traceql.rules import SEVERITIES, Findings, built_in_rules, load_rules, run_rules
from traceql.rules.top import top_findings

EAGER = FIXTURES / "glm5" / "tiny-pool-eager-TP-0.json.gz"

RULE = """\
id: {id}
severity: {severity}
table: step_categories
when: {when}
group_by: category
cost: exclusive_ns
message: "{{{{ category }}}} takes {{{{ exclusive_ns | ns }}}} of step {{{{ step }}}}: 50% (a, b)"
why: It is big.
fix: Make {{{{ category }}}} small.
links: [https://example.org/big]
examples:
  fires: [{{category: {category}, n_kernels: {fires}}}]
  silent: [{{}}]
"""

BY_NAME = """\
id: names
severity: info
table: kernel_stats
when: name like '%evil%'
cost: kernel_ns
message: "{{ name }} is evil"
why: It is.
fix: "Rename {{ short_name }}"
examples:
  fires: [{name: evil}]
  silent: [{name: good}]
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own, without the user's cache, and knows both commands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACEQL_CACHE_DIR", str(cache))
    for name in ("check", "rules"):
        monkeypatch.setitem(COMMANDS, name, name)
    return tmp_path


def a_rule(name: str = "big-gemm", *, severity: str = "warning", category: str = "gemm", fires: int = 1) -> Path:
    path = Path(f"{name}.yaml")
    when = f"category = '{category}' and n_kernels >= 1"
    path.write_text(RULE.format(id=name, severity=severity, when=when, category=category, fires=fires))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def check(*arguments: str | Path) -> Result:
    """`traceql check` of the small trace with only the rules that the test wrote."""
    own = sorted(Path().glob("*.yaml"))
    select = [part for path in own for part in ("--rules", path, "--select", path.stem)]
    return run("check", EAGER, *select, *arguments)


def checked(*arguments: str | Path) -> dict[str, Any]:
    return json.loads(check("--format", "json", *arguments).stdout)


# --- exit status


@pytest.mark.parametrize(
    ("severity", "fail_on", "status"),
    [
        ("info", "info", 1), ("info", "warning", 0), ("warning", "warning", 1), ("warning", "critical", 0),
        ("critical", "warning", 1), ("critical", "critical", 1), ("critical", "never", 0),
    ],
)  # fmt: skip
def test_the_exit_status_goes_by_severity(severity, fail_on, status):
    a_rule(severity=severity)
    result = check("--fail-on", fail_on)
    assert result.exit_code == status, result.output
    assert result.stdout.startswith("1 finding: 1 ")


def test_without_a_finding_the_status_is_0():
    a_rule(category="optimizer")
    result = check()
    assert result.exit_code == 0
    assert result.stdout == "No findings (1 rule found nothing)\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--select", "big-gem"], "unknown rule 'big-gem'"),
        (["--ignore", "big-gem"], "unknown rule 'big-gem'"),
        (["--rules", "none.yaml"], "none.yaml: No such file"),
        (["--config", "none.toml"], "none.toml: No such file"),
        (["--steps", "90:"], "no step of the trace is selected"),
    ],
)
def test_what_cannot_run_is_status_2(arguments, message):
    a_rule()
    result = check(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_a_wrong_rule_is_status_2():
    path = a_rule()
    path.write_text(path.read_text().replace("category =", "categry ="))
    result = check()
    assert result.exit_code == 2
    assert result.stderr == (
        "error: big-gemm.yaml:4:7: unknown column 'categry'\nhint: Did you mean category?\n"
    )  # fmt: skip


def test_severities_of_the_option_are_those_of_rules():
    assert CLI_SEVERITIES == SEVERITIES


# --- selecting and suppressing


def test_select_and_ignore():
    a_rule("one")
    a_rule("two")
    assert {each["rule"] for each in checked()["findings"]} == {"one", "two"}
    assert {each["rule"] for each in checked("--ignore", "one")["findings"]} == {"two"}


def test_steps_are_selected():
    a_rule()
    (finding,) = checked("--steps", "1")["findings"]
    assert (finding["n_rows"], finding["evidence"][0]["step"]) == (1, 1)


def test_figures_of_the_whole_trace_are_not_said_to_be_of_a_step():
    """With no complete step the casts of the whole recording are counted, of 8 steps: not those of one."""
    mixed = FIXTURES / "capture" / "prefill-and-decode-TP-0.trace.json.zst"

    def message(*steps: str) -> str:
        told = run("check", mixed, "--select", "whole-pool-kv-cast", "--format", "json", *steps).stdout
        (finding,) = json.loads(told)["findings"]
        return finding["message"]

    assert "is cast 78 times a step, " in message()
    assert "is cast 78 times a step, " in message("--stage", "decode")
    assert f"is cast {8 * 78} times in the whole trace, " in message("--steps", "7")
    assert message("--steps", "7").endswith(" ms in the whole trace")


def test_a_cast_that_may_be_of_the_pool_is_said_to_be_that():
    """Of one step it cannot be told; the advice for casts of masks and tables alone would lead astray."""
    mixed = FIXTURES / "capture" / "prefill-and-decode-TP-0.trace.json.zst"
    alone = Path("alone.json.gz")
    assert run("slice", mixed, "--step", "3", "-o", alone).exit_code == 0
    found = json.loads(run("check", alone, "--format", "json").stdout)["findings"]
    (message,) = [each["message"] for each in found if each["rule"] == "cast-in-every-layer"]
    assert "it may be the whole KV pool: with one step it cannot be told whether its size ever changes" in message
    assert "78 times and 67.539 ms in the whole trace" in message


def test_costs_of_a_run_are_said_to_be_means():
    """A message is about one rank, its cost is not: 11.5 ms of rank 0, beside a mean of 6.5."""
    note = "Costs are means over the steps of 2 ranks; a message is about the rank with most of it"
    ranks = [FIXTURES / "glm5" / f"tiny-pool-eager-TP-{rank}.json.gz" for rank in (0, 1)]
    assert note in run("check", *ranks).stdout
    assert note not in run("check", ranks[0]).stdout


def test_findings_name_the_stage_that_they_are_about():
    mixed = FIXTURES / "capture" / "prefill-and-decode-TP-0.trace.json.zst"
    found = json.loads(run("check", mixed, "--format", "json").stdout)["findings"]
    messages = {each["rule"]: each["message"] for each in found}
    assert messages["step-outliers"].startswith("Steps far longer than the median decode step of 80.477 ms: 1; step 1 ")
    assert "of a prefill step of 183.073 ms" in messages["host-bound-step"]


def test_suppressed_findings_are_shown_and_do_not_fail():
    a_rule()
    Path("traceql.toml").write_text('[[suppress]]\nrule = "big-gemm"\nreason = "a [known] thing"\n')
    document = checked()
    assert document["findings"] == []
    assert [(each["rule"], each["reason"]) for each in document["suppressed"]] == [("big-gemm", "a [known] thing")]
    result = check()
    assert result.exit_code == 0
    assert "Suppressed: 1 finding" in result.stdout
    assert "a [known] thing" in result.stdout


def test_an_expired_suppression_says_so():
    a_rule()
    Path("own.toml").write_text('[[suppress]]\nrule = "big-gemm"\nreason = "x"\nexpires = 2020-01-01\n')
    result = check("--config", "own.toml")
    assert result.exit_code == 1
    assert "own.toml: suppress 1: the suppression of big-gemm expired on 2020-01-01" in result.stdout


# --- the page


def test_the_page():
    a_rule(severity="critical")
    lines = check("--evidence").stdout.splitlines()
    assert lines[0] == "1 finding: 1 critical (0 rules found nothing)"
    assert lines[2].startswith("critical big-gemm, ")
    assert lines[3].startswith("gemm takes ")
    assert lines[4].split() == ["rank", "device", "step", "name", "cost"]
    assert "Why: It is big." in lines
    assert "Fix: Make gemm small." in lines
    assert "See https://example.org/big" in lines


@pytest.mark.parametrize("width", [100, 80, 60])
def test_the_page_fits(width):
    trace = traceql.load(EAGER)
    findings = run_rules(trace, built_in_rules())
    assert findings.found
    text = render_text(check_page(findings, with_evidence=True), width=width)
    assert max(len(line) for line in text.splitlines() if "https://" not in line) <= width
    assert "\x1b" not in text
    assert render_markdown(check_page(findings)).count("## ") >= len(findings.found)


def test_top_findings():
    trace = traceql.load(EAGER)
    every = run_rules(trace, built_in_rules()).table
    assert every.height > 2
    assert_frame_equal(top_findings(trace, n=2), every.head(2))
    later = Selection(first_step=1)
    assert_frame_equal(top_findings(trace, later, 9), run_rules(trace, built_in_rules(), selection=later).table)
    for name in ("31-empty-events", "71-no-kernels"):
        assert top_findings(traceql.load(FIXTURES / "cases" / f"{name}.json")).is_empty()
    assert top_findings(trace, Selection(first_step=99)).is_empty()


# --- data


def test_json_has_all_of_a_finding():
    a_rule()
    a_rule("ranks-only")
    path = Path("ranks-only.yaml")
    path.write_text(path.read_text() + "needs: several-ranks\n")
    document = checked()
    (finding,) = document["findings"]
    assert finding["group"] == {"category": "gemm"}
    assert finding["links"] == ["https://example.org/big"]
    assert (finding["rule"], finding["severity"], finding["table"]) == ("big-gemm", "warning", "step_categories")
    assert finding["n_rows"] == len(finding["evidence"]) == finding["n_steps"]
    assert set(finding["evidence"][0]) == {"rank", "device", "step", "layer", "kernel_id", "name", "ns"}
    assert 0 < finding["share"] < 1
    assert document["abstained"] == [{"rule": "ranks-only", "reason": "only one rank is loaded"}]
    assert document["traces"] == [str(EAGER)]


def test_in_python_as_on_the_command_line():
    a_rule()
    printed = json.loads(run("check", EAGER, "--rules", "big-gemm.yaml", "--format", "json").stdout)
    found = traceql.check(traceql.load(EAGER), rules=["big-gemm.yaml"])
    told = [(finding.rule.id, finding.message, finding.saved is not None) for finding in found.found]
    assert told == [(each["rule"], each["message"], each["saving"] is not None) for each in printed["findings"]]
    assert "big-gemm" in found.table["rule"].to_list()


def test_sarif():
    a_rule(severity="critical")
    a_rule("a-quiet", category="optimizer")
    (run_,) = json.loads(check("--format", "sarif").stdout)["runs"]
    assert [rule["id"] for rule in run_["tool"]["driver"]["rules"]] == ["a-quiet", "big-gemm"]
    (result,) = run_["results"]
    assert (result["ruleId"], result["ruleIndex"], result["level"]) == ("big-gemm", 1, "error")
    assert result["message"]["text"].startswith("gemm takes ")
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == EAGER.as_uri()
    assert len(result["partialFingerprints"]["ruleAndGroup/v1"]) == 32


def test_a_fingerprint_is_that_of_rule_and_group():
    path = a_rule()
    path.write_text(path.read_text().replace("category = 'gemm' and ", ""))
    results = json.loads(check("--format", "sarif").stdout)["runs"][0]["results"]
    prints = {result["partialFingerprints"]["ruleAndGroup/v1"] for result in results}
    assert len(prints) == len(results) > 3
    other = EAGER.with_name("tiny-pool-graph-TP-0.json.gz")
    again = run("check", other, "--rules", path, "--select", path.stem, "--format", "sarif")
    results = json.loads(again.stdout)["runs"][0]["results"]
    known = {result["partialFingerprints"]["ruleAndGroup/v1"] for result in results}
    assert len(prints & known) > 3


def test_junit():
    a_rule()
    a_rule("a-quiet", category="optimizer")
    a_rule("off")
    Path("traceql.toml").write_text('[[suppress]]\nrule = "off"\nreason = "known"\n')
    suite = ET.fromstring(check("--format", "junit").stdout)[0]
    assert {name: suite.attrib[name] for name in ("tests", "failures", "skipped", "errors")} == {
        "tests": "3", "failures": "1", "skipped": "1", "errors": "0"}  # fmt: skip
    outcomes = {case.attrib["name"]: [part.tag for part in case] for case in suite}
    assert outcomes == {"big-gemm": ["failure"], "off": ["skipped"], "a-quiet": []}


def test_github():
    a_rule()
    (line,) = check("--format", "github").stdout.splitlines()
    head, _, text = line.removeprefix("::warning ").partition("::")
    assert head.startswith(f"file={EAGER},title=big-gemm%2C ")
    assert "50%25 (a, b)" in text
    assert text.endswith("%0AFix: Make gemm small.")


FIRST = {"a.json": "{", "a.sarif": "{", "a.xml": "<?xml", "a.md": "**1 finding", "a.txt": "1 finding"}


@pytest.mark.parametrize(("name", "first"), FIRST.items())
def test_the_name_of_the_file_says_the_form(name, first):
    a_rule()
    result = check("-o", name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert Path(name).read_text().startswith(first)
    assert check("-o", name).exit_code == 2  # it is there


# --- names that would break out

EVIL = 'evil]]><!--\x1b[2J\n::error::x%0A</testcase>"&\u202e|`\ud800\x00 {{ 7 * 7 }}'


def evil_trace(folder: Path) -> Path:
    """Two steps with a kernel of a hostile name, in a file whose name has what GitHub and URIs escape."""
    events: list[dict[str, Any]] = []
    for step in range(2):
        at = step * 1000
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        events += [
            {**launch, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 900},
            {**launch, "ts": at + 1, "dur": 2, "args": {"correlation": step + 1}},
            {"ph": "X", "cat": "kernel", "name": EVIL, "pid": 0, "tid": 7, "ts": at + 10, "dur": 500,
             "args": {"device": 0, "stream": 7, "correlation": step + 1}},
        ]  # fmt: skip
    path = folder / "a,b:c %.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


@pytest.fixture
def evil(place: Path) -> tuple[Path, Findings]:
    Path("names.yaml").write_text(BY_NAME)
    trace = evil_trace(place)
    rules = [rule for rule in load_rules([Path("names.yaml")]) if rule.id == "names"]
    findings = run_rules(traceql.load(trace), rules)
    assert len(findings.found) == 1
    return trace, findings


def test_a_hostile_name_stays_a_name(evil):
    trace, findings = evil
    text = render_text(check_page(findings, with_evidence=True), width=100)
    assert "\x1b" not in text
    assert "7 * 7" in text
    lines = to_github(findings, [trace]).decode().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("::notice file=")
    assert "a%2Cb%3Ac %25.json,title=" in lines[0]
    assert "\x1b" not in lines[0]
    failure = ET.parse(io.BytesIO(to_junit(findings, [trace]))).find(".//failure")
    assert failure is not None
    assert "]]><!--" in (failure.text or "")
    (result,) = json.loads(to_sarif(findings, [trace]))["runs"][0]["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == trace.as_uri()
    assert uri.endswith("%20%25.json")
    assert "\n" not in result["message"]["text"]
    assert r"evil\]\]\>\<!--" in render_markdown(check_page(findings))


@pytest.mark.parametrize("form", ["table", "json", "sarif", "junit", "markdown", "github"])
def test_every_form_is_written_whatever_the_name(form, evil):
    result = run("check", evil[0], "--rules", "names.yaml", "--select", "names", "--format", form, "--fail-on", "info")
    assert result.exit_code == 1, result.output
    assert "evil" in result.stdout
    assert "\x1b" not in result.stdout


# --- traceql rules


def test_a_new_rule_works():
    result = run("rules", "new", "slow-sampling")
    assert result.exit_code == 0
    tested = run("rules", "test", "slow-sampling.yaml")
    assert tested.exit_code == 0, tested.output
    assert tested.stdout.endswith("all as expected\n")
    assert run("check", EAGER, "--rules", "slow-sampling.yaml", "--select", "slow-sampling").exit_code in (0, 1)
    again = run("rules", "new", "slow-sampling")
    assert again.exit_code == 2
    assert "slow-sampling.yaml exists" in again.stderr


@pytest.mark.parametrize("name", ["../up", "Big", "a b", "a--b", "-a", "x" * 200])
def test_an_id_is_no_path(name):
    assert run("rules", "new", "--", name).exit_code == 2
    assert list(Path().glob("**/*.yaml")) == []


def test_a_failing_example_is_status_1():
    a_rule(fires=0)
    result = run("rules", "test", "big-gemm.yaml")
    assert result.exit_code == 1
    assert "big-gemm is silent, but should fire on {'category': 'gemm', 'n_kernels': 0}" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("1 failed")


def test_list_and_show():
    a_rule()
    listed = run("rules", "list", "--rules", "big-gemm.yaml").stdout
    line = next(line for line in listed.splitlines() if line.startswith("big-gemm"))
    assert line.split()[:3] == ["big-gemm", "warning", "step_categories"]
    shown = run("rules", "show", "big-gemm", "--rules", "big-gemm.yaml").stdout
    assert shown.startswith("big-gemm (warning)\n")
    for text in ("category = 'gemm' and n_kernels >= 1", "It is big.", "https://example.org/big", "(all null)"):
        assert text in shown
    unknown = run("rules", "show", "big-gem", "--rules", "big-gemm.yaml")
    assert unknown.exit_code == 2
    assert "hint: Did you mean big-gemm?" in unknown.stderr


@pytest.mark.parametrize("name", [rule.id for rule in built_in_rules()])
def test_built_in_rules_are_shown_whole(name):
    result = run("rules", "show", name)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{name} (")


# --- real traces


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "fires"),
    [
        ("sglang/before-eager-TP-0.trace.json.zst", True),
        ("sglang/before-graph-TP-0.trace.json.zst", True),
        ("sglang/after-eager-TP-0.trace.json.zst", False),
        ("sglang/after-graph-TP-0.trace.json.zst", False),
    ],
)
def test_the_pool_cast_is_one_finding(name, fires, shared):
    found = run_rules(traceql.load(shared / name), built_in_rules())
    pool = [each for each in found.found if each.rule.id == "whole-pool-kv-cast"]
    assert len(pool) == fires
    for each in pool:
        assert (each.n_layers, each.n_steps) == (78, 30)
        assert each.rule.severity == "critical"


# --- what a fix would save


def test_a_finding_says_what_its_fix_would_save():
    trace = str(FIXTURES / "sglang" / "before-graph-TP-0.trace.json.zst")
    result = CliRunner().invoke(main, ["check", trace, "--select", "whole-pool-kv-cast", "--format", "json"])
    (finding,) = json.loads(result.stdout)["findings"]
    saving = finding["saving"]
    assert saving["limit"] == "gpu"
    assert saving["graph_saved_ns"] is None  # its steps are graphs already
    assert saving["saved_ns"] == pytest.approx(65e6, rel=0.02)  # the fused gather saved 65.1 ms
    assert saving["saved_ns"] == pytest.approx(saving["kernel_saved_ns"], rel=1e-3)
    assert saving["kernel_saved_ns"] < finding["cost_ns_per_step"]
    page = CliRunner().invoke(main, ["check", trace, "--select", "whole-pool-kv-cast"]).stdout
    assert f"Worth: {saving['text'][:40]}" in page.replace("\n", " ")
