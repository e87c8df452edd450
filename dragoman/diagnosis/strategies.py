"""Predicts a step for each way to synchronise from a rehearsal, and chooses the one that `--sync auto` takes.

Exact sums are kept where they cost little time; otherwise the fast way that costs least quality is taken.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dragoman.diagnosis.advice import advise, find_problems, predict_and_advise
from dragoman.diagnosis.intervals import is_disturbed, typical_step
from dragoman.diagnosis.measured_exchange import exchange_facts, is_network_known
from dragoman.diagnosis.prediction import Measurements, Prediction, assemble_step, bounds_of_assembled, predict
from dragoman.diagnosis.step_model import Step
from dragoman.diagnosis.strategy_model import (
    LOCAL_CHOICES,
    LOCAL_WIRE,
    MEGABYTE,
    SHOWN_INTERVALS,
    ExchangeFacts,
    StrategyStep,
    payload_sizes,
    strategy_step,
)
from dragoman.diagnosis.wording import format_step, format_steps
from dragoman.run.config import Settings
from dragoman.run.synchronisation import (
    EXACT,
    Synchronisation,
    default_replicas,
    is_allowed,
    local_rate_factor,
    resolve_synchronisation,
    steps_together,
)
from dragoman.run.units import format_bytes, format_rate

QUALITY_COST: Mapping[str, Mapping[int, float]] = {
    "every_step": {1: 0.0},
    "hierarchical": {1: 0.0},
    "fp16": {1: 0.0},
    "bf16": {1: 0.0},
    "int8": {1: 0.0},
    "powersgd": {1: 3.0},
    "local": {1: 0.0, 2: 0.5, 4: 0.6, 8: 1.1, 16: 1.9, 32: 2.8, 64: 3.8, 128: 5.0, 256: 6.4},
    "diloco": {1: 1.0, 16: 8.0, 64: 12.0, 256: 16.0},
}
"""BLEU that a strategy loses against exact sums at equal tokens, by steps between two averages, early in a run.

With two replicas, Multi30k and 250 to 300 steps (docs/slow-networks.md). Only local with 16 steps was measured in BLEU.
Those of int8, powersgd and local with 1, 2 and 4 steps follow from one dev loss each, at about 20 BLEU per nat; the
other intervals are drawn along the same line. fp16, bf16 and diloco are guesses; diloco is never chosen.
"""
STREAMED_COST: Mapping[int, float] = {1: 0.0, 2: 0.1, 4: 0.3, 8: 0.8, 16: 1.5, 32: 2.5}
"""The same for streamed averages. Four steps: the mean of three runs of 1,200 steps. Eight and 16 steps follow from one
dev loss each after 250 steps; two and 32 are drawn along the same line.
"""
SHORT_WAIT = 1.25
"""Exact sums are kept while a step takes no more than this many times as long as without the network."""
WANTED_SPEED = 0.9
"""Share of the speed without the network that a strategy must reach on average over the run."""
_TOGETHER_SHARES = (1.0, 0.5, 0.25, 0.0)
"""Shares of the usual number of first steps together; the largest one that leaves the run fast enough is taken."""
_HELPFUL_SHARE = 0.95
"""A strategy is advised if its step takes less than this share of the time now."""


@dataclass(frozen=True)
class StrategyEstimate:
    """What a strategy would take and cost."""

    plan: Synchronisation
    seconds: float
    """A step, after those that are made together."""
    low: float
    high: float
    bytes_per_host_and_step: float
    """Sent by the busiest machine, and received by it."""
    run_seconds_per_step: float
    """Mean over the run: first steps together take as long as exact sums do."""
    quality_cost: float
    """BLEU lost at equal tokens; see `QUALITY_COST`."""

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values."""
        return asdict(self)


def quality_cost(plan: Synchronisation) -> float:
    """BLEU that a strategy is expected to lose; between intervals of the table, along a line over their logarithm."""
    table = STREAMED_COST if plan.is_streamed and plan.strategy == "local" else QUALITY_COST[plan.strategy]
    intervals = sorted(table)
    place = bisect_left(intervals, plan.interval)
    if place == len(intervals):
        return table[intervals[-1]]
    if place == 0 or intervals[place] == plan.interval:
        return table[intervals[place]]
    before, after = intervals[place - 1], intervals[place]
    share = math.log(plan.interval / before) / math.log(after / before)
    return table[before] + share * (table[after] - table[before])


