"""Files that appear whole or not at all, whatever happens in between."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from io import FileIO
from pathlib import Path

import pytest

from dragoman.run.files import (
    append_line,
    fsync_folder,
    read_json,
    replace_link,
    require_free_space,
    sha256,
    write_all,
    write_json,
    write_text,
    write_then_rename,
)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_half_and_raise(path: Path, error: type[BaseException]) -> None:
    with write_then_rename(path) as file:
        file.write(b"half")
        file.flush()
        raise error


def num_open_files() -> int:
    """Where the system tells."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_a_written_file_has_its_content_and_no_neighbour(tmp_path):
    write_text(tmp_path / "note.txt", "Grüße\n")
    assert (tmp_path / "note.txt").read_bytes() == "Grüße\n".encode()
    assert names_in(tmp_path) == ["note.txt"]


def test_line_ends_stay_as_they_are(tmp_path):
    write_text(tmp_path / "note.txt", "a\r\nb\n")
    assert (tmp_path / "note.txt").read_bytes() == b"a\r\nb\n"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, OSError])
def test_a_failure_in_the_block_leaves_nothing(tmp_path, error):
    with pytest.raises(error):
        write_half_and_raise(tmp_path / "new.bin", error)
    assert names_in(tmp_path) == []


def test_a_failure_in_the_block_leaves_the_old_file(tmp_path):
    path = tmp_path / "old.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError):
        write_half_and_raise(path, RuntimeError)
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["old.txt"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_old_file(tmp_path, monkeypatch, function):
    path = tmp_path / "old.txt"
    path.write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, function, fail)
    monkeypatch.setattr(Path, "replace", fail if function == "replace" else Path.replace)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["old.txt"]


def test_the_file_is_flushed_to_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    seen = []

    def watch(descriptor: int) -> None:
        seen.append((path.exists(), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", watch)
    write_text(path, "twelve bytes")
    assert seen == [(False, 12)]


def test_readers_see_the_old_or_the_new_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.txt"
    contents = {letter * 200_000 for letter in "ab"}
    write_text(path, "a" * 200_000)
    stop = threading.Event()

    def write_alternately() -> None:
        while not stop.is_set():
            for content in sorted(contents):
                write_text(path, content)

    writer = threading.Thread(target=write_alternately)
    writer.start()
    try:
        seen = {path.read_text() for _ in range(100)}
    finally:
        stop.set()
        writer.join()
    assert seen <= contents


def test_a_missing_folder_is_an_ordinary_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "nowhere" / "file.txt", "text")


def test_json_comes_back_and_is_readable(tmp_path):
    value = {"größe": [1, 2.5, None, True], "nested": {"a": "▁b"}}
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json") == value
    assert "größe" in (tmp_path / "value.json").read_text(encoding="utf-8")


def test_a_value_json_cannot_say_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        write_json(tmp_path / "value.json", object())
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_the_hash_is_that_of_the_bytes(tmp_path, size):
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    (tmp_path / "file").write_bytes(content)
    assert sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_link_points_at_its_sibling_and_moves(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        replace_link(tmp_path / "latest", name)
        assert str((tmp_path / "latest").readlink()) == name  # relative, so the folder can be moved
        assert (tmp_path / "latest").resolve() == tmp_path / name
    assert names_in(tmp_path) == ["latest", "one", "two"]


def test_a_link_never_vanishes_while_it_moves(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    replace_link(tmp_path / "latest", "one")
    stop = threading.Event()

    def move() -> None:
        while not stop.is_set():
            replace_link(tmp_path / "latest", "two")
            replace_link(tmp_path / "latest", "one")

    mover = threading.Thread(target=move)
    mover.start()
    try:
        seen = {str((tmp_path / "latest").readlink()) for _ in range(2_000)}
    finally:
        stop.set()
        mover.join()
    assert seen <= {"one", "two"}


def test_what_an_earlier_crash_left_is_no_obstacle(tmp_path):
    (tmp_path / f".latest.{os.getpid()}.partial").symlink_to("gone")
    (tmp_path / f".file.txt.{os.getpid()}.partial").write_text("half")
    replace_link(tmp_path / "latest", "one")
    write_text(tmp_path / "file.txt", "whole")
    assert names_in(tmp_path) == ["file.txt", "latest"]
    assert (tmp_path / "file.txt").read_text() == "whole"


def test_a_pipe_stays_a_pipe_and_gets_the_text(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link"):
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        write_text(path, "text")
        assert os.read(reader, 100) == b"text"
        os.close(reader)
    assert pipe.is_fifo()
    assert names_in(tmp_path) == ["link", "pipe"]


_WRITE_BETWEEN = """
import os, sys
from pathlib import Path
from dragoman.run.files import write_text
os.write(1, b"before ")
write_text(Path(sys.argv[1]), "text")
os.write(1, b" after")
"""


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
def test_standard_output_gets_the_text_in_its_place(tmp_path, name):
    (tmp_path / "link").symlink_to("/dev/stdout")
    command = [sys.executable, "-c", _WRITE_BETWEEN, name if name.startswith("/") else str(tmp_path / name)]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"before text after"
    with (tmp_path / "file").open("wb") as file:
        subprocess.run(command, stdout=file, check=True)
    assert (tmp_path / "file").read_bytes() == b"before text after"
    assert names_in(tmp_path) == ["file", "link"]


def test_a_link_to_a_file_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("old")
    (tmp_path / "link").symlink_to("elsewhere/file")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere" / "file").read_text() == "new"


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "missing" / "file", tmp_path / "folder"):
        with pytest.raises((FileNotFoundError, IsADirectoryError)) as failure:
            write_text(path, "text")
        assert failure.value.filename == str(path)
        assert failure.value.filename2 is None
    assert names_in(tmp_path) == ["folder"]


def test_a_full_disk_is_named_by_the_file(tmp_path):
    def fill() -> None:
        with write_then_rename(tmp_path / "file"):
            raise OSError(errno.ENOSPC, "No space left on device")  # as a write reports it: without a name

    with pytest.raises(OSError, match="No space") as failure:
        fill()
    assert failure.value.filename == str(tmp_path / "file")


def test_a_folder_can_be_flushed(tmp_path):
    before = num_open_files()
    fsync_folder(tmp_path)
    assert num_open_files() == before


class SlowFile(FileIO):
    """Takes three bytes at a time, as a pipe may when a signal interrupts the write."""

    def write(self, data: memoryview) -> int:
        return super().write(data[:3])


def test_a_file_that_takes_only_a_part_gets_everything(tmp_path):
    with SlowFile(str(tmp_path / "slow"), "wb") as file:
        write_all(file, b"0123456789")
    assert (tmp_path / "slow").read_bytes() == b"0123456789"


def test_a_disk_counts_as_full_while_it_has_a_reserve(tmp_path: Path) -> None:
    require_free_space(tmp_path)
    with pytest.raises(OSError, match="No space left on device"):
        require_free_space(tmp_path, shutil.disk_usage(tmp_path).free)


@pytest.mark.parametrize(
    ("before", "after"), [(b"", b"new\n"), (b"old\n", b"old\nnew\n"), (b"old, cut", b"old, cut\nnew\n")]
)
def test_a_line_is_appended_after_one_that_was_cut_off(tmp_path, before, after):
    path = tmp_path / "records"
    path.write_bytes(before)
    append_line(path, b"new\n")
    assert path.read_bytes() == after
