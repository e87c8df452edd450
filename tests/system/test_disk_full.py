"""A disk that is full or read-only: training continues, and earlier checkpoints stay intact.

Uses small real file systems, so these tests need root.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from corpora import content_of
from program import Run, dragoman_command, read_records, train_losses, wait_until

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("mount") is None, reason="needs root to mount a small file system"
    ),
]
NUM_STEPS = 100
SAVE_EVERY = 20  # far enough apart to fill the disk between two
SETTINGS = ["--set", f"training.max_steps={NUM_STEPS}", "--set", f"checkpoints.save_every={SAVE_EVERY}"]


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


class Training:
    """A run under way, whose output is read line by line."""

    def __init__(self, config: Path, run: Path) -> None:
        self._process = subprocess.Popen(
            dragoman_command("train", config, "--run-dir", run, *SETTINGS),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, words: str) -> str:
        """Reads on to the first line with these words."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if words in line:
                return line
        raise AssertionError(f"never said {words!r}: {self._process.communicate()[1]}")

    def end(self) -> tuple[int, str, str]:
        output, errors = self._process.communicate(timeout=120)
        assert "Traceback" not in output + errors
        return self._process.returncode, output, errors


@pytest.fixture
def undisturbed(dragoman: Run, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as it is without trouble; made once for all tests."""
    run = tmp_path_factory.getbasetemp() / "undisturbed"
    if not run.exists():
        dragoman("train", config, "--run-dir", run, *SETTINGS)
    return run


def fill(disk: Path) -> Path:
    """A file that takes all the space there is."""
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


def assert_ends_like(run: Path, other: Path) -> None:
    """The same weights and moments, and no line of the records missing or half."""
    for name in ("model.safetensors", "optimizer.safetensors"):
        mine, theirs = (each / "checkpoints" / f"step-{NUM_STEPS:08d}" / name for each in (run, other))
        assert mine.read_bytes() == theirs.read_bytes()
    assert train_losses(run) == train_losses(other)
    assert (run / "checkpoints" / "latest").resolve().name == f"step-{NUM_STEPS:08d}"
    assert not list((run / "checkpoints").glob(".*"))
    assert (run / "log.txt").read_text().count("*** Global step") == NUM_STEPS


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while_costs_nothing(config: Path, small_disk: Path, undisturbed: Path):
    run = small_disk / "run"
    training = Training(config, run)
    training.wait_for(f"Saved checkpoint of step {SAVE_EVERY} ")
    filler = fill(small_disk)
    training.wait_for("cannot be written: there is no space left on the disk. Training continues")
    refused = training.wait_for("could not be written to")
    assert "there is no space left on the disk" in refused
    filler.unlink()
    code, _, errors = training.end()
    assert code == 0, errors
    assert_ends_like(run, undisturbed)
    assert "no space left" in str(read_records(run, "checkpoint_failed")[0]["error"])


@pytest.mark.slow
def test_a_disk_that_stays_full_costs_only_what_comes_after(dragoman: Run, config: Path, small_disk: Path):
    run = small_disk / "run"
    training = Training(config, run)
    training.wait_for(f"Saved checkpoint of step {SAVE_EVERY} ")
    fill(small_disk)
    training.wait_for(f"*** Global step {NUM_STEPS}:")
    code, _, errors = training.end()
    assert code == 1
    last = int((run / "checkpoints" / "latest").resolve().name.removeprefix("step-"))
    assert f"The last state, of step {NUM_STEPS}, could not be written to {run / 'checkpoints'}" in errors
    assert f"no space left on the disk. The checkpoint of step {last} is kept. Continue from it with: " in errors
    assert SAVE_EVERY <= last < NUM_STEPS
    assert not list((run / "checkpoints").glob(".*"))
    translated = dragoman("translate", run, "--checkpoint", "latest", "--beam-size", 1, input="The dog sleeps.\n")
    assert translated.stdout.count("\n") == 1


@pytest.mark.slow
def test_a_disk_that_is_read_only_for_a_while_costs_nothing(config: Path, tmp_path: Path, undisturbed: Path):
    run = tmp_path / "run"
    training = Training(config, run)
    training.wait_for(f"Saved checkpoint of step {SAVE_EVERY} ")
    # Over itself: a file open for writing (the lock) would keep the file system below from being remounted.
    subprocess.run(["mount", "-o", "bind,ro", str(run), str(run)], check=True)
    try:
        training.wait_for("cannot be written: the file system is read-only. Training continues")
        assert "the file system is read-only" in training.wait_for("could not be written to")
    finally:
        # Samples are written once a second, and a file that is open for that moment keeps the disk busy.
        wait_until(lambda: subprocess.run(["umount", str(run)], check=False).returncode == 0, "a disk at rest", 20)
    code, _, errors = training.end()
    assert code == 0, errors
    assert_ends_like(run, undisturbed)


@pytest.mark.slow
def test_training_does_not_start_on_a_full_disk(dragoman: Run, config: Path, small_disk: Path):
    too_large = ["--set", "model.width=256", "--set", "model.feed_forward=1024"]
    done = dragoman("train", config, "--run-dir", small_disk / "run", *too_large, code=1)
    assert "no space left on the disk. Nothing is trained yet." in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert not list((small_disk / "run" / "checkpoints").iterdir())


@pytest.mark.slow
def test_preparing_onto_a_full_disk_continues_when_there_is_space(dragoman: Run, small_disk: Path, tmp_path: Path):
    dragoman("data", "builtin", "--out", tmp_path / "corpus", "--pairs", 40_000)
    command = [
        "prepare", "--source", tmp_path / "corpus/train.en", "--target", tmp_path / "corpus/train.de",
        "--vocab-size", 500, "--discard-work", "--json",
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
