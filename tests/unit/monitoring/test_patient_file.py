"""Files that wait for their disk: every piece whole, in order and once, however often the disk refuses."""

import errno
import os
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.monitoring import buffered_file
from dragoman.monitoring.buffered_file import OutageNews, PatientFile, describe_trouble
from dragoman.run.errors import UserError

whole_write = buffered_file._write_all


class Disk:
    """Takes a number of bytes and then refuses, until it has room again."""

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
    monkeypatch.setattr(buffered_file, "_write_all", disk.write)
    monkeypatch.setattr(buffered_file, "RETRY_SECONDS", 0.0)
    return disk


def test_what_the_disk_refuses_is_written_later_and_nothing_half(tmp_path, disk):
    path = tmp_path / "lines"
    file = PatientFile(path)
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


@given(MOMENTS)
def test_whatever_the_disk_does_lines_stay_whole_and_in_order(tmp_path_factory, moments):
    path = tmp_path_factory.mktemp("patient") / "lines"
    disk = Disk()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffered_file, "_write_all", disk.write)
        patch.setattr(buffered_file, "RETRY_SECONDS", 0.0)
        file = PatientFile(path)
        for number, (piece, disk.num_free) in enumerate(moments, start=1):
            file.write(piece)
            done = [b"".join(piece for piece, _ in moments[:num]) for num in range(number + 1)]
            assert path.read_bytes() in done
        disk.num_free = None
        file.close()
    assert path.read_bytes() == b"".join(piece for piece, _ in moments)


def test_where_even_taking_back_fails_it_is_done_before_the_next_write(tmp_path, disk, monkeypatch):
    path = tmp_path / "lines"
    file = PatientFile(path)
    file.write(b"one\n")

    class Stubborn(FileIO):
        def truncate(self, size: int | None = None) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.num_free = 2
    with monkeypatch.context() as broken:
        broken.setattr(Path, "open", lambda path, mode, buffering: Stubborn(path, mode))
        file.write(b"two\n")
    assert path.read_bytes() == b"one\ntw"
    disk.num_free = None
    file.close()
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_read_only_folder_is_waited_for_too(tmp_path, disk, monkeypatch):
    file = PatientFile(tmp_path / "lines")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "open", refuse)
        file.write(b"one\n")
    assert file.trouble == "Read-only file system"
    file.close()
    assert (tmp_path / "lines").read_bytes() == b"one\n"


def test_a_disk_that_refuses_is_asked_once_a_while(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(buffered_file, "RETRY_SECONDS", 60.0)
    file = PatientFile(tmp_path / "lines")
    disk.num_free = 0
    file.write(b"one\n")
    disk.num_free = None
    file.write(b"two\n")
    assert (tmp_path / "lines").read_bytes() == b""
    file.close()
    assert (tmp_path / "lines").read_bytes() == b"one\ntwo\n"


def test_when_too_much_waits_the_oldest_goes_and_is_counted(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(buffered_file, "MAX_WAITING", 3)
    file = PatientFile(tmp_path / "lines")
    news = OutageNews([file])
    disk.num_free = 0
    for number in range(1, 6):
        file.write(b"%d\n" % number)
    assert news.next_sentence() is not None
    disk.num_free = None
    file.write(b"6\n")
    assert (tmp_path / "lines").read_bytes() == b"4\n5\n6\n"
    assert file.num_lost == 3
    assert news.next_sentence() == (
        "The disk takes lines again: those that waited are written, but the 3 oldest are lost."
    )


def test_of_several_files_an_outage_is_told_once(tmp_path, disk):
    files = [PatientFile(tmp_path / name) for name in ("log.txt", "metrics.jsonl")]
    news = OutageNews(files)
    for _ in range(2):
        disk.num_free = 0
        told = []
        for file in (*files, *files):
            file.write(b"line\n")
            told.append(news.next_sentence())
        assert told[0] == (
            f"{tmp_path / 'log.txt'} cannot be written: there is no space left on the disk. Training goes on, and "
            "lines wait in memory until the disk takes them again."
        )
        assert told[1:] == [None, None, None]
        disk.num_free = None
        files[0].write(b"line\n")
        assert news.next_sentence() is None
        files[1].write(b"line\n")
        assert news.next_sentence() == "The disk takes lines again: those that waited are written."
    assert all(file.path.read_bytes() == b"line\n" * 6 for file in files)


def test_a_file_that_cannot_be_begun_is_an_error_in_words(tmp_path):
    (tmp_path / "log.txt").mkdir()
    with pytest.raises(UserError, match=r"log.txt cannot be written: Is a directory\."):
        PatientFile(tmp_path / "log.txt")


def test_half_a_line_of_a_killed_run_is_ended_and_a_whole_one_left_alone(tmp_path):
    for before, after in ((b"", b""), (b"whole\n", b"whole\n"), (b"whole\nha", b"whole\nha\n")):
        (tmp_path / "lines").write_bytes(before)
        PatientFile(tmp_path / "lines").close()
        assert (tmp_path / "lines").read_bytes() == after


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "there is no space left on the disk"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "there is no space left on the disk"),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
        (OSError("odd"), "odd"),
    ],
)
def test_troubles_have_names(error, words):
    assert describe_trouble(error) == words
