"""The program that lets the launcher read a run folder on another host: `python -m dragoman.launch.mirror.host_files`.

It answers requests, JSON lines on standard input, with one JSON line each; the content of a file follows as raw bytes.
It only reads, only files that a run writes, and only regular files inside the run folder. It ends when standard input
closes, or when no request has come for a while.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import Any

from dragoman.run.checkpoints import MANIFEST_FILE, OPTIONAL_FILES, RESUME_FILES
from dragoman.run.errors import describe_os_error

MODULE = "dragoman.launch.mirror.host_files"
SILENCE_SECONDS = 60
"""A launcher asks every second; one that is silent for so long is gone, although the link may look alive."""
MAX_READ_BYTES = 2**18
MAX_REQUEST_BYTES = 2**16
MAX_FILES = 5_000
LINKS = ("latest", "best")
_NAME = r"[A-Za-z0-9._%~+-]{1,200}"
_CHECKPOINT_FILES = "|".join(map(re.escape, (*RESUME_FILES, *OPTIONAL_FILES, MANIFEST_FILE)))
STEP_NAME = re.compile(r"step-(\d{8,12})", re.ASCII)


class FileKind(Enum):
    """Files of a run by how they are written, with the names they may have: a name can never lead out of the run."""

    HISTORY = r"log\.txt|metrics\.jsonl"
    """Appended to by rank 0, wherever it runs."""
    GROWING = rf"system\.{_NAME}\.jsonl|tensorboard/events\.out\.tfevents\.{_NAME}"
    """Appended to by one process; the name is its own."""
    REPLACED = r"translations\.jsonl|spent\.json|failure\.rank\d{1,6}\.txt"
    """Written again as a whole; the newest counts."""
    WRITTEN_ONCE = rf"config\.toml|corpus\.json|scores\.jsonl|tokenizers/[A-Za-z0-9]{_NAME}"
    """The same on every host, or of no use where the launcher has its own."""
    CHECKPOINT = rf"checkpoints/{STEP_NAME.pattern}/(?:{_CHECKPOINT_FILES})"


def kind_of_file(name: str) -> FileKind | None:
    """Returns what kind of file of a run has this name; None for names that are never read or written."""
    return next((kind for kind in FileKind if re.fullmatch(kind.value, name, re.ASCII)), None)


def checkpoint_file(step: int, name: str) -> str:
    """Returns the name of a file of a checkpoint inside a run folder."""
    return f"checkpoints/step-{step:08d}/{name}"


def main() -> None:
    """Serves one launcher."""
    with suppress(OSError):
        os.nice(10)  # workers go first
    # The alarm ends this process also while it waits for a link that takes no more bytes.
    signal.alarm(SILENCE_SECONDS)
    reader: RunReader | None = None
    with suppress(BrokenPipeError):
        while request := sys.stdin.buffer.readline(MAX_REQUEST_BYTES):
            signal.alarm(SILENCE_SECONDS)
            values = json.loads(request)
            if values["do"] == "open":
                reader = RunReader(Path(values["run"]))
            assert reader is not None, "the first request opens a run"
            header, content = reader.answer(values)
            sys.stdout.buffer.write(json.dumps(header).encode() + b"\n" + content)
            sys.stdout.buffer.flush()


class RunReader:
    """Reads the files of one run folder.

    The checkpoint that was read last stays open, so that it can be read to its end also where the run removes it
    meanwhile; it keeps its disk space so long.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._open_step: str | None = None
        self._open_files: dict[str, int] = {}

    def answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Returns the header of an answer and the bytes that follow it."""
        try:
            match request["do"]:
                case "open":
                    shares_folder = (self._run / request["token"]).exists()
                    return {"shares_folder": shares_folder, "port_rate": slowest_port()}, b""
                case "list":
                    return {"files": dict(islice(self._files(), MAX_FILES)), "links": self._links()}, b""
                case "read":
                    return self._read(request["name"], request["offset"], request["max_bytes"])
                case unknown:
                    return {"error": f"it does not know the request {unknown!r}"}, b""
        except (FileNotFoundError, NotADirectoryError):
            return {"is_gone": True}, b""
        except OSError as error:
            return {"error": f"{error.filename}: {describe_os_error(error)}"}, b""

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yields name, size and time of change of each file; of checkpoints only the manifests of linked ones."""
        for step in set(self._links().values()):
            with suppress(OSError):
                name = checkpoint_file(step, MANIFEST_FILE)
                yield name, _facts((self._run / name).lstat())
        for folder in ("", "tensorboard/", "tokenizers/"):
            if folder and (self._run / folder.rstrip("/")).is_symlink():
                continue
            with suppress(OSError), os.scandir(self._run / folder) as entries:
                for entry in entries:
                    name = f"{folder}{entry.name}"
                    if kind_of_file(name) and entry.is_file(follow_symlinks=False):
                        yield name, _facts(entry.stat(follow_symlinks=False))

    def _links(self) -> dict[str, int]:
        """Returns the steps that the links of the run lead to."""
        found = {}
        for link in LINKS:
            with suppress(OSError):
                if match := STEP_NAME.fullmatch(str((self._run / "checkpoints" / link).readlink())):
                    found[link] = int(match[1])
        return found

    def _read(self, name: str, offset: int, max_bytes: int) -> tuple[dict[str, Any], bytes]:
        kind = kind_of_file(name)
        if kind is None:
            return {"error": f"{name} is not a file of a run"}, b""
        if kind is FileKind.CHECKPOINT:
            return _content(self._open_checkpoint(name), offset, max_bytes)
        file = _open_inside(self._run, name)
        try:
            return _content(file, offset, max_bytes)
        finally:
            os.close(file)

    def _open_checkpoint(self, name: str) -> int:
        """Opens all files of a checkpoint together; its manifest is read first, and anew each time."""
        step, _, file_name = name.rpartition("/")
        if step != self._open_step or file_name == MANIFEST_FILE:
            for file in self._open_files.values():
                os.close(file)
            self._open_files, self._open_step = {}, None
            for each in (MANIFEST_FILE, *RESUME_FILES):
                self._open_files[each] = _open_inside(self._run, f"{step}/{each}")
            for each in OPTIONAL_FILES:
                with suppress(FileNotFoundError):
                    self._open_files[each] = _open_inside(self._run, f"{step}/{each}")
            self._open_step = step
        if file_name not in self._open_files:
            raise FileNotFoundError(name)
        return self._open_files[file_name]


