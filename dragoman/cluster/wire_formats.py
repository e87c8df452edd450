"""Number types in which tensors travel between replicas: fewer bytes, at the price of rounding.

A payload is a tensor of bytes whose length depends only on the number of values.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

WIRE_FORMATS = ("fp32", "fp16", "bf16", "int8", "int4")
BLOCK = 256
"""Values of int8 and int4 that share a scale."""
_SCALE_BYTES = 4
_BLOCKS_AT_ONCE = 1024
_SMALLEST_SCALE = 1e-30


class WireFormat(Protocol):
    """Turns float32 values into bytes and back."""

    loses_much: bool
    """Whether what is lost must be sent the next time, for learning to succeed."""

    def encode(self, values: Tensor, residual: Tensor | None = None) -> Tensor:
        """Returns the payload of flat float32 values, plus what was lost before; `residual` becomes what is lost."""

    def decode(self, payload: Tensor, num_values: int) -> Tensor:
        """Returns the values of a payload; they may share its memory."""

    def add_to(self, total: Tensor, payload: Tensor) -> None:
        """Adds the values of a payload."""

    def num_bytes(self, num_values: int) -> int:
        """Length of a payload."""


class _Whole:
    """Sends all values at once; what is lost is too little to be kept."""

    loses_much = False

    def decode(self, payload: Tensor, num_values: int) -> Tensor:
        """Returns the values of a payload; they may share its memory."""
        raise NotImplementedError

    def add_to(self, total: Tensor, payload: Tensor) -> None:
        """Adds the values of a payload."""
        total += self.decode(payload, total.numel())


class Float32(_Whole):
    """Sends values as they are."""

    def encode(self, values: Tensor, _residual: Tensor | None = None) -> Tensor:
        """Returns the payload of flat float32 values."""
        return values.contiguous().view(torch.uint8)

    def decode(self, payload: Tensor, num_values: int) -> Tensor:
        """Returns the values of a payload."""
        return payload.view(torch.float32)[:num_values]

    def num_bytes(self, num_values: int) -> int:
        """Length of a payload."""
        return num_values * torch.float32.itemsize


class Half(_Whole):
    """Sends values in half precision, with one scale for all, so that fp16 neither overflows nor loses small ones."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def encode(self, values: Tensor, _residual: Tensor | None = None) -> Tensor:
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


class _InBlocks:
    """Sends values as small whole numbers, with a scale for every 256 of them: all scales first, then the numbers.

    Works on one piece of memory after the other: each stays in the cache of a core until it is done.
    """

    loses_much = True
    _largest: float
    _bytes_per_block: int

    def encode(self, values: Tensor, residual: Tensor | None = None) -> Tensor:
        """Returns the payload of flat float32 values, plus what was lost before; `residual` becomes what is lost."""
        payload = torch.empty(self.num_bytes(values.numel()), dtype=torch.uint8, device=values.device)
        scales, rows = self._split(payload, values.numel())
        for piece, part in _pieces(values.numel()):
            sent = values[part] if residual is None else residual[part].add_(values[part])
            blocks = _blocks(sent)
            torch.div(blocks.abs().amax(1, keepdim=True).clamp_min_(_SMALLEST_SCALE), self._largest, out=scales[piece])
            numbers = (blocks / scales[piece]).round_()
            self._pack(numbers, rows[piece])
            if residual is not None:
                # A gradient that is not finite must reach the guard, but not stay for the steps after it.
                sent.sub_(numbers.mul_(scales[piece]).view(-1)[: sent.numel()]).nan_to_num_(0.0, 0.0, 0.0)
        return payload

    def decode(self, payload: Tensor, num_values: int) -> Tensor:
        """Returns the values of a payload."""
        values = torch.zeros(num_values, device=payload.device)
        self.add_to(values, payload)
        return values

    def add_to(self, total: Tensor, payload: Tensor) -> None:
        """Adds the values of a payload."""
        scales, rows = self._split(payload, total.numel())
        for piece, part in _pieces(total.numel()):
            total[part] += self._unpack(rows[piece]).mul_(scales[piece]).view(-1)[: part.stop - part.start]

    def num_bytes(self, num_values: int) -> int:
        """Length of a payload."""
        return _num_blocks(num_values) * (_SCALE_BYTES + self._bytes_per_block)

    def _split(self, payload: Tensor, num_values: int) -> tuple[Tensor, Tensor]:
        """Returns views of the scales and of the numbers, with a row for each block."""
        end = _num_blocks(num_values) * _SCALE_BYTES
        return payload[:end].view(torch.float32).view(-1, 1), payload[end:].view(-1, self._bytes_per_block)

    def _pack(self, numbers: Tensor, rows: Tensor) -> None:
        """Writes whole numbers as bytes."""
        raise NotImplementedError

    def _unpack(self, rows: Tensor) -> Tensor:
        """Returns bytes as whole numbers in float32."""
        raise NotImplementedError


class Int8(_InBlocks):
    """Sends whole numbers from -127 to 127."""

    _largest, _bytes_per_block = 127.0, BLOCK

    def _pack(self, numbers: Tensor, rows: Tensor) -> None:
        rows.view(torch.int8).copy_(numbers)

    def _unpack(self, rows: Tensor) -> Tensor:
        return rows.view(torch.int8).to(torch.float32)


class Int4(_InBlocks):
    """Sends whole numbers from -7 to 7; a byte has one of the first half of a block and one of the second."""

    _largest, _bytes_per_block = 7.0, BLOCK // 2

    def _pack(self, numbers: Tensor, rows: Tensor) -> None:
        first, second = (numbers.to(torch.int8) + int(self._largest)).view(torch.uint8).chunk(2, 1)
        torch.add(first, second, alpha=16, out=rows)

    def _unpack(self, rows: Tensor) -> Tensor:
        numbers = torch.empty(len(rows), BLOCK, device=rows.device)
        numbers[:, : BLOCK // 2] = rows & 15
        numbers[:, BLOCK // 2 :] = rows >> 4
        return numbers.sub_(self._largest)


def _num_blocks(num_values: int) -> int:
    return -(-num_values // BLOCK)


def _pieces(num_values: int) -> Iterator[tuple[slice, slice]]:
    """Cuts values into pieces of whole blocks; yields the blocks and the values of each."""
    num_blocks = _num_blocks(num_values)
    for begin in range(0, num_blocks, _BLOCKS_AT_ONCE):
        end = min(begin + _BLOCKS_AT_ONCE, num_blocks)
        yield slice(begin, end), slice(begin * BLOCK, min(end * BLOCK, num_values))


def _blocks(values: Tensor) -> Tensor:
    """Cuts values into rows that share a scale; the last one is filled with zeros."""
    missing = -values.numel() % BLOCK
    return (torch.nn.functional.pad(values, (0, missing)) if missing else values).view(-1, BLOCK)


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
