"""What tests of training share: a clock that is set by hand."""

from typing import Any

import pytest

from dragoman.training import spent_time, stopping
from dragoman.training.saving import CheckpointSaver


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


@pytest.fixture
def every_checkpoint_is_saved(monkeypatch):
    """Saves a checkpoint at its step: training does not wait for a disk, and a tiny model is done before one is."""
    save_if_idle = CheckpointSaver.save

    def save(self: CheckpointSaver, *arguments: Any) -> bool:
        self.wait()
        return save_if_idle(self, *arguments)

    monkeypatch.setattr(CheckpointSaver, "save", save)
