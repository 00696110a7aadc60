"""What a step would take, in one sentence."""

from traceql import fmt
from traceql.analyses.whatif import NO_GAIN_FRAC, WhatIf
from traceql.rules.savings import LIMIT_WORDS


def whatif_line(found: WhatIf) -> str:
    """`84.025 → 18.723 ms a step: 78 % shorter, 4.5×; then the GPU sets the pace`."""
    before, after = found.recorded_wall_ns, found.predicted_wall_ns
    times = f"{fmt.duration(before)} → {fmt.duration(after)} a step"
    limit = LIMIT_WORDS[found.limit]
    least_ns = NO_GAIN_FRAC * before
    if abs(found.saved_ns) < least_ns:
        saved = found.kernel_saved_ns
        about = f", though its kernels get {fmt.duration(saved)} shorter" if saved >= least_ns else ""
        return f"{times}: no gain, {limit}{about}"
    if not found.is_gain:
        return f"{times}: {fmt.rounded_percent(-found.saved_ns / before)} longer; then {limit}"
    factor = f", {before / after:,.1f}×" if after > 0 else ""
    return f"{times}: {fmt.rounded_percent(found.saved_ns / before)} shorter{factor}; then {limit}"
