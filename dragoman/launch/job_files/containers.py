"""What Docker and Kubernetes share: an image with dragoman in it, one folder from outside, torchrun inside."""

from collections.abc import Sequence
from pathlib import Path

from dragoman import __version__
from dragoman.launch.job_files.request import SECONDS_TO_SAVE, double_dollars
from dragoman.run.errors import UsageError

DEFAULT_IMAGE = f"dragoman:{__version__}"
"""A version, not `latest`, which Kubernetes would look for anew at every start."""
DEFAULT_DATA = Path("/data")
"""Has the same name inside and outside, so that a path in a config means the same in both places."""
_SECONDS_FOR_WORKERS = SECONDS_TO_SAVE - 10
"""torchrun kills workers 30 seconds after it was asked to stop, unless told; it needs a few more to end itself."""


def torchrun_arguments(train: Sequence[str]) -> list[str]:
    """How torchrun starts a worker, safe from the expansion of variables; where it runs is said before."""
    words = [f"--shutdown-timeout={_SECONDS_FOR_WORKERS}", "--no-python", "dragoman", *train]
    return [double_dollars(word) for word in words]


def require_below(path: Path, folder: Path, what: str) -> None:
    """Refuses what containers could not find: they see one folder only."""
    if not path.is_relative_to(folder):
        raise UsageError(
            f"{what} is {path}, but containers see only {folder}: "
            f"give it a place there, or name a folder that holds it with --data."
        )
