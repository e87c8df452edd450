"""The process that samples a machine: `python -m dragoman.monitoring.sampling.sampler RUN NODE [SECONDS]`.

One worker on each machine starts it. It takes part in no collective and shares no thread with training, so it can
neither slow down nor block the run; it ends with the worker.
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

from dragoman.monitoring.buffered_file import BufferedFile
from dragoman.monitoring.sampling.cores import find_root
from dragoman.monitoring.sampling.gpu import GpuReader
from dragoman.monitoring.sampling.machine import HostReader, NetworkReader
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.processes import end_with_parent
from dragoman.run.records import MachineSample

MODULE = "dragoman.monitoring.sampling.sampler"
SAMPLE_SECONDS = 1.0
END_SECONDS = 5.0
"""A sampler that takes longer to end is killed: a failed GPU can block NVML forever."""
_THREAD_VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
"""Prefixes of variables that configure the worker's threads."""
PARENT_VARIABLE = "DRAGOMAN_SAMPLER_PARENT"
"""Holds the id of the process that started the sampler."""
_SIGNALS_FOR_OTHERS = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Ctrl-C, a closed terminal and Slurm's warnings reach every process of a job; only workers react to them."""

Wait = Callable[[float], bool]
"""Waits a number of seconds; returns whether it is time to end."""


class Sampler:
    """Handle of the sampler process in the worker that started it; ends it on leaving the `with` block."""

    def __init__(self, node: str, process: "subprocess.Popen[bytes] | None", start_trouble: str | None = None) -> None:
        self._node = node
        self._process = process
        self._start_trouble = start_trouble
        self._is_wanted = True

    @property
    def trouble(self) -> str | None:
        """A message if samples are missing; None while the sampler works."""
        if self._process is None:
            return f"{self._node} is not sampled: the sampler could not start: {self._start_trouble}."
        code = self._process.poll() if self._is_wanted else None
        return (
            None if code is None else f"{self._node} is not sampled any more: the sampler ended with exit code {code}."
        )

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
            # Even SIGKILL does not end a process that hangs in a driver; training does not wait for it.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)


def start_sampler(run: RunFolder, node: str, seconds: float = SAMPLE_SECONDS) -> Sampler:
    """Starts to sample this machine; never raises, because training also works without samples.

    Call it from the main thread: for the kernel, a child's parent ends when the thread that started the child ends.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_THREAD_VARIABLES)}
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
    """Samples until SIGTERM, or until the parent has ended."""
    end_with_parent()
    wait = _wait_for_end_signal()
    run, node = RunFolder(Path(sys.argv[1])), sys.argv[2]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else SAMPLE_SECONDS
    sample_machine(run.system(node), node, seconds, wait)


def sample_machine(path: Path, node: str, seconds: float, wait: Wait) -> None:
    """Writes a sample to the file at every tick."""
    file = _open_when_possible(path, seconds, wait)
    if file is None:
        return
    for sample in read_samples(node, ticks(seconds, wait)):
        values = sample.model_dump(exclude_unset=True)
        # In ASCII: names of nodes and interfaces may hold bytes that are not UTF-8.
        file.write(json.dumps(values, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n")
    file.close()


def _open_when_possible(path: Path, seconds: float, wait: Wait) -> BufferedFile | None:
    """Opens the file as soon as the disk allows it; None if it is time to end before that."""
    while True:
        try:
            return BufferedFile(path)
        except UserError:
            if wait(seconds):
                return None


def read_samples(node: str, moments: Iterator[None]) -> Iterator[MachineSample]:
    """Yields a sample at each moment; the first one says what cannot be read here."""
    notes: list[str] = []
    host, network, gpus = HostReader(root=find_root()), NetworkReader(), GpuReader(notes)
    is_first = True
    for _ in moments:
        now = round(time.time(), 3)
        cpu, memory, disk = host.read(notes)
        interfaces = network.read(notes)
        sample = MachineSample(
            time=now, node=node, cpu=cpu, memory=memory, disk=disk, network=interfaces, gpus=gpus.read()
        )
        if host.programs is not None:
            sample = sample.model_copy(update={"programs": host.programs})
        yield sample.model_copy(update={"notes": list(notes)}) if is_first else sample
        is_first = False
        notes.clear()


def ticks(seconds: float, wait: Wait, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Yields now and after each period by the clock, however long the work between took; late ticks are left out."""
    begin, num_periods = clock(), 0
    while True:
        yield
        num_periods = max(num_periods + 1, math.ceil((clock() - begin) / seconds))
        if wait(max(0.0, begin + num_periods * seconds - clock())):
            return


def _wait_for_end_signal() -> Wait:
    """Returns a function that sleeps until a timeout, SIGTERM or the end of the parent."""
    # Signals come through a pipe, so that none is lost between a check and the sleep.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGTERM, lambda *_: None)
    for number in _SIGNALS_FOR_OTHERS:
        signal.signal(number, signal.SIG_IGN)
    # Not simply the current parent: the real one may have ended while this process started.
    parent = int(os.environ.get(PARENT_VARIABLE) or os.getppid())

    def wait(seconds: float) -> bool:
        is_asked = bool(select.select([reader], [], [], seconds)[0])
        return is_asked or os.getppid() != parent

    return wait


if __name__ == "__main__":
    main()
