"""Writes files that appear completely or not at all: written under another name, flushed to disk, then renamed."""

import errno
import fcntl
import hashlib
import json
import math
import os
import select
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any

from dragoman.run.errors import FULL_DISK, UserError


@contextmanager
def write_then_rename(path: Path, mode: str = "wb", is_durable: bool = True) -> Iterator[IO[Any]]:
    """Opens a file beside `path` and renames it onto `path` only if the block succeeds.

    Files that could be made again need not be durable: forcing them to disk takes time. A pipe, a device or an open
    file, such as /dev/stdout, is written directly: a rename would put another file in its place.
    """
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "\n")
    descriptor = _own_descriptor(path)
    if descriptor is not None or (path.exists() and not path.is_file() and not path.is_dir()):
        # An open file is not opened again: it keeps its place, which other writers share.
        written = os.open(path, os.O_WRONLY) if descriptor is None else os.dup(descriptor)
        with _naming(path, path), os.fdopen(written, mode, encoding=encoding, newline=newline) as file:
            yield file
        return
    given, path = path, path.resolve() if path.is_symlink() else path
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with _naming(given, aside):
            with aside.open(mode, encoding=encoding, newline=newline) as file:
                yield file
                file.flush()
                if is_durable:
                    os.fsync(file.fileno())
            aside.replace(path)
    except BaseException:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def _own_descriptor(path: Path) -> int | None:
    """Returns the number of the open file that a path such as /dev/stdout stands for; None for all other paths."""
    folders = (Path("/dev/fd"), Path(f"/proc/{os.getpid()}/fd"))
    if not path.exists():  # also where links lead in a circle
        return None
    while not (is_own := path.parent.resolve() in folders) and path.is_symlink():
        path = path.parent / path.readlink()
    return int(path.name) if is_own and path.name.isdecimal() else None


@contextmanager
def _naming(given: Path, written: Path) -> Iterator[None]:
    """Names the given file in errors about the written one, and in those of a full disk, which name no file."""
    try:
        yield
    except OSError as error:
        if error.filename == str(written) or (error.filename is None and error.errno in FULL_DISK):
            error.filename, error.filename2 = str(given), None
        raise


def require_writable(path: Path) -> None:
    """Fails before long work whose result could not be written to this file."""
    reason = ""
    if path.is_dir():
        reason = "it is a folder, not a file"
    elif not path.parent.is_dir():
        reason = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "you do not have the permission, or the file system is read-only"
    if reason:
        raise UserError(f"{path} cannot be written: {reason}.")


def remove_abandoned(folder: Path) -> None:
    """Removes what `write_then_rename` left in a folder when its process was killed."""
    import psutil

    for path in folder.glob(".*.partial"):
        process = path.name.split(".")[-2]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str, is_durable: bool = True) -> None:
    """Writes text as UTF-8; the file appears complete or not at all."""
    with write_then_rename(path, "w", is_durable) as file:
        file.write(text)


def write_json(path: Path, value: Any, is_durable: bool = True) -> None:
    """Writes indented JSON; the file appears complete or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", is_durable)


def write_all(file: FileIO, data: bytes) -> None:
    """Writes all data: a nearly full disk, or a pipe whose write a signal interrupts, may take only a part at first."""
    rest = memoryview(data)
    while rest:
        num_written: int | None = file.write(rest)
        if num_written is None:  # a pipe that never waits is full: wait for its reader here
            select.select([], [file], [])
        rest = rest[num_written or 0 :]


def to_json_line(value: Any) -> bytes:
    """Returns the value as one line of JSON; never raises, whatever the value holds.

    NaN and infinity, which JSON does not have, become null at any depth, and what it cannot hold becomes text.
    """
    try:
        text = json.dumps(_to_plain(value), ensure_ascii=False)
    except (ValueError, RecursionError):  # a value that holds itself
        text = json.dumps(repr(value))
    return text.encode(errors="backslashreplace") + b"\n"  # file names may hold bytes that are not UTF-8


def _to_plain(value: Any) -> Any:
    """Returns only what JSON has: numpy's numbers and arrays become Python's, other objects their text."""
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return _to_plain(value.tolist()) if hasattr(value, "tolist") else str(value)


def append_line(path: Path, line: bytes) -> None:
    """Appends a line to a file whose last one may have been cut off by a kill."""
    end_last_line(path)
    with path.open("ab", buffering=0) as file:
        write_all(file, line)


def end_last_line(path: Path) -> None:
    """Ends a line that a killed run left incomplete, so that the next one is readable."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


def read_json(path: Path) -> Any:
    """Reads one JSON document."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_json_table(path: Path) -> dict[str, Any]:
    """Reads one JSON object; empty where the file is missing, damaged or something else."""
    try:
        values = read_json(path)
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def read_toml_table(path: Path) -> dict[str, Any]:
    """Reads a TOML file; empty where it is missing or damaged."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


class LaterFormatError(UserError):
    """The file was written by a later version of this program."""


def require_known_format(path: Path, version: Any, known: int) -> None:
    """Refuses a file of a later format: it may be intact, but only a later program can read it."""
    if isinstance(version, int) and version > known:
        raise LaterFormatError(
            f"{path} was written by a later dragoman (format {version}, this program reads {known}): update dragoman."
        )


def sha256(path: Path) -> str:
    """Computes the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def have_sizes(sizes: Mapping[Path, int]) -> bool:
    """Whether all files exist with these sizes in bytes; a power failure may cut files short."""
    return all(path.exists() and path.stat().st_size == num_bytes for path, num_bytes in sizes.items())


def fsync_folder(folder: Path) -> None:
    """Forces renames inside a folder to disk, so that they survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_link(link: Path, target_name: str) -> None:
    """Points a relative symlink at a sibling; the link exists at every moment."""
    aside = link.with_name(f".{link.name}.{os.getpid()}.partial")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target_name)
    aside.replace(link)


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Locks a file for the block; False if another process has locked it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


_MAX_RESERVE_BYTES = 256 * 2**20
_RESERVE_SHARE = 0.02


def require_free_space(folder: Path, num_bytes: int = 0) -> None:
    """Raises the OSError of a full disk while there is still a reserve besides `num_bytes`, for everybody else."""
    disk = os.statvfs(folder)
    reserve = min(_MAX_RESERVE_BYTES, int(_RESERVE_SHARE * disk.f_blocks * disk.f_frsize))
    if disk.f_bavail * disk.f_frsize < reserve + num_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
