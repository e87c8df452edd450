"""Append-only files that buffer while the disk is full."""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.files import end_last_line, write_all

MAX_BUFFERED = 10_000
RETRY_SECONDS = 1.0


class BufferedFile:
    """Appends entries, each completely or not at all, and at once: a killed run keeps everything it wrote.

    The file is opened for every write: an open file would keep its disk from being remounted, and might have been
    removed meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: str | None = None
        """Why entries are buffered; None while the disk accepts them."""
        self.num_lost = 0
        """Entries that were dropped because the buffer was full."""
        self._buffer: deque[bytes] = deque()
        self._retry_at = 0.0
        self._good_size: int | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            end_last_line(path)
        except OSError as error:
            raise UserError(f"{path} cannot be written: {describe_os_error(error)}.") from error

    def write(self, entry: bytes) -> None:
        """Appends an entry now, or as soon as the disk accepts it; never raises because of the disk."""
        if len(self._buffer) == MAX_BUFFERED:
            self._buffer.popleft()
            self.num_lost += 1
        self._buffer.append(entry)
        if time.monotonic() >= self._retry_at:
            self._write_buffer()

    def close(self) -> None:
        """Tries a last time to write what is buffered."""
        if self._buffer:
            self._write_buffer()

    def _write_buffer(self) -> None:
        try:
            self._append(b"".join(self._buffer))
        except OSError as error:
            self.trouble = describe_os_error(error)
            self._retry_at = time.monotonic() + RETRY_SECONDS
        else:
            self._buffer.clear()
            self.trouble = None
            self._retry_at = 0.0

    def _append(self, data: bytes) -> None:
        """Writes everything or nothing; if even the removal of a partial write fails, the next call removes it."""
        with self.path.open("ab", buffering=0) as file:
            if self._good_size is not None:
                file.truncate(min(file.tell(), self._good_size))
            self._good_size = file.seek(0, 2)
            try:
                write_all(file, data)
            except OSError:
                with suppress(OSError):
                    file.truncate(self._good_size)
                raise
        # Only here: some file systems report a failed write when the file is closed.
        self._good_size = None


class DiskTroubleReporter:
    """Reports once that files are buffered, and once that all are written again."""

    def __init__(self, files: Sequence[BufferedFile]) -> None:
        self._files = files
        self._is_buffering = False
        self._num_lost_before = 0

    def next_message(self) -> str | None:
        """Returns a message if the disk has started or stopped refusing writes since the last call."""
        buffered = [file for file in self._files if file.trouble]
        if bool(buffered) == self._is_buffering:
            return None
        self._is_buffering = bool(buffered)
        if buffered:
            return (
                f"{buffered[0].path} cannot be written: {buffered[0].trouble}. Training continues, and lines are kept "
                "in memory until the disk accepts them again."
            )
        num_lost = sum(file.num_lost for file in self._files)
        lost, self._num_lost_before = num_lost - self._num_lost_before, num_lost
        return "The disk accepts writes again: all lines kept in memory are written" + (
            f", except the {lost:,} oldest, which are lost." if lost else "."
        )
