"""What a machine says of itself: the same for the same code and data, wherever they lie; nothing for half of them."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

import dragoman
from dragoman.cluster.reach import own_addresses
from dragoman.launch import hosts
from dragoman.launch.hosts import (
    Facts,
    code_fingerprint,
    config_fingerprint,
    count_gpus,
    data_fingerprint,
    free_disk,
    gather_facts,
)
from dragoman.run.folder import RunFolder


def write_corpus(folder: Path, **files: str) -> Path:
    """A folder with files and the manifest of them that `prepare` would write."""
    folder.mkdir()
    records = {}
    for name, text in files.items():
        path = folder / name.replace("_", ".")
        path.write_text(text, encoding="utf-8")
        records[path.name] = {"num_bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({"files": records}), encoding="utf-8")
    return folder


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "prepared", train_bin="many pairs", cleaning_md="of /home/a/my.en")


def test_data_has_the_same_fingerprint_in_a_copy_elsewhere(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "copy")
    assert data_fingerprint(corpus) is not None
    assert data_fingerprint(tmp_path / "copy") == data_fingerprint(corpus)


def test_other_data_has_another_fingerprint(corpus, tmp_path):
    other = write_corpus(tmp_path / "other", train_bin="more pairs", cleaning_md="of /home/a/my.en")
    assert data_fingerprint(other) not in (None, data_fingerprint(corpus))


def test_data_in_files_of_other_names_is_other_data(corpus, tmp_path):
    other = write_corpus(tmp_path / "other", dev_bin="many pairs", cleaning_md="of /home/a/my.en")
    assert data_fingerprint(other) not in (None, data_fingerprint(corpus))


def test_pages_for_people_do_not_count(corpus, tmp_path):
    other = write_corpus(tmp_path / "other", train_bin="many pairs", cleaning_md="of /home/b/texts/my.en")
    assert data_fingerprint(other) == data_fingerprint(corpus)


def test_missing_or_cut_data_has_none(corpus, tmp_path):
    assert data_fingerprint(tmp_path / "nowhere") is None
    file = corpus / "train.bin"
    file.write_bytes(file.read_bytes()[:-1])
    assert data_fingerprint(corpus) is None
    file.unlink()
    assert data_fingerprint(corpus) is None


@pytest.mark.parametrize(
    "manifest", ["", "{", "[]", "{}", '{"files": []}', '{"files": {"train.bin": {}}}', '{"files": {"train.bin": 3}}']
)
def test_a_manifest_that_is_none_gives_none(corpus, manifest):
    (corpus / "manifest.json").write_text(manifest, encoding="utf-8")
    assert data_fingerprint(corpus) is None


def test_a_corpus_as_prepare_writes_it_has_a_fingerprint(prepared):
    assert data_fingerprint(prepared) is not None


def test_code_has_one_fingerprint_and_any_change_another(tmp_path, monkeypatch):
    shutil.copytree(Path(dragoman.__file__).parent, tmp_path / "dragoman", ignore=shutil.ignore_patterns("__pycache__"))
    here = code_fingerprint()
    assert code_fingerprint() == here
    monkeypatch.setattr(dragoman, "__file__", str(tmp_path / "dragoman" / "__init__.py"))
    assert code_fingerprint() == here
    with (tmp_path / "dragoman" / "training" / "step.py").open("a") as file:
        file.write("# changed\n")
    assert code_fingerprint() != here


def test_a_run_without_settings_has_no_fingerprint_of_them(tmp_path):
    run = RunFolder(tmp_path)
    assert config_fingerprint(run) is None
    run.config.write_text("[data]\n")
    before = config_fingerprint(run)
    assert before is not None
    run.config.write_text("[data]\n\n")
    assert config_fingerprint(run) != before


@pytest.mark.parametrize(
    ("visible", "num_gpus"), [("0", 1), ("0,1", 2), ("1, 3 ,5", 3), ("GPU-8932f937", 1), ("", 0), ("-1", 0)]
)
def test_gpus_are_those_this_process_may_use(monkeypatch, visible, num_gpus):
    monkeypatch.setattr(hosts, "version", lambda _: "2.13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus() == num_gpus


def test_a_torch_without_cuda_has_no_use_for_gpus(monkeypatch):
    monkeypatch.setattr(hosts, "version", lambda _: "2.13.0+cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert count_gpus() == 0


def test_the_disk_of_a_folder_that_does_not_exist_yet_is_that_of_the_folder_it_will_be_in(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    assert free_disk(tmp_path / "runs" / "of" / "tomorrow") == pytest.approx(free, rel=0.05)


def test_the_disk_of_a_relative_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert free_disk(Path("runs/tomorrow")) == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)


def test_addresses_of_loopback_come_last():
    addresses = [address for _, address in own_addresses()]
    assert "127.0.0.1" in addresses
    are_loopback = [address.startswith("127.") for address in addresses]
    assert are_loopback == sorted(are_loopback)


def test_facts_tell_whether_the_launchers_run_folder_is_seen_and_travel_as_plain_values(corpus, tmp_path):
    run = RunFolder(tmp_path)
    unseen = gather_facts(run, corpus, ".seen-1")
    (tmp_path / ".seen-1").touch()
    seen = gather_facts(run, corpus, ".seen-1")
    assert (unseen.shares_run_folder, seen.shares_run_folder) == (False, True)
    assert seen.data == data_fingerprint(corpus)
    assert Facts(**json.loads(json.dumps(seen.to_json()))) == seen
