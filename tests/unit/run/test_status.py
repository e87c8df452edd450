"""What a launcher says of its run and how it is asked to stop; the run in figures and in words."""

import errno
import json
import math
import os
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.run import status as status_module
from dragoman.run import summary
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.records import Record, parse_record
from dragoman.run.status import (
    ALIVE_STATES,
    ENDED_STATES,
    HostStatus,
    Observation,
    RunStatus,
    StatusFile,
    clear_stop_request,
    is_stop_requested,
    observe_run,
    read_status,
    request_stop,
)
from dragoman.run.summary import describe_end, describe_observation, last_records, run_figures, status_lines

STATUS = RunStatus("running", 1e9, "alpha", 4242, 1e9 - 60, 600, 1_000, 4)
TRAIN = {
    "time": 10.0, "kind": "train", "step": 620, "loss": 1.5, "seconds_per_step": 2.0,
    "target_tokens_per_second": 17_000.4, "training_seconds": 1_200.0, "cost": 3.5,
}  # fmt: skip

texts = st.text(st.characters(exclude_categories=["Cs"]))
counts = st.integers(0, 2**53)
seconds = st.floats(0, 1e10)
statuses = st.builds(
    RunStatus,
    state=st.sampled_from(ALIVE_STATES + ENDED_STATES),
    time=seconds,
    host=texts,
    pid=counts,
    started=seconds,
    step=counts,
    num_steps=counts,
    num_workers=counts,
    hosts=st.lists(st.builds(HostStatus, texts, counts, st.sampled_from(["working", "lost"]))).map(tuple),
    num_restarts=counts,
    last_restart_cause=st.none() | texts,
    message=st.none() | texts,
    reason=st.sampled_from([None, "steps", "time", "cost", "signal"]),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.config.write_text("[training]\nmax_steps = 1000\n")
    return folder


def write_status(run: RunFolder, **changes: object) -> None:
    run.status.write_text(json.dumps(replace(STATUS, **changes).to_json()))


def write_records(run: RunFolder, *records: dict[str, object]) -> None:
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))


def make_silent(run: RunFolder, for_seconds: float) -> None:
    then = time.time() - for_seconds
    os.utime(run.status, (then, then))


def names_in(run: RunFolder) -> set[str]:
    return {path.name for path in run.path.iterdir()}


@given(statuses)
def test_what_is_written_is_read(status):
    assert RunStatus.from_json(json.loads(json.dumps(status.to_json()))) == status


@given(json_values)
def test_anything_else_is_refused(values):
    with pytest.raises(UserError, match="is not the status of a run"):
        RunStatus.from_json(values)


@given(statuses, st.sampled_from(sorted(STATUS.to_json())), json_values)
def test_a_status_with_one_odd_value_is_read_or_refused_by_name(status, key, value):
    values = status.to_json() | {key: value}
    with suppress(UserError):
        assert RunStatus.from_json(values).to_json() == values
        return
    with pytest.raises(UserError, match=f'"{key}" is missing or wrong'):
        RunStatus.from_json(values)


@given(st.dictionaries(texts, json_values, max_size=3))
def test_unknown_keys_are_ignored(extra):
    known = STATUS.to_json()
    assert RunStatus.from_json(extra | known) == STATUS


