"""AdamW over torch's fused kernel: the updates of torch.optim.AdamW(fused=True), bit for bit.

torch's class imports torch._dynamo when it is first used, although nothing is compiled here; that takes over a second
of every start of a worker.
"""

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw


class ParameterGroup(TypedDict):
    """Parameters with the same weight decay."""

    params: Sequence[nn.Parameter]
    weight_decay: float
    lr: float | Tensor
    """A tensor where it follows from an outcome that is still on the device."""


class AdamW:
    """Has the attributes of torch's optimizers that others read: `param_groups` and `state`."""

    def __init__(self, param_groups: list[ParameterGroup], betas: tuple[float, float], eps: float) -> None:
        self.param_groups = param_groups
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        """Number of updates and both moments of each parameter that has been updated."""
        self.found_inf: Tensor | None = None
        """1 on the device where an update must change nothing, as in torch's optimizers; None or 0 elsewhere."""
        self._betas, self._eps = betas, eps

    @torch.no_grad()
    def step(self) -> None:
        """Updates every parameter that has a gradient."""
        for group in self.param_groups:
            gradients = {parameter: parameter.grad for parameter in group["params"] if parameter.grad is not None}
            states = [self._state_of(parameter) for parameter in gradients]
            adamw(
                list(gradients),
                list(gradients.values()),
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=self._betas[0],
                beta2=self._betas[1],
                lr=_for_kernel(group["lr"]),
                weight_decay=group["weight_decay"],
                eps=self._eps,
                maximize=False,
                found_inf=self.found_inf,
            )

    def allocate(self) -> None:
        """Takes the memory of all moments now, and not at the first update."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self._state_of(parameter)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        if parameter not in self.state:
            self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),  # where the kernel reads it
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return self.state[parameter]


def _for_kernel(rate: float | Tensor) -> float | Tensor:
    """Kernels of accelerators read a rate on the device in single precision."""
    return rate.float() if isinstance(rate, Tensor) and rate.device.type != "cpu" else rate
