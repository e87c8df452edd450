"""Replicas that learn by themselves for some steps and then average their weights, so that they need little network.

A run begins together, with exact sums of gradients. Then each replica updates weights of its own. Every few steps, a
fragment of the weights is averaged: each replica sends how far it has moved from the weights that all agreed on last
(the anchor), and the mean of these differences moves the anchor. An exchange may travel while the next steps compute:
then each replica keeps what it has learned meanwhile, and goes a part of the way to the mean.

What follows depends on the step and on the run's settings alone, never on which rank computes for which replica.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.replica_exchange import PendingPayloads, ReplicaExchange
from dragoman.cluster.replica_gradient_sum import sum_payloads
from dragoman.cluster.step_clock import Part
from dragoman.cluster.wire_formats import BLOCK, wire_format
from dragoman.cluster.world import World
from dragoman.corpus.batching import MicroBatch, StepPlan
from dragoman.diagnosis.learning_curve import RateOfStep
from dragoman.run.synchronisation import Synchronisation
from dragoman.training.learner import MOMENTS, Learner, trained_parameters
from dragoman.training.replica_guard import DevLoss, find_harm
from dragoman.training.step_result import StepResult

_LOST_BY_DELAY = 0.5
"""Share of its distance to the mean that a replica keeps where an average arrives a whole interval late.

