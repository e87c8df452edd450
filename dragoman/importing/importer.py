"""Imports a run of another trainer: reads its logs and curves, then writes them as a run folder.

The folder holds config.toml, metrics.jsonl and imported.json, so every command reads it like a run of dragoman.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman import __version__
from dragoman.importing import huggingface
from dragoman.importing.detection import READERS, STATE_NAME, LogReader, RunFiles, choose_logs, find_files
from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_failures import FailureReader
from dragoman.importing.log_text import clean_text, read_lines
from dragoman.importing.nccl import NcclReader
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.files import write_json, write_text, write_then_rename
from dragoman.run.folder import RunFolder
from dragoman.run.tables import dump_toml

KNOWN_TRAINERS = "OpenSeq2Seq, fairseq, Marian, OpenNMT-py, Eole, JoeyNMT, HF Trainer, TensorBoard and CSV"


def import_run(paths: list[Path], folder: RunFolder) -> ImportedRun:
    """Reads the files of one run and writes them as a run folder; replaces an earlier import into that folder."""
    if folder.path.exists() and not folder.path.is_dir():
        raise UserError(f"{folder.path} is a file: choose another folder with --run-dir.")
    if folder.path.exists() and not folder.imported.exists() and any(folder.path.iterdir()):
        raise UserError(f"{folder.path} exists and is not an imported run: choose another folder with --run-dir.")
    run = read_run(paths)
    write_run(run, folder, paths)
    return run


def read_run(paths: Sequence[Path]) -> ImportedRun:
    """Reads one run from its log, from several of its files, or from a folder that holds them."""
    files = find_files(paths)
    run = ImportedRun()
    is_explicit = any(path.is_file() for path in paths)
    if files.logs:
        _read_logs(files, run, is_explicit)
    if files.states and run.is_empty:
        state = max(files.states, key=_checkpoint_number)
        huggingface.read_trainer_state(state, run)
        run.sources.append(str(state))
    run.finish()
    _read_curves(files, run, is_explicit)
    # A text without any step is a failed run only if it also shows what failed.
    if run.is_empty and run.trainer == "unknown" and not any(failure.evidence for failure in run.failures):
        raise UserError(_not_understood(paths, files))
    return run


def _read_logs(files: RunFiles, run: ImportedRun, is_explicit: bool) -> None:
    trainer, logs = choose_logs(files.logs, is_explicit)
    if trainer is None and not is_explicit and (files.states or files.events or files.tables):
        return  # only a readme or the like, beside files that do describe the run
    # Failures come last: they need the newest step, which the trainer's reader sets.
    readers: list[LogReader] = [NcclReader(run), FailureReader(run)]
    if trainer is not None:
        readers.insert(0, READERS[trainer][1](run))
    for log in logs:
        run.sources.append(str(log.path))
        for line in read_lines(log.path):
            for reader in readers:
                reader.read(line)
    for reader in readers:
        reader.finish()


def _checkpoint_number(path: Path) -> tuple[int, float]:
    """Sorts each checkpoint-N/trainer_state.json by its number: the newest holds the whole history."""
    digits = "".join(filter(str.isdecimal, path.parent.name))[-15:]
    return (int(digits) if digits else 10**15, path.stat().st_mtime)


def _read_curves(files: RunFiles, run: ImportedRun, is_explicit: bool) -> None:
    """Reads TensorBoard files and tables: as the run itself, or to add the figures that its log lacks.

    A table in a folder may be about anything: one without steps is left out unless the user named it.
    """
    from dragoman.importing.csv_tables import read_csv_curves
    from dragoman.importing.tensorboard import read_events

    for paths, read in ((files.events, read_events), (files.tables, read_csv_curves)):
        if not paths:
            continue
        curves = run if run.is_empty else ImportedRun()
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


def _add_figures(run: ImportedRun, curves: ImportedRun) -> None:
    """Adds figures and times that the log lacks, at steps that both have."""
    known = {(record["kind"], record["step"]): record for record in curves.records}
    for record in run.records:
        for name, value in known.get((record["kind"], record["step"]), {}).items():
            record.setdefault(name, value)


def _not_understood(paths: Sequence[Path], files: RunFiles) -> str:
    where = ", ".join(map(str, paths))
    if not any((files.logs, files.events, files.tables, files.states)):
        return f"{where} holds neither a run nor a log, TensorBoard events, a CSV table or {STATE_NAME}."
    lines = (clean_text(raw, 80) for path in files.logs for raw in islice(read_lines(path), 100))
    line = next(filter(None, lines), "")
    begins = f' It begins with "{line}".' if line else " It is empty."
    return (
        f"{where} is not a log of a trainer that dragoman knows ({KNOWN_TRAINERS}), and it shows no known failure."
        f"{begins}"
    )


def write_run(run: ImportedRun, folder: RunFolder, asked_for: Sequence[Path]) -> None:
    """Writes the files of a run folder; config.toml last, because it makes the folder a run."""
    set_clock(run)
    if run.first_nan_step is not None:
        run.facts["first_nan_step"] = run.first_nan_step
    imported = {
        "trainer": run.trainer,
        "sources": run.sources,
        "facts": run.facts,
        "printed_config": run.printed_config,
        "failures": [asdict(failure) for failure in run.failures],
        "notes": run.notes,
        "asked_for": [str(path.resolve()) for path in asked_for],
    }
    provenance = {"imported_from": run.sources, "trainer": run.trainer, "dragoman": __version__}
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        with write_then_rename(folder.metrics, "w", is_durable=False) as file:
            file.writelines(json.dumps(_in_order(record), ensure_ascii=False) + "\n" for record in run.records)
        write_json(folder.imported, imported, is_durable=False)
        write_text(folder.config, dump_toml(run.settings | {"provenance": provenance}), is_durable=False)
    except OSError as error:
        raise UserError(f"The run folder {folder.path} cannot be written: {describe_os_error(error)}.") from None


def _in_order(record: dict[str, Any]) -> dict[str, Any]:
    """Puts time, kind and step first, as in dragoman's own records."""
    time = {"time": record["time"]} if "time" in record else {}
    return time | {"kind": record["kind"], "step": record["step"]} | record


def set_clock(run: ImportedRun) -> None:
    """Gives every record a time if none has one: from the seconds that the log counts, else by adding up its steps."""
    if any("time" in record for record in run.records):
        run.facts.setdefault("clock", "log")
        return
    start = run.facts.get("started", 0.0)
    has_seconds = any("training_seconds" in record for record in run.records)
    run.facts.setdefault("clock", "log" if has_seconds else "reconstructed")
    seconds, before = 0.0, None
    for record in run.records:
        if has_seconds:
            seconds = record.get("training_seconds", seconds)
        elif record["kind"] == "train" and "seconds_per_step" in record:
            # After a restart the number of steps is unknown: at least this one was made.
            num_steps = 1 if before is None or record["step"] <= before else record["step"] - before
            seconds, before = seconds + num_steps * record["seconds_per_step"], record["step"]
        record["time"] = start + seconds
