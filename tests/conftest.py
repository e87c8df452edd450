"""Settings of all tests: one thread, and no time limit for a single example, since the machine may be busy."""

import sys

import pytest
from hypothesis import settings

settings.register_profile("dragoman", deadline=None)
settings.load_profile("dragoman")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Threads that wait for each other over small products take ten times as long; tests without torch stay so."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
