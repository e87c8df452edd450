"""Starting a run from the weights of another one."""

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.cluster.world import World
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.model.weights import load_tensors
from dragoman.run.checkpoints import MODEL_FILE, START_FOLDER
from dragoman.run.config import Settings, build_settings, load_settings
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder
from dragoman.training.checkpoint import read_state
from dragoman.training.learner import build_learner
from dragoman.training.resuming import load_start_weights
from dragoman.training.run_setup import create_run, reopen_run
from dragoman.training.warm_start import WarmStart


@pytest.fixture(scope="module")
def origin(trained_run) -> RunFolder:
    return RunFolder(trained_run)


def settings(prepared: Path, start: str, **sections: dict[str, Any]) -> Settings:
    training = {"start_from": start, "global_batch_tokens": 800} | sections.pop("training", {})
    return build_settings({"data": {"prepared": str(prepared)}, "training": training, **sections})


@pytest.mark.parametrize(("suffix", "step"), [("", 50), ("@latest", 50), ("@49", 49)])
def test_a_run_starts_with_the_weights_and_the_model_of_another(prepared, origin, tmp_path, suffix, step):
    run = RunFolder(tmp_path / "run")
    create_run(run, settings(prepared, f"{origin.path}{suffix}"), num_workers=1)
    resolved = load_settings(run.config)
    assert (resolved.model.width, resolved.model.feed_forward) == (32, 64)
    shutil.move(run.path, tmp_path / "moved")  # nothing leads back
    run = RunFolder(tmp_path / "moved")
    learner = build_learner(resolved, PreparedCorpus.open(prepared), World())
    load_start_weights(run, learner, World())
    expected = load_tensors(origin.checkpoint(step) / MODEL_FILE)
    assert all(torch.equal(weight, expected[name]) for name, weight in learner.model.named_parameters())


def test_where_it_started_from_is_written_down_and_kept_on_resume(prepared, origin, tmp_path):
    run = RunFolder(tmp_path / "run")
    create_run(run, settings(prepared, f"{origin.path}@average:last:2"), num_workers=1)
    shutil.copytree(origin.checkpoint(50), run.checkpoint(50))
    reopen_run(run, settings(prepared, "", training={"max_steps": 70}), [], num_workers=1)  # its [model] is not given
    config = tomllib.loads(run.config.read_text(encoding="utf-8"))
    assert config["training"]["start_from"] == f"{origin.path.resolve()}@average:last:2"
    assert config["training"]["max_steps"] == 70
    assert config["provenance"]["start_weights"] == "the average of 2 checkpoints (steps 49 and 50)"
    assert config["model"]["width"] == 32


def test_a_start_with_another_vocabulary_names_the_command_to_prepare_with(prepared, origin, tmp_path):
    other = Path(shutil.copytree(origin.path, tmp_path / "other"))
    (tokenizer,) = (other / "tokenizers").iterdir()
    tokenizer.write_bytes(tokenizer.read_bytes() + b"\n\x00")
    with pytest.raises(UserError, match="another vocabulary") as error:
        create_run(RunFolder(tmp_path / "run"), settings(prepared, str(other)), num_workers=1)
    assert f"prepare … --reuse-vocabulary {other / 'tokenizers'}" in str(error.value)
    assert not (tmp_path / "run" / START_FOLDER).exists()


def test_a_start_with_another_model_names_the_settings(prepared, origin, tmp_path):
    changed = settings(prepared, str(origin.path), model={"width": 64, "dropout": 0.5})
    with pytest.raises(UsageError, match=r"Settings that differ \(there, here\): width: 32, 64\."):
        create_run(RunFolder(tmp_path / "run"), changed, num_workers=1)


def test_dropout_may_differ(prepared, origin, tmp_path):
    run = RunFolder(tmp_path / "run")
    create_run(run, settings(prepared, str(origin.path), model={"dropout": 0.5}), num_workers=1)
    assert load_settings(run.config).model.dropout == 0.5


@pytest.mark.parametrize("start", ["nowhere", "nowhere@best"])
def test_a_start_that_is_no_run_is_refused(prepared, tmp_path, start):
    with pytest.raises(UserError, match="nowhere"):
        create_run(RunFolder(tmp_path / "run"), settings(prepared, str(tmp_path / start)), num_workers=1)


def test_weights_that_are_missing_on_all_hosts_are_an_error(prepared, origin, tmp_path):
    resolved = WarmStart.open(str(origin.path)).adapt(settings(prepared, str(origin.path)))
    learner = build_learner(resolved, PreparedCorpus.open(prepared), World())
    with pytest.raises(UserError, match="The weights to start from are missing"):
        load_start_weights(RunFolder(tmp_path), learner, World())


def test_the_peak_rate_of_a_run_is_that_of_its_schedule(origin):
    assert WarmStart.open(str(origin.path)).peak_rate == pytest.approx(3e-3)


def test_the_moving_average_starts_from_the_weights(prepared, origin, tmp_path):
    run = RunFolder(tmp_path / "run")
    create_run(run, settings(prepared, str(origin.path), checkpoints={"ema_decay": 0.9}), num_workers=1)
    learner = build_learner(load_settings(run.config), PreparedCorpus.open(prepared), World())
    load_start_weights(run, learner, World())
    assert learner.average is not None
    assert all(torch.equal(each, learner.average.tensors[name]) for name, each in learner.model.named_parameters())
    assert read_state(origin.checkpoint(50)).average is None
