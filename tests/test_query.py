"""`traceql query` and `traceql tables`: answers against a slow count, the cookbook run, faults of use."""

import io
import json
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
import zstandard
from click.testing import CliRunner
from conftest import FIXTURES, SHARED

import traceql
from traceql.analyses import summarize
from traceql.analyses.dialect import ELSEWHERE, FUNCTIONS, TABLES_ELSEWHERE, refuse_files
from traceql.analyses.query import ask, query, tables
from traceql.analyses.results import RESULTS
from traceql.analyses.summary import Selection
from traceql.cli import main
from traceql.errors import InputError, MissingDataError, QueryError
from traceql.tables import INPUT_TABLES

GRAPH = FIXTURES / "sglang" / "before-graph-TP-0.trace.json.zst"
EAGER = FIXTURES / "glm5" / "tiny-pool-stack-TP-0.json.gz"
DOCS = Path(__file__).parents[1] / "docs"
COOKBOOK = DOCS / "cookbook.md"
QUERIES = [
    sql
    for page in (COOKBOOK, DOCS / "faq.md")
    for sql in re.findall(r"^```sql\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
]


@pytest.fixture(scope="module")
def trace():
    return traceql.load(GRAPH)


def run(*arguments):
    return CliRunner().invoke(main, ["query", *map(str, arguments)])


# --- answers


def test_kernels_are_those_of_the_file(trace):
    events = json.loads(zstandard.ZstdDecompressor().stream_reader(GRAPH.read_bytes()).read())["traceEvents"]
    counted = Counter(event["name"] for event in events if event.get("cat") == "kernel")
    answer = query(trace, "SELECT name, COUNT(*) AS n FROM kernels WHERE kind = 'kernel' GROUP BY name")
    assert dict(answer.rows()) == counted


def test_every_table_can_be_named(trace):
    """Each is what its maker gives; one that the trace cannot have says so."""
    for name, table in tables().items():
        try:
            answer = query(trace, f'SELECT * FROM "{name}"')
        except MissingDataError:
            assert RESULTS[name].needs
            continue
        assert answer.schema == table.schema
        whole = RESULTS[name].make(trace) if name in RESULTS else getattr(trace, name).collect()
        assert answer.height == whole.height


def test_no_name_means_two_tables():
    assert not {table.name for table in INPUT_TABLES} & RESULTS.keys()


def test_steps_are_those_selected(trace):
    answer = query(trace, "SELECT DISTINCT step FROM step_categories ORDER BY step", Selection(5, 8))
    assert answer["step"].to_list() == [5, 6, 7]


@pytest.mark.parametrize(
    ("sql", "is_told"),
    [
        ("SELECT COUNT(*) FROM kernels", True),
        ("SELECT COUNT(*) FROM Kernels JOIN launches USING (launch_id)", True),
        ("SELECT COUNT(*) FROM kernels JOIN kernel_steps USING (kernel_id)", False),
        ("SELECT COUNT(*) FROM steps", False),
        ("SELECT COUNT(*) FROM categories", False),
    ],
)
def test_tables_that_are_whole_say_so_where_steps_are_selected(trace, sql, is_told):
    told = ask(trace, sql, Selection(5, 8)).notes
    assert [("all steps" in note, "kernel_steps" in note) for note in told] == [(True, True)] * is_told
    assert not any("all steps" in note for note in ask(trace, sql).notes)


def test_parts_add_up_to_the_whole(trace):
    sql = """
        WITH parts AS (SELECT step, SUM(exclusive_ns) AS parts_ns FROM step_categories GROUP BY step)
        SELECT s.step, s.wall_ns - s.idle_ns AS busy_ns, parts.parts_ns
        FROM steps s JOIN parts ON s.step = parts.step
    """
    answer = query(trace, sql)
    assert answer.height == 30
    assert answer["busy_ns"].to_list() == answer["parts_ns"].to_list()


def test_names_and_keywords_in_any_case(trace):
    answers = [
        query(trace, sql).item()
        for sql in (
            "select count(*) from Kernels",
            "-- all\nSELECT COUNT(*) FROM KERNELS",
            "/* x */ (SELECT COUNT(*) FROM kernels)",
        )
    ]
    assert set(answers) == {trace.kernels.collect().height}


def test_many_comments_before_a_query(trace):
    """Where each ends is clear: their number must not double the time."""
    comments = "/**/" * 100
    assert query(trace, f"{comments} SELECT 7 AS n").item() == 7
    with pytest.raises(QueryError, match="not a query"):
        query(trace, f"{comments} DROP TABLE kernels")


def test_own_table_of_a_query_goes_before(trace):
    assert query(trace, "WITH kernels AS (SELECT 7 AS n) SELECT n FROM kernels").item() == 7


# --- numbers as they are meant


@pytest.mark.parametrize(
    ("sql", "meant"),
    [
        ("SELECT 8.0 / wall_ns * 1e9 FROM steps WHERE step = 5", lambda wall: 8 / wall * 1e9),
        ("SELECT 1.0/wall_ns FROM steps WHERE step = 5", lambda wall: 1 / wall),
        ("SELECT .5 / wall_ns FROM steps WHERE step = 5", lambda wall: 0.5 / wall),
        ("SELECT wall_ns / 1000000. FROM steps WHERE step = 5", lambda wall: wall / 1e6),
        ("SELECT wall_ns / 1000000000000 FROM steps WHERE step = 5", lambda wall: wall / 1e12),
        ("SELECT wall_ns // 1000000 FROM steps WHERE step = 5", lambda wall: wall // 10**6),
        ("SELECT SUM(wall_ns > 0) - 2 FROM steps WHERE step = 5", lambda _: -1),
        ("SELECT SUM(CASE WHEN wall_ns > 0 THEN 2000000000 END) FROM steps WHERE step IN (5, 6)", lambda _: 4 * 10**9),
        ("SELECT sum /* all */ (rank + 2000000000) FROM steps WHERE step IN (5, 6)", lambda _: 4 * 10**9),
        ("SELECT SUM(DISTINCT device) FROM steps", lambda _: 0),
        ("SELECT SUM(SUM(wall_ns)) OVER () FROM steps WHERE step = 5", lambda wall: wall),
        ("SELECT CONCAT('1.5 SUM(x)', '') FROM steps LIMIT 1 -- 1.5 SUM(x)", lambda _: "1.5 SUM(x)"),
    ],
)
def test_numbers_are_as_exact_as_they_look(trace, sql, meant):
    """polars takes 8.0 for a decimal of few digits, and adds small integers up in 32 bits: both unseen."""
    wall = query(trace, "SELECT wall_ns FROM steps WHERE step = 5").item()
    value = query(trace, sql).item()
    assert value == meant(wall)
    assert type(value) is type(meant(wall))


def test_columns_keep_their_names(trace):
    answer = query(
        trace, "SELECT kind, SUM(dur_ns), SUM(bytes) AS b, AVG(dur_ns) * 1.5 AS x FROM kernels GROUP BY kind"
    )
    assert answer.columns == ["kind", "dur_ns", "b", "x"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_are_offered_are_there(name):
    with pytest.raises(pl.exceptions.PolarsError) as fault:
        pl.SQLContext(k=pl.LazyFrame({"a": [1]})).execute(f"SELECT {name}(a, a, a, a, nosuch) FROM k").collect()
    assert "unsupported function" not in str(fault.value)


@pytest.mark.parametrize(
    "name", [name for name, other in ELSEWHERE.items() if not other.lower().startswith(f"{name}(")]
)
def test_names_that_other_databases_have_are_not(trace, name):
    """Else the advice would stand in the way of what works."""
    with pytest.raises(QueryError, match=f"unknown function '{name}'|sql parser error"):
        query(trace, f"SELECT {name}(dur_ns, dur_ns) FROM kernels")


@pytest.mark.parametrize("hint", sorted(set(TABLES_ELSEWHERE.values())))
def test_tables_that_hints_name_are_there(hint):
    assert not TABLES_ELSEWHERE.keys() & tables().keys()
    named = re.search(r"It is called (\w+)\.|It is in (\w+):|^(\w+) has|column of (\w+)\.", hint)
    assert named is None or next(filter(None, named.groups())) in tables()


# --- nothing but the traces


@pytest.mark.parametrize(
    "source",
    [
        "read_csv('{}')", "READ_CSV('{}')", '"read_csv"(\'{}\')', "'read_csv'('{}')", "`read_csv`('{}')",
        "read_csv /* ' */ ('{}')", "read_csv -- '\n ('{}')", "(read_csv('{}'))", "kernels, read_csv('{}')",
        "kernels WHERE rank IN (SELECT a FROM read_csv('{}'))", "kernels UNION ALL SELECT * FROM read_csv('{}')",
        "read_parquet('{}')", "read_ipc('{}')", "read_json('{}')", "read_ndjson('{}')", "read_csv('https://127.0.0.1/{}')",
        "'{}'", '"{}"', "'file://{}'",
    ],
)  # fmt: skip
def test_no_file_is_read(trace, tmp_path, source):
    """A query that somebody was sent must not show, or fetch, what is not in the trace."""
    file = tmp_path / "own.csv"
    file.write_text("a\nsecret\n")
    for sql in (f"SELECT * FROM {source}", f"SELECT E'\\'' AS x, $$'$$ AS y FROM {source} -- '"):
        with pytest.raises(QueryError) as fault:
            query(trace, sql.replace("{}", str(file)))
        assert "secret" not in str(fault.value)


def test_every_function_of_polars_that_reads_is_known():
    """A new release may bring more of them: all that take a file's name say so when there is none."""
    context = pl.SQLContext(k=pl.LazyFrame({"a": [1]}))
    for verb in ("read", "scan", "load", "open", "from"):
        for form in ("csv", "parquet", "ipc", "json", "ndjson", "avro", "delta", "iceberg", "lines", "arrow", "excel"):
            for name in (f"{verb}_{form}", f"{form}_{verb}", form):
                try:
                    context.execute(f"SELECT * FROM {name}('/nosuch')").collect()
                except pl.exceptions.SQLInterfaceError:
                    continue
                except OSError:
                    with pytest.raises(QueryError):
                        refuse_files(f"SELECT * FROM {name}('/nosuch')")


# --- the cookbook


def test_the_cookbook_has_its_queries():
    assert len(QUERIES) >= 20


@pytest.mark.parametrize("sql", QUERIES, ids=range(len(QUERIES)))
def test_the_cookbook(trace, sql):
    """Each runs under CUDA graphs and on an eager trace, and one answers with rows unless no kernel is unknown."""
    answers = [query(trace, sql), query(traceql.load(EAGER), sql)]
    assert any(answer.height for answer in answers) or "category = 'other'" in sql


def test_the_query_for_what_summarize_tells(trace):
    (sql,) = [sql for sql in QUERIES if "ms_per_step" in sql]
    told = summarize(trace).categories.filter(pl.col("exclusive_ns") > 0)
    asked = query(trace, sql).filter(pl.col("ms_per_step") > 0)
    assert dict(asked.rows()) == pytest.approx({row["category"]: row["ns_per_step"] / 1e6 for row in told.to_dicts()})


# --- faults


@pytest.mark.parametrize(
    ("sql", "message", "hint"),
    [
        ("SELECT nme FROM kernels", "unknown column 'nme'", "Did you mean name?"),
        ("SELECT k.nme FROM kernels k", "unknown column 'nme'", "Did you mean name?"),
        ("SELECT name FROM kernels WHERE dur_n > 1", "unknown column 'dur_n'", "Did you mean dur_ns?"),
        ("SELECT name FROM kernel", "unknown table 'kernel'", "Did you mean kernels?"),
        ("SELECT name FROM \"a 'b' c\"", "unknown table", "Known: kernels, "),
        ("SELECT NAME FROM kernels", "unknown column 'NAME'", "Did you mean name? Names of columns are in lower case."),
        ('SELECT * FROM kernels WHERE category = "cast"', "unknown column 'cast'", "single quotes"),
        ("SELECT nosuchcolumn FROM steps", "unknown column 'nosuchcolumn'", "Known: rank, device, step"),
        ("SELECT 1 WHERE x", "unknown column 'x'", "names no table"),
        ("SELECT x.name FROM kernels k", "unknown table or alias 'x'", "The query's tables: kernels."),
        ("SELECT k.name FROM kernels", "unknown table or alias 'k'", "FROM kernels k"),
        ("SELECT * FROM slice", "unknown table 'slice'", "kernels has what the GPU ran"),
        ("SELECT * FROM CUDA_Runtime", "unknown table 'CUDA_Runtime'", "It is called launches."),
        ("SELECT * FROM information_schema.tables", "unknown table", "`traceql tables` lists them"),
        ("SELECT nosuch(dur_ns) FROM kernels", "unknown function 'nosuch'", "Known: COUNT, "),
        ("SELECT medan(dur_ns) FROM kernels", "unknown function 'medan'", "Did you mean MEDIAN?"),
        ("SELECT percentile_cont(dur_ns, 0.9) FROM kernels", "unknown function", "Write QUANTILE_CONT(x, 0.9)."),
        ("SELECT * FROM nosuch('x')", "unknown function 'nosuch'", "Known: COUNT, "),
        ("SELECT name, name FROM kernels", "two columns of the answer are called 'name'", "SUM(x) AS total"),
        ("SELECT name FROM kernels JOIN launches USING (launch_id)", "ambiguous reference", "k.name"),
        ("SELECT name, SUM(dur_ns) FROM kernels", "should participate in the GROUP BY", "Add name to GROUP BY"),
        ("SELECT step, limit, kind FROM critical_path", "sql parser error", '"limit"'),
        ("SELECT dur_ns FROM kernels WHERE", "sql parser error", "double quotes"),
        ("SELECT 1.5, 2.5 FROM kernels WHERE, 1", "Line: 1, Column: 35", "double quotes"),
        ("SELECT dur_ns FROM kernels; SELECT 1", "one (and only one) statement", "only reads"),
        ("WITH a AS (SELECT 1) DELETE FROM kernels", "unsupported", "only reads"),
        ("SELECT * INTO x FROM kernels", "not supported", "only reads"),
        ("SELECT dur_ns FROM kernels WHERE dur_ns > 'x'", "cannot compare string", "without quotes"),
        ("SELECT CAST(name AS INT) FROM kernels", "conversion from `str` to `i32` failed", "traceql tables"),
        ("DROP TABLE kernels", "not a query", "Begin with SELECT"),
        ("TRUNCATE TABLE kernels", "not a query", "Begin with SELECT"),
        ("selection", "not a query", "Begin with SELECT"),
        ("", "not a query", "Begin with SELECT"),
    ],
)
def test_a_faulty_query(trace, sql, message, hint):
    with pytest.raises(QueryError) as fault:
        query(trace, sql)
    assert message in fault.value.message
    assert hint in fault.value.hint
    assert "\n" not in fault.value.message


def test_what_the_trace_lacks():
    without = FIXTURES / "cases" / "28-orphan-gpu-ops.json"
    with pytest.raises(MissingDataError):
        query(traceql.load(without), "SELECT * FROM critical_path")


# --- the command


def test_forms_hold_the_same():
    sql = "SELECT category, SUM(dur_ns) AS ns, AVG(dur_ns) AS mean FROM kernels GROUP BY category ORDER BY ns DESC"
    as_json = json.loads(run(GRAPH, sql, "--format", "json").stdout)
    as_csv = pl.read_csv(io.StringIO(run(GRAPH, sql, "--format", "csv").stdout))
    assert as_csv.rows(named=True) == as_json["rows"]
    assert as_json["columns"][1] == {"name": "ns", "dtype": "Int64"}
    printed = run(GRAPH, sql).stdout
    assert all(row["category"] in printed and str(row["ns"]) in printed for row in as_json["rows"])


def test_a_long_query():
    """Longer than the name of a file may be."""
    assert run(GRAPH, f"SELECT LENGTH('{'x' * 5000}') AS n").stdout.split() == ["n", "----", "5000"]


def test_a_long_answer_is_cut_where_it_is_printed_only():
    printed = run(GRAPH, "SELECT kernel_id FROM kernels ORDER BY kernel_id LIMIT 101").stdout
    assert "100 of 101 rows" in printed
    assert "\n       99\n" in printed
    assert "\n      100\n" not in printed
    assert "of 100 rows" not in run(GRAPH, "SELECT kernel_id FROM kernels LIMIT 100").stdout
    data = run(GRAPH, "SELECT kernel_id FROM kernels LIMIT 101", "--format", "csv").stdout
    assert len(data.splitlines()) == 102


def test_rows_wider_than_the_page_are_lists(trace):
    """A line of 340 cells is read by nobody; whole names are."""
    printed = run(GRAPH, "SELECT * FROM kernels WHERE category = 'cast' ORDER BY kernel_id LIMIT 2").stdout.splitlines()
    names = tables()["kernels"].names
    assert max(map(len, printed)) <= 100
    assert [line.split()[0] for line in printed if line[0] != " "][: 2 * len(names) + 2] == 2 * ["row", *names]
    name = query(trace, "SELECT name FROM kernels WHERE category = 'cast' ORDER BY kernel_id").item(0, 0)
    assert name.replace(" ", "") in "".join(printed).replace(" ", "")


@pytest.mark.parametrize(
    ("value", "shown"),
    [("84111056.7e0", "84111056.7"), ("1e5", "100000"), ("-1234567.25", "-1234567.2"), ("95.21271", "95.2127"),
     ("0.000012", "1.2e-05"), ("1e20", "1e+20"), ("1.0 / 0", "inf")],
)  # fmt: skip
def test_digits_before_the_point_are_printed(value, shown):
    assert run(GRAPH, f"SELECT {value} AS x").stdout.split()[-1] == shown


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown", "parquet"])
def test_lists_empty_answers_and_odd_names(form):
    """What SQL can give beyond plain columns ends in an answer or an error, never in a traceback."""
    for sql in (
        "SELECT ARRAY_AGG(kernel_id) AS ids FROM kernels WHERE kernel_id < 3",
        "SELECT name FROM kernels WHERE kernel_id < 0",
        "SELECT 1.0 / 0 AS infinite, NULL AS nothing FROM kernels LIMIT 1",
        "SELECT name AS \"a\nb\" FROM kernels LIMIT 1",
    ):  # fmt: skip
        result = CliRunner().invoke(main, ["query", str(GRAPH), sql, "--format", form])
        assert result.exit_code in (0, 2), (sql, result.exception)
        assert result.exit_code == 0 or result.stderr.startswith("error: "), sql


def test_the_query_in_a_file(tmp_path):
    file = tmp_path / "q.sql"
    file.write_text("-- all\nSELECT COUNT(*) AS n\nFROM kernels\n")
    expected = run(GRAPH, "SELECT COUNT(*) AS n FROM kernels").stdout
    assert run(GRAPH, "-f", file).stdout == expected
    assert run("-f", file, GRAPH).stdout == expected
    assert file.read_text().startswith("-- all")


@pytest.mark.parametrize("arguments", [[], [GRAPH], ["-f", COOKBOOK]])
def test_trace_and_query_are_both_needed(arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "a trace and a query are needed" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["SELECT name FROM kernels", GRAPH], "the query comes last"),
        ([f"SELECT '{'x' * 5000}'", GRAPH], "the query comes last"),
        ([GRAPH, EAGER], "a query is needed after the traces"),
    ],
)
def test_a_query_that_does_not_come_last(arguments, told):
    result = run(*arguments)
    assert result.exit_code == 2
    assert told in result.stderr


def test_names_in_an_error_do_not_reach_the_terminal_as_they_are(tmp_path):
    """polars quotes what it cannot convert, and a kernel may be named as it likes."""
    name = "a\x1b]0;title\x07\x1b[31m\nhint: b\u202e"
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"device": 0}}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [event]}))
    for arguments in (["query", trace, "SELECT CAST(name AS INT) FROM kernels"], ["shell", trace]):
        result = CliRunner().invoke(main, list(map(str, arguments)), input="SELECT CAST(name AS INT) FROM kernels")
        assert result.exit_code == 2
        assert "conversion from" in result.stderr
        assert not set(result.stderr) & set("\x1b\x07\u202e")
        assert len(result.stderr.splitlines()) == 2


