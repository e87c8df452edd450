"""Figures of the steps between two log records: collected without waiting for the device, read with one collective."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dragoman.cluster.world import World


@dataclass
class TrainMeters:
    """Sums since the last record. Losses are this rank's part; everything else every rank knows alike."""

    num_steps: int = 0
    num_target_tokens: int = 0
    num_tokens: int = 0
    num_padded_tokens: int = 0
    seconds: float = 0.0
    gradient_norm_sum: float = 0.0
    num_finite_norms: int = 0
    losses: list[Tensor] = field(default_factory=list)
    """Pairs (smoothed, plain) on the device, one a step."""

    def read(self, world: World) -> dict[str, float]:
        """Collective: the record's figures, the same on every rank."""
        sums = torch.stack(self.losses).sum(0).tolist()  # the one host sync of the interval
        smoothed, plain = world.sum_numbers(sums)
        return {
            "loss": smoothed / self.num_target_tokens,
            "negative_log_likelihood": plain / self.num_target_tokens,
            "gradient_norm": self.gradient_norm_sum / max(self.num_finite_norms, 1),
            "seconds_per_step": self.seconds / self.num_steps,
            "target_tokens_per_second": self.num_target_tokens / self.seconds,
            "target_tokens_per_step": self.num_target_tokens / self.num_steps,
            "padding_share": 1 - self.num_tokens / self.num_padded_tokens,
        }
