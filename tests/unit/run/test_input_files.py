"""Tests of opening what a user named: files, pipes, and things that are not text."""

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from dragoman.run import input_files
from dragoman.run.errors import UserError
from dragoman.run.input_files import is_read_once, open_input

NOBODY = 65534


def failure(path: Path) -> str:
    with pytest.raises(UserError) as problem, open_input(path):
        pass
    return str(problem.value)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full", "/dev/urandom"])
def test_a_device_without_an_end_is_refused(device: str) -> None:
    assert failure(Path(device)) == f"{device} is a device, not a file with text; it may never end."


def test_folders_sockets_and_missing_files_are_refused(tmp_path: Path) -> None:
    assert failure(tmp_path) == f"{tmp_path} is a folder; give the text file itself."
    assert failure(tmp_path / "none") == f"{tmp_path / 'none'} does not exist."
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert failure(tmp_path / "socket") == f"{tmp_path / 'socket'} is a socket, not a file."


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a block device, and to become another user")
def test_disks_and_files_of_others_are_refused(tmp_path: Path) -> None:
    os.mknod(tmp_path / "disk", 0o060600, os.makedev(7, 0))
    assert failure(tmp_path / "disk") == f"{tmp_path / 'disk'} is a disk, not a file."
    (tmp_path / "mine").touch(mode=0o600)
    os.seteuid(NOBODY)
    try:
        assert not is_read_once(tmp_path / "mine")
        assert failure(tmp_path / "mine") == f"{tmp_path / 'mine'} cannot be read: you do not have the permission."
    finally:
        os.seteuid(0)


def test_the_null_device_is_an_empty_file() -> None:
    with open_input(Path("/dev/null")) as file:
        assert file.read() == b""


def test_a_terminal_is_opened_without_a_wait(capsys: pytest.CaptureFixture[str]) -> None:
    master, slave = os.openpty()
    with open_input(Path(os.ttyname(slave))) as file:
        os.write(master, b"hello\n")
        assert file.readline() == b"hello\n"
    os.close(master)
    os.close(slave)
    assert capsys.readouterr().err == ""


def test_what_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    assert is_read_once(tmp_path / "pipe")
    assert is_read_once(Path("/dev/null"))
    assert not any(map(is_read_once, (tmp_path, tmp_path / "file", tmp_path / "none")))


def test_a_pipe_without_a_writer_is_mentioned_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(input_files, "SILENT_SECONDS", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write_late() -> None:
        time.sleep(0.3)
        pipe.write_bytes(b"late\n")

    writer = threading.Thread(target=write_late)
    writer.start()
    with open_input(pipe) as file:
        assert file.read() == b"late\n"
    writer.join()
    assert capsys.readouterr().err == f"Waiting for data from {pipe}; nothing has been written to this pipe yet.\n"


@pytest.mark.parametrize("content", [b"", b"all at once\n"])
def test_a_pipe_whose_writer_has_ended_is_read_to_its_end(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    with open_input(Path(f"/dev/fd/{reader}")) as file:
        assert file.read() == content
    os.close(reader)
    assert capsys.readouterr().err == ""
