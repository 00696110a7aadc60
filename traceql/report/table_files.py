"""Tables as files for other tools: one file a table, and `schema.json`, which says what every column is.

A Parquet file carries its own part of the schema as well: units and meanings in the metadata of its columns' fields
(pyarrow: `read_schema(...).field(name).metadata`), and all of it as JSON text under the key `traceql` of the file's
metadata (DuckDB: `parquet_kv_metadata`). polars writes no metadata into Arrow files, and CSV has no place for any; for
these schema.json is the only one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import arro3.core
import msgspec
import orjson
import polars as pl

from traceql import __version__
from traceql.analyses.dialect import table_advice
from traceql.analyses.needs import why_columns_null, why_empty
from traceql.analyses.query import SCHEMA_VERSION, tables
from traceql.analyses.results import RESULTS
from traceql.analyses.summary import Selection
from traceql.errors import MissingDataError, OutputError
from traceql.report.frames import without_nesting
from traceql.report.plain import json_text
from traceql.trace import Trace

SCHEMA_FILE = "schema.json"
KIND = "traceql export"
"""What schema.json says of itself: by it a folder is known again."""

_NOTES: Mapping[str, str] = {
    "parquet": "A file's metadata has its part of this schema under the key `traceql`, a column's its unit and doc.",
    "csv": 'UTF-8 with a header line. An empty field is null; an empty text is "". A column with encoding `json` holds '
    "a list or struct as JSON text.",
    "arrow": "Arrow IPC files, not compressed.",
}


@dataclass(frozen=True)
class TableFile:
    """A table that was written."""

    name: str
    n_rows: int
    n_bytes: int
    why_empty: str | None
    """None where it has rows. It may hold names from the trace."""


def chosen_tables(names: Sequence[str]) -> list[str]:
    """The tables of these names, in order and each once; all where none is named.

    Raises:
        OutputError: there is no such table.
    """
    known = tables()
    for name in names:
        if name not in known:
            raise OutputError(f"unknown table {name[:80]!r}", table_advice(name, known))
    return list(dict.fromkeys(names)) or list(known)


def is_export(folder: Path) -> bool:
    """Whether a folder holds what `write_tables` wrote, and nothing else."""
    try:
        schema = orjson.loads((folder / SCHEMA_FILE).read_bytes())
        listed = {SCHEMA_FILE, *(table["file"] for table in schema["tables"])}
        return schema["kind"] == KIND and {path.name for path in folder.iterdir()} <= listed
    except (OSError, ValueError, TypeError, KeyError):
        return False


def write_tables(
    trace: Trace,
    folder: Path,
    names: Sequence[str],
    *,
    form: str,
    selection: Selection | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[TableFile]:
    """Writes tables of a trace or run and their schema.json into a folder that is there.

    Args:
        trace: the trace or run.
        folder: where to.
        names: the tables, as `chosen_tables` gives them.
        form: parquet, csv or arrow.
        selection: the steps that result tables are made for. A trace's own tables are always whole.
        progress: called with the name of each table before it is made.

    Raises:
        MissingDataError: the selection names no step.
        OSError: a file cannot be written.
    """
    written: list[TableFile] = []
    documents: list[dict[str, Any]] = []
    for name in names:
        if progress:
            progress(name)
        frame, reason = _rows(trace, name, selection or Selection())
        document = _table_document(trace, name, frame, reason) | {"file": f"{name}.{form}"}
        path = folder / document["file"]
        _write(without_nesting(frame) if form == "csv" else frame, path, form, document)
        written.append(TableFile(name, frame.height, path.stat().st_size, document["why_empty"]))
        documents.append(_with_encoding(document, frame) if form == "csv" else document)
    schema = _head(trace, form, selection or Selection()) | {"tables": documents}
    (folder / SCHEMA_FILE).write_bytes(json_text(schema))
    return written


def _rows(trace: Trace, name: str, selection: Selection) -> tuple[pl.DataFrame, str | None]:
    """A table, and why it is empty if it is."""
    try:
        frame = RESULTS[name].make(trace, selection) if name in RESULTS else getattr(trace, name).collect()
    except MissingDataError as error:
        if selection != Selection():
            raise
        return tables()[name].empty(), error.message
    return frame, None if frame.height else why_empty(trace, name, selection)


def _write(frame: pl.DataFrame, path: Path, form: str, document: dict[str, Any]) -> None:
    """Writes one file.

    Raises:
        OSError: it cannot be written; polars says so of some forms only with an exception of its own.
    """
    try:
        if form == "parquet":
            text = orjson.dumps(document | _version()).decode()
            frame.write_parquet(path, metadata={"traceql": text}, arrow_schema=_fields(frame, document))
        elif form == "arrow":
            frame.write_ipc(path, compat_level=pl.CompatLevel.oldest())  # text as every reader has it, no views
        else:
            frame.write_csv(path)
    except pl.exceptions.ComputeError as error:
        raise OSError(str(error)) from error


def _fields(frame: pl.DataFrame, document: dict[str, Any]) -> arro3.core.Schema:
    """The frame's Arrow schema, with the unit and meaning of each column."""
    plain = arro3.core.Schema.from_arrow(frame.schema)
    columns: list[dict[str, str | None]] = document["columns"]
    told = [{key: text for key in ("unit", "doc") if (text := column[key])} for column in columns]
    return arro3.core.Schema([plain.field(i).with_metadata(metadata) for i, metadata in enumerate(told)])


def _version() -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "traceql_version": __version__}


def _head(trace: Trace, form: str, selection: Selection) -> dict[str, Any]:
    return {
        "kind": KIND,
        **_version(),
        "format": form,
        "notes": f"Time is whole nanoseconds since the trace's first event. Null is unknown. {_NOTES[form]}",
        "traces": [{"rank": part.rank, "name": _utf8(part.name)} for part in trace.parts],
        "selection": msgspec.to_builtins(selection),
    }


def _utf8(name: str) -> str:
    """A file's name, whose bytes need not be UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


def _table_document(trace: Trace, name: str, frame: pl.DataFrame, reason: str | None) -> dict[str, Any]:
    """What a table holds: each column's meaning, and why what is missing is missing."""
    table = tables()[name]
    empty = [column for column in frame.columns if frame.height and frame[column].null_count() == frame.height]
    reasons = {column: why for why, columns in why_columns_null(trace, empty).items() for column in columns}
    return {
        "name": name,
        "doc": table.doc,
        "n_rows": frame.height,
        "why_empty": reason,
        "columns": [
            column | {"is_all_null": column["name"] in empty, "why_null": reasons.get(column["name"])}
            for column in (each.document for each in table)
        ],
    }


def _with_encoding(document: dict[str, Any], frame: pl.DataFrame) -> dict[str, Any]:
    columns = [
        column | {"encoding": "json" if frame.schema[column["name"]].is_nested() else "text"}
        for column in document["columns"]
    ]
    return document | {"columns": columns}
