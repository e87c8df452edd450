"""What is said before workers start: folders that are taken, mixtures that cannot be, changes a resumed run may not
make.
"""

import json
import shutil
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_folders import make_checkpoint

from dragoman.corpus.prepared_corpus import TrainCorpus
from dragoman.run.config import Settings, build_settings, dump_settings, load_settings, relative_to_run
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder
from dragoman.training import run_setup
from dragoman.training.run_setup import create_run, reopen_run

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
    fingerprint: str = "0" * 64
    manifest: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(settings={"languages": "en-de"}))

    def text(self, _split: str) -> tuple[list[str], list[str]]:
        return ["A dog."], ["Ein Hund."]

    def facts(self) -> dict[str, Any]:
        return {"key": "made up"}


@dataclass
class Stand:
    """A run folder whose corpus and checkpoint are stood in for."""

    run: RunFolder
    corpus: FakeCorpus
    checkpoint_step: int | None = 150

    def settings(self, **data: Any) -> Settings:
        return build_settings({"data": {"prepared": str(self.corpus.folder)} | data, "model": {"preset": "tiny"}})

    def begin(self, **data: Any) -> Settings:
        create_run(self.run, self.settings(**data), num_workers=1)
        return load_settings(self.run.config)

    def resume(self, *overrides: str, has_other_hosts: bool = False) -> Settings:
        reopen_run(self.run, None, list(overrides), num_workers=1, has_other_hosts=has_other_hosts)
        return load_settings(self.run.config)

    def newest_checkpoint(self, run: RunFolder) -> Path | None:
        return None if self.checkpoint_step is None else run.checkpoint(self.checkpoint_step)


@pytest.fixture
def stand(tmp_path, monkeypatch):
    (tmp_path / "prepared").mkdir()
    for name in ("tokenizer.model", "manifest.json"):
        (tmp_path / "prepared" / name).touch()
    stand = Stand(RunFolder(tmp_path / "run"), FakeCorpus(tmp_path / "prepared"))
    monkeypatch.setattr(run_setup.PreparedCorpus, "open", lambda _: stand.corpus)
    monkeypatch.setattr(run_setup, "newest_complete_checkpoint", lambda run, _warn: stand.newest_checkpoint(run))
    return stand


def test_the_weights_in_force_are_spelled_out_in_the_run_folder(stand):
    assert stand.begin(weights={"news": 3}).data.weights == {"europarl": 1.0, "news": 3.0}


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
    assert stand.begin(stages=STAGES).data == stand.resume().data


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
    expected = "must keep data.weights and data.stages .* first 150 steps: .* begin at step 150 or later"
    with pytest.raises(UsageError, match=expected):
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
    begun = stand.begin(stages=STAGES)
    spelled_out = stand.settings(weights={"news": 2}, stages=STAGES)
    reopen_run(stand.run, spelled_out, [], num_workers=1)
    assert dump_settings(load_settings(stand.run.config)) == dump_settings(begun)


def test_a_run_that_goes_on_unchanged_keeps_the_account_of_its_first_start(stand):
    stand.begin()
    before = stand.run.config.read_bytes()
    stand.resume()
    assert stand.run.config.read_bytes() == before


@pytest.mark.parametrize(
    "override",
    ["training.seed=2", "training.global_batch_tokens=8192", "training.virtual_workers=8", "data.max_tokens=128"],
)
def test_what_decides_the_order_of_sentences_cannot_be_changed(stand, override):
    stand.begin()
    setting, _, value = override.partition("=")
    with pytest.raises(UsageError, match=rf"must keep {setting} = \d+; start a new run to use {value}"):
        stand.resume(override)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("synchronisation.guard=false", "synchronisation.guard = true; start a new run to use false."),
        ("synchronisation.together_steps=5", "synchronisation.together_steps = its default; start a new run to use 5."),
    ],
)
def test_a_setting_that_must_stay_is_shown_as_a_person_writes_it(stand, override, words):
    stand.begin()
    with pytest.raises(UsageError) as refused:
        stand.resume(override)
    assert str(refused.value) == f"A resumed run must keep {words}"


def test_a_run_that_never_began_may_begin_again(stand):
    stand.begin(weights={"news": 3})
    assert stand.begin(weights={"news": 5}).data.weights["news"] == 5.0


def test_a_new_run_is_readable_by_its_owner_only(stand):
    stand.begin()
    assert stand.run.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("has_other_hosts", "advice"),
    [(False, "use --workers 4"), (True, "give the hosts at most 4 workers together in --hosts")],
)
def test_too_many_workers_are_refused_with_advice_that_fits_the_command(stand, has_other_hosts, advice):
    with pytest.raises(UsageError) as refused:
        create_run(stand.run, stand.settings(), 6, has_other_hosts)
    expected = f"6 workers cannot share 4 virtual workers: {advice}"
    assert str(refused.value) == f"{expected} or raise training.virtual_workers."
    stand.begin()
    with pytest.raises(UsageError) as refused:
        reopen_run(stand.run, None, [], 6, has_other_hosts)
    assert str(refused.value) == f"{expected}."  # a resumed run must keep its virtual workers


def test_a_run_with_a_checkpoint_is_not_begun_again(stand):
    stand.begin()
    stand.run.checkpoint(0).mkdir(parents=True)
    with pytest.raises(UserError, match=r"already holds a run: .* continue it with: .*train --resume --run-dir"):
        stand.begin()


