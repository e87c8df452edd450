"""A model's weights as safetensors: no pickle, so a stranger's file can at worst be refused."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dragoman.run.errors import UserError
from dragoman.run.files import write_aside


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Writes named tensors, whole or not at all."""
    on_host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with write_aside(path) as file:
        file.write(save(on_host))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Reads named tensors; a missing, cut-off or foreign file is a UserError."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable safetensors file ({error}).") from None


def load_weights(model: nn.Module, path: Path) -> None:
    """Fills a model from a file; names, shapes and number types must fit exactly."""
    tensors = load_tensors(path)
    expected = {name: _describe(parameter) for name, parameter in model.named_parameters()}
    found = {name: _describe(tensor) for name, tensor in tensors.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise UserError(
                f"{path} is from another model: {name} is {found.get(name, 'absent')}, "
                f"expected {expected.get(name, 'absent')}."
            )
    model.load_state_dict(tensors, strict=True)


def _describe(tensor: Tensor) -> str:
    """Shape and number type, as in "512 × 2048 float32"."""
    return f"{' × '.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"
