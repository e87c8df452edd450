"""Calling the hosts of a run: those that can work together are found, others are named with the reason, and lost hosts
rejoin when they can be used again."""

import errno
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pytest
from checkpoint_folders import make_checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.cluster.addresses import LOOPBACK
from dragoman.cluster.link_test import LinkResult
from dragoman.launch import host_connections
from dragoman.launch import hosts as hosts_module
from dragoman.launch.connection import HostError, StopRequestedError
from dragoman.launch.host_connections import HostConnections, LostHosts, send_folder
from dragoman.launch.hosts import Host, gather_facts
from dragoman.run.checkpoints import START_FOLDER
from dragoman.run.errors import UsageError
from dragoman.run.folder import RunFolder

NAMES = ["a", "b", "c", "d"]
SECONDS = 30.0


# Calling hosts


class FakeConnection:
    """A host that answers at once; a test decides who reaches whom and what a host reports."""

    links: ClassVar[set[tuple[str, str]]] = set()
    results: ClassVar[dict[tuple[str, str], LinkResult]] = {}
    """What comes of links that are neither whole nor without any answer."""
    differences: ClassVar[dict[str, dict[str, Any]]] = {}
    lost_at: ClassVar[dict[str, str]] = {}
    """The request at which a host is lost."""
    stopped_at: ClassVar[str | None] = None
    """The request during which a stop is asked for."""
    opened: ClassVar[list["FakeConnection"]] = []
    has_folder = False
    quiet_seconds = 2.0
    seconds_silent = 0.0

    def __init__(self, host: Host, *_: object) -> None:
        self.host = host
        self.received: list[dict[str, Any]] = []
        self.is_closed = False
        self.last_heard = time.monotonic()
        self.opened.append(self)

    def ask(
        self,
        request: dict[str, Any],
        _answer: str,
        timeout: float = 60.0,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> Any:
        self.received.append(request)
        name = self.host.name
        if self.lost_at.get(name) == request["do"]:
            raise HostError(self.host, f"{name} cannot be used: ssh failed (Connection reset).")
        if self.stopped_at == request["do"]:
            assert is_stopping()
            raise StopRequestedError
        match request["do"]:
            case "facts":
                here = gather_facts(RunFolder(Path(request["run"])), Path(request["prepared"]), request["token"])
                return here.to_json() | self.differences.get(name, {})
            case "listen":
                first = request["ports"][0] if request["ports"] else 30_000 + ord(name[0])
                return {"ports": [first], "addresses": [f"10.0.0.{ord(name[0])}"]}
            case "reach":
                return {other: asdict(self._reach(other, peer)) for other, peer in request["peers"].items()}
            case "make_folder":
                return not self.has_folder
            case "get_ready":
                return {"interface": "lo" if request["address"] == LOOPBACK else "eth0"}
            case _:
                return 1

    def _reach(self, other: str, peer: dict[str, Any]) -> LinkResult:
        place = {"port": peer["ports"][0], "addresses": tuple(peer["addresses"])}
        if (self.host.name, other) in self.links:
            return LinkResult("passed", **place)
        return self.results.get((self.host.name, other)) or LinkResult("connect", reason="no answer", **place)

    @property
    def requests(self) -> list[str]:
        return [request["do"] for request in self.received]

    def send(self, _message: dict[str, Any]) -> None:
        pass

    def close(self, timeout: float = 5.0) -> None:
        self.is_closed = True


def all_links() -> set[tuple[str, str]]:
    return {(one, other) for one in NAMES for other in NAMES if one != other}


@pytest.fixture
def fake_hosts(monkeypatch):
    """Hosts that all reach each other and are like this machine; returns the class, whose answers a test may change."""
    monkeypatch.setattr(host_connections, "Connection", FakeConnection)
    monkeypatch.setattr(hosts_module, "code_fingerprint", lambda: "c0de")  # over all files, for every host and example
    monkeypatch.setattr(FakeConnection, "links", all_links())
    monkeypatch.setattr(FakeConnection, "differences", {})
    monkeypatch.setattr(FakeConnection, "results", {})
    monkeypatch.setattr(FakeConnection, "lost_at", {})
    monkeypatch.setattr(FakeConnection, "stopped_at", None)
    monkeypatch.setattr(FakeConnection, "opened", [])
    return FakeConnection


@pytest.fixture
def said():
    return []


@pytest.fixture
def connections(tmp_path, said, prepared, build_plan) -> Callable[..., HostConnections]:
    """Builds the connections of a run with a config, whose plan may be changed."""
    (tmp_path / "config.toml").write_text("[data]\n", encoding="utf-8")

    def build(**changes: Any) -> HostConnections:
        plan = build_plan(**{"prepared": prepared, "max_workers": 16} | changes)
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
        assert re.match(rf"({host.name} cannot connect to \w|\w cannot connect to {host.name}) \(10", problem)


def test_every_host_listens_at_as_many_ports_of_the_range_as_the_run_will_use(fake_hosts, call):
    ready, _ = call("a", "b", ports=range(4711, 4721))
    requests = [each for host in ready for each in host.connection.received if each["do"] == "listen"]
    assert [(request["ports"], request["num_ports"]) for request in requests] == [([4711, 4720], 5)] * 2
    assert requests[0]["secret"] != requests[1]["secret"]


def test_a_range_that_is_too_small_for_a_host_is_refused(fake_hosts, connections):
    hosts = [Host("a", 1), Host("b", 3)]
    with connections(ports=range(4711, 4723)) as opened, pytest.raises(UsageError) as raised:
        opened.call(hosts)
    assert str(raised.value) == (
        "cluster.port (4711-4722) has 12 ports, but 3 workers on b need 13: 4, and 3 for each worker."
    )
    with connections(ports=range(4711, 4724)) as opened:
        assert len(opened.call(hosts)[0]) == 2


def test_more_workers_than_virtual_workers_are_refused(fake_hosts, call):
    with pytest.raises(UsageError, match="6 workers cannot share 5 virtual workers"):
        call("a", "b", "c", max_workers=5)


def test_a_single_host_needs_no_range(fake_hosts, connections):
    with connections(ports=range(4711, 4712)) as opened:
        assert len(opened.call([Host("a", 4)])[0]) == 1


def test_a_link_that_loses_packets_is_mentioned(fake_hosts, call, said):
    fake_hosts.links = all_links() - {("a", "b")}
    fake_hosts.results[("a", "b")] = LinkResult("passed", 1, ("10.0.0.98",), num_segments=100, num_retransmitted=20)
    ready, problems = call("a", "b")
    assert (len(ready), problems) == (2, {})
    assert said == [
        "About 20% of the packets from a to b are lost and sent again, which slows every step down: "
        "check cables and switch."
    ]


def test_the_cause_of_a_broken_link_is_named_with_the_range(fake_hosts, call):
    fake_hosts.links = all_links() - {("a", "b")}
    ready, problems = call("a", "b", ports=range(4711, 4721))
    assert [host.name for host in ready] == ["a"]
    assert problems[Host("b", 2)] == (
        "a cannot connect to b (10.0.0.98; port 4711): no answer. b reaches a, so the likely cause is a firewall on b "
        "that blocks incoming connections: open the TCP ports 4711-4720 (cluster.port) there for a."
    )


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


@pytest.mark.parametrize("request_name", ["facts", "claim", "listen", "reach", "get_ready"])
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


@pytest.fixture
def sent(monkeypatch) -> list[tuple[str, Path]]:
    """Notes host and folder of everything that would be copied."""
    found: list[tuple[str, Path]] = []

    def note(connection: FakeConnection, folder: Path, *_: object) -> bool:
        connection.received.append({"do": "copy"})
        found.append((connection.host.name, folder))
        return True

    monkeypatch.setattr(host_connections, "send_folder", note)
    return found


def test_missing_data_is_sent_only_on_request(fake_hosts, call, said, sent, prepared):
    fake_hosts.differences["b"] = {"data": None}
    _, problems = call("a", "b")
    assert "--send-data" in problems[Host("b", 2)]
    _, problems = call("a", "b", is_data_sent=True)
    assert problems == {}
    assert sent == [("b", prepared)]
    assert said == [f"Copying {prepared} to b."]


def test_everything_is_checked_before_anything_is_copied(fake_hosts, call, sent):
    fake_hosts.differences["b"] = {"data": None, "shares_run_folder": False}
    ready, _ = call("a", "b", is_data_sent=True)
    assert ready[1].connection.requests == ["facts", "claim", "listen", "reach", "copy", "write", "get_ready"]
    fake_hosts.links = set()
    _, problems = call("a", "b", is_data_sent=True)
    assert list(problems) == [Host("b", 2)]
    assert len(sent) == 1


def test_hosts_without_our_checkpoint_get_it(fake_hosts, call, sent, said, tmp_path):
    """They are others than those that trained before, and share no folder with us."""
    apart = {"shares_run_folder": False, "config": None}
    fake_hosts.differences = {"a": apart | {"newest_step": None}, "b": apart | {"newest_step": 7}}
    checkpoint = make_checkpoint(RunFolder(tmp_path), 14)
    call("a", "b")
    assert sent == [("a", checkpoint)]
    assert said == ["Copying the checkpoint of step 14 to a."]
    fake_hosts.differences["b"] = apart | {"newest_step": 14}
    call("a", "b")
    assert len(sent) == 1


def test_hosts_without_our_folder_get_the_weights_to_start_from_once(fake_hosts, call, sent, said, tmp_path):
    apart = {"shares_run_folder": False, "config": None, "newest_step": None}
    fake_hosts.differences = {"a": apart, "b": apart}
    (tmp_path / START_FOLDER).mkdir()
    call("a", "b")
    assert sent == [("a", tmp_path / START_FOLDER)]
    assert said == ["Copying the weights to start from to a."]


def test_a_host_that_returns_to_a_run_that_has_trained_needs_no_weights_to_start_from(fake_hosts, call, sent, tmp_path):
    """It may have them already, and was then refused for ever."""
    fake_hosts.differences["a"] = {"shares_run_folder": False, "config": None, "newest_step": 0}
    (tmp_path / START_FOLDER).mkdir()
    assert call("a")[1] == {}
    assert sent == []


def test_data_that_is_incomplete_on_a_host_is_not_replaced(fake_hosts, call, monkeypatch, prepared):
    """Somebody else may have put something there."""
    fake_hosts.differences["b"] = {"data": None}
    monkeypatch.setattr(fake_hosts, "has_folder", True)
    ready, problems = call("a", "b", is_data_sent=True)
    assert [each.name for each in ready] == ["a"]
    assert f"b has a folder {prepared} that is no complete prepared corpus: remove it" in problems[Host("b", 2)]


PROGRAMS = {
    "no rsync": (
        """echo "sh: 1: rsync: not found" >&2; echo "rsync: connection unexpectedly closed (0 bytes)" >&2
        echo "rsync error: error in rsync protocol data stream (code 12) at io.c(285)" >&2; exit 12""",
        'while [ $# -gt 1 ]; do [ -f "$1" ] && cp "$1" "${TARGET}"; shift; done',
    ),
    "full disk": (
        """echo "Welcome to b" >&2; echo 'rsync: [receiver] write failed on "x": No space left on device (28)' >&2
        echo "rsync error: error in file IO (code 11) at receiver.c(380)" >&2
        echo "rsync: [sender] write error: Broken pipe (32)" >&2; exit 11""",
        "exit 1",
    ),
    "unknown key": (
        """echo "Welcome to b" >&2; echo "Host key verification failed." >&2
        echo "rsync: connection unexpectedly closed (0 bytes received so far) [sender]" >&2
        echo "rsync error: unexplained error (code 255) at io.c(231)" >&2; exit 255""",
        "exit 1",
    ),
}
"""What rsync and scp do on this machine, by case."""


@pytest.fixture
def copying(monkeypatch, tmp_path) -> Callable[[str], Path]:
    """Copies a folder with a file to b, while rsync and scp do as a case says; returns what b has then."""

    def copy(case: str) -> Path:
        folder, target = tmp_path / "my corpus", tmp_path / "target"
        for each in (folder, target, tmp_path / "bin"):
            each.mkdir()
        (folder / "train.en").touch()
        for name, script in zip(("rsync", "scp"), PROGRAMS[case], strict=True):
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        monkeypatch.setenv("TARGET", str(target))
        assert send_folder(FakeConnection(Host("b", 1)), folder, None)
        return target

    return copy


def test_a_host_without_rsync_gets_its_data_by_scp(copying):
    assert [path.name for path in copying("no rsync").iterdir()] == ["train.en"]


@pytest.mark.parametrize(
    ("case", "words"),
    [("full disk", "No space left on device"), ("unknown key", "to b: Host key verification failed.")],
)
def test_a_copy_that_fails_is_reported_with_its_cause(copying, case, words):
    with pytest.raises(HostError) as failed:
        copying(case)
    assert words in str(failed.value)
    assert len(str(failed.value).splitlines()) == 1


def test_hosts_that_share_our_folder_need_no_checkpoint(fake_hosts, call, sent, tmp_path):
    make_checkpoint(RunFolder(tmp_path), 14)
    (tmp_path / START_FOLDER).mkdir()
    call("a", "b")
    assert sent == []


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


# Claims, stops and the end of connections


def test_every_other_host_claims_its_folder_for_this_launcher(fake_hosts, connections, tmp_path):
    fake_hosts.differences["b"] = {"shares_run_folder": False, "config": None}
    fake_hosts.links |= {pair for name in "ab" for pair in ((name, "localhost"), ("localhost", name))}
    with connections() as opened:
        ready, _ = opened.call([Host("a", 1), Host("b", 1), Host("localhost", 1)])
    claims = [[each for each in host.connection.received if each["do"] == "claim"] for host in ready]
    assert [len(each) for each in claims] == [1, 1, 0]  # here the launcher itself has the lock
    assert [each["is_shared"] for (each,) in claims[:2]] == [True, False]
    for (each,) in claims[:2]:
        assert (each["run"], each["seconds"]) == (str(tmp_path), 15.0)
        assert each["holder"] == f"launched from {socket.gethostname()}"


@pytest.mark.parametrize("request_name", ["facts", "claim", "listen", "reach", "write", "get_ready"])
def test_a_stop_ends_the_checks_wherever_they_are(fake_hosts, call, prepared, build_plan, request_name):
    fake_hosts.stopped_at = request_name
    fake_hosts.differences["b"] = {"shares_run_folder": False, "config": None}
    connections = HostConnections(build_plan(prepared=prepared), lambda *_: None, print, is_stopping=lambda: True)
    with connections as opened, pytest.raises(StopRequestedError):
        opened.call([Host("a", 2), Host("b", 2)])
    assert all(connection.is_closed for connection in fake_hosts.opened)


@pytest.mark.parametrize("request_name", ["make_folder", "rename_folder"])
def test_a_stop_ends_what_a_host_is_asked_about_a_copy(fake_hosts, monkeypatch, tmp_path, request_name):
    fake_hosts.stopped_at = request_name
    monkeypatch.setattr(host_connections, "_run_until_stopped", lambda *_: (0, ""))
    with pytest.raises(StopRequestedError):
        send_folder(fake_hosts(Host("b", 1)), tmp_path, None, lambda: True)


def test_a_stop_ends_a_copy(monkeypatch):
    begin = time.monotonic()
    with pytest.raises(StopRequestedError):
        host_connections._run_until_stopped(["sleep", "60"], lambda: time.monotonic() - begin > 0.1)
    assert time.monotonic() - begin < SECONDS
    assert host_connections._run_until_stopped(["sh", "-c", "echo no >&2; exit 3"], lambda: False) == (3, "no\n")


def test_what_was_made_is_undone_on_every_host_and_one_that_does_not_answer_is_dropped(fake_hosts, connections):
    with connections() as opened:
        opened.call([Host("a", 1), Host("b", 1)])
        fake_hosts.lost_at["a"] = "undo"
        opened.undo()
        assert [connection.requests[-1] for connection in fake_hosts.opened] == ["undo", "undo"]
        assert [connection.is_closed for connection in fake_hosts.opened] == [True, False]


def test_a_dropped_host_may_work_until_it_misses_its_launcher(fake_hosts, connections, monkeypatch):
    host = Host("a", 1)
    with connections(host_timeout=15.0) as opened:
        (ready,), _ = opened.call([host])
        assert opened.seconds_until_over(host) == 0.0
        ready.connection.last_heard = time.monotonic() - 5
        opened.drop(host)
        assert ready.connection.is_closed
        assert 8 < opened.seconds_until_over(host) <= 10
        assert opened.seconds_until_over(Host("b", 1)) == 0.0


def test_a_connection_can_be_given_to_another_owner(fake_hosts, connections):
    host = Host("a", 1)
    with connections() as first, connections() as second:
        (ready,), _ = first.call([host])
        connection = first.release(host)
        assert connection is ready.connection
        assert first.release(host) is None
        second.adopt(connection)
        assert not connection.is_closed
        (again,), _ = second.call([host])
        assert again.connection is connection
    assert connection.is_closed


def test_an_adopted_connection_replaces_one_that_has_ended(fake_hosts, connections):
    host = Host("a", 1)
    with connections() as first, connections() as second:
        second.call([host])
        first.call([host])
        old, new = fake_hosts.opened
        second.adopt(first.release(host))
        assert (old.is_closed, new.is_closed) == (True, False)


@pytest.mark.usefixtures("fake_ssh")
def test_real_programs_over_ssh_find_each_other_and_an_unreachable_host_is_named(connections):
    with connections() as opened:
        ready, problems = opened.call([Host("one"), Host("unreachable"), Host("localhost", 1)])
    assert [host.name for host in ready] == ["one", "localhost"], problems
    assert all(host.shares_run_folder and host.interface for host in ready)
    assert [host.label for host in ready] == ["one", socket.gethostname()]
    assert list(problems) == [Host("unreachable")]
    assert "no route to host" in problems[Host("unreachable")]


# Lost hosts

A, B = Host("a.example.org", 2), Host("b.example.org", 2)


class Search:
    """Stands in for connecting to lost hosts: knows which can be used and which were tried."""

    def __init__(self) -> None:
        self.usable: set[Host] = set()
        self.tried: list[Host] = []
        self.adopted: list[Host] = []
        self._changed = threading.Condition()

    def try_host(self, host: Host) -> FakeConnection | None:
        with self._changed:
            self.tried.append(host)
            self._changed.notify_all()
        return FakeConnection(host) if host in self.usable else None

    def adopt(self, connection: FakeConnection) -> None:
        """Stands in for that of the connections of the run."""
        self.adopted.append(connection.host)

    def wait_for_try(self, host: Host) -> None:
        """Waits until a host is tried again."""
        with self._changed:
            num_tries = self.tried.count(host)
            assert self._changed.wait_for(lambda: self.tried.count(host) > num_tries, timeout=SECONDS)


@pytest.fixture
def search(monkeypatch):
    search = Search()
    monkeypatch.setattr(LostHosts, "_try", lambda _self, host: search.try_host(host))
    monkeypatch.setattr(host_connections, "LOOK_SECONDS", 0.005)
    monkeypatch.setattr(host_connections, "FAILED_RETURN_SECONDS", (0.0, 0.0, 0.2, 0.4))
    return search


@pytest.fixture
def lost(search, build_plan):
    lost = LostHosts(build_plan(), search)
    yield lost
    lost.close()


def wait_until_back(lost: LostHosts) -> None:
    end = time.monotonic() + SECONDS
    while not lost.is_any_back:
        assert time.monotonic() < end, "no host came back"
        time.sleep(0.002)


def seconds_until_back(lost: LostHosts, host: Host) -> float:
    """Loses a host and takes it back when it has returned; returns the time that took."""
    begin = time.monotonic()
    lost.add(host)
    wait_until_back(lost)
    assert lost.take_back() == [host]
    return time.monotonic() - begin


def test_a_lost_host_is_missing_until_it_can_be_used_again(lost, search):
    lost.add(A)
    search.wait_for_try(A)
    search.wait_for_try(A)  # the result of the first is known now
    assert A in lost
    assert not lost.is_any_back
    assert lost.take_back() == []
    assert A in lost
    search.usable.add(A)
    wait_until_back(lost)
    assert A in lost  # until it is taken back
    assert search.adopted == [A]  # ready for the next attempt
    assert lost.take_back() == [A]
    assert A not in lost
    assert not lost.is_any_back


def test_the_return_of_one_host_does_not_bring_back_another(lost, search):
    for host in (A, B):
        lost.add(host)
    search.usable.add(B)
    wait_until_back(lost)
    assert lost.take_back() == [B]
    assert A in lost
    assert B not in lost


def test_a_host_that_is_switched_off_does_not_delay_another(lost, search, monkeypatch):
    """A look at it takes seconds, until its time is up."""
    is_over = threading.Event()

    def look(_self: LostHosts, host: Host) -> FakeConnection | None:
        if host == A:
            is_over.wait(SECONDS)
            return None
        return FakeConnection(host)

    monkeypatch.setattr(LostHosts, "_try", look)
    try:
        lost.add(A)
        assert seconds_until_back(lost, B) < SECONDS / 2
    finally:
        is_over.set()


def test_a_host_that_is_back_is_not_tried_again(lost, search):
    search.usable.add(B)
    for host in (A, B):
        lost.add(host)
    wait_until_back(lost)
    for _ in range(3):
        search.wait_for_try(A)
    assert search.tried.count(B) == 1


def test_after_every_failed_return_a_host_is_left_out_for_longer(lost, search):
    search.usable.add(A)
    pauses = host_connections.FAILED_RETURN_SECONDS
    for pause in (*pauses, pauses[-1]):
        assert pause <= seconds_until_back(lost, A) < SECONDS


def test_a_host_that_stayed_long_after_its_return_is_looked_for_at_once(lost, search, monkeypatch):
    monkeypatch.setattr(host_connections, "SETTLED_SECONDS", 0.0)
    monkeypatch.setattr(host_connections, "FAILED_RETURN_SECONDS", (0.0, 0.0, SECONDS * 10))
    search.usable.add(A)
    for _ in range(4):
        assert seconds_until_back(lost, A) < SECONDS


def test_no_host_is_tried_after_the_end(search, build_plan):
    before = threading.active_count()
    lost = LostHosts(build_plan(), search)
    lost.add(A)
    search.wait_for_try(A)
    lost.close()
    assert threading.active_count() <= before
    num_tries = len(search.tried)
    time.sleep(0.05)
    assert len(search.tried) == num_tries


def test_a_fault_of_this_machine_ends_neither_the_run_nor_the_search_for_a_host(
    fake_hosts, connections, call, prepared, build_plan, monkeypatch
):
    def fail(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle", "/shared/run")

    monkeypatch.setattr(host_connections, "gather_facts", fail)
    reason = "the network file system no longer knows the file"
    assert call("a") == ([], {Host("a", 2): f"a could not be checked: {reason}."})
    with connections() as opened:
        assert LostHosts(build_plan(prepared=prepared), opened)._try(Host("a", 2)) is None


@pytest.mark.parametrize("is_usable", [True, False])
def test_a_look_checks_a_host_without_output_and_keeps_its_connection(
    fake_hosts, connections, prepared, build_plan, is_usable
):
    fake_hosts.differences["a"] = {} if is_usable else {"torch": "1.0"}
    plan, host = build_plan(prepared=prepared), Host("a", 2)
    with connections() as opened:
        lost = LostHosts(plan, opened)
        connection = lost._try(host)
        assert (connection is not None) == is_usable
        assert [each.is_closed for each in fake_hosts.opened] == [not is_usable]
        if connection is not None:
            assert connection.requests == ["facts", "claim", "get_ready"]  # torch is imported in the background
            opened.adopt(connection)
            (ready,), _ = opened.call([host])
            assert ready.connection is connection
