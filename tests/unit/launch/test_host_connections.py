"""Calling the hosts of a run: those that can work together are found, others are named with the reason, and lost hosts
rejoin when they can be used again."""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.launch import host_connections
from dragoman.launch import hosts as hosts_module
from dragoman.launch.connection import HostError
from dragoman.launch.host_connections import (
    FAILED_RETURN_SECONDS,
    LOOPBACK,
    SETTLED_SECONDS,
    HostConnections,
    LostHosts,
)
from dragoman.launch.hosts import Host, gather_facts
from dragoman.run.folder import RunFolder

NAMES = ["a", "b", "c", "d"]
SECONDS = 30.0


# Calling hosts


class FakeConnection:
    """A host that answers at once; a test decides who reaches whom and what a host reports."""

    links: ClassVar[set[tuple[str, str]]] = set()
    differences: ClassVar[dict[str, dict[str, Any]]] = {}
    lost_at: ClassVar[dict[str, str]] = {}
    """The request at which a host is lost."""

    def __init__(self, host: Host, *_: object) -> None:
        self.host = host
        self.received: list[dict[str, Any]] = []

    def ask(self, request: dict[str, Any], _answer: str, timeout: float = 60.0) -> Any:
        self.received.append(request)
        name = self.host.name
        if self.lost_at.get(name) == request["do"]:
            raise HostError(self.host, f"{name} cannot be used: ssh failed (Connection reset).")
        match request["do"]:
            case "facts":
                here = gather_facts(RunFolder(Path(request["run"])), Path(request["prepared"]), request["token"])
                return here.to_json() | self.differences.get(name, {})
            case "listen":
                return {"port": request["port"] or 30_000 + ord(name), "addresses": [f"10.0.0.{ord(name)}"]}
            case "reach":
                peers = request["peers"].items()
                return {other: peer["addresses"][0] for other, peer in peers if (name, other) in self.links}
            case "get_ready":
                return {"interface": "lo" if request["address"] == LOOPBACK else "eth0"}
            case _:
                return 1

    def send(self, _message: dict[str, Any]) -> None:
        pass

    def close(self, timeout: float = 5.0) -> None:
        pass


def all_links() -> set[tuple[str, str]]:
    return {(one, other) for one in NAMES for other in NAMES if one != other}


@pytest.fixture
def fake_hosts(monkeypatch):
    """Hosts that all reach each other and are like this machine; returns the class, whose answers a test may change."""
    monkeypatch.setattr(host_connections, "Connection", FakeConnection)
    monkeypatch.setattr(hosts_module, "code_fingerprint", lambda: "c0de")  # over all files, for every host and example
    monkeypatch.setattr(FakeConnection, "links", all_links())
    monkeypatch.setattr(FakeConnection, "differences", {})
    monkeypatch.setattr(FakeConnection, "lost_at", {})
    return FakeConnection


@pytest.fixture
def said():
    return []


@pytest.fixture
def connections(tmp_path, said, prepared, build_plan) -> Callable[..., HostConnections]:
    """Builds the connections of a run with a config, whose plan may be changed."""
    (tmp_path / "config.toml").write_text("[data]\n", encoding="utf-8")

    def build(**changes: Any) -> HostConnections:
        plan = build_plan(prepared=prepared, **changes)
        return HostConnections(plan, lambda _host, _line: None, said.append)

    return build


@pytest.fixture
def call(connections) -> Callable[..., tuple[list[Any], dict[Host, str]]]:
    """Calls hosts by name, two workers each."""

    def call(*names: str, **changes: Any) -> tuple[list[Any], dict[Host, str]]:
        with connections(**changes) as opened:
            return opened.call([Host(name, 2) for name in names])

    return call


def test_hosts_that_reach_each_other_are_ready_in_the_order_given(fake_hosts, call):
    ready, problems = call("b", "a", "c")
    assert problems == {}
    assert [(host.name, host.address, host.interface) for host in ready] == [
        ("b", "10.0.0.98", "eth0"),
        ("a", "10.0.0.97", "eth0"),
        ("c", "10.0.0.99", "eth0"),
    ]


def test_a_single_host_needs_no_address(fake_hosts, call):
    ready, _ = call("a")
    assert (ready[0].address, ready[0].interface) == (LOOPBACK, "lo")
    assert "reach" not in [request["do"] for request in ready[0].connection.received]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.sets(st.sampled_from(sorted(all_links()))))
