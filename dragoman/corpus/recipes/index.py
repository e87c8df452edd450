"""Recipes, and mtdata's index of datasets and their addresses."""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from dragoman.run.errors import UsageError, UserError, describe_os_error, did_you_mean

_READABLE_FORMATS = ("txt", "tsv", "sgm", "tmx")
LanguagePair = tuple[str, str]


@dataclass(frozen=True)
class Dataset:
    """Parallel text as mtdata describes it: what to download and which files of it to use."""

    id: str
    urls: tuple[str, ...]
    filenames: tuple[str, ...]
    """Names of the downloads in the cache, one for each URL."""
    members: tuple[str, ...]
    """Files inside the archive, as patterns; none if the download is the text itself."""
    format: str
    columns: tuple[int, ...]
    """TSV: the columns of the two languages, counted from 0."""

    @property
    def languages(self) -> LanguagePair:
        """Its two language tags in the order of its files, e.g. ("deu", "eng_GB")."""
        first, second = self.id.split("-")[-2:]
        return first, second

    @property
    def is_readable(self) -> bool:
        """Whether it can be converted to plain text."""
        if self.format not in _READABLE_FORMATS:
            return False
        num_texts = len(self.members) or len(self.urls)
        # mtdata 0.5.1 names the same file for both languages of flores101, which then has no translation.
        is_two_texts = num_texts == 2 and len(set(self.members or self.urls)) == 2
        return is_two_texts if self.format in ("txt", "sgm") else len(self.urls) == 1


def cache_folder() -> Path:
    """Folder of the downloads, which mtdata uses too: $MTDATA, else ~/.mtdata."""
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
        """Returns the dataset with this id."""
        return next(self._datasets(f'"id": "{dataset_id}"'), None)

    def for_languages(self, languages: LanguagePair) -> Iterator[Dataset]:
        """Yields datasets in both languages, in either direction and of any region or script."""
        wanted = {self.primary_code(tag) for tag in languages}
        for dataset in self._datasets(*(f"-{code}" for code in wanted)):
            if {self.primary_code(tag) for tag in dataset.languages} == wanted:
                yield dataset

    def primary_code(self, tag: str) -> str:
        """Returns the language of a tag in three letters: deu for de, deu, de-AT and deu_Latn."""
        code = tag.replace("-", "_").split("_")[0].lower()
        return self._three_letters.get(code, code)

    def short_code(self, tag: str) -> str:
        """Returns the language of a tag in two letters if there is such a code, else in three."""
        code = self.primary_code(tag)
        return self._two_letters.get(code, code)

    def _datasets(self, *parts: str) -> Iterator[Dataset]:
        """Yields datasets whose line has all these parts; searched before parsing, 280,000 lines take a second."""
        with self.path.open(encoding="utf-8") as file:
            file.readline()
            for line in file:
                if all(part in line for part in parts):
                    yield Dataset(**_with_tuples(json.loads(line)))


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Converts lists to tuples, as frozen dataclasses need them."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def load_index(say: Callable[[str], None]) -> Index:
    """Returns the index of the installed mtdata; the first call builds it, which takes half a minute."""
    path = cache_folder() / f"dragoman-index-1-of-mtdata-{version('mtdata')}.jsonl"
    if not path.exists():
        say(f"Building an index of mtdata's datasets in {path.parent}; this is done once and takes half a minute.")
        _build_index(path)
    return Index(path)


def _build_index(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=path.parent, prefix=".index-")
    except OSError as problem:
        raise UserError(
            f"{path.parent} cannot be written: {describe_os_error(problem)}. "
            "Set the environment variable MTDATA to a folder for downloads."
        ) from None
    with folder as name:
        aside = Path(name, "index.jsonl")
        _run_builder(aside)
        aside.replace(path)


def _run_builder(out: Path) -> None:
    """Runs build_index.py in an empty folder that is also mtdata's cache, so that its pickle is new and not kept."""
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
        raise UserError(f"mtdata's index could not be built: {reason}")


def parse_languages(text: str) -> LanguagePair:
    """Parses two language codes, e.g. "en-de"."""
    codes = text.split("-")
    if len(codes) != 2 or not all(code.replace("_", "").isalnum() for code in codes):
        raise UsageError(f"Languages are given as source-target, e.g. en-de, not {text!r}.")
    return codes[0], codes[1]


@dataclass(frozen=True)
class Recipe:
    """A named corpus: the datasets for training, dev and test."""

    name: str
    about: str
    languages: str
    """Source and target, e.g. en-de."""
    train: tuple[str, ...]
    """Ids of mtdata, as in dev and test."""
    dev: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    num_pairs: int | None = None
    """Pairs of the training text, rounded."""

    @property
    def dataset_ids(self) -> list[tuple[str, str]]:
        """(part, id) of all its datasets; part is train, dev or test."""
        parts = {"train": self.train, "dev": self.dev, "test": self.test}
        return [(part, dataset_id) for part, ids in parts.items() for dataset_id in ids]


@dataclass(frozen=True)
class CorpusListing:
    """The corpora that can be downloaded by name."""

    recipes: tuple[Recipe, ...]
    datasets: tuple[str, ...] | None
    """Ids of all datasets of mtdata for the given languages; None if no languages were given."""

    def lines(self) -> list[str]:
        """Returns the list for the terminal."""
        width = max((len(recipe.name) for recipe in self.recipes), default=0)
        lines = ["Recipes (dragoman data get NAME --out DIR):"]
        for recipe in self.recipes:
            size = f"about {recipe.num_pairs:,} pairs; " if recipe.num_pairs else ""
            lines.append(f"  {recipe.name:<{width}}  {recipe.languages}  {size}{recipe.about}")
        if self.datasets is not None:
            lines += [
                f"{len(self.datasets):,} datasets of mtdata, which can be downloaded by name too:",
                *map("  {}".format, self.datasets),
            ]
        return lines


@cache
def load_recipes() -> dict[str, Recipe]:
    """Returns all recipes of recipes.toml by name."""
    text = files("dragoman.corpus.recipes").joinpath("recipes.toml").read_text(encoding="utf-8")
    return {name: Recipe(name, **_with_tuples(table)) for name, table in tomllib.loads(text).items()}


def list_corpora(
    languages: LanguagePair | None = None, say: Callable[[str], None] = lambda _: None, index: Index | None = None
) -> CorpusListing:
    """Lists all recipes; or, for two languages (en or eng, in either order), the recipes and datasets for them."""
    recipes = tuple(load_recipes().values())
    if languages is None:
        return CorpusListing(recipes, None)
    index = index or load_index(say)
    wanted = {index.primary_code(tag) for tag in languages}
    fitting = [
        recipe for recipe in recipes if {index.primary_code(tag) for tag in parse_languages(recipe.languages)} == wanted
    ]
    readable = sorted(dataset.id for dataset in index.for_languages(languages) if dataset.is_readable)
    return CorpusListing(tuple(fitting), tuple(readable))


def find_recipe(name: str, index: Index) -> Recipe:
    """Returns the recipe with this name, or a recipe of the mtdata dataset with this id."""
    if name in load_recipes():
        return load_recipes()[name]
    dataset = index.find(name)
    if dataset is None:
        hint = did_you_mean(name, load_recipes())
        raise UsageError(f"There is no recipe and no mtdata dataset {name!r}{hint} To see all: dragoman data list")
    return _single_dataset(dataset, index)


def _single_dataset(dataset: Dataset, index: Index) -> Recipe:
    source, target = (index.short_code(tag) for tag in dataset.languages)
    return Recipe(dataset.id, "One dataset of mtdata.", f"{source}-{target}", train=(dataset.id,))
