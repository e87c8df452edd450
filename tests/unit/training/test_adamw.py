"""Our AdamW makes the updates of torch's, bit for bit, but a worker does not import torch's compiler for it."""

import math
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learners import learn_steps, small_learner
from torch import Tensor, nn

from dragoman.corpus.batching import FIRST_POSITION
from dragoman.run.checkpoints import MODEL_FILE, OPTIMIZER_FILE
from dragoman.run.config import build_settings, dump_settings
from dragoman.run.folder import RunFolder
from dragoman.training.adamw import AdamW
from dragoman.training.checkpoint import Snapshot, TrainingState, restore_learner, save_checkpoint
from dragoman.training.learner import Learner, optimizer_tensors, set_learning_rate

FINGERPRINT = "0123456789abcdef" * 4
HYPERPARAMETERS = {"weight_decay": 0.1, "clip_norm": 0.5}
TWO_RANKS = """
import sys
from pathlib import Path
from dragoman.cluster.environment import RankInfo
from dragoman.cluster.rendezvous import join_rendezvous
from dragoman.run.folder import RunFolder
from dragoman.training.worker import end_process, train_on_rank

run, rank = RunFolder(Path(sys.argv[1])), int(sys.argv[2])
reason = train_on_rank(run, join_rendezvous(RankInfo(rank, 2, rank, "srun", "job-1"), run.path))
print("end:", reason.name, *sorted(name for name in ("torch", "torch._dynamo") if name in sys.modules))
end_process(0)
"""


def same_bits(ours: Tensor, theirs: Tensor) -> bool:
    """Compares bytes: NaN equals NaN, and -0 is not 0."""
    return ours.dtype == theirs.dtype and ours.detach().numpy().tobytes() == theirs.detach().numpy().tobytes()


def require_same_state(ours: AdamW, theirs: torch.optim.Optimizer) -> None:
    """Compares weights and the whole state of two optimizers."""
    for our_group, their_group in zip(ours.param_groups, theirs.param_groups, strict=True):
        for parameter, other in zip(our_group["params"], their_group["params"], strict=True):
            assert same_bits(parameter, other)
            assert (parameter in ours.state) == (other in theirs.state)
            if parameter in ours.state:
                assert ours.state[parameter].keys() == theirs.state[other].keys() == {"step", "exp_avg", "exp_avg_sq"}
                assert all(
                    same_bits(ours.state[parameter][name], theirs.state[other][name]) for name in theirs.state[other]
                )


def with_torchs_optimizer(learner: Learner) -> Learner:
    """Replaces the optimizer by the one that the learner had before ours existed."""
    settings = learner.settings
    groups = [dict(group) for group in learner.optimizer.param_groups]
    learner.optimizer = torch.optim.AdamW(
        groups, lr=0.0, betas=(settings.beta1, settings.beta2), eps=settings.epsilon, fused=True
    )
    return learner


# The same updates

SHAPES = st.lists(st.integers(1, 40), max_size=3).map(tuple)
RATES = st.floats(0, 1)
GRADIENT_SCALES = st.sampled_from([None, 0.0, 1e-30, 1e-8, 1e-3, 1.0, 1e4, 1e20, math.inf, math.nan])
"""Factors of random gradients; None for no gradient."""