def test_hosts_that_are_chosen_all_reach_each_other(fake_hosts, call, links):
    fake_hosts.links = links
    ready, problems = call(*NAMES)
    chosen = [host.name for host in ready]
    assert chosen[0] == NAMES[0]
    assert all((one, other) in links for one in chosen for other in chosen if one != other)
    assert sorted(chosen + [host.name for host in problems]) == NAMES
    for host, problem in problems.items():
        assert problem.startswith(f"{host.name} (10.0.0.{ord(host.name)}; port")
        assert "do not reach each other" in problem


def test_only_the_first_host_listens_at_the_chosen_port(fake_hosts, call):
    ready, _ = call("a", "b", port=4711)
    ports = [request["port"] for host in ready for request in host.connection.received if request["do"] == "listen"]
    assert ports == [4711, 0]


def test_a_host_that_differs_is_left_out_with_the_reason(fake_hosts, call):
    fake_hosts.differences["b"] = {"torch": "1.0"}
    ready, problems = call("a", "b", "c")
    assert [host.name for host in ready] == ["a", "c"]
    assert problems[Host("b", 2)].startswith("b has torch 1.0, this machine has ")


def test_a_host_with_another_version_whose_facts_have_other_names_is_left_out_with_the_reason(fake_hosts, call):
    fake_hosts.differences["b"] = {"dragoman": "9.9", "num_tpus": 8}
    ready, problems = call("a", "b")
    assert [host.name for host in ready] == ["a"]
    assert problems[Host("b", 2)].startswith("b has dragoman 9.9, this machine has ")


@pytest.mark.parametrize("request_name", ["facts", "listen", "reach", "get_ready"])
def test_the_others_continue_without_a_host_that_is_lost_during_the_checks(fake_hosts, call, request_name):
    fake_hosts.lost_at["b"] = request_name
    ready, problems = call("a", "b", "c")
    assert [host.name for host in ready] == ["a", "c"]
    assert problems == {Host("b", 2): "b cannot be used: ssh failed (Connection reset)."}


def test_a_host_that_does_not_see_our_run_folder_gets_the_config(fake_hosts, call):
    fake_hosts.differences["b"] = {"shares_run_folder": False, "config": None}
    ready, _ = call("a", "b")
    written = {host.name: [each for each in host.connection.received if each["do"] == "write"] for host in ready}
    assert written["a"] == []
    assert written["b"][0]["files"] == {"config.toml": "[data]\n"}
    assert [host.shares_run_folder for host in ready] == [True, False]


def test_the_checks_leave_nothing_in_the_run_folder(fake_hosts, call, tmp_path):
    call("a", "b")
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_missing_data_is_sent_only_on_request(fake_hosts, call, said, monkeypatch, prepared):
    fake_hosts.differences["b"] = {"data": None}
    _, problems = call("a", "b")
    assert "--send-data" in problems[Host("b", 2)]
    sent = []
    monkeypatch.setattr(
        host_connections, "send_folder", lambda connection, folder, _: sent.append((connection, folder))
    )
    _, problems = call("a", "b", is_data_sent=True)
    assert problems == {}
    assert [(connection.host.name, folder) for connection, folder in sent] == [("b", prepared)]
    assert said == [f"Copying {prepared} to b."]


def test_a_clock_a_little_off_is_mentioned_and_one_far_off_refused(fake_hosts, call, said):
    here = time.time()
    fake_hosts.differences["b"] = {"time": here + 30}
    assert call("b")[1] == {}
    assert "times in its records will be off" in said[0]
    fake_hosts.differences["b"] = {"time": here + 3_000}
    assert "set the clocks" in call("b")[1][Host("b", 2)]


def test_without_a_number_of_workers_a_host_gets_one_per_gpu(fake_hosts, connections):
    fake_hosts.differences = {"a": {"num_gpus": 4}, "b": {"num_gpus": 0}}
    with connections() as opened:
        ready, _ = opened.call([Host("a"), Host("b")])
    assert [host.num_workers for host in ready] == [4, 1]


def test_connections_are_kept_from_attempt_to_attempt_until_they_are_dropped(fake_hosts, connections):
    host = Host("a", 2)
    with connections() as opened:
        (first,), _ = opened.call([host])
        (again,), _ = opened.call([host])
        assert again.connection is first.connection
        opened.drop(host)
        (other,), _ = opened.call([host])
        assert other.connection is not first.connection


