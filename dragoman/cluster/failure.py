"""How a failing worker tells the launcher, and which of several failures is the cause of the others."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from dragoman.run.files import write_json

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
CONNECTION_WORDS = ("gloo", "nccl", "connection", "broken pipe", "timed out")


def report_failure(text: str, is_plain: bool) -> None:
    """Writes the cause into the file the agent gave this worker; `is_plain` where it is a sentence for people."""
    if path := os.environ.get(ERROR_FILE_VARIABLE):
        details = {"timestamp": int(time.time()), "time": time.time(), "is_plain": is_plain}
        write_json(Path(path), {"message": {"message": text, "extraInfo": details}})


def first_cause(error: ChildFailedError) -> str:
    """The one failure to tell: what a rank said plainly, else who was killed, else the first that is no mere echo.

    When one rank ends, its peers fail too, in the middle of a collective; those are the echoes.
    """
    rank, failure = min(error.failures.items(), key=lambda item: _remoteness(item[1]))
    if (told := _told(failure)) is not None:
        return str(told["message"])
    if failure.exitcode == -signal.SIGKILL:
        return (
            f"Worker {rank} was killed (SIGKILL), perhaps because the machine ran out of memory. "
            "Nothing saved is lost: the same command with --resume continues."
        )
    if failure.exitcode < 0:
        return f"Worker {rank} was ended by {signal.Signals(-failure.exitcode).name}."
    return f"Worker {rank} ended with exit code {failure.exitcode} without saying why."


def _remoteness(failure: ProcessFailure) -> tuple[int, float]:
    """Low for causes, high for consequences; then by time."""
    told = _told(failure)
    if told is None:
        return (3 if failure.exitcode == -signal.SIGTERM else 1), float(failure.timestamp)
    when = float(told["extraInfo"]["time"])
    if told["extraInfo"]["is_plain"]:
        return 0, when
    is_echo = any(word in str(told["message"]).lower() for word in CONNECTION_WORDS)
    return (3 if is_echo else 2), when


def _told(failure: ProcessFailure) -> dict[str, Any] | None:
    """What the worker itself wrote, if it could."""
    message = failure.error_file_data.get("message") if isinstance(failure.error_file_data, dict) else None
    return message if isinstance(message, dict) and "is_plain" in message.get("extraInfo", {}) else None
