"""Checkpoint folders whose files have a right manifest but no real weights, and ways to damage them."""

import hashlib
import json
from pathlib import Path

from dragoman.run.checkpoints import AVERAGED_FILE, MANIFEST_FILE, MODEL_FILE, OPTIMIZER_FILE, REPLICAS_FILE, STATE_FILE
from dragoman.run.folder import RunFolder


def make_checkpoint(run: RunFolder, step: int, format_version: int = 2, **evaluation: float | str) -> Path:
    """Writes a complete checkpoint, evaluated if any figure is given; replaces an older one of the step."""
    folder = run.checkpoint(step)
    folder.mkdir(parents=True, exist_ok=True)
    state = {"format_version": 2, "step": step, "data_fingerprint": "0" * 64, "evaluation": evaluation or None}
    contents = {name: f"{name} of step {step}".encode() * 50 for name in (MODEL_FILE, OPTIMIZER_FILE)}
    contents[STATE_FILE] = json.dumps(state).encode()
    records = {}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        records[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {"format_version": format_version, "step": step, "files": records}
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    return folder


def add_average(folder: Path) -> None:
    """Adds averaged weights that translators are to use."""
    _add_file(folder, AVERAGED_FILE, {"weights": "averaged", "average": {"kind": "ema"}})


def add_replicas(folder: Path) -> None:
    """Adds the state of replicas, which training continues from."""
    _add_file(folder, REPLICAS_FILE, {"has_replicas": True})


def _add_file(folder: Path, name: str, values: dict[str, object]) -> None:
    state = json.loads((folder / STATE_FILE).read_text())
    contents = {name: b"more weights" * 50, STATE_FILE: json.dumps(state | values).encode()}
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))


def flip_bit(path: Path) -> None:
    """Changes one bit; the size stays."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    """Removes the last byte."""
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    """Adds a byte."""
    path.write_bytes(path.read_bytes() + b"\0")
