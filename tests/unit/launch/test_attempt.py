"""One attempt over several stand-in hosts: when it ends, which rank is to blame, and which hosts are lost."""

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cluster.environment import ADDRESS_VARIABLE, PORTS_VARIABLE, threads_per_worker
from dragoman.cluster.failure import Failure
from dragoman.cluster.heartbeat import Beat, WorkerEnd
from dragoman.launch import attempt as attempt_module
from dragoman.launch.attempt import (
    Attempt,
    Order,
    Outcome,
    describe_hang,
    find_hang,
    save_hang_report,
    worker_environment,
)
from dragoman.launch.connection import HostError, StopRequestedError, WorkersEnd
from dragoman.launch.host_connections import ReadyHost
from dragoman.launch.hosts import Host

HANG_TIMEOUT, HOST_TIMEOUT = 10.0, 2.0
PORTS = range(29500, 29516)
LOST_PEER = "Worker 0 failed: RuntimeError: Connection closed by peer"


# Hangs

WORKING = Beat(0, 100, 7, "computing a gradient", is_waiting=False, seconds_silent=0.1, process_state="R")
WAITING = Beat(1, 101, 7, "waiting for the gradients", is_waiting=True, seconds_silent=0.1, process_state="S")

any_beat = st.builds(
    Beat,
    rank=st.integers(0, 99),
    pid=st.integers(1, 2**22),
    step=st.integers(0, 10**6),
    doing=st.text(max_size=20),
    is_waiting=st.booleans(),
    seconds_silent=st.floats(0, 100),
    process_state=st.sampled_from("RSTDt?"),
)
lists_of_beats = st.lists(any_beat, max_size=6, unique_by=lambda beat: beat.rank)


def silent(beat: Beat, **changes: object) -> Beat:
    return replace(beat, seconds_silent=HANG_TIMEOUT + 1, **changes)


def test_nobody_hangs_while_all_send_heartbeats():
    assert find_hang([WORKING, WAITING], HANG_TIMEOUT) is None
    assert find_hang([], HANG_TIMEOUT) is None


def test_a_working_rank_that_is_silent_for_too_long_hangs():
    hanging = silent(WORKING)
    assert find_hang([hanging, silent(WAITING)], HANG_TIMEOUT) == hanging


def test_a_rank_may_wait_as_long_as_another_works():
    """Rank 0 may evaluate the dev set for an hour."""
    assert find_hang([WORKING, silent(WAITING)], HANG_TIMEOUT) is None
    assert find_hang([WORKING, silent(WAITING, process_state="T")], HANG_TIMEOUT) is None


@pytest.mark.parametrize("state", ["T", "t", "D"])
def test_if_all_wait_the_stopped_rank_is_to_blame(state):
    stopped = silent(WAITING, rank=2, process_state=state)
    longest = replace(WAITING, seconds_silent=HANG_TIMEOUT + 50)
    assert find_hang([longest, stopped], HANG_TIMEOUT) == stopped


def test_if_all_wait_and_none_is_stopped_the_longest_is_named():
    longest = replace(WAITING, rank=2, seconds_silent=HANG_TIMEOUT + 50)
    assert find_hang([silent(WAITING), longest], HANG_TIMEOUT) == longest


def test_a_rank_that_has_ended_does_not_hang():
    """The other one may still be saving."""
    assert find_hang([WORKING, silent(WORKING, rank=2, process_state="Z")], HANG_TIMEOUT) is None


def test_a_stopped_rank_is_blamed_before_one_that_works_long():
    stopped = silent(WORKING, rank=2, process_state="T")
    busy = replace(WORKING, seconds_silent=HANG_TIMEOUT + 50)
    assert find_hang([busy, stopped], HANG_TIMEOUT) == stopped


@given(lists_of_beats)
def test_a_hanging_rank_was_silent_for_too_long_and_held_up_others(found):
    hanging = find_hang(found, HANG_TIMEOUT)
    if hanging is None:
        assert any(beat.seconds_silent <= HANG_TIMEOUT for beat in found) or not found
        assert all(beat.is_waiting for beat in found if beat.seconds_silent > HANG_TIMEOUT)
    else:
        assert hanging in found
        assert hanging.seconds_silent > HANG_TIMEOUT
        assert not hanging.is_waiting or all(beat.is_waiting and beat.seconds_silent > HANG_TIMEOUT for beat in found)