def slowest_port(interfaces: Path = Path("/sys/class/net")) -> int | None:
    """Returns the bytes per second of the slowest network card that is up; None if no card tells its speed."""
    speeds = []
    for card in interfaces.glob("*/device"):  # only real cards have a device
        with suppress(OSError, ValueError):
            is_up = (card.parent / "operstate").read_text(encoding="ascii").strip() == "up"
            megabits = int((card.parent / "speed").read_text(encoding="ascii"))
            speeds += [megabits * 125_000] if is_up and megabits > 0 else []
    return min(speeds, default=None)


def _open_inside(folder: Path, name: str) -> int:
    """Opens a regular file below a folder; a symbolic link on the way is refused, because it may lead out of it."""
    *folders, last = name.split("/")
    current = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in folders:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = inner
        file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=current)
    finally:
        os.close(current)
    if not S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError(name)
    return file


def _facts(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


def _content(file: int, offset: int, max_bytes: int) -> tuple[dict[str, Any], bytes]:
    """Reads a part of a file; its size and time tell the launcher whether another part is of the same content."""
    size, changed = _facts(os.fstat(file))
    content = os.pread(file, min(max_bytes, MAX_READ_BYTES), offset)
    return {"num_bytes": len(content), "size": size, "changed": changed}, content


if __name__ == "__main__":
    main()
