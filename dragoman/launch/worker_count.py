"""Chooses how many workers train on this machine where nobody has said it. Does not import torch."""

from dataclasses import dataclass, replace

from dragoman.cluster.environment import threads_per_worker
from dragoman.launch.hosts import Placement, count_gpus
from dragoman.model.shape import ModelShape, activation_elements_per_token, count_parameters, resolve_shape
from dragoman.run.config import Settings
from dragoman.run.processes import available_memory, num_physical_cores
from dragoman.run.units import counted, format_bytes

_PROCESS_BYTES = 600_000_000
"""Memory of a worker without a model: Python, torch and its libraries."""
_STATE_BYTES_PER_PARAMETER = 16
"""Weight, gradient and two moments, 4 bytes each."""
_COPY_BYTES_PER_PARAMETER = 12
"""Copy of weights and moments from which the first worker writes a checkpoint."""
_BYTES_PER_ACTIVATION = 4 * 2
"""Backward adds gradients of about the same size, and freed memory is kept in pieces."""
_USED_SHARE = 0.8
"""Share of the free memory to use: other programs and the cache of files need some too."""


@dataclass(frozen=True)
class WorkerChoice:
    """A number of workers, and the sentence that explains it."""

    num_workers: int
    reason: str


def place_on_cores(placement: Placement, settings: Settings) -> tuple[Placement, str]:
    """Fills in the number of workers on this machine; says nothing where it was given or other machines take part.

    With other machines, each worker more would send the gradient over the network once more, so there it stays one per
    GPU or machine.
    """
    [*others, host] = placement.hosts
    if others or not host.is_this_machine or host.num_workers is not None:
        return placement, ""
    choice = choose_num_workers(settings, count_gpus(), num_physical_cores(), available_memory())
    return replace(placement, hosts=(replace(host, num_workers=choice.num_workers),)), choice.reason


def choose_num_workers(settings: Settings, num_gpus: int, num_cores: int, free_bytes: int) -> WorkerChoice:
    """Chooses one worker per GPU, or one per core as far as virtual workers and memory allow."""
    if num_gpus:
        return WorkerChoice(num_gpus, f"{counted(num_gpus, 'worker')}, one per GPU.")
    needed = worker_bytes(settings)
    num_virtual = settings.training.virtual_workers
    num_fitting = max(1, int(_USED_SHARE * free_bytes / needed))
    num_workers = min(num_cores, num_virtual, num_fitting)
    threads = f"of {counted(threads_per_worker(num_cores, num_workers), 'thread')} each"
    workers = counted(num_workers, "worker")
    if num_cores == 1:
        return WorkerChoice(1, "1 worker, because there is one core.")
    if num_workers == num_cores:
        return WorkerChoice(num_workers, f"{workers}, one per core, {threads}.")
    if num_workers == num_virtual:
        return WorkerChoice(num_workers, f"{workers} {threads}, because training.virtual_workers is {num_virtual}.")
    free, each = format_bytes(free_bytes), format_bytes(needed)
    return WorkerChoice(num_workers, f"{workers} {threads}: {free} of memory are free, and a worker may need {each}.")


def worker_bytes(settings: Settings) -> float:
    """Estimates the memory of one worker, the first of which also copies its state for checkpoints."""
    training = settings.training
    return estimate_bytes(planned_shape(settings), training.global_batch_tokens / training.virtual_workers)


def planned_shape(settings: Settings) -> ModelShape:
    """Returns the shape of the model that a run will train."""
    # Imports numpy: as late as possible, after the start of this machine's program.
    from dragoman.corpus.prepared_corpus import PreparedCorpus

    corpus = PreparedCorpus.open(settings.data.prepared)
    return resolve_shape(settings.model, corpus.source_vocab_size, corpus.target_vocab_size, corpus.is_joint)


def estimate_bytes(shape: ModelShape, micro_batch_tokens: float) -> float:
    """Estimates the memory of a worker with this model and so many tokens on each side of a micro-batch."""
    state = count_parameters(shape) * (_STATE_BYTES_PER_PARAMETER + _COPY_BYTES_PER_PARAMETER)
    return _PROCESS_BYTES + state + activation_elements_per_token(shape) * micro_batch_tokens * _BYTES_PER_ACTIVATION
