"""Tests of the work folder: one process at a time, interrupted work stays, finished stages serve other outputs."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from corpora import make_pairs, names_in, prepare_pairs

from dragoman.corpus.preparation.engine import Interrupted
from dragoman.corpus.preparation.inputs import StageKeys
from dragoman.corpus.preparation.work_folder import (
    KEPT_FOLDER,
    TaskRecord,
    WorkFolder,
    keep_finished_stages,
    link_tree,
    open_work_folder,
    publish,
    remove_work,
)
from dragoman.run.errors import UserError

KEYS = StageKeys("0123456789abcdef", "fedcba9876543210", "whole corpus")
TEXT, SHARDS = "text-0123456789ab", "shards-fedcba987654"
OTHER_TOKENIZER = StageKeys(KEYS.text, "aaaaaaaaaaaaaaaa", "other corpus")


def finish_text(work: WorkFolder) -> None:
    work.text.shard(0, "source").write_text("cleaned")
    work.text.record.write_text("{}")


def finish_all(work: WorkFolder) -> None:
    finish_text(work)
    work.shards.vocabulary.write_text("{}")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, Interrupted, MemoryError])
def test_an_interruption_leaves_all_work_in_place(tmp_path: Path, error: type[BaseException]) -> None:
    with suppress(error), open_work_folder(tmp_path / "out", KEYS) as work:
        finish_text(work)
        work.shards.encoded("train", 3, "json").write_text("done")
        raise error
    with open_work_folder(tmp_path / "out", KEYS) as work:
        assert work.text.shard(0, "source").read_text() == "cleaned"
        assert work.shards.encoded("train", 3, "json").read_text() == "done"


def test_an_error_keeps_finished_stages_and_nothing_else(tmp_path: Path) -> None:
    with suppress(UserError), open_work_folder(tmp_path / "out", KEYS) as work:
        work.text.block(0, "json").write_text("a block")
        raise UserError("bad input")
    assert names_in(tmp_path) == set()
    with suppress(UserError), open_work_folder(tmp_path / "out", KEYS) as work:
        finish_text(work)
        raise UserError("vocabulary too large")
    assert names_in(tmp_path) == {KEPT_FOLDER}
    assert names_in(tmp_path / KEPT_FOLDER) == {TEXT}


def test_a_kept_stage_moves_to_the_next_output_that_can_use_it(tmp_path: Path) -> None:
    with open_work_folder(tmp_path / "out", KEYS) as work:
        finish_all(work)
        assert keep_finished_stages(work) == tmp_path / KEPT_FOLDER
        remove_work(work)
    assert names_in(tmp_path) == {KEPT_FOLDER}
    with open_work_folder(tmp_path / "other", OTHER_TOKENIZER) as work:
        assert work.text.shard(0, "source").read_text() == "cleaned"
        assert not work.shards.vocabulary.exists()
        # The kept folder never holds more than the work of one preparation.
        finish_all(work)
        keep_finished_stages(work)
        remove_work(work)
    assert names_in(tmp_path / KEPT_FOLDER) == {TEXT, "shards-aaaaaaaaaaaa"}


def test_a_stage_is_taken_from_an_interrupted_output_but_not_from_one_at_work(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), open_work_folder(tmp_path / "out", KEYS) as interrupted:
        finish_text(interrupted)
        with open_work_folder(tmp_path / "second", OTHER_TOKENIZER) as work:
            assert not work.text.record.exists()
            remove_work(work)
        raise KeyboardInterrupt
    with open_work_folder(tmp_path / "third", OTHER_TOKENIZER) as work:
        assert work.text.record.exists()
    assert not interrupted.text.path.exists()


def test_work_for_other_settings_of_the_same_output_is_removed(tmp_path: Path) -> None:
    with open_work_folder(tmp_path / "out", KEYS) as first:
        finish_all(first)
    with open_work_folder(tmp_path / "out", OTHER_TOKENIZER) as work:
        assert work.text.record.exists()
        assert not first.shards.path.exists()
    with open_work_folder(tmp_path / "out", StageKeys("bbbbbbbbbbbb", "cccccccccccc", "")) as work:
        assert names_in(work.path) == {"lock", "text-bbbbbbbbbbbb", "shards-cccccccccccc"}


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with open_work_folder(tmp_path / "out", KEYS) as work:
        finish_text(work)
        with pytest.raises(UserError, match="out is being prepared by another process"):
            open_work_folder(tmp_path / "out", OTHER_TOKENIZER).__enter__()
        assert work.text.record.exists()


def test_half_written_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    with open_work_folder(tmp_path / "out", KEYS) as work:
        pass
    half_written = [
        work.shards.corpus / "train" / ".00000.source.ids.123.partial",
        work.text.blocks / ".0.json.9.partial",
    ]
    for path in half_written:
        path.write_text("half")
    with open_work_folder(tmp_path / "out", KEYS) as work:
        assert not any(path.exists() for path in half_written)


@pytest.mark.parametrize("out_exists", [False, True])
def test_the_corpus_is_published_whole(tmp_path: Path, out_exists: bool) -> None:
    out = tmp_path / "out"
    if out_exists:
        out.mkdir()
    with open_work_folder(out, KEYS) as work:
        link_tree(work.shards.corpus, work.corpus)
        publish(work, out)
        remove_work(work)
    assert names_in(tmp_path) == {"out"}
    assert names_in(out) == {"train", "dev", "test"}


def test_files_are_linked_or_copied_where_links_are_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree" / "train").mkdir(parents=True)
    (tmp_path / "tree" / "train" / "ids").write_bytes(b"123")
    link_tree(tmp_path / "tree", tmp_path / "linked")
    assert (tmp_path / "linked" / "train" / "ids").samefile(tmp_path / "tree" / "train" / "ids")

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    link_tree(tmp_path / "tree", tmp_path / "copied")
    assert (tmp_path / "copied" / "train" / "ids").read_bytes() == b"123"
    assert not (tmp_path / "copied" / "train" / "ids").samefile(tmp_path / "tree" / "train" / "ids")


REWRITTEN = {"given_sentences.json", "blocks.json", "held_out_sentences.json"}
"""Written again by every preparation that needs them, so no record vouches for them."""


def test_a_record_is_written_after_its_files_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: set[int] = set()
    saved: list[str] = []
    fsync, save = os.fsync, TaskRecord.save

    def note_fsync(descriptor: int) -> None:
        fsync(descriptor)
        flushed.add(os.fstat(descriptor).st_ino)

    def check_and_save(record: TaskRecord, path: Path, *folders: Path) -> None:
        files = [file for folder in (path.parent, *folders) for file in folder.iterdir() if file.is_file()]
        late = [file.name for file in files if file.name not in REWRITTEN and file.stat().st_ino not in flushed]
        assert not late, f"{path.name} vouches for files that a power failure could cut: {late}"
        save(record, path, *folders)
        assert path.stat().st_ino in flushed
        assert all(folder.stat().st_ino in flushed for folder in (path.parent, *folders))
        saved.append(path.name)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(TaskRecord, "save", check_and_save)
    prepare_pairs(tmp_path, make_pairs(60))
    assert saved == ["000000.json", "00000.json", "text.json", "vocabulary.json"] + [
        f"{split}.00000.json" for split in ("train", "dev", "test")
    ]
