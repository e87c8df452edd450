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
    """The folder of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """Resolved settings, versions and commit; written before step 1."""
        return self.path / "config.toml"

    @property
    def lock(self) -> Path:
        """Locked by the process that trains."""
        return self.path / ".lock"

    @property
    def log(self) -> Path:
        """The log, as shown in the terminal."""
        return self.path / "log.txt"

    @property
    def metrics(self) -> Path:
        """One JSON record per logged step, evaluation, checkpoint and restart."""
        return self.path / "metrics.jsonl"

    def system(self, node: str) -> Path:
        """Samples of one machine, one per second: cores, memory, disk, network, GPUs."""
        # Characters that a file name cannot hold are written as %XX, so that two nodes never share a file.
        return self.path / f"system.{quote(node, safe='', errors='surrogatepass')}.jsonl"

    def system_files(self) -> list[Path]:
        """Lists the sample files of all machines."""
        return sorted(path for path in self.path.glob("system.*.jsonl") if path.is_file())

    @property
    def translations(self) -> Path:
        """Translations of the dev set by the last evaluation, one JSON line per sentence."""
        return self.path / "translations.jsonl"

    @property
    def scores(self) -> Path:
        """One JSON record per test set that `dragoman evaluate` scored."""
        return self.path / "scores.jsonl"

    @property
    def imported(self) -> Path:
        """Facts from the log of another trainer; only imported runs have this file."""
        return self.path / "imported.json"

    def report(self, ending: str) -> Path:
        """The report: as a page (html), as text (md) and as figures (json)."""
        return self.path / f"report.{ending}"

    @property
    def spent(self) -> Path:
        """Time that the run has taken, over all restarts; rewritten every few seconds."""
        return self.path / "spent.json"

    @property
    def status(self) -> Path:
        """State of the run, rewritten by its launcher every two seconds."""
        return self.path / "status.json"

    @property
    def stop_request(self) -> Path:
        """Exists while somebody asks the run to stop."""
        return self.path / "stop.request"

    @property
    def launch_log(self) -> Path:
        """Output of a detached launcher."""
        return self.path / "launch.txt"

    @property
    def corpus(self) -> Path:
        """The built-in corpus, in the run of the demo."""
        return self.path / "corpus"

    @property
    def prepared(self) -> Path:
        """The prepared corpus, where the run started from two text files."""
        return self.path / "prepared"

    @property
    def corpus_facts(self) -> Path:
        """Figures of the training corpus: the corpus itself may be gone when the report is written."""
        return self.path / "corpus.json"

    @property
    def chosen_config(self) -> Path:
        """Settings chosen for the two text files, to copy and edit."""
        return self.path / "chosen.toml"

    @property
    def tensorboard(self) -> Path:
        """Event files of TensorBoard."""
        return self.path / "tensorboard"

    @property
    def tokenizers(self) -> Path:
        """Copies of the tokenizer models, so that a translator needs no prepared corpus."""
        return self.path / "tokenizers"

    @property
    def checkpoints(self) -> Path:
        """One folder per kept checkpoint, and the links `latest` and `best`."""
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """Returns the checkpoint folder of a step."""
        return self.checkpoints / f"step-{step:08d}"

    def checkpoint_steps(self) -> list[int]:
        """Lists the steps with a checkpoint folder, ascending; unfinished ones have other names."""
        if not self.checkpoints.is_dir():
            return []
        matches = (_STEP_NAME.fullmatch(entry.name) for entry in self.checkpoints.iterdir() if not entry.is_symlink())
        return sorted(int(match[1]) for match in matches if match)

    @property
    def exists(self) -> bool:
        """Whether a run was ever started here."""
        return self.config.exists()


def checkpoint_step(checkpoint: Path) -> int:
    """Returns the step in the name of a checkpoint folder."""
    match = _STEP_NAME.fullmatch(checkpoint.name)
    assert match, checkpoint
    return int(match[1])


def open_run(path: Path) -> RunFolder:
    """Opens an existing run; a UserError says what is missing."""
    run = RunFolder(path)
    if not path.is_dir():
        raise UserError(f"There is no run folder {path}.")
    if not run.exists:
        raise UserError(f"{path} is not a run folder: it has no config.toml.")
    return run


@contextmanager
def lock_run(run: RunFolder) -> Iterator[None]:
    """Locks a run for the block; a UserError where another process has locked it."""
    with run.lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{run.path} is being trained by another process; stop that one first.") from None
        yield


def is_locked(run: RunFolder) -> bool:
    """Whether a process on this machine trains the run now."""
    try:
        with run.lock.open("rb") as file:
            # A shared lock for an instant: two readers at once must not take each other for the trainer.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
