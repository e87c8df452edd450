"""Saving beside the steps: what is written is the moment it was asked for, and no disk stops or delays a step."""

import errno
import os
import threading
import time

import pytest
import torch
from checkpoint_folders import flip_bit
from learners import SMALL_SHAPE, learn_steps, small_learner

from dragoman.corpus.batching import BatchPosition
from dragoman.model.weights import load_tensors
from dragoman.run.checkpoints import MODEL_FILE, OPTIMIZER_FILE, newest_complete_checkpoint, verify_checkpoint
from dragoman.run.commands import resume_command
from dragoman.run.config import CheckpointSettings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.training import checkpoint as checkpoint_module
from dragoman.training import saving
from dragoman.training.checkpoint import TrainingState, read_state
from dragoman.training.kept_checkpoints import KeptCheckpoints
from dragoman.training.learner import Learner, LossScale, optimizer_tensors
from dragoman.training.saving import CheckpointSaver, ReplicaTensors, Saved, SaveFailed

SECONDS = 20.0


def build_learner() -> Learner:
    """Builds a learner whose loss scale changes with every step."""
    learner = small_learner()
    learner.loss_scale = LossScale(is_dynamic=True)
    return learner


def state_of(step: int, learner: Learner, **evaluation: float) -> TrainingState:
    position = BatchPosition(epoch=0, pool=0, micro_batch=step, step=step)
    return TrainingState(step, step, position, learner.loss_scale, 1.0, SMALL_SHAPE, "0" * 64, evaluation or None)


def copies_of(learner: Learner) -> dict[str, torch.Tensor]:
    tensors = dict(learner.model.named_parameters()) | optimizer_tensors(learner.model, learner.optimizer)
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def wait_for_outcomes(saver: CheckpointSaver) -> list[Saved | SaveFailed]:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if outcomes := saver.poll():
            return outcomes
        time.sleep(0.002)
    raise AssertionError("nothing ended")


def saver_of(run: RunFolder, saved_step: int | None = None, **keep: int) -> CheckpointSaver:
    return CheckpointSaver(run, KeptCheckpoints(run, CheckpointSettings(**keep), "bleu"), saved_step)


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run")


@pytest.fixture
def learner():
    return build_learner()


@pytest.fixture
def saver(run):
    with saver_of(run, keep_last=1_000) as saver:
        yield saver


