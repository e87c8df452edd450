"""Dynamic batching: lines of different requests that wait at the same time are translated together."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace

from dragoman.serving.served_models import ServedModel
from dragoman.translation.search import SearchSettings
from dragoman.translation.translator import SourceLine, Translation

MAX_BATCH_LINES = 64
MAX_BATCH_CHARACTERS = 6_000
"""About 1,500 subwords, as much as a backend computes at once."""
_LONG_LINE, _LONG_WORD = 250, 20
"""Longer lines and words count several times, in characters: their subwords are many, and others wait for the batch."""
COLLECT_SECONDS = 0.004
"""Longest wait for more lines before a batch starts that is not full."""
_AVERAGE_SHARE = 0.1

BestLists = list[list[Translation]]
"""For each line its translations, best first."""


class QueueIsFullError(Exception):
    """Too many lines wait; `retry_seconds` says when there may be room."""

    def __init__(self, retry_seconds: int) -> None:
        super().__init__(f"Too many lines wait; try again in {retry_seconds} s.")
        self.retry_seconds = retry_seconds


@dataclass(frozen=True)
class BatchKind:
    """What lines must have in common to be translated together."""

    model: ServedModel
    num_best: int = 1
    with_alignment: bool = False

    def search_settings(self) -> SearchSettings:
        """Returns the settings of the model with so many translations for each line."""
        own = self.model.translator.settings
        beam_size = max(own.beam_size, self.num_best)
        return replace(own, beam_size=beam_size, num_best=self.num_best, with_alignment=self.with_alignment)


@dataclass(eq=False)
class PendingLines:
    """The lines of one request, waiting or being translated."""

    kind: BatchKind
    lines: Sequence[str]
    result: Future[BestLists] = field(default_factory=Future)
    num_taken: int = 0
    _done: dict[int, list[Translation]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def num_waiting(self) -> int:
        """Lines that no batch has taken yet."""
        return len(self.lines) - self.num_taken

    def add(self, begin: int, translations: BestLists) -> None:
        """Adds the translations of the lines from `begin` on; ends the wait once all are there."""
        with self._lock:
            self._done.update(enumerate(translations, begin))
            is_complete = len(self._done) == len(self.lines)
        if is_complete:
            with suppress(InvalidStateError):  # cancelled, or another batch of the request failed
                self.result.set_result([self._done[index] for index in range(len(self.lines))])

    def fail(self, error: BaseException) -> None:
        """Ends the wait with an error."""
        with suppress(InvalidStateError):
            self.result.set_exception(error)


@dataclass(frozen=True)
class _Share:
    """Some neighbouring lines of one request."""

    pending: PendingLines
    begin: int
    end: int

    @property
    def lines(self) -> Sequence[str]:
        return self.pending.lines[self.begin : self.end]


class TranslationQueue:
    """Translates lines in threads, one batch per thread; requests take turns, so that a long one delays no other."""

    def __init__(
        self, num_threads: int, max_waiting: int, on_batch: Callable[[BatchKind, int, float], None] | None = None
    ) -> None:
        """Starts the threads; `on_batch` receives the kind, the number of lines and the seconds of each batch."""
        self._max_waiting = max_waiting
        self._on_batch = on_batch
        self._changed = threading.Condition()
        self._waiting: list[PendingLines] = []
        self._seconds_per_line = 0.01 / num_threads
        self._is_closing = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(num_threads)]
        for thread in self._threads:
            thread.start()

    @property
    def num_waiting(self) -> int:
        """Lines that no batch has taken yet."""
        with self._changed:
            return sum(pending.num_waiting for pending in self._waiting)

    def submit(self, kind: BatchKind, lines: Sequence[str]) -> PendingLines:
        """Adds the lines of a request, however many, unless too many wait already."""
        pending = PendingLines(kind, lines)
        if not lines:
            pending.result.set_result([])
            return pending
        with self._changed:
            num_waiting = sum(each.num_waiting for each in self._waiting)
            if num_waiting >= self._max_waiting:
                raise QueueIsFullError(max(1, math.ceil(num_waiting * self._seconds_per_line)))
            self._waiting.append(pending)
            self._changed.notify()
        return pending

    def cancel(self, pending: PendingLines) -> None:
        """Drops the lines of a request that no batch has taken yet: nobody waits for them."""
        pending.result.cancel()
        self._drop(pending)

    def close(self) -> None:
        """Translates what waits, then ends the threads."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _drop(self, pending: PendingLines) -> None:
        with self._changed:
            if pending in self._waiting:
                self._waiting.remove(pending)

    def _work(self) -> None:
        for batch in self._batches():
            begin = time.perf_counter()
            num_lines = sum(len(share.lines) for share in batch)
            self._translate(batch)
            seconds = time.perf_counter() - begin
            with self._changed:
                mean = seconds / num_lines / len(self._threads)
                self._seconds_per_line += _AVERAGE_SHARE * (mean - self._seconds_per_line)
            if self._on_batch is not None:
                self._on_batch(batch[0].pending.kind, num_lines, seconds)

    def _batches(self) -> Iterator[list[_Share]]:
        """Yields batches until the queue is closed and empty."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closing)
                if not self._waiting:
                    return
                self._changed.wait_for(self._is_worth_starting, COLLECT_SECONDS)
                batch = self._take()
                if self._waiting:
                    self._changed.notify()
            if batch:
                yield batch

    def _is_worth_starting(self) -> bool:
        """Whether a batch can be filled, or another thread has taken what there was."""
        if not self._waiting or self._is_closing:
            return True
        kind = self._waiting[0].kind
        return sum(each.num_waiting for each in self._waiting if each.kind == kind) >= MAX_BATCH_LINES

    def _take(self) -> list[_Share]:
        """Takes lines of the request that waits longest and of others of its kind, as many as fit in a batch."""
        batch: list[_Share] = []
        left_over: list[PendingLines] = []
        others: list[PendingLines] = []
        room = _Room()
        for pending in self._waiting:
            if (batch and pending.kind != batch[0].pending.kind) or room.is_full:
                others.append(pending)
                continue
            end = pending.num_taken
            while end < len(pending.lines) and room.take(pending.lines[end]):
                end += 1
            if end > pending.num_taken:
                batch.append(_Share(pending, pending.num_taken, end))
                pending.num_taken = end
            if pending.num_waiting:
                left_over.append(pending)
        self._waiting = others + left_over  # a long request waits for its next turn behind all others
        return batch

    def _translate(self, batch: list[_Share]) -> None:
        kind = batch[0].pending.kind
        lines = [SourceLine(line) for share in batch for line in share.lines]
        try:
            found = kind.model.translator.translate_lines(lines, settings=kind.search_settings())
        except BaseException as error:
            if len(batch) == 1:
                batch[0].pending.fail(error)
                self._drop(batch[0].pending)
                return
            for share in batch:  # one request must not spoil the others
                self._translate([share])
            return
        begin = 0
        for share in batch:
            num_lines = len(share.lines)
            share.pending.add(share.begin, found[begin : begin + num_lines])
            begin += num_lines


def _cost(line: str) -> int:
    longest_word = max(map(len, line.split()), default=0)
    return len(line) * (1 + len(line) // _LONG_LINE + longest_word // _LONG_WORD)


class _Room:
    """What still fits in a batch; a line that is longer than a batch gets one of its own."""

    def __init__(self) -> None:
        self._num_lines, self._num_characters, self.is_full = 0, 0, False

    def take(self, line: str) -> bool:
        """Whether the line fits; if so, its room is taken."""
        longest = self._num_characters + _cost(line)
        if self._num_lines and (self._num_lines == MAX_BATCH_LINES or longest > MAX_BATCH_CHARACTERS):
            self.is_full = True
            return False
        self._num_lines += 1
        self._num_characters = longest
        return True