# Estimates


def estimate_strategies(measured: Measurements, settings: Settings) -> list[StrategyEstimate]:
    """Estimates every strategy that this run could use, exact sums first; where no network is known, only these."""
    exact = estimate_plan(measured, settings, Synchronisation())
    if len(measured.machine_names) == 1 or not is_network_known(measured):
        return [exact]
    return [
        exact,
        *(estimate_plan(measured, settings, plan) for plan in _candidates(measured, settings, exact.seconds)),
    ]


def estimate_plan(measured: Measurements, settings: Settings, plan: Synchronisation) -> StrategyEstimate:
    """Estimates one way to synchronise, with exactly these settings."""
    prediction = predict(measured)
    if plan.strategy == "every_step" or not is_network_known(measured):
        found = StrategyStep(prediction.seconds, 0.0, measured.exact_bytes)
        low, high = prediction.low, prediction.high
    else:
        found = strategy_step(exchange_facts(measured, settings, plan, prediction), plan)
        low, high = bounds_of_assembled(measured, found.seconds, found.waiting_seconds)
    num_steps = settings.training.max_steps
    together = min(1.0, plan.together_steps / num_steps)
    mean = together * prediction.seconds + (1 - together) * found.seconds
    return StrategyEstimate(plan, found.seconds, low, high, found.bytes_per_host, mean, quality_cost(plan))


def _candidates(measured: Measurements, settings: Settings, exact_seconds: float) -> list[Synchronisation]:
    """Returns the strategies besides exact sums at every step that settings and measurements allow."""
    own, training = settings.synchronisation, settings.training
    candidates = [Synchronisation("hierarchical")]
    replicas = own.replicas or default_replicas(training, len(measured.machine_names))
    if replicas < 2:
        return candidates
    known = payload_sizes(measured.gradient_bytes, measured.payload_bytes)
    candidates += [
        Synchronisation(name, replicas, wire=name, powersgd_rank=own.powersgd_rank)
        for name in ("fp16", "bf16", "int8", "powersgd")
        if name in known and is_allowed(name, settings)
    ]
    if not is_allowed("local", settings):
        return candidates
    apart = Synchronisation(
        "local",
        replicas,
        wire=LOCAL_WIRE,
        rate_factor=local_rate_factor(own, replicas),
        guard=own.guard,
    )
    local = [
        replace(apart, interval=interval, max_interval=interval, fragments=fragments, overlap=overlap)
        for interval, fragments, overlap in LOCAL_CHOICES
    ]
    diloco = replace(
        apart,
        strategy="diloco",
        interval=own.interval,
        max_interval=own.max_interval,
        outer_learning_rate=own.outer_learning_rate,
        outer_momentum=own.outer_momentum,
    )
    facts = exchange_facts(measured, settings, local[0])
    return [*candidates, *(_with_steps_together(each, facts, settings, exact_seconds) for each in [*local, diloco])]


def _with_steps_together(
    plan: Synchronisation, facts: ExchangeFacts, settings: Settings, exact_seconds: float
) -> Synchronisation:
    """Adds as many first steps together as leave the run fast enough; the number that a user gave stays."""
    wanted = steps_together(settings.synchronisation, settings.training)
    if settings.synchronisation.together_steps is not None:
        return replace(plan, together_steps=wanted)
    seconds, most = strategy_step(facts, plan).seconds, facts.computing_seconds / WANTED_SPEED
    for share in _TOGETHER_SHARES:
        number = int(share * wanted)
        mean = seconds + number / settings.training.max_steps * (exact_seconds - seconds)
        if mean <= most:
            return replace(plan, together_steps=number)
    return plan


# Choice


def choose_strategy(measured: Measurements, settings: Settings) -> Synchronisation:
    """Returns the strategy that `auto` takes, with the reason in two sentences."""
    if len(measured.machine_names) == 1:
        return Synchronisation(
            reason="All workers are on one machine, so exact sums wait for no network. They cost no quality."
        )
    if not is_network_known(measured):
        return Synchronisation(
            reason="The links could not be measured, so exact sums at every step are kept. They cost no quality."
        )
    exact, *others = estimate_strategies(measured, settings)
    computing = assemble_step(measured, measured.all_reduce_inside).seconds
    chosen = choose_estimate(exact, others, computing)
    return replace(chosen.plan, reason=_describe_reason(measured, exact, chosen, computing))


