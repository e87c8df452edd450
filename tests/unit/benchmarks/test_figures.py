"""What the benchmarks compute from measurements; the measurements themselves are not tests."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def _find_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))


def curve(*points):
    from bleu_curves import Point

    return [Point(number, seconds, bleu) for number, (seconds, bleu) in enumerate(points, start=1)]


def test_time_to_bleu_lies_on_the_line_between_checkpoints():
    from bleu_curves import seconds_to_bleu

    assert seconds_to_bleu(curve((100, 10), (200, 20), (300, 15)), 15) == 150
    assert seconds_to_bleu(curve((100, 10)), 5) == 50  # on the line from an untrained model
    assert seconds_to_bleu(curve((100, 10), (200, 20)), 20.1) is None


def test_the_best_peer_decides_and_both_parts_of_the_goal_count():
    from bleu_curves import describe_run, describe_summary, summarise_corpus

    ours = curve((100, 30), (200, 31))
    slow, good = curve((200, 10)), curve((100, 25), (200, 30))
    runs = {"slow": [describe_run(ours, slow)], "good": [describe_run(ours, good)]}
    summary = summarise_corpus(runs)
    assert summary["best_peer"] == "good"
    assert summary["share_of_its_time"] == pytest.approx(0.5)
    assert summary["difference_of_ends"] == pytest.approx(1.0)
    assert summary["is_reached"]
    assert "goal reached" in describe_summary("multi30k", summary)
    # The end of the peer was reached in time, but ours ends too low.
    assert not summarise_corpus({"good": [describe_run(curve((100, 30), (200, 30.4)), good)]})["is_reached"]
    # One of two runs never got there.
    never = summarise_corpus({"good": [describe_run(ours, good), describe_run(curve((200, 29)), good)]})
    assert never["share_of_its_time"] is None
    assert not never["is_reached"]


def test_exponents_of_exact_powers_have_no_width():
    from cost_exponents import fit_exponent

    fit = fit_exponent([1.0, 2.0, 4.0, 8.0], [3.0, 12.0, 48.0, 192.0])
    assert (fit.exponent, fit.low, fit.high) == pytest.approx((2.0, 2.0, 2.0))
    noisy = fit_exponent([1.0, 2.0, 4.0, 8.0], [3.0, 7.0, 11.0, 25.0])
    assert noisy.low < 1.0 < noisy.high


def test_misses_name_every_bound():
    from training_speed import find_misses

    def figures(ratio, share):
        return {
            "threads": 2,
            "ratios": {"eole": {"median": ratio, "required": 2.0}, "huggingface": {"median": 1.0, "required": None}},
            "contestants": {"ours": {"share_of_matmul_peak": {"median": share}}},
        }

    assert find_misses(figures(2.0, 0.6)) == []
    assert len(find_misses(figures(1.9, 0.59))) == 2


def test_the_clock_of_a_peer_stands_still_while_it_saves(tmp_path):
    from training_clock import TrainingClock

    clock = TrainingClock(tmp_path / "clock.jsonl")
    clock.start()
    with clock.paused():
        time.sleep(0.2)
    clock.finished(1)
    ((step, seconds),) = map(json.loads, (tmp_path / "clock.jsonl").read_text().splitlines())
    assert step == 1
    assert seconds < 0.1


def test_a_peer_in_turns_waits_for_each_request():
    program = "from turns import Turns\nturns = Turns()\nprint('a log line')\nwhile True: turns.before_step(3, 5)"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=BENCHMARKS / "peers",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    output, errors = process.communicate("2\n4\n", timeout=60)
    assert [json.loads(line)["target_tokens"] for line in output.splitlines()] == [10, 20]
    assert errors.strip() == "a log line"  # what a trainer prints is no answer
    assert process.returncode == 0


def test_tasks_of_two_cores_run_at_the_same_time_and_in_order(tmp_path):
    from side_by_side import Task, run_side_by_side

    from dragoman.run.errors import UserError

    core = min(os.sched_getaffinity(0))

    def say(text):
        return [sys.executable, "-c", f"print({text!r})"]

    tasks = [Task([say("one"), say("two")], tmp_path / "a"), Task([say("three")], tmp_path / "b")]
    run_side_by_side(tasks, [core, core])
    assert (tmp_path / "a").read_text() == "one\ntwo\n"
    assert (tmp_path / "b").read_text() == "three\n"
    endless = [sys.executable, "-c", "import time; print('trained', flush=True); time.sleep(600)"]
    log = tmp_path / "d"
    run_side_by_side([Task([endless], log, lambda: log.exists() and "trained" in log.read_text())], [core])
    with pytest.raises(UserError, match="ZeroDivisionError"):
        run_side_by_side([Task([[sys.executable, "-c", "1 / 0"]], tmp_path / "c")], [core])
