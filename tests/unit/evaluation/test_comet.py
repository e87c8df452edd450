"""COMET is used where it is installed with a model; nothing is downloaded. Here another module stands in for it."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.evaluation.comet import CometJudge
from dragoman.run.errors import UserError


class StandIn:
    """Scores each translation by its share of words in the reference."""

    last_options: dict[str, Any]

    def predict(self, samples: list[dict[str, str]], **options: Any) -> Any:
        self.last_options = options
        scores = [float(sample["mt"] == sample["ref"]) for sample in samples]
        return SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    calls: list[tuple[str, dict[str, Any]]] = []

    def load(path: str, **options: Any) -> StandIn:
        calls.append((path, options))
        if Path(path).read_text() == "damaged":
            raise RuntimeError("not a checkpoint")
        return StandIn()

    monkeypatch.setitem(sys.modules, "comet", SimpleNamespace(load_from_checkpoint=load))
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(variable, "0")
    return calls


def put_model(folder: Path, content: str = "weights") -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints/model.ckpt").write_text(content)
    return folder / "checkpoints/model.ckpt"


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_local_model_scores_without_the_network(tmp_path, loaded, is_folder):
    checkpoint = put_model(tmp_path / "model")
    judge = CometJudge(str(tmp_path / "model" if is_folder else checkpoint))
    score = judge.score(["a", "b"], ["x", "y"], ["x", "z"])
    assert (score.comet, score.sentences) == (0.5, [1.0, 0.0])
    assert score.comet_signature.startswith("nrefs:1|model:")
    assert loaded == [(str(checkpoint), {"local_files_only": True})]
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert json.dumps(score.figures())


def test_a_model_that_is_not_here_is_not_downloaded(tmp_path, loaded):
    with pytest.raises(UserError, match=r"not on this machine.*download_model"):
        CometJudge("Unbabel/wmt22-comet-da")
    with pytest.raises(UserError, match=r"model\.ckpt is missing"):
        CometJudge(str(tmp_path))
    assert not loaded


@pytest.mark.usefixtures("loaded")
def test_a_damaged_model_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"cannot load .*not a checkpoint"):
        CometJudge(str(put_model(tmp_path, "damaged")))


@pytest.mark.usefixtures("loaded")
def test_scores_that_are_no_numbers_are_refused(tmp_path, monkeypatch):
    judge = CometJudge(str(put_model(tmp_path)))
    nan = SimpleNamespace(scores=[float("nan")], system_score=float("nan"))
    monkeypatch.setattr(StandIn, "predict", lambda *_, **__: nan)
    with pytest.raises(UserError, match="gives no number"):
        judge.score(["a"], ["x"], ["x"])


def test_without_the_package_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "comet", None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "0")
    with pytest.raises(UserError, match=r"pip install 'dragoman\[comet\]'"):
        CometJudge("anything")
