"""A disk that fills up: one sentence, and what was saved before stays good. A small real file system, so root only."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
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


def test_preparing_onto_a_full_disk_leaves_nothing(dragoman: Run, small_disk: Path, tmp_path: Path):
    dragoman("data", "builtin", "--out", tmp_path / "corpus", "--pairs", 40_000)
    done = dragoman(
        "prepare", "--source", tmp_path / "corpus/train.en", "--target", tmp_path / "corpus/train.de",
        "--out", small_disk / "prepared", "--vocab-size", 500, code=1,
    )  # fmt: skip
    assert "no space left" in done.stderr
    assert list(small_disk.iterdir()) == []
