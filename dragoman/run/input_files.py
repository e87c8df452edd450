"""Opens files that the user named: regular files, pipes and terminals; devices without an end are refused."""

import os
import select
import stat
import sys
from io import BufferedReader
from pathlib import Path

from dragoman.run.errors import UserError, describe_os_error

SILENT_SECONDS = 2.0
"""A pipe that gives nothing for this long is mentioned: its writer may never come."""

_REFUSED = {
    stat.S_IFDIR: "is a folder; give the text file itself",
    stat.S_IFBLK: "is a disk, not a file",
    stat.S_IFSOCK: "is a socket, not a file",
}


def is_read_once(path: Path) -> bool:
    """Whether the path is neither a file nor a folder, but a pipe, say: its content must be kept to be read twice."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # `open_input` explains it
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def open_input(path: Path) -> BufferedReader:
    """Opens a file for reading; a UserError says why it cannot be read.

    A pipe is opened when its first bytes are there. A signal interrupts the wait.
    """
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind in _REFUSED:
            raise UserError(f"{path} {_REFUSED[kind]}.")
        file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 - Path.open takes no opener
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {describe_os_error(problem)}.") from None
    except ValueError as problem:  # a NUL byte in the name
        raise UserError(f"{str(path)!r} cannot be read: {problem}.") from None
    try:
        if kind == stat.S_IFCHR and not (file.isatty() or _is_null_device(file.fileno())):
            raise UserError(f"{path} is a device, not a file with text; it may never end.")
        if kind == stat.S_IFIFO:
            _wait_for_data(path, file.fileno())
        os.set_blocking(file.fileno(), True)
    except BaseException:
        file.close()
        raise
    return file


def _open_without_waiting(name: str, flags: int) -> int:
    """Opens a named pipe before it has a writer: the call itself would wait for one, silently."""
    return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _is_null_device(descriptor: int) -> bool:
    """Whether it is /dev/null, which reads as an empty file."""
    return os.fstat(descriptor).st_rdev == Path(os.devnull).stat().st_rdev


def _wait_for_data(path: Path, descriptor: int) -> None:
    """Waits until a pipe has content or its last writer has closed it."""
    pipe = select.poll()
    pipe.register(descriptor, select.POLLIN)
    if not pipe.poll(1000 * SILENT_SECONDS):
        print(f"Waiting for data from {path}; nothing has been written to this pipe yet.", file=sys.stderr, flush=True)
        pipe.poll()
