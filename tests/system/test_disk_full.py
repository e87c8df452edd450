"""A disk that fills up: one sentence, and what was saved before stays good. A small real file system, so root only."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpora import content_of
from program import Run

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mount") is None, reason="needs root to mount a small file system"
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("cannot mount a small file system here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_training_onto_a_full_disk_keeps_the_checkpoint_before(dragoman: Run, config: Path, small_disk: Path):
    run = small_disk / "run"
    done = dragoman(
        "train", config, "--run-dir", run, "--set", "checkpoints.save_every=1", "--set", "checkpoints.keep_last=50",
        code=1,
    )  # fmt: skip
    assert "no space left on the disk" in done.stderr
    assert not list((run / "checkpoints").glob(".*partial"))
    translated = dragoman("translate", run, "--checkpoint", "latest", "--beam-size", 1, input="The dog sleeps.\n")
    assert translated.stdout.count("\n") == 1


def test_preparing_onto_a_full_disk_continues_when_there_is_space(dragoman: Run, small_disk: Path, tmp_path: Path):
    dragoman("data", "builtin", "--out", tmp_path / "corpus", "--pairs", 40_000)
    command = [
        "prepare", "--source", tmp_path / "corpus/train.en", "--target", tmp_path / "corpus/train.de",
        "--vocab-size", 500, "--json",
    ]  # fmt: skip
    out = small_disk / "prepared"
    done = dragoman(*command, "--out", out, code=1)
    assert f"no space left for {out}; free some and run the same command again to continue" in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert not out.exists()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    dragoman(*command, "--out", out)
    assert [path.name for path in small_disk.iterdir()] == ["prepared"]
    dragoman(*command, "--out", tmp_path / "expected")
    assert content_of(out) == content_of(tmp_path / "expected")
