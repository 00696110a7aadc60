"""A comparison for continuous integration: JUnit XML, a test case a gate, and GitHub workflow commands.

Without a gate there is one case, which cannot fail: what became of the step.
"""

import re
from collections.abc import Callable, Sequence
from xml.etree import ElementTree as ET

from traceql import fmt
from traceql.analyses.diff import Diff
from traceql.analyses.diff_gates import STEP, Judgement
from traceql.analyses.diff_notes import notes
from traceql.report.diff_words import gate_line, verdict_line

Gates = Sequence[Judgement]

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(diff: Diff, gates: Gates) -> bytes:
    """JUnit XML: a test case a gate, failed or passed; skipped where it cannot be told."""
    suite = ET.Element("testsuite", name="traceql diff")
    for gate in gates:
        case = ET.SubElement(suite, "testcase", classname="traceql.diff", name=_xml(_name(gate)))
        if gate.status == "failed":
            ET.SubElement(case, "failure", message=_xml(gate_line(gate))).text = _xml(_told(diff))
        elif gate.status == "cannot tell":
            ET.SubElement(case, "skipped", message=_xml(gate_line(gate)))
    if not gates:
        ET.SubElement(suite, "testcase", classname="traceql.diff", name="step")
    ET.SubElement(suite, "system-out").text = _xml(_told(diff))
    statuses = [gate.status for gate in gates]
    counts = {
        "tests": max(len(gates), 1), "failures": statuses.count("failed"), "skipped": statuses.count("cannot tell"),
        "errors": 0,
    }  # fmt: skip
    suite.attrib.update({name: str(number) for name, number in counts.items()})
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return ET.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n"


def to_github(diff: Diff, gates: Gates) -> bytes:
    """GitHub workflow commands: an error a failed gate, a warning one that cannot tell, a notice for the answer."""
    levels = {"failed": "error", "cannot tell": "warning"}
    lines = [
        f"::{levels[gate.status]} title={_property(f'traceql diff, {_name(gate)}')}::{_data(gate_line(gate))}"
        for gate in gates
        if gate.status in levels
    ]
    lines.append(f"::notice title=traceql diff::{_data(_told(diff))}")
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _name(gate: Judgement) -> str:
    return "median step" if gate.gate.name == STEP else fmt.visible(gate.gate.name)


def _told(diff: Diff) -> str:
    return "\n".join([verdict_line(diff), *(fmt.visible(note.text) for note in notes(diff))])


def _xml(text: str) -> str:
    """The text without the characters that XML cannot hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: dict[str, Callable[[Diff, Gates], bytes]] = {"junit": to_junit, "github": to_github}
"""By the name that --format has."""
