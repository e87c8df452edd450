"""Averages, early stopping, plateaus and frozen parts in whole runs of a tiny model, resumed and uninterrupted."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.cluster.world import World
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.evaluation.validation import Evaluation, evaluate_on_dev
from dragoman.model.transformer import Transformer
from dragoman.model.weights import load_tensors
from dragoman.monitoring.watcher import Watcher
from dragoman.run.checkpoints import AVERAGED_FILE, MODEL_FILE, OPTIMIZER_FILE, weights_file
from dragoman.run.config import build_settings
from dragoman.run.folder import RunFolder
from dragoman.training import dev_evaluation
from dragoman.training.checkpoint import read_state
from dragoman.training.resuming import plan_resume
from dragoman.training.spent_time import Launch, SpentTime
from dragoman.training.stopping import StopConditions, StopNotice, StopReason
from dragoman.training.trainer import Trainer
from dragoman.translation.chosen_weights import load_chosen_weights

pytestmark = pytest.mark.usefixtures("every_checkpoint_is_saved")

NEW_KEYS = ("weights", "average", "progress")
"""What earlier programs did not write into state.json."""


class Recorder(Watcher):
    """Remembers what was said and evaluated."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.evaluations: list[dict[str, Any]] = []
        self.rates: dict[int, float] = {}
        self.on_evaluation: Callable[[], None] = lambda: None

    def say(self, text: str) -> None:
        self.said.append(text)

    def evaluated(self, step: int, figures: dict[str, Any]) -> None:
        self.evaluations.append({"step": step} | figures)
        self.on_evaluation()

    def trained(self, step: int, figures: dict[str, Any], sample: object) -> None:
        self.rates[step] = figures["learning_rate"]


class Workbench:
    """Trains one tiny run in a folder, in as many parts as a test wants."""

    def __init__(self, prepared: Path, folder: Path, **sections: dict[str, Any]) -> None:
        self.prepared, self.sections = prepared, sections
        self.run = RunFolder(folder)
        self.run.path.mkdir()
        self.seen = Recorder()

    def train(self, max_steps: int, notice: StopNotice | None = None) -> StopReason:
        tables: dict[str, dict[str, Any]] = {
            "data": {"prepared": str(self.prepared)},
            "model": {"preset": "tiny", "width": 16, "feed_forward": 16},
            "training": {"max_steps": max_steps, "global_batch_tokens": 256, "virtual_workers": 1, "log_every": 1},
            "evaluation": {"beam_size": 1, "max_sentences": 2, "evaluate_every": 2, "metric": "loss"},
            "checkpoints": {"save_every": 2, "keep_last": 20},
        }
        for name, table in self.sections.items():
            tables[name] |= table
        settings = build_settings(tables)
        stop = StopConditions(settings.training, SpentTime(Launch("test", 0.0)), notice or StopNotice())
        resume = plan_resume(self.run, World(), self.seen.say)
        corpus = PreparedCorpus.open(self.prepared)
        return Trainer(self.run, settings, corpus, World(), self.seen, resume, stop).train()

    def learned(self, step: int, *names: str) -> list[bytes]:
        return [(self.run.checkpoint(step) / name).read_bytes() for name in names or (MODEL_FILE, OPTIMIZER_FILE)]


@pytest.fixture
def scripted(monkeypatch):
    """Replaces the losses of evaluations by a list; the last one repeats."""

    def script(*losses: float) -> None:
        left = list(losses)

        def evaluate(*_arguments: object, **_options: object) -> Evaluation:
            loss = left.pop(0) if len(left) > 1 else left[0]
            return Evaluation(loss, loss, 0.0, "", "13a", 0.0, 0.0, loss, 0.1, ["a"], ["a"], ["a"])

        monkeypatch.setattr(dev_evaluation, "evaluate_on_dev", evaluate)

    return script


@pytest.fixture
def workbench(prepared, tmp_path, scripted):
    scripted(1.0)  # evaluating takes longer than training

    def build(name: str = "run", **sections: dict[str, Any]) -> Workbench:
        return Workbench(prepared, tmp_path / name, **sections)

    return build


# Moving average


def test_a_moving_average_is_resumed_bit_for_bit(workbench, monkeypatch):
    monkeypatch.setattr(dev_evaluation, "evaluate_on_dev", evaluate_on_dev)  # which uses both sets of weights
    whole, broken = (workbench(name, checkpoints={"ema_decay": 0.9}) for name in ("whole", "broken"))
    whole.train(5)
    broken.train(3)
    broken.train(5)
    names = (MODEL_FILE, OPTIMIZER_FILE, AVERAGED_FILE)
    assert whole.learned(5, *names) == broken.learned(5, *names)
    states = [read_state(each.run.checkpoint(5)) for each in (whole, broken)]
    assert states[0].average == states[1].average == {"kind": "ema", "decay": 0.9, "updates": 5}


