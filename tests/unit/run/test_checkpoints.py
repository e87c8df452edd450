"""Which checkpoints are whole, and which one a name means: every kind of damage is found and named."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.run.checkpoints import (
    MANIFEST_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    RESUME_FILES,
    STATE_FILE,
    TRANSLATOR_FILES,
    find_checkpoint,
    newest_complete_checkpoint,
    verify_checkpoint,
)
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder


def make_checkpoint(run: RunFolder, step: int) -> Path:
    folder = run.checkpoint(step)
    folder.mkdir(parents=True)
    records = {}
    for name in RESUME_FILES:
        content = f"{name} of step {step}".encode() * 50
        (folder / name).write_bytes(content)
        records[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / MANIFEST_FILE).write_text(json.dumps({"format_version": 1, "step": step, "files": records}))
    return folder


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run")


def test_a_whole_checkpoint_passes(run):
    checkpoint = make_checkpoint(run, 5)
    verify_checkpoint(checkpoint)
    verify_checkpoint(checkpoint, TRANSLATOR_FILES)


@pytest.mark.parametrize("name", RESUME_FILES)
@pytest.mark.parametrize("damage", [flip_bit, cut_off, lengthen])
def test_a_damaged_file_is_named(run, name, damage):
    checkpoint = make_checkpoint(run, 5)
    damage(checkpoint / name)
    with pytest.raises(UserError, match=f"step-00000005/{name} is damaged"):
        verify_checkpoint(checkpoint)


@pytest.mark.parametrize("name", RESUME_FILES)
def test_a_missing_file_is_named(run, name):
    checkpoint = make_checkpoint(run, 5)
    (checkpoint / name).unlink()
    with pytest.raises(UserError, match=f"step-00000005 is incomplete: {name} is missing"):
        verify_checkpoint(checkpoint)


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", "null", '{"files": {}}', '{"files": {"model.safetensors": 3}}']
)
def test_an_unreadable_manifest_is_named(run, content):
    checkpoint = make_checkpoint(run, 5)
    if content is None:
        (checkpoint / MANIFEST_FILE).unlink()
    else:
        (checkpoint / MANIFEST_FILE).write_text(content)
    with pytest.raises(UserError, match=r"incomplete: its manifest.json is missing or unreadable"):
        verify_checkpoint(checkpoint)


def test_a_translator_does_not_need_the_optimizer(run):
    checkpoint = make_checkpoint(run, 5)
    (checkpoint / OPTIMIZER_FILE).unlink()
    verify_checkpoint(checkpoint, TRANSLATOR_FILES)
    with pytest.raises(UserError):
        verify_checkpoint(checkpoint)


def test_the_newest_whole_checkpoint_is_found_without_warnings(run):
    warnings: list[str] = []
    for step in (5, 10, 100):
        make_checkpoint(run, step)
    assert newest_complete_checkpoint(run, warnings.append) == run.checkpoint(100)
    assert warnings == []


def test_damaged_checkpoints_are_passed_over_with_a_warning_each(run):
    warnings: list[str] = []
    for step in (5, 10, 100):
        make_checkpoint(run, step)
    flip_bit(run.checkpoint(100) / MODEL_FILE)
    (run.checkpoint(10) / STATE_FILE).unlink()
    assert newest_complete_checkpoint(run, warnings.append) == run.checkpoint(5)
    assert len(warnings) == 2
    assert "step-00000100/model.safetensors is damaged" in warnings[0]
    assert "step-00000010 is incomplete: state.json" in warnings[1]


def test_where_none_is_whole_none_is_returned(run):
    assert newest_complete_checkpoint(run, pytest.fail) is None
    make_checkpoint(run, 5)
    cut_off(run.checkpoint(5) / OPTIMIZER_FILE)
    warnings: list[str] = []
    assert newest_complete_checkpoint(run, warnings.append) is None
    assert len(warnings) == 1


def test_half_written_folders_are_ignored(run):
    make_checkpoint(run, 5)
    make_checkpoint(run, 9).rename(run.checkpoints / ".step-00000009.partial")
    assert newest_complete_checkpoint(run, pytest.fail) == run.checkpoint(5)


def test_names_lead_to_their_checkpoints(run):
    for step in (5, 10, 15):
        make_checkpoint(run, step)
    (run.checkpoints / "best").symlink_to("step-00000005")
    (run.checkpoints / "latest").symlink_to("step-00000015")
    assert find_checkpoint(run) == find_checkpoint(run, "best") == run.checkpoint(5).resolve()
    assert find_checkpoint(run, "latest") == run.checkpoint(15).resolve()
    assert find_checkpoint(run, "10") == run.checkpoint(10)


def test_without_a_best_the_latest_is_taken_and_without_links_the_newest(run):
    for step in (5, 10):
        make_checkpoint(run, step)
    assert find_checkpoint(run, "best") == find_checkpoint(run, "latest") == run.checkpoint(10)
    (run.checkpoints / "latest").symlink_to("step-00000005")
    assert find_checkpoint(run, "best") == run.checkpoint(5).resolve()
    (run.checkpoints / "best").symlink_to("step-00000001")  # dangling
    assert find_checkpoint(run, "best") == run.checkpoint(5).resolve()


def test_a_checkpoint_that_is_not_there_is_answered_with_those_that_are(run):
    with pytest.raises(UserError, match="has no checkpoint yet"):
        find_checkpoint(run)
    for step in (5, 10):
        make_checkpoint(run, step)
    with pytest.raises(UserError, match="has no checkpoint of step 7; there are: 5, 10"):
        find_checkpoint(run, "7")
    with pytest.raises(UsageError, match="takes best, latest or a step number, not 'newest'"):
        find_checkpoint(run, "newest")


def test_a_named_checkpoint_is_verified(run):
    make_checkpoint(run, 5)
    flip_bit(run.checkpoint(5) / MODEL_FILE)
    with pytest.raises(UserError, match="is damaged"):
        find_checkpoint(run, "5")


def test_checkpoints_are_judged_without_torch():
    program = "import sys, dragoman.run.checkpoints, dragoman.run.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
