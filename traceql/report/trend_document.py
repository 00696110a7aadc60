"""The JSON document of `traceql trend` (`to_json`); null is unknown.

`by`, `stage`, `batch_size`, `min_effect`, `groups[]` (table `trend`), `left_out[]` and `ungrouped[]` (runs).
"""

from typing import Any

from traceql.analyses.trend import Trend
from traceql.report.plain import json_text, plain_rows


def to_json(trend: Trend, by: str) -> bytes:
    """The document described above, indented."""
    return json_text(trend_document(trend, by))


def trend_document(trend: Trend, by: str) -> dict[str, Any]:
    """The document as plain data."""
    return {
        "by": by,
        "stage": trend.stage,
        "batch_size": trend.batch_size,
        "min_effect": trend.options.min_effect,
        "groups": plain_rows(trend.groups),
        "left_out": list(trend.left_out),
        "ungrouped": list(trend.ungrouped),
    }