def test_files_that_cannot_be_read(tmp_path):
    binary = tmp_path / "q.sql"
    binary.write_bytes(b"\xff\xfe")
    for file, reason in ((tmp_path / "none.sql", "No such file"), (binary, "not UTF-8"), (tmp_path, "Is a directory")):
        result = run(GRAPH, "-f", file)
        assert result.exit_code == 2
        assert reason in result.stderr


def test_tables_are_listed_and_described():
    listed = CliRunner().invoke(main, ["tables"]).stdout
    for name, table in tables().items():
        assert re.search(rf"^{name} ", listed, re.MULTILINE)
        described = CliRunner().invoke(main, ["tables", name]).stdout
        assert all(re.search(rf"^{column.name} ", described, re.MULTILINE) for column in table)
    wrong = CliRunner().invoke(main, ["tables", "kernel"])
    assert wrong.exit_code == 2
    assert "Did you mean kernels?" in wrong.stderr


def test_columns_are_found_by_what_they_are_about():
    found = CliRunner().invoke(main, ["tables", "--find", "EXPOSED"]).stdout
    assert re.search(r"^comm_overlap +exposed_ns +ns +Only communication runs$", found, re.MULTILINE)
    assert re.search(r"^comm_overlap +comm_ns +ns +.*exposed", found, re.MULTILINE)
    assert "kernels" not in found
    document = json.loads(CliRunner().invoke(main, ["tables", "--format", "json"]).stdout)
    assert {table["name"]: [column["name"] for column in table["columns"]] for table in document["tables"]} == {
        name: table.names for name, table in tables().items()
    }
    only = CliRunner().invoke(main, ["tables", "steps", "--format", "json", "--find", "wall"])
    (steps,) = json.loads(only.stdout)["tables"]
    assert [(column["name"], column["unit"]) for column in steps["columns"]] == [("wall_ns", "ns"), ("idle_ns", "ns")]
    nothing = CliRunner().invoke(main, ["tables", "--find", "nosuch"])
    assert (nothing.exit_code, nothing.stdout) == (2, "")
    assert "no column has 'nosuch'" in nothing.stderr


