"""What a run has spent survives its crashes: the largest figure of any run folder counts, and the time between."""

import json
import time
from pathlib import Path

import pytest

from dragoman.cluster.environment import LAUNCH_BEGIN_VARIABLE, LAUNCH_SECONDS_VARIABLE, LAUNCH_VARIABLE
from dragoman.cluster.world import World
from dragoman.run.budget import WRITE_SECONDS, MeasuredSeconds, SpentRecord
from dragoman.run.folder import RunFolder
from dragoman.training import spent_time
from dragoman.training.spent_time import Launch, SpentTime, find_launch

WITHOUT_NUMBER = '{"seconds": NaN, "launch": "a", "launch_seconds": 0, "measured": {}}'


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path)


def open_spent(
    run: RunFolder, launch: Launch, world: World | None = None, price: float | None = None, is_new_run: bool = False
) -> SpentTime:
    return SpentTime.open(run, world or World(), launch, price, is_writer=True, is_new_run=is_new_run)


def kill_after(spent: SpentTime, clock, seconds: float) -> None:
    """Lets a run go on and ends it without its last words: only what its thread wrote before is left."""
    clock.now += seconds
    spent._write(spent._run)
    clock.now += WRITE_SECONDS - 0.1


def test_cost_follows_from_time(clock):
    spent = SpentTime(Launch("a", clock.now), 6.0, seconds_before=3_000.0)
    clock.now += 600
    assert (spent.seconds, spent.cost) == (pytest.approx(3_600), pytest.approx(6.0))
    assert SpentTime(Launch("a", clock.now)).cost is None


def test_a_restart_by_the_same_launcher_loses_no_second(run, clock):
    """A crash, a hang, a pause between two attempts: the machines are paid meanwhile."""
    launch = Launch("a", clock.now)
    kill_after(open_spent(run, launch), clock, 100)
    clock.now += 1_000
    assert open_spent(run, launch).seconds == pytest.approx(clock.now - launch.begin)


def test_launchers_that_are_killed_never_lower_the_sum(run, clock):
    really_spent = 0.0
    for number in range(5):
        begin = clock.now
        kill_after(open_spent(run, Launch(str(number), clock.now)), clock, 60)
        really_spent += clock.now - begin
        clock.now += 10_000  # between two launchers, nothing is paid
    found = open_spent(run, Launch("last", clock.now)).seconds
    assert really_spent <= found <= really_spent + 5 * WRITE_SECONDS


def test_the_largest_figure_counts(run, clock):
    """Of the checkpoint and of spent.json, which may be lost or damaged."""
    run.spent.write_text('{"seconds": 500.0, "launch": "earlier", "launch_seconds": 500.0, "measured": {}}')
    spent = open_spent(run, Launch("a", clock.now))
    assert spent.seconds == 500.0 + WRITE_SECONDS
    spent.count_at_least(400.0)
    assert spent.seconds == 500.0 + WRITE_SECONDS
    spent.count_at_least(600.0)
    assert spent.seconds == 600.0
    clock.now += 5.0
    assert spent.seconds == 605.0


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", '{"seconds": 9}', WITHOUT_NUMBER])
def test_a_damaged_file_counts_as_nothing(run, clock, content):
    run.spent.write_text(content)
    assert open_spent(run, Launch("a", clock.now)).seconds == 0.0


def test_a_new_run_in_an_old_folder_begins_with_nothing(run, clock):
    SpentRecord(500.0, "earlier", 500.0, MeasuredSeconds(1.0, 2.0, 3.0, 4.0)).write(run)
    spent = open_spent(run, Launch("a", clock.now), is_new_run=True)
    assert (spent.seconds, spent.measured) == (0.0, MeasuredSeconds())


def test_a_new_run_that_is_restarted_before_its_first_checkpoint_goes_on(run, clock):
    launch = Launch("a", clock.now)
    kill_after(open_spent(run, launch, is_new_run=True), clock, 100)
    assert open_spent(run, launch, is_new_run=True).seconds == pytest.approx(clock.now - launch.begin)


class WorldOfTwo(World):
    """A rank whose only peer has a folder of its own."""

    def largest_numbers(self, numbers: list[float]) -> list[float]:
        return [max(number, other) for number, other in zip(numbers, [700.0, 9.0, 1.5, 20.0, 3.0], strict=True)]


def test_the_host_that_has_counted_most_is_right(run, clock):
    spent = open_spent(run, Launch("a", clock.now), WorldOfTwo())
    assert spent.seconds == 700.0
    assert spent.measured == MeasuredSeconds(9.0, 1.5, 20.0, 3.0)


def test_measured_times_are_known_after_a_restart(run, clock):
    with open_spent(run, Launch("a", clock.now, seconds_before_attempt=4.0)) as spent:
        clock.now += 10.0
        spent.note_started()
        spent.measured.evaluation = 2.0
    again = open_spent(run, Launch("b", clock.now))
    assert again.measured == MeasuredSeconds(start=6.0, evaluation=2.0)


def test_the_file_is_written_while_the_run_works_and_at_its_end(run, monkeypatch):
    monkeypatch.setattr(spent_time, "WRITE_SECONDS", 0.01)
    with open_spent(run, Launch("a", time.monotonic() - 5.0)) as spent:
        first = json.loads(run.spent.read_text())["seconds"]
        end = time.monotonic() + 60.0
        while json.loads(run.spent.read_text())["seconds"] <= first and time.monotonic() < end:
            time.sleep(0.01)
        before_end = spent.seconds
    assert 5.0 <= first < before_end <= json.loads(run.spent.read_text())["seconds"]


def test_a_full_disk_does_not_end_the_run(tmp_path):
    with open_spent(RunFolder(tmp_path / "missing"), Launch("a", time.monotonic())) as spent:
        assert spent.seconds < 60.0


def test_a_rank_that_does_not_save_writes_nothing(run):
    with SpentTime.open(run, World(), Launch("a", 0.0), None, is_writer=False, is_new_run=True):
        pass
    assert not Path(run.spent).exists()


def test_our_launcher_says_when_it_began():
    environment = {LAUNCH_VARIABLE: "a", LAUNCH_BEGIN_VARIABLE: "12.5", LAUNCH_SECONDS_VARIABLE: "3.5"}
    assert find_launch(environment) == Launch("a", 12.5, 3.5)


def test_under_another_launcher_time_begins_with_the_process():
    one, other = find_launch({}), find_launch({})
    assert one.name != other.name
    assert one.seconds > 0.0
    assert one.begin == pytest.approx(other.begin, abs=5.0)
