"""The files of a run folder, and the lock that lets one process at a time write them."""

import errno
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from dragoman.run.commands import command_for
from dragoman.run.errors import UserError, describe_os_error

_STEP_NAME = re.compile(r"step-(\d{8,})")
_OWNER_ONLY = 0o700
_LOCK_SECONDS = 0.5
"""How long to try: whoever looks whether a run is locked holds its lock for an instant."""
_RETRY_SECONDS = 0.05
_WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Answers of file systems that have no locks."""


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
        """Locked by the process that trains; names that process."""
        return self.path / ".lock"

    @property
    def placement(self) -> Path:
        """The hosts and numbers of workers that a person chose, for the next start."""
        return self.path / "hosts.json"

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

    def preparation(self) -> tuple[Path, ...]:
        """Names what preparing the text takes long to make: the corpus, and the work for one that is not finished."""
        return self.prepared, self.path / f".{self.prepared.name}.partial", self.path / ".dragoman-work"

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


def make_run_folder(run: RunFolder) -> None:
    """Makes the folder of a run, readable by its owner only; one that exists is left as it is."""
    if run.path.is_dir():
        return
    try:
        run.path.mkdir(_OWNER_ONLY, parents=True)
    except FileExistsError:
        raise UserError(f"{run.path} exists and is not a run folder. Choose another one with --run-dir.") from None
    except OSError as error:
        raise _cannot_write(run, error) from None


def _cannot_write(run: RunFolder, error: OSError) -> UserError:
    return UserError(f"The run folder {run.path} cannot be written: {describe_os_error(error)}.")


@dataclass(frozen=True)
class LockHolder:
    """The process that has locked a run, as it wrote it into the lock file."""

    host: str
    pid: int
    remark: str = ""
    """What else helps to find it, e.g. "launched from laptop"."""

    def refusal(self, run: RunFolder) -> UserError:
        """Returns the error for a second process that wants to train the run."""
        remark, where = (f", {self.remark}", " there") if self.remark else ("", "")
        return UserError(
            f"{run.path} is being trained by process {self.pid} on {self.host}{remark}; "
            f"stop it{where} first with: {command_for('stop', run.path)}"
        )


@contextmanager
def lock_run(run: RunFolder, holder: str = "") -> Iterator[None]:
    """Locks a run for the block; a UserError names the process that has locked it.

    `holder` is a remark about this process for such an error, e.g. "launched from laptop".
    """
    content = json.dumps(asdict(LockHolder(socket.gethostname(), os.getpid(), holder))) + "\n"
    with _open_locked(run) as file:
        with suppress(OSError):  # a full disk keeps nobody from training
            file.truncate(0)
            file.write(content.encode())
        yield


def _open_locked(run: RunFolder) -> FileIO:
    """Opens the lock file, without changing it before it is locked: it names the holder."""
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            file = run.lock.open("ab", buffering=0)
        except OSError as error:
            raise _cannot_write(run, error) from None
        if _try_lock(file) and _is_in_place(file, run.lock):
            return file
        file.close()
        if time.monotonic() > end:
            raise locked_error(run)
        time.sleep(_RETRY_SECONDS)


def _try_lock(file: IO[Any], kind: int = fcntl.LOCK_EX) -> bool:
    """Locks a file unless another process has; where the file system has no locks, it counts as locked by us."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
    return True


def _is_in_place(file: IO[Any], path: Path) -> bool:
    """Whether the open file still has this name: a start that failed removes its lock file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def read_holder(run: RunFolder) -> LockHolder | None:
    """Returns who locked the run last; None where the lock file does not say it."""
    try:
        values = json.loads(run.lock.read_text(encoding="utf-8"))
        return LockHolder(str(values["host"]), int(values["pid"]), str(values["remark"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def locked_error(run: RunFolder) -> UserError:
    """Returns the error for a run that another process has locked."""
    holder = read_holder(run)
    if holder is None:
        return UserError(f"{run.path} is being trained by another process; stop that one first.")
    return holder.refusal(run)


def is_locked(run: RunFolder) -> bool:
    """Whether a process has locked the run, as far as this machine sees it."""
    try:
        with run.lock.open("rb") as file:
            # A shared lock for an instant: two readers at once must not take each other for the trainer.
            return not _try_lock(file, fcntl.LOCK_SH)
    except OSError:
        return False