# --- what the trace lacks


@pytest.mark.parametrize(
    ("path", "sql", "notes"),
    [
        (GRAPH, "SELECT COUNT(*) FROM kernels", []),
        (GRAPH, "SELECT COUNT(*) FROM memory", ["memory is empty: no allocation is recorded (profile_memory)"]),
        (GRAPH, "SELECT * FROM COLLECTIVES", ["collectives is empty: no communication kernel ran"]),
        (GRAPH, "SELECT COUNT(op_id) AS n FROM kernels", []),
        (GRAPH, "SELECT graph_id AS g FROM kernels LIMIT 1",
         ["kernels.graph_id is null in every row: recorded without the CUDA graph of a kernel"]),
        (GRAPH, "SELECT MAX(op) AS op FROM pool_casts",
         ["pool_casts.op is null in every row: outside of any recorded operator, as CUDA graphs are"]),
        (EAGER, "SELECT rank, waiting_ns, n_late FROM rank_waits",
         ["rank_waits.waiting_ns, n_late are null in every row: only one rank is loaded"]),
        (EAGER, "SELECT batch_size FROM steps",
         ["steps.batch_size is null in every row: no step annotation tells the batch"]),
        (FIXTURES / "cases" / "21-no-profiler-step.json", "SELECT * FROM layers",
         ["layers is empty: no layers were found: no steps were found, and layers are looked for in steps"]),
    ],
)  # fmt: skip
def test_notes_say_why_something_is_missing(path, sql, notes):
    assert list(ask(traceql.load(path), sql).notes) == notes
    assert json.loads(run(path, sql, "--format", "json").stdout)["notes"] == notes
    printed = " ".join(run(path, sql).stdout.split())
    assert all(note in printed for note in notes)
    data = run(path, sql, "--format", "csv")
    assert data.stderr.splitlines() == [f"note: {note}" for note in notes]