@given(lists_of_beats, st.floats(0.1, 50))
def test_a_longer_timeout_blames_nobody_new(found, more):
    if find_hang(found, HANG_TIMEOUT) is None:
        assert find_hang(found, HANG_TIMEOUT + more) is None


def test_the_message_about_a_hang():
    stopped = silent(WORKING, process_state="T")
    assert describe_hang(stopped, "b") == (
        "Rank 0 on b hangs at step 7: computing a gradient for 11 s; process 100 is stopped."
    )
    assert describe_hang(silent(WORKING), "b").endswith("computing a gradient for 11 s.")
    assert "the network between them may be broken" in describe_hang(silent(WAITING), "b")
    assert "is stopped" in describe_hang(silent(WAITING, process_state="T"), "b")


def test_the_hang_report_lists_every_rank_and_the_hanging_one_first(tmp_path):
    found = [silent(WAITING, rank=rank, pid=200 + rank) for rank in (0, 1)] + [silent(WORKING, rank=2)]
    stacks = {2: 'File "attention.py", line 12 in forward', 1: 'File "world.py", line 3 in wait'}
    path = save_hang_report(tmp_path, "Rank 2 hangs.", found, {0: "a", 1: "a", 2: "b"}, stacks, hanging=2)
    assert path.parent == tmp_path
    assert path.name.startswith("hang-")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("Rank 2 hangs.\n")
    places = [text.index(f"== rank {rank} on {host}") for rank, host in ((2, "b"), (0, "a"), (1, "a"))]
    assert places == sorted(places)
    assert text.index("attention.py") < places[1]
    assert "process 100 (state R), step 7: computing a gradient, silent for 11.0 s" in text
    assert "No stack could be read." in text[places[1] : places[2]]
    assert "world.py" in text[places[2] :]


# Attempts


