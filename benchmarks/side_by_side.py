"""Processes that run at the same time, each on a core of its own."""

import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bleu_contestants import environment_of_one_core
from multi30k import REPOSITORY

from dragoman.run.errors import UserError

_LINES_SHOWN = 15
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Task:
    """Commands that one core makes one after the other, and the file for what they print."""

    commands: Sequence[list[str]]
    log: Path
    is_over: Callable[[], bool] = lambda: False
    """Whether a command has done what matters; the rest of it is ended."""


def run_side_by_side(tasks: Sequence[Task], cores: Sequence[int]) -> None:
    """Runs the tasks, each on its core, until all are done; if one fails, the others are ended."""
    waiting = [list(task.commands) for task in tasks]
    running: dict[int, subprocess.Popen[bytes]] = {}
    with ExitStack() as stack:
        logs = [stack.enter_context(task.log.open("ab")) for task in tasks]
        stack.callback(lambda: [process.kill() for process in running.values()])
        while running or any(waiting):
            for number, commands in enumerate(waiting):
                if number not in running and commands:
                    command = ["taskset", "--cpu-list", str(cores[number]), *commands.pop(0)]
                    running[number] = subprocess.Popen(
                        command, stdout=logs[number], stderr=logs[number], cwd=REPOSITORY, env=environment_of_one_core()
                    )
            time.sleep(_POLL_SECONDS)
            for number, process in list(running.items()):
                if _has_ended(tasks[number], process):
                    del running[number]


def _has_ended(task: Task, process: "subprocess.Popen[bytes]") -> bool:
    """Whether a process has ended, or is ended now because its task is over; raises if it failed."""
    if process.poll() is None:
        if not task.is_over():
            return False
        process.terminate()
        process.wait()
    elif process.returncode:
        raise UserError(_failure(task, process))
    return True


def _failure(task: Task, process: "subprocess.Popen[bytes]") -> str:
    last = task.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES_SHOWN:]
    assert isinstance(process.args, list)
    return "\n".join([f"`{' '.join(map(str, process.args))[:300]} …` failed:", *last])
