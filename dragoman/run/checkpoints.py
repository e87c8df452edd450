"""Checkpoints as files: which exist, which are complete, which one a name means. Needs no torch."""

from collections.abc import Callable
from pathlib import Path

from dragoman.run.errors import UsageError, UserError
from dragoman.run.files import read_json, sha256
from dragoman.run.folder import RunFolder

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
TRANSLATOR_FILES = (MODEL_FILE, STATE_FILE)
RESUME_FILES = (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE)


def verify_checkpoint(checkpoint: Path, names: tuple[str, ...] = RESUME_FILES) -> None:
    """Compares files with the sizes and SHA-256 in the manifest; a UserError names the first that differs."""
    try:
        files = read_json(checkpoint / MANIFEST_FILE)["files"]
        records = {name: (int(files[name]["bytes"]), str(files[name]["sha256"])) for name in names}
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{checkpoint} is incomplete: its {MANIFEST_FILE} is missing or unreadable.") from None
    for name, (num_bytes, digest) in records.items():
        path = checkpoint / name
        if not path.is_file():
            raise UserError(f"{checkpoint} is incomplete: {name} is missing.")
        if path.stat().st_size != num_bytes or sha256(path) != digest:
            raise UserError(f"{path} is damaged: it is not the file its {MANIFEST_FILE} describes.")


def newest_complete_checkpoint(run: RunFolder, warn: Callable[[str], None]) -> Path | None:
    """Finds the newest checkpoint a run can continue from; damaged ones are skipped with a warning."""
    for step in reversed(run.checkpoint_steps()):
        try:
            verify_checkpoint(run.checkpoint(step))
        except UserError as error:
            warn(f"Skipping a checkpoint: {error}")
        else:
            return run.checkpoint(step)
    return None


def find_checkpoint(run: RunFolder, which: str = "best") -> Path:
    """Finds the checkpoint folder of "best", "latest" or a step number, and verifies what a translator needs."""
    if not run.checkpoint_steps():
        raise UserError(f"{run.path} has no checkpoint yet.")
    if which in ("best", "latest"):
        links = [run.checkpoints / name for name in dict.fromkeys((which, "latest"))]
        checkpoint = next((link.resolve() for link in links if link.exists()), None)
        checkpoint = checkpoint or run.checkpoint(run.checkpoint_steps()[-1])
    elif which.isdecimal():
        checkpoint = run.checkpoint(int(which))
    else:
        raise UsageError(f"--checkpoint takes best, latest or a step number, not {which!r}.")
    if not checkpoint.is_dir():
        steps = ", ".join(map(str, run.checkpoint_steps()))
        raise UserError(f"{run.path} has no checkpoint of step {which}; there are: {steps}.")
    verify_checkpoint(checkpoint, TRANSLATOR_FILES)
    return checkpoint
