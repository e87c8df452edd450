"""The device a model runs on, and the number type of its forward pass."""

from contextlib import AbstractContextManager, nullcontext

import torch


def choose_device(local_rank: int = 0) -> torch.device:
    """Returns the GPU of this rank where there is one, otherwise the CPU."""
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Returns the context a forward pass runs in: "fp32", "bf16" or "fp16"."""
    match precision:
        case "bf16":
            return torch.autocast(device.type, torch.bfloat16)
        case "fp16":
            return torch.autocast(device.type, torch.float16)
        case _:
            return nullcontext()
