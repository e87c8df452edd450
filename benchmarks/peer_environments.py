"""Environments of the trainers that ours is compared with: a venv each, with every version pinned in peers/NAME.txt."""

import os
import subprocess
import sys
import venv
from pathlib import Path

from multi30k import REPOSITORY

from dragoman.run.errors import UserError
from dragoman.run.files import write_text

PEERS_FOLDER = REPOSITORY / "benchmarks" / "peers"
CACHE_FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dragoman-benchmarks"


def peer_python(peer: str) -> Path:
    """Returns the Python of a peer's venv; makes the venv where it is missing or where a pinned version changed."""
    pinned = (PEERS_FOLDER / f"{peer}.txt").read_text(encoding="utf-8")
    folder = CACHE_FOLDER / peer
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == pinned:
        return python
    print(f"Installing {peer} into {folder}: some minutes, once.", file=sys.stderr)
    if not python.exists():
        venv.create(folder, with_pip=True)
    # torch comes first, in the build and version that ours uses, so that no other package brings another one.
    index = os.environ.get("TORCH_INDEX")
    _run([str(python), str(REPOSITORY / "install_torch.py"), *(["--index", index] if index else [])])
    requirements = str(PEERS_FOLDER / f"{peer}.txt")
    _run([str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--requirement", requirements])
    write_text(stamp, pinned)
    return python


def _run(command: list[str]) -> None:
    if subprocess.run(command, check=False).returncode:
        raise UserError(f"`{' '.join(command)}` failed; its error is above.")
