"""The weights that `--checkpoint` names, one checkpoint or an average of several."""

from dataclasses import replace

import pytest
import torch
from checkpoint_folders import flip_bit
from learners import SMALL_SHAPE, learn_steps, small_learner

from dragoman.corpus.batching import BatchPosition
from dragoman.model.transformer import Transformer
from dragoman.model.weights import load_tensors
from dragoman.run.checkpoints import MODEL_FILE
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder
from dragoman.training.checkpoint import Snapshot, TrainingState, save_checkpoint
from dragoman.training.learner import optimizer_tensors
from dragoman.translation.chosen_weights import ChosenWeights, load_chosen_weights

LOSSES = {0: 9.0, 1: 3.0, 2: 1.0, 3: 2.0, 4: 4.0}


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """Five checkpoints of one run; step 0 is untrained, step 2 the best."""
    run, learner = RunFolder(tmp_path), small_learner()
    for step, loss in LOSSES.items():
        if step:
            learn_steps(learner, step)
        state = TrainingState(
            step, step, BatchPosition(0, 0, 0, step), learner.loss_scale, 1.0, SMALL_SHAPE, "0" * 64, {"loss": loss}
        )
        weights = {name: each.detach().clone() for name, each in learner.model.named_parameters()}
        moments = {name: each.clone() for name, each in optimizer_tensors(learner.model, learner.optimizer).items()}
        save_checkpoint(run, Snapshot(state, weights, moments))
    return run


def load(run: RunFolder, which: str) -> tuple[ChosenWeights, dict[str, torch.Tensor], list[str]]:
    model, warnings = Transformer(SMALL_SHAPE), []
    chosen = load_chosen_weights(model, run, which, "loss", warnings.append)
    return chosen, dict(model.named_parameters()), warnings


@pytest.mark.parametrize(
    ("which", "steps"),
    [
        ("average:last:2", (3, 4)),
        ("average:best:3", (1, 2, 3)),
        ("average:best:1", (2,)),
        ("average:last:4", (1, 2, 3, 4)),
    ],
)
def test_an_average_is_the_mean_of_its_checkpoints(run, which, steps):
    chosen, weights, warnings = load(run, which)
    assert (chosen.steps, chosen.step, warnings) == (steps, steps[-1], [])
    assert chosen.evaluation is None
    files = [load_tensors(run.checkpoint(step) / MODEL_FILE) for step in steps]
    for name, weight in weights.items():
        mean = torch.stack([each[name].double() for each in files]).mean(0)
        torch.testing.assert_close(weight.detach().double(), mean, rtol=1e-7, atol=1e-9)


def test_fewer_checkpoints_than_asked_for_are_averaged_with_a_warning(run):
    chosen, _, warnings = load(run, "average:last:9")
    assert chosen.steps == (1, 2, 3, 4)  # the untrained model is never part of it
    assert warnings == ["Only 4 of 9 checkpoints to average are there: using these."]
    assert chosen.description == "the average of 4 checkpoints (steps 1, 2, 3 and 4)"


def test_a_damaged_checkpoint_is_left_out_and_the_next_one_used(run):
    flip_bit(run.checkpoint(3) / MODEL_FILE)
    chosen, _, (warning,) = load(run, "average:last:3")
    assert chosen.steps == (1, 2, 4)
    assert "Leaving a checkpoint out of the average" in warning
    assert "step-00000003" in warning


def test_one_checkpoint_comes_with_its_figures(run):
    chosen, weights, _ = load(run, "2")
    assert (chosen.description, chosen.evaluation) == ("the checkpoint of step 2", {"loss": 1.0})
    saved = load_tensors(run.checkpoint(2) / MODEL_FILE)
    assert all(torch.equal(weight, saved[name]) for name, weight in weights.items())


@pytest.mark.parametrize(
    "which", ["average", "average:", "average:best", "average:best:0", "average:worst:3", "average:last:-1"]
)
def test_a_wrong_average_is_a_usage_error(run, which):
    with pytest.raises(UsageError, match="average:best:N or average:last:N"):
        load(run, which)


def test_a_run_without_a_trained_checkpoint_has_no_average(run):
    for step in (1, 2, 3, 4):
        (run.checkpoint(step) / "manifest.json").unlink()
    with pytest.raises(UserError, match="no intact checkpoint of a trained model to average"):
        load(run, "average:last:2")


def test_an_average_of_another_model_is_refused(run):
    with pytest.raises(UserError, match="is from another model"):
        load_chosen_weights(Transformer(replace(SMALL_SHAPE, width=16)), run, "average:last:2", "loss", print)
