"""A fault in the evaluation after training is a notice: the run is trained, and the command succeeds."""

import json
from collections.abc import Callable

import pytest
from program import call_dragoman

from dragoman.cli import demo, own_text
from dragoman.cli.final_scores import try_to_score
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder


@pytest.mark.parametrize("error", [UserError("Install mecab."), RuntimeError("MeCab says no"), MemoryError()])
def test_a_fault_is_said_with_the_command_that_repeats_the_evaluation(tmp_path, capsys, error):
    def fail() -> None:
        raise error

    assert try_to_score(RunFolder(tmp_path), fail) is None
    said = capsys.readouterr()
    assert said.out == ""
    assert str(error).rstrip(".") in said.err
    assert f"evaluate {tmp_path}" in said.err
    assert try_to_score(RunFolder(tmp_path), lambda: 7) == 7


def train_without_workers(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    """Leaves out training, and lets the evaluation fail."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise UnicodeError("MeCab says no")

    def launch_run(run: RunFolder, _placement: object, make_ready: Callable[[], bool]) -> bool:
        make_ready()
        run.metrics.touch()
        return True

    monkeypatch.setattr(module, "launch_run", launch_run)
    monkeypatch.setattr(module, "load_run", fail)


def test_training_on_own_text_succeeds_without_scores(tmp_path, monkeypatch):
    train_without_workers(monkeypatch, own_text)
    source, target = tmp_path / "text.en", tmp_path / "text.de"
    source.write_text("".join(f"The number {number} is here today.\n" for number in range(3_000)))
    target.write_text("".join(f"Die Zahl {number} ist heute hier.\n" for number in range(3_000)))
    run = tmp_path / "run"
    done = call_dragoman("train", "--source", source, "--target", target, "--run-dir", run, "--json")
    assert json.loads(done.stdout)["test"] is None
    assert "could not be evaluated (UnicodeError: MeCab says no). Try again with: " in done.stderr


def test_the_demo_succeeds_without_scores(tmp_path, monkeypatch):
    train_without_workers(monkeypatch, demo)
    monkeypatch.setattr(demo, "NUM_TRAINING_PAIRS", 2_000)
    done = call_dragoman("demo", "--run-dir", tmp_path / "run", "--json")
    figures = json.loads(done.stdout)
    assert (figures["test"], figures["test_compositional"]) == (None, None)
    assert "could not be evaluated" in done.stderr
