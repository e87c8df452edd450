"""Loads the weights that `--checkpoint` names into a model: those of one checkpoint, or an average of several."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dragoman.model.weights import load_tensors_like, load_weights
from dragoman.run.checkpoints import (
    AVERAGED_FILE,
    MODEL_FILE,
    SavedEvaluation,
    find_checkpoint,
    find_checkpoints_to_average,
    parse_average_name,
    read_evaluations,
    weights_file,
)
from dragoman.run.config import Metric
from dragoman.run.folder import RunFolder, checkpoint_step


@dataclass(frozen=True)
class ChosenWeights:
    """Where the weights of a model came from."""

    checkpoint: Path
    """The checkpoint; of several that were averaged, the newest."""
    steps: tuple[int, ...]
    """The steps of all checkpoints that were read."""
    description: str
    """What was loaded, as in "the checkpoint of step 500 (best)"."""
    evaluation: SavedEvaluation | None
    """Figures of exactly these weights on the dev set, if they were evaluated."""

    @property
    def step(self) -> int:
        """The step of the checkpoint; of several, of the newest."""
        return checkpoint_step(self.checkpoint)


def load_chosen_weights(
    model: nn.Module, run: RunFolder, which: str, best_by: Metric, warn: Callable[[str], None]
) -> ChosenWeights:
    """Loads "best", "latest", a step number, "average:best:N" or "average:last:N" into a model.

    `warn` is told where a damaged or missing checkpoint is replaced by another.
    """
    if (average := parse_average_name(which)) is not None:
        return _load_average(model, find_checkpoints_to_average(run, average, best_by, warn))
    checkpoint = find_checkpoint(run, which, best_by, warn)
    name = weights_file(checkpoint)
    load_weights(model, checkpoint / name)
    step = checkpoint_step(checkpoint)
    details = [which] if which in ("best", "latest") else []
    details += ["averaged weights"] if name == AVERAGED_FILE else []
    description = f"the checkpoint of step {step:,}" + (f" ({', '.join(details)})" if details else "")
    return ChosenWeights(checkpoint, (step,), description, read_evaluations(run, [step]).get(step))


def _load_average(model: nn.Module, checkpoints: Sequence[Path]) -> ChosenWeights:
    expected = dict(model.named_parameters())
    model.load_state_dict(average_weights(expected, checkpoints), strict=True)
    steps = tuple(checkpoint_step(checkpoint) for checkpoint in checkpoints)
    return ChosenWeights(checkpoints[-1], steps, describe_average(steps), None)


def average_weights(expected: Mapping[str, Tensor], checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """Averages the trained weights of checkpoints in float64, one file after the other: the result is always the same.

    Refuses weights with other names, shapes or number types than the expected ones.
    """
    sums = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in expected.items()}
    for checkpoint in checkpoints:
        for name, tensor in load_tensors_like(expected, checkpoint / MODEL_FILE).items():
            sums[name] += tensor
    return {name: (total / len(checkpoints)).to(expected[name].dtype) for name, total in sums.items()}


def describe_average(steps: Sequence[int]) -> str:
    """Names an average, as in "the average of 3 checkpoints (steps 300, 400 and 500)"."""
    names = [f"{step:,}" for step in steps]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"the average of {len(names)} checkpoint{'s'[: len(names) > 1]} (step{'s'[: len(names) > 1]} {listed})"
