"""The process that samples a machine: `python -m dragoman.monitoring.sampling.sampler RUN NODE [SECONDS]`.

One worker of each machine starts it. It takes part in no collective and shares no thread with training, so watching
a run can neither hold it up nor hang it; it ends with the worker.
"""

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from dragoman.monitoring.buffered_file import PatientFile
from dragoman.monitoring.sampling.gpu import GpuReader
from dragoman.monitoring.sampling.host import Figures, HostReader
from dragoman.monitoring.sampling.network import NetworkReader
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.processes import end_with_parent

MODULE = "dragoman.monitoring.sampling.sampler"
SAMPLE_SECONDS = 1.0
END_SECONDS = 5.0
"""A sampler that has not ended so long after it was asked to is killed: a lost GPU can hold NVML for ever."""
THREAD_VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
"""How variables begin that are meant for the worker's computing."""
PARENT_VARIABLE = "DRAGOMAN_SAMPLER_PARENT"
"""Holds the number of the process that starts a sampler."""
SIGNALS_FOR_OTHERS = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Ctrl-C, a closed terminal and Slurm's warnings reach every process of a job; workers know what to do with them."""

Wait = Callable[[float], bool]
"""Waits so many seconds, and tells whether it is time to end."""


class Sampler:
    """A sampler as the worker that started it sees it; it ends with the block."""

    def __init__(self, node: str, process: "subprocess.Popen[bytes] | None", start_trouble: str | None = None) -> None:
        self._node = node
        self._process = process
        self._start_trouble = start_trouble
        self._is_wanted = True

    @property
    def trouble(self) -> str | None:
        """Why there are no samples where there should be, in a sentence; else None."""
        if self._process is None:
            return f"No samples of {self._node} are taken: {self._start_trouble}."
        code = self._process.poll() if self._is_wanted else None
        return None if code is None else f"The sampler of {self._node} has ended, with code {code}."

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._is_wanted = False
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            # Not even that ends a process that hangs in a driver; it is not worth waiting for.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)


def start_sampler(run: RunFolder, node: str, seconds: float = SAMPLE_SECONDS) -> Sampler:
    """Starts to sample this machine; never raises, because a run without samples is still a run.

    To be called by the main thread: the kernel takes the end of the thread that starts a process for its parent's end.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(THREAD_VARIABLES)}
    environment[PARENT_VARIABLE] = str(os.getpid())
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(run.path), node, str(seconds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
    except (OSError, ValueError) as error:
        return Sampler(node, None, (error.strerror if isinstance(error, OSError) else None) or str(error))
    return Sampler(node, process)


def main() -> None:
    """Samples until it is told to end, or its parent has ended."""
    end_with_parent()
    wait = wait_for_end_signal()
    run, node = RunFolder(Path(sys.argv[1])), sys.argv[2]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else SAMPLE_SECONDS
    sample_machine(run.system(node), node, seconds, wait)


def sample_machine(path: Path, node: str, seconds: float, wait: Wait) -> None:
    """Writes a sample to the file at every tick."""
    file = open_patiently(path, seconds, wait)
    if file is None:
        return
    for sample in read_samples(node, ticks(seconds, wait)):
        # In ASCII: names of nodes and interfaces may hold what UTF-8 has no bytes for.
        file.write(json.dumps(sample, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n")
    file.close()


def open_patiently(path: Path, seconds: float, wait: Wait) -> PatientFile | None:
    """The file, as soon as the disk has room for it; None if it is time to end before."""
    while True:
        try:
            return PatientFile(path)
        except UserError:
            if wait(seconds):
                return None


def read_samples(node: str, moments: Iterator[None]) -> Iterator[Figures]:
    """A sample at each moment; what could not be read is told in the first."""
    notes: list[str] = []
    host, network, gpus = HostReader(), NetworkReader(), GpuReader(notes)
    is_first = True
    for _ in moments:
        sample: Figures = {"time": round(time.time(), 3), "node": node}
        sample |= host.read(notes)
        sample["network"] = network.read(notes)
        sample["gpus"] = gpus.read()
        if is_first:
            sample["notes"] = list(notes)
        notes.clear()
        is_first = False
        yield sample


def ticks(seconds: float, wait: Wait, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """One now and one after each period, by the clock and not by how long things took; late ones are left out."""
    begin, num_periods = clock(), 0
    while True:
        yield
        num_periods = max(num_periods + 1, math.ceil((clock() - begin) / seconds))
        if wait(max(0.0, begin + num_periods * seconds - clock())):
            return


def wait_for_end_signal() -> Wait:
    """A way to sleep that ends early, and for good, with SIGTERM or with the parent."""
    # The number of a signal comes through a pipe, so that none gets lost between a look and the sleep.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGTERM, lambda *_: None)
    for number in SIGNALS_FOR_OTHERS:
        signal.signal(number, signal.SIG_IGN)
    # Not simply the present one: it may have ended while we were starting.
    parent = int(os.environ.get(PARENT_VARIABLE) or os.getppid())

    def wait(seconds: float) -> bool:
        is_asked = bool(select.select([reader], [], [], seconds)[0])
        return is_asked or os.getppid() != parent

    return wait


if __name__ == "__main__":
    main()
