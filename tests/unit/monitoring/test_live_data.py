"""The reader of the live view: follows the files of a run, whatever they hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.diagnosis.verdict import Verdict
from dragoman.monitoring.live_data import VERDICT_EVERY_SECONDS, VerdictTimer, ViewData
from dragoman.run.folder import RunFolder
from dragoman.run.records import MachineSample
from dragoman.run.status import Observation, RunStatus

NOW = 1_800_000_000.0
SAMPLE = {
    "time": NOW,
    "node": "alpha",
    "network": {"eth0": {"received_bytes_per_second": 11.25e6, "sent_bytes_per_second": 5e6}},
}
VERDICT = Verdict("network", 0.7, 0.9, "The run is network-bound.")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.config.write_text("[training]\nmax_steps = 100\n")
    return folder


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def append(path: Path, *records: dict[str, Any] | str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)


def train_record(step: int, loss: float = 2.0, **more: Any) -> dict[str, Any]:
    return {"time": NOW + step, "kind": "train", "step": step, "loss": loss, "seconds_per_step": 1.0} | more


RUNNING = Observation("running", RunStatus("running", NOW, "alpha", 1, NOW - 1000, 5, 100, 1, num_restarts=3))


def test_new_lines_of_all_files_are_read(run: RunFolder):
    append(run.log, *(f"line {number}" for number in range(9)))
    append(run.metrics, train_record(1), {"kind": "evaluation", "step": 1, "loss": 3.0, "bleu": 7.5})
    with ViewData(run, 2, Clock()) as data:
        view = data.read(RUNNING)
        assert (view.log_lines, list(view.losses), list(view.dev_losses)) == (["line 7", "line 8"], [(1, 2)], [(1, 3)])
        assert (view.figures["bleu"], view.num_restarts, view.nodes) == (7.5, 3, [])
        append(run.log, "new")
        append(
            run.metrics, train_record(2, 1.5), {"kind": "prediction", "step": 2, "seconds_per_step": {"predicted": 1}}
        )
        view = data.read(RUNNING)
        assert (view.log_lines, list(view.losses)) == (["line 8", "new"], [(1, 2), (2, 1.5)])
        assert view.prediction.seconds_per_step.predicted == 1
        assert view.train.step == 2


def test_steps_repeated_after_a_restart_replace_the_first_ones(run: RunFolder):
    append(run.metrics, *(train_record(step) for step in (10, 20, 30)))
    with ViewData(run, 3, Clock()) as data:
        data.read(RUNNING)
        append(run.metrics, train_record(20, 5.0))
        assert list(data.read(RUNNING).losses) == [(10, 2.0), (20, 5.0)]


def test_damaged_lines_are_skipped(run: RunFolder):
    append(run.metrics, '{"kind": "train", "st', "[1]", '{"kind": 5}', '{"kind": "train", "step": NaN, "loss": 1e999}')
    append(run.metrics, train_record(4), '{"kind": "train", "step": 5, "loss": null}')
    append(run.path / "system.a.jsonl", "half {", '"text"')
    append(run.path / "system.b.jsonl", '{"network": [], "gpus": {"x": 1}, "time": "now"}')
    with ViewData(run, 3, Clock()) as data:
        view = data.read(RUNNING)
        assert list(view.losses) == [(4, 2.0)]
        assert view.nodes == []


def test_new_machines_are_found_and_silent_ones_marked(run: RunFolder):
    clock = Clock()
    with ViewData(run, 3, clock) as data:
        data.read(RUNNING)
        append(run.path / "system.alpha.jsonl", SAMPLE)
        (node,) = data.read(RUNNING).nodes
        assert (node.name, node.is_silent, node.busy_interfaces) == ("alpha", False, ["eth0"])
        clock.now += 11
        assert data.read(RUNNING).nodes[0].is_silent
        # Its clock is far behind ours, but samples arrive.
        append(run.path / "system.alpha.jsonl", SAMPLE | {"time": NOW - 500})
        assert not data.read(RUNNING).nodes[0].is_silent
        clock.now += 11
        assert data.read(RUNNING).nodes[0].seconds_silent == 11
        assert not data.read(Observation("finished")).nodes[0].is_silent


def test_a_silent_machine_whose_clock_is_ahead_is_marked(run: RunFolder):
    clock = Clock()
    append(run.path / "system.alpha.jsonl", SAMPLE | {"time": NOW + 500})
    with ViewData(run, 3, clock) as data:
        assert not data.read(RUNNING).nodes[0].is_silent
        clock.now += 11
        assert data.read(RUNNING).nodes[0].is_silent


def test_machines_of_an_earlier_launch_are_left_out(run: RunFolder):
    append(run.path / "system.old.jsonl", SAMPLE | {"time": NOW - 5000})
    append(run.system("new/one"), SAMPLE)
    with ViewData(run, 3, Clock()) as data:
        assert [node.name for node in data.read(RUNNING).nodes] == ["new/one"]


def test_an_interface_stays_in_view_between_two_bursts(run: RunFolder):
    idle = SAMPLE | {"network": {"eth0": {"received_bytes_per_second": 0.0}}}
    path = run.path / "system.alpha.jsonl"
    append(path, SAMPLE, idle | {"time": NOW + 29})
    with ViewData(run, 3, Clock()) as data:
        assert data.read(RUNNING).nodes[0].busy_interfaces == ["eth0"]
        append(path, idle | {"time": NOW + 31})
        assert data.read(RUNNING).nodes[0].busy_interfaces == []


def test_an_unreadable_file_of_samples_is_ignored(run: RunFolder):
    path = run.system("alpha")
    append(path, SAMPLE)
    run.system("beta").mkdir()
    with ViewData(run, 3, Clock()) as data:
        assert [node.name for node in data.read(RUNNING).nodes] == ["alpha"]
        path.unlink()
        path.mkdir()
        assert data.read(RUNNING).nodes[0].sample == MachineSample(**SAMPLE)


def test_the_verdict_is_renewed_now_and_then(run: RunFolder):
    clock = Clock()
    verdicts = iter(range(9))

    def judge(_: RunFolder) -> Any:
        return next(verdicts)

    timer = VerdictTimer(run, judge, clock)
    assert timer.renew(is_last=False)
    clock.now += VERDICT_EVERY_SECONDS - 0.1
    assert not timer.renew(is_last=False)
    assert timer.verdict == 0
    assert timer.renew(is_last=True)
    assert timer.verdict == 1
    clock.now += VERDICT_EVERY_SECONDS
    assert timer.renew(is_last=False)


def test_a_slow_verdict_is_renewed_less_often(run: RunFolder):
    clock = Clock()

    def judge(_: RunFolder) -> Verdict:
        clock.now += 3
        return VERDICT

    timer = VerdictTimer(run, judge, clock)
    timer.renew(is_last=False)
    clock.now += 29
    assert not timer.renew(is_last=False)
    clock.now += 2
    assert timer.renew(is_last=False)


def test_a_verdict_that_fails_is_none(run: RunFolder):
    def judge(_: RunFolder) -> Verdict:
        raise ValueError("damaged")

    timer = VerdictTimer(run, judge)
    assert timer.renew(is_last=False)
    assert timer.verdict is None
