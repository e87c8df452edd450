"""Everything one optimizer update needs: model, optimizer, summed gradient and loss scale.

An update is forward and backward of this rank's virtual workers, one sum of gradients over all ranks, and one step of
AdamW (Adam where weight_decay is 0).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.heartbeat import beat
from dragoman.cluster.step_clock import Part, StepClock
from dragoman.cluster.world import World, wait_for_device
from dragoman.corpus.batching import (
    FIRST_POSITION,
    BatchPosition,
    BatchSettings,
    BatchStream,
    MicroBatch,
    StepPlan,
    pad_pairs,
)
from dragoman.corpus.mixture import Mixture
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.corpus.tokenizer import EOS_ID
from dragoman.model.device import is_accelerator, set_tf32
from dragoman.model.loss import LossSums
from dragoman.model.shape import resolve_shape
from dragoman.model.teacher_forcing import teacher_forced_loss
from dragoman.model.transformer import Transformer
from dragoman.run.config import ModelPart, Settings, TrainingSettings
from dragoman.training.adamw import AdamW
from dragoman.training.compiled import CompiledModel, FixedSizes
from dragoman.training.gradient_pass import GradientPass
from dragoman.training.step_result import StepResult
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

    def after(self, is_finite: bool) -> "LossScale":
        """Returns the scale that one more outcome would lead to."""
        scale = replace(self)
        scale.update(is_finite)
        return scale


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
    compiled: CompiledModel | None = None

    def __post_init__(self) -> None:
        device = self.gradients.flat.device
        self.passes = GradientPass(self.forward, self.gradients, self.clock, self.settings.seed)
        self.is_read_late = is_accelerator(device)
        """Whether the outcome of a step is read while the next one computes, so that a device never waits."""
        self._unread: StepResult | None = None

    def learn(self, step: int, batches: dict[int, MicroBatch], num_target_tokens: int) -> StepResult:
        """Collective: makes one update from the global batch; `batches` are those of this rank's virtual workers.

        Where the gradient is not finite, no weight is changed; the caller decides whether the run ends.
        """
        before = self._unread
        # fp16 gradients must be small from the start: a sum over thousands of tokens, scaled up, would overflow.
        gradient_scale = self._loss_scale_after(before) / num_target_tokens if self.loss_scale.is_dynamic else 1.0
        totals, summed = self._sum_gradients(step, batches, gradient_scale)
        self.clock.switch(Part.OPTIMIZER)
        divisor = num_target_tokens * gradient_scale
        norm = torch.linalg.vector_norm(summed).double() / divisor
        summed.mul_((self._clipping_factor(norm) / divisor).to(summed.dtype))
        result = StepResult(totals, norm, self.gradients.group.size > 1)
        beat("updating the weights")
        self.optimizer.found_inf = (~result.is_finite_on_device).float()
        self.optimizer.step()
        self._update_average(result, before)
        self.read_outcome()
        self._unread = result
        if not self.is_read_late:
            self.read_outcome()
        self.clock.switch(Part.OTHER)
        return result

    def try_batch(self, batches: dict[int, MicroBatch]) -> None:
        """Collective: computes gradients only to find out which size fits into memory; changes no weight."""
        self.optimizer.allocate()  # as it will be from the first update on
        self._sum_gradients(0, batches, 1.0)

    def read_outcome(self) -> None:
        """Waits for the last step whose outcome is not known yet, and adapts the loss scale to it."""
        if self._unread is None:
            return
        is_finite, self._unread = self._unread.is_finite, None
        self.loss_scale.update(is_finite)
        if not is_finite and self.is_read_late and isinstance(self.average, MovingAverage):
            self.average.take_back()

    def after_last_step(self, if_finite: float, if_not: float) -> float | Tensor:
        """Returns what follows from the outcome of the last step; on the device where that is not known yet."""
        return if_finite if self._unread is None else self._unread.choose(if_finite, if_not)

    def forward(self, batch: MicroBatch, gradient_scale: float | Tensor) -> LossSums:
        """Computes the loss of one micro-batch; its gradients come out `gradient_scale` times as large."""
        if self.compiled is not None:
            batch = self.compiled.sizes.pad(batch)
        with nullcontext() if self.compiled is None else self.compiled.used():
            return teacher_forced_loss(
                self.model, batch, self.settings.precision, self.settings.label_smoothing, gradient_scale
            )

    def _sum_gradients(
        self, step: int, batches: dict[int, MicroBatch], gradient_scale: float | Tensor
    ) -> tuple[LossSums, Tensor]:
        """Collective: returns the losses of this rank, and the sum of the gradients of all."""
        self.clock.switch(Part.FORWARD)
        self.gradients.start_step()
        totals = LossSums(*torch.zeros(2, device=self.gradients.flat.device))
        for part in self.gradients.contributions(batches):
            totals = self.passes.add(step, part, gradient_scale, totals)
        self.clock.switch(Part.WAITING)
        return totals, self.gradients.finish()

    def _loss_scale_after(self, before: StepResult | None) -> float | Tensor:
        if before is None:
            return self.loss_scale.value
        return before.choose(self.loss_scale.after(True).value, self.loss_scale.after(False).value)

    def _clipping_factor(self, norm: Tensor) -> Tensor:
        """Returns what shortens the averaged gradient to the largest norm allowed; 1 where it is short enough."""
        longest = self.settings.clip_norm
        return torch.where(norm > longest, longest / norm, 1.0) if longest > 0 else torch.ones_like(norm)

    def _update_average(self, result: StepResult, before: StepResult | None) -> None:
        if not isinstance(self.average, MovingAverage):
            return
        if self.is_read_late:
            self.average.update_if_finite(result, before)
        elif result.is_finite:
            self.average.update()


def build_learner(
    settings: Settings, corpus: PreparedCorpus, world: World, gradient_sum: Callable[..., GradientSum] = GradientSum
) -> Learner:
    """Builds a new model and its optimizer, the same on every rank because the seed is."""
    torch.manual_seed(settings.training.seed)
    set_tf32(settings.training.tf32)
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
        CompiledModel(model, _fixed_sizes(settings)) if settings.training.compile else None,
    )


def _fixed_sizes(settings: Settings) -> FixedSizes:
    batch_tokens = settings.training.global_batch_tokens // settings.training.virtual_workers
    return FixedSizes(batch_tokens, min(settings.data.max_tokens, batch_tokens))


def largest_batch(settings: Settings) -> MicroBatch:
    """Returns a batch that needs as much memory as any batch of the run: full, and of the longest sentences."""
    sizes = _fixed_sizes(settings)
    sentence = np.full(sizes.longest - 1, EOS_ID)
    num_pairs = max(1, sizes.batch_tokens // sizes.longest)
    return pad_pairs([sentence] * num_pairs, [sentence] * num_pairs)


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
        training.global_batch_tokens,
        training.virtual_workers,
        settings.data.max_tokens,
        training.seed,
        training.batch_growth,
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


def set_learning_rate(optimizer: AdamW, rate: float | Tensor) -> None:
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
    wait_for_device(learner.gradients.flat.device)
    begin = time.perf_counter()
    learner.forward(batch, learner.loss_scale.value).smoothed.backward()  # type: ignore[no-untyped-call]
    wait_for_device(learner.gradients.flat.device)
    return time.perf_counter() - begin
