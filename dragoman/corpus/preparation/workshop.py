"""What every stage of a preparation works with."""

from collections.abc import Callable
from dataclasses import dataclass

from dragoman.corpus.preparation.engine import Engine
from dragoman.corpus.preparation.work_folder import WorkFolder

Say = Callable[[str], None]
"""Tells a sentence."""
Progress = Callable[[str, int, int | None], None]
"""(what is being done, pairs done, pairs in all if known)"""


@dataclass(frozen=True)
class Workshop:
    """The folder to work in, who does the work, and how to speak to whoever started it."""

    folder: WorkFolder
    engine: Engine
    say: Say
    progress: Progress
