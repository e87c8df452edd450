"""Builds what makes the updates of a run, by its way to synchronise: at every step, or by replicas that meet seldom."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.replica_exchange import ReplicaExchange
from dragoman.cluster.replica_gradient_sum import EncodedSum, HierarchicalSum, PowerSgdSum, ReplicaGradientSum
from dragoman.cluster.replica_layout import ReplicaLayout
from dragoman.cluster.step_clock import StepClock
from dragoman.cluster.world import World
from dragoman.corpus.batching import MicroBatch, StepPlan
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.diagnosis.learning_curve import RateOfStep
from dragoman.run.config import Settings
from dragoman.run.synchronisation import Synchronisation
from dragoman.training.learner import Learner, build_learner
from dragoman.training.local_updates import LocalUpdates
from dragoman.training.replica_guard import DevLoss
from dragoman.training.step_result import StepResult


class EveryStep:
    """Makes updates whose gradients are summed at every step: all ranks have the same weights."""

    def __init__(self, learner: Learner, plan: Synchronisation, exchange: ReplicaExchange | None = None) -> None:
        self._learner, self.plan, self._exchange = learner, plan, exchange
        gradients = learner.gradients
        self._sums = gradients if isinstance(gradients, ReplicaGradientSum) and gradients.residuals else None

    def learn(self, step: int, batches: dict[int, MicroBatch], plan: StepPlan) -> StepResult:
        """Collective: makes one update from the global batch."""
        return self._learner.learn(step, batches, plan.num_target_tokens)

    @contextmanager
    def agreed_weights(self) -> Iterator[None]:
        """Lets the model compute with the weights that all ranks have."""
        yield

    @property
    def is_saved_together(self) -> bool:
        """Whether ranks have state of their own, so that all must take part in saving it."""
        return self._sums is not None

    @property
    def bytes_per_step(self) -> float:
        """Bytes that a replica sends to one other at every step."""
        return float(self._learner.gradients.num_exchanged_bytes)

    def judge(self, _newest: DevLoss, _rate: RateOfStep) -> str | None:
        """Returns None: there are no replicas that could hurt each other."""
        return None

    @property
    def has_state(self) -> bool:
        """Whether a checkpoint of this moment holds tensors of replicas."""
        return self._sums is not None

    def facts(self) -> dict[str, Any]:
        """Returns what state.json keeps."""
        return {}

    def collect(self, savers: Sequence[int]) -> dict[str, Tensor]:
        """Collective: returns, on ranks that save, what each replica has not sent yet."""
        sums, exchange = self._sums, self._exchange
        if sums is None or exchange is None:
            return {}
        found = {"factors": sums.factors} if isinstance(sums, PowerSgdSum) else {}
        for replica in range(exchange.layout.num_replicas):
            residual = exchange.send_to(savers, replica, sums.residuals.get(replica), sums.flat)
            if residual is not None:
                found[f"residual/{replica}"] = residual
        return found

    def agreed_tensors(self, _collected: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns nothing: the weights and moments of this rank are those of all ranks."""
        return {}, {}

    def expected_tensors(self, _facts: Mapping[str, Any]) -> dict[str, Tensor]:
        """Returns tensors of the names, shapes and types that a checkpoint must hold."""
        sums = self._sums
        if sums is None:
            return {}
        expected = {"factors": sums.factors} if isinstance(sums, PowerSgdSum) else {}
        return expected | {f"residual/{replica}": sums.flat for replica in range(self.plan.replicas)}

    def restore(self, _facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Continues from what `collect` returned."""
        if self._sums is None or not tensors:
            return
        for replica, residual in self._sums.residuals.items():
            residual.copy_(tensors[f"residual/{replica}"])
        if isinstance(self._sums, PowerSgdSum):
            self._sums.factors = tensors["factors"].to(self._sums.flat.device)


Updates = EveryStep | LocalUpdates


def build_updates(
    settings: Settings,
    plan: Synchronisation,
    corpus: PreparedCorpus,
    world: World,
    rate_share: Callable[[], float],
) -> tuple[Learner, Updates]:
    """Collective: builds the learner of a run and what makes its updates."""
    num_workers = settings.training.virtual_workers
    if plan.strategy == "every_step":
        learner = build_learner(settings, corpus, world)
        return learner, EveryStep(learner, plan)
    if plan.strategy == "hierarchical":
        layout = ReplicaLayout.of_machines(num_workers, world)
    else:
        layout = ReplicaLayout.of_run(num_workers, plan.replicas, world.size)
    exchange = ReplicaExchange(layout, world)
    if plan.is_local:
        learner = build_learner(settings, corpus, world)
        return learner, LocalUpdates(learner, plan, exchange, world, rate_share)

    def build_sum(parameters: Iterable[nn.Parameter], world: World, clock: StepClock) -> GradientSum:
        match plan.strategy:
            case "hierarchical":
                return HierarchicalSum(parameters, world, exchange, clock=clock)
            case "powersgd":
                return PowerSgdSum(parameters, world, exchange, plan.powersgd_rank, clock=clock)
            case _:
                return EncodedSum(parameters, world, exchange, plan.wire, clock=clock)

    learner = build_learner(settings, corpus, world, build_sum)
    return learner, EveryStep(learner, plan, exchange)
