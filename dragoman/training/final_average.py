"""Averages checkpoints at the end of training, and uses the average where it is better on the dev set."""

import json

import torch

from dragoman.run.checkpoints import (
    METRIC_NAMES,
    SavedEvaluation,
    find_checkpoints_to_average,
    rank_steps,
    read_evaluations,
)
from dragoman.run.errors import UserError
from dragoman.run.folder import checkpoint_step
from dragoman.training.dev_evaluation import DevEvaluator, JudgedWeights
from dragoman.training.dev_progress import is_better
from dragoman.training.kept_checkpoints import FinalAverage
from dragoman.training.weight_average import WeightAverage
from dragoman.translation.chosen_weights import average_weights, describe_average


def judge_final_average(
    evaluator: DevEvaluator, average: FinalAverage, step: int, trained: SavedEvaluation
) -> tuple[WeightAverage, JudgedWeights] | None:
    """Collective: averages checkpoints and evaluates; None where the trained weights of this step are as good."""
    found = _average_checkpoints(evaluator, average, step)
    if found is None:
        return None
    weights, name = found
    judged = evaluator.evaluate_average(step, weights, trained)
    if not isinstance(judged, JudgedWeights):
        evaluator.watcher.say(f"{name[0].upper()}{name[1:]} could not be evaluated and is not used.")
        return None
    is_used = judged.is_average_better(evaluator.settings)
    evaluator.watcher.say(_describe(evaluator, judged, name, step, is_used))
    if not is_used:
        return None
    evaluator.report(step, judged)
    return weights, judged


def _average_checkpoints(evaluator: DevEvaluator, average: FinalAverage, step: int) -> tuple[WeightAverage, str] | None:
    """Collective: rank 0 reads the checkpoints and sends their average, since hosts may share no folder."""
    world, model, say = evaluator.world, evaluator.learner.model, evaluator.watcher.say
    tensors = {name: torch.empty_like(parameter.data) for name, parameter in model.named_parameters()}
    steps: list[int] = []
    problem: str | None = None
    if world.is_first:
        try:
            usable = average.regular(evaluator.run.checkpoint_steps(), last=step)
            found = find_checkpoints_to_average(evaluator.run, average.checkpoints, average.best_by, say, usable)
            steps = [checkpoint_step(each) for each in found]
            for name, tensor in average_weights(tensors, found).items():
                tensors[name].copy_(tensor)
        except UserError as error:
            problem = str(error)
    if (problem := world.first_error(problem)) is not None:
        say(f"Checkpoints were not averaged: {problem}")
        return None
    (text,) = world.gather_texts([(0, json.dumps(steps))] if world.is_first else [])
    steps = json.loads(text)
    for tensor in tensors.values():
        world.send_tensor(tensor, 0)
    return WeightAverage.of_checkpoints(tensors, steps), describe_average(steps)


def _describe(evaluator: DevEvaluator, judged: JudgedWeights, name: str, step: int, is_used: bool) -> str:
    """Says whether the average is used, and by how much it is better or worse."""
    metric = evaluator.settings.best_by
    digits = 4 if metric == "loss" else 2
    assert judged.other is not None
    average, trained = getattr(judged.evaluation, metric), judged.other.get(metric)
    scores = f"{METRIC_NAMES[metric]} {average:.{digits}f} on the dev set"
    if isinstance(trained, int | float):
        change = average - trained
        than = f"than the weights of step {step:,}"
        word = "higher" if change > 0 else "lower"
        scores += f", {abs(change):.{digits}f} {word} {than} ({trained:.{digits}f})"
    verb = "Using" if is_used else "Not using"
    return f"{verb} {name}: {scores}.{_describe_best(evaluator, judged, step) if is_used else ''}"


def _describe_best(evaluator: DevEvaluator, judged: JudgedWeights, step: int) -> str:
    """Names a checkpoint of another step that is better still; only rank 0 looks."""
    if not evaluator.world.is_first:
        return ""
    run, metric = evaluator.run, evaluator.settings.best_by
    others = [other for other in run.checkpoint_steps() if other != step]
    ranked = rank_steps(run, others, metric)[:1]
    figures = read_evaluations(run, ranked)
    is_first = all(is_better(judged.saved(), each, metric) for each in figures.values())
    return "" if is_first else f" The best checkpoint is still that of step {ranked[0]:,}."
