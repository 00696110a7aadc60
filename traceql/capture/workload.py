"""The requests that a capture sends, and the pace at which they are answered."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from traceql.capture.client import Client
from traceql.capture.errors import CaptureError
from traceql.capture.manifest import Pace, Probe, Workload

FIRST_TOKEN = 10
"""Token ids below are often special."""
PROBE_TOKENS = 40
"""Tokens that each request of the probe is answered with."""
PROBE_PENALTY = 2.0
TOP_LOGPROBS = 8
GREEDY = {"temperature": 0, "ignore_eos": True}


def prompts(workload: Workload) -> list[list[int]]:
    """The batch: as many random token ids as the workload says, always the same."""
    rng = random.Random(workload.seed)  # noqa: S311 - not for secrets
    prefix = _random_tokens(rng, workload.shared_prefix_tokens, workload)
    own = [_random_tokens(rng, max(0, length - len(prefix)), workload) for length in prompt_lengths(workload)]
    return [(prefix + tokens)[:length] for tokens, length in zip(own, prompt_lengths(workload), strict=True)]


def prompt_lengths(workload: Workload) -> list[int]:
    """Tokens of each prompt, the shortest first."""
    longest, shortest = workload.prompt_tokens, workload.min_prompt_tokens
    below = longest - (longest if shortest is None else shortest)
    last = workload.batch_size - 1
    return [longest - below * (last - i) // max(1, last) for i in range(workload.batch_size)]


def _random_tokens(rng: random.Random, n_tokens: int, workload: Workload) -> list[int]:
    return [rng.randrange(FIRST_TOKEN, workload.vocab_size) for _ in range(n_tokens)]


@dataclass(frozen=True)
class Tick:
    """A moment at which a request got on."""

    time_ns: int
    index: int
    n_tokens: int
    n_steps: int
    is_finished: bool


def decode(
    client: Client, workload: Workload, n_tokens: int, at_step: tuple[int, Callable[[], None]] | None = None
) -> list[Tick]:
    """Sends the batch and follows it to its end.

    Args:
        client: the server.
        workload: the batch.
        n_tokens: tokens for each request.
        at_step: called once, when every request has taken that many steps.

    Raises:
        CaptureError: the server fails, or gives up on a request.
    """
    ticks: list[Tick] = []
    n_steps = [0] * workload.batch_size
    finished: set[int] = set()
    for chunk in client.stream(prompts(workload), {**GREEDY, "max_new_tokens": n_tokens}):
        if not 0 <= chunk.index < workload.batch_size:
            raise CaptureError(f"/generate answered request {chunk.index}", "It was sent no such request.")
        ticks.append(Tick(time.perf_counter_ns(), chunk.index, chunk.n_tokens, chunk.n_steps, chunk.is_finished))
        n_steps[chunk.index] = chunk.n_steps
        if chunk.is_finished:
            finished.add(chunk.index)
        if at_step and min(n_steps) >= at_step[0]:
            at_step[1]()
            at_step = None
    if len(finished) < workload.batch_size:
        raise CaptureError(
            f"{workload.batch_size - len(finished)} of {workload.batch_size} requests were not answered to their end",
            "See the server's log.",
        )
    return ticks


def pace(ticks: list[Tick], workload: Workload, skip_steps: int) -> Pace:
    """The pace while the batch was full: from its step `skip_steps` to the last one that all requests took.

    Both ends are moments at which the slowest request reached a step, so that as many tokens lie between as steps.

    Raises:
        CaptureError: too few steps for a pace.
    """
    first_finished = next(tick for tick in ticks if tick.is_finished)
    steps, tokens = [0] * workload.batch_size, [0] * workload.batch_size
    start: tuple[int, list[int], list[int]] | None = None
    end: tuple[int, list[int], list[int]] | None = None
    last_step = 0
    for tick in ticks:
        steps[tick.index], tokens[tick.index] = tick.n_steps, tick.n_tokens
        if start is None and min(steps) >= skip_steps:
            start = tick.time_ns, steps.copy(), tokens.copy()
            last_step = min(steps) + first_finished.n_steps - steps[first_finished.index]
        elif start is not None and end is None and min(steps) >= last_step:
            end = tick.time_ns, steps.copy(), tokens.copy()
    if start is None or end is None or start[0] >= first_finished.time_ns:
        raise CaptureError(
            "the batch was never decoded as a whole: some requests ended before others began",
            "Use a smaller --batch-size, or a server with a larger KV pool.",
        )
    return Pace(
        n_steps=min(end[1]) - min(start[1]),
        n_tokens=sum(end[2]) - sum(start[2]),
        wall_ns=end[0] - start[0],
        median_step_ns=median_step_ns([t for t in ticks if start[0] <= t.time_ns <= end[0]], first_finished.index),
    )


def median_step_ns(ticks: list[Tick], index: int = 0) -> int | None:
    """Median time between two steps of a request; None where it took only one."""
    own = [tick for tick in ticks if tick.index == index]
    steps = [
        (after.time_ns - before.time_ns) / (after.n_steps - before.n_steps)
        for before, after in pairwise(own)
        if after.n_steps > before.n_steps
    ]
    return round(median(steps)) if steps else None


def mean_step_ns(ticks: list[Tick], index: int = 0) -> int | None:
    """Mean time between two steps of a request; None where it took only one.

    Where this machine is busy, answers are read in bursts: the median of the times between them is next to nothing.
    """
    own = [tick for tick in ticks if tick.index == index]
    n_steps = own[-1].n_steps - own[0].n_steps if own else 0
    return round((own[-1].time_ns - own[0].time_ns) / n_steps) if n_steps > 0 else None


def probe(client: Client, workload: Workload) -> Probe:
    """Greedy answers to the workload's prompts, with the likeliest tokens of each position."""
    batch = prompts(workload)
    sampling = {**GREEDY, "max_new_tokens": PROBE_TOKENS, "frequency_penalty": PROBE_PENALTY}
    answers = client.generate(batch, sampling, return_logprob=True, top_logprobs_num=TOP_LOGPROBS)
    try:
        return Probe(
            prompt_tokens=tuple(map(len, batch)),
            frequency_penalty=PROBE_PENALTY,
            token_ids=tuple(tuple(map(int, answer["output_ids"])) for answer in answers),
            top_logprobs=_top_logprobs(answers),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CaptureError(f"/generate answered without token ids: {error!r}", "See the server's log.") from error


def _top_logprobs(
    answers: list[dict[str, Any]],
) -> tuple[tuple[tuple[tuple[float, int], ...], ...], ...] | None:
    found = [answer.get("meta_info", {}).get("output_top_logprobs") for answer in answers]
    if not all(found):
        return None
    return tuple(
        tuple(tuple((float(entry[0]), int(entry[1])) for entry in position or ()) for position in answer)
        for answer in found
    )
