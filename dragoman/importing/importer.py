"""Imports a run of another trainer: reads its logs and curves, then writes them as a run folder.

The folder holds config.toml, metrics.jsonl and imported.json, so every command reads it like a run of dragoman.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman import __version__
from dragoman.importing.files.archives import Unpacked, unpack_archives
from dragoman.importing.files.detection import STATE_NAME, RunFiles
from dragoman.importing.files.found_runs import ABOUT_POINTERS, FoundRun, group_runs
from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_text import clean_text, read_lines
from dragoman.run.errors import UsageError, UserError, describe_os_error
from dragoman.run.files import write_json, write_text, write_then_rename
from dragoman.run.folder import RunFolder, make_run_folder
from dragoman.run.tables import dump_toml

_MAX_NAMED = 3
KNOWN_TRAINERS = "OpenSeq2Seq, fairseq, Marian, OpenNMT-py, Eole, JoeyNMT, HF Trainer, Sockeye, TensorBoard and CSV"


@dataclass
class FoundRuns:
    """The runs that some files and folders hold, while archives among them are unpacked."""

    runs: list[FoundRun]
    asked_for: list[Path]
    unpacked: Unpacked
    is_explicit: bool
    """Whether the user named files."""

    def read(self, found: FoundRun) -> ImportedRun:
        """Reads one of the runs."""
        run = found.read(self.is_explicit, is_cut=bool(self.unpacked.cut))
        # A text without any step is a failed run only if it also shows what failed.
        is_empty = run.is_empty and not any(failure.evidence for failure in run.failures)
        if is_empty and run.trainer == "unknown" and "has_unread_steps" not in run.facts:
            raise UserError(self.unpacked.rename(_not_understood(self.asked_for, found.paths)))
        if is_empty and "logs" not in found.clusters and "steps_done" not in run.facts and not found.companions:
            names = ", ".join(map(str, found.paths[:_MAX_NAMED]))
            raise UserError(self.unpacked.rename(f"{names}: no loss and no score was found; the files may be damaged."))
        for archive in self.unpacked.cut:
            run.note(f"{archive} is cut off or damaged: what followed is missing.")
        _rename_sources(run, self.unpacked)
        return run

    def import_into(self, found: FoundRun, folder: RunFolder) -> ImportedRun:
        """Reads one of the runs and writes it as a run folder; replaces an earlier import into that folder."""
        if folder.path.exists() and not folder.path.is_dir():
            raise UserError(f"{folder.path} is a file: choose another folder with --run-dir.")
        if folder.path.exists() and not folder.imported.exists() and any(folder.path.iterdir()):
            raise UserError(f"{folder.path} exists and is not an imported run: choose another folder with --run-dir.")
        run = self.read(found)
        write_run(run, folder, self.identity_of(found))
        return run

    def identity_of(self, found: FoundRun) -> list[Path]:
        """Returns the paths by which an earlier import of the run is known."""
        if len(self.runs) == 1:
            return self.asked_for
        return [Path(self.unpacked.rename(str(found.place)))]

    def describe(self) -> list[str]:
        """Returns a line about each run."""
        return [self.unpacked.rename(run.describe()) for run in self.runs]


@contextmanager
def find_runs(paths: Sequence[Path]) -> Iterator[FoundRuns]:
    """Finds the runs in files, folders and archives."""
    with unpack_archives(paths) as unpacked:
        runs, files = group_runs(unpacked.paths)
        if not runs:
            raise UserError(unpacked.rename(_not_understood(paths, files.logs, files)))
        yield FoundRuns(runs, list(paths), unpacked, any(path.is_file() for path in unpacked.paths))


def import_run(paths: list[Path], folder: RunFolder) -> ImportedRun:
    """Reads the files of one run and writes them as a run folder; replaces an earlier import into that folder."""
    with find_runs(paths) as found:
        return found.import_into(_only_run(found), folder)


def read_run(paths: Sequence[Path]) -> ImportedRun:
    """Reads one run from its log, from several of its files, or from a folder that holds them."""
    with find_runs(paths) as found:
        return found.read(_only_run(found))


def _only_run(found: FoundRuns) -> FoundRun:
    if len(found.runs) > 1:
        raise UsageError(several_runs(found))
    return found.runs[0]


def several_runs(found: FoundRuns, remedy: str = "") -> str:
    """Returns a message that lists the runs, where one is asked for; `remedy` is another way to go on."""
    where = ", ".join(map(str, found.asked_for))
    lines = "".join(f"\n  {line}" for line in found.describe())
    advice = f"Name the files of one run. {remedy}".rstrip()
    return f"{where}: these files are of {len(found.runs)} runs. {advice}{lines}"


def _rename_sources(run: ImportedRun, unpacked: Unpacked) -> None:
    """Names archives instead of the temporary folders that they were unpacked into."""
    if unpacked.names:
        run.sources[:] = map(unpacked.rename, run.sources)
        run.notes[:] = map(unpacked.rename, run.notes)
        run.left_out[:] = map(unpacked.rename, run.left_out)
        for launch in run.launches:
            launch.source = unpacked.rename(launch.source)


def _not_understood(asked_for: Sequence[Path], logs: Sequence[Path], files: RunFiles | None = None) -> str:
    where = ", ".join(map(str, asked_for))
    if files is not None and files.is_empty and files.pointers:
        return f"{files.pointers[0]} cannot be read: {ABOUT_POINTERS}"
    if files is not None and files.is_empty:
        held = f" Name an archive itself: {files.archives[0]}." if files.archives else ""
        return f"{where} holds neither a run nor a log, TensorBoard events, a CSV table or {STATE_NAME}.{held}"
    lines = (clean_text(raw, 80) for path in logs for raw in islice(read_lines(path), 100))
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
        "launches": [asdict(launch) for launch in run.launches],
        "left_out": run.left_out,
        "notes": run.notes,
        "asked_for": [str(path.resolve()) for path in asked_for],
    }
    provenance = {"imported_from": run.sources, "trainer": run.trainer, "dragoman": __version__}
    try:
        make_run_folder(folder)
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
    start = run.facts.get("started") or 0.0
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
