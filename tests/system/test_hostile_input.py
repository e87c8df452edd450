"""Input without an end, and places that cannot be written: one sentence, exit code 1, nothing left behind."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from corpora import Files, make_pairs, names_in, write_pairs
from program import call_dragoman, dragoman_command, wait_until

STOPPED = "dragoman: Stopped; run the same command again to continue where it stopped."
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="needs root to mount")
NOBODY = 65534


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_pairs(tmp_path, "train", make_pairs(60))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "prepared" / "out"


@contextmanager
def started(*arguments: object, **options: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        dragoman_command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def endless(content: bytes) -> Iterator[int]:
    """A pipe into which a process writes this content again and again; yields its reading end."""
    reader, writer = os.pipe()
    command = ["python3", "-c", f"import os\nwhile True: os.write(1, {content!r} * 4096)"]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.DEVNULL) as process:
        os.close(writer)
        try:
            yield reader
        finally:
            os.close(reader)
            process.kill()


def test_devices_are_refused_before_they_are_read(tmp_path: Path, files: Files, out: Path):
    refused = "is a device, not a file with text; it may never end."
    source = ["--source", "/dev/zero", "--target", files[1]]
    text = ["--source", files[0], "--target", files[1]]
    dev = write_pairs(tmp_path, "dev", make_pairs(3))
    for arguments in (
        ["prepare", *source, "--out", out],
        ["prepare", *text, "--dev-source", "/dev/urandom", "--dev-target", dev[1], "--out", out],
        ["prepare", *text, "--reuse-vocabulary", "/dev/zero", "--out", out],
        ["prepare", "--corpus", "/dev/zero", "--out", out],
        ["train", *source, "--run-dir", tmp_path / "run"],
        ["prepare", "/dev/zero", "--out", out],
        ["tokenize", "/dev/zero"],
    ):
        done = call_dragoman(*arguments, code=1)
        assert refused in done.stderr or "does not show its format" in done.stderr
    assert "is empty" in call_dragoman("prepare", "--source", "/dev/null", *text[2:], "--out", out, code=1).stderr
    assert not out.parent.exists() or not names_in(out.parent)


def test_a_pipe_without_a_writer_is_mentioned_and_a_signal_ends_the_wait(tmp_path: Path, files: Files, out: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with started("prepare", "--source", pipe, "--target", files[1], "--out", out) as process:
        assert process.stderr is not None
        waiting = f"Waiting for data from {pipe}; nothing has been written to this pipe yet.\n"
        assert process.stderr.readline() == waiting
        process.send_signal(signal.SIGHUP)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (1, f"{STOPPED}\n")
    assert names_in(tmp_path) == {"train.en", "train.de", "pipe"}


def test_a_line_without_an_end_is_refused(tmp_path: Path, files: Files, out: Path):
    arguments = ["--source", "/dev/stdin", "--target", files[1], "--out", out]
    with endless(bytes(1)) as reader, started("prepare", *arguments, stdin=reader) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors == (
        "dragoman: /dev/stdin has more than 64 MiB without a line end; give text with one sentence per line.\n"
    )
    assert names_in(tmp_path) == {"train.en", "train.de"}


def spooled_bytes(spool: Path) -> int:
    return sum(path.stat().st_size for path in spool.glob("pipe*"))


def test_the_copy_of_an_endless_pipe_is_removed(tmp_path: Path, files: Files):
    spool, arguments = tmp_path / ".out.pipes", ["--target", files[1], "--out", tmp_path / "out"]
    with endless(b"a line\n") as reader:
        with started("prepare", "--source", "/dev/stdin", *arguments, stdin=reader) as process:
            wait_until(lambda: spooled_bytes(spool) > 10**6, "a copy of the pipe")
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (1, f"{STOPPED}\n")
        assert not spool.exists()
        # Killed, it can remove nothing; the next command does.
        with started("prepare", "--source", "/dev/stdin", *arguments, stdin=reader) as process:
            wait_until(lambda: spooled_bytes(spool) > 10**6, "a copy of the pipe")
            process.kill()
            process.wait()
    assert spooled_bytes(spool) > 0
    call_dragoman("prepare", "--source", files[0], *arguments, "--discard-work")
    assert names_in(tmp_path) == {"train.en", "train.de", "out"}


# --- disks


@contextmanager
def mounted(folder: Path, options: list[str]) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", *options, str(folder)], check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@NEEDS_ROOT
def test_a_copy_of_a_pipe_leaves_a_reserve_on_the_disk(tmp_path: Path, files: Files):
    with mounted(tmp_path / "disk", ["-t", "tmpfs", "-o", "size=20m", "tmpfs"]) as disk:
        with endless(b"a line\n") as reader:
            arguments = ["--source", "/dev/stdin", "--target", files[1], "--out", disk / "out"]
            with started("prepare", *arguments, stdin=reader) as process:
                _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert errors == (
            f"dragoman: There is no space left for {disk / 'out'}; "
            "free some and run the same command again to continue.\n"
        )
        assert not names_in(disk)


@NEEDS_ROOT
def test_a_preparation_stops_before_the_disk_is_full_and_continues(tmp_path: Path, files: Files):
    with mounted(tmp_path / "disk", ["-t", "tmpfs", "-o", "size=2m", "tmpfs"]) as disk:
        filler = disk / "filler"
        filler.write_bytes(bytes(2 * 2**20 - 2**15))
        arguments = ["prepare", "--source", files[0], "--target", files[1], "--out", disk / "out"]
        assert "There is no space left for" in call_dragoman(*arguments, code=1).stderr
        filler.unlink()
        call_dragoman(*arguments, "--discard-work")
        assert names_in(disk) == {"out"}


@NEEDS_ROOT
def test_folders_that_cannot_be_written_are_named(tmp_path: Path, files: Files):
    text = ["--source", files[0], "--target", files[1]]
    with mounted(tmp_path / "disk", ["-t", "tmpfs", "-o", "ro", "tmpfs"]) as disk:
        done = call_dragoman("prepare", *text, "--out", disk / "out", code=1)
    partial = disk / ".out.partial"
    assert done.stderr == f"dragoman: {disk / 'out'} cannot be written: the file system is read-only ({partial}).\n"
    done = call_dragoman("prepare", *text, "--out", "/dev/full/out", code=1)
    assert "dragoman: /dev/full/out cannot be written: a part of the path is a file, not a folder" in done.stderr
    os.seteuid(NOBODY)
    try:
        done = call_dragoman("prepare", *text, "--out", "/usr/dragoman/out", code=1)
    finally:
        os.seteuid(0)
    assert "you do not have the permission" in done.stderr