class Gate:
    """A slow disk: fsync waits until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_open = threading.Event()
        whole = os.fsync

        def slow_fsync(descriptor: int) -> None:
            assert self._is_open.wait(SECONDS)
            whole(descriptor)

        monkeypatch.setattr(os, "fsync", slow_fsync)

    def open(self) -> None:
        self._is_open.set()


@pytest.fixture
def slow_disk(monkeypatch):
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


@pytest.fixture
def refuse(monkeypatch):
    """Makes the disk refuse, until the returned context is undone."""

    def refuse_with(number: int) -> pytest.MonkeyPatch:
        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        patch = pytest.MonkeyPatch()
        patch.setattr(checkpoint_module, "fsync_folder", fail)
        patches.append(patch)
        return patch

    patches: list[pytest.MonkeyPatch] = []
    monkeypatch.setattr(saving, "FINAL_PAUSE_SECONDS", 0.0)
    yield refuse_with
    for patch in patches:
        patch.undo()


# What is written


def test_a_checkpoint_holds_the_moment_it_was_asked_for_though_steps_go_on(run, saver, learner, slow_disk):
    learn_steps(learner, 0)
    learner.loss_scale.value = 64.0
    expected = copies_of(learner)
    assert saver.save(state_of(1, learner), learner)
    for step in range(1, 4):
        learn_steps(learner, step)
    learner.loss_scale.value = 32.0
    slow_disk.open()
    (saved,) = wait_for_outcomes(saver)
    verify_checkpoint(saved.path)
    written = load_tensors(saved.path / MODEL_FILE) | load_tensors(saved.path / OPTIMIZER_FILE)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    assert not all(torch.equal(copies_of(learner)[name], expected[name]) for name in expected)
    assert read_state(saved.path).loss_scale.value == 64.0


def test_memory_for_the_copy_is_taken_once(saver, learner):
    learn_steps(learner, 0)
    addresses = []
    for step in (1, 2):
        snapshot = saver._copy.take(state_of(step, learner), learner)
        addresses.append([tensor.data_ptr() for tensor in (*snapshot.weights.values(), *snapshot.moments.values())])
    assert addresses[0] == addresses[1]
    assert not set(addresses[0]) & {parameter.data_ptr() for parameter in learner.model.parameters()}


def test_the_outcome_tells_path_size_and_both_times_once(run, saver, learner):
    saver.save(state_of(5, learner), learner)
    (saved,) = wait_for_outcomes(saver)
    assert saver.poll() == []
    assert (saved.step, saved.path) == (5, run.checkpoint(5))
    figures = saved.figures()
    assert figures["bytes"] == sum(file.stat().st_size for file in saved.path.iterdir())
    assert figures["path"] == str(saved.path)
    assert figures["snapshot_seconds"] > 0
    assert figures["seconds"] > 0


def test_the_time_to_bring_the_state_of_replicas_is_that_of_the_checkpoint(run, saver, learner):
    saver.save(state_of(5, learner), learner, ReplicaTensors(seconds=1_000.0))
    (saved,) = wait_for_outcomes(saver)
    assert 1_000 < saved.figures()["snapshot_seconds"] < 1_020


# A slow disk


def test_steps_go_on_and_saves_are_postponed_while_the_disk_is_slow(run, saver, learner, slow_disk):
    assert saver.save(state_of(0, learner), learner)
    for step in range(1, 20):
        learn_steps(learner, step)
        begin = time.monotonic()
        assert not saver.save(state_of(step, learner), learner)
        assert saver.poll() == []
        assert time.monotonic() - begin < 1.0
    assert run.checkpoint_steps() == []
    slow_disk.open()
    assert [outcome.step for outcome in wait_for_outcomes(saver)] == [0]
    assert saver.save(state_of(20, learner), learner)
    assert [outcome.step for outcome in wait_for_outcomes(saver)] == [20]
    assert run.checkpoint_steps() == [0, 20]


def test_a_checkpoint_on_its_way_is_known_to_be_the_best(saver, learner, slow_disk):
    saver.save(state_of(1, learner, loss=2.0, bleu=0.0), learner)
    assert not saver.is_among_best(9, {"loss": 2.5, "bleu": 0.0})
    assert saver.is_among_best(9, {"loss": 1.5, "bleu": 0.0})
    slow_disk.open()
    wait_for_outcomes(saver)
    assert not saver.is_among_best(9, {"loss": 2.5, "bleu": 0.0})


def test_damage_of_older_checkpoints_is_part_of_the_outcome(run, saver, learner):
    saver.save(state_of(1, learner, loss=2.0, bleu=9.0), learner)
    wait_for_outcomes(saver)
    flip_bit(run.checkpoint(1) / MODEL_FILE)
    with saver_of(run) as restarted:
        restarted.save(state_of(2, learner, loss=2.0, bleu=5.0), learner)
        (saved,) = wait_for_outcomes(restarted)
    assert isinstance(saved, Saved)
    assert [problem for problem in saved.problems if "step-00000001/model.safetensors is damaged" in problem]
    assert str((run.checkpoints / "best").readlink()) == "step-00000002"


def test_leaving_waits_for_what_is_being_written(run, learner, slow_disk):
    with saver_of(run) as saver:
        saver.save(state_of(3, learner), learner)
        threading.Timer(0.05, slow_disk.open).start()
    verify_checkpoint(run.checkpoint(3))


# A disk that refuses


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "there is no space left on the disk"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EIO, "the disk reports an input/output error"),
    ],
)
def test_a_refusal_is_an_outcome_and_the_one_before_stays(run, saver, learner, refuse, number, words):
    saver.save_now(state_of(1, learner), learner)
    saver.poll()
    refuse(number)
    assert saver.save(state_of(2, learner), learner)
    (failed,) = wait_for_outcomes(saver)
    assert isinstance(failed, SaveFailed)
    assert failed.error == f"The checkpoint of step 2 could not be written to {run.checkpoints}: {words}."
    assert newest_complete_checkpoint(run, pytest.fail) == run.checkpoint(1)
    assert not list(run.checkpoints.glob(".*"))


def test_after_a_refusal_another_attempt_comes_due(run, saver, learner, refuse, monkeypatch):
    assert not saver.is_retry_due
    disk = refuse(errno.ENOSPC)
    saver.save(state_of(1, learner), learner)
    wait_for_outcomes(saver)
    assert not saver.is_retry_due  # only after a while
    monkeypatch.setattr(saving, "RETRY_SECONDS", 0.0)
    saver.save(state_of(2, learner), learner)
    wait_for_outcomes(saver)
    assert saver.is_retry_due
    disk.undo()
    saver.save(state_of(3, learner), learner)
    assert not saver.is_retry_due  # it is under way
    assert isinstance(wait_for_outcomes(saver)[0], Saved)
    assert not saver.is_retry_due
    assert run.checkpoint_steps() == [3]


def test_a_refused_best_one_does_not_stand_in_the_way_of_the_next(saver, learner, refuse):
    refuse(errno.ENOSPC)
    saver.save(state_of(1, learner, loss=1.0, bleu=0.0), learner)
    wait_for_outcomes(saver)
    assert saver.is_among_best(9, {"loss": 2.0, "bleu": 0.0})


def test_a_fault_that_is_not_the_disks_reaches_the_loop(saver, learner, monkeypatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(saving, "save_checkpoint", fail)
    saver.save(state_of(1, learner), learner)
    with pytest.raises(ZeroDivisionError, match="a mistake of ours"):
        wait_for_outcomes(saver)


# The beginning and the end of a run


def test_a_run_that_cannot_be_saved_at_its_start_does_not_start(run, saver, learner, refuse):
    refuse(errno.ENOSPC)
    with pytest.raises(
        UserError, match=r"step 0 could not be .*: there is no space left on the disk\. Nothing is trained yet\.$"
    ):
        saver.save_now(state_of(0, learner), learner)
    assert saver.poll() == []


def test_the_end_waits_for_the_writer_and_saves_the_last_state(run, saver, learner, slow_disk):
    saver.save(state_of(1, learner), learner)
    learn_steps(learner, 1)
    threading.Timer(0.05, slow_disk.open).start()
    saver.finish(state_of(2, learner), learner)
    assert [outcome.step for outcome in saver.poll()] == [1, 2]
    assert run.checkpoint_steps() == [1, 2]


@pytest.mark.parametrize("is_on_its_way", [True, False])
def test_a_last_state_that_is_saved_already_is_not_saved_again(saver, learner, is_on_its_way):
    saver.save(state_of(2, learner), learner)
    if not is_on_its_way:
        wait_for_outcomes(saver)
    saver.finish(state_of(2, learner), learner)
    assert len(saver.poll()) == is_on_its_way


def test_a_resumed_run_knows_what_it_came_from(run, learner):
    with saver_of(run, saved_step=9) as saver:
        saver.finish(state_of(9, learner), learner)
    assert run.checkpoint_steps() == []


def test_a_saved_step_of_which_more_is_known_is_saved_again(run, learner, refuse):
    with saver_of(run) as saver:
        saver.finish(state_of(9, learner), learner)
        saver.mark_outdated()
        disk = refuse(errno.ENOSPC)
        with pytest.raises(UserError, match=r"of step 9 is kept\. Continue from it with: .*train --resume"):
            saver.finish(state_of(9, learner, loss=1.0, bleu=2.0), learner)
        verify_checkpoint(run.checkpoint(9))
        disk.undo()
        saver.finish(state_of(9, learner, loss=1.0, bleu=2.0), learner)
        assert read_state(run.checkpoint(9)).evaluation == {"loss": 1.0, "bleu": 2.0}
        saver.poll()
        saver.finish(state_of(9, learner), learner)
        assert saver.poll() == []


def test_the_end_tries_again(run, saver, learner, refuse, monkeypatch):
    disk = refuse(errno.ENOSPC)
    monkeypatch.setattr(saving.time, "sleep", lambda _: disk.undo())
    saver.finish(state_of(2, learner), learner)
    failed, saved = saver.poll()
    assert isinstance(failed, SaveFailed)
    assert isinstance(saved, Saved)
    verify_checkpoint(run.checkpoint(2))


def test_an_end_that_cannot_be_saved_says_what_stays(run, saver, learner, refuse):
    saver.save_now(state_of(1, learner), learner)
    saver.poll()
    refuse(errno.EROFS)
    with pytest.raises(UserError) as raised:
        saver.finish(state_of(2, learner), learner)
    assert str(raised.value) == (
        f"The last state, of step 2, could not be written to {run.checkpoints}: the file system is read-only. "
        f"The checkpoint of step 1 is kept. Continue from it with: {resume_command(run.path)}"
    )
    assert [outcome.step for outcome in saver.poll()] == [2, 2]  # the last of three is told by the error itself
    verify_checkpoint(run.checkpoint(1))
