"""The JSON document of `traceql query` (`to_json`): `columns[]` with name and dtype, `rows[]`, and `notes[]`."""

from traceql.analyses.query import Answer
from traceql.report.plain import json_text, plain_rows


def to_json(answer: Answer) -> bytes:
    """The document described above, indented; what JSON has no form for is text."""
    document = {
        "columns": [{"name": name, "dtype": str(dtype)} for name, dtype in answer.frame.schema.items()],
        "rows": plain_rows(answer.frame),
        "notes": answer.notes,
    }
    return json_text(document, default=str)
