"""Are two captures' answers the same: token by token, and the log-probabilities bit by bit."""

from dataclasses import dataclass

from traceql.capture.errors import CaptureError
from traceql.capture.manifest import Manifest, Probe


@dataclass(frozen=True)
class ProbeComparison:
    """Two probes side by side."""

    n_requests: int
    n_tokens: int
    """Compared, of each side."""
    n_distinct: int
    """Different tokens among them: one alone would prove little."""
    first_difference: tuple[int, int] | None
    """Request and position of the first token that differs, both from 0; None where all are equal."""
    is_bitwise: bool | None
    """Whether all log-probabilities are the same bits; None where one side has none."""
    max_logprob_difference: float | None
    """Largest, over the same token at the same position, up to the first difference of a request."""

    @property
    def is_equal(self) -> bool:
        """Whether every token is the same."""
        return self.first_difference is None


def compare_probes(before: Manifest, after: Manifest) -> ProbeComparison:
    """The probes of two captures.

    Raises:
        CaptureError: one has none, or they were asked different things.
    """
    ours, theirs = before.probe, after.probe
    if ours is None or theirs is None:
        raise CaptureError("a capture without probe cannot be compared", "Capture both again.")
    if (before.workload, ours.prompt_tokens, ours.frequency_penalty) != (
        after.workload, theirs.prompt_tokens, theirs.frequency_penalty,
    ):  # fmt: skip
        raise CaptureError("the two captures were asked different things", "Use the same batch, prompts and seed.")
    return ProbeComparison(
        n_requests=len(ours.token_ids),
        n_tokens=sum(map(len, ours.token_ids)),
        n_distinct=len({token for answer in ours.token_ids for token in answer}),
        first_difference=_first_difference(ours, theirs),
        is_bitwise=None
        if None in (ours.top_logprobs, theirs.top_logprobs)
        else ours.top_logprobs == theirs.top_logprobs,
        max_logprob_difference=_max_difference(ours, theirs),
    )


def _first_difference(ours: Probe, theirs: Probe) -> tuple[int, int] | None:
    for request, (a, b) in enumerate(zip(ours.token_ids, theirs.token_ids, strict=True)):
        if a != b:
            same = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            return request, same
    return None


def _max_difference(ours: Probe, theirs: Probe) -> float | None:
    if ours.top_logprobs is None or theirs.top_logprobs is None:
        return None
    found = [0.0]
    for request, answers in enumerate(zip(ours.top_logprobs, theirs.top_logprobs, strict=True)):
        tokens = zip(ours.token_ids[request], theirs.token_ids[request], strict=False)
        n_same = next((at for at, (a, b) in enumerate(tokens) if a != b), len(ours.token_ids[request]))
        for a, b in zip(answers[0][: n_same + 1], answers[1][: n_same + 1], strict=False):
            other = {token: logprob for logprob, token in b}
            found += [abs(logprob - other[token]) for logprob, token in a if token in other]
    return max(found)
