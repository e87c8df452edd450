"""What mtdata knows: which datasets exist, for which languages, and where. Kept as JSON lines in mtdata's cache folder.

Made once for each version of mtdata, without the network.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dragoman.run.errors import UsageError, UserError

READABLE_FORMATS = ("txt", "tsv", "sgm", "tmx")
LanguagePair = tuple[str, str]


@dataclass(frozen=True)
class Dataset:
    """Parallel text as mtdata describes it: what to download and what to take out of it."""

    id: str
    urls: tuple[str, ...]
    filenames: tuple[str, ...]
    """Of the downloads in the cache, one for each URL."""
    members: tuple[str, ...]
    """Files inside the archive, as patterns; none if the download is the text itself."""
    format: str
    columns: tuple[int, ...]
    """TSV: which columns hold the two languages, counted from 0."""

    @property
    def languages(self) -> LanguagePair:
        """Its two tags in the order of its files, e.g. ("deu", "eng_GB")."""
        first, second = self.id.split("-")[-2:]
        return first, second

    @property
    def is_readable(self) -> bool:
        """Whether we can make plain text of it."""
        if self.format not in READABLE_FORMATS:
            return False
        num_texts = len(self.members) or len(self.urls)
        # With the same file for both languages (as mtdata 0.5.1 has it for flores101) there is no translation in it.
        is_two_texts = num_texts == 2 and len(set(self.members or self.urls)) == 2
        return is_two_texts if self.format in ("txt", "sgm") else len(self.urls) == 1


def cache_folder() -> Path:
    """Where mtdata keeps its downloads, and so do we: $MTDATA, else ~/.mtdata."""
    return Path(os.environ.get("MTDATA", "~/.mtdata")).expanduser()


class Index:
    """mtdata's datasets, read from a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _three_letters(self) -> dict[str, str]:
        with self.path.open(encoding="utf-8") as file:
            languages: dict[str, str] = json.loads(file.readline())["languages"]
        return languages

    @cached_property
    def _two_letters(self) -> dict[str, str]:
        return {three: two for two, three in self._three_letters.items()}

    def find(self, dataset_id: str) -> Dataset | None:
        """The dataset with this id."""
        return next(self._datasets(f'"id": "{dataset_id}"'), None)

    def for_languages(self, languages: LanguagePair) -> Iterator[Dataset]:
        """Datasets in both languages, in either direction and of any region or script."""
        wanted = {self.primary_code(tag) for tag in languages}
        for dataset in self._datasets(*(f"-{code}" for code in wanted)):
            if {self.primary_code(tag) for tag in dataset.languages} == wanted:
                yield dataset

    def primary_code(self, tag: str) -> str:
        """The language of a tag, in three letters: deu for de, deu, de-AT and deu_Latn."""
        code = tag.replace("-", "_").split("_")[0].lower()
        return self._three_letters.get(code, code)

    def short_code(self, tag: str) -> str:
        """The language of a tag as people write it: in two letters where there are two."""
        code = self.primary_code(tag)
        return self._two_letters.get(code, code)

    def _datasets(self, *parts: str) -> Iterator[Dataset]:
        """Datasets whose line holds all parts; looking before parsing makes 280,000 lines a matter of a second."""
        with self.path.open(encoding="utf-8") as file:
            file.readline()
            for line in file:
                if all(part in line for part in parts):
                    yield Dataset(**with_tuples(json.loads(line)))


def with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """The same values with tuples for lists, as frozen dataclasses want them."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def load_index(say: Callable[[str], None]) -> Index:
    """The index of the installed mtdata; the first time it is made, which takes half a minute."""
    path = cache_folder() / f"dragoman-index-1-of-mtdata-{version('mtdata')}.jsonl"
    if not path.exists():
        say(f"Making an index of mtdata's datasets in {path.parent}; this happens once and takes half a minute.")
        _build_index(path)
    return Index(path)


def _build_index(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=path.parent, prefix=".index-")
    except OSError as problem:
        raise UserError(
            f"{path.parent} cannot be written: {problem.strerror}. "
            "Set the environment variable MTDATA to a folder for downloads."
        ) from None
    with folder as name:
        aside = Path(name, "index.jsonl")
        _run_builder(aside)
        aside.replace(path)


def _run_builder(out: Path) -> None:
    """Runs build_index.py in an empty folder that is also mtdata's cache: its pickle is made new and not kept."""
    program = Path(__file__).with_name("build_index.py")
    done = subprocess.run(
        [sys.executable, "-P", str(program), str(out)],
        cwd=out.parent,
        env=os.environ | {"MTDATA": str(out.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"mtdata's index could not be made: {reason}")


def parse_languages(text: str) -> LanguagePair:
    """Two language codes out of "en-de"."""
    codes = text.split("-")
    if len(codes) != 2 or not all(code.replace("_", "").isalnum() for code in codes):
        raise UsageError(f"Languages are given as source-target, e.g. en-de, not {text!r}.")
    return codes[0], codes[1]