def test_training_does_not_depend_on_the_average(workbench):
    plain, averaged = workbench("plain"), workbench("averaged", checkpoints={"ema_decay": 0.9})
    plain.train(3)
    averaged.train(3)
    assert plain.learned(3) == averaged.learned(3)
    assert not (plain.run.checkpoint(3) / AVERAGED_FILE).exists()


@pytest.mark.parametrize(("losses", "better"), [((3.0, 2.0), "averaged"), ((2.0, 3.0), "trained")])
def test_the_better_weights_count_and_the_others_are_recorded(workbench, scripted, losses, better):
    scripted(*losses)
    bench = workbench(checkpoints={"ema_decay": 0.5})
    bench.train(1)
    (evaluation,) = bench.seen.evaluations
    assert (evaluation["weights"], evaluation["loss"], evaluation["other_weights"]["loss"]) == (better, 2.0, 3.0)
    checkpoint = bench.run.checkpoint(1)
    state = read_state(checkpoint)
    assert state.weights == better
    assert state.evaluation is not None
    assert (state.evaluation["weights"], state.evaluation["loss"]) == (better, 2.0)
    model = Transformer(state.model)
    chosen = load_chosen_weights(model, bench.run, "best", "loss", bench.seen.say)
    assert ("averaged weights" in chosen.description) == (better == "averaged")
    expected = load_tensors(checkpoint / weights_file(checkpoint))
    assert all(torch.equal(parameter, expected[name]) for name, parameter in model.named_parameters())


def test_an_average_can_be_switched_on_later(workbench):
    bench = workbench()
    bench.train(2)
    bench.sections = {"checkpoints": {"ema_decay": 0.9}}
    bench.train(3)
    assert read_state(bench.run.checkpoint(3)).average == {"kind": "ema", "decay": 0.9, "updates": 1}


# Early stopping and plateaus


def test_a_run_ends_when_the_dev_set_gets_no_better(workbench, scripted):
    scripted(3.0, 2.0, 2.5, 2.0, 1.0)  # an equal loss is not better
    bench = workbench(evaluation={"patience": 2})
    assert bench.train(100) is StopReason.PATIENCE
    assert max(bench.run.checkpoint_steps()) == 8
    assert "loss on the dev set did not get better in the last 2 evaluations" in bench.seen.said[-1]
    assert bench.train(100) is StopReason.PATIENCE  # nothing is left to do
    assert max(bench.run.checkpoint_steps()) == 8


def test_a_resumed_run_ends_at_the_same_step(workbench, scripted):
    bench = workbench(evaluation={"patience": 2})
    scripted(3.0, 2.0, 2.5)
    assert bench.train(6) is StopReason.STEPS
    scripted(2.5)
    assert bench.train(100) is StopReason.PATIENCE
    assert max(bench.run.checkpoint_steps()) == 8


def test_the_last_step_is_no_early_end(workbench, scripted):
    scripted(3.0)
    assert workbench(evaluation={"patience": 1}).train(4) is StopReason.STEPS


PLATEAU = {"schedule": "plateau", "learning_rate": 1e-3, "warmup_steps": 1, "plateau_patience": 1, "decay_rate": 0.5}


def test_the_learning_rate_is_lowered_at_plateaus(workbench, scripted):
    scripted(3.0, 3.1, 2.0, 2.1, 2.2, 2.3)
    bench = workbench(training=PLATEAU | {"minimum_learning_rate": 2e-4})
    bench.train(12)
    assert [bench.seen.rates[step] for step in (2, 4, 5, 8, 9, 11)] == [1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4, 2e-4]
    assert any("learning rate goes from 0.001 to 0.0005" in said for said in bench.seen.said)


def test_a_plateau_is_resumed_bit_for_bit(workbench, scripted):
    whole, broken = (workbench(name, training=PLATEAU) for name in ("whole", "broken"))
    scripted(3.0, 3.1, 3.2, 3.3)
    whole.train(7)
    scripted(3.0, 3.1)
    broken.train(4)
    scripted(3.2, 3.3)
    broken.train(7)
    assert whole.learned(7) == broken.learned(7)
    assert whole.seen.rates == broken.seen.rates


# Average of checkpoints at the end


