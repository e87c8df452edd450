"""How a failing worker reports its error, and which of several failures caused the others. Does not import torch."""

import os
import signal
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.run.files import write_json

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
LOST_PEER_WORDS = ("gloo", "nccl", "connection", "broken pipe", "timed out", "distnetworkerror", "diststoreerror")


@dataclass(frozen=True)
class Failure:
    """How one worker failed."""

    rank: int
    exit_code: int
    """Negative for a signal, as in subprocess; 0 for a worker that exited without reporting an end."""
    time: float
    host: str = ""
    message: str | None = None
    """The error the worker itself reported; None if it could not."""
    is_plain: bool = False
    """Whether the message tells a person what to fix; a restart would not help then."""

    @property
    def is_consequence(self) -> bool:
        """Whether the worker only failed because another rank was gone."""
        if self.message is None:
            return self.exit_code == -signal.SIGTERM
        return not self.is_plain and blames_lost_peer(self.message)

    @property
    def is_worth_another_try(self) -> bool:
        """Whether the cause lies outside the program (a kill, the machine, the network); exceptions would recur."""
        return self.is_consequence or self.message is None


def blames_lost_peer(message: str) -> bool:
    """Whether an error message is one that a rank sees when another rank is gone."""
    return any(word in message.lower() for word in LOST_PEER_WORDS)


def report_failure(text: str, is_plain: bool) -> None:
    """Writes the error into the file that torch's agent gave this worker; `is_plain` as in `Failure`."""
    if path := os.environ.get(ERROR_FILE_VARIABLE):
        details = {"timestamp": int(time.time()), "time": time.time(), "is_plain": is_plain}
        write_json(Path(path), {"message": {"message": text, "extraInfo": details}})


def write_traceback(folder: Path, rank: int, error: BaseException) -> Path | None:
    """Writes the traceback of a worker's error into the run folder; returns the file, None if that is impossible."""
    details = folder / f"failure.rank{rank}.txt"
    try:
        details.write_text("".join(traceback.format_exception(error)), encoding="utf-8", errors="backslashreplace")
    except OSError:
        return None
    return details


def first_cause(failures: Sequence[Failure]) -> Failure:
    """Returns the failure to report: a plain message, else a kill, else an exception, else a lost connection."""
    return min(failures, key=_distance_from_cause)


def _distance_from_cause(failure: Failure) -> tuple[int, float]:
    """Sorts causes before consequences, then by time."""
    if failure.is_plain:
        return 0, failure.time
    if failure.is_consequence:
        return 3, failure.time
    return (1 if failure.message is None else 2), failure.time


def describe_failure(failure: Failure) -> str:
    """Returns a message for people."""
    if failure.message is not None:
        return f"{failure.message} (on {failure.host})" if failure.host else failure.message
    worker = f"Worker {failure.rank} on {failure.host}" if failure.host else f"Worker {failure.rank}"
    if failure.exit_code == -signal.SIGKILL:
        return f"{worker} was killed (SIGKILL), perhaps because the machine ran out of memory."
    if failure.exit_code < 0:
        return f"{worker} was ended by {_signal_name(-failure.exit_code)}."
    if failure.exit_code == 0:
        return f"{worker} exited with code 0 before its run had ended."
    return f"{worker} ended with exit code {failure.exit_code} and gave no reason."


def _signal_name(number: int) -> str:
    """Returns the name of a signal, or its number: most real-time signals have no name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