Where the loss is steep, each replica has gone much of that way by itself in the meantime: the whole of it would throw
replicas as far to the other side, and they swing there instead of learning. With the weights in several fragments, an
average is late by a part of the interval only: what a replica keeps falls with the square of that part.
"""
_STEP_BACK_FACTOR = 4
_SHORTEST_INTERVAL = 2
"""Where a shorter interval would be needed, replicas come together for good."""


@dataclass
class Replica:
    """Weights and moments of one replica, each as one flat tensor in the layout of the gradients."""

    weights: Tensor
    moments: dict[str, Tensor]
    num_updates: int
    residual: Tensor | None = None
    """What a lossy wire format has not sent yet."""
    sent: Tensor | None = None
    """The difference that this replica has sent and that is on its way."""

    def tensors(self) -> dict[str, Tensor]:
        """Returns everything that a checkpoint must hold, by name."""
        named = {"weights": self.weights, **self.moments, "residual": self.residual, "sent": self.sent}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


@dataclass
class ExchangeProgress:
    """Where the replicas are in their sequence of exchanges, as state.json keeps it."""

    is_apart: bool = False
    next_start: int = 0
    """Step after which the next exchange begins."""
    fragment: int = 0
    """Fragment that is exchanged next, or is on its way."""
    is_travelling: bool = False
    num_steps_back: int = 0
    """How often the guard has shortened the interval."""
    is_together_for_good: bool = False
    num_updates: list[int] = field(default_factory=list)
    """Updates of each replica while apart."""
    dev_losses: list[DevLoss] = field(default_factory=list)
    """Evaluations so far, by which the guard judges the next one."""


class LocalUpdates:
    """Makes the updates of a run whose replicas meet every few steps."""

    def __init__(
        self,
        learner: Learner,
        plan: Synchronisation,
        exchange: ReplicaExchange,
        world: World,
        rate_share: Callable[[], float],
    ) -> None:
        """`rate_share` is the learning rate of the next update as a share of its peak."""
        self._learner, self.plan, self._exchange, self._world = learner, plan, exchange, world
        self._rate_share = rate_share
        self._format = wire_format(plan.wire)
        self._parameters = list(trained_parameters(learner.model).values())
        self._views = _views_of_gradients(self._parameters, learner.gradients)
        self.progress = ExchangeProgress()
        self._own: dict[int, Replica] = {}
        self._anchor = self._momentum = torch.empty(0)
        self._pending: PendingPayloads | Tensor | None = None
        """The exchange on its way, or its result where a checkpoint had to wait for it."""

    is_saved_together = True
    """Whether ranks have state of their own, so that all must take part in saving it."""

    @property
    def bytes_per_step(self) -> float:
        """Bytes that a replica sends to one other, mean over the steps between two averages."""
        if not self.progress.is_apart:
            return float(self._learner.gradients.flat.nbytes)
        return self._format.num_bytes(self._learner.gradients.flat.numel()) / self.interval

    @property
    def _fragments(self) -> list[slice]:
        """The parts of the weights that are averaged in turn."""
        return self._cut(self.progress.num_steps_back)

    def _cut(self, num_steps_back: int) -> list[slice]:
        """Cuts the weights into fragments, fewer after the guard has shortened the interval: all must fit into it."""
        num_values = self._learner.gradients.flat.numel()
        num_blocks = -(-num_values // BLOCK)
        num_fragments = min(_stepped_back(self.plan.fragments, num_steps_back), num_blocks)
        cuts = [index * num_blocks // num_fragments * BLOCK for index in range(num_fragments)]
        return [slice(begin, end) for begin, end in zip(cuts, [*cuts[1:], num_values], strict=True)]

    # One step

    def learn(self, step: int, batches: dict[int, MicroBatch], plan: StepPlan) -> StepResult:
        """Collective: makes one update of every replica, and the exchange that is due after it."""
        if not self.progress.is_apart and (step < self.plan.together_steps or self.progress.is_together_for_good):
            return self._learner.learn(step, batches, plan.num_target_tokens)
        if not self.progress.is_apart:
            self._part(step)
        for group in self._learner.optimizer.param_groups:
            group["lr"] *= self.plan.rate_factor
        results = [self._learn_replica(index, step, batches, plan) for index in self._own]
        self._exchange_if_due(step + 1)
        made = [result for result in results if result is not None]
        return StepResult.join(made, self._learner.gradients.flat.device)

    def _learn_replica(
        self, index: int, step: int, batches: dict[int, MicroBatch], plan: StepPlan
    ) -> StepResult | None:
        """Collective among the ranks of a replica: makes its update; None where the step has no text for it."""
        workers = self._exchange.layout.virtual_workers[index]
        num_target_tokens = sum(plan.target_tokens_by_worker[worker] for worker in workers)
        if not num_target_tokens:
            return None
        replica = self._own[index]
        self._use(replica)
        self._learner.gradients.group = self._exchange.groups[index]
        own = {worker: batches[worker] for worker in workers if worker in batches}
        result = self._learner.learn(step, own, num_target_tokens)
        replica.num_updates += 1  # a run whose replicas learn apart ends where a gradient is not finite
        return result

    def _part(self, step: int) -> None:
        """Gives every replica a copy of the weights and moments that all have."""
        self._anchor = self._flatten([parameter.data for parameter in self._parameters])
        moments = {name: self._flatten(self._moments(name)) for name in MOMENTS}
        self._momentum = torch.zeros_like(self._anchor) if self.plan.outer_momentum else torch.empty(0)
        state = self._learner.optimizer.state
        num_updates = int(state[self._parameters[0]]["step"]) if self._parameters[0] in state else 0
        for index in self._exchange.own:
            own_moments = {name: each.clone() for name, each in moments.items()}
            self._own[index] = Replica(self._anchor.clone(), own_moments, num_updates, self._new_residual())
        self.progress = replace(self.progress, is_apart=True, next_start=step + self._steps_to_next(), fragment=0)

    def _new_residual(self) -> Tensor | None:
        return torch.zeros_like(self._anchor) if self._format.loses_much else None

    def _moments(self, name: str) -> list[Tensor]:
        state = self._learner.optimizer.state
        return [state[each][name] if each in state else torch.zeros_like(each) for each in self._parameters]

    def _flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        flat = torch.zeros_like(self._learner.gradients.flat)
        for view, tensor in zip(self._views(flat), tensors, strict=True):
            view.copy_(tensor)
        return flat

    def _use(self, replica: Replica) -> None:
        """Lets model and optimizer work on the tensors of a replica, without a copy."""
        self._use_weights(replica.weights)
        moments = {name: self._views(replica.moments[name]) for name in MOMENTS}
        count = torch.tensor(float(replica.num_updates), device=replica.weights.device)
        for place, parameter in enumerate(self._parameters):
            state = {name: views[place] for name, views in moments.items()}
            self._learner.optimizer.state[parameter] = {"step": count.clone(), **state}

    def _use_weights(self, flat: Tensor) -> None:
        for parameter, view in zip(self._parameters, self._views(flat), strict=True):
            parameter.data = view

    # Exchanges

    @property
    def interval(self) -> int:
        """Steps between two averages now, shortened where the guard asked for it."""
        return _stepped_back(self.plan.steps_apart(self._rate_share()), self.progress.num_steps_back)

    def _steps_to_next(self) -> int:
        return max(1, self.interval // len(self._fragments))

    def _exchange_if_due(self, step: int) -> None:
        if step < self.progress.next_start:
            return
        clock = self._learner.clock
        clock.switch(Part.WAITING)
        self._finish_exchange()
        self._start_exchange()
        if not self.plan.overlap:
            self._finish_exchange()
        self.progress.next_start = step + self._steps_to_next()
        clock.switch(Part.OTHER)

    def _start_exchange(self) -> None:
        """Collective: sends how far each own replica has moved, in one fragment of the weights."""
        part = self._fragments[self.progress.fragment]
        payloads = {}
        for index, replica in self._own.items():
            replica.sent = replica.weights[part] - self._anchor[part]
            residual = replica.residual[part] if replica.residual is not None else None
            payloads[index] = self._format.encode(replica.sent, residual)
        self._pending = self._exchange.start(payloads, is_hidden=self.plan.overlap)
        self.progress.is_travelling = True

    def _arrived(self) -> Tensor | None:
        """Collective: waits for the exchange on its way; returns the mean difference, None where there is none."""
        if isinstance(self._pending, PendingPayloads):
            part = self._fragments[self.progress.fragment]
            total = sum_payloads(self._format, self._pending.wait(), part.stop - part.start)
            self._pending = total.div_(self._exchange.layout.num_replicas)
        return self._pending

    def _finish_exchange(self) -> None:
        """Collective: moves the anchor by the mean difference, and every own replica with it."""
        mean = self._arrived()
        if mean is None:
            return
        part = self._fragments[self.progress.fragment]
        step = self._outer_step(mean, part)
        anchor, share = self._anchor[part], 1 - _LOST_BY_DELAY / len(self._fragments) ** 2
        for replica in self._own.values():
            assert replica.sent is not None
            if self.plan.overlap:
                # Keeps what it has learned since it sent.
                replica.weights[part].add_(mean, alpha=share).sub_(replica.sent, alpha=share)
                if step is not mean:
                    replica.weights[part] += step - mean
            else:
                replica.weights[part] = anchor + step
            replica.sent = None
        anchor += step
        self._pending = None
        self.progress.is_travelling = False
        self.progress.fragment = (self.progress.fragment + 1) % len(self._fragments)

    def _outer_step(self, mean: Tensor, part: slice) -> Tensor:
        """Returns how far the anchor moves: the mean itself, or Nesterov's momentum over such means."""
        if not self.plan.outer_momentum:
            return mean if self.plan.outer_learning_rate == 1 else mean * self.plan.outer_learning_rate
        momentum = self._momentum[part].mul_(self.plan.outer_momentum).add_(mean)
        return self.plan.outer_learning_rate * (mean + self.plan.outer_momentum * momentum)

    # Weights that all agree on

    @contextmanager
    def agreed_weights(self) -> Iterator[None]:
        """Collective: lets the model compute with the mean of all replicas until the block ends."""
        if not self.progress.is_apart:
            yield
            return
        self._use_weights(self._mean(lambda replica: replica.weights))
        try:
            yield
        finally:
            self._use(next(iter(self._own.values())))

    def _mean(self, tensor_of: Callable[[Replica], Tensor]) -> Tensor:
        total = self._exchange.sum_exactly({index: tensor_of(each) for index, each in self._own.items()})
        return total.div_(self._exchange.layout.num_replicas)

    def judge(self, newest: DevLoss, rate: RateOfStep) -> str | None:
        """Collective: steps back where the replicas hurt each other, and says so; None where they do not.

        The first rank decides: others may round the expected loss differently, and all must step back together.
        """
        is_judged = self.plan.guard and self.progress.is_apart and self._world.is_first
        harm = find_harm(self.progress.dev_losses, newest, rate) if is_judged else None
        self.progress.dev_losses.append(newest)
        if (agreed := self._world.first_error(harm)) is None:
            return None
        what_follows = self.step_back()
        # The next average was planned at the longer interval.
        self.progress.next_start = min(self.progress.next_start, newest[0] + self._steps_to_next())
        return f"Replicas seem to hurt each other: {agreed}. {what_follows}"

    def step_back(self) -> str:
        """Collective: averages four times as often, or at every step from now on; returns what follows."""
        self._finish_exchange()  # its fragment may be another one afterwards
        self.progress.num_steps_back += 1
        self.progress.fragment = 0
        if self.interval >= _SHORTEST_INTERVAL:
            return f"From now on, weights are averaged every {self.interval} steps."
        mean = self._mean(lambda replica: replica.weights)
        moments = {name: self._mean(lambda replica, name=name: replica.moments[name]) for name in MOMENTS}  # type: ignore[misc]
        self._note_updates()
        # A replica without text makes no update: ranks must not each take the count of their own.
        self._use(Replica(mean, moments, max(self.progress.num_updates)))
        self._learner.gradients.group = self._world.everyone
        self._own = {}
        self.progress.is_apart, self.progress.is_together_for_good = False, True
        return "From now on, gradients are summed at every step."

    # Checkpoints

    @property
    def has_state(self) -> bool:
        """Whether a checkpoint of this moment holds tensors of replicas."""
        return self.progress.is_apart

    def facts(self) -> dict[str, Any]:
        """Returns what state.json keeps; `collect` must have been called at this step."""
        return asdict(self.progress)

    def collect(self, savers: Sequence[int]) -> dict[str, Tensor]:
        """Collective: returns, on ranks that save, the tensors of all replicas; nothing is sent to other ranks.

        An exchange on its way is waited for: a checkpoint holds its result, which counts when it would have counted.
        """
        if not self.progress.is_apart:
            return {}
        self._note_updates()
        arrived = self._arrived()
        found = {"anchor": self._anchor}
        if self.plan.outer_momentum:
            found["momentum"] = self._momentum
        if arrived is not None:
            found["arrived"] = arrived
        for index in range(self._exchange.layout.num_replicas):
            own = self._own[index].tensors() if index in self._own else {}
            for name, like in next(iter(self._own.values())).tensors().items():
                tensor = self._exchange.send_to(savers, index, own.get(name), like)
                if tensor is not None:
                    found[f"{name}/{index}"] = tensor
        return found

    def _note_updates(self) -> None:
        """Collective: notes the number of updates of every replica, for `facts`."""
        led = set(self._exchange.layout.led_by(self._world.rank))
        own = [
            float(self._own[index].num_updates) if index in led else 0.0
            for index in range(self._exchange.layout.num_replicas)
        ]
        self.progress.num_updates = [int(number) for number in self._world.sum_numbers(own)]

    def agreed_tensors(self, collected: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns the mean weights of collected replicas, and the moments of the first; both empty while together."""
        if not collected:
            return {}, {}
        number = self._exchange.layout.num_replicas
        mean = torch.stack([collected[f"weights/{index}"] for index in range(number)]).sum(0).div_(number)
        names = list(trained_parameters(self._learner.model))
        moments = {
            f"{moment}/{name}": view
            for moment in MOMENTS
            for name, view in zip(names, self._views(collected[f"{moment}/0"]), strict=True)
        }
        return dict(zip(names, self._views(mean), strict=True)), moments

    def restore(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Continues from what `facts` and `collect` returned."""
        losses = [(int(step), loss, train_loss) for step, loss, train_loss in facts["dev_losses"]]
        self.progress = ExchangeProgress(**{**facts, "dev_losses": losses})
        if not self.progress.is_apart:
            return
        device = self._learner.gradients.flat.device
        self._anchor = tensors["anchor"].to(device)
        self._momentum = tensors["momentum"].to(device) if self.plan.outer_momentum else torch.empty(0)
        self._pending = tensors["arrived"].to(device) if self.progress.is_travelling else None
        for index in self._exchange.own:
            own = {name: tensors.get(f"{name}/{index}") for name in ("weights", *MOMENTS, "residual", "sent")}
            placed = {name: tensor.to(device) for name, tensor in own.items() if tensor is not None}
            moments = {name: placed[name] for name in MOMENTS}
            self._own[index] = Replica(
                placed["weights"],
                moments,
                self.progress.num_updates[index],
                placed.get("residual"),
                placed.get("sent"),
            )
        self._use(next(iter(self._own.values())))

    def expected_tensors(self, facts: Mapping[str, Any]) -> dict[str, Tensor]:
        """Returns tensors of the names, shapes and types that a checkpoint with these facts must hold."""
        progress = ExchangeProgress(**facts)
        if not progress.is_apart:
            return {}
        whole = self._learner.gradients.flat
        fragment = whole[self._cut(progress.num_steps_back)[progress.fragment]]
        expected = {"anchor": whole} | ({"momentum": whole} if self.plan.outer_momentum else {})
        if progress.is_travelling:
            expected["arrived"] = fragment
        names = ["weights", *MOMENTS, *(["residual"] if self._format.loses_much else [])]
        for index in range(self._exchange.layout.num_replicas):
            expected |= {f"{name}/{index}": whole for name in names}
            if progress.is_travelling:
                expected[f"sent/{index}"] = fragment
        return expected


def _stepped_back(number: int, num_steps_back: int) -> int:
    """Returns what is left of an interval, or of its fragments, after the guard has shortened it so often."""
    return max(1, int(number // _STEP_BACK_FACTOR**num_steps_back))


def _views_of_gradients(parameters: Sequence[nn.Parameter], gradients: GradientSum) -> Callable[[Tensor], list[Tensor]]:
    """Returns a function that cuts a flat tensor into parts that lie as the gradients of parameters do."""
    places = []
    for parameter in parameters:
        assert parameter.grad is not None
        places.append((parameter.grad.storage_offset() - gradients.flat.storage_offset(), parameter.shape))
    return lambda flat: [flat[begin : begin + shape.numel()].view(shape) for begin, shape in places]
