"""What a run says about itself at its start and at its end."""

from collections.abc import Iterator

from dragoman.cluster.world import World
from dragoman.corpus.batching import BatchStream
from dragoman.corpus.mixture import Mixture
from dragoman.run.checkpoints import METRIC_NAMES
from dragoman.run.commands import resume_command
from dragoman.run.config import Settings, TrainingSettings
from dragoman.run.folder import RunFolder
from dragoman.run.synchronisation import Synchronisation
from dragoman.run.units import format_duration
from dragoman.training.dev_progress import DevProgress
from dragoman.training.learner import Learner, trained_parameters
from dragoman.training.spent_time import SpentTime
from dragoman.training.stopping import StopReason


def describe_start(
    settings: Settings, learner: Learner, world: World, mixture: Mixture, stream: BatchStream
) -> Iterator[str]:
    """Yields messages about the model, the workers and the data."""
    shape, training = learner.model.shape, settings.training
    num_parameters = sum(parameter.numel() for parameter in learner.model.parameters())
    yield (
        f"{settings.model.preset}: {num_parameters:,} parameters{_describe_frozen(settings, learner)}, "
        f"{shape.source_vocab_size:,} source and {shape.target_vocab_size:,} target subwords, "
        f"{training.precision} on {world.device.type}."
    )
    yield (
        f"{world.size} {'workers share' if world.size > 1 else 'worker has'} "
        f"{training.virtual_workers} virtual workers and {_describe_batch(training)}."
    )
    yield from mixture.describe()
    if stream.num_left_out:
        yield (
            f"{stream.num_left_out:,} training pairs are left out: one side has more than "
            f"{stream.longest_used} subwords (the limit is the smaller of data.max_tokens and "
            "training.global_batch_tokens / virtual_workers)."
        )
    if num_more := stream.num_left_out_at_first - stream.num_left_out:
        yield (
            f"{num_more:,} {'more ' if stream.num_left_out else 'training '}pairs are left out at the start: one side "
            f"has more than the {stream.longest_used_at_first} subwords that training.initial_batch_tokens gives each "
            "virtual worker. They are used as batches grow."
        )


def _describe_batch(training: TrainingSettings) -> str:
    """Names the tokens of a step, or those of the first and the last one."""
    growth = training.batch_growth
    if growth.first_tokens == growth.full_tokens:
        return f"{growth.full_tokens:,} tokens per step"
    return (
        f"{growth.first_tokens:,} tokens per step at first, {growth.full_tokens:,} from step "
        f"{growth.full_from_step + 1:,} on"
    )


def describe_synchronisation(plan: Synchronisation) -> str:
    """Says how workers agree on weights and why; empty where it goes without saying."""
    if plan.strategy == "every_step" and not plan.reason:
        return ""
    first = f"Synchronisation: {plan.describe()}."
    return f"{first} {plan.reason}" if plan.reason else first


def _describe_frozen(settings: Settings, learner: Learner) -> str:
    if not settings.training.freeze:
        return ""
    num_trained = sum(parameter.numel() for parameter in trained_parameters(learner.model).values())
    return f" ({num_trained:,} are trained; frozen: {', '.join(settings.training.freeze)})"


def describe_end(
    run: RunFolder, settings: Settings, reason: StopReason, step: int, spent: SpentTime, progress: DevProgress
) -> str:
    """Returns the last message of a run."""
    cost = "" if spent.cost is None else f", cost {spent.cost:.2f}"
    steps = "1 step" if step == 1 else f"{step:,} steps"
    taken = f"after {steps} in {format_duration(spent.seconds)}, all starts included{cost}"
    used_up = settings.training.model_dump() if reason in (StopReason.TIME, StopReason.COST) else None
    resume = f"Continue with: {resume_command(run.path, used_up, spent.seconds)}"
    match reason:
        case StopReason.SIGNAL | StopReason.REQUEST:
            return f"Stopped on request {taken}; everything is saved. {resume}"
        case StopReason.HOST_BACK:
            return f"A host is back: paused {taken}; everything is saved."
        case StopReason.TIME:
            return f"training.max_hours is used up {taken}; everything is saved. {resume}"
        case StopReason.COST:
            return f"training.max_cost is used up {taken}; everything is saved. {resume}"
        case StopReason.PATIENCE:
            metric = METRIC_NAMES[settings.evaluation.metric]
            return (
                f"Finished {taken}: {metric} on the dev set did not get better in the last "
                f"{progress.num_without_better} evaluations (evaluation.patience). To train on: "
                f"{resume_command(run.path)} --set evaluation.patience=0"
            )
        case _:
            return f"Finished {taken}."
