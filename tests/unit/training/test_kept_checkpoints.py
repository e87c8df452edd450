"""Which checkpoints stay and which is the best: by metric, loss and step, and never a damaged one."""

import math
import shutil
from pathlib import Path

import pytest
from checkpoint_folders import cut_off, flip_bit, make_checkpoint

from dragoman.run import checkpoints as checkpoints_module
from dragoman.run.checkpoints import MANIFEST_FILE, MODEL_FILE, STATE_FILE
from dragoman.run.config import CheckpointSettings, Metric
from dragoman.run.files import sha256
from dragoman.run.folder import RunFolder
from dragoman.training.kept_checkpoints import KeptCheckpoints

NAN = math.nan


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run")


def keeping(run: RunFolder, best_by: Metric = "bleu", keep_last: int = 1, keep_best: int = 1) -> KeptCheckpoints:
    return KeptCheckpoints(run, CheckpointSettings(keep_last=keep_last, keep_best=keep_best), best_by)


def save(kept: KeptCheckpoints, run: RunFolder, step: int, **evaluation: float | str) -> list[str]:
    make_checkpoint(run, step, **evaluation)
    return kept.add(step)


def best_step(run: RunFolder) -> int | None:
    link = run.checkpoints / "best"
    return int(str(link.readlink()).removeprefix("step-")) if link.is_symlink() else None


# The best one


@pytest.mark.parametrize(
    ("best_by", "figures", "best"),
    [("loss", [3.0, 1.0, 2.0, 4.0], 20), ("bleu", [3.0, 1.0, 9.0, 4.0], 30), ("chrf", [3.0, 10.0, 9.0, 4.0], 20)],
)
def test_the_best_by_the_metric_is_kept_besides_the_last(run, best_by, figures, best):
    kept = keeping(run, best_by)
    for step, figure in zip((10, 20, 30, 40), figures, strict=True):
        save(kept, run, step, **{"loss": 0.0, "bleu": 0.0, "chrf": 0.0} | {best_by: figure})
    assert run.checkpoint_steps() == [best, 40]
    assert best_step(run) == best


def test_several_best_are_kept_and_the_link_points_at_the_first_of_them(run):
    kept = keeping(run, keep_best=2)
    for step, bleu in ((10, 5.0), (20, 30.0), (30, 7.0), (40, 20.0), (50, 1.0), (60, 2.0)):
        save(kept, run, step, loss=1.0, bleu=bleu)
    assert run.checkpoint_steps() == [20, 40, 60]
    assert best_step(run) == 20


@pytest.mark.parametrize("best_by", ["bleu", "chrf"])
def test_ties_go_to_the_lower_loss(run, best_by):
    """Japanese that a wrong tokenizer scores with BLEU 0.0: the trained model is the best, not the untrained one."""
    kept = keeping(run, best_by)
    for step, loss in ((10, 9.0), (20, 2.0), (30, 3.0)):
        save(kept, run, step, loss=loss, bleu=0.0, chrf=0.0)
    assert best_step(run) == 20


@pytest.mark.parametrize("best_by", ["bleu", "loss"])
def test_ties_of_metric_and_loss_go_to_the_later_step(run, best_by):
    kept = keeping(run, best_by)
    for step in (10, 20, 30):
        save(kept, run, step, loss=2.0, bleu=0.0)
    assert best_step(run) == 30


@pytest.mark.parametrize(
    "bad", [{"bleu": NAN, "loss": 0.1}, {"bleu": math.inf, "loss": 0.1}, {"bleu": NAN, "loss": NAN}]
)
def test_figures_that_are_not_numbers_rank_last(run, bad):
    kept = keeping(run, keep_last=5)
    save(kept, run, 10, **bad)
    assert best_step(run) == 10
    save(kept, run, 20, loss=9.0, bleu=0.0)
    save(kept, run, 30, **bad)
    assert best_step(run) == 20
    assert not kept.is_among_best(40, bad)


def test_evaluations_of_earlier_programs_lack_chrf_and_rank_after_those_that_have_it(run):
    kept = keeping(run, "chrf", keep_last=5)
    save(kept, run, 10, loss=1.0, bleu=30.0)
    save(kept, run, 20, loss=0.5, bleu=20.0)
    assert best_step(run) == 20
    assert kept.is_among_best(30, {"loss": 3.0, "bleu": 1.0, "chrf": 1.0})
    save(kept, run, 30, loss=3.0, bleu=1.0, chrf=1.0)
    assert best_step(run) == 30


