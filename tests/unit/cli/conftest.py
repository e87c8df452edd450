"""Fixtures for tests of options."""

import pytest

from dragoman.launch import launcher
from dragoman.launch.hosts import LaunchPlan


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[LaunchPlan]:
    """Stands in for the supervisor: collects the plans it is given and starts no workers."""
    found: list[LaunchPlan] = []
    monkeypatch.setattr(launcher, "supervise", lambda plan, *_others: found.append(plan) or "signal")
    monkeypatch.setattr(launcher, "write_end_report", lambda _run, _settings: None)
    return found