@pytest.mark.usefixtures("fake_ssh")
def test_real_programs_over_ssh_find_each_other_and_an_unreachable_host_is_named(connections):
    with connections() as opened:
        ready, problems = opened.call([Host("one"), Host("unreachable"), Host("localhost", 1)])
    assert [host.name for host in ready] == ["one", "localhost"]
    assert all(host.shares_run_folder and host.interface for host in ready)
    assert [host.label for host in ready] == ["one", socket.gethostname()]
    assert list(problems) == [Host("unreachable")]
    assert "No route to host" in problems[Host("unreachable")]


# Lost hosts

A, B = Host("a.example.org", 2), Host("b.example.org", 2)


class FakeTime:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class Search:
    """Stands in for connecting to lost hosts: knows which can be used and which were tried."""

    def __init__(self) -> None:
        self.usable: set[Host] = set()
        self.tried: list[Host] = []
        self._changed = threading.Condition()

    def can_be_used(self, host: Host) -> bool:
        with self._changed:
            self.tried.append(host)
            self._changed.notify_all()
        return host in self.usable

    def wait_for_try(self, host: Host) -> None:
        """Waits until a host is tried again."""
        with self._changed:
            num_tries = self.tried.count(host)
            assert self._changed.wait_for(lambda: self.tried.count(host) > num_tries, timeout=SECONDS)


@pytest.fixture
def clock(monkeypatch):
    clock = FakeTime()
    monkeypatch.setattr(host_connections, "time", clock)
    return clock


@pytest.fixture
def search(monkeypatch):
    search = Search()
    monkeypatch.setattr(LostHosts, "_can_be_used", lambda _self, host: search.can_be_used(host))
    monkeypatch.setattr(host_connections, "LOOK_SECONDS", 0.005)
    return search


@pytest.fixture
def lost(search, clock, build_plan):
    lost = LostHosts(build_plan())
    yield lost
    lost.close()


def wait_until_back(lost: LostHosts) -> None:
    end = time.monotonic() + SECONDS
    while not lost.is_any_back:
        assert time.monotonic() < end, "no host came back"
        time.sleep(0.002)


def lose_after_return(lost: LostHosts, host: Host, clock: FakeTime, seconds: float = 0.0) -> None:
    """Waits until a host is back, takes it back and loses it again after some seconds."""
    clock.now += 2
    wait_until_back(lost)
    lost.take_back()
    clock.now += seconds
    lost.add(host)


def test_a_lost_host_is_missing_until_it_can_be_used_again(lost, search, clock):
    lost.add(A)
    clock.now += 1
    search.wait_for_try(A)
    search.wait_for_try(A)  # the result of the first is known now
    assert A in lost
    assert not lost.is_any_back
    lost.take_back()
    assert A in lost
    search.usable.add(A)
    wait_until_back(lost)
    assert A in lost  # until it is taken back
    lost.take_back()
    assert A not in lost
    assert not lost.is_any_back


def test_the_return_of_one_host_does_not_bring_back_another(lost, search, clock):
    for host in (A, B):
        lost.add(host)
    clock.now += 1
    search.usable.add(B)
    wait_until_back(lost)
    lost.take_back()
    assert A in lost
    assert B not in lost


def test_a_host_that_is_back_is_not_tried_again(lost, search, clock):
    search.usable.add(B)
    for host in (A, B):
        lost.add(host)
    clock.now += 1
    wait_until_back(lost)
    for _ in range(3):
        search.wait_for_try(A)
    assert search.tried.count(B) == 1


def test_after_every_failed_return_a_host_is_left_out_for_longer(lost, search, clock):
    search.usable.add(A)
    lost.add(A)
    lost.add(B)  # never usable: a try of it shows that a round has passed
    for num_failed in (1, 2, 3):
        lose_after_return(lost, A, clock)
        clock.now += num_failed * FAILED_RETURN_SECONDS - 1
        num_tries = search.tried.count(A)
        for _ in range(3):
            search.wait_for_try(B)
        assert search.tried.count(A) == num_tries, f"tried too early after {num_failed} failed returns"
        assert not lost.is_any_back


def test_a_host_that_stayed_long_after_its_return_is_looked_for_at_once(lost, search, clock):
    search.usable.add(A)
    lost.add(A)
    for _ in range(2):
        lose_after_return(lost, A, clock, seconds=SETTLED_SECONDS)
    clock.now += 1
    wait_until_back(lost)


def test_no_host_is_tried_after_the_end(search, clock, build_plan):
    before = threading.active_count()
    lost = LostHosts(build_plan())
    lost.add(A)
    clock.now += 1
    search.wait_for_try(A)
    lost.close()
    end = time.monotonic() + SECONDS
    while threading.active_count() > before:
        assert time.monotonic() < end, "it still looks"
        time.sleep(0.002)