@pytest.mark.parametrize("key", ["state", "time", "host", "pid", "step", "num_steps", "num_workers", "hosts"])
def test_a_missing_key_is_named(key):
    values = STATUS.to_json()
    del values[key]
    with pytest.raises(UserError, match=f'its "{key}" is missing or wrong'):
        RunStatus.from_json(values)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("state", "lost"), ("state", ["running"]), ("step", True), ("step", -1), ("step", 1.5), ("time", math.nan),
        ("time", 10**400), ("pid", "1"), ("hosts", {}), ("hosts", [{"name": "h1", "workers": 2, "state": "odd"}]),
        ("message", 3),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(key, value):
    with pytest.raises(UserError, match=key):
        RunStatus.from_json(STATUS.to_json() | {key: value})


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\xfa", b"[" * 100_000, b"9" * 5_000])
def test_a_damaged_file_is_refused_with_its_name(run, content):
    run.status.write_bytes(content)
    with pytest.raises(UserError, match=r"status\.json is not the status of a run"):
        read_status(run)


def test_no_file_is_no_status(run):
    assert read_status(run) is None
    assert read_status(RunFolder(run.path / "nowhere")) is None


def test_what_cannot_be_read_is_said(run):
    run.status.mkdir()
    with pytest.raises(UserError, match=r"status\.json cannot be read: it is a folder"):
        read_status(run)


def test_a_file_that_another_machine_replaced_meanwhile_is_read_again(run, monkeypatch):
    write_status(run)
    read, num_calls = status_module._content_and_time, 0

    def stale_at_first(path):
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(path)

    monkeypatch.setattr(status_module, "_content_and_time", stale_at_first)
    assert read_status(run) == STATUS


def test_changes_are_merged_and_written_at_once(run):
    file = StatusFile(run, replace(RunStatus.starting(100, 2), hosts=(HostStatus("h1", 2),)))
    file.update(state="running", step=3)
    file.update(step=4)
    status = read_status(run)
    assert status == file.status
    assert (status.state, status.step, status.num_steps, status.num_workers) == ("running", 4, 100, 2)
    assert status.hosts == (HostStatus("h1", 2, "working"),)
    assert status.pid == os.getpid()
    assert status.time == pytest.approx(time.time(), abs=5)
    assert names_in(run) == {"config.toml", "status.json"}


def test_the_heart_beats_inside_the_block_only(run, monkeypatch):
    monkeypatch.setattr(status_module, "HEARTBEAT_SECONDS", 0.01)
    num_threads = threading.active_count()
    with StatusFile(run, RunStatus.starting(100, 1)):
        first = read_status(run).time
        deadline = time.monotonic() + 10
        while read_status(run).time == first and time.monotonic() < deadline:
            time.sleep(0.005)
        assert read_status(run).time > first
    assert threading.active_count() == num_threads
    last = read_status(run)
    time.sleep(0.05)
    assert read_status(run) == last


def test_nobody_ever_reads_half_a_status(run, monkeypatch):
    monkeypatch.setattr(status_module, "HEARTBEAT_SECONDS", 0.0001)
    with StatusFile(run, RunStatus.starting(10_000, 1)) as file:
        steps = []
        for step in range(300):
            file.update(step=step)
            steps.append(read_status(run).step)
    assert steps == list(range(300))


def test_what_leaves_the_block_is_why_it_failed(run):
    with pytest.raises(UserError), StatusFile(run, STATUS):
        raise UserError("Worker 3 ran out of memory.")
    status = read_status(run)
    assert (status.state, status.message) == ("failed", "Worker 3 ran out of memory.")


def test_an_end_that_was_told_stays(run):
    with pytest.raises(KeyboardInterrupt), StatusFile(run, replace(STATUS, state="stopped")):
        raise KeyboardInterrupt
    assert read_status(run).state == "stopped"


def test_a_full_disk_does_not_end_the_run_nor_its_heart(run, monkeypatch):
    file = StatusFile(run, STATUS)
    file.update()
    make_silent(run, 100)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(status_module, "write_text", fail)
    file.update(step=700)
    assert observe_run(run).state == "running"
    assert read_status(run).step == STATUS.step


def test_a_folder_that_is_gone_does_not_end_the_run(tmp_path):
    with StatusFile(RunFolder(tmp_path / "gone"), STATUS) as file:
        file.update(step=1)


def test_names_that_are_no_text_can_be_told(run):
    StatusFile(run, STATUS).update(message="No such file: caf\udce9.txt")
    assert read_status(run).message == "No such file: caf?.txt"


def test_asked_and_taken_back(run):
    assert not is_stop_requested(run)
    request_stop(run)
    assert is_stop_requested(run)
    assert json.loads(run.stop_request.read_text()).keys() == {"time", "host", "pid"}
    clear_stop_request(run)
    clear_stop_request(run)
    assert names_in(run) == {"config.toml"}


def test_a_request_that_cannot_be_written_is_said(run):
    with pytest.raises(UserError, match=r"Cannot ask the run to stop: .*stop\.request: there is no such file"):
        request_stop(RunFolder(run.path / "gone"))


def figures_of(run: RunFolder) -> dict[str, object]:
    return run_figures(run, observe_run(run))


def test_all_that_is_known(run):
    hosts = (HostStatus("h1", 2), HostStatus("h2", 2, "lost"))
    write_status(run, hosts=hosts, num_restarts=2, last_restart_cause="h2 was lost", message="x")
    write_records(
        run, TRAIN | {"step": 10}, {"time": 9.0, "kind": "evaluation", "step": 600, "loss": 1.7, "bleu": 23.4}, TRAIN
    )
    checkpoint = run.checkpoint(500)
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_bytes(b"12345")
    figures = figures_of(run)
    assert figures["checkpoint"].pop("seconds_ago") == pytest.approx(0, abs=10)
    assert figures == {
        "state": "running", "step": 620, "max_steps": 1_000, "loss": 1.5, "train_step": 620, "dev_loss": 1.7,
        "bleu": 23.4, "evaluation_step": 600, "seconds_per_step": 2.0,
        "target_tokens_per_second": 17_000.4, "seconds_left": 760.0, "cost": 3.5, "workers": 4,
        "hosts": [{"name": "h1", "workers": 2, "state": "working"}, {"name": "h2", "workers": 2, "state": "lost"}],
        "restarts": 2, "last_restart_cause": "h2 was lost", "message": "x",
        "checkpoint": {"step": 500, "path": str(checkpoint), "bytes": 5},
        "run": str(run.path), "host": "alpha", "pid": 4242,
    }  # fmt: skip


def test_what_is_not_known_is_none(run):
    figures = figures_of(run)
    assert {key for key, value in figures.items() if value is not None} == {"state", "max_steps", "hosts", "run"}
    assert status_lines(figures, observe_run(run)) == ["State:      unstarted", "Checkpoint: none yet"]


def test_nothing_is_left_of_a_run_that_has_ended(run):
    write_status(run, state="stopped")
    write_records(run, TRAIN)
    assert figures_of(run)["seconds_left"] is None


@pytest.mark.parametrize(
    ("settings", "seconds_left"),
    [("max_hours = 0.5", 600.0), ("max_cost = 2.0\nprice_per_hour = 5.0", 240.0), ("max_hours = 9", 760.0)],
)
def test_the_first_budget_to_be_used_up_ends_the_run(run, settings, seconds_left):
    run.config.write_text(f"[training]\nmax_steps = 1000\n{settings}\n")
    write_status(run)
    write_records(run, TRAIN)
    assert figures_of(run)["seconds_left"] == pytest.approx(seconds_left)


def test_a_run_that_went_back_is_where_it_is_now(run):
    write_status(run, step=505)
    late = {"time": 8.0, "kind": "evaluation", "step": 900, "bleu": 20.0}
    write_records(run, late, {"time": 9.0, "kind": "restart", "step": 500}, TRAIN | {"step": 510})
    assert figures_of(run)["step"] == 510
    write_status(run, step=512)
    assert figures_of(run)["step"] == 512


@given(st.lists(st.dictionaries(st.sampled_from(sorted(TRAIN)), json_values, max_size=4), max_size=2))
def test_odd_records_do_no_harm(records):
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        write_status(run)
        write_records(run, *({"kind": "train", "step": 0} | record for record in records))
        observation = observe_run(run)
        assert status_lines(run_figures(run, observation), observation)[0].startswith("State:      running")


def test_only_the_last_of_each_kind_is_parsed(monkeypatch):
    lines = [json.dumps(TRAIN | {"step": step}) for step in range(1_000)]
    lines.insert(500, json.dumps({"kind": "evaluation", "step": 500}))
    parsed: list[str] = []

    def counted(line: str) -> Record | None:
        parsed.append(line)
        return parse_record(line)

    monkeypatch.setattr(summary, "parse_record", counted)
    assert {kind: record.step for kind, record in last_records(lines).items()} == {"train": 999, "evaluation": 500}
    assert len(parsed) == 2


def end_of(state: str, **changes: object) -> str:
    status = replace(STATUS, **changes)
    return describe_end(RunFolder(Path("runs/my run")), Observation(state, status, 95.0), 1_200)


def test_a_run_that_a_budget_ended_is_continued_with_a_larger_one(tmp_path):
    run = RunFolder(tmp_path)
    run.config.write_text("[training]\nmax_hours = 3\n")
    stopped = describe_end(run, Observation("stopped", replace(STATUS, reason="time"), 95.0), 1_200)
    assert stopped.endswith(f"train --resume --run-dir {tmp_path} --set training.max_hours=6")
    stopped = describe_end(run, Observation("stopped", replace(STATUS, reason="signal"), 95.0), 1_200)
    assert stopped.endswith(f"train --resume --run-dir {tmp_path}")


def test_how_runs_end():
    resume = "train --resume --run-dir 'runs/my run'"
    assert end_of("finished") == "runs/my run finished at step 1,200."
    stopped = end_of("stopped", reason="signal")
    assert stopped.startswith("Stopped at step 1,200; everything is saved. Continue with: ")
    assert stopped.endswith(resume)
    assert "because training.max_hours is used up; everything is saved" in end_of("stopped", reason="time")
    assert end_of("failed", message="Out of memory.") == "runs/my run failed at step 1,200: Out of memory."
    lost = end_of("lost")
    assert "runs/my run is lost: process 4242 on alpha has been silent for 1 min 35 s." in lost
    assert lost.endswith(resume)


@pytest.mark.parametrize(
    ("state", "changes", "words"),
    [
        ("running", {}, "running"),
        ("waiting", {"message": "for h2"}, "waiting: for h2"),
        ("restarting", {"last_restart_cause": "h2 was lost"}, "restarting: h2 was lost"),
        ("failed", {"message": "Out of memory."}, "failed: Out of memory."),
        ("stopped", {"reason": "cost"}, "stopped: training.max_cost is used up"),
        ("stopped", {"reason": "signal"}, "stopped"),
    ],
)
def test_states_come_with_their_cause(state, changes, words):
    assert describe_observation(Observation(state, replace(STATUS, **changes))) == words


def test_lost_hosts_and_restarts_are_told(run):
    hosts = (HostStatus("h1", 2), HostStatus("h2", 2, "lost"))
    write_status(run, hosts=hosts, num_restarts=2, last_restart_cause="h2 was lost")
    write_records(run, TRAIN)
    lines = status_lines(run_figures(run, observe_run(run)), observe_run(run))
    assert lines == [
        "State:      running (process 4242 on alpha)",
        "Step:       620 of 1,000 (62.0%), 13 min left",
        "Training:   loss 1.5000 at step 620",
        "Speed:      2.000 s per step, 17,000 target tokens/s",
        "Cost:       3.50",
        "Workers:    4 on h1 2, h2 2 (lost)",
        "Restarts:   2, the last because: h2 was lost",
        "Checkpoint: none yet",
    ]


@pytest.mark.parametrize(("step", "share"), [(9_999, "99.9%"), (10_000, "100.0%"), (0, "0.0%")])
def test_only_what_is_complete_is_complete(run, step, share):
    write_status(run, step=step, num_steps=10_000)
    assert status_lines(run_figures(run, observe_run(run)), observe_run(run))[1].endswith(f"of 10,000 ({share})")
