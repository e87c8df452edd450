"""The time and money a run has spent, over all its restarts: what training.max_hours and training.max_cost limit.

Time counts from the start of the launcher: starting, restarts, hangs and waiting for hosts count. A rank of each run
folder writes the total into spent.json every few seconds.
"""

import os
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Self

import psutil

from dragoman.cluster.environment import LAUNCH_BEGIN_VARIABLE, LAUNCH_SECONDS_VARIABLE, LAUNCH_VARIABLE
from dragoman.cluster.world import World
from dragoman.run.budget import WRITE_SECONDS, MeasuredSeconds, SpentRecord, read_spent
from dragoman.run.folder import RunFolder


@dataclass(frozen=True)
class Launch:
    """The launcher that started this worker; where that is not ours, this process itself."""

    name: str
    begin: float
    """When it began, by this machine's time.monotonic()."""
    seconds_before_attempt: float = 0.0
    """How long it had been running when it ordered to start this process."""

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.begin


def find_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Returns what our launcher told this process about itself; else a new launch that began with this process."""
    if name := environment.get(LAUNCH_VARIABLE):
        return Launch(name, float(environment[LAUNCH_BEGIN_VARIABLE]), float(environment[LAUNCH_SECONDS_VARIABLE]))
    seconds = max(0.0, time.time() - psutil.Process().create_time())
    return Launch(secrets.token_hex(8), time.monotonic() - seconds)


class SpentTime:
    """Seconds and cost of a run so far; inside a `with` block, a rank that saves also writes them every few seconds."""

    def __init__(self, launch: Launch, price_per_hour: float | None = None, seconds_before: float = 0.0) -> None:
        self._launch = launch
        self._price_per_hour = price_per_hour
        self._seconds_before = seconds_before
        """Seconds of earlier launches."""
        self.measured = MeasuredSeconds()
        self._run: RunFolder | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write_often, name="spent", daemon=True)

    @classmethod
    def open(
        cls,
        run: RunFolder,
        world: World,
        launch: Launch,
        price_per_hour: float | None,
        is_writer: bool,
        is_new_run: bool,
    ) -> Self:
        """Collective: continues with the largest figures of all run folders; one rank of each is its writer."""
        seconds_before, measured = 0.0, MeasuredSeconds()
        record = read_spent(run)
        if record is not None and (record.launch == launch.name or not is_new_run):
            seconds_before, measured = record.seconds_before(launch.name), record.measured
        seconds_before, *largest = world.largest_numbers([seconds_before, *astuple(measured)])
        spent = cls(launch, price_per_hour, seconds_before)
        spent.measured = MeasuredSeconds(*largest)
        spent._run = run if is_writer else None
        return spent

    @property
    def seconds(self) -> float:
        """Seconds that the run has taken, over all restarts."""
        return self._seconds_before + self._launch.seconds

    @property
    def cost(self) -> float | None:
        """Cost in the currency of price_per_hour; None where no price is set."""
        return None if self._price_per_hour is None else self.seconds / 3600 * self._price_per_hour

    def count_at_least(self, seconds: float) -> None:
        """Continues from the figure of a checkpoint, if that is larger: spent.json may be lost or on another host."""
        self._seconds_before = max(self._seconds_before, seconds - self._launch.seconds)

    def note_started(self) -> None:
        """Measures how long it took until the first step could begin."""
        self.measured.start = self._launch.seconds - self._launch.seconds_before_attempt

    def __enter__(self) -> Self:
        if self._run is not None:
            self._write(self._run)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._run is not None:
            self._is_over.set()
            self._thread.join()
            self._write(self._run)

    def _write_often(self) -> None:
        while self._run is not None and not self._is_over.wait(WRITE_SECONDS):
            self._write(self._run)

    def _write(self, run: RunFolder) -> None:
        launch_seconds = self._launch.seconds
        seconds = self._seconds_before + launch_seconds
        SpentRecord(seconds, self._launch.name, launch_seconds, self.measured).write(run)
