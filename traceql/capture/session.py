"""A server that is up, and what all runs on it share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from traceql.capture.client import Client
from traceql.capture.manifest import Server, Workload
from traceql.capture.workload import Tick, decode


@dataclass(frozen=True)
class TraceFacts:
    """What a trace turned out to hold. None: it does not say."""

    n_steps: int
    stages: tuple[str, ...]
    """Of its steps, each once."""
    method: str | None
    """How the steps were found."""
    step_ns: float | None
    with_stack: bool | None
    record_shapes: bool | None
    gpu: str | None


Verify = Callable[[Path], TraceFacts]
"""Reads a trace; raises a `TraceqlError` where it is damaged."""


class Progress(Protocol):
    """Who is told how far a capture is."""

    def say(self, text: str) -> None:
        """Something is done."""
        ...

    def wait(self, text: str) -> None:
        """Something is waited for; said again and again."""
        ...


@dataclass(frozen=True)
class Session:
    """The server, its facts, the batch that it is sent, who reads its traces and who is told."""

    client: Client
    server: Server
    workload: Workload
    verify: Verify
    progress: Progress

    def decode(self, n_steps: int, at_step: tuple[int, Callable[[], None]] | None = None) -> list[Tick]:
        """Sends the batch and follows it for at least that many steps of each request.

        Args:
            n_steps: decode steps.
            at_step: called once, when every request has taken that many steps.
        """
        return decode(self.client, self.workload, answer_tokens(self.server, n_steps), at_step)


def answer_tokens(server: Server, n_steps: int) -> int:
    """Tokens to ask for, so that a request takes at least that many steps."""
    return n_steps * (server.draft_tokens or 1) + 1
