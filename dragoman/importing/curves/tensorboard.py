"""Reads TensorBoard's event files.

TensorBoard's own EventFileLoader is not used: it checks every byte in Python, which takes 70 us per scalar and a second
for 5 MB of images. This reader takes a few us per scalar and skips images.
"""

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dragoman.importing.curves.curve_collection import Curves
from dragoman.importing.curves.curve_tags import names_split
from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.trainers.sockeye_metrics import SockeyeCurves

TRAINER = "TensorBoard"

_MAX_EVENT_FILES = 2_000
MAX_RECORD_BYTES = 2**20
"""A scalar needs a hundred bytes; longer records hold images, histograms or graphs and are skipped."""
_MAX_DAMAGED_RECORDS = 100


def read_events(paths: Iterable[Path], run: ImportedRun) -> None:
    """Reads the scalars of all event files of one run; damaged files up to the damage.

    Files of several folders are one run that was continued, or the curves of several splits.
    """
    files = sorted(map(_EventFile.open, list(paths)[:_MAX_EVENT_FILES]), key=lambda file: file.began)
    if run.trainer == "unknown":
        run.trainer = TRAINER
    curves, checkpoints = Curves(), SockeyeCurves()
    for file in files:
        for time, step, tag, value in _scalars(file.path):
            curves.add(file.prefix + tag, step, time, value)
            checkpoints.add(tag, step, time, value)
    if checkpoints.is_sockeye:
        checkpoints.write_to(run, {folder for file in files for folder in (file.path.parent, file.path.parent.parent)})
    else:
        curves.write_to(run)
    if files and math.isfinite(files[0].began):
        run.facts.setdefault("started", files[0].began)


@dataclass(frozen=True)
class _EventFile:
    """An event file, when it was begun, and the folder that belongs to its tags."""

    path: Path
    began: float
    prefix: str

    @classmethod
    def open(cls, path: Path) -> "_EventFile":
        """Reads the time of the first event; fairseq writes train and valid to separate folders."""
        began = next((time for time, _ in _events(path) if time is not None), math.inf)
        name = path.parent.name
        return cls(path, began, f"{name}/" if names_split(name) else "")


def _scalars(path: Path) -> Iterator[tuple[float | None, int, str, float]]:
    """Yields time, step, tag and value of each scalar, stored as a number (old format) or a tensor (new format)."""
    for time, event in _events(path):
        for value in event.summary.value:
            number = _scalar_of(value)
            if number is not None:
                yield time, event.step, value.tag, number


def _events(path: Path) -> Iterator[tuple[float | None, Any]]:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # the package has no types
    from tensorboard.compat.proto.event_pb2 import Event

    num_damaged = 0
    for record in _records(path):
        try:
            event = Event.FromString(record)
        except DecodeError:
            num_damaged += 1
            if num_damaged > _MAX_DAMAGED_RECORDS:
                return
            continue
        yield (event.wall_time if math.isfinite(event.wall_time) and event.wall_time > 0 else None), event


def _scalar_of(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    return _tensor_scalar(value.tensor) if kind == "tensor" else None


def _tensor_scalar(tensor: Any) -> float | None:
    """Returns the number of a tensor that holds exactly one; None for all others."""
    for numbers in (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val):
        if len(numbers) == 1:
            return float(numbers[0])
    # TensorFlow 2 and torch write raw bytes; types 1 and 2 are float and double.
    layout = {1: "<f", 2: "<d"}.get(tensor.dtype)
    if layout is None or len(tensor.tensor_content) != struct.calcsize(layout):
        return None
    return float(struct.unpack(layout, tensor.tensor_content)[0])


def _records(path: Path) -> Iterator[bytes]:
    """Yields the records of a TFRecord file up to its end or the first damaged length."""
    try:
        num_bytes = path.stat().st_size
        with path.open("rb") as file:
            yield from _records_of(file, num_bytes)
    except OSError:
        # An unreadable file counts as empty: the other files of the run may hold more.
        return


def _records_of(file: IO[bytes], num_bytes: int) -> Iterator[bytes]:
    from tensorboard.summary.writer.record_writer import masked_crc32c

    while len(head := file.read(12)) == 12:
        length, check = struct.unpack("<QI", head)
        if check != masked_crc32c(head[:8]) or file.tell() + length > num_bytes:
            return
        if length > MAX_RECORD_BYTES:
            file.seek(length + 4, 1)
            continue
        record = file.read(length)
        file.seek(4, 1)
        yield record
