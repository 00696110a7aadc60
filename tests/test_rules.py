"""Rules: what a rule file may say, what it may not, and what running rules over a trace finds."""

from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import FIXTURES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import traceql
from traceql import analyses
from traceql.analyses.results import RESULTS
from traceql.analyses.summary import Selection
from traceql.categories import load_categories
from traceql.errors import MissingDataError, RuleError
from traceql.names import dtypes
from traceql.rules import (
    EVIDENCE,
    FINDINGS,
    Findings,
    Rule,
    built_in_rules,
    find_config,
    load_rules,
    load_suppressions,
    run_rules,
)
from traceql.rules.conditions import FUNCTIONS, ConditionError, condition, figure
from traceql.rules.examples import failures
from traceql.rules.loading import MAX_BYTES, read_rule
from traceql.rules.messages import FILTERS, MAX_TEXT, check_template, rendered
from traceql.rules.values import DTYPES
from traceql.run import load_run
from traceql.trace import Trace

EAGER = FIXTURES / "glm5" / "tiny-pool-eager-TP-0.json.gz"
CATEGORIES = load_categories()

RULE = """\
id: big-part
severity: warning
table: step_categories
when: exclusive_ns > 0.1 * kernel_ns and n_kernels >= 1
cost: exclusive_ns
message: "{{ category }} takes {{ exclusive_ns | ns }} of step {{ step }}"
why: It is big.
fix: Make {{ category }} small.
examples:
  fires: [{category: gemm, exclusive_ns: 2, kernel_ns: 10, n_kernels: 1}]
  silent: [{category: gemm, exclusive_ns: 1, kernel_ns: 10, n_kernels: 1}, {}]
"""


@cache
def eager() -> Trace:
    return traceql.load(EAGER, cache=False)


def written(folder: Path, text: str, name: str = "big-part") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def with_fields(**fields: str) -> str:
    """`RULE` with other or more lines; an empty one is left out."""
    head, examples = RULE.split("examples:\n")
    lines: dict[str, str] = {}
    for line in head.splitlines():
        name, _, text = line.partition(": ")
        lines[name] = text
    lines |= {name: text for name, text in fields.items() if name != "examples"}
    text = "".join(f"{name}: {value}\n" for name, value in lines.items() if value)
    return f"{text}examples:\n{fields.get('examples', examples)}"


def rule(folder: Path, **fields: str) -> Rule:
    return read_rule(written(folder, with_fields(**fields), fields.get("id", "big-part")), CATEGORIES)


def refusal(folder: Path, **fields: str) -> tuple[str, str]:
    """Message (from line and column on) and hint of the error."""
    path = written(folder, with_fields(**fields), fields.get("id", "big-part"))
    with pytest.raises(RuleError) as caught:
        read_rule(path, CATEGORIES)
    assert caught.value.message.startswith(f"{path}:")
    return caught.value.message.removeprefix(f"{path}:"), caught.value.hint


# --- the built-in rules


@pytest.mark.parametrize("built_in", built_in_rules(), ids=lambda rule: rule.id)
def test_examples_of_the_built_in_rules(built_in: Rule):
    assert [failure.text for failure in failures(built_in, CATEGORIES)] == []


def test_tables_of_results_are_named_alike():
    for name, result in RESULTS.items():
        if (
            name in {"casts", "cast_groups"}
            and not Path(traceql.__file__).with_name("analyses").joinpath("casts.py").exists()
        ):
            continue
        assert result.table.name == name


# --- loading


