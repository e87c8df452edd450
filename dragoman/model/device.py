"""The device a model runs on: which one, its number types and its memory. For any accelerator of torch."""

import time
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

_HOST_LIKE = ("cpu", "meta")
_WITHOUT_DOUBLES = ("mps",)
"""Accelerators without double precision, in which an update's norm is computed: their machines train on the CPU."""
CPU_LOSS_POSITIONS = 256
"""Scores of as many positions fit into the cache of a core."""
_MOST_LOSS_POSITIONS = 8_192
_LOSS_MEMORY_SHARE = 1 / 32
_LOSS_BYTES_PER_SCORE = 12
"""Scores, their logarithms and a copy in the precision of the products."""
_WORTHWHILE_SPEEDUP = 1.5
"""A CPU with hardware for bf16 multiplies three to five times as fast; one without it is slower than in fp32."""
_TIMED_SIZES = (1_024, 256, 1_024)
"""Rows, inner size and columns of the products that are timed: about those of a feed-forward layer."""
_TIMING_ROUNDS = 5


def choose_device(local_rank: int = 0) -> torch.device:
    """Returns the accelerator of this rank where there is one, otherwise the CPU."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type in _WITHOUT_DOUBLES:
        return torch.device("cpu")
    torch.accelerator.set_device_index(local_rank)
    return torch.device(found.type, local_rank)


def is_accelerator(device: torch.device) -> bool:
    """Whether kernels run beside the host, on memory of their own."""
    return device.type not in _HOST_LIKE


def free_unused_memory(device: torch.device) -> None:
    """Gives memory that torch keeps for later back to the device; on a CPU, it is used again as it is."""
    if is_accelerator(device):
        torch.accelerator.empty_cache()


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Returns the context a forward pass runs in: "fp32", "bf16" or "fp16"."""
    match precision:
        case "bf16":
            return torch.autocast(device.type, torch.bfloat16)
        case "fp16":
            return torch.autocast(device.type, torch.float16)
        case _:
            return nullcontext()


def set_tf32(is_allowed: bool) -> None:
    """Decides whether NVIDIA GPUs may shorten the factors of fp32 products; other devices never do."""
    torch.backends.cuda.matmul.fp32_precision = "tf32" if is_allowed else "ieee"


def best_precision(device: torch.device) -> Literal["fp32", "bf16", "fp16"]:
    """Returns the fastest precision of matrix products that a device computes in hardware."""
    if device.type == "cpu":
        return "bf16" if cpu_speedup_of_bf16() >= _WORTHWHILE_SPEEDUP else "fp32"
    if not is_accelerator(device):
        return "fp32"
    has_bf16 = torch.get_device_module(device).is_bf16_supported(including_emulation=False)
    return "bf16" if has_bf16 else "fp16"


@cache
def cpu_speedup_of_bf16() -> float:
    """Measures how many times as fast this CPU multiplies matrices of bf16 as matrices of fp32; takes milliseconds.

    Measured, not read from the CPU's flags: torch computes bf16 on any CPU, and on most of them slowly.
    """
    rows, inner, columns = _TIMED_SIZES
    pairs = {dtype: _random_factors(rows, inner, columns, dtype) for dtype in (torch.float32, torch.bfloat16)}
    seconds: dict[torch.dtype, list[float]] = {dtype: [] for dtype in pairs}
    for _ in range(_TIMING_ROUNDS):  # in turns, and the fastest counts: other programs may be busy
        for dtype, (left, right) in pairs.items():
            begin = time.perf_counter()
            left @ right
            seconds[dtype].append(time.perf_counter() - begin)
    return min(seconds[torch.float32]) / min(seconds[torch.bfloat16])


def _random_factors(rows: int, inner: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)  # the run's own random numbers stay as they are
    left, right = (torch.randn(size, generator=generator) for size in ((rows, inner), (inner, columns)))
    return left.to(dtype), right.to(dtype)


def loss_positions(device: torch.device, vocab_size: int) -> int:
    """Returns how many positions the loss computes at a time: few on a CPU, on an accelerator as many as are fast.

    Follows from all memory of the device, not from what is free: a resumed run must add up in the same order.
    """
    if not is_accelerator(device):
        return CPU_LOSS_POSITIONS
    return loss_positions_in(_memory_bytes(device), vocab_size)


def loss_positions_in(memory_bytes: int, vocab_size: int) -> int:
    """Returns the largest power of two whose scores take a small share of a device's memory."""
    positions = int(memory_bytes * _LOSS_MEMORY_SHARE) // (_LOSS_BYTES_PER_SCORE * vocab_size)
    wanted = min(_MOST_LOSS_POSITIONS, max(CPU_LOSS_POSITIONS, positions))
    return 1 << (wanted.bit_length() - 1)


@cache
def _memory_bytes(device: torch.device) -> int:
    _, total_bytes = torch.accelerator.get_memory_info(device)
    return total_bytes


def copy_to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copies an array without waiting for what the device computes; on a CPU, nothing is copied."""
    tensor = torch.from_numpy(array)
    if is_accelerator(device) and not tensor.is_pinned():
        tensor = tensor.pin_memory()  # from other memory, the host itself copies, after all kernels before
    return tensor.to(device, non_blocking=True)
