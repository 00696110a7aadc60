"""Shared by all tests: where the fixtures and the trace collection are, and how they are run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Chromium, find_chromium
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a busy machine is no fault of what is tested
settings.load_profile("untimed")


def pytest_xdist_auto_num_workers() -> int:
    """One more process than cores: a good part of the time a test waits for a server."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


FIXTURES = Path(__file__).parent / "fixtures"
SHARED = Path(__file__).parents[2] / "shared" / "traces"


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The folder of the committed fixtures."""
    return FIXTURES


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    """A browser with one page."""
    path = find_chromium()
    if path is None:
        pytest.fail("Chromium is not installed; Debian has it as chromium-headless-shell")
    chromium = Chromium(path)
    yield chromium
    chromium.close()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The trace collection beside the checkout; tests that need it are skipped where it is missing."""
    if not SHARED.is_dir():
        pytest.skip("the trace collection ../shared/traces is not beside this checkout")
    return SHARED
