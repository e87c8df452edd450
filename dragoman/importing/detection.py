"""Finds out which files belong to a run, which trainer wrote a log, and the order of several logs."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol

from dragoman.importing import fairseq, huggingface, joeynmt, marian, opennmt, openseq2seq
from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_text import read_lines
from dragoman.run.errors import UsageError, UserError

MAX_LINES = 200_000
"""Number of lines of a log that are searched for lines of a known trainer."""
_ENOUGH_LINES = 5
"""Number of lines of one trainer that are enough to identify its log."""
_MAX_FILES = 2_000
MAX_DEPTH = 4
LOG_NAME = re.compile(
    r"(?:nohup.*|.*\.(?:log|out|txt|err)|train|valid|stdout|stderr)(?:\.\d+)?(?:\.(?:gz|xz|bz2|zst))?"
)
_EVENTS_MARK = "tfevents"
STATE_NAME = "trainer_state.json"
_STEP = re.compile(r"(?:[Gg]lobal step |\bStep:? {1,9}|\bUp\. |\bnum_updates[=: ]{1,3})(\d{1,15})\b", re.ASCII)
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
}
"""For each trainer: whether a line can only be its own, and the reader of its log."""


@dataclass(frozen=True)
class LogFile:
    """A text log and the trainer that wrote it."""

    path: Path
    trainer: str | None
    num_own_lines: int
    """Lines found that only this trainer writes."""
    first_date: tuple[str, ...] | None
    is_empty: bool


@dataclass
class RunFiles:
    """The files of a run by their kind."""

    logs: list[Path] = field(default_factory=list)
    events: list[Path] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)
    states: list[Path] = field(default_factory=list)

    def add(self, path: Path, is_explicit: bool) -> None:
        """Adds a file to its kind; a file of no known kind only if the user named it."""
        name = path.name.lower()
        if _EVENTS_MARK in name:
            self.events.append(path)
        elif name.endswith((".csv", ".tsv")):
            self.tables.append(path)
        elif name == STATE_NAME or (is_explicit and name.endswith(".json")):
            self.states.append(path)
        elif is_explicit or LOG_NAME.fullmatch(name):
            self.logs.append(path)


def find_files(paths: Sequence[Path]) -> RunFiles:
    """Sorts the given files, and those in the given folders, by their kind."""
    found = RunFiles()
    for path in paths:
        if not path.exists():
            raise UserError(f"There is no {path}.")
        if not (path.is_dir() or path.is_file()):
            raise UserError(f"{path} is a pipe or a device, which can be read only once: save it to a file first.")
        for file in _files_in(path) if path.is_dir() else [path]:
            found.add(file, is_explicit=file == path)
    return found


def _files_in(folder: Path) -> Iterable[Path]:
    """Lists the files of a folder and its subfolders by name, up to a depth and a number."""
    depth = len(folder.parts)
    reached = (path for path in sorted(folder.rglob("*")) if len(path.parts) - depth <= MAX_DEPTH)
    return [path for path in islice(reached, _MAX_FILES) if path.is_file()]


def choose_logs(paths: Sequence[Path], is_explicit: bool) -> tuple[str | None, list[LogFile]]:
    """Returns the trainer that wrote the logs (None if unknown) and its logs in their order.

    A log that no known trainer wrote belongs to the run if the user named files; in a folder it may be anything.
    """
    logs = [identify_log(path) for path in paths]
    trainer = _most_likely_trainer(logs)
    if is_explicit:
        _require_one_trainer(logs)
        own = [log for log in logs if log.trainer in (trainer, None)]
    else:
        own = [log for log in logs if log.trainer == trainer and not (trainer is None and log.is_empty)]
    return trainer, _in_order(own)


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
    return LogFile(path, best if num_lines[best] else None, num_lines[best], first_date, is_empty)


def _most_likely_trainer(logs: Sequence[LogFile]) -> str | None:
    num_lines: Counter[str] = Counter()
    for log in logs:
        if log.trainer:
            num_lines[log.trainer] += log.num_own_lines
    return max(num_lines, key=num_lines.__getitem__, default=None)


def _require_one_trainer(logs: Sequence[LogFile]) -> None:
    known = {log.trainer: log.path for log in logs if log.trainer}
    if len(known) > 1:
        owners = " and ".join(f"{path} of {trainer}" for trainer, path in known.items())
        raise UsageError(f"These are not files of one run: {owners}. Compare them with --compare.")


def _in_order(logs: list[LogFile]) -> list[LogFile]:
    """Sorts by first date, else by first step; keeps the given order unless one of them is known for every log."""
    if len(logs) < 2:
        return logs
    if all(log.first_date for log in logs):
        return sorted(logs, key=lambda log: log.first_date or ())
    steps = {log.path: _first_step(log.path) for log in logs}
    return logs if None in steps.values() else sorted(logs, key=lambda log: steps[log.path] or 0)


def _first_step(path: Path) -> int | None:
    lines = islice(read_lines(path), MAX_LINES)
    return next((int(match[1]) for line in lines if (match := _STEP.search(line[:500]))), None)
