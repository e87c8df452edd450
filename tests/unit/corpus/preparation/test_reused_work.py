"""Tests that a preparation does not repeat finished stages, and that its result is that of a fresh preparation."""

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from corpora import Files, content_of, ignore, make_pairs, names_in, settings_for, write_pairs

from dragoman.corpus import shards
from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.settings import CorpusSettings, FilterSettings, PrepareSettings, TokenizerSettings
from dragoman.corpus.tokenizer import VocabularyTooLarge
from dragoman.run.errors import UserError

pytestmark = pytest.mark.usefixtures("small_shards")
KEPT = ".dragoman-work"
CLEAN = "reading and cleaning"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_pairs(tmp_path, "train", make_pairs(200))


class Stages:
    """The stages that preparations worked in, as their progress reported them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def report(self, stage: str, _num_done: int, _num_total: int | None) -> None:
        if stage not in self.names:
            self.names.append(stage)


def prepare(settings: PrepareSettings, out: Path, keep_work: bool = True) -> list[str]:
    """Prepares, and returns the stages that were run."""
    stages = Stages()
    prepare_corpus(settings, out, ignore, stages.report, keep_work=keep_work)
    return stages.names


def fail(*_: object, **__: object) -> Any:
    raise AssertionError("this work was done before")


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer": TokenizerSettings(vocab_size=90)},
        {"tokenizer": TokenizerSettings(kind="unigram", vocab_size=60)},
        {"tokenizer": TokenizerSettings(separate=True, vocab_size=60)},
        {"held_out": 7},
    ],
    ids=str,
)
def test_other_settings_of_late_stages_do_not_clean_again(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    prepare(settings_for(files), tmp_path / "first")
    assert names_in(tmp_path / KEPT)
    with monkeypatch.context() as no_cleaning:
        no_cleaning.setattr("dragoman.corpus.preparation.clean_stage.clean_block", fail)
        no_cleaning.setattr("dragoman.corpus.preparation.shuffle_stage.read_slice", fail)
        stages = prepare(settings_for(files, **change), tmp_path / "second")
    assert CLEAN not in stages
    assert "shuffling" not in stages
    shutil.rmtree(tmp_path / KEPT)
    assert CLEAN in prepare(settings_for(files, **change), tmp_path / "fresh")
    assert content_of(tmp_path / "second") == content_of(tmp_path / "fresh")


def test_other_weights_and_names_do_not_clean_again(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_pairs(tmp_path, "other", make_pairs(50, seed=2))

    def settings(weight: float, name: str) -> PrepareSettings:
        corpora = (
            CorpusSettings(source=files[0], target=files[1]),
            CorpusSettings(source=other[0], target=other[1], weight=weight, name=name),
        )
        return PrepareSettings(corpora=corpora, tokenizer=TokenizerSettings(vocab_size=100))

    prepare(settings(1.0, "news"), tmp_path / "first")
    with monkeypatch.context() as no_work:
        no_work.setattr("dragoman.corpus.preparation.clean_stage.clean_block", fail)
        prepare(settings(0.5, "web"), tmp_path / "second")
    shutil.rmtree(tmp_path / KEPT)
    prepare(settings(0.5, "web"), tmp_path / "fresh")
    assert content_of(tmp_path / "second") == content_of(tmp_path / "fresh")
    assert {"train/train.members", "train/web.members"} < set(content_of(tmp_path / "second"))


@pytest.mark.parametrize(
    "change", [{"seed": 2}, {"cleaning": "strict"}, {"filters": FilterSettings(length_words=(1, 20))}], ids=str
)
def test_other_settings_of_cleaning_clean_again(tmp_path: Path, files: Files, change: dict[str, Any]) -> None:
    prepare(settings_for(files), tmp_path / "first")
    assert CLEAN in prepare(settings_for(files, **change), tmp_path / "second")
    assert len(names_in(tmp_path / KEPT)) == 1  # the text of the second one only


def test_other_text_or_other_code_cleans_again(tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(settings_for(files), tmp_path / "first")
    with monkeypatch.context() as other_code:
        other_code.setattr("dragoman.corpus.preparation.inputs._code_hash", lambda: "another version")
        assert CLEAN in prepare(settings_for(files), tmp_path / "second")
    for file, line in zip(files, ("one more", "NOCH EINER"), strict=True):
        file.write_text(f"{file.read_text()}{line}\n")
    assert CLEAN in prepare(settings_for(files), tmp_path / "third")


def test_an_error_in_a_late_stage_keeps_the_cleaned_text_for_any_output(tmp_path: Path, files: Files) -> None:
    too_large = settings_for(files, tokenizer=TokenizerSettings(vocab_size=30_000))
    with pytest.raises(VocabularyTooLarge):
        prepare(too_large, tmp_path / "large", keep_work=False)
    assert names_in(tmp_path) == {"train.en", "train.de", KEPT}
    assert CLEAN not in prepare(settings_for(files), tmp_path / "fitting", keep_work=False)
    assert names_in(tmp_path) == {"train.en", "train.de", "fitting"}


def test_an_interruption_in_a_late_stage_keeps_the_cleaned_text_for_any_output(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr("dragoman.corpus.preparation.vocabulary_stage.train_tokenizer", interrupt)
        with pytest.raises(UserError, match="Stopped; run the same command again"):
            prepare(settings_for(files), tmp_path / "out")
    assert names_in(tmp_path) == {"train.en", "train.de", ".out.partial"}
    wanted = settings_for(files, tokenizer=TokenizerSettings(vocab_size=90))
    assert CLEAN not in prepare(wanted, tmp_path / "other")
    assert CLEAN not in prepare(settings_for(files), tmp_path / "out", keep_work=False)


def test_a_full_disk_keeps_finished_tasks_and_the_same_command_continues(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_written, num_fitting, write_side = 0, 4, shards._write_side

    def fill_disk(*arguments: Any) -> Any:
        nonlocal num_written
        num_written += 1
        if num_written > num_fitting:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_side(*arguments)

    monkeypatch.setattr(shards, "_write_side", fill_disk)
    with pytest.raises(UserError, match=rf"no space left for {tmp_path / 'out'}; free some and run the same"):
        prepare(settings_for(files), tmp_path / "out")
    assert names_in(tmp_path) == {"train.en", "train.de", ".out.partial"}
    num_fitting, num_written = 10**6, 0
    assert CLEAN not in prepare(settings_for(files), tmp_path / "out")
    assert num_written == len(list((tmp_path / "out").rglob("*.ids"))) - 4
    shutil.rmtree(tmp_path / KEPT)
    prepare(settings_for(files), tmp_path / "fresh")
    assert content_of(tmp_path / "out") == content_of(tmp_path / "fresh")


def test_messages_and_bad_lines_are_the_same_when_the_text_is_not_read(tmp_path: Path, files: Files) -> None:
    lines = files[0].read_bytes().split(b"\n")
    lines[4] += b"\xff"
    lines[9] += b"\r"
    files[0].write_bytes(b"\n".join(lines))
    said: dict[str, list[str]] = {"first": [], "second": []}
    for name, messages in said.items():
        tokenizer = TokenizerSettings(vocab_size=100 if name == "first" else 90)
        wanted = settings_for(files, skip_bad_lines=1, tokenizer=tokenizer)
        corpus = prepare_corpus(wanted, tmp_path / name, messages.append, keep_work=True)
        assert [line.split(":")[0] for line in corpus.manifest.bad_lines] == [f"{files[0]}, line 5"]
    using, *others = said["second"]
    assert using.startswith("Using the text that an earlier preparation cleaned")
    assert others == said["first"]
    assert any("CRLF" in message for message in others)
    with pytest.raises(UserError, match=r"train\.en, line 5 is not UTF-8.*--skip-bad-lines"):
        prepare(settings_for(files, skip_bad_lines=0), tmp_path / "third")


def test_damaged_text_is_cleaned_again(tmp_path: Path, files: Files) -> None:
    prepare(settings_for(files), tmp_path / "first")
    [damaged] = (tmp_path / KEPT).glob("text-*/shuffled/00001.source")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    wanted = settings_for(files, tokenizer=TokenizerSettings(vocab_size=90))
    assert CLEAN in prepare(wanted, tmp_path / "second")
    shutil.rmtree(tmp_path / KEPT)
    prepare(wanted, tmp_path / "fresh")
    assert content_of(tmp_path / "second") == content_of(tmp_path / "fresh")


def test_damage_of_one_output_does_not_reach_the_next(tmp_path: Path, files: Files) -> None:
    prepare(settings_for(files), tmp_path / "first")
    damaged = tmp_path / "first" / "train" / "00000.source.ids"
    assert damaged.stat().st_nlink == 1
    prepare(settings_for(files), tmp_path / "second")
    before = content_of(tmp_path / "second")
    with damaged.open("r+b") as file:
        file.write(b"\xff" * 8)
    assert content_of(tmp_path / "second") == before
    prepare(settings_for(files), tmp_path / "third")
    assert content_of(tmp_path / "third") == before


def test_a_shard_that_was_cut_short_is_encoded_again(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr("dragoman.corpus.preparation.prepare.publish", interrupt)
        with pytest.raises(UserError, match="Stopped; run the same command again"):
            prepare(settings_for(files), tmp_path / "out")
    for shard in (tmp_path / ".out.partial").glob("shards-*/corpus/train/00000.source.ids"):
        shard.write_bytes(shard.read_bytes()[:-2])
    prepare(settings_for(files), tmp_path / "out", keep_work=False)
    prepare(settings_for(files), tmp_path / "fresh")
    assert content_of(tmp_path / "out") == content_of(tmp_path / "fresh")


def test_nothing_is_kept_unless_asked_for(tmp_path: Path, files: Files) -> None:
    prepare(settings_for(files), tmp_path / "out", keep_work=False)
    assert names_in(tmp_path) == {"train.en", "train.de", "out"}
