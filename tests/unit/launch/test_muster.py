"""Calling hosts together: those that can work with each other are found, the others are named with the reason."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.launch import call_hosts as muster_module
from dragoman.launch import hosts
from dragoman.launch.call_hosts import LOOPBACK, Muster, Wishes
from dragoman.launch.connection import HostError, Pulse
from dragoman.launch.hosts import Host, gather_facts
from dragoman.run.folder import RunFolder

NAMES = ["a", "b", "c", "d"]


class FakeConnection:
    """A host that answers at once; who reaches whom, and what it says of itself, is up to the test."""

    ways: ClassVar[set[tuple[str, str]]] = set()
    differences: ClassVar[dict[str, dict[str, Any]]] = {}
    leaves_at: ClassVar[dict[str, str]] = {}
    """The request in answer to which a host breaks off."""

    def __init__(self, host: Host, *_: object) -> None:
        self.host = host
        self.heard: list[dict[str, Any]] = []

    def ask(self, request: dict[str, Any], _answer: str, timeout: float = 60.0) -> Any:
        self.heard.append(request)
        name = self.host.name
        if self.leaves_at.get(name) == request["do"]:
            raise HostError(self.host, f"{name} cannot be used: ssh failed (Connection reset).")
        match request["do"]:
            case "facts":
                here = gather_facts(RunFolder(Path(request["run"])), Path(request["prepared"]), request["token"])
                return here.to_json() | self.differences.get(name, {})
            case "listen":
                return {"port": request["port"] or 30_000 + ord(name), "addresses": [f"10.0.0.{ord(name)}"]}
            case "reach":
                peers = request["peers"].items()
                return {other: peer["addresses"][0] for other, peer in peers if (name, other) in self.ways}
            case "settle":
                return {"interface": "lo" if request["address"] == LOOPBACK else "eth0"}
            case _:
                return 1

    def send(self, _message: dict[str, Any]) -> None:
        pass

    def close(self, timeout: float = 5.0) -> None:
        pass


def all_ways() -> set[tuple[str, str]]:
    return {(one, other) for one in NAMES for other in NAMES if one != other}


@pytest.fixture
def fake_hosts(monkeypatch):
    """Hosts that all reach each other and are like this machine; the class, whose answers a test may change."""
    monkeypatch.setattr(muster_module, "Connection", FakeConnection)
    monkeypatch.setattr(hosts, "code_fingerprint", lambda: "c0de")  # over all files, for every host and example
    monkeypatch.setattr(FakeConnection, "ways", all_ways())
    monkeypatch.setattr(FakeConnection, "differences", {})
    monkeypatch.setattr(FakeConnection, "leaves_at", {})
    return FakeConnection


@pytest.fixture
def pulse():
    pulse = Pulse()
    yield pulse
    pulse.stop()


@pytest.fixture
def said():
    return []


@pytest.fixture
def build(tmp_path, pulse, said, prepared) -> Callable[..., Muster]:
    run = RunFolder(tmp_path)
    run.config.write_text("[data]\n", encoding="utf-8")

    def build(**changes: Any) -> Muster:
        values = {"kept_bytes": 0, "host_timeout": 15.0, "is_resumed": False} | changes
        return Muster(Wishes(run, prepared, **values), pulse, lambda _host, _line: None, said.append)

    return build


def hosts_named(*names: str) -> list[Host]:
    return [Host(name, 2) for name in names]


def test_hosts_that_reach_each_other_are_ready_in_the_order_given(fake_hosts, build):
    ready, problems = build().call(hosts_named("b", "a", "c"))
    assert problems == {}
    assert [(host.name, host.address, host.interface) for host in ready] == [
        ("b", "10.0.0.98", "eth0"),
        ("a", "10.0.0.97", "eth0"),
        ("c", "10.0.0.99", "eth0"),
    ]


def test_a_single_host_needs_no_address(fake_hosts, build):
    ready, _ = build().call(hosts_named("a"))
    assert (ready[0].address, ready[0].interface) == (LOOPBACK, "lo")
    assert "reach" not in [request["do"] for request in ready[0].connection.heard]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.sets(st.sampled_from(sorted(all_ways()))))
def test_whoever_reaches_whom_those_chosen_all_reach_each_other(fake_hosts, build, ways):
    fake_hosts.ways = ways
    ready, problems = build().call(hosts_named(*NAMES))
    chosen = [host.name for host in ready]
    assert chosen[0] == NAMES[0]
    assert all((one, other) in ways for one in chosen for other in chosen if one != other)
    assert sorted(chosen + [host.name for host in problems]) == NAMES
    for host, problem in problems.items():
        assert problem.startswith(f"{host.name} (10.0.0.{ord(host.name)}; port")
        assert "do not reach each other" in problem


def test_only_the_first_host_listens_at_the_port_a_person_chose(fake_hosts, build):
    ready, _ = build(port=4711).call(hosts_named("a", "b"))
    ports = [request["port"] for host in ready for request in host.connection.heard if request["do"] == "listen"]
    assert ports == [4711, 0]


def test_a_host_that_differs_is_left_out_with_the_reason(fake_hosts, build):
    fake_hosts.differences["b"] = {"torch": "1.0"}
    ready, problems = build().call(hosts_named("a", "b", "c"))
    assert [host.name for host in ready] == ["a", "c"]
    assert problems[Host("b", 2)].startswith("b has torch 1.0, this machine has ")


@pytest.mark.parametrize("request_name", ["facts", "listen", "reach", "settle"])
def test_a_host_that_leaves_in_the_middle_of_the_checks_does_not_keep_the_others_from_working(
    fake_hosts, build, request_name
):
    fake_hosts.leaves_at["b"] = request_name
    ready, problems = build().call(hosts_named("a", "b", "c"))
    assert [host.name for host in ready] == ["a", "c"]
    assert problems == {Host("b", 2): "b cannot be used: ssh failed (Connection reset)."}


def test_a_host_that_does_not_see_our_run_folder_gets_its_settings(fake_hosts, build):
    fake_hosts.differences["b"] = {"shares_run_folder": False, "config": None}
    ready, _ = build().call(hosts_named("a", "b"))
    written = {host.name: [each for each in host.connection.heard if each["do"] == "write"] for host in ready}
    assert written["a"] == []
    assert written["b"][0]["files"] == {"config.toml": "[data]\n"}
    assert [host.shares_run_folder for host in ready] == [True, False]


def test_no_trace_of_the_checks_is_left_in_the_run_folder(fake_hosts, build, tmp_path):
    build().call(hosts_named("a", "b"))
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_data_that_a_host_lacks_is_sent_only_if_that_was_asked_for(fake_hosts, build, said, monkeypatch, prepared):
    fake_hosts.differences["b"] = {"data": None}
    _, problems = build().call(hosts_named("a", "b"))
    assert "--send-data" in problems[Host("b", 2)]
    sent = []
    monkeypatch.setattr(muster_module, "send_folder", lambda connection, folder, _: sent.append((connection, folder)))
    _, problems = build(is_data_sent=True).call(hosts_named("a", "b"))
    assert problems == {}
    assert [(connection.host.name, folder) for connection, folder in sent] == [("b", prepared)]
    assert said == [f"Copying {prepared} to b."]


def test_a_clock_that_is_a_little_off_is_mentioned_and_one_far_off_refused(fake_hosts, build, said):
    here = gather_facts(RunFolder(Path()), Path(), "").time
    fake_hosts.differences["b"] = {"time": here + 30}
    assert build().call(hosts_named("b"))[1] == {}
    assert "times in its records will be off" in said[0]
    fake_hosts.differences["b"] = {"time": here + 3_000}
    assert "set the clocks" in build().call(hosts_named("b"))[1][Host("b", 2)]


def test_without_a_number_of_workers_a_host_gets_one_per_gpu(fake_hosts, build):
    fake_hosts.differences = {"a": {"num_gpus": 4}, "b": {"num_gpus": 0}}
    ready, _ = build().call([Host("a"), Host("b")])
    assert [host.num_workers for host in ready] == [4, 1]


def test_connections_are_kept_from_attempt_to_attempt_until_they_are_dropped(fake_hosts, build):
    muster = build()
    (first,), _ = muster.call(hosts_named("a"))
    (again,), _ = muster.call(hosts_named("a"))
    assert again.connection is first.connection
    muster.drop(Host("a", 2))
    (other,), _ = muster.call(hosts_named("a"))
    assert other.connection is not first.connection
    muster.close()


@pytest.mark.usefixtures("fake_ssh")
def test_real_programs_over_ssh_find_each_other_and_one_out_of_reach_is_named(build, prepared):
    muster = build()
    try:
        ready, problems = muster.call([Host("one"), Host("unreachable"), Host("two"), Host("localhost", 1)])
    finally:
        muster.close()
    assert [host.name for host in ready] == ["one", "two", "localhost"]
    assert all(host.shares_run_folder and host.interface for host in ready)
    assert [host.label for host in ready] == ["one", "two", socket.gethostname()]
    assert list(problems) == [Host("unreachable")]
    assert "No route to host" in problems[Host("unreachable")]
