"""The cause of several failures is reported, not its consequences; errors that would recur are not tried again."""

import json
import signal
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cluster.failure import (
    ERROR_FILE_VARIABLE,
    Failure,
    describe_failure,
    first_cause,
    report_failure,
)

# Real messages of gloo, NCCL and torch's store to the peers of a rank that is gone.
LOST_PEER_MESSAGES = [
    "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1024",
    "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited",
    "DistStoreError: wait timeout after 60000ms",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
]
signals = st.sampled_from([-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS])


def failures_of(**fields: st.SearchStrategy[object]) -> st.SearchStrategy[Failure]:
    return st.builds(Failure, rank=st.integers(0, 99), time=st.floats(0, 1e9), **fields)


plain = failures_of(exit_code=st.just(1), message=st.text(), is_plain=st.just(True))
killed = failures_of(exit_code=st.one_of(signals, st.integers(1, 255)))
exceptions = failures_of(exit_code=st.just(1), message=st.just("Worker 1 failed: ValueError: shapes differ"))
consequences = st.one_of(
    failures_of(exit_code=st.just(1), message=st.sampled_from(LOST_PEER_MESSAGES)),
    failures_of(exit_code=st.just(-signal.SIGTERM)),
)
KINDS = [plain, killed, exceptions, consequences]


@given(st.data(), st.permutations(range(4)))
def test_causes_are_plain_messages_then_kills_then_exceptions_then_lost_peers(data, order):
    """Regardless of times and of the order in which they were reported."""
    groups = [data.draw(st.lists(kind, max_size=3)) for kind in KINDS]
    failures = [failure for index in order for failure in groups[index]]
    if failures:
        best = next(group for group in groups if group)
        cause = first_cause(failures)
        assert cause in best
        assert cause.time == min(failure.time for failure in best)


@pytest.mark.parametrize("message", LOST_PEER_MESSAGES)
def test_errors_of_the_peers_of_a_dead_rank_are_consequences(message):
    assert Failure(0, 1, 0.0, message=message).is_consequence


def test_a_plain_message_about_a_connection_is_a_cause():
    assert not Failure(0, 1, 0.0, message="The connection to the disk is lost.", is_plain=True).is_consequence


@pytest.mark.parametrize(
    ("failure", "is_worth_another_try"),
    [
        (Failure(0, -signal.SIGKILL, 0.0), True),
        (Failure(0, -signal.SIGTERM, 0.0), True),
        (Failure(0, -signal.SIGSEGV, 0.0), True),
        (Failure(0, 3, 0.0), True),
        (Failure(0, 0, 0.0), True),
        (Failure(0, 1, 0.0, message=LOST_PEER_MESSAGES[0]), True),
        (Failure(0, 1, 0.0, message="Worker 0 failed: ValueError: shapes differ"), False),
        (Failure(0, 1, 0.0, message="There is no space left.", is_plain=True), False),
    ],
)
def test_only_failures_from_outside_are_worth_another_try(failure, is_worth_another_try):
    assert failure.is_worth_another_try is is_worth_another_try


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (
            Failure(3, -signal.SIGKILL, 0.0, host="b"),
            "Worker 3 on b was killed (SIGKILL), perhaps because the machine ran out of memory.",
        ),
        (Failure(3, -signal.SIGSEGV, 0.0, host="b"), "Worker 3 on b was ended by SIGSEGV."),
        (Failure(3, 7, 0.0), "Worker 3 ended with exit code 7 and gave no reason."),
        (Failure(3, 0, 0.0, host="b"), "Worker 3 on b exited with code 0 before its run had ended."),
        (Failure(3, 1, 0.0, host="b", message="It broke."), "It broke. (on b)"),
        (Failure(3, 1, 0.0, message="It broke."), "It broke."),
    ],
)
def test_the_message_about_a_failure(failure, message):
    assert describe_failure(failure) == message


@given(st.integers(-signal.NSIG + 1, 255), st.sampled_from(["", "b"]))
def test_every_exit_code_has_a_message(exit_code, host):
    """Also real-time signals, most of which have no name."""
    assert describe_failure(Failure(5, exit_code, 0.0, host)).startswith("Worker 5")


def test_a_worker_writes_its_error_to_the_file_of_the_agent(tmp_path, monkeypatch):
    monkeypatch.setenv(ERROR_FILE_VARIABLE, str(tmp_path / "error.json"))
    report_failure("Größe passt nicht.", is_plain=True)
    reported = json.loads((tmp_path / "error.json").read_text(encoding="utf-8"))["message"]
    assert reported["message"] == "Größe passt nicht."
    assert reported["extraInfo"]["is_plain"] is True


def test_without_an_agent_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(ERROR_FILE_VARIABLE, raising=False)
    report_failure("It broke.", is_plain=False)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_travels_as_json():
    failure = Failure(1, -9, 12.5, "b", "words", is_plain=True)
    assert Failure(**json.loads(json.dumps(asdict(failure)))) == failure
