"""Reads the files of one run, each kind with its reader."""

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.importing.files.detection import MAX_LINES, READERS, LogReader
from dragoman.importing.files.same_run import begins_at_start
from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_failures import FailureReader
from dragoman.importing.log_text import LogText, clean_text, read_lines
from dragoman.importing.trainers import huggingface, sockeye
from dragoman.importing.trainers.nccl import NcclReader

_COMPARED_LINES = 300
"""Lines at the end of a log that are looked for in the file that continues it."""
_MIN_COMPARED_CHARACTERS = 12
# "Train steps: 200" is a plan: only the singular names a step that was made.
_TRAINING_WORDS = re.compile(
    r"\b(?:loss|cost|ppl|perplexity|cross.?entropy|nll)\b[^\n\d]{0,20}\d+\.\d|\b(?:step|update|iter(?:ation)?)\b.{0,3}\d",
    re.IGNORECASE,
)
_ENOUGH_SIGNS = 3
_TRAINING_BEGAN = re.compile(
    r"\] Training started|INFO:sockeye[\w.]{0,40}\] Training started|\bbegin training epoch \d|\] Start training loop\b"
    r"|\bEPOCH 1\b|\*\*\*\*\* Running training \*\*\*\*\*"
)
"""Lines with which trainers begin their first step, which they may log only much later."""
_LEFT_OUT = ("...", "....", ".....", "......", "…", "[...]", "[…]")
"""Lines that a person puts where others were left out."""
_EXCERPT = 'The log is an excerpt: lines were left out where it says "...".'
_ENOUGH_TIME = 0.5
"""Share of the time of all steps before the first logged one that shows that they were made since the launch."""


@dataclass(frozen=True)
class LogPart:
    """A log, and how many of its first lines another log of the run holds too."""

    path: Path
    num_repeated: int = 0


def read_logs(logs: Sequence[LogPart], trainer: str | None, run: ImportedRun) -> None:
    """Reads the logs of one run in order."""
    # Failures come last: they need the newest step, which the trainer's reader sets.
    failures = FailureReader(run)
    own: list[LogReader] = [] if trainer is None else [READERS[trainer][1](run)]
    readers = (*own, NcclReader(run), failures)
    for log in logs:
        run.sources.append(str(log.path))
        run.source = str(log.path)
        text = LogText(log.path)
        for number, line in islice(enumerate(text, start=1), log.num_repeated, None):
            run.line = number
            if line.startswith((".", "…", "[")) and line.strip() in _LEFT_OUT:
                run.note(_EXCERPT)
            for reader in readers:
                reader.read(line)
        if text.is_cut:
            run.facts["is_cut"] = True
            run.note(f"{log.path} is cut off or damaged: what followed is missing.")
    for reader in readers:
        if reader is failures:
            _note_what_is_unsure(logs, run)
        reader.finish()
    _leave_out_earlier_trainings(run)
    _note_beginning(run)
    _note_launches(run)


def _note_what_is_unsure(logs: Sequence[LogPart], run: ImportedRun) -> None:
    """Takes back what cannot be known of a file that is cut off, or of steps that nobody could read."""
    if run.facts.get("is_cut") and run.facts.get("is_finished") is False:
        del run.facts["is_finished"]
    if run.is_empty:
        _note_unread_steps(logs, run)


def _leave_out_earlier_trainings(run: ImportedRun) -> None:
    """Leaves out what came before the last start from scratch: a run that had ended, or one that was given up.

    Its weights are lost, so its steps and its time are not those of the training that followed.
    """
    run.finish()
    place = _last_start_from_scratch(run.records)
    if place is None:
        return
    before, run.records = run.records[:place], run.records[place + 1 :]
    seconds = max((record.get("training_seconds", 0.0) for record in before), default=0.0)
    for record in run.records:
        if "training_seconds" in record:
            record["training_seconds"] = max(0.0, record["training_seconds"] - seconds)
    first = next(record["step"] for record in run.records if record["kind"] == "train")
    launch = next((each for each in reversed(run.launches) if each.first_step == first), None)
    run.facts.pop("started", None)
    if launch is not None and launch.time is not None:
        run.facts["started"] = launch.time


def _last_start_from_scratch(records: Sequence[dict[str, Any]]) -> int | None:
    """Returns the place of the last restart that continued nothing; None where there is none."""
    steps: list[int] = []
    for place in range(len(records) - 1, -1, -1):
        record = records[place]
        if record["kind"] == "train":
            steps.append(record["step"])
        elif record["kind"] == "restart":
            after = steps[::-1]
            if after and begins_at_start(after) and (record["step"] == 0 or record["step"] >= after[0]):
                return place
            steps.clear()
    return None


def _note_beginning(run: ImportedRun) -> None:
    train = [record for record in islice(run.records, 50) if record["kind"] == "train"]
    steps = [record["step"] for record in train]
    if steps and "begins_midway" not in run.facts and not begins_at_start(steps):
        run.facts["begins_midway"] = not _was_time_for_all(run, train)


def _was_time_for_all(run: ImportedRun, train: list[dict[str, Any]]) -> bool:
    """Whether a launch was so long before its first logged step that it made all before it: lines were left out."""
    started, now = run.facts.get("started"), train[0].get("time")
    seconds = next((record["seconds_per_step"] for record in train if record.get("seconds_per_step")), None)
    if not started or not now or not seconds:
        return False
    return bool(now - started >= _ENOUGH_TIME * train[0]["step"] * seconds)


