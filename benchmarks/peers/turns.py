"""Lets a peer's own training loop make steps in turns: each line on standard input is a number of steps to make.

The answer to a line is one line of JSON. The loop calls `before_step` and is kept waiting there between turns.
"""

import json
import os
import sys
import time


class Turns:
    """Requests from standard input, answers on standard output; what the trainer prints goes to standard error."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._num_left = 0
        self._begin: float | None = None
        self._num_target_tokens = self._num_source_tokens = 0

    def before_step(self, num_source_tokens: int, num_target_tokens: int) -> None:
        """Waits for a request if the last one is done; counts the tokens of the step that begins."""
        if self._num_left == 0:
            self._answer()
            self._await()
        self._num_left -= 1
        self._num_source_tokens += num_source_tokens
        self._num_target_tokens += num_target_tokens

    def _answer(self) -> None:
        if self._begin is None:
            return
        figures = {
            "seconds": time.perf_counter() - self._begin,
            "target_tokens": self._num_target_tokens,
            "source_tokens": self._num_source_tokens,
        }
        self._answers.write(json.dumps(figures) + "\n")

    def _await(self) -> None:
        line = sys.stdin.readline()
        if not line:
            os._exit(0)  # the benchmark is over; the training is not
        self._num_left = int(line)
        self._num_source_tokens = self._num_target_tokens = 0
        self._begin = time.perf_counter()
