"""Finding the two languages of a text among the names a file uses: "en" is also "EN", "en-US" and "en_XX"."""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path

from dragoman.run.errors import UserError

Languages = tuple[str, str]
"""Source and target."""


@lru_cache
def primary_subtag(name: str) -> str:
    """The language itself, without country or script: "en" of "en-US"."""
    return re.split("[-_]", name, maxsplit=1)[0].lower()


def find_language(language: str, names: Collection[str]) -> str | None:
    """The name that stands for a language: written the same, else but for case, else with the same primary subtag."""
    if language in names:
        return language
    same_letters = (name for name in names if name.lower() == language.lower())
    same_language = (name for name in names if primary_subtag(name) == primary_subtag(language))
    return next(same_letters, None) or next(same_language, None)


def ask_for_languages(path: Path, names: Sequence[str]) -> UserError:
    """The error for a file that does not itself say which two languages are meant."""
    listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if names else "none"
    return UserError(
        f"{path} does not say which of its languages ({listed}) is the source and which the target; "
        'set languages, for instance languages = "en-de".'
    )


def tell_languages(path: Path, languages: Languages) -> str:
    """The notice about languages that the user did not name."""
    return f"{path}: {languages[0]} was taken for the source and {languages[1]} for the target, as the file has them."
