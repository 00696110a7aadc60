"""What a step would take, in one sentence."""

from traceql import fmt
from traceql.analyses.whatif import NO_GAIN_FRAC, WhatIf
from traceql.report.stage_words import step_name
from traceql.rules.savings import LIMIT_WORDS

_LEAST_FACTOR = 1.05
"""Below it would be told as 1.0."""


def step_counted(found: WhatIf) -> str:
    """What the steps counted are called: `decode step`; `step` where they are of several stages or of none known."""
    stages = found.steps["stage"].unique().to_list()
    return step_name(stages[0]) if len(stages) == 1 and stages[0] != "unknown" else "step"


def whatif_line(found: WhatIf) -> str:
    """`84.025 ms → 18.723 ms a decode step: 78 % shorter, 4.5×; then the GPU sets the pace`."""
    before, after = found.recorded_wall_ns, found.predicted_wall_ns
    if found.least_wall_ns is not None and found.is_range and found.least_wall_ns < (1 - NO_GAIN_FRAC) * before:
        return _range_line(found, found.least_wall_ns)
    times = f"{fmt.duration(before)} → {fmt.duration(after)} a {step_counted(found)}"
    limit = LIMIT_WORDS[found.limit]
    least_ns = NO_GAIN_FRAC * before
    if abs(found.saved_ns) < least_ns:
        saved = found.kernel_saved_ns
        about = f", though its kernels get {fmt.duration(saved)} shorter" if saved >= least_ns else ""
        return f"{times}: no gain, {limit}{about}"
    if not found.is_gain:
        return f"{times}: {fmt.rounded_percent(-found.saved_ns / before)} longer; then {limit}"
    factor = f", {before / after:,.1f}×" if after > 0 and before / after >= _LEAST_FACTOR else ""
    return f"{times}: {fmt.rounded_percent(found.saved_ns / before)} shorter{factor}; then {limit}"


def _range_line(found: WhatIf, least_ns: float) -> str:
    """`150.912 ms → 19.851 ms to 136.447 ms a step: 9.6 % to 87 % shorter; ...`."""
    before, after = found.recorded_wall_ns, found.predicted_wall_ns
    times = f"{fmt.duration(before)} → {fmt.duration(least_ns)} to {fmt.duration(after)} a {step_counted(found)}"
    most = fmt.rounded_percent(1 - least_ns / before)
    shorter = f"{fmt.rounded_percent(found.saved_ns / before)} to {most}" if found.is_gain else f"up to {most}"
    return f"{times}: {shorter} shorter; how long its collectives would wait for the ranks not given is not known"
