"""One step: forward and backward of this rank's virtual workers, one common gradient, one update."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.heartbeat import beat
from dragoman.cluster.part_clock import Part, PartClock
from dragoman.corpus.batching import MicroBatch
from dragoman.model.loss import LossSums
from dragoman.model.teacher_forcing import teacher_forced_loss
from dragoman.model.transformer import Transformer
from dragoman.run.config import TrainingSettings
from dragoman.training.guard import LossScale


@dataclass(frozen=True)
class StepResult:
    """What one step left to report."""

    loss_sums: LossSums
    """Over this rank's target tokens only; still on the device."""
    gradient_norm: float
    """Of the mean loss over the global batch, before clipping; the same on every rank."""

    @property
    def is_finite(self) -> bool:
        """Whether the gradient could be used."""
        return math.isfinite(self.gradient_norm)


@dataclass
class Learner:
    """Everything one update touches."""

    model: Transformer
    optimizer: torch.optim.Optimizer
    gradients: GradientSum
    loss_scale: LossScale
    settings: TrainingSettings
    clock: PartClock = field(default_factory=lambda: PartClock(is_on=False))

    def learn(self, step: int, batches: dict[int, MicroBatch], num_target_tokens: int) -> StepResult:
        """Collective: one update from the global batch, of which `batches` are this rank's virtual workers.

        Where the gradient is not finite no weight is touched; the caller decides what that means for the run.
        """
        self.clock.switch(Part.FORWARD)
        self.gradients.start_step()
        # fp16 gradients must be born small: a sum over thousands of tokens, scaled up, would overflow at once.
        birth_scale = self.loss_scale.value / num_target_tokens if self.loss_scale.is_dynamic else 1.0
        totals = LossSums(*torch.zeros(2, device=self.gradients.flat.device))
        for index, (virtual_worker, batch) in enumerate(batches.items(), start=1):
            beat("computing a gradient")
            self.clock.switch(Part.FORWARD)
            if index == len(batches):
                self.gradients.expect_last_backward()
            # Dropout depends on the virtual worker, not on the rank that happens to compute it.
            torch.manual_seed(virtual_worker_seed(self.settings.seed, step, virtual_worker))
            sums = teacher_forced_loss(
                self.model, batch, self.settings.precision, self.settings.label_smoothing, birth_scale
            )
            self.clock.switch(Part.BACKWARD)
            sums.smoothed.backward()  # type: ignore[no-untyped-call]
            totals = LossSums(totals.smoothed + sums.smoothed.detach(), totals.plain + sums.plain)
        self.clock.switch(Part.WAITING)
        summed = self.gradients.finish()
        self.clock.switch(Part.OPTIMIZER)
        result = StepResult(totals, self._average_and_clip(summed, num_target_tokens * birth_scale))
        beat("updating the weights")
        if result.is_finite:
            self.optimizer.step()
        self.loss_scale.update(result.is_finite)
        self.clock.switch(Part.OTHER)
        return result

    def _average_and_clip(self, summed: Tensor, divisor: float) -> float:
        """Turns the summed gradient into the mean's, no longer than allowed, in one pass; returns its norm before."""
        norm = float(torch.linalg.vector_norm(summed)) / divisor  # waits for the device: the NaN guard needs it
        too_long = self.settings.clip_norm > 0 and norm > self.settings.clip_norm
        summed.mul_((self.settings.clip_norm / norm if too_long else 1.0) / divisor)
        return norm


def virtual_worker_seed(seed: int, step: int, virtual_worker: int) -> int:
    """A seed of its own for every virtual worker of every step."""
    return int(np.random.SeedSequence([seed, step, virtual_worker]).generate_state(1, np.uint64)[0] >> np.uint64(1))
