"""Writes messages and records of a run to the terminal, log.txt, metrics.jsonl and TensorBoard.

TensorBoard tags are those of OpenSeq2Seq where it has the same figure.
"""

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import IO, Any, Self, TextIO, cast

from rich.console import Console

from dragoman.monitoring.buffered_file import BufferedFile
from dragoman.monitoring.progress_line import ProgressFigures, ProgressLines
from dragoman.run.files import to_json_line
from dragoman.run.processes import CONSOLE_VARIABLE

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
    # OpenSeq2Seq's tag with the BLEU of real translations (0 to 100); its own figure is the teacher-forced one below.
    ("evaluation", "bleu"): "Eval_BLEU_Score",
    ("evaluation", "chrf"): "eval_chrf",
    ("evaluation", "teacher_forced_bleu"): "eval_teacher_forced_bleu",
}


class RunConsole:
    """Writes messages to the terminal and to log.txt; a terminal also has a progress bar."""

    def __init__(self, log: Path, num_steps: int) -> None:
        self.log_file = BufferedFile(log)
        stream = sys.stderr if os.environ.get(CONSOLE_VARIABLE) == "stderr" else sys.stdout
        file = cast("IO[str]", _StreamIgnoringFullDisk(stream))
        self._console = Console(file=file, highlight=False, soft_wrap=True, markup=False, emoji=False)
        # A request for colours alone (FORCE_COLOR) also makes rich take a file for a terminal.
        self._is_terminal = self._console.is_terminal and stream.isatty() and not self._console.is_dumb_terminal
        # Transient: the line is erased at the end, so that nobody takes it for a run that still goes on.
        self._progress = ProgressLines(console=self._console, disable=not self._is_terminal, transient=True)
        self._task = self._progress.add_task("training", total=num_steps, figures=ProgressFigures())

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        self.log_file.close()

    def say(self, text: str) -> None:
        """Writes a message to the terminal and to log.txt."""
        self._console.print(text)
        self._write_log(text)

    def log(self, text: str) -> None:
        """Writes a regular line to log.txt, and to standard output where no progress bar shows the same figures."""
        if not self._is_terminal:
            self._console.print(text)
        self._write_log(text)

    def show_progress(self, step: int, figures: ProgressFigures) -> None:
        """Updates the progress line; does nothing outside a terminal."""
        self._progress.update(self._task, completed=step, figures=figures)

    def _write_log(self, text: str) -> None:
        self.log_file.write(f"{text}\n".encode(errors="backslashreplace"))


class _StreamIgnoringFullDisk:
    """Standard output, which may be a file on a full disk: training continues, and log.txt has every line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        """Writes if that is possible."""
        with _ignoring_disk_errors():
            self._stream.write(text)

    def flush(self) -> None:
        """Flushes if that is possible."""
        with _ignoring_disk_errors():
            self._stream.flush()


@contextmanager
def _ignoring_disk_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # nobody reads the output any more: not an error of a disk
    except OSError:
        return


class MetricsFile:
    """Appends records to metrics.jsonl, each at once: a killed run keeps every record."""

    def __init__(self, path: Path) -> None:
        self.file = BufferedFile(path)

    def write(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """Writes one record on one line."""
        self.file.write(to_json_line({"time": time.time(), "kind": kind, "step": step} | figures))


class TensorBoardFile:
    """Writes scalars for TensorBoard into a buffered file.

    TensorBoard's own EventFileWriter dies of a full disk, in its own thread; torch's wrapper takes a second to import.
    """

    def __init__(self, folder: Path, resumed_step: int | None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        # TensorBoard looks for "tfevents" and reads files in the order of their names.
        self.file = BufferedFile(folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}")
        self._records = RecordWriter(self.file)
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resumed_step is not None:
            # Tells TensorBoard to drop points after the checkpoint this run continues from: they are written again.
            session = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=time.time(), step=resumed_step + 1, session_log=session))

    def write(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """Writes the figures that have a tag, and the parts of a step."""
        tagged = {TENSORBOARD_TAGS[kind, name]: figures[name] for name in figures if (kind, name) in TENSORBOARD_TAGS}
        parts = {f"attribution/{name}": seconds for name, seconds in (figures.get("attribution") or {}).items()}
        self.write_scalars(step, tagged | parts)

    def write_scalars(self, step: int, values: dict[str, Any]) -> None:
        """Writes the values that are numbers, by their tags."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [
            Summary.Value(tag=tag, simple_value=float(value))
            for tag, value in values.items()
            if isinstance(value, Real)
        ]
        if scalars:
            self._add(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))

    def _add(self, event: Any) -> None:
        self._records.write(event.SerializeToString())


class Sinks:
    """All files that records of a run are written to."""

    def __init__(self, metrics: Path, tensorboard: Path, resumed_step: int | None) -> None:
        """`resumed_step` is the step of the checkpoint a run continues from; None for a new run."""
        self._metrics = MetricsFile(metrics)
        self._tensorboard = TensorBoardFile(tensorboard, resumed_step)
        self.files = (self._metrics.file, self._tensorboard.file)

    def write(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """Writes one record to every file."""
        self._metrics.write(kind, step, figures)
        self._tensorboard.write(kind, step, figures)

    def write_scalars(self, step: int, values: dict[str, float]) -> None:
        """Writes values for TensorBoard only, by their tags."""
        self._tensorboard.write_scalars(step, values)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.close()
