"""How the global batch grows during a run: it doubles at fixed steps, from a small first size to its full one.

The size follows from the step alone, so that a resumed run and any number of workers make the same batches.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchGrowth:
    """Tokens of the global batch at every step; steps are counted from 0."""

    first_tokens: int
    full_tokens: int
    doubling_steps: int = 1

    @classmethod
    def planned(cls, training: Mapping[str, float]) -> "BatchGrowth":
        """Returns the growth that the numbers of a [training] table say; without growth where they make no sense."""
        full, doubling = training.get("global_batch_tokens", 1), training.get("batch_doubling_steps", 1)
        first = min(training.get("initial_batch_tokens") or full, full)
        is_sound = first >= 1 and full < math.inf and 1 <= doubling < math.inf
        return cls(int(first), int(full), int(doubling)) if is_sound else cls(1, 1)

    def tokens_at(self, step: int) -> int:
        """Returns the token budget of the step that follows `step` finished ones."""
        num_doublings = min(step // self.doubling_steps, self.full_tokens.bit_length())
        return int(min(self.full_tokens, self.first_tokens << num_doublings))

    def share_at(self, step: int) -> float:
        """Returns the size of that step as a share of a full one."""
        return self.tokens_at(step) / self.full_tokens

    def is_growing(self, step: int) -> bool:
        """Whether the step that follows `step` finished ones is larger than the one before it."""
        return step > 0 and self.tokens_at(step) > self.tokens_at(step - 1)

    @property
    def full_from_step(self) -> int:
        """Number of steps after which all batches are full."""
        return self.doubling_steps * math.ceil(math.log2(self.full_tokens / self.first_tokens))

    def full_steps(self, begin: int, end: int) -> float:
        """Returns how many full steps have as many tokens as the steps from `begin` to `end` - 1."""
        return sum((last - first) * self.share_at(first) for first, last in self._stages(begin, end))

    def steps_within(self, full_steps: float) -> int:
        """Returns the number of first steps that have at most as many tokens as so many full steps."""
        done = 0.0
        for first, last in self._stages(0, self.full_from_step):
            share = self.share_at(first)
            if done + (last - first) * share > full_steps:
                return first + int((full_steps - done) / share)
            done += (last - first) * share
        return self.full_from_step + int(full_steps - done)

    def _stages(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields the ranges of steps of one size."""
        while begin < end:
            next_growth = (begin // self.doubling_steps + 1) * self.doubling_steps
            last = end if begin >= self.full_from_step else min(end, next_growth)
            yield begin, last
            begin = last
