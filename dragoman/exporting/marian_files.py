"""Reads the files of a Hugging Face Marian model without trusting them: no code is run, and sizes have limits."""

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.run.errors import UserError, describe_os_error

_MAX_BYTES = {".json": 64 * 2**20, ".spm": 64 * 2**20, ".safetensors": 16 * 2**30}
WEIGHTS_FILE = "model.safetensors"
_MAX_LAYERS = 256
_MAX_SIZE = 2**20


def require_model_folder(folder: Path) -> None:
    """Refuses a folder without the files of a Marian model, with what to do about it."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} is not a Hugging Face model: it has no config.json.")
    if (folder / WEIGHTS_FILE).exists():
        return
    if (folder / "pytorch_model.bin").exists():
        raise UserError(
            f"{folder} has its weights in pytorch_model.bin only, a format that can run code when it is read. If you "
            "trust it, convert it in Python: "
            f"transformers.MarianMTModel.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    if (folder / f"{WEIGHTS_FILE}.index.json").exists():
        raise UserError(f"The weights in {folder} are split over several files, which cannot be imported.")
    raise UserError(f"{folder} has no {WEIGHTS_FILE}.")


def check_file(path: Path) -> Path:
    """Returns the path of a regular file of a size that a model may have; links are followed."""
    try:
        found = path.stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {describe_os_error(error)}.") from None
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path} is not a file.")
    if found.st_size > _MAX_BYTES[path.suffix]:
        raise UserError(f"{path} is too large for a Marian model.")
    return path


def read_bytes(path: Path) -> bytes:
    """Reads a whole file."""
    try:
        return check_file(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {describe_os_error(error)}.") from None


def read_table(path: Path, is_optional: bool = False) -> dict[str, Any]:
    """Reads a JSON file that holds an object."""
    if is_optional and not path.exists():
        return {}
    try:
        values = json.loads(read_bytes(path))
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not valid JSON.") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} is not a JSON object.")
    return values


def read_ids(path: Path, num_rows: int) -> dict[str, int]:
    """Reads a vocabulary: names with different rows of a matrix."""
    ids = read_table(path)
    for name, row in ids.items():
        if not name or type(row) is not int or not 0 <= row < num_rows:
            raise UserError(f"{path} is not the vocabulary of this model: it gives {name[:40]!r} the id {row!r:.40}.")
    if len(set(ids.values())) < len(ids):
        raise UserError(f"{path} is not a vocabulary: two subwords have the same id.")
    return ids


def setting(config: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """Returns a setting of config.json, which must have this type."""
    value = config.get(name, default)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise UserError(f"config.json: {name} is {value!r:.60}, which a Marian model cannot have.")
    return value


def count(config: Mapping[str, Any], name: str) -> int:
    """Returns a size in config.json, within reason."""
    value: int = setting(config, name, int)
    if not 1 <= value <= (_MAX_LAYERS if name.endswith("_layers") else _MAX_SIZE):
        raise UserError(f"config.json: {name} is {value}, which a Marian model cannot have.")
    return value
