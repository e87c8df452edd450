"""Who holds a run up: never one that waits while another works, and never anybody before the time is over."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cluster.heartbeat import Beat
from dragoman.launch.attempt import describe_hang, find_hang, save_hang_report

TIMEOUT = 10.0
WORKING = Beat(0, 100, 7, "computing a gradient", is_waiting=False, seconds_silent=0.1, process_state="R")
WAITING = Beat(1, 101, 7, "waiting for the gradients", is_waiting=True, seconds_silent=0.1, process_state="S")

beats = st.builds(
    Beat,
    rank=st.integers(0, 99),
    pid=st.integers(1, 2**22),
    step=st.integers(0, 10**6),
    doing=st.text(max_size=20),
    is_waiting=st.booleans(),
    seconds_silent=st.floats(0, 100),
    process_state=st.sampled_from("RSTDt?"),
)
lists_of_beats = st.lists(beats, max_size=6, unique_by=lambda beat: beat.rank)


def silent(beat: Beat, **changes: object) -> Beat:
    return replace(beat, seconds_silent=TIMEOUT + 1, **changes)


def test_nobody_hangs_while_all_give_signs_of_life():
    assert find_hang([WORKING, WAITING], TIMEOUT) is None
    assert find_hang([], TIMEOUT) is None


def test_a_rank_that_works_in_silence_for_too_long_holds_the_others_up():
    guilty = silent(WORKING)
    assert find_hang([guilty, silent(WAITING)], TIMEOUT) == guilty


def test_a_rank_may_wait_as_long_as_another_works():
    """Rank 0 may be judging the dev set for an hour."""
    assert find_hang([WORKING, silent(WAITING)], TIMEOUT) is None


def test_of_waiting_ranks_a_stopped_one_is_not_looked_at_while_another_works():
    assert find_hang([WORKING, silent(WAITING, process_state="T")], TIMEOUT) is None


@pytest.mark.parametrize("state", ["T", "t", "D"])
def test_where_all_wait_the_stopped_one_is_the_cause(state):
    stopped = silent(WAITING, rank=2, process_state=state)
    longest = replace(WAITING, seconds_silent=TIMEOUT + 50)
    assert find_hang([longest, stopped], TIMEOUT) == stopped


def test_where_all_wait_and_none_is_stopped_the_longest_is_named():
    longest = replace(WAITING, rank=2, seconds_silent=TIMEOUT + 50)
    assert find_hang([silent(WAITING), longest], TIMEOUT) == longest


def test_a_rank_that_has_ended_is_no_suspect_while_another_works():
    """How it ended is its agent's business; the other may still be saving."""
    assert find_hang([WORKING, silent(WORKING, rank=2, process_state="Z")], TIMEOUT) is None


def test_a_stopped_rank_is_the_cause_before_one_that_only_works_long():
    stopped = silent(WORKING, rank=2, process_state="T")
    busy = replace(WORKING, seconds_silent=TIMEOUT + 50)
    assert find_hang([busy, stopped], TIMEOUT) == stopped


@given(lists_of_beats)
def test_whoever_is_named_was_silent_for_too_long_and_kept_others_waiting(found):
    guilty = find_hang(found, TIMEOUT)
    if guilty is None:
        assert any(beat.seconds_silent <= TIMEOUT for beat in found) or not found
        assert all(beat.is_waiting for beat in found if beat.seconds_silent > TIMEOUT)
    else:
        assert guilty in found
        assert guilty.seconds_silent > TIMEOUT
        assert not guilty.is_waiting or all(beat.is_waiting and beat.seconds_silent > TIMEOUT for beat in found)


@given(lists_of_beats, st.floats(0.1, 50))
def test_more_patience_names_nobody_new(found, more):
    if find_hang(found, TIMEOUT) is None:
        assert find_hang(found, TIMEOUT + more) is None


def test_a_hang_in_words():
    stopped = silent(WORKING, process_state="T")
    assert describe_hang(stopped, "b") == (
        "Rank 0 on b hangs at step 7: computing a gradient for 11 s; process 100 is stopped."
    )
    assert describe_hang(silent(WORKING), "b").endswith("computing a gradient for 11 s.")
    assert "the network between them may be broken" in describe_hang(silent(WAITING), "b")
    assert "is stopped" in describe_hang(silent(WAITING, process_state="T"), "b")


def test_the_report_tells_of_every_rank_and_of_the_guilty_one_first(tmp_path):
    found = [silent(WAITING, rank=rank, pid=200 + rank) for rank in (0, 1)] + [silent(WORKING, rank=2)]
    stacks = {2: 'File "attention.py", line 12 in forward', 1: 'File "world.py", line 3 in wait'}
    path = save_hang_report(tmp_path, "Rank 2 hangs.", found, {0: "a", 1: "a", 2: "b"}, stacks, guilty=2)
    assert path.parent == tmp_path
    assert path.name.startswith("hang-")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("Rank 2 hangs.\n")
    places = [text.index(f"== rank {rank} on {host}") for rank, host in ((2, "b"), (0, "a"), (1, "a"))]
    assert places == sorted(places)
    assert text.index("attention.py") < places[1]
    assert "process 100 (state R), step 7: computing a gradient, silent for 11.0 s" in text
    assert "No stack could be had." in text[places[1] : places[2]]
    assert "world.py" in text[places[2] :]
