"""Finds the files of runs in folders, sorts them by their kind, and finds out which trainer wrote a log."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol

from dragoman.importing.files.archives import ARCHIVE_ENDINGS
from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_text import read_lines
from dragoman.importing.trainers import fairseq, huggingface, joeynmt, marian, opennmt, openseq2seq, sockeye
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder

MAX_LINES = 200_000
"""Number of lines of a log that are searched for lines of a known trainer."""
_ENOUGH_LINES = 5
"""Number of lines of one trainer that are enough to identify its log."""
_MAX_FILES = 2_000
MAX_DEPTH = 4
LOG_NAME = re.compile(
    r"(?:nohup.*|.*\.(?:log|out|txt|err)|train|valid|log|metrics|stdout|stderr)(?:\.\d+)?(?:\.(?:gz|xz|bz2|zst))?"
)
_EVENTS_MARK = "tfevents"
STATE_NAME = "trainer_state.json"
_LFS_HEAD = b"version https://git-lfs."
_MAX_POINTER_BYTES = 1_000
_DATE = re.compile(r"\b(20\d\d)-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")


class LogReader(Protocol):
    """Reads the lines of one run's log in order."""

    def __init__(self, run: ImportedRun) -> None: ...

    def read(self, line: str) -> None:
        """Reads a line."""

    def finish(self) -> None:
        """Ends the log: writes what needed all lines."""


READERS: dict[str, tuple[Callable[[str], bool], type[LogReader]]] = {
    openseq2seq.TRAINER: (openseq2seq.is_own_line, openseq2seq.OpenSeq2SeqReader),
    fairseq.TRAINER: (fairseq.is_own_line, fairseq.FairseqReader),
    marian.TRAINER: (marian.is_own_line, marian.MarianReader),
    opennmt.TRAINER: (opennmt.is_own_line, opennmt.OpenNmtReader),
    joeynmt.TRAINER: (joeynmt.is_own_line, joeynmt.JoeyReader),
    huggingface.TRAINER: (huggingface.is_own_line, huggingface.HfReader),
    sockeye.TRAINER: (sockeye.is_own_line, sockeye.SockeyeReader),
}
"""For each trainer: whether a line can only be its own, and the reader of its log."""


@dataclass(frozen=True)
class LogFile:
    """A text log and the trainer that wrote it."""

    path: Path
    trainer: str | None
    first_date: tuple[str, ...] | None
    is_empty: bool


@dataclass
class RunFiles:
    """Files by their kind."""

    logs: list[Path] = field(default_factory=list)
    states: list[Path] = field(default_factory=list)
    results: list[Path] = field(default_factory=list)
    """Result files of the HF Trainer, and the file `metrics` of Sockeye."""
    events: list[Path] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)
    archives: list[Path] = field(default_factory=list)
    """Archives inside a folder, which are not read."""
    pointers: list[Path] = field(default_factory=list)
    """Files that Git LFS stores elsewhere: here are only their checksums."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return not (self.logs or self.states or self.results or self.events or self.tables)

    def add(self, path: Path, is_explicit: bool) -> None:
        """Adds a file to its kind; a file of no known kind only if the user named it."""
        kind = self._kind_of(path, is_explicit)
        if kind is not None:
            (self.pointers if _is_lfs_pointer(path) else kind).append(path)

    def _kind_of(self, path: Path, is_explicit: bool) -> list[Path] | None:
        name = path.name.lower()
        if _EVENTS_MARK in name:
            return self.events
        if name.endswith((".csv", ".tsv")):
            return self.tables
        if name in huggingface.RESULT_NAMES or _is_metrics_file(path, is_explicit):
            return self.results
        if name == STATE_NAME or (is_explicit and name.endswith(".json")):
            return self.states
        if name.endswith(ARCHIVE_ENDINGS) and not is_explicit:
            return self.archives
        return self.logs if is_explicit or LOG_NAME.fullmatch(name) else None


def _is_lfs_pointer(path: Path) -> bool:
    try:
        if path.stat().st_size > _MAX_POINTER_BYTES:
            return False
        with path.open("rb") as file:
            return file.read(len(_LFS_HEAD)) == _LFS_HEAD
    except OSError:
        return False


def _is_metrics_file(path: Path, is_explicit: bool) -> bool:
    # The name comes first: a folder may hold large files that need not be opened.
    may_be_one = path.name.partition(".")[0] == "metrics" or is_explicit
    return may_be_one and path.is_file() and sockeye.is_metrics_file(path)


def find_files(paths: Sequence[Path]) -> RunFiles:
    """Sorts the given files, and those in the given folders, by their kind."""
    found = RunFiles()
    for path in dict.fromkeys(paths):
        if not path.exists():
            raise UserError(f"There is no {path}.")
        if not (path.is_dir() or path.is_file()):
            raise UserError(f"{path} is a pipe or a device, which can be read only once: save it to a file first.")
        for file in _files_in(path) if path.is_dir() else [path]:
            found.add(file, is_explicit=file == path)
    return found


def _files_in(folder: Path) -> Iterable[Path]:
    """Lists the files of a folder and its subfolders by name, up to a depth and a number; not those of own runs."""
    depth = len(folder.parts)
    reached = (path for path in sorted(folder.rglob("*")) if len(path.parts) - depth <= MAX_DEPTH)
    files = [path for path in islice(reached, _MAX_FILES) if path.is_file()]
    own = {parent for parent in {path.parent for path in files} if RunFolder(parent).exists}
    return [path for path in files if not own & set(path.parents)]


def identify_log(path: Path) -> LogFile:
    """Finds out who wrote a log by lines that only one trainer writes."""
    num_lines = dict.fromkeys(READERS, 0)
    first_date, is_empty = None, True
    for number, line in enumerate(read_lines(path)):
        is_empty = is_empty and not line.strip()
        if first_date is None and (match := _DATE.search(line[:200])):
            first_date = match.groups()
        for trainer, (is_own_line, _) in READERS.items():
            num_lines[trainer] += is_own_line(line)
        if max(num_lines.values()) >= _ENOUGH_LINES or number >= MAX_LINES:
            break
    best = max(num_lines, key=num_lines.__getitem__)
    return LogFile(path, best if num_lines[best] else None, first_date, is_empty)
