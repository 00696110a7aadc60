"""Rules: data in YAML that say which rows of which result table are at fault, what that costs and what to do.

`loading` reads them strictly, `conditions` and `messages` are the two small languages in them, `running` applies them
to a trace, `suppressions` takes out what somebody has accepted, `examples` tests a rule on its own examples.
"""

from traceql.rules.examples import Failure, failures
from traceql.rules.loading import built_in_rules, load_rules
from traceql.rules.model import EVIDENCE, FINDINGS, SEVERITIES, Abstained, Finding, Findings, Row, Rule, Suppressed
from traceql.rules.running import run_rules
from traceql.rules.suppressions import Suppression, find_config, load_suppressions

__all__ = [
    "EVIDENCE",
    "FINDINGS",
    "SEVERITIES",
    "Abstained",
    "Failure",
    "Finding",
    "Findings",
    "Row",
    "Rule",
    "Suppressed",
    "Suppression",
    "built_in_rules",
    "failures",
    "find_config",
    "load_rules",
    "load_suppressions",
    "run_rules",
]
