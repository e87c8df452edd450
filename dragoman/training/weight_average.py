"""Averages of a model's weights: one that follows training step by step, or one of several checkpoints.

An average is the same on every rank, because the weights are: it needs no communication.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.training.step_result import StepResult

_FASTEST_DECAY = 10
"""After n updates the decay is at most (1 + n) / (10 + n), so that the first weights do not count for long."""


class WeightAverage:
    """Averaged weights by parameter name, beside those that training continues from."""

    def __init__(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.tensors = dict(tensors)
        self._facts = dict(facts)

    @classmethod
    def of_checkpoints(cls, tensors: Mapping[str, Tensor], steps: list[int]) -> "WeightAverage":
        """Holds the average of the checkpoints of some steps."""
        return cls(tensors, {"kind": "checkpoints", "steps": steps})

    def facts(self) -> dict[str, Any]:
        """Says for state.json how the average was made."""
        return dict(self._facts)

    @contextmanager
    def used_by(self, model: nn.Module) -> Iterator[None]:
        """Lets a model compute with the averaged weights, without a copy, until the block ends."""
        parameters = dict(model.named_parameters())
        own = {name: parameter.data for name, parameter in parameters.items()}
        try:
            for name, parameter in parameters.items():
                parameter.data = self.tensors[name]
            yield
        finally:
            for name, parameter in parameters.items():
                parameter.data = own[name]


class MovingAverage(WeightAverage):
    """An exponential moving average: every update moves it a little towards the weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        parameters = dict(model.named_parameters())
        super().__init__({name: each.detach().clone() for name, each in parameters.items()}, {})
        trained = [name for name, each in parameters.items() if each.requires_grad]
        self._sources = {name: each.detach() for name, each in parameters.items()}
        self._averages, self._weights = ([each[name] for name in trained] for each in (self.tensors, self._sources))
        self._decay = decay
        self._num_updates = 0

    def facts(self) -> dict[str, Any]:
        """Says for state.json how the average was made."""
        return {"kind": "ema", "decay": self._decay, "updates": self._num_updates}

    @torch.no_grad()
    def update(self) -> None:
        """Moves the average towards the weights, in one pass over the memory of all of them."""
        self._num_updates += 1
        torch._foreach_lerp_(self._averages, self._weights, 1 - self._next_decay(self._num_updates))

    @torch.no_grad()
    def update_if_finite(self, result: StepResult, before: StepResult | None) -> None:
        """Does the same where the gradients of a step were finite, else nothing, without asking the device.

        `before` is the step before if its outcome is unknown too. `take_back` follows where an update was none.
        """
        self._num_updates += 1
        share = 1 - self._next_decay(self._num_updates)
        chosen = share if before is None else before.choose(share, 1 - self._next_decay(self._num_updates - 1))
        for average, weights in zip(self._averages, self._weights, strict=True):
            moved = torch.lerp(average, weights, chosen.to(average.dtype) if isinstance(chosen, Tensor) else chosen)
            average.copy_(torch.where(result.is_finite_on_device, moved, average))

    def take_back(self) -> None:
        """Does not count an update that changed nothing."""
        self._num_updates -= 1

    def _next_decay(self, num_updates: int) -> float:
        return min(self._decay, (1 + num_updates) / (_FASTEST_DECAY + num_updates))

    def continue_from(self, facts: Mapping[str, Any] | None) -> bool:
        """Continues a saved average, whose tensors the caller restores; starts from the weights where none was saved.

        Returns whether one was saved.
        """
        is_saved = facts is not None and facts.get("kind") == "ema"
        self._num_updates = int(facts["updates"]) if facts is not None and is_saved else 0
        if not is_saved:
            self.restore(self._sources)
        return is_saved

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Sets the average to other values, in place."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])
