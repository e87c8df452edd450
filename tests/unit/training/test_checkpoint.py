"""Saving and restoring: the same bits, the right ones kept, and no failure that costs an older checkpoint."""

import dataclasses
import errno
import json
import os
from pathlib import Path

import pytest
import torch
from learners import SMALL_SHAPE, learn_steps, small_learner

from dragoman.corpus.batching import BatchPosition
from dragoman.model.weights import load_tensors, save_tensors
from dragoman.run.checkpoints import OPTIMIZER_FILE, STATE_FILE, newest_complete_checkpoint, verify_checkpoint
from dragoman.run.config import CheckpointSettings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.training import checkpoint as checkpoint_module
from dragoman.training.checkpoint import (
    Snapshot,
    TrainingState,
    read_state,
    restore_learner,
    save_checkpoint,
)
from dragoman.training.kept_checkpoints import KeptCheckpoints
from dragoman.training.learner import Learner, LossScale, optimizer_tensors

FINGERPRINT = "0123456789abcdef" * 4
KEEP_ALL = CheckpointSettings(keep_last=1_000)


def make_state(step: int, learner: Learner, evaluation: dict[str, float] | None = None) -> TrainingState:
    return TrainingState(
        step=step,
        num_updates=step,
        position=BatchPosition(epoch=2, pool=5, micro_batch=17, step=step),
        loss_scale=learner.loss_scale,
        training_seconds=12.5,
        model=learner.model.shape,
        data_fingerprint=FINGERPRINT,
        evaluation=evaluation,
    )


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run")


@pytest.fixture(scope="module")
def fresh():
    """A learner that has made no update; tests that change it build their own."""
    return small_learner()


def save(run: RunFolder, step: int, learner: Learner, keep: CheckpointSettings = KEEP_ALL, **evaluation: float) -> Path:
    moments = optimizer_tensors(learner.model, learner.optimizer)
    state = make_state(step, learner, evaluation or None)
    path = save_checkpoint(run, Snapshot(state, dict(learner.model.named_parameters()), moments))
    KeptCheckpoints(run, keep, keep.best_by or "bleu").add(step)
    return path


def link_target(run: RunFolder, name: str) -> str:
    return str((run.checkpoints / name).readlink())


# The same bits


def test_weights_moments_and_state_come_back_bit_for_bit(run):
    saved = small_learner()
    learn_steps(saved, *range(3))
    checkpoint = save(run, 3, saved, loss=1.5, bleu=20.0)
    verify_checkpoint(checkpoint)
    restored = small_learner(model_seed=99)
    assert restore_learner(checkpoint, restored, FINGERPRINT) == make_state(3, saved, {"loss": 1.5, "bleu": 20.0})
    for old, new in zip(saved.model.parameters(), restored.model.parameters(), strict=True):
        assert torch.equal(old, new)
    before, after = (optimizer_tensors(learner.model, learner.optimizer) for learner in (saved, restored))
    assert before.keys() == after.keys()
    assert len(before) == 2 * len(list(saved.model.parameters()))
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_restored_run_goes_on_as_if_nothing_had_happened(run, precision):
    uninterrupted = small_learner(precision=precision)
    uninterrupted.loss_scale.value = min(uninterrupted.loss_scale.value, 256.0)  # so that fp16 updates at once
    learn_steps(uninterrupted, 0, 1, 2)
    checkpoint = save(run, 3, uninterrupted)
    resumed = small_learner(model_seed=99, precision=precision)
    restore_learner(checkpoint, resumed, FINGERPRINT)
    learn_steps(uninterrupted, *range(3, 6))
    learn_steps(resumed, *range(3, 6))
    for old, new in zip(uninterrupted.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(old, new)
    assert resumed.loss_scale == uninterrupted.loss_scale


def test_a_checkpoint_before_the_first_update_can_be_restored(run, fresh):
    checkpoint = save(run, 0, fresh)
    restored = small_learner(model_seed=99)
    assert restore_learner(checkpoint, restored, FINGERPRINT).step == 0
    assert torch.equal(restored.model.target_embedding, fresh.model.target_embedding)
    assert not restored.optimizer.state


def test_the_loss_scale_is_restored(run):
    learner = small_learner(precision="fp16")
    learner.loss_scale = LossScale(is_dynamic=True, value=512.0, num_good_steps=77, num_skipped_steps=5)
    checkpoint = save(run, 0, learner)
    restored = small_learner(precision="fp16")
    restore_learner(checkpoint, restored, FINGERPRINT)
    assert restored.loss_scale == LossScale(is_dynamic=True, value=512.0, num_good_steps=77, num_skipped_steps=5)


@pytest.mark.parametrize(("saved", "resumed"), [("fp32", "fp16"), ("fp16", "bf16")])
def test_resumed_in_another_precision_the_loss_scale_begins_anew(run, saved, resumed):
    checkpoint = save(run, 0, small_learner(precision=saved))
    restored = small_learner(precision=resumed)
    restore_learner(checkpoint, restored, FINGERPRINT)
    assert restored.loss_scale == LossScale.start(resumed)


def test_the_state_is_readable_json(run, fresh):
    checkpoint = save(run, 7, fresh, loss=2.0, bleu=1.0)
    values = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    assert (values["step"], values["position"]) == (7, {"epoch": 2, "pool": 5, "micro_batch": 17, "step": 7})
    assert read_state(checkpoint) == make_state(7, fresh, {"loss": 2.0, "bleu": 1.0})


# Refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 16}, "width: 8, 16"),
        ({"encoder_layers": 2}, "encoder_layers: 1, 2"),
        ({"target_vocab_size": 13, "source_vocab_size": 13}, "source_vocab_size: 12, 13; target_vocab_size: 12, 13"),
        ({"shares_vocabulary": False}, "shares_vocabulary: True, False"),
        ({"heads": 4}, "heads: 2, 4"),  # the same matrices, cut otherwise: resuming would quietly wreck the model
    ],
)
def test_a_checkpoint_of_another_model_is_refused_in_words(run, fresh, changes, words):
    checkpoint = save(run, 0, fresh)
    with pytest.raises(UserError, match=rf"from another model. Settings that differ \(checkpoint, now\): {words}"):
        restore_learner(checkpoint, small_learner(dataclasses.replace(SMALL_SHAPE, **changes)), FINGERPRINT)


