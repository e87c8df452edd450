"""Files that outlive a disk's bad hours: what a full or read-only disk refuses waits in memory and is written later."""

import errno
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

from dragoman.run.errors import UserError

MAX_WAITING = 10_000
RETRY_SECONDS = 1.0


class PatientFile:
    """Appends lines or records, each whole or not at all, and at once: a killed run keeps all it wrote.

    The file is opened anew for every write: one held open would keep its disk from being mounted again, and could
    point at a file that is no longer there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: str | None = None
        """Why pieces wait; None while the disk takes them."""
        self.num_lost = 0
        """Pieces given up because too many waited."""
        self._waiting: deque[bytes] = deque()
        self._retry_at = 0.0
        self._good_size: int | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _end_last_line(path)
        except OSError as error:
            raise UserError(f"{path} cannot be written: {describe_trouble(error)}.") from error

    def write(self, piece: bytes) -> None:
        """Appends a piece now, or as soon as the disk takes it; never raises because of the disk."""
        if len(self._waiting) == MAX_WAITING:
            self._waiting.popleft()
            self.num_lost += 1
        self._waiting.append(piece)
        if time.monotonic() >= self._retry_at:
            self._write_waiting()

    def close(self) -> None:
        """Nothing more comes; what waits gets its last chance."""
        if self._waiting:
            self._write_waiting()

    def _write_waiting(self) -> None:
        try:
            self._append(b"".join(self._waiting))
        except OSError as error:
            self.trouble = describe_trouble(error)
            self._retry_at = time.monotonic() + RETRY_SECONDS
        else:
            self._waiting.clear()
            self.trouble = None
            self._retry_at = 0.0

    def _append(self, data: bytes) -> None:
        """Writes all or nothing; where even taking a part back fails, that is done first the next time."""
        with self.path.open("ab", buffering=0) as file:
            if self._good_size is not None:
                file.truncate(min(file.tell(), self._good_size))
            self._good_size = file.seek(0, 2)
            try:
                _write_all(file, data)
            except OSError:
                with suppress(OSError):
                    file.truncate(self._good_size)
                raise
        # Only now: some file systems tell of a failed write when the file is closed.
        self._good_size = None


class OutageNews:
    """Tells once that files wait for their disk, and once that none does any more."""

    def __init__(self, files: Sequence[PatientFile]) -> None:
        self._files = files
        self._is_outage = False
        self._num_lost_before = 0

    def next_sentence(self) -> str | None:
        """What is new since the last call."""
        waiting = [file for file in self._files if file.trouble]
        if bool(waiting) == self._is_outage:
            return None
        self._is_outage = bool(waiting)
        if waiting:
            return (
                f"{waiting[0].path} cannot be written: {waiting[0].trouble}. Training goes on, and lines wait in "
                "memory until the disk takes them again."
            )
        num_lost = sum(file.num_lost for file in self._files)
        lost, self._num_lost_before = num_lost - self._num_lost_before, num_lost
        return "The disk takes lines again: those that waited are written" + (
            f", but the {lost:,} oldest are lost." if lost else "."
        )


def describe_trouble(error: OSError) -> str:
    """Why the disk refused, as the end of a sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "there is no space left on the disk"
    return error.strerror or str(error)


def _write_all(file: FileIO, data: bytes) -> None:
    """A nearly full disk takes a part first and refuses with the next call."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _end_last_line(path: Path) -> None:
    """A run killed in mid-write leaves half a line; ending it keeps the next one readable."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
