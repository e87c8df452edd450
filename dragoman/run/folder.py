"""The files of a run folder, and the lock that lets one process at a time write them."""

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from dragoman.run.errors import UserError

_STEP_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class RunFolder:
    """A run, by its folder."""

    path: Path

    @property
    def config(self) -> Path:
        """Resolved settings, versions, commit; written before step 1."""
        return self.path / "config.toml"

    @property
    def lock(self) -> Path:
        """Held by the process that trains."""
        return self.path / ".lock"

    @property
    def log(self) -> Path:
        """What a person would have read in the terminal."""
        return self.path / "log.txt"

    @property
    def metrics(self) -> Path:
        """One JSON record per logged step, evaluation, checkpoint, restart."""
        return self.path / "metrics.jsonl"

    def system(self, node: str) -> Path:
        """One sample a second of one machine: processors, memory, disk, network, GPUs."""
        # What no file name may hold is written as %XX, so two nodes never share a file.
        return self.path / f"system.{quote(node, safe='', errors='surrogatepass')}.jsonl"

    def system_files(self) -> list[Path]:
        """The samples of all machines that left some."""
        return sorted(path for path in self.path.glob("system.*.jsonl") if path.is_file())

    @property
    def translations(self) -> Path:
        """The dev set as the last evaluation translated it, a JSON line for each sentence."""
        return self.path / "translations.jsonl"

    @property
    def scores(self) -> Path:
        """One JSON record per test set that `dragoman evaluate` judged the run on."""
        return self.path / "scores.jsonl"

    @property
    def imported(self) -> Path:
        """What a foreign log told beyond settings and records; only runs of other trainers have it."""
        return self.path / "imported.json"

    def report(self, ending: str) -> Path:
        """What is to be said about the run: as a page (html), as text (md) and as figures (json)."""
        return self.path / f"report.{ending}"

    @property
    def status(self) -> Path:
        """How the run is, rewritten by its launcher every two seconds."""
        return self.path / "status.json"

    @property
    def stop_request(self) -> Path:
        """There while somebody wants the run to stop."""
        return self.path / "stop.request"

    @property
    def launch_log(self) -> Path:
        """What the launcher and the machines of the run said, beyond what a person reads in log.txt."""
        return self.path / "launch.txt"

    @property
    def corpus(self) -> Path:
        """The built-in corpus, where the run is the demo."""
        return self.path / "corpus"

    @property
    def prepared(self) -> Path:
        """The prepared corpus, where the run began with a person's own two text files."""
        return self.path / "prepared"

    @property
    def corpus_facts(self) -> Path:
        """What the run learned from, in figures: the prepared corpus may be gone when somebody asks."""
        return self.path / "corpus.json"

    @property
    def chosen_config(self) -> Path:
        """The settings that were chosen for them, to copy and edit."""
        return self.path / "chosen.toml"

    @property
    def tensorboard(self) -> Path:
        """Event files."""
        return self.path / "tensorboard"

    @property
    def tokenizers(self) -> Path:
        """Copies of the tokenizer models: a translator needs no prepared corpus."""
        return self.path / "tokenizers"

    @property
    def checkpoints(self) -> Path:
        """One folder per kept step, and the links `latest` and `best`."""
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """The folder of one step's checkpoint."""
        return self.checkpoints / f"step-{step:08d}"

    def checkpoint_steps(self) -> list[int]:
        """Steps that have a checkpoint folder, rising; half-written ones have other names and do not count."""
        if not self.checkpoints.is_dir():
            return []
        matches = (_STEP_NAME.fullmatch(entry.name) for entry in self.checkpoints.iterdir() if not entry.is_symlink())
        return sorted(int(match[1]) for match in matches if match)

    @property
    def exists(self) -> bool:
        """Whether a run was ever started here."""
        return self.config.exists()


def checkpoint_step(checkpoint: Path) -> int:
    """The step a checkpoint's folder is named after."""
    match = _STEP_NAME.fullmatch(checkpoint.name)
    assert match, checkpoint
    return int(match[1])


def open_run(path: Path) -> RunFolder:
    """An existing run; anything else is an error that says what is missing."""
    run = RunFolder(path)
    if not path.is_dir():
        raise UserError(f"There is no run folder {path}.")
    if not run.exists:
        raise UserError(f"{path} is not a run folder: it has no config.toml.")
    return run


@contextmanager
def hold_run(run: RunFolder) -> Iterator[None]:
    """Holds a run for the block; a UserError where another process holds it."""
    with run.lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{run.path} is being trained by another process; stop that one first.") from None
        yield


def is_held(run: RunFolder) -> bool:
    """Whether a process of this machine trains the run now."""
    try:
        with run.lock.open("rb") as file:
            # A shared lock, for an instant: two who look at once do not take each other for the one who trains.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