def test_a_resumed_run_may_change_its_dropout(run, fresh):
    checkpoint = save(run, 0, fresh)
    changed = small_learner(dataclasses.replace(SMALL_SHAPE, dropout=0.4), seed=5)
    assert restore_learner(checkpoint, changed, FINGERPRINT).step == 0
    assert torch.equal(changed.model.target_embedding, fresh.model.target_embedding)


def test_a_checkpoint_of_other_data_is_refused_in_words(run, fresh):
    checkpoint = save(run, 0, fresh)
    expected = r"other prepared data than data.prepared holds now \(fingerprint fedc.*--set data.prepared=FOLDER"
    with pytest.raises(UserError, match=expected):
        restore_learner(checkpoint, small_learner(), "fedc" * 16)


def test_a_refused_checkpoint_changes_no_weight(run, fresh):
    checkpoint = save(run, 0, fresh)
    other = small_learner(seed=5)
    before = other.model.target_embedding.detach().clone()
    with pytest.raises(UserError):
        restore_learner(checkpoint, other, "other")
    assert torch.equal(other.model.target_embedding, before)


def test_a_moment_that_is_missing_is_named(run):
    learner = small_learner()
    learn_steps(learner, *range(1))
    checkpoint = save(run, 1, learner)
    moments = load_tensors(checkpoint / OPTIMIZER_FILE)
    del moments["exp_avg_sq/decoder.norm.bias"]
    save_tensors(checkpoint / OPTIMIZER_FILE, moments)
    with pytest.raises(UserError, match=r"optimizer.safetensors .* exp_avg_sq/decoder.norm.bias is absent, expected 8"):
        restore_learner(checkpoint, small_learner(), FINGERPRINT)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (torch.zeros(3), "is 3 float32, expected 8 float32"),
        (torch.zeros(8, dtype=torch.float16), "is 8 float16, expected 8 float32"),
        (torch.full((8,), torch.nan), "has values that are NaN or infinite"),
    ],
)
def test_a_moment_that_does_not_fit_is_named_and_changes_nothing(run, wrong, words):
    learner = small_learner()
    learn_steps(learner, 0)
    checkpoint = save(run, 1, learner)
    moments = load_tensors(checkpoint / OPTIMIZER_FILE)
    save_tensors(checkpoint / OPTIMIZER_FILE, moments | {"exp_avg/decoder.norm.bias": wrong})
    other = small_learner(model_seed=5)
    before = other.model.target_embedding.detach().clone()
    with pytest.raises(UserError, match=rf"optimizer.safetensors .* exp_avg/decoder.norm.bias {words}"):
        restore_learner(checkpoint, other, FINGERPRINT)
    assert torch.equal(other.model.target_embedding, before)
    assert not other.optimizer.state


@pytest.mark.parametrize(
    "change", [{"format_version": None}, {"stray": 1}, {"position": None}, {"model": {"width": 8}}]
)
def test_a_state_of_another_make_is_refused_by_name(run, fresh, change):
    checkpoint = save(run, 0, fresh)
    values = json.loads((checkpoint / STATE_FILE).read_text())
    (checkpoint / STATE_FILE).write_text(json.dumps(values | change))
    with pytest.raises(UserError, match=r"state.json cannot be read"):
        read_state(checkpoint)


def test_a_state_of_a_later_program_is_refused_with_what_to_do(run, fresh):
    checkpoint = save(run, 0, fresh)
    values = json.loads((checkpoint / STATE_FILE).read_text())
    (checkpoint / STATE_FILE).write_text(json.dumps(values | {"format_version": 3, "news": 1}))
    with pytest.raises(UserError, match=r"state.json was .* later dragoman \(format 3, this program reads 2\): update"):
        restore_learner(checkpoint, small_learner(), FINGERPRINT)


