"""Reads the lines that other processes append to a file."""

import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Self

from dragoman.run.errors import UserError, describe_os_error

CHUNK_BYTES = 2**16


class LineFollower:
    """Reads the lines of a growing file, each when it is complete.

    The file may not exist yet, may be truncated (it is read again from its beginning) or replaced by another file.
    """

    def __init__(self, path: Path, num_last_lines: int | None = None) -> None:
        """Starts with the last `num_last_lines` lines of the file, or with all."""
        self._path = path
        self._file: FileIO | None = None
        self._identity: os.stat_result | None = None
        self._begin_again()
        if num_last_lines is not None and (file := self._open()) is not None:
            self._follow(file, os.fstat(file.fileno()))
            self._position = _start_of_last_lines(file, num_last_lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release_file()

    def read_lines(self) -> Iterator[str]:
        """Yields the lines completed since the last call, without line ends."""
        # Opened each time: NFS checks only at opening whether another machine has appended something.
        newest = self._open()
        if newest is not None:
            found = os.fstat(newest.fileno())
            if self._identity is not None and not os.path.samestat(self._identity, found):
                yield from self._read_to_end()  # the rest of the old file, before the new one
                self._begin_again()
            elif found.st_size < self._position:
                self._begin_again()
            self._follow(newest, found)
        yield from self._read_to_end()

    def release_file(self) -> None:
        """Closes the file until the next read: an open file prevents its disk from being mounted again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO | None:
        try:
            return self._path.open("rb", buffering=0)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"{self._path} cannot be read: {describe_os_error(error)}.") from None

    def _follow(self, file: FileIO, identity: os.stat_result) -> None:
        """Switches to this file and keeps it open, so that no other file can get its inode."""
        if self._file is not None:
            self._file.close()
        self._file, self._identity = file, identity

    def _begin_again(self) -> None:
        self._position, self._rest = 0, b""

    def _read_to_end(self) -> Iterator[str]:
        while chunk := self._read_chunk():
            self._position += len(chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", errors="replace")

    def _read_chunk(self) -> bytes:
        if self._file is None:
            return b""
        try:
            return os.pread(self._file.fileno(), CHUNK_BYTES, self._position)
        except OSError:
            return b""  # removed by another machine over NFS; the next read finds the file that replaced it


def _start_of_last_lines(file: FileIO, num_lines: int) -> int:
    """The position where the last `num_lines` complete lines start, searched from the end: logs may be large."""
    num_ends = 0
    start = os.fstat(file.fileno()).st_size
    while start > 0:
        end, start = start, max(0, start - CHUNK_BYTES)
        chunk = os.pread(file.fileno(), end - start, start)
        position = len(chunk)
        while (position := chunk.rfind(b"\n", 0, position)) >= 0:
            num_ends += 1
            if num_ends > num_lines:
                return start + position + 1
    return 0
