"""dragoman: trains neural translation models and tells the truth about the run.

For Python programs: `from dragoman import Translator, prepare, train, evaluate`; see docs/python.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.api import PreparedText, TestScores, TrainedRun, Translation, Translator, evaluate, prepare, train

__version__ = "0.1.0"
__all__ = ["PreparedText", "TestScores", "TrainedRun", "Translation", "Translator", "evaluate", "prepare", "train"]


def __getattr__(name: str) -> Any:
    """Imports the names for programs when they are first used: the command line must start quickly."""
    if name in __all__:
        return getattr(import_module("dragoman.api"), name)
    raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