def choose_estimate(
    exact: StrategyEstimate, others: Sequence[StrategyEstimate], computing_seconds: float
) -> StrategyEstimate:
    """Keeps exact sums where they wait little; else the fast one that costs least quality; else the fastest."""
    for each in (exact, *(each for each in others if each.plan.strategy in EXACT)):
        if each.seconds <= SHORT_WAIT * computing_seconds:
            return each
    known = [exact, *others]
    fast = [each for each in known if each.run_seconds_per_step <= computing_seconds / WANTED_SPEED]
    if fast:
        return min(fast, key=lambda each: (each.quality_cost, each.run_seconds_per_step))
    return min(known, key=lambda each: (each.run_seconds_per_step, each.quality_cost))


def _describe_reason(
    measured: Measurements, exact: StrategyEstimate, chosen: StrategyEstimate, computing_seconds: float
) -> str:
    waited, link = max(0.0, exact.seconds - computing_seconds), _describe_slowest_link(measured)
    if chosen.plan.strategy == "every_step" and exact.seconds > SHORT_WAIT * computing_seconds:
        return (
            f"Exact sums at every step take {format_step(exact.seconds)} a step, of which {format_step(waited)} waits "
            f"for the network{link}. They are kept, because no other way is faster."
        )
    if chosen.plan.strategy == "every_step":
        return (
            f"Exact sums at every step take {format_step(exact.seconds)} a step and send "
            f"{format_bytes(exact.bytes_per_host_and_step)} from each machine{link}. Only {format_step(waited)} of "
            "that waits for the network, so no quality is spent on fewer bytes."
        )
    return (
        f"Exact sums at every step would take {format_step(exact.seconds)} a step, of which {format_step(waited)} "
        f"waits for the network{link}. {describe_change(chosen.plan)} takes {format_step(chosen.seconds)}, sends "
        f"{format_bytes(chosen.bytes_per_host_and_step)} instead of {format_bytes(exact.bytes_per_host_and_step)} a "
        f"step from each machine, and {_describe_cost(chosen)}."
    )


def _describe_slowest_link(measured: Measurements) -> str:
    """Names the slowest link's rate in both units: " (12.5 MB/s = 100 Mbit/s)"; empty where it is not known."""
    if not measured.links:
        return ""
    rate = format_rate(min(link.bytes_per_second for link in measured.links))
    return f" ({rate.replace(' (', ' = ')}"


def _describe_cost(estimate: StrategyEstimate) -> str:
    if not estimate.quality_cost:
        return "costs no quality"
    return f"costs about {estimate.quality_cost:.1f} BLEU at equal tokens"


def describe_change(plan: Synchronisation) -> str:
    """Names a strategy as the subject of a message: "Averaging weights every 16 steps"."""
    match plan.strategy:
        case "every_step":
            return "Summing exactly at every step"
        case "hierarchical":
            return "Summing exactly, inside each machine first,"
        case "powersgd":
            return f"Summing factors of rank {plan.powersgd_rank}"
        case "local":
            streamed = ", a part after each step while the next one computes," if plan.is_streamed else ""
            return f"Averaging weights {plan.how_often}{streamed if plan.interval > 1 else ''}"
        case "diloco":
            return f"Averaging weights with momentum {plan.how_often}"
    return f"Summing gradients as {plan.strategy}"


# Predictions, advice and tables


def predict_with(plan: Synchronisation, measured: Measurements, settings: Settings) -> Prediction:
    """Predicts the steps of a run that synchronises in this way, with advice and problems."""
    if plan.strategy == "every_step" or not is_network_known(measured):
        prediction = predict_and_advise(measured)
        advice = [*strategy_advice(measured, settings), *prediction.advice]
        return replace(prediction, advice=advice) if plan.strategy == "every_step" else prediction
    estimate = estimate_plan(measured, settings, plan)
    usual = predict(measured)
    step = _typical_step(measured, estimate, strategy_step(exchange_facts(measured, settings, plan, usual), plan))
    found = replace(usual, seconds=estimate.seconds, low=estimate.low, high=estimate.high, step=step)
    return replace(found, advice=advise(measured, found), problems=find_problems(measured, found))


