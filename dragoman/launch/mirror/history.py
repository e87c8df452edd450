"""The history of a run in one file, although its attempts wrote it on several hosts: log.txt and metrics.jsonl.

What rank 0 writes on a host during one attempt is a segment. Segments are joined in the order of attempts, between the
lines that the launcher itself appends. Lines of a lost host that come after those of a later attempt are inserted at
their place. A book beside the run remembers how much of each segment is here, and is right after a kill at any moment.
"""

import json
import shutil
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import IO

from dragoman.launch.mirror.host_files import MAX_READ_BYTES
from dragoman.run.files import read_json, require_free_space, write_all, write_json, write_then_rename


@dataclass
class Segment:
    """What rank 0 appends to a file on one host during one attempt."""

    host: str
    begin: int
    """Size of the host's file when the attempt began."""
    fetched: int
    """How far the host's file has been read for this segment."""
    place: int
    """Where its next lines are put in the file here."""
    limit: int | None = None
    """Where it ends in the host's file; None while the host may still write it."""

    def rest(self, size: int) -> int:
        """Returns how many bytes of a host's file of this size are still to be read."""
        return (size if self.limit is None else min(self.limit, size)) - self.fetched


@dataclass(frozen=True)
class _Insertion:
    """Lines about to be written, noted first: whoever finds this note finishes the work."""

    segment: int
    fetched: int
    """What the segment has been read to, once these lines are here."""
    place: int
    is_at_end: bool
    file: int
    """The inode that the lines are written to; lines in the middle are written with a new file, which has another."""


