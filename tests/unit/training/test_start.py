"""What is said before workers start: mixtures that cannot be, and changes a resumed run may not make."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.corpus.prepared import TrainCorpus
from dragoman.run.config import Settings, build_settings, dump_settings, load_settings
from dragoman.run.errors import UsageError
from dragoman.run.folder import RunFolder
from dragoman.training import start
from dragoman.training.start import resume_run, start_run

STAGES = [{"from_step": 100, "weights": {"news": 4.0}}, {"from_step": 200, "weights": {"news": 8.0}}]


@dataclass(frozen=True)
class FakeCorpus:
    """Stands in for a prepared corpus of two parts."""

    folder: Path
    train_corpora: tuple[TrainCorpus, ...] = (
        TrainCorpus("europarl", 1.0, 1_000, members=None),
        TrainCorpus("news", 2.0, 100, members=None),
    )
    source_vocab_size: int = 64
    target_vocab_size: int = 64
    is_joint: bool = True


@dataclass
class Stand:
    """A run folder whose corpus, checkpoint and launch are stood in for."""

    run: RunFolder
    corpus: FakeCorpus
    checkpoint_step: int = 150
    launched: list[Settings] = field(default_factory=list)

    def settings(self, **data: Any) -> Settings:
        return build_settings({"data": {"prepared": str(self.corpus.folder)} | data, "model": {"preset": "tiny"}})

    def begin(self, **data: Any) -> None:
        start_run(self.run, self.settings(**data), num_workers=1)

    def resume(self, *overrides: str) -> Settings:
        resume_run(self.run, None, list(overrides), num_workers=1)
        return self.launched[-1]


@pytest.fixture
def stand(tmp_path, monkeypatch):
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "tokenizer.model").write_bytes(b"")
    stand = Stand(RunFolder(tmp_path / "run"), FakeCorpus(tmp_path / "prepared"))
    monkeypatch.setattr(start.PreparedCorpus, "open", lambda _: stand.corpus)
    monkeypatch.setattr(
        start, "newest_whole_checkpoint", lambda run, warn: run.checkpoints / f"step-{stand.checkpoint_step:08d}"
    )
    monkeypatch.setattr(start, "_launch", lambda run, _: stand.launched.append(load_settings(run.config)) or True)
    return stand


def test_the_weights_in_force_are_spelled_out_in_the_run_folder(stand):
    stand.begin(weights={"news": 3})
    assert stand.launched[0].data.weights == {"europarl": 1.0, "news": 3.0}


def test_a_run_keeps_its_weights_when_the_corpus_is_prepared_again_with_others(stand):
    stand.begin()
    europarl, news = stand.corpus.train_corpora
    stand.corpus = replace(stand.corpus, train_corpora=(europarl, replace(news, weight=9.0)))
    assert stand.resume().data.weights == {"europarl": 1.0, "news": 2.0}


def test_unknown_corpora_are_named_before_anything_is_written(stand):
    with pytest.raises(UsageError, match=r"data.weights: .*'nwes'; did you mean 'news'"):
        stand.begin(weights={"nwes": 3})
    assert not stand.run.path.exists()


def test_weights_that_leave_nothing_are_refused_before_anything_is_written(stand):
    with pytest.raises(UsageError, match="leave no pair"):
        stand.begin(weights={"news": 0, "europarl": 0})
    assert not stand.run.path.exists()


def test_a_resumed_run_goes_on_with_its_stages(stand):
    stand.begin(stages=STAGES)
    assert stand.resume().data == stand.launched[0].data


@pytest.mark.parametrize(
    "override",
    [
        "data.weights={news = 3}",
        "data.weights={europarl = 0}",
        "data.stages=[]",
        "data.stages=[{from_step = 100, weights = {news = 5}}]",
        "data.stages=[{from_step = 101, weights = {news = 4}}]",
        "data.stages=[{from_step = 0, weights = {news = 5}}, {from_step = 100, weights = {news = 4}}]",
        "data.stages=[{from_step = 100, weights = {news = 4}}, {from_step = 149, weights = {news = 5}}]",
    ],
)
def test_stages_that_have_begun_cannot_be_changed(stand, override):
    stand.begin(stages=STAGES)
    before = stand.run.config.read_bytes()
    with pytest.raises(UsageError, match=r"must keep data.weights and data.stages .* first 150 steps: .* step 150 on"):
        stand.resume(override)
    assert stand.run.config.read_bytes() == before


@pytest.mark.parametrize(
    ("later_stages", "num_stages"),
    [
        ("", 1),
        (", {from_step = 150, weights = {news = 1}}", 2),
        (", {from_step = 200, weights = {news = 5}}", 2),
        (", {from_step = 300, weights = {europarl = 0}}, {from_step = 400, weights = {}}", 3),
    ],
)
def test_stages_to_come_can_be_changed(stand, later_stages, num_stages):
    stand.begin(stages=STAGES)
    resumed = stand.resume(f"data.stages=[{{from_step = 100, weights = {{news = 4}}}}{later_stages}]")
    assert len(resumed.data.stages) == num_stages


def test_before_the_first_step_everything_can_be_changed(stand):
    stand.begin(stages=STAGES)
    stand.checkpoint_step = 0
    assert stand.resume("data.weights={news = 3}", "data.stages=[]").data.weights == {"europarl": 1.0, "news": 3.0}


def test_settings_written_out_in_full_are_the_same_settings(stand):
    stand.begin(stages=STAGES)
    spelled_out = stand.settings(weights={"news": 2}, stages=STAGES)
    assert resume_run(stand.run, spelled_out, [], num_workers=1)
    assert dump_settings(stand.launched[-1]) == dump_settings(stand.launched[0])
