"""Counts the tokens that a model reads and writes."""

import threading

from dragoman.translation.search import Batch, Found


class TokenCount:
    """Tokens that a model has read and written, EOS included; of several results the best counts."""

    def __init__(self) -> None:
        self.num_read, self.num_written = 0, 0
        self._lock = threading.Lock()

    def add(self, batch: Batch, found: Found) -> None:
        """Adds a batch and what was found for it; several threads may do so."""
        with self._lock:
            self.num_read += sum(segment.num_tokens for segment in batch)
            self.num_written += sum(len(best[0].tokens) + 1 for best in found if best)
