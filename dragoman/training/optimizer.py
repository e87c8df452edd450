"""AdamW (Adam where weight_decay is 0), and its state as named tensors."""

import torch
from torch import Tensor, nn

from dragoman.run.config import TrainingSettings

_MOMENTS = ("exp_avg", "exp_avg_sq")


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """Weight decay is for matrices only: shrinking norms and biases serves nothing."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=0.0,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Takes effect at the next update."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Both moments of every parameter, as `moment/parameter`; empty before the first update."""
    return {
        f"{moment}/{name}": optimizer.state[parameter][moment]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for moment in _MOMENTS
    }


def empty_moments(model: nn.Module) -> dict[str, Tensor]:
    """Zeros in the form `optimizer_tensors` has after an update."""
    return {
        f"{moment}/{name}": torch.zeros_like(parameter)
        for name, parameter in model.named_parameters()
        for moment in _MOMENTS
    }


def restore_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], num_updates: int
) -> None:
    """Puts back what `optimizer_tensors` gave; raises KeyError where a moment is missing."""
    if num_updates == 0:
        return
    for name, parameter in model.named_parameters():
        moments = {moment: tensors[f"{moment}/{name}"].to(parameter.device) for moment in _MOMENTS}
        optimizer.state[parameter] = {"step": torch.tensor(float(num_updates), device=parameter.device), **moments}
