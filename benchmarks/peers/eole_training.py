"""Runs `eole train --config CONFIG` and notes the seconds of its steps: `eole_training.py CONFIG CLOCK`.

Runs in Eole's own environment. Nothing of the training changes: the loop is only watched from outside.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eole.bin.main import main as eole_main
from eole.models.model_saver import TrainingModelSaver
from eole.trainer import Trainer
from training_clock import TrainingClock


def watch(clock: TrainingClock) -> None:
    """Notes the end of every step, and does not count saving."""
    original_batches, original_save = Trainer._accum_batches, TrainingModelSaver.save

    def batches(trainer: Trainer, iterator: Iterator[Any]) -> Iterator[Any]:
        for step, batch in enumerate(original_batches(trainer, iterator), start=1):
            clock.start()  # the first batch has to wait for the first bucket, which is preparation
            yield batch
            clock.finished(step)

    def save(saver: TrainingModelSaver, step: int, *arguments: Any, **others: Any) -> None:
        clock.finished(step)
        with clock.paused():
            original_save(saver, step, *arguments, **others)

    Trainer._accum_batches, TrainingModelSaver.save = batches, save


if __name__ == "__main__":
    config, clock_path = sys.argv[1:]
    watch(TrainingClock(Path(clock_path)))
    sys.argv = ["eole", "train", "--config", config]
    eole_main()