@pytest.mark.parametrize(
    ("sql", "notes"),
    [
        ("SELECT COUNT(*) FROM kernels WHERE category = 'cast'", []),
        ("SELECT COUNT(*) FROM kernels WHERE category = 'casts'",
         ["no row has 'casts' as its category. Did you mean cast?"]),
        ("SELECT COUNT(*) FROM kernels k WHERE k.category IN ('cast', 'Gemm')",
         ["no row has 'Gemm' as its category. Did you mean gemm?"]),
        ("SELECT COUNT(*) FROM kernels WHERE category = 'attention' OR kind='moe'",
         ["no row has 'moe' as its kind. Rows have it as their group."]),
        ("SELECT step FROM steps WHERE stage = 'extend'", ["no row has 'extend' as its stage. There are: decode."]),
        ("SELECT COUNT(*) FROM kernels WHERE name = 'xq'",
         ["no row has 'xq' as its name. LIKE '%xq%' finds parts of texts."]),
        ("SELECT step FROM steps WHERE stage IN ('a', 'b', 'c', 'd', 'decode', 'e')",
         [*(f"no row has '{text}' as its stage. There are: decode." for text in "abc"),
          "no row has 2 more of the texts that the query compares stage with."]),
        ("SELECT UPPER(kind) AS kind FROM kernels WHERE kind = 'X'", []),
        ("SELECT COUNT(*) FROM kernels WHERE category <> 'casts' AND name LIKE 'casts' -- category = 'casts'", []),
        ("SELECT COUNT(*) FROM kernels WHERE kind || '' = 'x'", []),
    ],
)  # fmt: skip
def test_texts_that_no_row_has_are_named(trace, sql, notes):
    """A misspelt category is no fault and matches nothing: as if nothing of the kind had run."""
    assert list(ask(trace, sql).notes) == notes