@settings(deadline=None)
@given(
    groups=st.lists(st.tuples(st.lists(SHAPES, max_size=4), st.floats(0, 0.5)), min_size=1, max_size=3),
    betas=st.tuples(st.floats(0, 0.9999), st.floats(0, 0.99999)),
    eps=st.floats(0, 1e-3),
    steps=st.lists(st.tuples(RATES, st.lists(GRADIENT_SCALES, min_size=1, max_size=5)), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
)
def test_every_step_has_the_bits_of_torchs(groups, betas, eps, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    initial = [[torch.randn(shape, generator=generator) for shape in shapes] for shapes, _ in groups]
    if not any(initial):
        initial[0] = [torch.randn(3, generator=generator)]
    decays = [weight_decay for _, weight_decay in groups]
    our_groups, their_groups = (
        [
            {"params": [nn.Parameter(tensor.clone()) for tensor in tensors], "weight_decay": decay, "lr": 0.0}
            for tensors, decay in zip(initial, decays, strict=True)
        ]
        for _ in range(2)
    )
    ours, theirs = AdamW(our_groups, betas, eps), torch.optim.AdamW(their_groups, betas=betas, eps=eps, fused=True)
    for rate, scales in steps:
        scale_of_next = cycle(scales)
        for our_group, their_group in zip(our_groups, their_groups, strict=True):
            for parameter, other in zip(our_group["params"], their_group["params"], strict=True):
                scale = next(scale_of_next)
                gradient = None if scale is None else torch.randn(parameter.shape, generator=generator) * scale
                parameter.grad, other.grad = gradient, None if gradient is None else gradient.clone()
        set_learning_rate(ours, rate)
        set_learning_rate(theirs, rate)
        ours.step()
        theirs.step()
        require_same_state(ours, theirs)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_learner_makes_the_same_updates_as_with_torchs(precision):
    """The scale of fp16 is so high that the first updates overflow and are skipped."""
    ours = small_learner(precision=precision, **HYPERPARAMETERS)
    theirs = with_torchs_optimizer(small_learner(precision=precision, **HYPERPARAMETERS))
    for learner in (ours, theirs):
        learner.loss_scale.value *= 2.0**10 if precision == "fp16" else 1
    for step in range(20):
        for learner in (ours, theirs):
            set_learning_rate(learner.optimizer, 0.01 * (step + 1))
            learn_steps(learner, step)
        require_same_state(ours.optimizer, theirs.optimizer)
    assert ours.loss_scale == theirs.loss_scale
    assert (ours.loss_scale.num_skipped_steps > 0) == (precision == "fp16")
    assert ours.optimizer.state


# Checkpoints


def save(run: Path, learner: Learner, step: int) -> Path:
    state = TrainingState(
        step, step, FIRST_POSITION, learner.loss_scale, 1.0, learner.model.shape, data_fingerprint=FINGERPRINT
    )
    moments = optimizer_tensors(learner.model, learner.optimizer)
    return save_checkpoint(RunFolder(run), Snapshot(state, dict(learner.model.named_parameters()), moments))


def test_a_checkpoint_written_with_torchs_is_restored_and_training_goes_on_with_the_same_bits(tmp_path):
    theirs = with_torchs_optimizer(small_learner(**HYPERPARAMETERS))
    learn_steps(theirs, *range(4))
    ours = small_learner(model_seed=99, **HYPERPARAMETERS)
    restore_learner(save(tmp_path / "theirs", theirs, 4), ours, FINGERPRINT)
    require_same_state(ours.optimizer, theirs.optimizer)
    set_learning_rate(theirs.optimizer, 0.02)
    set_learning_rate(ours.optimizer, 0.02)
    for step in range(4, 8):
        learn_steps(theirs, step)
        learn_steps(ours, step)
        require_same_state(ours.optimizer, theirs.optimizer)


def test_checkpoints_have_the_same_files_as_with_torchs(tmp_path):
    ours, theirs = small_learner(**HYPERPARAMETERS), with_torchs_optimizer(small_learner(**HYPERPARAMETERS))
    set_learning_rate(theirs.optimizer, ours.optimizer.param_groups[0]["lr"])
    learn_steps(ours, *range(3))
    learn_steps(theirs, *range(3))
    our_folder, their_folder = save(tmp_path / "ours", ours, 3), save(tmp_path / "theirs", theirs, 3)
    for name in (MODEL_FILE, OPTIMIZER_FILE):
        assert (our_folder / name).read_bytes() == (their_folder / name).read_bytes()


# The start of a worker


def test_workers_train_without_importing_torchs_compiler(prepared, tmp_path):
    """Importing torch._dynamo takes 1.3 s of every start."""
    settings = build_settings(
        {
            "data": {"prepared": str(prepared)},
            "model": {"preset": "tiny", "width": 16, "feed_forward": 16},
            "training": {"max_steps": 2, "global_batch_tokens": 256, "virtual_workers": 2},
            "evaluation": {"beam_size": 1, "max_sentences": 4, "evaluate_every": 1},
        }
    )
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.config.write_text(dump_settings(settings), encoding="utf-8")
    commands = [[sys.executable, "-c", TWO_RANKS, str(run.path), str(rank)] for rank in range(2)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        for worker in workers:
            output, _ = worker.communicate(timeout=200)
            assert output.splitlines()[-1] == "end: STEPS torch"
    finally:
        for worker in workers:
            worker.kill()
    assert (run.checkpoint(2) / OPTIMIZER_FILE).exists()
