"""A run keeps exports of its checkpoints for CTranslate2; they are made once, and again where something changed."""

import json
import os
from pathlib import Path

import pytest
from checkpoint_folders import flip_bit, make_checkpoint
from export_sources import LINES, build_source

from dragoman.exporting.cached_export import ensure_export
from dragoman.exporting.opening import open_model
from dragoman.exporting.source import open_export_source
from dragoman.model.weights import save_tensors
from dragoman.run.checkpoints import MANIFEST_FILE, MODEL_FILE
from dragoman.run.config import build_settings, dump_settings
from dragoman.run.errors import UserError
from dragoman.run.files import replace_link
from dragoman.run.folder import RunFolder
from dragoman.translation.exported_model import LoadedExport, read_facts

MODEL = {"preset": "tiny", "width": 32, "feed_forward": 64, "heads": 2, "embeddings": "untied"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two checkpoints with weights that nobody trained; what it was trained on is gone."""
    folder = RunFolder(tmp_path / "run")
    settings = build_settings({"data": {"prepared": "gone"}, "model": MODEL})
    folder.path.mkdir()
    folder.config.write_text(dump_settings(settings))
    for step in (10, 20):
        save(folder, step, seed=step)
    for name in ("best", "latest"):
        replace_link(folder.checkpoints / name, folder.checkpoint(20).name)
    rows = [{"step": 20, "bleu": 1.0}, *({"source": line, "reference": line.upper()} for line in LINES[:5])]
    folder.translations.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder.path


def save(run: RunFolder, step: int, seed: int) -> None:
    source = build_source(run.path, seed=seed, embeddings="untied")
    checkpoint = make_checkpoint(run, step)
    digest = save_tensors(checkpoint / MODEL_FILE, dict(source.model.state_dict()))
    manifest = json.loads((checkpoint / MANIFEST_FILE).read_text())
    manifest["files"][MODEL_FILE] = {"bytes": (checkpoint / MODEL_FILE).stat().st_size, "sha256": digest}
    (checkpoint / MANIFEST_FILE).write_text(json.dumps(manifest))


def test_is_made_once_and_translates_like_the_run(run: Path):
    said: list[str] = []
    folder = ensure_export(run, "best", said.append)
    assert sum("Exporting" in each for each in said) == 1
    assert folder.parent == run / "exports"
    written = (folder / "model.bin").stat().st_mtime_ns
    assert ensure_export(run, "latest", said.append) == folder == ensure_export(run, "20")
    assert (folder / "model.bin").stat().st_mtime_ns == written
    assert sum("Exporting" in each for each in said) == 1
    exported, native = (
        open_model(run, beam_size=1, backend=backend, workers=1) for backend in ("ctranslate2", "torch")
    )
    assert isinstance(exported, LoadedExport)
    assert exported.translator.translate(LINES) == native.translator.translate(LINES)


def test_other_weights_have_another_export(run: Path):
    folders = {ensure_export(run, which) for which in ("10", "20", "average:last:2")}
    folders.add(ensure_export(run, "20", quantization="int8"))
    assert len(folders) == 4
    assert read_facts(ensure_export(run, "average:last:2")).checkpoint.startswith("the average of 2 checkpoints")


def test_weights_that_changed_are_exported_again(run: Path):
    first = ensure_export(run)
    save(RunFolder(run), 20, seed=99)
    second = ensure_export(run)
    assert first != second
    assert (first / "model.bin").read_bytes() != (second / "model.bin").read_bytes()


def test_a_damaged_export_is_made_again(run: Path):
    folder = ensure_export(run)
    good = (folder / "model.bin").read_bytes()
    flip_bit(folder / "model.bin")
    assert ensure_export(run) == folder
    assert (folder / "model.bin").read_bytes() == good


def test_only_the_newest_few_are_kept(run: Path):
    earlier = [run / "exports" / f"ctranslate2-{number}" for number in range(6)]
    for number, folder in enumerate(earlier):
        folder.mkdir(parents=True)
        (folder / "dragoman.json").write_text("{}")
        os.utime(folder, (number, number))
    (run / "exports" / "notes").mkdir()
    newest = ensure_export(run)
    assert set((run / "exports").iterdir()) == {newest, *earlier[-3:], run / "exports" / "notes"}


def test_a_folder_that_cannot_be_written_is_an_error(run: Path):
    (run / "exports").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        ensure_export(run)


def test_source_tells_what_it_was_made_from(run: Path):
    source = open_export_source(run, "average:last:2")
    assert (source.step, source.is_average, source.languages) == (20, True, None)
    single = open_export_source(run, "10")
    assert (single.step, single.is_average, single.description) == (10, False, "the checkpoint of step 10")
