"""Step times without the pauses for evaluations."""

import pytest

from dragoman.importing.trainers.pausing_clock import PausingClock


def test_a_pause_does_not_count():
    clock = PausingClock()
    assert clock.seconds_per_step(10, 100.0) is None
    clock.begin_pause(100.0)
    clock.extend_pause(130.0)
    clock.extend_pause(None)
    assert clock.seconds_per_step(20, 140.0) == pytest.approx(1.0)
    assert clock.seconds_per_step(30, 150.0) == pytest.approx(1.0)
    assert clock.log_every == 10


def test_training_after_a_pause_counts():
    clock = PausingClock()
    clock.seconds_per_step(10, 100.0)
    clock.begin_pause(100.0)
    clock.extend_pause(130.0)
    clock.end_pause()
    clock.extend_pause(135.0)
    assert clock.seconds_per_step(20, 140.0) == pytest.approx(1.0)


def test_a_pause_does_not_begin_before_the_last_step():
    clock = PausingClock()
    clock.seconds_per_step(10, 100.0)
    clock.begin_pause(99.0)
    clock.extend_pause(110.0)
    assert clock.seconds_per_step(20, 120.0) == pytest.approx(1.0)


def test_a_restart_forgets_the_last_step():
    clock = PausingClock()
    clock.seconds_per_step(10, 100.0)
    clock.restart()
    assert clock.seconds_per_step(20, 1000.0) is None