@pytest.mark.parametrize(("best_by", "best"), [("bleu", 30), ("chrf", 10)])
def test_bleu_of_another_tokenizer_is_not_compared(run, best_by, best):
    """As after --resume --set evaluation.tokenizer=13a; an evaluation without a tokenizer counts as the same."""
    kept = keeping(run, best_by, keep_last=5)
    save(kept, run, 5, loss=3.0, bleu=6.0, chrf=20.0)
    save(kept, run, 10, loss=2.0, bleu=60.0, chrf=50.0, tokenizer="char")
    assert best_step(run) == 10
    assert kept.is_among_best(20, {"loss": 1.0, "bleu": 7.0, "chrf": 60.0, "tokenizer": "13a"})
    assert not kept.is_among_best(20, {"loss": 1.0, "bleu": 5.0, "chrf": 10.0, "tokenizer": "13a"})
    save(kept, run, 30, loss=1.0, bleu=7.0, chrf=40.0, tokenizer="13a")
    assert best_step(run) == best


def test_checkpoints_that_were_not_evaluated_are_never_the_best(run):
    kept = keeping(run)
    save(kept, run, 10)
    assert best_step(run) is None
    save(kept, run, 20, loss=5.0, bleu=0.0)
    save(kept, run, 30)
    save(kept, run, 40)
    assert run.checkpoint_steps() == [20, 40]
    assert best_step(run) == 20


def test_a_later_one_left_from_before_a_resume_is_not_the_best(run):
    kept = keeping(run, keep_last=10)
    for step, loss in ((1, 3.0), (3, 1.0), (2, 2.0)):
        save(kept, run, step, loss=loss, bleu=0.0)
    assert best_step(run) == 2


def test_where_no_best_ones_are_kept_the_link_points_at_the_best_of_the_last(run):
    """A link to a removed checkpoint would make `translate` take another one."""
    save(keeping(run), run, 10, loss=1.0, bleu=50.0)
    kept = keeping(run, keep_last=2, keep_best=0)
    for step, bleu in ((20, 9.0), (30, 5.0)):
        save(kept, run, step, loss=1.0, bleu=bleu)
    assert (run.checkpoint_steps(), best_step(run)) == ([20, 30], 20)
    for step in (40, 50):
        save(kept, run, step)
    assert (run.checkpoint_steps(), best_step(run)) == ([40, 50], None)


# Whether a step deserves to be kept


@pytest.mark.parametrize(
    ("best_by", "evaluation", "expected"),
    [
        ("loss", {"loss": 1.9, "bleu": 0.0}, True),
        ("loss", {"loss": 2.0, "bleu": 0.0}, True),
        ("loss", {"loss": 2.1, "bleu": 99.0}, False),
        ("bleu", {"loss": 9.9, "bleu": 30.1}, True),
        ("bleu", {"loss": 2.0, "bleu": 30.0}, True),
        ("bleu", {"loss": 2.1, "bleu": 30.0}, False),
    ],
)
def test_whether_a_step_deserves_to_be_kept(run, best_by, evaluation, expected):
    make_checkpoint(run, 10, loss=2.0, bleu=30.0)
    assert keeping(run, best_by).is_among_best(20, evaluation) is expected
    assert keeping(run, best_by, keep_best=2).is_among_best(20, evaluation)
    assert not keeping(run, best_by, keep_best=0).is_among_best(20, evaluation)


def test_one_on_its_way_to_disk_counts_among_the_best_and_only_once(run):
    kept, worse, between = keeping(run, keep_best=2), {"loss": 2.5, "bleu": 0.0}, {"loss": 1.5, "bleu": 0.0}
    make_checkpoint(run, 10, loss=2.0, bleu=0.0)
    on_its_way = (20, {"loss": 1.0, "bleu": 0.0})
    assert kept.is_among_best(30, worse)
    assert not kept.is_among_best(30, worse, being_saved=on_its_way)
    assert kept.is_among_best(30, between, being_saved=on_its_way)
    make_checkpoint(run, 20, loss=1.0, bleu=0.0)  # it has just arrived, and the saver does not know yet
    assert kept.is_among_best(30, between, being_saved=on_its_way)


def test_a_damaged_predecessor_of_the_same_step_and_later_ones_do_not_count(run):
    """The run went back because they are damaged: their own scores must not keep their successors from being saved."""
    for step in (20, 30):
        cut_off(make_checkpoint(run, step, loss=1.0, bleu=9.0) / MODEL_FILE)
    assert keeping(run).is_among_best(20, {"loss": 1.1, "bleu": 8.9})


@pytest.mark.parametrize("name", [MODEL_FILE, STATE_FILE, MANIFEST_FILE])
@pytest.mark.parametrize("damage", [cut_off, lambda path: path.unlink()])
def test_an_incomplete_checkpoint_does_not_count(run, name, damage):
    damage(make_checkpoint(run, 10, loss=1.0, bleu=9.0) / name)
    assert keeping(run).is_among_best(20, {"loss": 2.0, "bleu": 1.0})