def test_a_state_of_an_earlier_program_is_refused_with_what_to_do(run, fresh):
    checkpoint = save(run, 0, fresh)
    values = json.loads((checkpoint / STATE_FILE).read_text())
    old = values | {"format_version": 1, "position": {"epoch": 2, "step_in_epoch": 17}}
    (checkpoint / STATE_FILE).write_text(json.dumps(old))
    with pytest.raises(UserError, match=r"state.json.*format version 1.*reads version 2; continue the run with"):
        read_state(checkpoint)


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", "3"])
def test_a_state_that_is_none_is_refused_by_name(run, fresh, content):
    checkpoint = save(run, 0, fresh)
    (checkpoint / STATE_FILE).write_text(content)
    with pytest.raises(UserError, match=r"state.json cannot be read"):
        read_state(checkpoint)


# What is kept


def test_the_last_ones_are_kept_and_latest_points_at_the_newest(run, fresh):
    keep = CheckpointSettings(keep_last=2, keep_best=0)
    for step in (10, 20, 30, 40):
        save(run, step, fresh, keep)
        assert link_target(run, "latest") == f"step-{step:08d}"
    assert run.checkpoint_steps() == [30, 40]
    assert not (run.checkpoints / "best").is_symlink()


def test_the_checkpoint_just_written_is_never_the_one_removed(run, fresh):
    """A resumed run that passed over a damaged newer checkpoint saves steps below it, on SIGTERM for example."""
    keep = CheckpointSettings(keep_last=1, keep_best=1)
    save(run, 20, fresh, loss=1.0, bleu=1.0)
    save(run, 30, fresh)
    (run.checkpoint(30) / OPTIMIZER_FILE).write_bytes(b"damaged")
    assert newest_complete_checkpoint(run, lambda _: None) == run.checkpoint(20)
    written = save(run, 25, fresh, keep)
    assert written.is_dir()
    assert newest_complete_checkpoint(run, lambda _: None) == run.checkpoint(25)
    assert (run.checkpoints / "latest").exists()


def test_a_step_that_is_passed_again_is_written_anew(run, fresh):
    save(run, 10, fresh)
    (run.checkpoint(10) / STATE_FILE).write_text("damaged")
    save(run, 10, fresh, loss=1.0, bleu=2.0)
    verify_checkpoint(run.checkpoint(10))
    assert read_state(run.checkpoint(10)).evaluation == {"loss": 1.0, "bleu": 2.0}
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["best", "latest", "step-00000010"]


@pytest.mark.parametrize("is_broken_twice", [False, True])
def test_a_step_that_cannot_be_replaced_stays(run, fresh, monkeypatch, is_broken_twice):
    """The old one is moved out of the way first: it must come back, at the latest with the next attempt."""
    save(run, 10, fresh)
    whole = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if target == run.checkpoint(10) and (path.name.endswith(".partial") or is_broken_twice):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(path, target)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            save(run, 10, fresh, loss=1.0, bleu=2.0)
    if is_broken_twice:
        monkeypatch.setattr(checkpoint_module, "save_tensors", fail_with(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left"):
            save(run, 20, fresh)
    assert read_state(run.checkpoint(10)).evaluation is None
    verify_checkpoint(run.checkpoint(10))


def test_what_an_earlier_crash_left_is_no_obstacle(run, fresh):
    for name in (".step-00000010.partial", ".step-00000010.old"):
        (run.checkpoints / name).mkdir(parents=True)
        (run.checkpoints / name / "rubbish").write_text("half")
    assert run.checkpoint_steps() == []
    save(run, 10, fresh)
    verify_checkpoint(run.checkpoint(10))
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["latest", "step-00000010"]


# A full disk


def fail_with(number: int):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("function", ["save_tensors", "write_json", "sha256", "fsync_folder"])
def test_a_full_disk_costs_no_older_checkpoint(run, fresh, monkeypatch, function):
    save(run, 10, fresh)
    before = {path.name: path.read_bytes() for path in run.checkpoint(10).iterdir()}
    monkeypatch.setattr(checkpoint_module, function, fail_with(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        save(run, 20, fresh, CheckpointSettings(keep_last=1))
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["latest", "step-00000010"]
    assert {path.name: path.read_bytes() for path in run.checkpoint(10).iterdir()} == before
    verify_checkpoint(run.checkpoint(10))
    assert link_target(run, "latest") == "step-00000010"


def test_a_disk_that_fills_up_in_the_middle_of_a_file_leaves_no_trace(run, fresh, monkeypatch):
    save(run, 10, fresh)
    monkeypatch.setattr(os, "fsync", fail_with(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        save(run, 20, fresh)
    monkeypatch.undo()
    assert run.checkpoint_steps() == [10]
    save(run, 20, fresh)
    verify_checkpoint(run.checkpoint(20))
