"""`traceql export`: files read back by readers that are not ours, the recorded schema, folders whole or not at all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from click.testing import CliRunner
from conftest import FIXTURES
from pyarrow import csv, ipc, parquet

import traceql
from traceql.analyses.query import SCHEMA_VERSION, tables
from traceql.analyses.results import RESULTS
from traceql.cli import main
from traceql.tables import Column

RUN = [FIXTURES / "glm5" / f"tiny-pool-eager-TP-{rank}.json.gz" for rank in (0, 1)]
WITHOUT_STEPS = FIXTURES / "cases" / "28-orphan-gpu-ops.json"
RECORDED = Path(__file__).parent / "golden" / "table-schema.json"


def export(*arguments):
    return CliRunner().invoke(main, ["export", *map(str, arguments)])


def made(trace, name):
    return RESULTS[name].make(trace) if name in RESULTS else getattr(trace, name).collect()


@pytest.fixture(scope="module")
def trace():
    return traceql.load_run(RUN)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Each form of the whole run."""
    folders = {form: tmp_path_factory.mktemp("export") / form for form in ("parquet", "csv", "arrow")}
    for form, folder in folders.items():
        result = export(*RUN, "-o", folder, "--format", form)
        assert result.exit_code == 0, result.output
    return folders


# --- read back


def plain(rows):
    """Rows with NaN as text, which equals itself."""
    return [tuple("nan" if value != value else value for value in row) for row in rows]


def rows_of(table):
    return plain(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_parquet_as_pyarrow_reads_it(trace, folders):
    for name in tables():
        read = parquet.read_table(folders["parquet"] / f"{name}.parquet")
        frame = made(trace, name)
        assert read.column_names == frame.columns
        assert rows_of(read) == plain(frame.rows()), name
        for column in tables()[name]:
            told = {b"doc": column.doc.encode()} | ({b"unit": column.unit.encode()} if column.unit else {})
            assert read.schema.field(column.name).metadata == told


def test_arrow_as_pyarrow_reads_it(trace, folders):
    for name in tables():
        read = ipc.open_file(folders["arrow"] / f"{name}.arrow").read_all()
        frame = made(trace, name)
        assert read.column_names == frame.columns
        assert rows_of(read) == plain(frame.rows()), name


def test_csv_as_pyarrow_reads_it(trace, folders):
    """Every value comes back when each column is read as the type that schema.json names; null is no empty text."""
    types = {"String": pa.string(), "Boolean": pa.bool_(), "Float64": pa.float64(), "UInt64": pa.uint64(),
             "UInt32": pa.uint32(), "Int64": pa.int64(), "Int32": pa.int32(), "Int16": pa.int16()}  # fmt: skip
    for table in json.loads((folders["csv"] / "schema.json").read_text())["tables"]:
        options = csv.ConvertOptions(
            column_types={column["name"]: types[column["dtype"]] for column in table["columns"]},
            null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False,
        )  # fmt: skip
        read = csv.read_csv(
            folders["csv"] / table["file"],
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=options,
        )
        assert rows_of(read) == plain(made(trace, table["name"]).rows()), table["name"]


def test_parquet_says_what_its_columns_are(folders):
    metadata = parquet.read_metadata(folders["parquet"] / "kernels.parquet").metadata
    document = json.loads(metadata[b"traceql"])
    assert document["schema_version"] == SCHEMA_VERSION
    (dur_ns,) = [column for column in document["columns"] if column["name"] == "dur_ns"]
    assert dur_ns["unit"] == "ns"
    assert dur_ns["doc"] == "Length; null when never timed"


def test_schema_lists_what_is_there(trace, folders):
    for form, folder in folders.items():
        schema = json.loads((folder / "schema.json").read_text())
        assert {"schema.json", *(table["file"] for table in schema["tables"])} == {
            path.name for path in folder.iterdir()
        }
        assert [table["name"] for table in schema["tables"]] == list(tables())
        assert [traced["rank"] for traced in schema["traces"]] == [0, 1]
        assert schema["format"] == form
        for table in schema["tables"]:
            assert table["n_rows"] == made(trace, table["name"]).height
            assert (table["why_empty"] is None) == (table["n_rows"] > 0)


def test_selected_tables_and_steps(tmp_path):
    result = export(*RUN, "-o", tmp_path / "out", "--tables", "steps, kernels", "--tables", "steps", "--steps", "1:2")
    assert result.exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"schema.json", "steps.parquet", "kernels.parquet"}
    assert set(pl.read_parquet(tmp_path / "out" / "steps.parquet")["step"]) == {1}
    assert json.loads((tmp_path / "out" / "schema.json").read_text())["selection"]["first_step"] == 1


# --- what is missing


def test_why_tables_are_empty_and_columns_null(tmp_path):
    export(WITHOUT_STEPS, "-o", tmp_path / "out")
    schema = json.loads((tmp_path / "out" / "schema.json").read_text())
    reasons = {table["name"]: table["why_empty"] for table in schema["tables"]}
    assert reasons["kernels"] is None
    assert reasons["memory"] == "no allocation is recorded (profile_memory)"
    assert reasons["python_calls"] == "no Python frame is recorded (with_stack)"
    assert reasons["layers"].startswith("no layers were found: no steps were found")
    assert reasons["critical_path"] == "there is no complete step to replay"
    assert reasons["collectives"] == "no communication kernel ran"
    (kernel_steps,) = [table for table in schema["tables"] if table["name"] == "kernel_steps"]
    columns = {column["name"]: column for column in kernel_steps["columns"]}
    assert columns["step"]["is_all_null"]
    assert columns["step"]["why_null"] == "no step was found"
    assert not columns["kernel_id"]["is_all_null"]