# Damage


@pytest.mark.parametrize("damage", [flip_bit, cut_off, lambda path: path.unlink()])
def test_best_moves_from_damage_to_the_next_best_and_this_is_told_once(run, damage):
    before = keeping(run, keep_last=3)
    for step, bleu in ((10, 20.0), (20, 30.0)):
        save(before, run, step, loss=1.0, bleu=bleu)
    damage(run.checkpoint(20) / MODEL_FILE)
    kept = keeping(run)  # as after a restart
    (problem,) = save(kept, run, 30, loss=1.0, bleu=5.0)
    assert "step 20 does not count among the best any more" in problem
    assert MODEL_FILE in problem
    assert best_step(run) == 10
    assert save(kept, run, 40, loss=1.0, bleu=4.0) == []
    assert run.checkpoint_steps() == [10, 20, 40]  # a damaged one is not removed: it may be unreadable only for now
    assert kept.is_among_best(50, {"loss": 1.0, "bleu": 25.0})


@pytest.mark.parametrize("damage", [cut_off, lambda path: path.unlink(), lambda path: path.write_text("[]")])
def test_a_best_whose_state_cannot_be_read_stays_and_this_is_told_once(run, damage):
    kept = keeping(run)
    for step, bleu in ((10, 30.0), (20, 20.0)):
        save(kept, run, step, loss=1.0, bleu=bleu)
    damage(run.checkpoint(10) / STATE_FILE)
    (problem,) = save(kept, run, 30, loss=1.0, bleu=5.0)
    assert "step 10 does not count among the best any more" in problem
    assert STATE_FILE in problem
    assert save(kept, run, 40, loss=1.0, bleu=4.0) == []
    assert (run.checkpoint_steps(), best_step(run)) == ([10, 20, 40], 20)


def test_best_moves_when_its_checkpoint_disappears(run):
    kept = keeping(run, keep_last=2)
    for step, bleu in ((10, 20.0), (20, 30.0)):
        save(kept, run, step, loss=1.0, bleu=bleu)
    shutil.rmtree(run.checkpoint(20))
    save(kept, run, 30)
    assert best_step(run) == 10


def test_without_an_intact_evaluated_checkpoint_there_is_no_best(run):
    save(keeping(run), run, 10, loss=1.0, bleu=20.0)
    flip_bit(run.checkpoint(10) / MODEL_FILE)
    save(keeping(run), run, 20)
    assert best_step(run) is None


def test_a_damaged_step_that_is_written_again_gets_its_rank_back(run):
    save(keeping(run, keep_last=3), run, 10, loss=1.0, bleu=20.0)
    flip_bit(run.checkpoint(10) / MODEL_FILE)
    kept = keeping(run, keep_last=3)
    save(kept, run, 5, loss=1.0, bleu=1.0)
    assert best_step(run) == 5
    save(kept, run, 10, loss=1.0, bleu=20.0)
    assert best_step(run) == 10


def test_hashes_are_compared_once_and_never_of_what_was_just_written(run, monkeypatch):
    for step in (10, 20, 30):
        make_checkpoint(run, step, loss=1.0, bleu=float(step))
    hashed: list[str] = []

    def count(path: Path) -> str:
        hashed.append(path.parent.name)
        return sha256(path)

    monkeypatch.setattr(checkpoints_module, "sha256", count)
    kept = keeping(run, keep_last=5)
    for step in (40, 50, 60):
        save(kept, run, step, loss=1.0, bleu=0.0)
    assert set(hashed) == {"step-00000030"}
    assert len(hashed) == 2  # weights and state


# Folders copied by tools that do not keep links


def test_a_copied_link_is_replaced_by_a_link(run):
    kept = keeping(run, keep_last=3)
    save(kept, run, 10, loss=1.0, bleu=20.0)
    for name in ("latest", "best"):
        (run.checkpoints / name).unlink()
        shutil.copytree(run.checkpoint(10), run.checkpoints / name)
    save(kept, run, 20)
    assert (run.checkpoints / "latest").is_symlink()
    assert best_step(run) == 10
    assert run.checkpoint_steps() == [10, 20]


@pytest.mark.parametrize("keep_last", [1, 3])
def test_a_checkpoint_that_exists_only_as_a_copy_is_kept_under_its_own_name(run, keep_last):
    make_checkpoint(run, 10, loss=1.0, bleu=20.0).rename(run.checkpoints / "best")
    save(keeping(run, keep_last=keep_last), run, 20)
    assert run.checkpoint_steps() == [10, 20]
    assert best_step(run) == 10
