"""What one machine can say of itself before a run: versions, code, data, disk, clock. Quick, and without torch."""

import hashlib
import json
import os
import shutil
import socket
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dragoman
from dragoman.run.files import read_json
from dragoman.run.folder import RunFolder
from dragoman.run.processes import num_cores


@dataclass(frozen=True)
class Facts:
    """Of one host."""

    hostname: str
    dragoman: str
    code: str
    """Hash of the program's own files: two clones may have the same version and differ."""
    torch: str
    python: str
    num_cores: int
    num_gpus: int
    data: str | None
    """Hash of the prepared corpus; None where there is none, or not all of it."""
    config: str | None
    """Hash of the run's config.toml; None where there is none."""
    shares_run_folder: bool
    """Whether what the launcher writes into the run folder is seen here."""
    free_disk_bytes: int
    time: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def gather_facts(run: RunFolder, prepared: Path, token: str) -> Facts:
    """The facts of this machine, about this run."""
    return Facts(
        hostname=socket.gethostname(),
        dragoman=dragoman.__version__,
        code=code_fingerprint(),
        torch=version("torch"),
        python=sys.version.split()[0],
        num_cores=num_cores(),
        num_gpus=count_gpus(),
        data=data_fingerprint(prepared),
        config=config_fingerprint(run),
        shares_run_folder=(run.path / token).exists(),
        free_disk_bytes=free_disk(run.path),
        time=time.time(),
    )


def code_fingerprint() -> str:
    """A hash over the program's source files."""
    folder = Path(dragoman.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def data_fingerprint(prepared: Path) -> str | None:
    """A hash of what the manifest of a prepared corpus says it holds; None where files are missing or cut off."""
    try:
        files = read_json(prepared / "manifest.json")["files"]
        is_whole = all((prepared / name).stat().st_size == record["num_bytes"] for name, record in files.items())
        # The pages for people name the user's files, which may differ.
        content = {name: record["sha256"] for name, record in files.items() if not name.endswith(".md")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest() if is_whole else None


def config_fingerprint(run: RunFolder) -> str | None:
    """Of the settings as they stand in the run folder."""
    try:
        return hashlib.sha256(run.config.read_bytes()).hexdigest()
    except OSError:
        return None


def free_disk(folder: Path) -> int:
    """Bytes free where a folder is, or would be."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def count_gpus() -> int:
    """GPUs this process may use, asked of the system and not of torch, whose import takes seconds."""
    if version("torch").endswith("+cpu"):
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
