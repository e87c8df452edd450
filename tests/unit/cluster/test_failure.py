"""Of several failures the cause is told, not its echoes; and what would come again is not tried again."""

import json
import signal

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

# What gloo, NCCL and torch's store really say to the peers of a rank that has gone.
ECHOES = [
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
echoes = st.one_of(
    failures_of(exit_code=st.just(1), message=st.sampled_from(ECHOES)),
    failures_of(exit_code=st.just(-signal.SIGTERM)),
)
KINDS = [plain, killed, exceptions, echoes]


@given(st.data(), st.permutations(range(4)))
def test_plain_words_come_before_kills_before_exceptions_before_echoes(data, order):
    """Whatever the times and the order in which they were reported."""
    groups = [data.draw(st.lists(kind, max_size=3)) for kind in KINDS]
    failures = [failure for index in order for failure in groups[index]]
    if failures:
        most_telling = next(group for group in groups if group)
        cause = first_cause(failures)
        assert cause in most_telling
        assert cause.time == min(failure.time for failure in most_telling)


@pytest.mark.parametrize("message", ECHOES)
def test_what_the_peers_of_a_dead_rank_say_is_an_echo(message):
    assert Failure(0, 1, 0.0, message=message).is_echo


def test_a_plain_sentence_is_no_echo_even_if_it_speaks_of_a_connection():
    assert not Failure(0, 1, 0.0, message="The connection to the disk is lost.", is_plain=True).is_echo


@pytest.mark.parametrize(
    ("failure", "is_worth_another_try"),
    [
        (Failure(0, -signal.SIGKILL, 0.0), True),
        (Failure(0, -signal.SIGTERM, 0.0), True),
        (Failure(0, -signal.SIGSEGV, 0.0), True),
        (Failure(0, 3, 0.0), True),
        (Failure(0, 1, 0.0, message=ECHOES[0]), True),
        (Failure(0, 1, 0.0, message="Worker 0 failed: ValueError: shapes differ"), False),
        (Failure(0, 1, 0.0, message="There is no space left.", is_plain=True), False),
    ],
)
def test_only_what_came_from_outside_is_worth_another_try(failure, is_worth_another_try):
    assert failure.is_worth_another_try is is_worth_another_try


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (
            Failure(3, -signal.SIGKILL, 0.0, host="b"),
            "Worker 3 on b was killed (SIGKILL), perhaps because the machine ran out of memory.",
        ),
        (Failure(3, -signal.SIGSEGV, 0.0, host="b"), "Worker 3 on b was ended by SIGSEGV."),
        (Failure(3, 7, 0.0), "Worker 3 ended with exit code 7 without saying why."),
        (Failure(3, 1, 0.0, host="b", message="It broke."), "It broke. (on b)"),
        (Failure(3, 1, 0.0, message="It broke."), "It broke."),
    ],
)
def test_a_failure_in_words(failure, sentence):
    assert describe_failure(failure) == sentence


@given(st.integers(-signal.NSIG + 1, 255), st.sampled_from(["", "b"]))
def test_every_way_a_process_can_end_has_words(exit_code, host):
    """Also the real-time signals, most of which have no name."""
    assert describe_failure(Failure(5, exit_code, 0.0, host)).startswith("Worker 5")


def test_a_worker_leaves_its_words_where_the_agent_looks(tmp_path, monkeypatch):
    monkeypatch.setenv(ERROR_FILE_VARIABLE, str(tmp_path / "error.json"))
    report_failure("Größe passt nicht.", is_plain=True)
    told = json.loads((tmp_path / "error.json").read_text(encoding="utf-8"))["message"]
    assert told["message"] == "Größe passt nicht."
    assert told["extraInfo"]["is_plain"] is True


def test_without_an_agent_nothing_is_left(monkeypatch):
    monkeypatch.delenv(ERROR_FILE_VARIABLE, raising=False)
    report_failure("Nobody listens.", is_plain=False)


def test_a_failure_travels_as_plain_values():
    failure = Failure(1, -9, 12.5, "b", "words", is_plain=True)
    assert Failure(**json.loads(json.dumps(failure.to_json()))) == failure
