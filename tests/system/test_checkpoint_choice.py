"""Commands on runs whose checkpoints or data are damaged, moved or used up: nothing is replaced without a word."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from checkpoint_folders import flip_bit
from program import call_dragoman, latest_step, require_end, run_dragoman

from dragoman.model.weights import load_tensors, save_tensors


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.en"
    path.write_text("The dog sleeps.\n", encoding="utf-8")
    return path


def weights_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}" / "model.safetensors"


def test_a_damaged_best_is_replaced_with_a_sentence(run_copy, text):
    flip_bit(weights_of(run_copy, 50))
    done = call_dragoman("translate", run_copy, text)
    assert "step-00000050/model.safetensors is damaged" in done.stderr
    assert "Using the checkpoint of step 49 instead, the newest intact one." in done.stderr
    assert len(done.stdout.splitlines()) == 1
    done = call_dragoman("translate", run_copy, text, "--checkpoint", 50, code=1)
    assert "step-00000050/model.safetensors is damaged" in done.stderr


def test_weights_that_are_not_numbers_are_refused(run_copy, text):
    path = weights_of(run_copy, 50)
    weights = load_tensors(path)
    name = sorted(weights)[0]
    weights[name].view(-1)[0] = torch.nan
    manifest = json.loads((path.parent / "manifest.json").read_text())
    manifest["files"][path.name]["sha256"] = save_tensors(path, weights)
    (path.parent / "manifest.json").write_text(json.dumps(manifest))
    done = call_dragoman("translate", run_copy, text, code=1)
    assert f"{name} has values that are NaN or infinite" in done.stderr


def test_a_moved_project_keeps_its_test_set_and_lost_data_is_explained(run_copy, prepared, tmp_path, monkeypatch):
    config = run_copy / "config.toml"
    monkeypatch.chdir(tmp_path)
    assert call_dragoman("evaluate", run_copy, "--json")
    lines = [line for line in config.read_text().splitlines() if not line.startswith("prepared = ")]
    lines.insert(lines.index("[data]") + 1, 'prepared = "../data"')
    config.write_text("\n".join(lines) + "\n")
    done = call_dragoman("evaluate", run_copy, code=1)
    expected = f"The prepared data of {run_copy} is not in {tmp_path}/data, so there is no test set: give text and its"
    assert expected in done.stderr
    done = call_dragoman("train", "--resume", "--run-dir", run_copy, code=1)
    assert f"--run-dir {run_copy} --set data.prepared=FOLDER" in done.stderr
    shutil.copytree(prepared, tmp_path / "data")
    assert json.loads(call_dragoman("evaluate", run_copy, "--json").stdout)["sentences"] == 20


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_that_continues_a_run_works_as_printed(config, tmp_path, one_thread):
    """Also where the folder has a blank in its name and the budget is used up."""
    run = tmp_path / "my run"
    budget = ["--set", "training.max_hours=0.005", "--set", "training.max_steps=1_000_000"]
    done = run_dragoman("train", config, "--workers", 1, "--run-dir", run, *budget)
    (command,) = [
        line.partition("Continue with: ")[2] for line in done.stdout.splitlines() if "Continue with: " in line
    ]
    words = shlex.split(command)
    assert words[1:5] == ["train", "--resume", "--run-dir", str(run)]
    assert words[5] == "--set"
    assert float(words[6].removeprefix("training.max_hours=")) >= 0.1
    step = latest_step(run)
    bash = ["bash", "-c", f"{command} --workers 1 --set training.max_steps={step + 3}"]
    continued = subprocess.run(bash, capture_output=True, text=True, check=False, env=os.environ, timeout=200)
    require_end(continued, 0)
    assert latest_step(run) == step + 3