def _typical_step(measured: Measurements, estimate: StrategyEstimate, found: StrategyStep) -> Step:
    """Builds the parts of a step: its own work, waiting for the network, and the rest, which is encoding."""
    parts = dict(assemble_step(measured, measured.all_reduce_inside).parts)
    parts["exposed_communication"] = parts.get("exposed_communication", 0.0) + found.waiting_seconds
    parts["other"] = parts.get("other", 0.0) + max(0.0, estimate.seconds - sum(parts.values()))
    fixed_share = 0.0 if is_disturbed(measured.loads) else measured.fixed_share
    work = measured.work_by_rank
    return typical_step(parts, dict(measured.slowest) or None, work, fixed_share, measured.loads, measured.slowest_host)


def strategy_advice(measured: Measurements, settings: Settings) -> list[str]:
    """Returns one message for the best exact sum, the best sum in fewer bytes, and what `auto` would take."""
    exact, *others = estimate_strategies(measured, settings)
    if not others:
        return []
    computing = assemble_step(measured, measured.all_reduce_inside).seconds
    wanted = [
        *(each for each in others if each.plan.strategy in ("hierarchical", "fp16")),
        choose_estimate(exact, others, computing),
    ]
    helpful = [each for each in dict.fromkeys(wanted) if each.seconds < _HELPFUL_SHARE * exact.seconds]
    return [
        f"{describe_change(each.plan).rstrip(',')} ({_option(each)}): "
        f"{format_steps(each.low, min(each.high, max(each.low, exact.seconds)))} instead of "
        f"{format_step(exact.seconds)} per step; it {_describe_cost(each)}."
        for each in sorted(helpful, key=lambda each: each.seconds)
    ]


def _option(estimate: StrategyEstimate) -> str:
    return f"--sync {'auto' if estimate.plan.is_local else estimate.plan.strategy}"


@dataclass(frozen=True)
class StrategyChoice:
    """All estimates, and what `auto` would take."""

    estimates: Sequence[StrategyEstimate]
    chosen: Synchronisation
    is_auto_allowed: bool = True
    """Whether the other settings of the run would allow `--sync auto`."""

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as `dragoman check --json` prints them."""
        return {"strategies": [each.to_json() for each in self.estimates], "chosen": self.chosen.to_json()}

    def lines(self) -> list[str]:
        """Formats a table of strategies, with the chosen one marked, and the reason."""
        head = f"  {'synchronisation':<28} {'s/step':>8} {'low':>8} {'high':>8} {'MB/machine':>11} {'BLEU lost':>10}"
        rows = [
            self._row(each)
            for each in self.estimates
            if each.plan.strategy != "local" or each.plan.interval in SHOWN_INTERVALS or self._is_chosen(each)
        ]
        name = self.chosen.strategy
        advice = f"--sync auto would take {name}" if self.is_auto_allowed else f"--sync {name} fits best"
        return [head, *rows, f"{advice}: {self.chosen.reason}"]

    def _is_chosen(self, estimate: StrategyEstimate) -> bool:
        return replace(estimate.plan, reason="") == replace(self.chosen, reason="")

    def _row(self, estimate: StrategyEstimate) -> str:
        plan = estimate.plan
        streamed = ", streamed" if plan.is_streamed and plan.interval > 1 else ""
        name = f"{plan.strategy}, {plan.how_often}{streamed}" if plan.is_local else plan.strategy
        figures = " ".join(f"{seconds:>8.3g}" for seconds in (estimate.seconds, estimate.low, estimate.high))
        return (
            f"{'>' if self._is_chosen(estimate) else ' '} {name:<28} {figures} "
            f"{estimate.bytes_per_host_and_step / MEGABYTE:>11,.1f} {estimate.quality_cost:>10.1f}"
        )


def compare_strategies(measured: Measurements, settings: Settings) -> StrategyChoice:
    """Estimates all strategies, and chooses."""
    return StrategyChoice(
        estimate_strategies(measured, settings), choose_strategy(measured, settings), is_allowed("auto", settings)
    )


def predict_as_configured(measured: Measurements, settings: Settings) -> Prediction:
    """Predicts a run with the strategy of its settings; with `auto`, the one that would be chosen."""
    if settings.synchronisation.strategy == "auto":
        return predict_with(choose_strategy(measured, settings), measured, settings)
    plan = resolve_synchronisation(settings, len(measured.machine_names))
    return predict_with(plan, measured, settings)