class HistoryFile:
    """A file of the run here, into which segments are merged while the launcher appends lines of its own."""

    def __init__(self, path: Path, book_folder: Path) -> None:
        self.path = path
        self._book = book_folder / f"{path.name}.segments.json"
        self._note = book_folder / f"{path.name}.insertion"
        self._lock = threading.RLock()
        self._current: Segment | None = None
        self._replaced: FileIO | None = None
        self._segments = self._load()
        for left in path.parent.glob(f".{path.name}.*.partial"):  # a killed launcher was replacing the file
            left.unlink(missing_ok=True)
        with suppress(OSError):  # a full disk; tried again with the next lines
            self._finish_insertion()

    @property
    def name(self) -> str:
        """The name of the file in every run folder."""
        return self.path.name

    @property
    def has_segments(self) -> bool:
        """Whether any host is known to have written a part of this file."""
        return bool(self._segments)

    def begin_segment(self, host: str, size: int | None, is_all_wanted: bool = False) -> None:
        """Begins the segment of a new attempt, which appends to a host's file of this size; None if that is not known.

        `is_all_wanted`: the history before this attempt is to be brought too.
        """
        with self._lock:
            self.end_attempt()
            earlier = [segment for segment in self._segments if segment.host == host]
            if size is None:
                size = earlier[-1].fetched if earlier else 0
            self.close_segments(host, size)
            begin = 0 if is_all_wanted and not earlier else size
            self._current = Segment(host, begin, begin, self._size())
            self._segments.append(self._current)
            self._save()

    def end_attempt(self) -> None:
        """Keeps lines that are still to come for the current segment before what is appended from now on."""
        self._current = None

    def close_segments(self, host: str, size: int) -> None:
        """Ends the segments of a host whose earlier workers are known to have ended, at the size of its file."""
        with self._lock:
            is_changed = False
            for segment in self._segments:
                if segment.host == host and segment.limit is None and segment is not self._current:
                    segment.limit, is_changed = max(size, segment.fetched), True
            if is_changed:
                self._save()

    def next_segment(self, host: str, size: int) -> Segment | None:
        """Returns the first segment of a host of which a part is missing here; `size` is that of the host's file."""
        with self._lock:
            return next((each for each in self._segments if each.host == host and each.rest(size) > 0), None)

    def add(self, segment: Segment, offset: int, content: bytes, is_last: bool) -> int:
        """Adds the whole lines of a part of a host's file that begins at `offset`; returns how many bytes were taken.

        `is_last`: nothing follows in this segment, so that a line without an end was cut off by a kill and is dropped.
        """
        with self._lock:
            self._finish_insertion()  # one that a full disk has left
            if segment.fetched != offset:
                return 0
            lines = content[: content.rfind(b"\n") + 1]
            if not lines and len(content) >= MAX_READ_BYTES:
                lines = content  # longer than any line of ours: taken in parts
            fetched = offset + (len(content) if is_last else len(lines))
            if offset == segment.begin > 0:
                lines = lines.removeprefix(
                    b"\n"
                )  # the end of a line that a killed worker left incomplete, and we dropped
            if lines:
                self._insert(segment, fetched, lines)
            elif fetched > offset:
                segment.fetched = fetched
                self._save()
            return fetched - offset

    def forget_cut(self, host: str, size: int) -> None:
        """Continues at the end of a host's file that has become shorter: a full disk makes workers take back a line."""
        with self._lock:
            for segment in self._segments:
                if segment.host == host and segment.limit is None and segment.fetched > size:
                    segment.fetched = max(size, segment.begin)

    def close(self) -> None:
        """Brings lines that another process appended to the file while it was replaced."""
        with self._lock:
            self._rescue_appended()
            self._forget_replaced()

    # Writing

    def _insert(self, segment: Segment, fetched: int, lines: bytes) -> None:
        self._rescue_appended()
        require_free_space(self.path.parent, len(lines))
        size = self._size()
        place = size if segment is self._current else min(segment.place, size)
        inode = self.path.stat().st_ino if self.path.exists() else 0
        note = _Insertion(self._segments.index(segment), fetched, place, place == size, inode)
        with write_then_rename(self._note, is_durable=False) as file:
            file.write(json.dumps(asdict(note)).encode() + b"\n" + lines)
        self._carry_out(note, lines, num_written=0)

    def _finish_insertion(self) -> None:
        """Finishes what was noted, if anything, wherever a kill or a full disk interrupted it."""
        if not self._note.exists():
            return
        try:
            header, lines = self._note.read_bytes().split(b"\n", 1)
            note = _Insertion(**json.loads(header))
        except (ValueError, TypeError):  # cut off by a power failure
            self._note.unlink()
        else:
            self._carry_out(note, lines, self._num_written(note, lines))

    def _num_written(self, note: _Insertion, lines: bytes) -> int:
        """Returns how many bytes of the lines are in the file already."""
        if not self.path.exists():
            return 0
        if not note.is_at_end:
            return len(lines) if self.path.stat().st_ino != note.file else 0
        with self.path.open("rb") as file:
            file.seek(note.place)
            found = file.read(len(lines))
            is_end = not file.read(1)
        return len(found) if found == lines or (is_end and lines.startswith(found)) else 0

    def _carry_out(self, note: _Insertion, lines: bytes, num_written: int) -> None:
        """Writes what is not written yet, notes it in the book, and only then removes the note."""
        is_known = note.segment < len(self._segments)  # the book may have been removed, or the disk too full to save it
        if is_known and (segment := self._segments[note.segment]).fetched < note.fetched:
            end = note.place + len(lines)
            if num_written < len(lines):
                end = self._write(note.place + num_written, lines[num_written:])
            segment.fetched, segment.place = note.fetched, end
            for later in self._segments[note.segment + 1 :]:
                later.place = max(later.place + len(lines), end)
        self._save()
        self._note.unlink()

    def _write(self, place: int, lines: bytes) -> int:
        """Writes lines at a place of the file; returns where they end."""
        if place >= self._size():
            with self.path.open("ab", buffering=0) as file:
                write_all(file, lines)
                return file.tell()  # the launcher may have appended a line of its own at this moment
        self._forget_replaced()
        self._replaced = self.path.open("rb", buffering=0)
        with write_then_rename(self.path, is_durable=False) as file:
            _copy(self._replaced, file, place)
            file.write(lines)
            shutil.copyfileobj(self._replaced, file)
        self._rescue_appended()
        return place + len(lines)

    def _rescue_appended(self) -> None:
        """Appends what another process wrote to the replaced file because it had opened it before the rename."""
        if self._replaced is not None and (lines := self._replaced.read()):
            with self.path.open("ab", buffering=0) as file:
                write_all(file, lines)

    def _forget_replaced(self) -> None:
        if self._replaced is not None:
            self._replaced.close()
            self._replaced = None

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    # The book

    def _load(self) -> list[Segment]:
        try:
            return [Segment(**values) for values in read_json(self._book)]
        except (OSError, ValueError, TypeError):
            return []

    def _save(self) -> None:
        self._book.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(self._book, [asdict(segment) for segment in self._segments], is_durable=False)


def _copy(source: IO[bytes], target: IO[bytes], num_bytes: int) -> None:
    """Copies the first bytes of a file."""
    while num_bytes and (chunk := source.read(min(num_bytes, 2**20))):
        target.write(chunk)
        num_bytes -= len(chunk)
