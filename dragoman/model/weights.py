"""A model's weights as safetensors: no pickle, so loading a file never runs code in it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dragoman.run.errors import UserError
from dragoman.run.files import write_then_rename

_TYPE_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> str:
    """Writes named tensors, completely or not at all, and returns the SHA-256 of the file.

    The bytes are those of safetensors' own `save`, which would block all other threads while it builds the file in
    memory. Writing and hashing one tensor after the other lets training continue.
    """
    # The order of safetensors: the widest numbers first keeps all of them aligned.
    ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    digest = hashlib.sha256()
    with write_then_rename(path) as file:
        file.write(header := _header(ordered))
        digest.update(header)
        for tensor in ordered.values():
            content = _content(tensor)
            file.write(content)
            digest.update(content)
    return digest.hexdigest()


def _header(tensors: dict[str, Tensor]) -> bytes:
    """Returns the length of a JSON document and the document: the position of each tensor in the bytes that follow."""
    entries, begin = {}, 0
    for name, tensor in tensors.items():
        end = begin + tensor.nbytes
        entries[name] = {
            "dtype": _TYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    document = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    document += b" " * (-len(document) % 8)
    return len(document).to_bytes(8, "little") + document


def _content(tensor: Tensor) -> memoryview:
    """Returns a tensor's bytes, without a copy where it is contiguous in host memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Reads named tensors; a missing, truncated or other file is a UserError."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable safetensors file ({error}).") from None


def load_tensors_like(expected: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Reads tensors that must be finite and have the names, shapes and number types of the expected ones."""
    tensors = load_tensors(path)
    for name in sorted(expected.keys() | tensors.keys()):
        wanted, found = (_describe(each[name]) if name in each else "absent" for each in (expected, tensors))
        if wanted != found:
            raise UserError(f"{path} is from another model: {name} is {found}, expected {wanted}.")
        if not tensors[name].isfinite().all():
            raise UserError(
                f"{path} is of no use: {name} has values that are NaN or infinite. Use an earlier checkpoint; to "
                f"continue training from one, remove {path.parent} first."
            )
    return tensors


def load_weights(model: nn.Module, path: Path) -> None:
    """Loads a file into a model; names, shapes and number types must match exactly."""
    model.load_state_dict(load_tensors_like(dict(model.named_parameters()), path), strict=True)


def _describe(tensor: Tensor) -> str:
    """Returns shape and number type, as in "512 × 2048 float32"."""
    return f"{' × '.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"
