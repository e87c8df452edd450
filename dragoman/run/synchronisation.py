"""How the workers of a run agree on weights: the settings of one run, complete, as its checkpoints keep them.

The number of replicas belongs to the run, as virtual workers do: it is decided once, when the run starts.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from dragoman.run.config import Settings, SynchronisationSettings, TrainingSettings
from dragoman.run.errors import UsageError

EXACT = ("every_step", "hierarchical")
"""Strategies whose sums differ only in the order of additions."""
LOCAL = ("local", "diloco")
_SHARE_TOGETHER = 0.1


@dataclass(frozen=True)
class Synchronisation:
    """A strategy with everything it needs."""

    strategy: str = "every_step"
    replicas: int = 1
    interval: int = 1
    max_interval: int = 1
    together_steps: int = 0
    wire: str = "fp32"
    fragments: int = 1
    overlap: bool = False
    rate_factor: float = 1.0
    """Factor on the learning rate while replicas learn apart."""
    powersgd_rank: int = 8
    outer_learning_rate: float = 1.0
    outer_momentum: float = 0.0
    guard: bool = True
    reason: str = ""
    """Why `auto` chose it; empty where a person did."""

    @property
    def is_local(self) -> bool:
        """Whether replicas update weights by themselves."""
        return self.strategy in LOCAL

    @property
    def is_streamed(self) -> bool:
        """Whether a part of the weights is sent after every step and arrives while the next one computes."""
        return self.is_local and self.overlap and self.fragments == self.interval == self.max_interval

    @property
    def checkpoint_values(self) -> float:
        """Numbers that a checkpoint holds for each parameter besides weight and moments, where replicas differ."""
        residual = self.strategy == "powersgd" or self.wire in ("int8", "int4")
        if not self.is_local:
            return self.replicas * residual
        travelling = (self.replicas + 1) / self.fragments if self.overlap else 0.0
        anchor, weight_and_moments = 1, 3
        return anchor + bool(self.outer_momentum) + travelling + self.replicas * (weight_and_moments + residual)

    def steps_apart(self, rate_share: float) -> int:
        """Steps between two averages, where the learning rate is this share of its peak."""
        wanted = self.interval / max(rate_share, 1e-6) ** 2
        return int(min(self.max_interval, max(self.interval, wanted)))

    def describe(self) -> str:
        """Says in a few words what happens."""
        match self.strategy:
            case "every_step":
                return "gradients are summed exactly at every step"
            case "hierarchical":
                return "gradients are summed exactly at every step, inside each machine first"
            case "powersgd":
                return f"gradients are summed at every step as factors of rank {self.powersgd_rank}"
            case "local" | "diloco":
                momentum = " with momentum" if self.strategy == "diloco" else ""
                hidden = ", while the next steps compute" if self.overlap else ""
                if self.is_streamed and self.interval > 1:
                    hidden = ", a part after each step, which travels while the next one computes"
                return f"{self.replicas} replicas average their weights{momentum} {self.how_often}{hidden}"
            case _:
                return f"gradients are summed at every step as {self.strategy}"

    @property
    def how_often(self) -> str:
        """Says when weights are averaged: "every 16 steps"."""
        if self.max_interval == 1:
            return "at every step"
        is_constant = self.interval == self.max_interval
        return f"every {self.interval if is_constant else f'{self.interval} to {self.max_interval}'} steps"

    def to_json(self) -> dict[str, Any]:
        """Returns the values for state.json and metrics.jsonl."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads the result of `to_json`; raises on anything else."""
        return cls(**values)


def resolve_synchronisation(settings: Settings, num_machines: int) -> Synchronisation:
    """Completes the settings of a run, once its machines are known; `auto` needs no measurement on one machine."""
    own, training = settings.synchronisation, settings.training
    if own.strategy == "auto":
        return Synchronisation(reason="All workers are on one machine, so exact sums wait for no network.")
    if own.strategy in EXACT:
        return Synchronisation(own.strategy)
    replicas = own.replicas or default_replicas(training, num_machines)
    if replicas == 1:
        return Synchronisation(
            reason=f"{own.strategy} needs at least two replicas, and this run has one, because it has one machine or "
            "because no number of machines divides its virtual workers; synchronisation.replicas sets another number."
        )
    if own.strategy not in LOCAL:
        return Synchronisation(own.strategy, replicas, wire=own.strategy, powersgd_rank=own.powersgd_rank)
    is_diloco = own.strategy == "diloco"
    return Synchronisation(
        own.strategy,
        replicas,
        own.interval,
        own.max_interval,
        steps_together(own, training),
        own.wire,
        own.fragments,
        own.overlap,
        rate_factor=local_rate_factor(own, replicas),
        outer_learning_rate=own.outer_learning_rate if is_diloco else 1.0,
        outer_momentum=own.outer_momentum if is_diloco else 0.0,
        guard=own.guard,
    )


def local_rate_factor(own: SynchronisationSettings, replicas: int) -> float:
    """Returns the factor on the learning rate while replicas learn apart.

    Where gradients are mostly noise, Adam divides the gradient of a batch that is R times as small by a number that is
    √R times as large. With √R times the rate, the mean of R replicas moves as far as one model would from all text.
    """
    return own.rate_factor or replicas**0.5


def default_replicas(training: TrainingSettings, num_machines: int) -> int:
    """Returns one replica per machine, or the next smaller number that divides the virtual workers."""
    return next(number for number in range(num_machines, 0, -1) if training.virtual_workers % number == 0)


def steps_together(own: SynchronisationSettings, training: TrainingSettings) -> int:
    """Returns the number of first steps that exchange gradients exactly."""
    if own.together_steps is not None:
        return own.together_steps
    return min(training.warmup_steps, int(_SHARE_TOGETHER * training.max_steps))


def require_possible(settings: Settings) -> None:
    """Refuses settings of [synchronisation] that do not fit the rest; called before the first step."""
    own, training = settings.synchronisation, settings.training
    if own.strategy in EXACT:
        return
    if own.replicas > training.virtual_workers:
        raise UsageError(
            f"synchronisation.replicas {own.replicas} is more than training.virtual_workers "
            f"{training.virtual_workers}: each replica needs at least one. Lower it, or raise virtual_workers."
        )
    if own.replicas and training.virtual_workers % own.replicas:
        raise UsageError(
            f"synchronisation.replicas {own.replicas} must divide training.virtual_workers "
            f"{training.virtual_workers}, so that every replica learns from as much text."
        )
    if own.strategy not in ("fp16", "bf16") and training.precision == "fp16":
        raise UsageError(
            f"synchronisation.strategy {own.strategy} cannot be used with training.precision fp16, whose loss scale "
            "all workers must share at every step, and which would change what was not sent yet: use bf16 or fp32."
        )
    if own.strategy in (*LOCAL, "auto") and settings.checkpoints.ema_decay:
        raise UsageError(
            f"synchronisation.strategy {own.strategy} cannot be used with checkpoints.ema_decay, because replicas have "
            'different weights between averages: use checkpoints.average = "last:5" instead.'
        )


def is_allowed(strategy: str, settings: Settings) -> bool:
    """Whether a run with the other settings could use a strategy."""
    own = settings.synchronisation.model_copy(update={"strategy": strategy})
    try:
        require_possible(settings.model_copy(update={"synchronisation": own}))
    except UsageError:
        return False
    return True