def test_a_trace_without_work(tmp_path):
    result = export(FIXTURES / "cases" / "71-no-kernels.json", "-o", tmp_path / "out", "--format", "csv")
    assert result.exit_code == 0, result.output
    schema = json.loads((tmp_path / "out" / "schema.json").read_text())
    assert all(table["why_empty"] for table in schema["tables"] if not table["n_rows"])


def test_a_table_that_is_empty_in_the_steps_selected_says_so(tmp_path):
    """Only the last step, which is not complete."""
    export(RUN[0], "-o", tmp_path / "out", "--steps", "2:", "--tables", "step_stats,memory")
    schema = json.loads((tmp_path / "out" / "schema.json").read_text())
    reasons = {table["name"]: table["why_empty"] for table in schema["tables"]}
    assert reasons["step_stats"] == "there is nothing of the kind, in the steps selected"
    assert reasons["memory"] == "no allocation is recorded (profile_memory)"


# --- the schema is a contract


def current_schema():
    kept = ("name", "dtype", "unit", "nullable")
    return {
        name: [{key: column[key] for key in kept} for column in (each.document for each in table)]
        for name, table in tables().items()
    }


def test_a_change_of_a_column_raises_the_version():
    """`make golden` records a new table; a table that is recorded changes only with a new SCHEMA_VERSION."""
    recorded = json.loads(RECORDED.read_text())
    current = current_schema()
    changed = [name for name, columns in recorded["tables"].items() if current.get(name) != columns]
    assert not changed or recorded["version"] < SCHEMA_VERSION, f"raise SCHEMA_VERSION: {changed} changed"
    if os.environ.get("TRACEQL_UPDATE_GOLDEN"):
        lines = (f'"{name}": [\n' + ",\n".join(f"  {json.dumps(column)}" for column in columns) + "\n]"
                 for name, columns in current.items())  # fmt: skip
        RECORDED.write_text(f'{{"version": {SCHEMA_VERSION}, "tables": {{\n' + ",\n".join(lines) + "\n}}\n")
    assert json.loads(RECORDED.read_text()) == {"version": SCHEMA_VERSION, "tables": current}, "run `make golden`"


@pytest.mark.parametrize(
    ("name", "dtype", "unit"),
    [
        ("dur_ns", pl.Int64, "ns"),
        ("ns_per_step", pl.Float64, "ns/step"),
        ("moved_bytes", pl.Int64, "B"),
        ("bus_bandwidth_bytes_per_s", pl.Float64, "B/s"),
        ("share", pl.Float64, "fraction"),
        ("kernel_id", pl.Int64, None),
        ("share", pl.String, None),
    ],
)
def test_the_unit_is_in_the_name(name, dtype, unit):
    assert Column(name, dtype, "").unit == unit


# --- the folder


def test_unknown_tables_and_missing_options(tmp_path):
    wrong = export(RUN[0], "-o", tmp_path / "out", "--tables", "steps,kernel")
    assert wrong.exit_code == 2
    assert "unknown table 'kernel'" in wrong.stderr
    assert "Did you mean kernels?" in wrong.stderr
    assert export(RUN[0]).exit_code == 2
    assert export(tmp_path / "none.json", "-o", tmp_path / "out").exit_code == 2
    assert not (tmp_path / "out").exists()


def test_only_an_earlier_export_is_replaced(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    assert export(RUN[0], "-o", folder, "--tables", "steps").exit_code == 0  # an empty folder is nobody's
    assert "exists and is not empty" in export(RUN[0], "-o", folder, "--tables", "steps").stderr
    assert export(RUN[0], "-o", folder, "--tables", "threads", "--force").exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["schema.json", "threads.parquet"]
    (folder / "mine.txt").write_text("kept")
    assert "holds more than an earlier export" in export(RUN[0], "-o", folder, "--force").stderr
    assert (folder / "mine.txt").read_text() == "kept"
    (tmp_path / "file").write_text("kept")
    assert "not a folder" in export(RUN[0], "-o", tmp_path / "file", "--force").stderr
    assert "not a folder" in export(RUN[0], "-o", tmp_path / "none" / "out").stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]


@pytest.mark.parametrize("form", ["parquet", "csv", "arrow"])
def test_what_cannot_be_written_leaves_nothing(tmp_path, form):
    """Files of at most 9 kB: some tables fit, kernels do not."""
    folder = tmp_path / "out"
    export(RUN[0], "-o", folder, "--tables", "threads")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    command = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000));"
        "from traceql.cli import main; main(sys.argv[1:])"
    )
    arguments = ["export", RUN[0], "-o", folder, "--force", "--format", form, "--tables", "threads,kernels"]
    done = subprocess.run(
        [sys.executable, "-c", command, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