def test_a_rule_is_what_its_file_says(tmp_path):
    more = {"group_by": "[rank, category]", "order_by": "n_kernels", "needs": "[ops, complete-steps]",
            "links": "[https://example.org/a]",
            "saving": "{replace: category = 'cast', bytes: 3 * exclusive_ns, bandwidth_bytes_per_s: 1e12}"}  # fmt: skip
    found = rule(tmp_path, **more)
    assert (found.id, found.severity, found.table) == ("big-part", "warning", "step_categories")
    assert found.group_by == ("rank", "category")
    assert found.needs == ("ops", "complete-steps")
    assert found.links == ("https://example.org/a",)
    assert found.order_by == "n_kernels"
    assert found.saving is not None
    assert (found.saving.kernels, found.saving.bytes) == ("category = 'cast'", "3 * exclusive_ns")
    assert (found.saving.factor, found.saving.bandwidth_bytes_per_s) == (None, 1e12)
    assert found.silent == ({"category": "gemm", "exclusive_ns": 1, "kernel_ns": 10, "n_kernels": 1}, {})


FAULTS = [
    ({"wen": "step > 1"}, "unknown field 'wen'", "Did you mean when?"),
    ({"why": ""}, "1:1: missing: why", "Add"),
    ({"severity": "warn"}, "2:11: unknown severity 'warn'", "Did you mean warning?"),
    ({"table": "step_category"}, "3:8: unknown table 'step_category'", "Did you mean step_categories?"),
    ({"when": "n_kernls > 1"}, "4:7: unknown column 'n_kernls'", "Did you mean n_kernels?"),
    ({"when": "step > 1 and n_kernls > 1"}, "4:20: unknown column 'n_kernls'", "Did you mean n_kernels?"),
    ({"when": '"step > 1 and n_kernls > 1"'}, "4:21: unknown column 'n_kernls'", "Did you mean n_kernels?"),
    ({"when": "category = 'gem'"}, "4:18: category is never 'gem'", "Did you mean gemm?"),
    ({"when": "\"'gem' != category\""}, "4:8: category is never 'gem'", "Did you mean gemm?"),
    ({"when": "category not in ('cast', 'gem')"}, "4:32: category is never 'gem'", "Did you mean gemm?"),
    ({"when": "group = 'NCCL'"}, "4:15: group is never 'NCCL'", "Known: copy"),
    ({"when": "sum(n_kernels) > 1"}, "4:7: sum is an aggregate", "one row"),
    ({"when": "count(*) > 1"}, "4:7: count is an aggregate", "one row"),
    ({"when": "n_kernels > avg (n_kernels) over (partition by step)"}, "4:19: avg is an aggregate", "one row"),
    ({"when": "row_number() over () = 1"}, "unknown function 'row_number'", ""),
    ({"when": "step in (select 1)"}, "4:16: unknown column 'select'", ""),
    ({"when": "exists (select 1)"}, "unknown function 'exists'", ""),
    ({"when": "step = 1 -- a comment"}, "4:16: '--' has no meaning here", "Allowed"),
    ({"when": "step = 1; drop"}, "4:15: '; ", "Allowed"),
    ({"when": "step = 1 step"}, "an operator is missing before 'step'", ""),
    ({"when": "n_kernels"}, "4:7: it is no condition but of type Int64", ""),
    ({"when": "null"}, "expected a text", ""),
    ({"when": "'null'"}, "4:8: it has no value", ""),
    ({"when": "step = 'a'"}, "4:7: ", ""),
    ({"when": "category = 1"}, "4:7: ", ""),
    ({"when": "rank = 1 and"}, "4:7: ", ""),
    ({"cost": "category"}, "5:7: it is no number but of type String", ""),
    ({"cost": "-1"}, "5:7: expected a number that is not negative", ""),
    ({"order_by": "max(n_kernels)"}, "max is an aggregate", ""),
    ({"group_by": "[stp]"}, "unknown column 'stp'", "Did you mean step?"),
    ({"needs": "[op]"}, "unknown need 'op'", "Did you mean ops?"),
    ({"links": "[javascript:alert(1)]"}, "is no URL", ""),
    ({"id": "Big_Part"}, "1:5: 'Big_Part' is no id", ""),
    ({"message": "'{{ stp }}'"}, "6:10: unknown column 'stp'", "Did you mean step?"),
    ({"message": "'{{ step | sec }}'"}, "unknown filter 'sec'", ""),
    ({"message": "'{{ step'"}, "no template", ""),
    ({"message": "'{# nothing #}'"}, "the text is empty", ""),
    ({"fix": "'{{ step.bit_length() }}'"}, "cannot have: call", ""),
    ({"saving": "{scale: category = 'cast'}"}, "not a saving", ""),
    ({"saving": "{scale: category = 'cast', factor: 0, bytes: 1}"}, "not a saving", ""),
    ({"saving": "{scale: exclusive_ns > 1, factor: 0}"}, "unknown column 'exclusive_ns'", ""),
    ({"examples": "  fires: []\n  silent: [{}]\n"}, "no examples", ""),
    ({"examples": "  fires: [{stp: 1}]\n  silent: [{}]\n"}, "unknown field 'stp'", "Did you mean step?"),
    ({"examples": "  fires: [{step: one}]\n  silent: [{}]\n"}, "step cannot be 'one'", "Int64"),
    ({"examples": "  fires: [{step: 1.5}]\n  silent: [{}]\n"}, "step cannot be 1.5", "Int64"),
    ({"examples": "  fires: [{category: gem}]\n  silent: [{}]\n"}, "unknown category 'gem'", "Did you mean gemm?"),
    ({"examples": "  fires: [{step: 99999999999999999999}]\n  silent: [{}]\n"}, "is no number", "64 bits"),
    ({"examples": "  fires: [{step: 2027-01-31}]\n  silent: [{}]\n"}, "expected a text", ""),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message", "hint"), FAULTS)
def test_a_fault_says_where_and_what_was_meant(fields, message, hint, tmp_path):
    found = refusal(tmp_path, **fields)
    assert message in found[0]
    assert hint in found[1]


def test_a_field_twice(tmp_path):
    path = written(tmp_path, RULE + "why: Again.\n")
    with pytest.raises(RuleError, match=r":12:1: field why stands twice"):
        read_rule(path, CATEGORIES)


def test_the_id_is_the_name_of_the_file(tmp_path):
    with pytest.raises(RuleError, match=r"other\.yaml:1:5: the id is big-part"):
        read_rule(written(tmp_path, RULE, "other"), CATEGORIES)


def test_categories_of_the_user_are_known(tmp_path):
    own = tmp_path / "categories.txt"
    own.write_text("categories:\n  - {name: mine, group: other, doc: Ours, color: '#123456'}\nrows: []\n")
    path = written(tmp_path, with_fields(when="category = 'mine'"))
    with pytest.raises(RuleError, match="never 'mine'"):
        read_rule(path, CATEGORIES)
    assert read_rule(path, load_categories(own)).when == "category = 'mine'"


def test_a_folder_of_rules(tmp_path):
    written(tmp_path, RULE)
    written(tmp_path, RULE.replace("big-part", "a-part"), "a-part")
    own = [each.id for each in load_rules([tmp_path]) if each.id.endswith("-part")]
    assert own == ["a-part", "big-part"]
    with pytest.raises(RuleError, match="already a rule big-part"):
        load_rules([tmp_path, tmp_path / "big-part.yaml"])
    (tmp_path / "none").mkdir()
    with pytest.raises(RuleError, match="no rule in this folder"):
        load_rules([tmp_path / "none"])
    with pytest.raises(RuleError, match="No such file"):
        load_rules([tmp_path / "gone.yaml"])


# --- hostile files

HOSTILE = {
    "brackets": "[" * 60_000,
    "questions": "? " * 30_000,
    "ten thousand lines": "a: b\n" * 10_000,
    "ten thousand fields": "".join(f"k{n}: v\n" for n in range(10_000)),
    "ten thousand items": "-\n" * 10_000,
    "ten thousand broken lines": "a: [\n" * 10_000,
    "too long": "x" * (MAX_BYTES + 1),
    "laughs": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "a python object": "!!python/object/apply:os.system ['true']",
    "nothing": "",
    "control characters": "\0\1\2",
    "two documents": f"{RULE}---\n{RULE}",
    "parentheses": with_fields(when="(" * 900 + "step = 1" + ")" * 900),
    "a long condition": with_fields(when="step = 1 and " * 5000 + "step = 1"),
    "nested ifs": with_fields(when="if(step = 1, " * 80 + "true" + ", false)" * 80),
    "an endless regex": with_fields(when="regexp_like(category, '((a{1000}){1000}){1000}')"),
    "a file read": with_fields(when="exists (select * from read_csv('/etc/passwd'))"),
    "a file compared": with_fields(when="category in (select column_1 from read_csv('/etc/passwd'))"),
    "a quote inside a quote": with_fields(when=r"category = '\' or exists(select 1) or '' = '\'"),
    "another quoting": with_fields(when="category = $$a$$ or category = E'\\''"),
    "a loop": with_fields(message="'{% for i in range(10**9) %}x{% endfor %}'"),
    "a power": with_fields(message="'{{ 9 ** 9 ** 9 }}'"),
    "a long text": with_fields(message="\"{{ 'a' * 999999999 }}\""),
    "an escape": with_fields(message="\"{{ ''.__class__.__mro__[1].__subclasses__() }}\""),
    "an attribute by filter": with_fields(message="\"{{ step | attr('__class__') }}\""),
    "an include": with_fields(message="\"{% include '/etc/passwd' %}\""),
    "many filters": with_fields(message="'{{ step" + " | ns" * 900 + " }}'"),
    "nested templates": with_fields(message="'{{ " + "(" * 1800 + "step" + ")" * 1800 + " }}'"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(name, tmp_path):
    path = written(tmp_path, HOSTILE[name])
    with pytest.raises(RuleError) as caught:
        read_rule(path, CATEGORIES)
    assert len(caught.value.message) < 1000


def rule_or_error(path: Path) -> str:
    try:
        return read_rule(path, CATEGORIES).id
    except RuleError as error:
        return error.message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(text=st.text(max_size=200), at=st.integers(0, len(RULE)), length=st.integers(0, 40))
def test_a_damaged_file_is_a_rule_or_an_error(text, at, length, tmp_path):
    path = tmp_path / "big-part.yaml"
    path.write_text(RULE[:at] + text + RULE[at + length :], encoding="utf-8", errors="replace")
    outcome = rule_or_error(path)
    assert outcome == "big-part" or outcome.startswith(f"{path}")


# --- conditions

SCHEMA: dict[str, pl.DataType] = {"a": pl.Int64(), "f": pl.Float64(), "t": pl.String(), "group": pl.String()}
VALUES = pl.DataFrame({"a": [7, 0, None], "f": [0.5, 2.0, None], "t": ["it's", "b", None], "group": ["x", "y", None]},
                      schema=SCHEMA)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a > 1", [True, False, None]),
        ("a >= 0.5 * 14", [True, False, None]),
        ("group = 'x'", [True, False, None]),
        ("\"group\" = 'x' or a = 0", [True, True, None]),
        ("a between 1 and 1_000", [True, False, None]),
        ("t = 'it''s'", [True, False, None]),
        ("t like 'b%' and not (a > 0)", [False, True, None]),
        ("a is null or f < 1", [True, False, True]),
        ("coalesce(a, 3) / 2 > 1.4", [True, False, True]),
        ("a in (0, 1) and group in ('y')", [False, True, None]),
        ("case when a > 1 then f else 9 end < 1", [True, False, False]),
        ("regexp_like(t, '^[a-c]$')", [False, True, None]),
        ("if(f > 1, a, 5) = 0", [False, True, False]),
    ],
)
def test_a_condition_is_about_one_row(text, expected):
    expr = condition(text, SCHEMA, {}).expr
    assert VALUES.select(x=expr)["x"].to_list() == expected
    assert [VALUES[n].select(x=expr)["x"].item() for n in range(3)] == expected


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_are_of_one_row(function):
    arguments = {
        "if": "a > 1, a, 0", "mod": "a, 2", "power": "a, 2", "nullif": "a, 0", "greatest": "a, 3", "least": "a, 3",
        "coalesce": "a, 1", "round": "f, 1", "starts_with": "t, 'b'", "ends_with": "t, 'b'",
        "regexp_like": "t, 'b'", "strpos": "t, 'b'", "length": "t", "lower": "t", "upper": "t",
    }  # fmt: skip
    text = f"{function}({arguments.get(function, 'f')}) is not null"
    expr = condition(text, SCHEMA, {}).expr
    whole = VALUES.select(x=expr)["x"].to_list()
    assert whole == [VALUES[n].select(x=expr)["x"].item() for n in range(3)]
    assert whole[0] is True


def test_a_figure_is_a_number_or_null():
    assert VALUES.select(x=figure("f / a", SCHEMA, {}).expr)["x"].to_list() == [0.5 / 7, None, None]
    assert VALUES.select(x=figure("1e3 * f", SCHEMA, {}).expr)["x"].to_list() == [500, 2000, None]
    assert VALUES.with_columns(x=figure("2", SCHEMA, {}).expr)["x"].to_list() == [2.0, 2.0, 2.0]


@given(st.text(alphabet=st.sampled_from("a f t ( ) , ' \" 1 . e + - * / % = < > ! | and or not in null sum ; \\")))
def test_any_text_is_a_condition_or_an_error(text):
    try:
        found = condition(text, SCHEMA, {})
    except ConditionError:
        return
    whole = VALUES.with_columns(x=found.expr)["x"].to_list()
    assert whole == [VALUES[n].with_columns(x=found.expr)["x"].item() for n in range(3)]


def test_dtypes_are_those_of_names():
    assert {*DTYPES} == {*dtypes._DTYPES}


# --- messages


def test_filters_write_figures():
    values = {"ns": 64_600_000, "n": 1234, "b": 856_000_000, "s": 0.693, "r": 1.02e12, "null": None, "yes": True}
    template = (
        "{{ ns | ns }} {{ n | count }} {{ b | bytes }} {{ s | percent }} {{ r | rate }} {{ null | ns }} {{ yes }}"
    )
    check_template(template, values)
    assert rendered(template, values) == "64.600 ms 1,234 856 MB 69.3 % 1.02 TB/s unknown yes"
    assert rendered(
        "{{ a | step }}, {{ b | step }}, {{ null | step }}", {"a": "decode", "b": "unknown", "null": None}
    ) == ("decode step, step, step")
    assert set(FILTERS) == {"ns", "count", "bytes", "percent", "rate", "step"}


def test_a_message_can_ask_for_null():
    template = "cast{% if src is none %}, source not recorded{% else %} of {{ src }}{% endif %}"
    assert rendered(template, {"src": None}) == "cast, source not recorded"
    assert rendered(template, {"src": "fp8"}) == "cast of fp8"


def test_a_question_about_null_does_not_break_a_message():
    assert rendered("a {% if n > 3 %}lot{% endif %} of {{ n }}", {"n": None}).startswith("a ")


def test_a_message_is_one_short_line_whatever_the_name():
    name = "\x1b[31mred\n<b>{{ 7 }}\u202e" + "x" * 5000
    text = rendered("{{ name }} is slow" + " and" * 400, {"name": name})
    assert len(text) == MAX_TEXT
    assert text.startswith(r"\x1b[31mred <b>{{ 7 }}\u202ex")
    assert text.isprintable()


# --- running


def run(trace: Trace, *rules: Rule, **more: Any) -> Findings:
    return run_rules(trace, rules, **more)


def test_cost_is_a_mean_over_the_complete_steps(tmp_path):
    (finding,) = run(eager(), rule(tmp_path, when="category = 'gemm'")).found
    steps = {row["step"]: row for row in analyses.steps(eager()).iter_rows(named=True)}
    rows = [row for row in analyses.step_categories(eager()).iter_rows(named=True) if row["category"] == "gemm"]
    complete = [step for step in steps.values() if step["is_complete"] and step["separable"]]
    counted = [row["exclusive_ns"] for row in rows if steps[row["step"]]["is_complete"]]
    assert 0 < len(counted) < len(rows)  # the last step is not complete
    assert finding.cost_ns_per_step == sum(counted) / len(complete)
    assert finding.share == sum(counted) / sum(step["wall_ns"] for step in complete)
    assert (finding.n_rows, finding.n_steps, finding.n_layers) == (len(rows), len(rows), None)
    worst = max(rows, key=lambda row: row["exclusive_ns"])
    assert finding.worst == worst
    assert finding.message == f"gemm takes {traceql.fmt.duration(worst['exclusive_ns'])} of step {worst['step']}"
    assert finding.fix == "Make gemm small."
    assert finding.evidence["ns"].to_list() == sorted((row["exclusive_ns"] for row in rows), reverse=True)
    assert finding.evidence["name"].to_list() == ["gemm"] * len(rows)


def test_rows_make_one_finding_or_one_a_group(tmp_path):
    some = "category in ('gemm', 'cast', 'comm')"
    (whole,) = run(eager(), rule(tmp_path, when=some)).found
    parts = run(eager(), rule(tmp_path, when=some, group_by="category")).found
    assert {part.group["category"] for part in parts} == {"gemm", "cast", "comm"}
    assert sum(part.n_rows for part in parts) == whole.n_rows
    assert sum(part.cost_ns_per_step or 0 for part in parts) == pytest.approx(whole.cost_ns_per_step)
    costs = [part.cost_ns_per_step or 0 for part in parts]
    assert costs == sorted(costs, reverse=True)


def test_findings_are_sorted_by_cost_then_severity(tmp_path):
    cheap = rule(tmp_path, id="cheap", cost="1")
    dear = rule(tmp_path, id="dear", severity="info")
    free = rule(tmp_path, id="free", cost="", severity="info")
    bad = rule(tmp_path, id="bad", cost="", severity="critical")
    assert [each.rule.id for each in run(eager(), free, bad, cheap, dear).found] == ["dear", "cheap", "bad", "free"]


def test_the_worst_row_is_the_one_that_order_by_says(tmp_path):
    (finding,) = run(eager(), rule(tmp_path, when="n_kernels > 0", order_by="n_kernels")).found
    most = analyses.step_categories(eager())["n_kernels"].max()
    assert finding.worst["n_kernels"] == most
    assert finding.evidence["ns"].to_list() == sorted(finding.evidence["ns"], reverse=True)
    assert finding.evidence.height == 10


def test_tables_of_findings(tmp_path):
    found = run(eager(), rule(tmp_path, when="true", group_by="category"))
    assert found.table.schema == FINDINGS.schema
    assert found.table.height == len(found.found) > 3
    assert found.evidence.schema == EVIDENCE.schema
    assert found.evidence["finding"].n_unique() == len(found.found)
    assert Findings(()).evidence.is_empty()


def test_a_table_is_made_once(tmp_path, monkeypatch):
    made = []
    result = RESULTS["step_categories"]
    monkeypatch.setitem(
        RESULTS,
        "step_categories",
        type(result)(result.columns, lambda trace, steps: made.append(1) or result.rows(trace, steps)),
    )
    run(eager(), rule(tmp_path, id="one"), rule(tmp_path, id="two"))
    assert made == [1]


def test_the_order_of_rows_is_no_matter(tmp_path, monkeypatch):
    rules = [rule(tmp_path, id="one", when="true", group_by="step"), rule(tmp_path, id="two", cost="1", when="true")]
    plain = run(eager(), *rules)
    result = RESULTS["step_categories"]
    for seed in range(3):
        shuffled = type(result)(
            result.columns,
            lambda trace, steps, seed=seed: result.rows(trace, steps).sample(fraction=1, shuffle=True, seed=seed),
        )
        monkeypatch.setitem(RESULTS, "step_categories", shuffled)
        again = run(eager(), *rules)
        assert again.table.equals(plain.table)
        assert again.evidence.equals(plain.evidence)


def test_a_rule_that_would_flood_is_cut(tmp_path):
    each = rule(tmp_path, table="idle", when="true", cost="dur_ns", group_by="[step, start_ns]",
                message="gap", fix="none", examples="  fires: [{step: 1}]\n  silent: [{step: 1}]\n")  # fmt: skip
    found = run(eager(), each)
    assert len(found.found) == 50
    assert found.notes[0].startswith("big-part: ")
    complete = analyses.steps(eager()).filter("is_complete")
    gaps = RESULTS["idle"].make(eager()).join(complete, on=["rank", "device", "step"], how="semi")
    assert found.found[0].worst["dur_ns"] == gaps["dur_ns"].max()


def test_a_selection_of_steps(tmp_path):
    every = rule(tmp_path, when="true")
    (finding,) = run(eager(), every, selection=Selection(first_step=1, end_step=2)).found
    assert finding.n_steps == 1
    assert set(finding.evidence["step"]) == {1}
    with pytest.raises(MissingDataError, match="no step"):
        run(eager(), every, selection=Selection(first_step=99))


def test_what_fails_on_the_rows_of_a_trace_is_an_error_of_the_rule(tmp_path):
    odd = rule(tmp_path, table="kernel_stats", when="regexp_like(category, '(' || category)", cost="kernel_ns",
               message="odd", fix="none", examples="  fires: [{}]\n  silent: [{}]\n")  # fmt: skip
    with pytest.raises(RuleError, match=r"rule big-part fails on this table: .*regex"):
        run(eager(), odd)


def test_texts_of_a_rule_hold_no_control_characters(tmp_path):
    odd = rule(tmp_path, why='"red \\e[31m and\\n two lines"')
    assert odd.why == r"red \x1b[31m and two lines"


# --- abstaining


@pytest.mark.parametrize(
    ("need", "reason"),
    [
        ("python_calls", "no Python frame is recorded"),
        ("stack", "no Python frame is recorded"),
        ("several-ranks", "only one rank is loaded"),
        ("memory", "no allocation is recorded"),
    ],
)
def test_a_rule_abstains_without_what_it_needs(need, reason, tmp_path):
    found = run(eager(), rule(tmp_path, needs=f"[ops, {need}]"))
    assert found.found == ()
    assert found.abstained[0].reason.startswith(reason)


def test_a_device_without_figures(tmp_path):
    trace = traceql.load(FIXTURES / "cases" / "21-no-profiler-step.json", cache=False)
    (abstained,) = run(trace, rule(tmp_path, needs="[device]")).abstained
    assert abstained.reason == "the peak figures of this device are not known: Sample GPU"


def test_needs_that_are_met(tmp_path):
    both = load_run([EAGER, EAGER.with_name("tiny-pool-eager-TP-1.json.gz")], cache=False)
    found = run(
        both, rule(tmp_path, needs="[several-ranks, device, ops, launches, spans, syncs, complete-steps, kernels]")
    )
    assert not found.abstained
    assert set(found.evidence["rank"]) == {0, 1}


def test_without_steps_the_cost_is_unknown(tmp_path):
    trace = traceql.load(FIXTURES / "cases" / "21-no-profiler-step.json", cache=False)
    each = rule(tmp_path, table="kernel_stats", when="true", cost="kernel_ns",
                message="cost {{ cost_ns_per_step | ns }}",
                fix="none", examples="  fires: [{}]\n  silent: [{}]\n")  # fmt: skip
    (finding,) = run(trace, each).found
    assert (finding.cost_ns_per_step, finding.share, finding.message) == (None, None, "cost unknown")
    needing = rule(tmp_path, needs="[complete-steps]")
    assert run(trace, needing).abstained[0].reason == "no complete step was found"


@pytest.mark.parametrize("name", ["31-empty-events", "31-metadata-only", "71-no-kernels", "42-two-devices"])
def test_built_in_rules_judge_any_trace(name):
    trace = traceql.load(FIXTURES / "cases" / f"{name}.json", cache=False)
    found = run_rules(trace, built_in_rules())
    judged = len({each.rule.id for each in found.found}) + len(found.abstained) + len(found.passed)
    assert judged == len(built_in_rules())


# --- examples


def test_examples_that_fail_are_named(tmp_path):
    bad = rule(tmp_path, examples="  fires: [{exclusive_ns: 1, kernel_ns: 100, n_kernels: 1}, {}]\n  silent:\n"
               "    - {exclusive_ns: 50, kernel_ns: 100, n_kernels: 1}\n")  # fmt: skip
    assert [(each.expected, each.example.get("exclusive_ns")) for each in failures(bad, CATEGORIES)] == [
        ("fires", 1), ("fires", None), ("silent", 50)]  # fmt: skip


# --- suppressions

TODAY = date(2027, 1, 31)


def config(folder: Path, text: str) -> Path:
    path = folder / "traceql.toml"
    path.write_text(text)
    return path


def suppressed(folder: Path, text: str, *rules: Rule) -> Findings:
    entries = load_suppressions(config(folder, text), rules, CATEGORIES, today=TODAY)
    return run_rules(eager(), rules, entries)


def test_a_suppressed_finding_is_counted_and_says_why(tmp_path):
    found = suppressed(tmp_path, '[[suppress]]\nrule = "big-part"\nreason = "on purpose"\n', rule(tmp_path))
    assert found.found == ()
    assert [(each.finding.rule.id, each.reason) for each in found.suppressed] == [("big-part", "on purpose")]


@pytest.mark.parametrize(("expires", "n_found"), [("2027-01-31", 0), ("2027-01-30", 1)])
def test_a_suppression_ends(expires, n_found, tmp_path):
    text = f'[[suppress]]\nrule = "big-part"\nreason = "for now"\nexpires = {expires}\n'
    found = suppressed(tmp_path, text, rule(tmp_path))
    assert len(found.found) == n_found
    assert any(f"expired on {expires}" in note for note in found.notes) is bool(n_found)


def test_a_suppression_of_some_findings(tmp_path):
    text = '[[suppress]]\nrule = "big-part"\nreason = "known"\nwhere = "category = \'gemm\' and n_rows > 1"\n'
    grouped = rule(tmp_path, when="category in ('gemm', 'cast')", group_by="category")
    found = suppressed(tmp_path, text, grouped)
    assert [each.group["category"] for each in found.found] == ["cast"]
    assert [each.finding.group["category"] for each in found.suppressed] == ["gemm"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('[[suppress]]\nrule = "big-part"\n', "suppress 1: missing: reason", "reason ="),
        ('[[suppress]]\nrule = "big-part"\nreason = ""\n', "suppress 1: reason is no str", ""),
        ('[[suppress]]\nrule = "big-prt"\nreason = "x"\n', "unknown rule 'big-prt'", "Did you mean big-part?"),
        ('[[suppress]]\nrule = "big-part"\nreason = "x"\nexpire = 2027-01-01\n', "unknown field 'expire'", "expires"),
        ('[[suppress]]\nrule = "big-part"\nreason = "x"\nexpires = "soon"\n', "expires is no date", ""),
        ('[[suppress]]\nrule = "big-part"\nreason = "x"\nwhere = "stp = 1"\n', "where: unknown column 'stp'", "step"),
        ('suppress = "all"\n', "suppress is no list of tables", ""),
        ("supress = 1\n", "unknown field 'supress'", "Did you mean suppress?"),
        ("[[suppress]\n", "traceql.toml: ", "TOML"),
    ],
)
def test_a_wrong_project_file(text, message, hint, tmp_path):
    with pytest.raises(RuleError) as caught:
        suppressed(tmp_path, text, rule(tmp_path))
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_the_project_file_is_that_of_the_nearest_folder(tmp_path):
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    path = config(tmp_path, "")
    assert find_config(below) == path
    nearer = config(below.parent, "")
    assert find_config(below) == nearer
