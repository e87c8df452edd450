"""Writes and reads a model as plain weights with the facts that are needed to compute with them."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dragoman.exporting.source import ExportSource
from dragoman.model.shape import shape_from_dict
from dragoman.model.transformer import Transformer
from dragoman.model.weights import load_weights, save_tensors
from dragoman.run.errors import UserError
from dragoman.run.files import read_json, write_json

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"


def write_safetensors(source: ExportSource, folder: Path) -> None:
    """Writes the weights under their own names, and the shape and settings of the run."""
    weights = {name: parameter.detach() for name, parameter in source.model.named_parameters()}
    save_tensors(folder / WEIGHTS_FILE, weights)
    settings: dict[str, Any] = json.loads(source.settings.model_dump_json(exclude_none=True))
    settings["data"].pop("prepared", None)  # a folder on the machine that trained
    write_json(folder / CONFIG_FILE, {"shape": asdict(source.shape), "settings": settings})


def load_exported_transformer(folder: Path) -> Transformer:
    """Loads what `write_safetensors` wrote, ready for translation."""
    path = folder / CONFIG_FILE
    try:
        shape = shape_from_dict(read_json(path)["shape"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{path} is missing or damaged: export the model again.") from None
    model = Transformer(shape)
    load_weights(model, folder / WEIGHTS_FILE)
    return model.eval()
