"""The training loop on one rank: what it makes up for, and what it survives."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.cluster.world import World
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.evaluation import validation
from dragoman.evaluation.validation import EvaluationFailedError
from dragoman.model.loss import LossSums
from dragoman.monitoring.watcher import Watcher
from dragoman.run.commands import command_for
from dragoman.run.config import build_settings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.synchronisation import Synchronisation
from dragoman.training import dev_evaluation, learner
from dragoman.training.local_updates import LocalUpdates
from dragoman.training.resuming import plan_resume
from dragoman.training.spent_time import Launch, SpentTime
from dragoman.training.stopping import StepTimer, StopConditions, StopNotice, StopReason
from dragoman.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("every_checkpoint_is_saved")


class Listener(Watcher):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.records: list[tuple[int, float, float]] = []
        self.seconds_per_step = 0.0

    def trained(self, step: int, figures: dict[str, Any], _sample: object = None) -> None:
        self.records.append((step, figures["loss"], figures["gradient_norm"]))
        self.seconds_per_step = figures["seconds_per_step"]

    def say(self, text: str) -> None:
        self.said.append(text)


class Stand:
    """A run folder in which trainers of a tiny model follow each other."""

    def __init__(self, prepared: Path, run: Path) -> None:
        self.prepared = prepared
        self.run = RunFolder(run)
        self.run.path.mkdir()
        self.said: list[str] = []
        self.records: list[tuple[int, float, float]] = []
        self.seconds_per_step = 0.0
        self.stop: StopConditions

    def train(
        self, max_steps: int, evaluate_every: int = 100, plan: Synchronisation | None = None, **checkpoints: Any
    ) -> StopReason:
        """Trains from the newest checkpoint to a step."""
        plan = plan or Synchronisation()
        training = {"max_steps": max_steps, "global_batch_tokens": 256, "virtual_workers": plan.replicas}
        settings = build_settings(
            {
                "data": {"prepared": str(self.prepared)},
                "model": {"preset": "tiny", "width": 16, "feed_forward": 16},
                "training": training | {"log_every": 2},
                "evaluation": {"beam_size": 1, "max_sentences": 4, "evaluate_every": evaluate_every},
                "checkpoints": {"save_every": 100, "keep_last": 10} | checkpoints,
            }
        )
        world, watcher = World(), Listener()
        self.stop = StopConditions(settings.training, SpentTime(Launch("test", 0.0)), StopNotice())
        corpus = PreparedCorpus.open(self.prepared)
        resume = plan_resume(self.run, world, watcher.say)
        trainer = Trainer(self.run, settings, corpus, world, watcher, resume, self.stop, plan)
        reason = trainer.train()
        self.said, self.records = watcher.said, watcher.records
        self.seconds_per_step = watcher.seconds_per_step
        return reason

    def evaluation(self, step: int) -> dict[str, Any] | None:
        return json.loads((self.run.checkpoint(step) / "state.json").read_text(encoding="utf-8"))["evaluation"]


@pytest.fixture
def stand(prepared, tmp_path):
    return Stand(prepared, tmp_path / "run")


def fail(*_: object, **_options: object) -> None:
    raise EvaluationFailedError("rank 0: no memory")


def test_an_evaluation_made_up_for_after_a_resume_is_kept_with_its_step(stand, monkeypatch):
    """The first trainer ends at step 2 without scores, as after a request to stop."""
    with monkeypatch.context() as faulty:
        faulty.setattr(dev_evaluation, "evaluate_on_dev", fail)
        stand.train(max_steps=2, evaluate_every=2)
    assert stand.evaluation(2) is None
    weights = (stand.run.checkpoint(2) / "model.safetensors").read_bytes()
    assert stand.train(max_steps=3, evaluate_every=2) is StopReason.STEPS
    assert stand.evaluation(2)["loss"] > 0
    assert stand.evaluation(2)["tokenizer"] == "13a"
    assert (stand.run.checkpoint(2) / "model.safetensors").read_bytes() == weights


def test_the_time_of_a_failed_evaluation_is_not_that_of_a_step(stand, monkeypatch):
    def fail_slowly(*_: object, **_options: object) -> None:
        time.sleep(0.2)
        fail()

    monkeypatch.setattr(dev_evaluation, "evaluate_on_dev", fail_slowly)
    left_out: list[float] = []
    monkeypatch.setattr(StepTimer, "leave_out", lambda _, seconds: left_out.append(seconds))
    stand.train(max_steps=2, evaluate_every=2)
    (seconds,) = left_out
    assert seconds >= 0.2
    assert stand.stop.spent.measured.evaluation == 0.0
    advice = command_for("evaluate --checkpoint 2", stand.run.path)
    assert any(f"to evaluate it later: {advice}" in said for said in stand.said)


def test_a_step_lasts_until_all_ranks_have_answered(stand, monkeypatch):
    """Replicas that learn apart wait for each other nowhere else."""
    answer = Trainer._await_vote

    def answer_late(trainer: Trainer, vote: Any) -> StopReason:
        time.sleep(0.2)
        return answer(trainer, vote)

    monkeypatch.setattr(Trainer, "_await_vote", answer_late)
    stand.train(max_steps=2)
    assert stand.seconds_per_step >= 0.2


def test_a_budget_allows_for_bringing_the_state_of_replicas_to_those_that_save(stand, monkeypatch):
    """Over a slow link that takes far longer than writing it."""
    collect = LocalUpdates.collect

    def collect_slowly(updates: LocalUpdates, savers: list[int]) -> Any:
        if updates.has_state:
            time.sleep(0.5)
        return collect(updates, savers)

    monkeypatch.setattr(LocalUpdates, "collect", collect_slowly)
    stand.train(3, plan=Synchronisation("local", 2, 2, 2))
    assert stand.stop.spent.measured.checkpoint > 0.5


def test_translations_that_cannot_be_saved_for_any_reason_do_not_end_a_run(stand, monkeypatch):
    def refuse(*_: object) -> None:
        raise ValueError("an odd sentence")

    monkeypatch.setattr(validation, "bleu_counts", refuse)
    assert stand.train(max_steps=1) is StopReason.STEPS
    assert stand.evaluation(1)["loss"] > 0
    (said,) = [said for said in stand.said if "translations" in said]
    assert "step 1" in said
    assert "ValueError: an odd sentence" in said


def test_a_step_whose_evaluation_fails_again_is_not_saved_again(stand, monkeypatch):
    monkeypatch.setattr(dev_evaluation, "evaluate_on_dev", fail)
    stand.train(max_steps=2, evaluate_every=2)
    before = (stand.run.checkpoint(2) / "state.json").stat().st_mtime_ns
    stand.train(max_steps=3, evaluate_every=2)
    assert (stand.run.checkpoint(2) / "state.json").stat().st_mtime_ns == before
    assert stand.evaluation(3) is None


@pytest.fixture
def _outcomes_are_late(monkeypatch):
    """Outcomes are read a step later, as on a GPU."""
    monkeypatch.setattr(learner, "is_accelerator", lambda _: True)


def spoil(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Makes the loss of one step NaN."""
    original, calls = learner.Learner.forward, iter(range(1, 100))

    def forward(self: learner.Learner, *arguments: Any) -> LossSums:
        sums = original(self, *arguments)
        return LossSums(sums.smoothed * float("nan"), sums.plain) if next(calls) == step else sums

    monkeypatch.setattr(learner.Learner, "forward", forward)


