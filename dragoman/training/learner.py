"""Everything one optimizer update needs: model, optimizer, summed gradient and loss scale.

An update is forward and backward of this rank's virtual workers, one sum of gradients over all ranks, and one step of
AdamW (Adam where weight_decay is 0).
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.heartbeat import beat
from dragoman.cluster.step_clock import Part, StepClock
from dragoman.cluster.world import World
from dragoman.corpus.batching import FIRST_POSITION, BatchPosition, BatchSettings, BatchStream, MicroBatch, StepPlan
from dragoman.corpus.mixture import Mixture
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.model.loss import LossSums
from dragoman.model.shape import resolve_shape
from dragoman.model.teacher_forcing import teacher_forced_loss
from dragoman.model.transformer import Transformer
from dragoman.run.config import ModelPart, Settings, TrainingSettings
from dragoman.training.adamw import AdamW
from dragoman.training.weight_average import MovingAverage, WeightAverage

_FIRST_LOSS_SCALE = 2.0**14
_GOOD_STEPS_TO_DOUBLE = 2_000
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class LossScale:
    """Halves when gradients overflow, doubles after 2,000 good steps; stays at 1 unless training in fp16."""

    is_dynamic: bool
    value: float = 1.0
    num_good_steps: int = 0
    num_skipped_steps: int = 0

    @classmethod
    def start(cls, precision: str) -> "LossScale":
        """Returns the scale of a run's first step."""
        return cls(is_dynamic=True, value=_FIRST_LOSS_SCALE) if precision == "fp16" else cls(is_dynamic=False)

    def update(self, is_finite: bool) -> None:
        """Adapts the scale to the outcome of one step."""
        if not self.is_dynamic:
            return
        if not is_finite:
            self.value /= 2
            self.num_good_steps = 0
            self.num_skipped_steps += 1
            return
        self.num_good_steps += 1
        if self.num_good_steps == _GOOD_STEPS_TO_DOUBLE:
            self.value *= 2
            self.num_good_steps = 0


@dataclass(frozen=True)
class StepResult:
    """Loss and gradient norm of one step."""

    loss_sums: LossSums
    """Sums over this rank's target tokens only; still on the device."""
    gradient_norm: float
    """Norm of the gradient of the mean loss over the global batch, before clipping; the same on every rank. Where
    replicas learn apart, the mean over this rank's replicas."""
    own_loss: float
    """The smoothed loss in `loss_sums`, as a number."""

    @property
    def is_finite(self) -> bool:
        """Whether the gradient could be used."""
        return math.isfinite(self.gradient_norm)


