"""Processes that run at the same time, each on a core of its own."""

import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bleu_contestants import environment_of_one_core
from multi30k import REPOSITORY

from dragoman.run.errors import UserError

_LINES_SHOWN = 15


@dataclass(frozen=True)
class Task:
    """Commands that one core makes one after the other, and the file for what they print."""

    commands: Sequence[list[str]]
    log: Path


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
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            for number, process in list(running.items()):
                if process.poll() is not None:
                    del running[number]
                    if process.returncode:
                        raise UserError(_failure(tasks[number], process))


def _failure(task: Task, process: "subprocess.Popen[bytes]") -> str:
    last = task.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES_SHOWN:]
    assert isinstance(process.args, list)
    return "\n".join([f"`{' '.join(map(str, process.args))[:300]} …` failed:", *last])