def test_outcomes_that_are_read_late_give_the_same_run(stand, tmp_path, monkeypatch):
    stand.train(max_steps=5, evaluate_every=3, save_every=2)
    late = Stand(stand.prepared, tmp_path / "late")
    monkeypatch.setattr(learner, "is_accelerator", lambda _: True)
    late.train(max_steps=5, evaluate_every=3, save_every=2)
    assert late.records == stand.records
    assert [step for step, _, _ in late.records] == [2, 4, 5]
    for step in stand.run.checkpoint_steps():
        paths = (each.run.checkpoint(step) for each in (stand, late))
        assert len({(path / "model.safetensors").read_bytes() for path in paths}) == 1


@pytest.mark.usefixtures("_outcomes_are_late")
@pytest.mark.parametrize(("bad_step", "saved"), [(1, [0]), (3, [0, 2]), (4, [0, 2]), (5, [0, 2, 4])])
def test_a_late_verdict_names_the_step_and_comes_before_any_checkpoint(stand, monkeypatch, bad_step, saved):
    spoil(monkeypatch, bad_step)
    with pytest.raises(UserError, match=f"stopped at step {bad_step}: the gradient is NaN"):
        stand.train(max_steps=7, save_every=2)
    assert stand.run.checkpoint_steps() == saved
