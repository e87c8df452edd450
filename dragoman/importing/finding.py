"""From what a person points at to a foreign run: which files belong to it, who wrote them, and in which order."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from dragoman.importing import fairseq, huggingface, joeynmt, marian, opennmt, openseq2seq
from dragoman.importing.failures import FailureWatch
from dragoman.importing.foreign_run import ForeignRun
from dragoman.importing.log_text import clean_text, read_lines
from dragoman.importing.nccl import NcclWatch
from dragoman.run.errors import UsageError, UserError

KNOWN_TRAINERS = "OpenSeq2Seq, fairseq, Marian, OpenNMT-py, Eole, JoeyNMT, HF Trainer, TensorBoard and CSV"
MAX_SNIFFED_LINES = 200_000
ENOUGH_HITS = 5
"""Lines of one trainer after which a log is taken for its."""
MAX_FILES = 2_000
MAX_DEPTH = 4
LOG_NAME = re.compile(
    r"(?:nohup.*|.*\.(?:log|out|txt|err)|train|valid|stdout|stderr)(?:\.\d+)?(?:\.(?:gz|xz|bz2|zst))?"
)
EVENTS_MARK = "tfevents"
STATE_NAME = "trainer_state.json"
_STEP = re.compile(r"(?:[Gg]lobal step |\bStep:? {1,9}|\bUp\. |\bnum_updates[=: ]{1,3})(\d{1,15})\b", re.ASCII)
_DATE = re.compile(r"\b(20\d\d)-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")


class LogReader(Protocol):
    """Reads the lines of one run's log, in order."""

    def __init__(self, run: ForeignRun) -> None: ...

    def read(self, line: str) -> None:
        """Takes a line."""

    def finish(self) -> None:
        """The last line was read."""


READERS: dict[str, tuple[Any, type[LogReader]]] = {
    openseq2seq.TRAINER: (openseq2seq.is_own_line, openseq2seq.OpenSeq2SeqReader),
    fairseq.TRAINER: (fairseq.is_own_line, fairseq.FairseqReader),
    marian.TRAINER: (marian.is_own_line, marian.MarianReader),
    opennmt.TRAINER: (opennmt.is_own_line, opennmt.OpenNmtReader),
    joeynmt.TRAINER: (joeynmt.is_own_line, joeynmt.JoeyReader),
    huggingface.TRAINER: (huggingface.is_own_line, huggingface.HfReader),
}


@dataclass(frozen=True)
class Log:
    """A text log, looked at."""

    path: Path
    trainer: str | None
    num_hits: int
    first_date: tuple[str, ...] | None
    is_empty: bool


@dataclass
class Findings:
    """What lies where a person pointed, by kind."""

    logs: list[Path]
    events: list[Path]
    tables: list[Path]
    states: list[Path]


def read_foreign_run(paths: Sequence[Path]) -> ForeignRun:
    """One run from a log, from several files of it, or from a folder with any of what trainers leave."""
    found = _sort_out(paths)
    run = ForeignRun()
    is_explicit = any(path.is_file() for path in paths)
    if found.logs:
        has_more = bool(found.states or found.events or found.tables)
        _read_logs(found.logs, run, is_explicit, has_more)
    if found.states and run.is_empty:
        state = max(found.states, key=_checkpoint_number)
        huggingface.read_trainer_state(state, run)
        run.sources.append(str(state))
    run.finish()
    _read_curves(found, run, is_explicit)
    # That a text says nothing of training is no failure of a training.
    if run.is_empty and run.trainer == "unknown" and not any(failure.evidence for failure in run.failures):
        raise UserError(_not_understood(paths, found))
    return run


def _sort_out(paths: Sequence[Path]) -> Findings:
    found = Findings([], [], [], [])
    for path in paths:
        if not path.exists():
            raise UserError(f"There is no {path}.")
        if not (path.is_dir() or path.is_file()):
            raise UserError(f"{path} is a pipe or a device, which can be read only once: save it to a file first.")
        for file in _files_in(path) if path.is_dir() else [path]:
            _file_away(file, found, is_explicit=file == path)
    return found


def _files_in(folder: Path) -> Iterable[Path]:
    """Its files and those of folders in it, in the order of their names; not without end."""
    depth = len(folder.parts)
    reached = (path for path in sorted(folder.rglob("*")) if len(path.parts) - depth <= MAX_DEPTH)
    return [path for path in islice(reached, MAX_FILES) if path.is_file()]


def _file_away(path: Path, found: Findings, is_explicit: bool) -> None:
    name = path.name.lower()
    if EVENTS_MARK in name:
        found.events.append(path)
    elif name.endswith((".csv", ".tsv")):
        found.tables.append(path)
    elif name == STATE_NAME or (is_explicit and name.endswith(".json")):
        found.states.append(path)
    elif is_explicit or LOG_NAME.fullmatch(name):
        found.logs.append(path)


