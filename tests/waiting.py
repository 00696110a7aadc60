"""Waiting for what another process does, instead of for a time in which it may not come to it."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def until(condition: Callable[[], Found | None], seconds: float = 60.0) -> Found:
    """What the condition gives as soon as that is true.

    Raises:
        AssertionError: it was not within those seconds, which are meant for a busy machine.
    """
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.002)
    return found
