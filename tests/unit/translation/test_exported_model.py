"""A folder that is missing, foreign, damaged or hostile is refused with a sentence."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_exports import write_tiny_export

from dragoman.run.errors import UserError
from dragoman.run.files import LaterFormatError
from dragoman.translation.exported_model import is_export, load_export, read_facts, write_checksums


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_export(tmp_path_factory.mktemp("exports") / "intact")


@pytest.fixture
def folder(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "export"))


def change_facts(folder: Path, **changes: object) -> None:
    facts = json.loads((folder / "dragoman.json").read_text())
    (folder / "dragoman.json").write_text(json.dumps(facts | changes))
    write_checksums(folder)


def test_loads(folder: Path):
    loaded = load_export(folder, beam_size=3, length_penalty=1.0, num_workers=1)
    assert (loaded.translator.settings.beam_size, loaded.translator.settings.length_penalty) == (3, 1.0)
    assert load_export(folder).translator.settings.beam_size == 2
    assert is_export(folder)


def test_missing_and_foreign_folders(tmp_path: Path):
    with pytest.raises(UserError, match="There is no folder"):
        load_export(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"not an export of dragoman: it has no dragoman\.json"):
        load_export(tmp_path)
    assert not is_export(tmp_path)
    assert not is_export(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["model.bin", "config.json", "tokenizer.model", "shared_vocabulary.json"])
def test_changed_and_missing_files(name: str, folder: Path):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=rf"{name} is damaged"):
        load_export(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=rf"incomplete: {name} is missing"):
        load_export(folder)


def test_a_later_format(folder: Path):
    change_facts(folder, format_version=2)
    with pytest.raises(LaterFormatError, match="written by a later dragoman"):
        load_export(folder)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"beam_size": 10**9}, "beam_size"),
        ({"beam_size": "4"}, "beam_size"),
        ({"max_positions": 10**12}, "max_positions"),
        ({"max_source_tokens": 0}, "max_source_tokens"),
        ({"languages": ["en"]}, "languages"),
        ({"scores": [{"judged_on": "x", "bleu": "high"}]}, "scores"),
        ({"format": "pickle"}, "format"),
    ],
)
def test_malformed_facts(changes: dict[str, object], place: str, folder: Path):
    change_facts(folder, **changes)
    with pytest.raises(UserError, match=f"malformed at {place}"):
        load_export(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000, b"null"])
def test_facts_that_are_no_facts(content: bytes, folder: Path):
    (folder / "dragoman.json").write_bytes(content)
    with pytest.raises(UserError, match=r"dragoman\.json"):
        load_export(folder)


def test_huge_facts_are_not_read(folder: Path):
    with (folder / "dragoman.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="larger than 4 MiB"):
        read_facts(folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", ".hidden", "", "a b"])
def test_checksums_name_only_files_beside_them(name: str, folder: Path):
    with (folder / "SHA256SUMS").open("a") as file:
        file.write(f"{'0' * 64}  {name}\n")
    with pytest.raises(UserError, match="SHA256SUMS is damaged"):
        load_export(folder)


def test_files_without_a_checksum_are_not_loaded(folder: Path):
    lines = (folder / "SHA256SUMS").read_text().splitlines(keepends=True)
    (folder / "SHA256SUMS").write_text("".join(line for line in lines if "model.bin" not in line))
    with pytest.raises(UserError, match=r"does not name model\.bin"):
        load_export(folder)


def test_pipes_are_not_opened(folder: Path):
    (folder / "model.bin").unlink()
    os.mkfifo(folder / "model.bin")
    with pytest.raises(UserError, match=r"model\.bin is missing"):
        load_export(folder)


def test_separate_vocabularies_need_both_tokenizers(folder: Path):
    change_facts(folder, has_joint_vocabulary=False)
    with pytest.raises(UserError, match=r"tokenizer\.source\.model"):
        load_export(folder)


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def enlarge_a_dimension(content: bytes) -> bytes:
    """Makes the first weight claim to be enormous."""
    place = content.index(b"\x00\x02", 30) + 2
    return content[:place] + (2**31 - 1).to_bytes(4, "little") + content[place + 4 :]


@pytest.mark.parametrize("change", [truncate, enlarge_a_dimension, lambda _: b"", lambda content: content + b"more"])
def test_a_hostile_model_with_right_checksums_is_refused(change: Callable[[bytes], bytes], folder: Path):
    path = folder / "model.bin"
    path.write_bytes(change(path.read_bytes()))
    write_checksums(folder)
    with pytest.raises(UserError, match="model"):
        load_export(folder)


def test_a_vocabulary_of_another_size_is_refused(folder: Path):
    entries = json.loads((folder / "shared_vocabulary.json").read_text())
    for others in (entries[:-1], [*entries, "more"], [*entries[:-1], entries[5]], {"a": 1}):
        (folder / "shared_vocabulary.json").write_text(json.dumps(others))
        write_checksums(folder)
        with pytest.raises(UserError, match="vocabulary"):
            load_export(folder)


@pytest.mark.parametrize(
    "changes", [{"decoder_start_token": None}, {"add_source_eos": False}, {"layer_norm_epsilon": 0}, {"other": 1}]
)
def test_other_settings_of_ctranslate2_are_refused(changes: dict[str, object], folder: Path):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    write_checksums(folder)
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        load_export(folder)


def test_subwords_that_are_not_text_are_refused(folder: Path):
    content = (folder / "tokenizer.model").read_bytes()
    (folder / "tokenizer.model").write_bytes(content.replace("▁the".encode(), b"\xff\xfe\xfd\xfc\xfb\xfa"))
    write_checksums(folder)
    with pytest.raises(UserError, match="tokenizer"):
        load_export(folder)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_facts_are_read_or_refused(tmp_path: Path, content: bytes):
    (tmp_path / "dragoman.json").write_bytes(content)
    with pytest.raises(UserError):
        read_facts(tmp_path)
