"""Running `dragoman` as a person would, and reading what it left; also while it trains, to disturb it."""

import io
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Self
from unittest import mock

import psutil

from dragoman.cluster.heartbeat import FOLDER_VARIABLE, read_beat

Run = Callable[..., subprocess.CompletedProcess[str]]
MARK_VARIABLE = "DRAGOMAN_TEST_RUN"
"""All processes of a run inherit it, so they are found even where their parent has gone."""
WORKER_MODULE = "dragoman.training.worker"
HOST_MODULE = "dragoman.launch.host_program"


def dragoman_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "dragoman", *map(str, arguments)]


def run_dragoman(
    *arguments: object, code: int = 0, timeout: float = 280, **options: object
) -> subprocess.CompletedProcess[str]:
    """Runs the command and insists on its exit code; what it printed explains a failure."""
    done = subprocess.run(
        dragoman_command(*arguments), capture_output=True, text=True, timeout=timeout, check=False, **options
    )
    require_end(done, code)
    return done


def call_dragoman(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Like `run_dragoman`, but in this process: quicker, for commands that read no standard input."""
    from dragoman.cli import main

    command = ["dragoman", *map(str, arguments)]
    output, errors, status = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", command),
        mock.patch.dict(os.environ),
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
    done = subprocess.CompletedProcess(command, status, output.getvalue(), errors.getvalue())
    require_end(done, code)
    return done


def require_end(done: subprocess.CompletedProcess[str], *codes: int) -> None:
    assert done.returncode in codes, f"exit code {done.returncode}, not {codes}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr


def read_records(run: Path, kind: str) -> list[dict[str, object]]:
    """Those of one kind that are complete; the run may be writing the next."""
    content = (run / "metrics.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in content.splitlines(keepends=True) if line.endswith("\n")]
    return [record for record in records if record["kind"] == kind]


def train_losses(run: Path) -> dict[int, float]:
    """Loss by step; a step made again after a restart counts as it was made last."""
    return {int(record["step"]): float(record["loss"]) for record in read_records(run, "train")}


def learned_bytes(run: Path, step: int) -> dict[str, bytes]:
    """Weights and moments as they were saved."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}


def latest_step(run: Path) -> int:
    return int((run / "checkpoints" / "latest").resolve().name.removeprefix("step-"))


def wait_until(is_so: Callable[[], object], what: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"{what}: not in {seconds} s"
        time.sleep(0.01)


def wait_for_step(run: Path, step: int, seconds: float = 120) -> None:
    wait_until(lambda: farthest_step(run) >= step, f"step {step} of {run}", seconds)


def farthest_step(run: Path) -> int:
    if not (run / "metrics.jsonl").exists():
        return 0
    return max((int(record["step"]) for record in read_records(run, "train")), default=0)


class Training:
    """`dragoman train` under way; whatever it has started is ended with the block."""

    def __init__(self, run: Path, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        self.run = run
        self._mark = secrets.token_hex(8)
        # Into files: nobody empties a pipe while a test waits for something else.
        self._printed = [run.with_name(f"{run.name}.{stream}-{self._mark}") for stream in ("out", "err")]
        with self._printed[0].open("wb") as output, self._printed[1].open("wb") as errors:
            self._process = subprocess.Popen(
                dragoman_command("train", *arguments, "--run-dir", run),
                env=os.environ | {MARK_VARIABLE: self._mark} | dict(environment or {}),
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """The launcher's, and that of its process group."""
        return self._process.pid

    @property
    def errors(self) -> str:
        """What it has said on standard error so far."""
        return self._printed[1].read_text(encoding="utf-8")

    def send_signal(self, number: signal.Signals) -> None:
        """To the launcher alone."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kills the launcher alone, and waits until it is gone."""
        self._process.kill()
        self._process.wait()

    @property
    def is_over(self) -> bool:
        """Whether the launcher has ended."""
        return self._process.poll() is not None

    def end(self, *codes: int, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Waits for the end, and insists on the exit code (0, or one of these) and that no process is left behind."""
        self._process.wait(timeout=seconds)
        output, errors = (path.read_text(encoding="utf-8") for path in self._printed)
        done = subprocess.CompletedProcess(self._process.args, self._process.returncode, output, errors)
        require_end(done, *(codes or (0,)))
        wait_until(lambda: not self.processes(), "the end of all processes", seconds=10)
        return done

    def processes(self) -> list[psutil.Process]:
        """All of the run that live: the launcher, the host's program, the workers."""
        return [each for each in psutil.process_iter() if environment_of(each).get(MARK_VARIABLE) == self._mark]

    def host_program(self) -> psutil.Process:
        """What holds the workers for the launcher."""
        (program,) = [each for each in self.processes() if runs_module(each, HOST_MODULE)]
        return program

    def worker(self, rank: int) -> psutil.Process:
        """Waits for the process of this rank: a restart is recorded before its workers are started."""
        found: list[psutil.Process] = []

        def is_found() -> bool:
            workers = [each for each in self.processes() if runs_module(each, WORKER_MODULE)]
            found[:] = [each for each in workers if environment_of(each).get("RANK") == str(rank)]
            return len(found) == 1

        wait_until(is_found, f"the worker of rank {rank}")
        return found[0]

    def wait_for_step(self, step: int) -> None:
        wait_for_step(self.run, step)


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Empty for a process that is over."""
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def runs_module(process: psutil.Process, module: str) -> bool:
    try:
        return module in process.cmdline()
    except psutil.Error:
        return False


def last_note(worker: psutil.Process) -> str:
    """What a worker has noted last that it does."""
    variables = environment_of(worker)
    beat = read_beat(Path(variables[FOLDER_VARIABLE]), int(variables["RANK"])) if variables else None
    return beat.doing if beat else ""
