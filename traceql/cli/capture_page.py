"""What `traceql capture` prints at the end: how the traces were made, and two captures side by side."""

from collections.abc import Callable

from traceql import fmt
from traceql.capture.compare import ProbeComparison
from traceql.capture.manifest import Manifest, Pace
from traceql.capture.run import describe
from traceql.report.page import Column, Section, TextTable


def capture_page(manifest: Manifest) -> list[Section]:
    """How the traces were made, and what is not as asked for."""
    profile = manifest.profile
    patches = "; ".join(f"{patch.name} in {patch.n_processes} processes{_counts(patch.counts)}"
                        for patch in manifest.patches)  # fmt: skip
    facts = {
        "server": describe(manifest.server),
        "patches": patches or "none",
        "traces": f"{fmt.plural(len(profile.files), 'file')}, {fmt.size(sum(file.n_bytes for file in profile.files))}, "
        f"{profile.n_steps} steps asked for",
        "control run before": _pace(manifest.control_before),
        "control run after": _pace(manifest.control_after),
        "drift between them": fmt.percent(manifest.drift_frac),
        "step with profiler": fmt.duration(profile.step_ns),
        "profiler overhead": fmt.percent(manifest.profiler_overhead_frac),
    }
    rows = tuple((name, fmt.visible(text)) for name, text in facts.items())
    found = [Section("Capture", table=TextTable((Column(""), Column("", fit="wrap")), rows))]
    if manifest.problems:
        found.append(Section("Not as asked for", lines=tuple(map(fmt.visible, manifest.problems)), is_warning=True))
    return found


def _counts(counts: dict[str, int]) -> str:
    return "".join(f", {name} {count}" for name, count in counts.items())


def _pace(pace: Pace | None) -> str:
    if pace is None:
        return "not made"
    return f"{pace.tokens_per_s:,.1f} tokens/s, {fmt.duration(pace.step_ns)} a step over {pace.n_steps} steps"


def comparison_page(before: Manifest, after: Manifest, probes: ProbeComparison) -> list[Section]:
    """Whether the answers are the same, and the pace of both sides."""

    def row(title: str, form: Callable[[float | None], str], a: float | None, b: float | None) -> tuple[str, ...]:
        return title, form(a), form(b), f"×{b / a:.2f}" if a and b is not None else fmt.UNKNOWN

    columns = (Column(""), Column("before", "right"), Column("after", "right"), Column("change", "right"))
    paces = (
        ("first control run", before.control_before, after.control_before),
        ("second control run", before.control_after, after.control_after),
    )
    rows = (
        *(row(f"tokens/s, {when}", fmt.count, a and a.tokens_per_s, b and b.tokens_per_s) for when, a, b in paces),
        *(row(f"step ms, {when}", fmt.ms, a and a.step_ns, b and b.step_ns) for when, a, b in paces),
        row("step ms with profiler", fmt.ms, before.profile.step_ns, after.profile.step_ns),
    )
    return [
        Section("Answers", lines=(answers_line(probes),), is_warning=not probes.is_equal),
        Section("Pace", table=TextTable(columns, rows)),
        *capture_page(after),
    ]


def answers_line(probes: ProbeComparison) -> str:
    """Whether the probes prove equal answers, in a sentence."""
    asked = f"{probes.n_requests} greedy answers, {probes.n_tokens} tokens ({probes.n_distinct} different ones)"
    if probes.first_difference is not None:
        request, position = probes.first_difference
        return f"Other tokens after patching: request {request} differs from token {position} on ({asked})."
    if probes.is_bitwise is None:
        bits = "log-probabilities not reported"
    else:
        bits = f"log-probabilities {'the same bits' if probes.is_bitwise else 'differ'}"
        bits += "" if probes.is_bitwise else f" by up to {probes.max_logprob_difference:.3g}"
    return f"The same tokens after patching: {asked}, {bits}."
