"""Where records of a run are kept: metrics.jsonl, and TensorBoard under the seeds' tag names."""

import json
import math
import time
from pathlib import Path
from typing import Any, Self

TENSORBOARD_TAGS = {
    ("train", "loss"): "train_loss",
    ("train", "learning_rate"): "learning_rate",
    ("train", "gradient_norm"): "Loss_Optimization/global_gradient_norm",
    ("train", "loss_scale"): "Loss_Optimization/loss_scale",
    ("train", "steps_per_second"): "global_step/sec",
    ("train", "target_tokens_per_second"): "target_tokens_per_second",
    ("train", "padding_share"): "padding_share",
    ("train", "seconds_per_step"): "seconds_per_step",
    ("evaluation", "loss"): "eval_loss",
    # The seeds' tag, but the BLEU of real translations (0 to 100); their own figure has its honest name below.
    ("evaluation", "bleu"): "Eval_BLEU_Score",
    ("evaluation", "chrf"): "eval_chrf",
    ("evaluation", "teacher_forced_bleu"): "eval_teacher_forced_bleu",
}


class MetricsFile:
    """Appends records to metrics.jsonl, each flushed: a killed run keeps all it logged."""

    def __init__(self, path: Path) -> None:
        _end_last_line(path)
        self._file = path.open("a", encoding="utf-8", newline="\n")

    def write(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """One record on one line."""
        record = {"time": time.time(), "kind": kind, "step": step} | {k: _finite(v) for k, v in figures.items()}
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Nothing more comes."""
        self._file.close()


def _finite(value: Any) -> Any:
    """JSON has no word for NaN and infinity: null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _end_last_line(path: Path) -> None:
    """A run killed in mid-write leaves half a line; ending it keeps the next record readable."""
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as file:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")


class TensorBoardFile:
    """Scalars for TensorBoard, written with its own event writer (torch's wrapper takes a second to import)."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder))
        if first_step:
            # Tells TensorBoard to drop points after the checkpoint this run continues from: they are made again.
            session = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=first_step + 1, session_log=session))

    def write(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """The figures that have a tag."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=TENSORBOARD_TAGS[kind, name], simple_value=value)
            for name, value in figures.items()
            if (kind, name) in TENSORBOARD_TAGS
        ]
        if values:
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
            self._writer.flush()

    def close(self) -> None:
        """Nothing more comes."""
        self._writer.close()


class Sinks:
    """All places a record goes to."""

    def __init__(self, metrics: Path, tensorboard: Path, first_step: int) -> None:
        self._sinks = (MetricsFile(metrics), TensorBoardFile(tensorboard, first_step))

    def write(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """Writes one record to each."""
        for sink in self._sinks:
            sink.write(kind, step, figures)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sink in self._sinks:
            sink.close()
