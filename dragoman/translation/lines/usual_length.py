"""How long the lines were that a model learned from: it decides how lines of several sentences are translated.

A model that learned from single sentences leaves out most of several, also where they are short together.
"""

from pathlib import Path

from dragoman.run.files import read_json
from dragoman.run.folder import RunFolder
from dragoman.translation.exported_model import DESCRIPTION_FILE

_UNKNOWN_SUBWORDS = 20
"""Taken where nothing is known about the training text: a usual length of sentences."""
_PARAGRAPH_SUBWORDS = 64
"""Lines that are longer on average are paragraphs: a model that learned from them can translate several sentences."""


def usual_subwords(folder: Path) -> int | None:
    """Returns the mean length of the training sources of a run or an export, in subwords; None for paragraphs."""
    mean = mean_source_subwords(folder) or _UNKNOWN_SUBWORDS
    return mean if mean <= _PARAGRAPH_SUBWORDS else None


def mean_source_subwords(folder: Path) -> int | None:
    """Reads the mean number of subwords from the facts of a run or an export; None where they do not tell."""
    try:
        if (folder / DESCRIPTION_FILE).is_file():
            return int(read_json(folder / DESCRIPTION_FILE)["mean_source_subwords"])
        split = read_json(RunFolder(folder).corpus_facts)["splits"]["train"]
        return int(split["source"]["num_tokens"] / split["num_pairs"] + 0.5)
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError):
        return None
