"""Hosts that left are looked for, taken back when they can be used, and trusted less after every vain return."""

import threading
import time
from pathlib import Path

import pytest

from dragoman.launch import call_hosts
from dragoman.launch.call_hosts import FAILED_RETURN_SECONDS, LostHosts, Wishes
from dragoman.launch.hosts import Host
from dragoman.run.folder import RunFolder

A, B = Host("a.example.org", 2), Host("b.example.org", 2)
SECONDS = 20.0


class FakeTime:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class Search:
    """Stands in for reaching hosts: who can be used, and who was asked after."""

    def __init__(self) -> None:
        self.usable: set[Host] = set()
        self.asked: list[Host] = []
        self._round = threading.Condition()

    def can_be_used(self, host: Host) -> bool:
        with self._round:
            self.asked.append(host)
            self._round.notify_all()
        return host in self.usable

    def wait_for_question(self, host: Host) -> None:
        """Waits until a question begins from now on."""
        with self._round:
            num_asked = self.asked.count(host)
            assert self._round.wait_for(lambda: self.asked.count(host) > num_asked, timeout=SECONDS)


@pytest.fixture
def clock(monkeypatch):
    clock = FakeTime()
    monkeypatch.setattr(call_hosts, "time", clock)
    return clock


@pytest.fixture
def search(monkeypatch):
    search = Search()
    monkeypatch.setattr(LostHosts, "_can_be_used", lambda _self, host: search.can_be_used(host))
    monkeypatch.setattr(call_hosts, "LOOK_SECONDS", 0.005)
    return search


@pytest.fixture
def lost(search, clock):
    lost = LostHosts(Wishes(RunFolder(Path("run")), Path("prepared"), 0, 15.0, is_resumed=False))
    yield lost
    lost.close()


def wait_until_back(lost: LostHosts) -> None:
    end = time.monotonic() + SECONDS
    while not lost.is_somebody_back:
        assert time.monotonic() < end, "nobody came back"
        time.sleep(0.002)


def lose_after_return(lost: LostHosts, host: Host, clock: FakeTime) -> None:
    """A host comes back, is taken back, and is lost again."""
    clock.now += 2
    wait_until_back(lost)
    lost.welcome_back()
    lost.add(host, "It was killed.")


def test_a_lost_host_is_missing_until_it_can_be_used_again(lost, search, clock):
    lost.add(A, "It was killed.")
    clock.now += 1
    search.wait_for_question(A)
    search.wait_for_question(A)  # the answer to the first is known now
    assert A in lost
    assert not lost.is_somebody_back
    lost.welcome_back()
    assert A in lost
    search.usable.add(A)
    wait_until_back(lost)
    assert A in lost  # until it is welcomed
    lost.welcome_back()
    assert A not in lost
    assert not lost.is_somebody_back


def test_one_host_that_is_back_does_not_bring_back_the_other(lost, search, clock):
    for host in (A, B):
        lost.add(host, "It was killed.")
    clock.now += 1
    search.usable.add(B)
    wait_until_back(lost)
    lost.welcome_back()
    assert A in lost
    assert B not in lost


def test_a_host_that_is_back_is_not_asked_again_before_it_is_needed(lost, search, clock):
    search.usable.add(B)
    for host in (A, B):
        lost.add(host, "It was killed.")
    clock.now += 1
    wait_until_back(lost)
    for _ in range(3):
        search.wait_for_question(A)
    assert search.asked.count(B) == 1


def test_after_every_vain_return_a_host_is_left_alone_for_longer(lost, search, clock):
    search.usable.add(A)
    lost.add(A, "It was killed.")
    lost.add(B, "It was killed.")  # never usable: being asked after it shows that a round has passed
    for num_failed in (1, 2, 3):
        lose_after_return(lost, A, clock)
        clock.now += num_failed * FAILED_RETURN_SECONDS - 1
        asked_before = search.asked.count(A)
        for _ in range(3):
            search.wait_for_question(B)
        assert search.asked.count(A) == asked_before, f"asked too early after {num_failed} vain returns"
        assert not lost.is_somebody_back


def test_nobody_is_looked_for_after_the_end(lost, search, clock):
    lost.add(A, "It was killed.")
    clock.now += 1
    search.wait_for_question(A)
    lost.close()
    time.sleep(0.05)
    num_asked = len(search.asked)
    time.sleep(0.1)
    assert len(search.asked) == num_asked