@dataclass
class Learner:
    """Everything one update reads and changes."""

    model: Transformer
    optimizer: AdamW
    gradients: GradientSum
    loss_scale: LossScale
    settings: TrainingSettings
    clock: StepClock = field(default_factory=lambda: StepClock(is_on=False))
    average: WeightAverage | None = None
    """An average of the weights that a translator may use instead."""

    def learn(self, step: int, batches: dict[int, MicroBatch], num_target_tokens: int) -> StepResult:
        """Collective: makes one update from the global batch; `batches` are those of this rank's virtual workers.

        Where the gradient is not finite, no weight is changed; the caller decides whether the run ends.
        """
        self.clock.switch(Part.FORWARD)
        self.gradients.start_step()
        # fp16 gradients must be small from the start: a sum over thousands of tokens, scaled up, would overflow.
        gradient_scale = self.loss_scale.value / num_target_tokens if self.loss_scale.is_dynamic else 1.0
        totals = LossSums(*torch.zeros(2, device=self.gradients.flat.device))
        for part in self.gradients.contributions(batches):
            for index, (virtual_worker, batch) in enumerate(part.items(), start=1):
                beat("computing a gradient")
                self.clock.switch(Part.FORWARD)
                if index == len(part):
                    self.gradients.expect_last_backward()
                # Dropout depends on the virtual worker, not on the rank that computes it.
                torch.manual_seed(virtual_worker_seed(self.settings.seed, step, virtual_worker))
                sums = self.forward(batch, gradient_scale)
                self.clock.switch(Part.BACKWARD)
                sums.smoothed.backward()  # type: ignore[no-untyped-call]
                totals = LossSums(totals.smoothed + sums.smoothed.detach(), totals.plain + sums.plain)
        self.clock.switch(Part.WAITING)
        summed = self.gradients.finish()
        self.clock.switch(Part.OPTIMIZER)
        # Both in one transfer, which waits for the device: the NaN guard needs the norm.
        norm, own_loss = torch.stack([torch.linalg.vector_norm(summed), totals.smoothed]).tolist()
        divisor = num_target_tokens * gradient_scale
        self._average_and_clip(summed, norm / divisor, divisor)
        result = StepResult(totals, norm / divisor, own_loss)
        beat("updating the weights")
        if result.is_finite:
            self.optimizer.step()
            if isinstance(self.average, MovingAverage):
                self.average.update()
        self.loss_scale.update(result.is_finite)
        self.clock.switch(Part.OTHER)
        return result

    def forward(self, batch: MicroBatch, gradient_scale: float) -> LossSums:
        """Computes the loss of one micro-batch; its gradients come out `gradient_scale` times as large."""
        return teacher_forced_loss(
            self.model, batch, self.settings.precision, self.settings.label_smoothing, gradient_scale
        )

    def _average_and_clip(self, summed: Tensor, norm: float, divisor: float) -> None:
        """Divides the summed gradient and, in the same pass, clips the norm it has then."""
        too_long = self.settings.clip_norm > 0 and norm > self.settings.clip_norm
        summed.mul_((self.settings.clip_norm / norm if too_long else 1.0) / divisor)


def virtual_worker_seed(seed: int, step: int, virtual_worker: int) -> int:
    """Derives a seed that no other virtual worker or step has."""
    return int(np.random.SeedSequence([seed, step, virtual_worker]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def build_learner(
    settings: Settings, corpus: PreparedCorpus, world: World, gradient_sum: Callable[..., GradientSum] = GradientSum
) -> Learner:
    """Builds a new model and its optimizer, the same on every rank because the seed is."""
    torch.manual_seed(settings.training.seed)
    vocab_sizes = corpus.source_tokenizer.vocab_size, corpus.target_tokenizer.vocab_size
    model = Transformer(resolve_shape(settings.model, *vocab_sizes, corpus.is_joint)).to(world.device)
    freeze(model, settings.training.freeze)
    clock = StepClock(world.device, settings.monitoring.attribution)
    decay = settings.checkpoints.ema_decay
    return Learner(
        model,
        build_optimizer(model, settings.training),
        gradient_sum(trained_parameters(model).values(), world, clock=clock),
        LossScale.start(settings.training.precision),
        settings.training,
        clock,
        MovingAverage(model, decay) if decay else None,
    )


def freeze(model: nn.Module, parts: Sequence[ModelPart]) -> None:
    """Switches off the gradients of some parts; what belongs to neither encoder nor decoder are embeddings."""
    for name, parameter in model.named_parameters():
        first = name.partition(".")[0]
        part = first if first in ("encoder", "decoder") else "embeddings"
        parameter.requires_grad_(part not in parts)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that training changes, by name: all but the frozen ones."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def build_stream(
    settings: Settings, corpus: PreparedCorpus, mixture: Mixture, position: BatchPosition = FIRST_POSITION
) -> BatchStream:
    """Builds the run's sequence of batches, starting at a position: the same on every rank."""
    training = settings.training
    batch_settings = BatchSettings(
        training.global_batch_tokens, training.virtual_workers, settings.data.max_tokens, training.seed
    )
    return BatchStream(corpus.split("train"), corpus.train_length_counts, mixture, batch_settings, position)


def read_micro_batches(stream: BatchStream, plan: StepPlan, share: Iterable[int]) -> dict[int, MicroBatch]:
    """Reads the micro-batches of a rank's share of the virtual workers; those without sentences are left out."""
    return {v: stream.micro_batch(plan.micro_batches[v]) for v in share if len(plan.micro_batches[v])}


# The optimizer and its state as named tensors


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> AdamW:
    """Builds AdamW with weight decay for matrices only: decaying norms and biases has no use."""
    parameters = trained_parameters(model).values()
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters if parameter.dim() <= 1]
    return AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay, "lr": 0.0},
            {"params": vectors, "weight_decay": 0.0, "lr": 0.0},
        ],
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
    )