def _note_launches(run: ImportedRun) -> None:
    """Counts the launches, and names those whose steps the last one made all over again."""
    if len(run.launches) > 1:
        run.facts["num_attempts"] = len(run.launches)
    main = run.main_launch
    if main is None or main.first_step is None:
        return
    replaced = [each for each in run.launches if each is not main and _is_replaced(each.first_step, main.first_step)]
    if replaced:
        reached = ", ".join(f"launch {each.number} reached step {each.last_step:,}" for each in replaced)
        run.note(
            f"Launch {main.number} began again at the first step, and the figures are its own; {reached}. Give each "
            "training a file of its own to compare them."
        )


def _is_replaced(first_step: int | None, first_of_main: int) -> bool:
    return first_step is not None and first_step >= first_of_main


def _note_unread_steps(logs: Sequence[LogPart], run: ImportedRun) -> None:
    """Notes lines that look like training, so that nobody says that there was none."""
    for log in logs:
        if any(_TRAINING_BEGAN.search(line[:300]) for line in islice(read_lines(log.path), MAX_LINES)):
            run.facts["has_begun_training"] = True
        signs = [line for line in islice(read_lines(log.path), MAX_LINES) if _TRAINING_WORDS.search(line[:300])]
        if len(signs) >= _ENOUGH_SIGNS:
            run.facts["has_unread_steps"] = True
            run.note(
                f"{log.path} may hold steps of training in a format that is not known: {len(signs):,} lines such as "
                f'"{clean_text(signs[-1], 100)}" could not be read.'
            )


def count_repeated(earlier: Path, later: Path) -> int:
    """Returns how many lines at the start of a log are in the earlier log too."""
    tail = [line for line in deque(read_lines(earlier), _COMPARED_LINES) if len(line) >= _MIN_COMPARED_CHARACTERS]
    wanted, num_seen, places = set(tail), Counter[str](), dict[str, int]()
    for number, line in enumerate(read_lines(later), start=1):
        if line in wanted:
            num_seen[line] += 1
            places[line] = number
    # A line that occurs again later says nothing about the place.
    return next((places[line] for line in reversed(tail) if num_seen[line] == 1), 0)


def read_states(paths: Sequence[Path], run: ImportedRun) -> None:
    """Reads the newest trainer_state.json of the HF Trainer, its result files, and the file `metrics` of Sockeye."""
    metrics = [path for path in paths if sockeye.is_metrics_file(path)]
    results = [path for path in paths if path.name.lower() in huggingface.RESULT_NAMES]
    states = [path for path in paths if path not in results and path not in metrics]
    if states:
        state = _longest_history(states)
        if run.is_empty:
            huggingface.read_trainer_state(state, run)
        else:
            _take_exact_figures(state, run)
        run.sources.append(str(state))
    # Scores have no step of their own: what has steps comes first.
    results.sort(key=lambda path: (huggingface.RESULT_NAMES.index(path.name.lower()), path))
    for path in results + sorted(metrics):
        read = sockeye.read_metrics if path in metrics else huggingface.read_results
        read(path, run)
        run.sources.append(str(path))


def _take_exact_figures(state: Path, run: ImportedRun) -> None:
    """Replaces the figures of a log, which are rounded and whose steps are counted, if the file reaches as far."""
    exact = ImportedRun()
    huggingface.read_trainer_state(state, exact)
    has_restarts = any(record["kind"] == "restart" for record in run.records)
    if (exact.newest_step or 0) < (run.newest_step or 0) or has_restarts:
        return
    others = [record for record in run.records if record["kind"] not in ("train", "evaluation")]
    logged, run.records = run.records, exact.records
    _add_figures(run, logged)
    run.records = sorted(run.records + others, key=lambda record: int(record["step"]))
    run.facts |= exact.facts
    if run.launches and exact.launches and run.launches[-1].end == "unknown":
        run.launches[-1].end = exact.launches[-1].end


def _longest_history(states: Sequence[Path]) -> Path:
    """Returns the state of the newest checkpoint, or that of the output folder if it reaches as far or further."""
    number_of = {path: huggingface.checkpoint_number(path.parent) for path in states}
    checkpoints = [path for path in states if number_of[path] is not None]
    newest = sorted(checkpoints, key=lambda path: number_of[path] or 0)[-1:]
    others = [path for path in states if number_of[path] is None]
    if len(newest + others) == 1:
        return (newest + others)[0]
    return max(newest + others, key=huggingface.length_of_history)


def read_curves(kind: str, paths: Sequence[Path], run: ImportedRun, run_name: str = "") -> None:
    """Reads TensorBoard files or tables: as the run itself, or to add the figures that its log lacks."""
    curves = run if run.is_empty else ImportedRun()
    if kind == "events":
        from dragoman.importing.curves.tensorboard import read_events

        read_events(paths, curves)
    else:
        from dragoman.importing.curves.csv_tables import read_csv_curves

        read_csv_curves(paths, curves, run_name or None)
    if curves is not run:
        _add_figures(run, curves.records)
    run.sources += [str(path) for path in paths]


def _add_figures(run: ImportedRun, records: Iterable[dict[str, Any]]) -> None:
    """Adds figures and times that the run lacks, at steps that both have."""
    known = {(record["kind"], record["step"]): record for record in records}
    for record in run.records:
        for name, value in known.get((record["kind"], record["step"]), {}).items():
            record.setdefault(name, value)
