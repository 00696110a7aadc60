"""Findings as data for other programs: JSON, SARIF 2.1.0, JUnit XML and GitHub workflow commands.

The JSON document (`to_json`); times in ns, shares 0 to 1, null is unknown:

- `findings[]`: the costliest first: rule, severity, table, message, why, fix, cost_ns_per_step, share, n_rows,
  n_steps, n_layers, links, `group` (what its rows have in common, the rule's group_by), `saving` (what its
  fix would save by a replay: text, kernel_saved_ns, saved_ns, graph_saved_ns, limit; null where the rule does not say)
  and `evidence[]`: the ten
  costliest rows with rank, device, step, layer, kernel_id, name and ns.
- `abstained[]`: rule and reason. `suppressed[]`: as a finding, with `reason`. `passed[]`: rules that found nothing.
- `notes[]`: suppressions that have expired, findings left out, and of a run what costs are means over.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import orjson

from traceql import __version__, fmt
from traceql.report.check_page import cost, heading
from traceql.report.plain import plain_row
from traceql.rules import Finding, Findings, Rule

Traces = Sequence[Path]
Document = dict[str, Any]


def to_json(findings: Findings, traces: Traces) -> bytes:
    """The document described above, indented."""
    return _json(
        {
            "traces": [str(trace) for trace in traces],
            "findings": [finding_document(finding) for finding in findings.found],
            "abstained": [{"rule": each.rule.id, "reason": each.reason} for each in findings.abstained],
            "suppressed": [
                finding_document(each.finding) | {"reason": each.reason} for each in findings.suppressed
            ],
            "passed": [rule.id for rule in findings.passed],
            "notes": list(findings.notes),
        }
    )  # fmt: skip


def finding_document(finding: Finding) -> Document:
    """A finding as plain data."""
    evidence = [plain_row(row) for row in finding.evidence.iter_rows(named=True)]
    return plain_row(finding.row()) | {
        "table": finding.rule.table,
        "group": plain_row(finding.group),
        "saving": asdict(finding.saved) if finding.saved else None,
        "evidence": evidence,
    }


def _json(document: Document) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


# --- SARIF

_SARIF_LEVELS = {"info": "note", "warning": "warning", "critical": "error"}


def to_sarif(findings: Findings, traces: Traces) -> bytes:
    """A SARIF 2.1.0 log of one run; suppressed findings are in it as such."""
    rules = sorted(_rules(findings), key=lambda rule: rule.id)
    numbers = {rule.id: number for number, rule in enumerate(rules)}
    results = [_sarif_result(finding, numbers, traces) for finding in findings.found]
    for each in findings.suppressed:
        accepted = {"suppressions": [{"kind": "external", "justification": each.reason}]}
        results.append(_sarif_result(each.finding, numbers, traces) | accepted)
    told = [{"level": "note", "message": {"text": text}} for text in _remarks(findings)]
    run = {
        "tool": {"driver": {"name": "traceql", "version": __version__, "rules": [_sarif_rule(rule) for rule in rules]}},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": told}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return _json({"$schema": schema, "version": "2.1.0", "runs": [run]})


def _rules(findings: Findings) -> Iterator[Rule]:
    """Every rule that was run, once."""
    judged = [finding.rule for finding in findings.found] + [each.finding.rule for each in findings.suppressed]
    every = [*judged, *findings.passed, *(each.rule for each in findings.abstained)]
    yield from {rule.id: rule for rule in every}.values()


def _remarks(findings: Findings) -> list[str]:
    return [f"{each.rule.id} could not judge: {each.reason}" for each in findings.abstained] + list(findings.notes)


def _sarif_rule(rule: Rule) -> Document:
    link = {"helpUri": rule.links[0]} if rule.links else {}
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.why},
        "help": {"text": rule.fix},
        "defaultConfiguration": {"level": _SARIF_LEVELS[rule.severity]},
        **link,
    }


def _sarif_result(finding: Finding, numbers: dict[str, int], traces: Traces) -> Document:
    places = [{"physicalLocation": {"artifactLocation": {"uri": _uri(trace)}}} for trace in traces]
    return {
        "ruleId": finding.rule.id,
        "ruleIndex": numbers[finding.rule.id],
        "level": _SARIF_LEVELS[finding.rule.severity],
        "message": {"text": f"{finding.message} {finding.fix}"},
        "locations": places[:1],
        "relatedLocations": places[1:],
        "partialFingerprints": {"ruleAndGroup/v1": fingerprint(finding)},
        "properties": {"cost_ns_per_step": finding.cost_ns_per_step, "share": finding.share},
    }


def fingerprint(finding: Finding) -> str:
    """The same for the same rule and group in any trace, so that a finding is known again."""
    text = json.dumps([finding.rule.id, sorted(finding.group.items())], default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def _uri(trace: Path) -> str:
    """A relative path as a URI reference, an absolute one as a file URI."""
    return trace.as_uri() if trace.is_absolute() else quote(trace.as_posix().encode("utf-8", "surrogateescape"))


# --- JUnit


def to_junit(findings: Findings, traces: Traces) -> bytes:
    """JUnit XML: a test case a rule, failed once a finding; skipped where it could not judge or is suppressed."""
    suite = ET.Element("testsuite", name=_xml(f"traceql {' '.join(trace.name for trace in traces)}"))
    for finding in findings.found:
        failure = _case(suite, finding.rule, "failure", heading(finding))
        failure.text = _xml("\n".join([finding.message, f"Why: {finding.rule.why}", f"Fix: {finding.fix}"]))
    for each in findings.suppressed:
        _case(suite, each.finding.rule, "skipped", f"suppressed: {each.reason}")
    for abstained in findings.abstained:
        _case(suite, abstained.rule, "skipped", f"could not judge: {abstained.reason}")
    for rule in findings.passed:
        _case(suite, rule)
    n_skipped = len(findings.suppressed) + len(findings.abstained)
    counts = {"tests": len(suite), "failures": len(findings.found), "skipped": n_skipped, "errors": 0}
    suite.attrib.update({name: str(number) for name, number in counts.items()})
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return ET.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n"


def _case(suite: ET.Element, rule: Rule, outcome: str | None = None, message: str = "") -> ET.Element:
    case = ET.SubElement(suite, "testcase", classname=f"traceql.{rule.severity}", name=rule.id)
    return case if outcome is None else ET.SubElement(case, outcome, message=_xml(message))


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _xml(text: str) -> str:
    """The text without the characters that XML cannot hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


# --- GitHub

_GITHUB_LEVELS = {"info": "notice", "warning": "warning", "critical": "error"}


def to_github(findings: Findings, traces: Traces) -> bytes:
    """A GitHub workflow command a finding: it annotates the run."""
    file = _property(str(traces[0])) if traces else ""
    lines = [
        f"::{_GITHUB_LEVELS[each.rule.severity]} file={file},title={_property(_title(each))}::{_data(_told(each))}"
        for each in findings.found
    ]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _title(finding: Finding) -> str:
    return f"{finding.rule.id}, {cost(finding)}" if finding.cost_ns_per_step is not None else finding.rule.id


def _told(finding: Finding) -> str:
    return f"{fmt.visible(finding.message)}\nFix: {fmt.visible(finding.fix)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: dict[str, Callable[[Findings, Traces], bytes]] = {
    "json": to_json,
    "sarif": to_sarif,
    "junit": to_junit,
    "github": to_github,
}
"""By the name that --format has."""