def set_learning_rate(optimizer: AdamW, rate: float) -> None:
    """Sets the learning rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Returns both moments of every trained parameter, as `moment/parameter`; empty before the first update."""
    return {
        f"{moment}/{name}": optimizer.state[parameter][moment]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for moment in MOMENTS
    }


def parameters_by_moment(model: nn.Module) -> dict[str, Tensor]:
    """Returns the parameter that each moment belongs to; they have the same shape and number type."""
    return {f"{moment}/{name}": each for name, each in trained_parameters(model).items() for moment in MOMENTS}


def empty_moments(model: nn.Module) -> dict[str, Tensor]:
    """Returns zeros in the form that `optimizer_tensors` has after an update."""
    return {name: torch.zeros_like(parameter) for name, parameter in parameters_by_moment(model).items()}


def restore_optimizer(model: nn.Module, optimizer: AdamW, tensors: dict[str, Tensor], num_updates: int) -> None:
    """Restores the result of `optimizer_tensors`."""
    if num_updates == 0:
        return
    for name, parameter in trained_parameters(model).items():
        moments = {moment: tensors[f"{moment}/{name}"].to(parameter.device) for moment in MOMENTS}
        optimizer.state[parameter] = {"step": torch.tensor(float(num_updates), device=parameter.device), **moments}


# The fixed cost of a batch

NUM_ROUNDS = 2
QUARTER = 4
_LARGEST_RATIO = 0.75


def measure_fixed_share(learner: Learner, batch: MicroBatch) -> float:
    """Measures the share of forward and backward that does not depend on the number of tokens.

    Times the batch and a quarter of it: if all time were spent on tokens, a quarter would take a quarter of the time.
    Weights do not change.
    """
    quarter = _quarter(batch)
    ratio = (quarter.source.size + quarter.target_input.size) / (batch.source.size + batch.target_input.size)
    if ratio > _LARGEST_RATIO:
        return 1.0  # a few tokens, which cannot be cut: no batch is smaller
    rounds = [(_time_batch(learner, batch), _time_batch(learner, quarter)) for _ in range(NUM_ROUNDS)]
    whole_seconds, quarter_seconds = (min(seconds) for seconds in zip(*rounds, strict=True))
    fixed_seconds = (quarter_seconds - ratio * whole_seconds) / (1 - ratio)
    return float(min(1.0, max(0.0, fixed_seconds / whole_seconds)))


def _quarter(batch: MicroBatch) -> MicroBatch:
    """Returns a quarter of the pairs, or of the positions where there are only a few long pairs."""
    num_pairs, num_source = batch.source.shape
    num_target = batch.target_input.shape[1]
    if num_pairs >= QUARTER:
        num_pairs //= QUARTER
    else:
        num_source, num_target = max(1, num_source // QUARTER), max(1, num_target // QUARTER)
    return MicroBatch(
        batch.source[:num_pairs, :num_source],
        np.minimum(batch.source_lengths[:num_pairs], num_source),
        batch.target_input[:num_pairs, :num_target],
        batch.target_output[:num_pairs, :num_target],
    )


def _time_batch(learner: Learner, batch: MicroBatch) -> float:
    """Times one forward and backward; the next step clears its gradient."""
    _wait_for_device(learner)
    begin = time.perf_counter()
    learner.forward(batch, learner.loss_scale.value).smoothed.backward()  # type: ignore[no-untyped-call]
    _wait_for_device(learner)
    return time.perf_counter() - begin


def _wait_for_device(learner: Learner) -> None:
    if learner.gradients.flat.is_cuda:
        torch.cuda.synchronize()
