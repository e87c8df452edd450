"""The time and money a run has spent, over all its restarts: what training.max_hours and training.max_cost limit.

It is kept apart from checkpoints, because a crash gives back steps but no time: a rank of each run folder writes
spent.json every few seconds. Time counts from the start of the launcher: restarts, hangs and waiting for hosts count.
"""

import os
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import psutil

from dragoman.cluster.environment import LAUNCH_BEGIN_VARIABLE, LAUNCH_VARIABLE
from dragoman.cluster.world import World
from dragoman.run.files import read_json, write_json
from dragoman.run.folder import RunFolder
from dragoman.run.records import number_or_none

WRITE_SECONDS = 5.0


@dataclass(frozen=True)
class Launch:
    """The launcher that started this worker; where that is not ours, this process itself."""

    name: str
    begin: float
    """When it began, by this machine's time.monotonic()."""

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.begin


def find_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Returns what our launcher told this process about itself; else a new launch that began with this process."""
    if name := environment.get(LAUNCH_VARIABLE):
        return Launch(name, float(environment[LAUNCH_BEGIN_VARIABLE]))
    seconds = max(0.0, time.time() - psutil.Process().create_time())
    return Launch(secrets.token_hex(8), time.monotonic() - seconds)


class SpentTime:
    """Seconds and cost of a run so far; inside a `with` block, a rank that saves also writes them every few seconds."""

    def __init__(self, launch: Launch, price_per_hour: float | None = None, seconds_before: float = 0.0) -> None:
        self._launch = launch
        self._price_per_hour = price_per_hour
        self._seconds_before = seconds_before
        """Seconds of earlier launches."""
        self.step_seconds = 0.0
        """What the longest of the last steps took."""
        self.evaluation_seconds: float | None = None
        """What the last evaluation took; None before the first."""
        self.checkpoint_seconds = 0.0
        """What the last checkpoint took."""
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
        mine = cls._read(run, launch, is_new_run)
        seconds_before, step_seconds, evaluation_seconds, checkpoint_seconds = world.largest_numbers(mine)
        spent = cls(launch, price_per_hour, seconds_before)
        spent.step_seconds, spent.checkpoint_seconds = step_seconds, checkpoint_seconds
        spent.evaluation_seconds = evaluation_seconds or None
        spent._run = run if is_writer else None
        return spent

    @staticmethod
    def _read(run: RunFolder, launch: Launch, is_new_run: bool) -> list[float]:
        """Returns seconds of earlier launches, of the last steps, evaluation and checkpoint; 0 if unknown."""
        nothing = [0.0] * 4
        try:
            found = read_json(run.spent)
            names = ("seconds", "launch_seconds", "step_seconds", "evaluation_seconds", "checkpoint_seconds")
            seconds, launch_seconds, *others = (number_or_none(found.get(name)) or 0.0 for name in names)
        except (OSError, ValueError, AttributeError):
            return nothing
        if found.get("launch") == launch.name:
            return [max(0.0, seconds - launch_seconds), *others]
        # A launcher that was killed has spent up to WRITE_SECONDS more than it could write.
        return nothing if is_new_run else [seconds + WRITE_SECONDS, *others]

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
        """Writes the file; a full disk must not end a run, and the next write catches up."""
        launch_seconds = self._launch.seconds
        values = {
            "seconds": self._seconds_before + launch_seconds,
            "launch": self._launch.name,
            "launch_seconds": launch_seconds,
            "step_seconds": self.step_seconds,
            "evaluation_seconds": self.evaluation_seconds,
            "checkpoint_seconds": self.checkpoint_seconds,
        }
        with suppress(OSError):
            write_json(run.spent, values)
