"""A foreign run as a run folder: config.toml, metrics.jsonl and imported.json, so that everything reads it as ours."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman import __version__
from dragoman.importing.finding import imported_facts, read_foreign_run
from dragoman.importing.foreign_run import ForeignRun
from dragoman.run.errors import UserError
from dragoman.run.files import write_aside, write_json, write_text
from dragoman.run.folder import RunFolder
from dragoman.run.tables import dump_toml


def import_run(paths: list[Path], folder: RunFolder) -> ForeignRun:
    """Reads a foreign run and writes it as a run folder; one that was imported there before is replaced."""
    if folder.path.exists() and not folder.path.is_dir():
        raise UserError(f"{folder.path} is a file: choose another folder with --run-dir.")
    if folder.path.exists() and not folder.imported.exists() and any(folder.path.iterdir()):
        raise UserError(f"{folder.path} exists and is not an imported run: choose another folder with --run-dir.")
    run = read_foreign_run(paths)
    write_run(run, folder, paths)
    return run


def write_run(run: ForeignRun, folder: RunFolder, asked_for: Sequence[Path]) -> None:
    """Writes the files; the settings last, since they make a folder a run."""
    set_clock(run)
    if run.first_nan_step is not None:
        run.facts["first_nan_step"] = run.first_nan_step
    provenance = {"imported_from": run.sources, "trainer": run.trainer, "dragoman": __version__}
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        with write_aside(folder.metrics, "w", is_durable=False) as file:
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in map(_in_order, run.records))
        asked = [str(path.resolve()) for path in asked_for]
        write_json(folder.imported, imported_facts(run) | {"asked_for": asked}, is_durable=False)
        write_text(folder.config, dump_toml(run.settings | {"provenance": provenance}), is_durable=False)
    except OSError as error:
        raise UserError(f"The run folder {folder.path} cannot be written: {error.strerror}.") from None


def _in_order(record: dict[str, Any]) -> dict[str, Any]:
    """As our own records are: time, kind and step first."""
    time = {"time": record["time"]} if "time" in record else {}
    return time | {"kind": record["kind"], "step": record["step"]} | record


def set_clock(run: ForeignRun) -> None:
    """Gives records without a time one: by the seconds a log counts, or else by adding up its steps' times."""
    if any("time" in record for record in run.records):
        run.facts.setdefault("clock", "log")
        return
    begin = run.facts.get("started", 0.0)
    is_counted = any("training_seconds" in record for record in run.records)
    run.facts.setdefault("clock", "log" if is_counted else "reconstructed")
    seconds, before = 0.0, None
    for record in run.records:
        if is_counted:
            seconds = record.get("training_seconds", seconds)
        elif record["kind"] == "train" and "seconds_per_step" in record:
            # A run that went back to a checkpoint makes its steps once more.
            num_steps = 1 if before is None or record["step"] <= before else record["step"] - before
            seconds, before = seconds + num_steps * record["seconds_per_step"], record["step"]
        record["time"] = begin + seconds