def test_a_folder_with_other_files_is_left_alone(stand):
    stand.run.path.mkdir()
    (stand.run.path / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not a run folder"):
        stand.begin()


def test_what_a_detached_start_wrote_before_does_not_stand_in_the_way(stand):
    stand.run.path.mkdir()
    stand.run.launch_log.touch()
    stand.begin()


def test_nothing_is_resumed_where_no_run_is(stand):
    with pytest.raises(UserError, match="There is nothing to resume in"):
        stand.resume()


def test_without_a_checkpoint_a_run_goes_on_only_if_other_hosts_may_have_one(stand):
    stand.begin()
    stand.checkpoint_step = None
    with pytest.raises(UserError, match="There is no checkpoint to resume in"):
        stand.resume()
    stand.resume(has_other_hosts=True)


@pytest.mark.parametrize(
    ("num_workers", "words"),
    [(0, "at least 1, not 0"), (5, "5 workers cannot share 4 virtual workers: use --workers 4")],
)
def test_a_number_of_workers_that_cannot_be_is_refused_before_anything_is_written(stand, num_workers, words):
    with pytest.raises(UsageError, match=words):
        create_run(stand.run, stand.settings(), num_workers)
    assert not stand.run.path.exists()


def test_a_folder_that_cannot_be_written_is_named(stand):
    stand.run.path.parent.joinpath("file").touch()
    stand.run = RunFolder(stand.run.path.parent / "file" / "run")
    with pytest.raises(UserError, match="cannot be written: a part of the path is a file"):
        stand.begin()


def test_what_it_learned_from_is_noted_in_the_run_folder(stand):
    stand.begin()
    assert json.loads(stand.run.corpus_facts.read_text(encoding="utf-8")) == {"key": "made up"}


# Where the prepared data is


@pytest.mark.parametrize(
    ("run_dir", "prepared", "written"),
    [
        ("run", "run/prepared", "prepared"),
        ("runs/my run", "prepared", "../../prepared"),
        ("runs/x", "data/wmt/prepared", "../../data/wmt/prepared"),
        ("a/b/runs/x", "prepared", None),
    ],
)
def test_the_prepared_data_is_named_relative_to_the_run_in_the_same_project(
    stand, tmp_path, run_dir, prepared, written
):
    folder = tmp_path / prepared
    folder.parent.mkdir(parents=True, exist_ok=True)
    stand.corpus.folder.rename(folder)
    stand.corpus, stand.run = replace(stand.corpus, folder=folder), RunFolder(tmp_path / run_dir)
    assert stand.begin().data.prepared == folder
    written_in_config = tomllib.loads(stand.run.config.read_text(encoding="utf-8"))["data"]["prepared"]
    assert written_in_config == (written or str(folder))


def test_the_root_of_all_files_is_no_project():
    assert relative_to_run(Path("/data/wmt"), Path("/scratch/run")) == Path("/data/wmt")
    assert relative_to_run(Path("/data/wmt"), Path("/data/run")) == Path("../wmt")


def test_a_moved_project_keeps_working_and_its_config_stays_as_it_is(stand, tmp_path, monkeypatch):
    project = tmp_path / "project"
    (project / "runs").mkdir(parents=True)
    stand.corpus.folder.rename(project / "prepared")
    stand.corpus, stand.run = replace(stand.corpus, folder=project / "prepared"), RunFolder(project / "runs" / "x")
    stand.begin()
    before = stand.run.config.read_bytes()
    moved = project.rename(tmp_path / "moved")
    (tmp_path / "prepared").mkdir()  # other data, in the current folder
    monkeypatch.chdir(tmp_path)
    stand.run = RunFolder(Path("moved/runs/x"))
    assert stand.resume().data.prepared == moved / "prepared"
    assert stand.run.config.read_bytes() == before


def test_a_run_that_was_moved_alone_finds_its_data_where_it_was(stand, tmp_path):
    stand.begin()
    (tmp_path / "far" / "away").mkdir(parents=True)
    stand.run = RunFolder(stand.run.path.rename(tmp_path / "far" / "away" / "run"))
    before = stand.run.config.read_bytes()
    assert stand.resume().data.prepared == tmp_path / "prepared"
    assert stand.run.config.read_bytes() == before


def test_moved_data_is_asked_for_and_then_found(stand, tmp_path):
    stand.begin()
    moved = stand.corpus.folder.rename(tmp_path / "new place")
    expected = (
        rf"The prepared data of {stand.run.path} is not in {tmp_path}/prepared\. If it was moved, name its folder: "
        rf".*train --resume --run-dir {stand.run.path} --set data.prepared=FOLDER$"
    )
    with pytest.raises(UserError, match=expected):
        stand.resume()
    assert stand.resume(f"data.prepared={moved}").data.prepared == moved
    assert stand.resume().data.prepared == moved


def test_a_place_given_by_the_user_is_relative_to_the_current_folder(stand, tmp_path, monkeypatch):
    stand.begin()
    (tmp_path / "here").mkdir()
    moved = stand.corpus.folder.rename(tmp_path / "here" / "data")
    monkeypatch.chdir(tmp_path / "here")
    assert stand.resume("data.prepared=data").data.prepared == moved


def test_other_data_is_refused_before_the_config_is_changed(stand, tmp_path):
    stand.begin()
    before = stand.run.config.read_bytes()
    make_checkpoint(stand.run, 150)
    other = tmp_path / "other"
    shutil.copytree(stand.corpus.folder, other)
    stand.corpus = replace(stand.corpus, fingerprint="f" * 64)
    with pytest.raises(UserError, match=r"trained on other prepared data .*holds now \(fingerprint f{12}\)"):
        stand.resume(f"data.prepared={other}")
    assert stand.run.config.read_bytes() == before