def _read_logs(paths: Sequence[Path], run: ForeignRun, is_explicit: bool, has_more: bool) -> None:
    logs = [look_at(path) for path in paths]
    trainer = _most_likely([log.trainer for log in logs for _ in range(log.num_hits)])
    if trainer is None and has_more and not is_explicit:
        return  # a readme beside what does tell of the run
    if is_explicit:
        _require_one_trainer(logs)
    # In a folder, what no trainer wrote may be anything; a file that somebody named is part of the run.
    own = [log for log in logs if log.trainer == trainer or (is_explicit and log.trainer is None)]
    if trainer is None and not is_explicit:
        own = [log for log in own if not log.is_empty]
    own = _in_order(own)
    # Failures last: whether training went on after one, the others must have seen before.
    watches: list[LogReader] = [NcclWatch(run), FailureWatch(run)]
    if trainer is not None:
        watches.insert(0, READERS[trainer][1](run))
    for log in own:
        run.sources.append(str(log.path))
        for line in read_lines(log.path):
            for watch in watches:
                watch.read(line)
    for watch in watches:
        watch.finish()


def _require_one_trainer(logs: Sequence[Log]) -> None:
    known = {log.trainer: log.path for log in logs if log.trainer}
    if len(known) > 1:
        whose = " and ".join(f"{path} of {trainer}" for trainer, path in known.items())
        raise UsageError(f"These are not files of one run: {whose}. Compare them with --compare.")


def _in_order(logs: list[Log]) -> list[Log]:
    """By their first dates, or else by their first steps; as they were given where neither is known of all."""
    if len(logs) < 2:
        return logs
    if all(log.first_date for log in logs):
        return sorted(logs, key=lambda log: log.first_date or ())
    steps = {log.path: _first_step(log.path) for log in logs}
    return logs if None in steps.values() else sorted(logs, key=lambda log: steps[log.path] or 0)


def _first_step(path: Path) -> int | None:
    lines = islice(read_lines(path), MAX_SNIFFED_LINES)
    return next((int(match[1]) for line in lines if (match := _STEP.search(line[:500]))), None)


def look_at(path: Path) -> Log:
    """Who wrote a log, by lines that only one trainer writes."""
    hits = dict.fromkeys(READERS, 0)
    first_date, is_empty = None, True
    for number, line in enumerate(read_lines(path)):
        is_empty = is_empty and not line.strip()
        if first_date is None and (match := _DATE.search(line[:200])):
            first_date = match.groups()
        for trainer, (is_own_line, _) in READERS.items():
            hits[trainer] += is_own_line(line)
        if max(hits.values()) >= ENOUGH_HITS or number >= MAX_SNIFFED_LINES:
            break
    best = max(hits, key=hits.__getitem__)
    return Log(path, best if hits[best] else None, hits[best], first_date, is_empty)


def _most_likely(trainers: Sequence[str | None]) -> str | None:
    known = [trainer for trainer in trainers if trainer]
    return max(set(known), key=known.count) if known else None


def _read_curves(found: Findings, run: ForeignRun, is_explicit: bool) -> None:
    """Curves of TensorBoard or tables: the run itself, or what its log leaves out.

    A table in a folder may be about anything: one that has no steps is left out unless it was named.
    """
    from dragoman.importing.curves_csv import read_csv_curves
    from dragoman.importing.tensorboard import read_events

    for paths, read in ((found.events, read_events), (found.tables, read_csv_curves)):
        if not paths:
            continue
        curves = run if run.is_empty else ForeignRun()
        try:
            read(paths, curves)
        except UserError as error:
            if is_explicit:
                raise
            run.note(f"Left out: {error}")
            continue
        if curves is not run:
            _add_figures(run, curves)
        run.sources += [str(path) for path in paths]


def _add_figures(run: ForeignRun, curves: ForeignRun) -> None:
    """Figures and times that the log lacks, at steps that both have."""
    known = {(record["kind"], record["step"]): record for record in curves.records}
    for record in run.records:
        for name, value in known.get((record["kind"], record["step"]), {}).items():
            record.setdefault(name, value)


def _checkpoint_number(path: Path) -> tuple[int, float]:
    """Of trainer_state.json in checkpoint-500: the newest knows most."""
    digits = "".join(filter(str.isdecimal, path.parent.name))[-15:]
    return (int(digits) if digits else 10**15, path.stat().st_mtime)


def _not_understood(paths: Sequence[Path], found: Findings) -> str:
    where = ", ".join(map(str, paths))
    if not any((found.logs, found.events, found.tables, found.states)):
        return f"{where} holds neither a run nor a log, TensorBoard events, a CSV table or {STATE_NAME}."
    lines = (clean_text(raw, 80) for path in found.logs for raw in islice(read_lines(path), 100))
    line = next(filter(None, lines), "")
    begins = f' It begins with "{line}".' if line else " It is empty."
    return (
        f"{where} is not a log of a trainer that dragoman knows ({KNOWN_TRAINERS}), and no failure is found in it."
        f"{begins}"
    )


def imported_facts(run: ForeignRun) -> dict[str, Any]:
    """What imported.json holds."""
    return {
        "trainer": run.trainer,
        "sources": run.sources,
        "facts": run.facts,
        "printed_config": run.printed_config,
        "failures": [asdict(failure) for failure in run.failures],
        "notes": run.notes,
    }
