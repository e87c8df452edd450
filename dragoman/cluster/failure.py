"""How a failing worker tells who started it, and which of several failures is the cause of the others. No torch."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dragoman.run.files import write_json

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
CONNECTION_WORDS = ("gloo", "nccl", "connection", "broken pipe", "timed out", "distnetworkerror", "diststoreerror")


@dataclass(frozen=True)
class Failure:
    """One worker's end, where it was no good one."""

    rank: int
    exit_code: int
    """Negative for a signal, as subprocess has it."""
    time: float
    host: str = ""
    message: str | None = None
    """What the worker itself could still say."""
    is_plain: bool = False
    """Whether that is a sentence for people about something they can mend: trying again would not help."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @property
    def is_echo(self) -> bool:
        """Whether it only says that another rank has gone: peers of a dead rank fail in the middle of a collective."""
        if self.message is None:
            return self.exit_code == -signal.SIGTERM
        return not self.is_plain and is_echo(self.message)

    @property
    def is_worth_another_try(self) -> bool:
        """Whether it came from outside the program: a kill, a machine, a network; an exception would come again."""
        return self.is_echo or self.message is None


def is_echo(message: str) -> bool:
    """Whether an exception is what a rank sees when another has gone."""
    return any(word in message.lower() for word in CONNECTION_WORDS)


def report_failure(text: str, is_plain: bool) -> None:
    """Writes the cause into the file the agent gave this worker; `is_plain` where it is a sentence for people."""
    if path := os.environ.get(ERROR_FILE_VARIABLE):
        details = {"timestamp": int(time.time()), "time": time.time(), "is_plain": is_plain}
        write_json(Path(path), {"message": {"message": text, "extraInfo": details}})


def first_cause(failures: Sequence[Failure]) -> Failure:
    """The one failure to tell: what a rank said plainly, else who was killed, else the first that is no mere echo."""
    return min(failures, key=_remoteness)


def describe_failure(failure: Failure) -> str:
    """One or two sentences for people."""
    if failure.message is not None:
        return f"{failure.message} (on {failure.host})" if failure.host else failure.message
    worker = f"Worker {failure.rank} on {failure.host}" if failure.host else f"Worker {failure.rank}"
    if failure.exit_code == -signal.SIGKILL:
        return f"{worker} was killed (SIGKILL), perhaps because the machine ran out of memory."
    if failure.exit_code < 0:
        return f"{worker} was ended by {_signal_name(-failure.exit_code)}."
    return f"{worker} ended with exit code {failure.exit_code} without saying why."


def _signal_name(number: int) -> str:
    """Most real-time signals have none."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _remoteness(failure: Failure) -> tuple[int, float]:
    """Low for causes, high for consequences; then by time."""
    if failure.is_plain:
        return 0, failure.time
    if failure.is_echo:
        return 3, failure.time
    return (1 if failure.message is None else 2), failure.time