@dataclass
class FakeConnection:
    """A host that sends the messages of a test and records those it gets."""

    host: Host
    seconds_silent: float = 0.0
    received: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The message it sends for each order it gets."""
    error: str | None = None
    """Its answer to a question, if it cannot do what it is asked."""
    _messages: deque[dict[str, Any]] = field(default_factory=deque)

    def send(self, message: dict[str, Any]) -> None:
        self.received.append(json.loads(json.dumps(message)))
        if answer := self.answers.get(message["do"]):
            self.say(answer)

    def ask(self, request: dict[str, Any], answer: str, timeout: float = 60.0, **_: object) -> Any:
        self.received.append(json.loads(json.dumps(request)))
        if self.error:
            raise HostError(self.host, f"{self.host.name}: {self.error}")
        return {"store": {"port": 4711}}[answer]

    def say(self, message: dict[str, Any]) -> None:
        self._messages.append(json.loads(json.dumps(message)))

    def receive(self) -> dict[str, Any] | None:
        return self._messages.popleft() if self._messages else None

    @property
    def orders(self) -> list[str]:
        return [message["do"] for message in self.received]

    @property
    def spec(self) -> dict[str, Any]:
        return next(message["spec"] for message in self.received if message["do"] == "start")


def ready(name: str, num_workers: int = 2, num_cores: int = 8) -> ReadyHost:
    connection = FakeConnection(Host(name, num_workers))
    return ReadyHost(connection, num_workers, num_cores, f"10.0.0.{ord(name[0]) - 96}", "eth0", shares_run_folder=True)


def beat_of(rank: int, **changes: Any) -> Beat:
    return Beat(**{"rank": rank, "pid": 100 + rank, "step": 7, "doing": "computing", "is_waiting": False} | changes)


def beats(*of_ranks: Beat) -> dict[str, Any]:
    return {"beats": [asdict(beat) for beat in of_ranks]}


def ended(reason: str = "steps") -> dict[str, Any]:
    return {"ended": WorkersEnd(end=WorkerEnd(reason, step=50), last_step=50).to_json()}


def failed(*failures: Failure, error: str | None = None) -> dict[str, Any]:
    return {"ended": WorkersEnd(failures, last_step=50, error=error).to_json()}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(attempt_module, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(attempt_module, "END_SECONDS", 0.1)
    monkeypatch.setattr(attempt_module, "CAUSE_SECONDS", 0.1)
    monkeypatch.setattr(attempt_module, "REPEAT_SECONDS", 0.01)


@pytest.fixture
def hosts():
    """Two hosts that end their workers on request."""
    found = [ready("a", 2), ready("b", 3)]
    for host in found:
        host.connection.answers["kill"] = ended()
    return found


@pytest.fixture
def follow(build_plan) -> Callable[..., Outcome]:
    """Follows an attempt to its end, with the same order all the time."""

    def follow(hosts: list[ReadyHost], order: Order = Order.CONTINUE, **environment: str) -> Outcome:
        plan = build_plan(module="trainer", hang_timeout=HANG_TIMEOUT, host_timeout=HOST_TIMEOUT, ports=PORTS)
        return Attempt(plan, hosts, environment).follow(lambda: order)

    return follow


def test_the_first_host_opens_the_store_and_every_host_gets_its_ranks(hosts, follow, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for host in hosts:
        host.connection.say(ended())
    follow(hosts, COLOUR="green")
    first, second = (host.connection.spec for host in hosts)
    assert (first["node_rank"], first["first_rank"], first["num_workers"]) == (0, 0, 2)
    assert (second["node_rank"], second["first_rank"], second["num_workers"]) == (1, 2, 3)
    for spec in (first, second):
        assert (spec["num_nodes"], spec["store_address"], spec["store_port"]) == (2, "10.0.0.1", 4711)
        assert (spec["module"], spec["arguments"]) == ("trainer", [str(tmp_path)])
        assert spec["environment"]["COLOUR"] == "green"
    assert first["attempt_id"] == second["attempt_id"]
    opened = hosts[0].connection.received[0]
    assert (opened["do"], opened["address"], opened["ports"]) == ("open_store", "10.0.0.1", [29500, 29515])
    assert opened["secret"] == first["secret"] == second["secret"]
    assert len(opened["secret"]) == 32
    assert hosts[1].connection.orders == ["start"]
    assert [spec["environment"]["OMP_NUM_THREADS"] for spec in (first, second)] == ["4", "2"]


def test_it_ends_well_when_all_have_for_the_reason_of_the_first_host(hosts, follow):
    for host in hosts:
        host.connection.say(ended("time"))
    assert follow(hosts) == Outcome(step=50, reason="time")
    assert all("kill" not in host.connection.orders for host in hosts)


def test_heartbeats_after_the_end_do_not_change_its_reason(hosts, follow):
    for host in hosts:
        host.connection.say(ended("cost"))
    hosts[0].connection.say(beats(beat_of(0, doing="signal", seconds_silent=0.1)))
    assert follow(hosts).reason == "cost"


@pytest.mark.parametrize("order", [Order.STOP, Order.PAUSE, Order.KILL])
def test_an_order_is_repeated_to_hosts_that_still_work(hosts, follow, monkeypatch, order):
    """Workers that are still starting miss the first one."""
    first, second = (host.connection for host in hosts)
    first.say(ended())
    second.answers = {}
    send = second.send

    def send_and_end(message: dict[str, Any]) -> None:
        send(message)
        if second.orders.count(order.value) == 3:
            second.say(ended("signal"))

    monkeypatch.setattr(second, "send", send_and_end)
    assert follow(hosts, order).cause is None
    assert second.orders == ["start", *[order.value] * 3]
    assert order.value not in first.orders[2:]


def test_the_cause_on_one_host_is_reported_before_its_consequence_on_another(hosts, follow):
    first, second = (host.connection for host in hosts)
    first.say(failed(Failure(0, 1, time=1.0, message=LOST_PEER)))
    second.say(failed(Failure(3, -9, time=2.0)))
    outcome = follow(hosts)
    assert outcome.cause.startswith("Worker 3 on b was killed (SIGKILL)")
    assert not outcome.is_final
    assert outcome.gone == ()


def test_a_worker_without_an_end_is_a_failure_that_is_tried_again(hosts, follow):
    hosts[0].connection.say(ended())
    hosts[1].connection.say(failed(Failure(4, 0, time=2.0)))
    assert follow(hosts) == Outcome("Worker 4 on b exited with code 0 before its run had ended.", step=50)


def test_a_step_made_since_the_last_heartbeat_counts(follow):
    """Otherwise an attempt with progress would be counted as one without."""
    host = ready("a")
    host.connection.say(beats(beat_of(0, step=7, seconds_silent=0.1), beat_of(1, step=7, seconds_silent=0.1)))
    host.connection.say(failed(Failure(1, -9, time=2.0)))
    assert follow([host]).step == 50


def test_a_plain_message_of_a_worker_is_final_and_names_the_host(hosts, follow):
    hosts[0].connection.say(failed(Failure(0, -9, 1.0)))
    hosts[1].connection.say(failed(Failure(2, 1, 2.0, message="The disk is full.", is_plain=True)))
    outcome = follow(hosts)
    assert (outcome.cause, outcome.is_final) == ("The disk is full. (on b)", True)


def test_on_one_machine_a_plain_message_needs_no_host(follow):
    host = ready("a")
    host.connection.say(failed(Failure(0, 1, 1.0, message="The disk is full.", is_plain=True)))
    assert follow([host]).cause == "The disk is full."


def test_workers_that_did_not_find_each_other_are_tried_again(hosts, follow):
    for host in hosts:
        host.connection.say(failed(error="DistNetworkError: timed out"))
    outcome = follow(hosts)
    assert outcome.cause == "a: the workers did not find each other (DistNetworkError: timed out)."
    assert not outcome.is_final


def test_a_host_that_closed_is_gone_and_the_others_end(hosts, follow):
    first, second = (host.connection for host in hosts)
    first.say(beats(beat_of(0, step=60, seconds_silent=0.1), beat_of(1, step=59, seconds_silent=0.1)))
    second.say({"closed": "ssh failed."})
    outcome = follow(hosts)
    assert outcome == Outcome("The connection to b ended: ssh failed.", gone=(second.host,), step=60)
    assert outcome.silent == ()  # it may be connected again at once
    assert "kill" in first.orders
    assert "kill" not in second.orders


def test_a_silent_host_is_gone_too(hosts, follow):
    second = hosts[1].connection
    second.seconds_silent = HOST_TIMEOUT + 0.02
    outcome = follow(hosts)
    assert outcome.cause == "b cannot be reached any more."
    assert outcome.gone == outcome.silent == (second.host,)


def test_hosts_that_are_gone_in_different_ways_are_told_apart(hosts, follow):
    first, second = (host.connection for host in hosts)
    first.say({"closed": "its program ended with code 1 (it gave no reason)."})
    second.seconds_silent = HOST_TIMEOUT + 1
    outcome = follow(hosts)
    assert outcome.cause == (
        "The connection to a ended: its program ended with code 1 (it gave no reason). b cannot be reached any more."
    )
    assert (outcome.gone, outcome.silent) == ((first.host, second.host), (second.host,))


def test_a_host_that_cannot_end_its_workers_counts_as_silent(hosts, follow):
    first, second = (host.connection for host in hosts)
    first.answers = {}
    second.say(failed(Failure(2, -9, 1.0)))
    outcome = follow(hosts)
    assert outcome.cause.startswith("Worker 2 on b")
    assert outcome.gone == outcome.silent == (first.host,)


def test_without_a_store_no_worker_is_started_and_the_attempt_ends_at_once(hosts, follow, monkeypatch):
    monkeypatch.setattr(attempt_module, "END_SECONDS", 60.0)
    first, second = (host.connection for host in hosts)
    first.error = "All ports of cluster.port (29500-29515) are in use."
    begin = time.monotonic()
    assert follow(hosts) == Outcome("a: All ports of cluster.port (29500-29515) are in use.", gone=(first.host,))
    assert time.monotonic() - begin < 30
    assert first.orders == ["open_store"]
    assert second.orders == []


def test_a_stop_does_not_wait_for_the_store(hosts, follow, monkeypatch):
    """The first host may still be importing torch."""

    def ask(*_: object, is_stopping: Callable[[], bool], **__: object) -> None:
        assert is_stopping()
        raise StopRequestedError

    monkeypatch.setattr(hosts[0].connection, "ask", ask)
    outcome = follow(hosts, Order.STOP)
    assert outcome.cause == "Stopped before the workers started."
    assert hosts[1].connection.orders == []


# A stop that workers cannot follow


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(attempt_module, "STOP_SECONDS", 0.05)


def is_ended_at_stop(hosts: list[ReadyHost], follow: Callable[..., Outcome], *of_ranks: Beat) -> bool:
    """Whether the workers are ended although they did not end by themselves; otherwise they end later."""
    (host,) = hosts
    host.connection.say(beats(*of_ranks))
    host.connection.answers["kill"] = failed(*(Failure(beat.rank, -9, 1.0) for beat in of_ranks))
    send = host.connection.send

    def send_and_end(message: dict[str, Any]) -> None:
        send(message)
        if host.connection.orders.count("stop") == 30:
            host.connection.say(ended("signal"))

    host.connection.send = send_and_end
    outcome = follow(hosts, Order.STOP)
    if outcome.cause is None:
        return False
    assert outcome == Outcome("The workers did not end by themselves.", step=outcome.step)
    assert host.connection.orders[-1] == "kill"
    return True


STARTING_RANK = beat_of(1, doing="starting", step=0, seconds_silent=3.0)
WAITING_RANK = beat_of(0, is_waiting=True, doing="waiting for the gradients", seconds_silent=3.0)


@pytest.mark.parametrize(
    ("of_ranks", "is_ended"),
    [
        ([], True),
        ([STARTING_RANK], True),
        ([WAITING_RANK, STARTING_RANK], True),
        ([WAITING_RANK, replace(WAITING_RANK, rank=1)], True),
        ([WAITING_RANK, replace(WAITING_RANK, rank=1, seconds_silent=0.01)], False),
        ([WAITING_RANK, beat_of(1, doing="saving", seconds_silent=3.0)], False),
        ([beat_of(0, doing="computing", seconds_silent=3.0)], False),
        ([WAITING_RANK, replace(STARTING_RANK, process_state="Z")], True),
    ],
    ids=[
        "no heartbeat yet",
        "still starting",
        "one still starts",
        "all wait for each other",
        "one goes on",
        "one saves",
        "a long step",
        "the others are dead",
    ],
)
def test_workers_that_are_stuck_when_a_stop_was_asked_are_ended(follow, impatient, of_ranks, is_ended):
    assert is_ended_at_stop([ready("a", len(of_ranks) or 1)], follow, *of_ranks) == is_ended


def test_workers_with_long_steps_get_longer_to_end(build_plan, impatient, monkeypatch):
    """They finish their step, save and end."""
    clock = FakeTime()
    monkeypatch.setattr(attempt_module, "time", clock)
    host = ready("a", 1)
    attempt = Attempt(build_plan(host_timeout=HOST_TIMEOUT), [host], {})
    for step, seconds in ((1, 0.0), (2, 4.0), (3, 1.0)):
        clock.now += seconds
        attempt._take(attempt._hosts[0], beats(beat_of(0, step=step, is_waiting=True, seconds_silent=100.0)))
    attempt._give_order(Order.STOP)
    clock.now += attempt_module.STOP_SECONDS + attempt_module.STOP_STEPS * 4.0 - 0.1
    assert not attempt._is_stuck()
    clock.now += 0.2
    assert attempt._is_stuck()


class FakeTime:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


def test_a_hang_is_reported_with_the_stacks_of_all_ranks_in_a_file(hosts, follow, tmp_path):
    first, second = (host.connection for host in hosts)
    waiting = [beat_of(rank, is_waiting=True, doing="waiting for votes", seconds_silent=20.0) for rank in (0, 1, 3, 4)]
    first.say(beats(*waiting[:2]))
    second.say(beats(beat_of(2, seconds_silent=20.0, process_state="T"), *waiting[2:]))
    first.answers["stacks"] = {"stacks": {"0": "in votes", "1": "in votes"}}
    second.answers["stacks"] = {"stacks": {"2": "in attention", "3": "in votes", "4": "in votes"}}
    outcome = follow(hosts)
    (report,) = tmp_path.glob("hang-*.txt")
    assert outcome.cause.startswith("Rank 2 on b hangs at step 7: computing for 20 s; process 102 is stopped.")
    assert outcome.cause.endswith(f"Its stack is in {report}.")
    assert not outcome.is_final
    text = report.read_text(encoding="utf-8")
    assert text.index("in attention") < text.index("in votes")
    assert [text.count(f"== rank {rank} on") for rank in range(5)] == [1] * 5
    for connection in (first, second):
        assert connection.orders[-2:] == ["stacks", "kill"]


def test_a_hang_ends_even_if_its_report_cannot_be_saved(hosts, follow, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(attempt_module, "save_hang_report", refuse)
    hosts[0].connection.say(beats(beat_of(0, seconds_silent=20.0), beat_of(1, seconds_silent=0.1)))
    hosts[1].connection.say(beats(*(beat_of(rank, seconds_silent=0.1) for rank in (2, 3, 4))))
    assert follow(hosts).cause.endswith("Its stack could not be saved: No space left on device.")


def test_nobody_hangs_before_every_host_has_sent_heartbeats(hosts, follow, tmp_path):
    """A rank that waits for a worker on a host that is still starting is not to blame."""
    first, second = (host.connection for host in hosts)
    first.say(beats(beat_of(0, is_waiting=True, seconds_silent=20.0), beat_of(1, is_waiting=True, seconds_silent=20.0)))
    second.say(beats())
    for connection in (first, second):
        connection.answers["stop"] = ended("signal")
    assert follow(hosts, Order.STOP).cause is None
    assert list(tmp_path.glob("hang-*")) == []


@pytest.mark.parametrize(
    ("num_cores", "num_workers", "variable", "threads"),
    [
        (8, 2, None, 4),
        (8, 3, None, 2),
        (2, 4, None, 1),
        (8, 2, "1", 1),
        (8, 2, "16", 16),
        (8, 2, "auto", 4),
        (8, 2, "0", 1),
    ],
)
def test_cores_are_divided_among_workers_unless_a_person_chose(monkeypatch, num_cores, num_workers, variable, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    host = ready("a", num_workers, num_cores)
    assert threads_per_worker(num_cores, num_workers) == threads
    assert worker_environment(host, None)["OMP_NUM_THREADS"] == (variable or str(threads))


def test_waiting_threads_of_workers_sleep_unless_a_person_chose(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    assert worker_environment(ready("a"), None)["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    environment = worker_environment(ready("a"), None)
    assert environment["GOMP_SPINCOUNT"] == "1000"  # on other hosts too
    assert "OMP_WAIT_POLICY" not in environment


@pytest.fixture
def no_interface(monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", ADDRESS_VARIABLE, PORTS_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def test_workers_use_the_address_and_the_interface_that_were_found(no_interface):
    environment = worker_environment(ready("a"), None)
    assert (environment[ADDRESS_VARIABLE], environment["GLOO_SOCKET_IFNAME"]) == ("10.0.0.1", "eth0")
    assert environment[PORTS_VARIABLE] == ""
    assert worker_environment(ready("a"), PORTS)[PORTS_VARIABLE] == "29500-29515"


def test_workers_use_the_interface_that_a_person_chose(no_interface, monkeypatch):
    """It has another address on every host, so each worker finds that itself."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    environment = worker_environment(ready("a"), None)
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("ib0", "eth0")
    assert environment[ADDRESS_VARIABLE] == ""


def test_an_interface_for_nccl_is_kept(no_interface, monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    environment = worker_environment(ready("a"), None)
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("eth0", "ib0")
