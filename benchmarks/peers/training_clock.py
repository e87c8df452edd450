"""Seconds that a peer has spent on training alone, step by step: a file of JSON lines [step, seconds]."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class TrainingClock:
    """Runs from the first batch on, and stands still while checkpoints are written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._seconds = 0.0
        self._begin: float | None = None

    def start(self) -> None:
        """Starts or continues."""
        if self._begin is None:
            self._begin = time.perf_counter()

    def finished(self, step: int) -> None:
        """Notes that a step is done."""
        running = 0.0 if self._begin is None else time.perf_counter() - self._begin
        self._file.write(json.dumps([step, self._seconds + running]) + "\n")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stands still inside the block."""
        if self._begin is not None:
            self._seconds += time.perf_counter() - self._begin
            self._begin = None
        yield
        self.start()