def test_the_end_uses_the_average_where_it_is_better(workbench, scripted):
    scripted(3.0, 2.9, 2.8, 2.5)
    bench = workbench(checkpoints={"average": "last:2", "keep_last": 1})
    bench.train(6)
    state = read_state(bench.run.checkpoint(6))
    assert (state.weights, state.average) == ("averaged", {"kind": "checkpoints", "steps": [4, 6]})
    assert bench.seen.evaluations[-1]["other_weights"]["loss"] == 2.8
    assert any("Using the average of 2 checkpoints (steps 4 and 6): loss 2.5000" in said for said in bench.seen.said)
    assert (bench.run.checkpoints / "best").readlink() == Path(bench.run.checkpoint(6).name)
    trained = [load_tensors(bench.run.checkpoint(step) / MODEL_FILE) for step in (4, 6)]
    averaged = load_tensors(bench.run.checkpoint(6) / AVERAGED_FILE)
    for name, tensor in averaged.items():
        assert torch.equal(tensor, ((trained[0][name].double() + trained[1][name].double()) / 2).float())


def test_the_end_keeps_the_trained_weights_where_they_are_better(workbench, scripted):
    scripted(3.0, 2.9, 2.8, 2.95)
    bench = workbench(checkpoints={"average": "best:2", "keep_best": 0})
    bench.train(6)
    assert read_state(bench.run.checkpoint(6)).weights == "trained"
    assert not (bench.run.checkpoint(6) / AVERAGED_FILE).exists()
    assert len(bench.seen.evaluations) == 3
    assert any("Not using the average of 2 checkpoints" in said for said in bench.seen.said)


def test_a_resumed_run_averages_what_an_uninterrupted_one_does(workbench, scripted):
    """A request to stop leaves a checkpoint at step 3, which is not one of the average."""
    whole, broken = (workbench(name, checkpoints={"average": "last:2", "keep_last": 1}) for name in ("whole", "broken"))
    scripted(3.0, 2.0, 1.0, 0.5)
    whole.train(6)
    notice = StopNotice()
    scripted(3.0)
    broken.seen.on_evaluation = lambda: setattr(notice, "reason", StopReason.SIGNAL)
    assert broken.train(6, notice) is StopReason.SIGNAL
    assert 3 in broken.run.checkpoint_steps()
    broken.seen.on_evaluation = lambda: None
    scripted(2.0, 1.0, 0.5)
    broken.train(6)
    names = (MODEL_FILE, OPTIMIZER_FILE, AVERAGED_FILE)
    assert whole.learned(6, *names) == broken.learned(6, *names)


def test_an_average_is_made_once(workbench, scripted):
    scripted(3.0, 2.0)
    bench = workbench(checkpoints={"average": "last:1"})
    bench.train(2)
    num_evaluations = len(bench.seen.evaluations)
    bench.train(2)
    assert len(bench.seen.evaluations) == num_evaluations
    assert bench.train(4) is StopReason.STEPS  # from the trained weights, not from the average
    assert read_state(bench.run.checkpoint(4)).step == 4


# Frozen parts


@pytest.mark.parametrize("parts", [["encoder"], ["embeddings", "decoder"]])
def test_frozen_parts_do_not_change_and_the_rest_resumes_bit_for_bit(workbench, parts):
    whole, broken = (workbench(name, training={"freeze": parts}) for name in ("whole", "broken"))
    whole.train(4)
    broken.train(2)
    broken.train(4)
    assert whole.learned(4) == broken.learned(4)
    first, last = (load_tensors(whole.run.checkpoint(step) / MODEL_FILE) for step in (0, 4))

    def part_of(name: str) -> str:
        return name.split(".", maxsplit=1)[0] if name.startswith(("encoder.", "decoder.")) else "embeddings"

    assert all(torch.equal(first[name], last[name]) == (part_of(name) in parts) for name in first)
    moments = load_tensors(whole.run.checkpoint(4) / OPTIMIZER_FILE)
    assert {part_of(name.partition("/")[2]) for name in moments} == {"embeddings", "encoder", "decoder"} - set(parts)
    assert any("are trained; frozen: " + ", ".join(parts) in said for said in whole.seen.said)


# Old checkpoints


def test_a_checkpoint_of_an_earlier_program_is_resumed(workbench):
    bench, whole = workbench(), workbench("whole")
    bench.train(2)
    whole.train(4)
    path = bench.run.checkpoint(2) / "state.json"
    state = {key: value for key, value in json.loads(path.read_text()).items() if key not in NEW_KEYS}
    path.write_text(json.dumps(state))
    manifest_path = bench.run.checkpoint(2) / "manifest.json"
    manifest = json.loads(manifest_path.read_text())
    content = path.read_bytes()
    manifest["files"]["state.json"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest_path.write_text(json.dumps(manifest))
    bench.train(4)
    assert bench.learned(4) == whole.learned(4)
