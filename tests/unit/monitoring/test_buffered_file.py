"""Buffered files: every entry complete, in order and once, however often the disk refuses."""

import errno
import os
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.monitoring import buffered_file
from dragoman.monitoring.buffered_file import BufferedFile, DiskTroubleReporter
from dragoman.run.errors import UserError

whole_write = buffered_file.write_all


class Disk:
    """Accepts a number of bytes and then refuses, until it has room again."""

    def __init__(self) -> None:
        self.num_free: int | None = None

    def write(self, file: FileIO, data: bytes) -> None:
        if self.num_free is None or len(data) <= self.num_free:
            whole_write(file, data)
            return
        whole_write(file, data[: self.num_free])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    monkeypatch.setattr(buffered_file, "write_all", disk.write)
    monkeypatch.setattr(buffered_file, "RETRY_SECONDS", 0.0)
    return disk


def test_what_the_disk_refuses_is_written_later_and_completely(tmp_path, disk):
    path = tmp_path / "lines"
    file = BufferedFile(path)
    file.write(b"one\n")
    disk.num_free = 3
    file.write(b"two and more\n")
    file.write(b"three\n")
    assert path.read_bytes() == b"one\n"
    assert file.trouble == "there is no space left on the disk"
    disk.num_free = None
    file.write(b"four\n")
    assert file.trouble is None
    assert path.read_bytes() == b"one\ntwo and more\nthree\nfour\n"


MOMENTS = st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.none() | st.integers(0, 12)), max_size=30)


@settings(max_examples=50)
@given(MOMENTS)
def test_whatever_the_disk_does_lines_stay_whole_and_in_order(tmp_path_factory, moments):
    path = tmp_path_factory.mktemp("buffered") / "lines"
    disk = Disk()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffered_file, "write_all", disk.write)
        patch.setattr(buffered_file, "RETRY_SECONDS", 0.0)
        file = BufferedFile(path)
        for number, (entry, disk.num_free) in enumerate(moments, start=1):
            file.write(entry)
            done = [b"".join(entry for entry, _ in moments[:num]) for num in range(number + 1)]
            assert path.read_bytes() in done
        disk.num_free = None
        file.close()
    assert path.read_bytes() == b"".join(entry for entry, _ in moments)


def test_a_partial_write_that_cannot_be_removed_is_removed_before_the_next(tmp_path, disk, monkeypatch):
    path = tmp_path / "lines"
    file = BufferedFile(path)
    file.write(b"one\n")

    class FailingTruncate(FileIO):
        def truncate(self, size: int | None = None) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.num_free = 2
    with monkeypatch.context() as broken:
        broken.setattr(Path, "open", lambda path, mode, buffering: FailingTruncate(path, mode))
        file.write(b"two\n")
    assert path.read_bytes() == b"one\ntw"
    disk.num_free = None
    file.close()
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_read_only_folder_is_buffered_too(tmp_path, disk, monkeypatch):
    file = BufferedFile(tmp_path / "lines")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "open", refuse)
        file.write(b"one\n")
    assert file.trouble == "the file system is read-only"
    file.close()
    assert (tmp_path / "lines").read_bytes() == b"one\n"


def test_a_disk_that_refuses_is_retried_after_a_while(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(buffered_file, "RETRY_SECONDS", 60.0)
    file = BufferedFile(tmp_path / "lines")
    disk.num_free = 0
    file.write(b"one\n")
    disk.num_free = None
    file.write(b"two\n")
    assert (tmp_path / "lines").read_bytes() == b""
    file.close()
    assert (tmp_path / "lines").read_bytes() == b"one\ntwo\n"


def test_a_full_buffer_drops_and_counts_the_oldest(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(buffered_file, "MAX_BUFFERED", 3)
    file = BufferedFile(tmp_path / "lines")
    reporter = DiskTroubleReporter([file])
    disk.num_free = 0
    for number in range(1, 6):
        file.write(b"%d\n" % number)
    assert reporter.next_message() is not None
    disk.num_free = None
    file.write(b"6\n")
    assert (tmp_path / "lines").read_bytes() == b"4\n5\n6\n"
    assert file.num_lost == 3
    assert reporter.next_message() == (
        "The disk accepts writes again: all lines kept in memory are written, except the 3 oldest, which are lost."
    )


def test_disk_trouble_of_several_files_is_reported_once(tmp_path, disk):
    files = [BufferedFile(tmp_path / name) for name in ("log.txt", "metrics.jsonl")]
    reporter = DiskTroubleReporter(files)
    for _ in range(2):
        disk.num_free = 0
        reported = []
        for file in (*files, *files):
            file.write(b"line\n")
            reported.append(reporter.next_message())
        assert reported[0] == (
            f"{tmp_path / 'log.txt'} cannot be written: there is no space left on the disk. Training continues, and "
            "lines are kept in memory until the disk accepts them again."
        )
        assert reported[1:] == [None, None, None]
        disk.num_free = None
        files[0].write(b"line\n")
        assert reporter.next_message() is None
        files[1].write(b"line\n")
        assert reporter.next_message() == "The disk accepts writes again: all lines kept in memory are written."
    assert all(file.path.read_bytes() == b"line\n" * 6 for file in files)


def test_a_file_that_cannot_be_opened_is_a_user_error(tmp_path):
    (tmp_path / "log.txt").mkdir()
    with pytest.raises(UserError, match=r"log.txt cannot be written: it is a folder, not a file\."):
        BufferedFile(tmp_path / "log.txt")


def test_an_incomplete_last_line_is_ended_and_a_complete_one_kept(tmp_path):
    for before, after in ((b"", b""), (b"whole\n", b"whole\n"), (b"whole\nha", b"whole\nha\n")):
        (tmp_path / "lines").write_bytes(before)
        BufferedFile(tmp_path / "lines").close()
        assert (tmp_path / "lines").read_bytes() == after
