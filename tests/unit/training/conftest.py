"""What tests of training share: a clock that is set by hand."""

import pytest

from dragoman.training import spent_time, stopping


class FakeTime:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Replaces the clock of what a run spends and of what ends it."""
    clock = FakeTime()
    for module in (stopping, spent_time):
        monkeypatch.setattr(module, "time", clock)
    return clock
