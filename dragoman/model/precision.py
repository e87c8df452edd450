"""The number type of the matrix products; weights, sums and norms stay fp32."""

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context a forward pass runs in: "fp32", "bf16" or "fp16"."""
    match precision:
        case "bf16":
            return torch.autocast(device.type, torch.bfloat16)
        case "fp16":
            return torch.autocast(device.type, torch.float16)
        case _:
            return nullcontext()
