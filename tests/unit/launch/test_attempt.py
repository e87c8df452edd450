"""One attempt over several hosts, which are stood in for: when it ends, whose fault that was, and who is lost."""

import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from dragoman.cluster.failure import Failure
from dragoman.cluster.heartbeat import Beat
from dragoman.launch import attempt as attempt_module
from dragoman.launch.attempt import Attempt, Outcome, Wish, threads_per_worker, worker_environment
from dragoman.launch.call_hosts import ReadyHost
from dragoman.launch.hosts import Host
from dragoman.run.folder import RunFolder

HANG_TIMEOUT, HOST_TIMEOUT = 10.0, 2.0
ECHO = "Worker 0 failed: RuntimeError: Connection closed by peer"


@dataclass
class FakeConnection:
    """A host that says what a test wrote down, and hears what it is told."""

    host: Host
    seconds_silent: float = 0.0
    is_program_over: bool = False
    heard: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What it says when it is told to do something."""
    _says: deque[dict[str, Any]] = field(default_factory=deque)

    def send(self, message: dict[str, Any]) -> None:
        self.heard.append(json.loads(json.dumps(message)))
        if answer := self.answers.get(message["do"]):
            self.say(answer)

    def say(self, message: dict[str, Any]) -> None:
        self._says.append(message)

    def receive(self) -> dict[str, Any] | None:
        return self._says.popleft() if self._says else None

    @property
    def orders(self) -> list[str]:
        return [message["do"] for message in self.heard]

    @property
    def spec(self) -> dict[str, Any]:
        return next(message["spec"] for message in self.heard if message["do"] == "start")


def ready(name: str, num_workers: int = 2, num_cores: int = 8) -> ReadyHost:
    connection = FakeConnection(Host(name, num_workers))
    return ReadyHost(connection, num_workers, num_cores, f"10.0.0.{ord(name[0]) - 96}", "eth0", shares_run_folder=True)


def beat_of(rank: int, **changes: Any) -> Beat:
    return Beat(**{"rank": rank, "pid": 100 + rank, "step": 7, "doing": "computing", "is_waiting": False} | changes)


def beats(*of_ranks: Beat) -> dict[str, Any]:
    return {"beats": [beat.to_json() for beat in of_ranks]}


def ended(*failures: Failure, error: str | None = None, doing: str = "steps") -> dict[str, Any]:
    last = beat_of(0, step=50, doing=doing, seconds_silent=0.0)
    return {"ended": {"failures": [f.to_json() for f in failures], "last_beat": last.to_json(), "error": error}}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(attempt_module, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(attempt_module, "END_SECONDS", 0.1)
    monkeypatch.setattr(attempt_module, "REPEAT_SECONDS", 0.01)


@pytest.fixture
def hosts():
    """Two hosts that end their workers when they are told to."""
    found = [ready("a", 2), ready("b", 3)]
    for host in found:
        host.connection.answers["kill"] = ended()
    return found


@pytest.fixture
def follow(tmp_path):
    """Follows an attempt to its end; `wish` is what is wanted all the time."""

    def follow(hosts: list[ReadyHost], wish: Wish = Wish.GO_ON, **environment: str) -> Outcome:
        timeouts = HANG_TIMEOUT, HOST_TIMEOUT
        attempt = Attempt(RunFolder(tmp_path), "trainer", hosts, timeouts, environment)
        return attempt.follow(4711, lambda: wish)

    return follow


def test_every_host_learns_its_ranks_and_where_to_meet(hosts, follow, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for host in hosts:
        host.connection.say(ended())
    follow(hosts, COLOUR="green")
    first, second = (host.connection.spec for host in hosts)
    assert (first["node_rank"], first["first_rank"], first["num_workers"]) == (0, 0, 2)
    assert (second["node_rank"], second["first_rank"], second["num_workers"]) == (1, 2, 3)
    for spec in (first, second):
        assert (spec["num_nodes"], spec["master_address"], spec["master_port"]) == (2, "10.0.0.1", 4711)
        assert (spec["module"], spec["arguments"]) == ("trainer", [str(tmp_path)])
        assert spec["environment"]["COLOUR"] == "green"
    assert first["attempt_id"] == second["attempt_id"]
    assert [spec["environment"]["OMP_NUM_THREADS"] for spec in (first, second)] == ["4", "2"]


def test_it_ends_well_when_all_have_with_the_last_words_of_the_first_rank(hosts, follow):
    for host in hosts:
        host.connection.say(ended(doing="time"))
    assert follow(hosts) == Outcome(step=50, reason="time")
    assert all("kill" not in host.connection.orders for host in hosts)


@pytest.mark.parametrize(
    ("wish", "order"), [(Wish.STOP, "stop"), (Wish.PAUSE, "pause"), (Wish.END, "kill")], ids=lambda value: str(value)
)
def test_a_wish_is_passed_on_to_those_that_still_work_again_and_again(hosts, follow, monkeypatch, wish, order):
    """Workers that are still starting miss the first one."""
    monkeypatch.setattr(attempt_module, "END_SECONDS", 5.0)
    first, second = (host.connection for host in hosts)
    first.say(ended())
    second.answers = {}
    told = second.send

    def send(message: dict[str, Any]) -> None:
        told(message)
        if second.orders.count(order) == 3:
            second.say(ended(doing="signal"))

    monkeypatch.setattr(second, "send", send)
    assert follow(hosts, wish).cause is None
    assert second.orders == ["start", order, order, order]
    assert order not in first.orders[2:]


def test_the_cause_on_one_host_is_told_before_its_echo_on_another(hosts, follow):
    first, second = (host.connection for host in hosts)
    first.say(ended(Failure(0, 1, time=1.0, message=ECHO)))
    second.say(ended(Failure(3, -9, time=2.0)))
    outcome = follow(hosts)
    assert outcome.cause.startswith("Worker 3 on b was killed (SIGKILL)")
    assert not outcome.is_final
    assert outcome.lost == ()


def test_a_step_made_since_the_last_beat_counts(follow):
    """Otherwise an attempt that got further would be counted as one in vain."""
    host = ready("a")
    host.connection.say(beats(beat_of(0, step=7, seconds_silent=0.1), beat_of(1, step=7, seconds_silent=0.1)))
    host.connection.say(ended(Failure(1, -9, time=2.0)))
    assert follow([host]).step == 50


def test_plain_words_of_a_worker_are_final_and_tell_the_host(hosts, follow):
    hosts[0].connection.say(ended(Failure(0, -9, 1.0)))
    hosts[1].connection.say(ended(Failure(2, 1, 2.0, message="The disk is full.", is_plain=True)))
    outcome = follow(hosts)
    assert (outcome.cause, outcome.is_final) == ("The disk is full. (on b)", True)


def test_on_one_machine_plain_words_need_no_host(follow):
    host = ready("a")
    host.connection.say(ended(Failure(0, 1, 1.0, message="The disk is full.", is_plain=True)))
    assert follow([host]).cause == "The disk is full."


def test_workers_that_did_not_find_each_other_are_tried_again(hosts, follow):
    for host in hosts:
        host.connection.say(ended(error="DistNetworkError: timed out"))
    outcome = follow(hosts)
    assert outcome.cause == "a: the workers did not find each other (DistNetworkError: timed out)."
    assert not outcome.is_final


def test_a_host_that_closed_is_lost_and_the_others_end(hosts, follow):
    first, second = (host.connection for host in hosts)
    first.say(beats(beat_of(0, step=60, seconds_silent=0.1), beat_of(1, step=59, seconds_silent=0.1)))
    second.say({"closed": "ssh failed."})
    second.is_program_over = True
    outcome = follow(hosts)
    assert outcome == Outcome("b cannot be reached any more.", lost=(second.host,), step=60)
    assert "kill" in first.orders
    assert "kill" not in second.orders


def test_a_host_that_keeps_silent_is_lost_and_nothing_begins_before_it_has_ended_its_workers(hosts, follow):
    """It ends them when it has not heard of us for as long as we have not heard of it."""
    second = hosts[1].connection
    second.seconds_silent = HOST_TIMEOUT + 0.01
    assert follow(hosts).lost == (second.host,)
    begin = time.monotonic()
    second.seconds_silent = 0.0
    second.say({"closed": "ssh failed."})  # the way is cut; the program behind it may live
    assert follow(hosts).lost == (second.host,)
    assert HOST_TIMEOUT <= time.monotonic() - begin < HOST_TIMEOUT + 5


def test_a_host_that_cannot_end_its_workers_is_lost_too(hosts, follow):
    first, second = (host.connection for host in hosts)
    first.answers, first.is_program_over = {}, True
    second.say(ended(Failure(2, -9, 1.0)))
    outcome = follow(hosts)
    assert outcome.cause.startswith("Worker 2 on b")
    assert outcome.lost == (first.host,)


def test_a_hang_is_told_with_the_stacks_of_all_in_a_file(hosts, follow, tmp_path):
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


def test_a_report_that_cannot_be_saved_does_not_keep_a_hang_from_ending(hosts, follow, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(attempt_module, "save_hang_report", refuse)
    hosts[0].connection.say(beats(beat_of(0, seconds_silent=20.0), beat_of(1, seconds_silent=0.1)))
    hosts[1].connection.say(beats(*(beat_of(rank, seconds_silent=0.1) for rank in (2, 3, 4))))
    assert follow(hosts).cause.endswith("Its stack could not be saved: No space left on device.")


def test_nobody_hangs_before_every_host_has_told_what_its_workers_do(hosts, follow, tmp_path):
    """One that waits for a worker on a host that only begins is not to blame."""
    first, second = (host.connection for host in hosts)
    first.say(beats(beat_of(0, is_waiting=True, seconds_silent=20.0), beat_of(1, is_waiting=True, seconds_silent=20.0)))
    second.say(beats())
    for connection in (first, second):
        connection.answers["stop"] = ended(doing="signal")
    assert follow(hosts, Wish.STOP).cause is None
    assert list(tmp_path.glob("hang-*")) == []


@pytest.mark.parametrize(
    ("num_cores", "num_workers", "told", "threads"),
    [(8, 2, None, 4), (8, 3, None, 2), (2, 4, None, 1), (8, 2, "1", 1), (8, 2, "16", 16), (8, 2, "auto", 4)],
)
def test_cores_are_divided_among_workers_unless_a_person_said_otherwise(
    monkeypatch, num_cores, num_workers, told, threads
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    host = ready("a", num_workers, num_cores)
    assert threads_per_worker(host) == threads
    assert worker_environment(host)["OMP_NUM_THREADS"] == (told or str(threads))


def test_workers_use_the_interface_that_was_found_unless_a_person_chose_another(monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    assert worker_environment(ready("a"))["GLOO_SOCKET_IFNAME"] == "eth0"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    environment = worker_environment(ready("a"))
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("eth0", "ib0")
