"""Where records of a run are kept: metrics.jsonl, and TensorBoard under the seeds' tag names."""

import json
import math
import os
import socket
import time
from pathlib import Path
from typing import Any, Self

from dragoman.monitoring.buffered_file import PatientFile

TENSORBOARD_TAGS = {
    ("train", "loss"): "train_loss",
    ("train", "learning_rate"): "learning_rate",
    ("train", "gradient_norm"): "Loss_Optimization/global_gradient_norm",
    ("train", "loss_scale"): "Loss_Optimization/loss_scale",
    ("train", "steps_per_second"): "global_step/sec",
    ("train", "target_tokens_per_second"): "target_tokens_per_second",
    ("train", "padding_share"): "padding_share",
    ("train", "seconds_per_step"): "seconds_per_step",
    ("train", "wall_seconds_per_step"): "wall_seconds_per_step",
    ("train", "predicted_seconds_per_step"): "predicted_seconds_per_step",
    ("train", "prediction_error"): "prediction_error",
    ("evaluation", "loss"): "eval_loss",
    # The seeds' tag, but the BLEU of real translations (0 to 100); their own figure has its honest name below.
    ("evaluation", "bleu"): "Eval_BLEU_Score",
    ("evaluation", "chrf"): "eval_chrf",
    ("evaluation", "teacher_forced_bleu"): "eval_teacher_forced_bleu",
}


class MetricsFile:
    """Appends records to metrics.jsonl, each on disk at once: a killed run keeps all it logged."""

    def __init__(self, path: Path) -> None:
        self.file = PatientFile(path)

    def write(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """One record on one line."""
        record = {"time": time.time(), "kind": kind, "step": step} | {k: _finite(v) for k, v in figures.items()}
        self.file.write(json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Nothing more comes."""
        self.file.close()


def _finite(value: Any) -> Any:
    """JSON has no word for NaN and infinity: null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class TensorBoardFile:
    """Scalars for TensorBoard, as records of its own make in a file that can wait for the disk.

    Its EventFileWriter dies of a full disk in a thread of its own; torch's wrapper takes a second to import besides.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        # TensorBoard looks for "tfevents" and reads files in the order of their names.
        self.file = PatientFile(folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}")
        self._records = RecordWriter(self.file)
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if first_step:
            # Tells TensorBoard to drop points after the checkpoint this run continues from: they are made again.
            session = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=time.time(), step=first_step + 1, session_log=session))

    def write(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """The figures that have a tag, and the parts of a step."""
        tagged = {TENSORBOARD_TAGS[kind, name]: figures[name] for name in figures if (kind, name) in TENSORBOARD_TAGS}
        parts = {f"attribution/{name}": seconds for name, seconds in figures.get("attribution", {}).items()}
        self.show(step, tagged | parts)

    def show(self, step: int, values: dict[str, float]) -> None:
        """Values by their tags."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if values:
            scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            self._add(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))

    def close(self) -> None:
        """Nothing more comes."""
        self.file.close()

    def _add(self, event: Any) -> None:
        self._records.write(event.SerializeToString())


class Sinks:
    """All places a record goes to."""

    def __init__(self, metrics: Path, tensorboard: Path, first_step: int) -> None:
        self._tensorboard = TensorBoardFile(tensorboard, first_step)
        self._sinks = (MetricsFile(metrics), self._tensorboard)

    @property
    def files(self) -> tuple[PatientFile, ...]:
        """The files behind them, which may be waiting for the disk."""
        return tuple(sink.file for sink in self._sinks)

    def write(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """Writes one record to each."""
        for sink in self._sinks:
            sink.write(kind, step, figures)

    def show(self, step: int, values: dict[str, float]) -> None:
        """Values for TensorBoard alone, by their tags: their records are kept elsewhere."""
        self._tensorboard.show(step, values)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sink in self._sinks:
            sink.close()