@pytest.mark.parametrize("name", ["28-orphan-gpu-ops", "31-empty-events", "71-no-kernels", "42-two-devices"])
def test_every_empty_table_has_a_reason(name):
    odd = traceql.load(FIXTURES / "cases" / f"{name}.json")
    for table in tables():
        with suppress(MissingDataError):
            answer = ask(odd, f'SELECT * FROM "{table}"')
            assert answer.frame.height or answer.notes[0].startswith(f"{table} is empty: "), table


@pytest.mark.parametrize(
    "path", [GRAPH, EAGER, *(FIXTURES / "cases").glob("2[1-6]-*.json")], ids=lambda path: path.name
)
def test_every_column_of_nulls_has_a_reason(path):
    check_reasons(path)


@pytest.mark.shared
@pytest.mark.parametrize("path", sorted((SHARED / "public").glob("*/*.gz")), ids=lambda path: path.parent.name)
def test_every_column_of_nulls_of_a_real_trace_has_a_reason(path):
    with suppress(InputError):
        check_reasons(path)


def check_reasons(path):
    loaded = traceql.load(path)
    for name in tables():
        with suppress(MissingDataError):
            answer = ask(loaded, f'SELECT * FROM "{name}"')
            told = {word for note in answer.notes for word in re.findall(r"\w+", note.split(" null in ")[0])}
            null = {column for column in answer.frame.columns if answer.frame[column].is_null().all()}
            assert answer.frame.is_empty() or null <= told, (name, null - told)
