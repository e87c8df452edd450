"""Number types in which tensors travel between replicas: fewer bytes, at the price of rounding.

A payload is a tensor of bytes whose length depends only on the number of values.
"""

from typing import Protocol

import torch
from torch import Tensor

WIRE_FORMATS = ("fp32", "fp16", "bf16", "int8", "int4")
BLOCK = 256
"""Values of int8 and int4 that share a scale."""
_SCALE_BYTES = 4
_LARGEST_INT8, _LARGEST_INT4 = 127.0, 7.0
_SMALLEST_SCALE = 1e-30


class WireFormat(Protocol):
    """Turns float32 values into bytes and back."""

    loses_much: bool
    """Whether what is lost must be sent the next time, for learning to succeed."""

    def encode(self, values: Tensor) -> Tensor:
        """Returns the payload of flat float32 values."""

    def decode(self, payload: Tensor, num_values: int) -> Tensor:
        """Returns the values of a payload."""

    def num_bytes(self, num_values: int) -> int:
        """Length of a payload."""


class Float32:
    """Sends values as they are."""

    loses_much = False

    def encode(self, values: Tensor) -> Tensor:
        """Returns the payload of flat float32 values."""
        return values.contiguous().view(torch.uint8)

    def decode(self, payload: Tensor, num_values: int) -> Tensor:
        """Returns the values of a payload."""
        return payload.view(torch.float32)[:num_values]

    def num_bytes(self, num_values: int) -> int:
        """Length of a payload."""
        return num_values * torch.float32.itemsize


class Half:
    """Sends values in half precision, with one scale for all, so that fp16 neither overflows nor loses small ones."""

    loses_much = False

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def encode(self, values: Tensor) -> Tensor:
        """Returns the payload of flat float32 values."""
        scale = values.abs().max().clamp_min(_SMALLEST_SCALE).reshape(1)
        halves = torch.nn.functional.pad(values / scale, (0, values.numel() % 2)).to(self._dtype)
        return torch.cat([scale.view(torch.uint8), halves.view(torch.uint8)])

    def decode(self, payload: Tensor, num_values: int) -> Tensor:
        """Returns the values of a payload."""
        scale = payload[:_SCALE_BYTES].view(torch.float32)
        return payload[_SCALE_BYTES:].view(self._dtype)[:num_values].to(torch.float32) * scale

    def num_bytes(self, num_values: int) -> int:
        """Length of a payload."""
        return _SCALE_BYTES + (num_values + num_values % 2) * self._dtype.itemsize


class Int8:
    """Sends values as whole numbers from -127 to 127, with a scale for every 256 of them."""

    loses_much = True

    def encode(self, values: Tensor) -> Tensor:
        """Returns the payload of flat float32 values."""
        blocks = _blocks(values)
        scales = _scales(blocks, _LARGEST_INT8)
        whole = (blocks / scales).round_().to(torch.int8)
        return torch.cat([scales.view(-1).view(torch.uint8), whole.view(-1).view(torch.uint8)])

    def decode(self, payload: Tensor, num_values: int) -> Tensor:
        """Returns the values of a payload."""
        num_blocks = -(-num_values // BLOCK)
        scales = payload[: num_blocks * _SCALE_BYTES].view(torch.float32)
        whole = payload[num_blocks * _SCALE_BYTES :].view(torch.int8).view(num_blocks, BLOCK)
        return (whole.to(torch.float32) * scales[:, None]).view(-1)[:num_values]

    def num_bytes(self, num_values: int) -> int:
        """Length of a payload."""
        return -(-num_values // BLOCK) * (_SCALE_BYTES + BLOCK)


class Int4:
    """Sends values as whole numbers from -7 to 7, two in a byte, with a scale for every 256 of them."""

    loses_much = True

    def encode(self, values: Tensor) -> Tensor:
        """Returns the payload of flat float32 values."""
        blocks = _blocks(values)
        scales = _scales(blocks, _LARGEST_INT4)
        whole = (blocks / scales).round_().add_(_LARGEST_INT4).to(torch.uint8).view(-1, 2)
        return torch.cat([scales.view(-1).view(torch.uint8), whole[:, 0] | (whole[:, 1] << 4)])

    def decode(self, payload: Tensor, num_values: int) -> Tensor:
        """Returns the values of a payload."""
        num_blocks = -(-num_values // BLOCK)
        scales = payload[: num_blocks * _SCALE_BYTES].view(torch.float32)
        pairs = payload[num_blocks * _SCALE_BYTES :]
        whole = torch.stack([pairs & 15, pairs >> 4], 1).view(num_blocks, BLOCK)
        return (whole.to(torch.float32).sub_(_LARGEST_INT4).mul_(scales[:, None])).view(-1)[:num_values]

    def num_bytes(self, num_values: int) -> int:
        """Length of a payload."""
        return -(-num_values // BLOCK) * (_SCALE_BYTES + BLOCK // 2)


def _blocks(values: Tensor) -> Tensor:
    """Cuts values into rows that share a scale; the last one is filled with zeros."""
    return torch.nn.functional.pad(values, (0, -values.numel() % BLOCK)).view(-1, BLOCK)


def _scales(blocks: Tensor, largest: float) -> Tensor:
    """Returns what the largest whole number of each row stands for."""
    return blocks.abs().amax(1, keepdim=True).clamp_min(_SMALLEST_SCALE) / largest


def wire_format(name: str) -> WireFormat:
    """Returns the format that a setting names."""
    match name:
        case "fp32":
            return Float32()
        case "fp16":
            return Half(torch.float16)
        case "bf16":
            return Half(torch.bfloat16)
        case "int8":
            return Int8()
        case "int4":
            return Int4()
    raise ValueError(f"unknown wire format {name!r}")
