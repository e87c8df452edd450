"""The recipes of recipes.toml, and what else mtdata has for two languages."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from dragoman.corpus.recipes.index import Dataset, Index, LanguagePair, load_index, parse_languages, with_tuples
from dragoman.run.errors import UsageError


@dataclass(frozen=True)
class Recipe:
    """A corpus with a name: which datasets to train on, judge by, and test with."""

    name: str
    about: str
    languages: str
    """Source and target, e.g. en-de."""
    train: tuple[str, ...]
    """Ids of mtdata; so are dev and test."""
    dev: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    num_pairs: int | None = None
    """Of the training text, about."""

    @property
    def dataset_ids(self) -> list[tuple[str, str]]:
        """(part, id) of all datasets in it; part is train, dev or test."""
        parts = {"train": self.train, "dev": self.dev, "test": self.test}
        return [(part, dataset_id) for part, ids in parts.items() for dataset_id in ids]


@dataclass(frozen=True)
class CorpusListing:
    """What can be fetched by name."""

    recipes: tuple[Recipe, ...]
    datasets: tuple[str, ...] | None
    """Ids of all of mtdata's datasets for the languages asked for; None if none were."""

    def lines(self) -> list[str]:
        """The listing for a terminal."""
        width = max((len(recipe.name) for recipe in self.recipes), default=0)
        lines = ["Recipes (dragoman data get NAME --out DIR):"]
        for recipe in self.recipes:
            size = f"about {recipe.num_pairs:,} pairs; " if recipe.num_pairs else ""
            lines.append(f"  {recipe.name:<{width}}  {recipe.languages}  {size}{recipe.about}")
        if self.datasets is not None:
            lines += [
                f"{len(self.datasets):,} datasets of mtdata, to be got by name too:",
                *map("  {}".format, self.datasets),
            ]
        return lines


@cache
def load_recipes() -> dict[str, Recipe]:
    """All recipes by name, as in recipes.toml."""
    text = files("dragoman.corpus.recipes").joinpath("recipes.toml").read_text(encoding="utf-8")
    return {name: Recipe(name, **with_tuples(table)) for name, table in tomllib.loads(text).items()}


def list_corpora(
    languages: LanguagePair | None = None, say: Callable[[str], None] = lambda _: None, index: Index | None = None
) -> CorpusListing:
    """All recipes; or, for two languages (en or eng, either way round), the recipes and mtdata's datasets for them."""
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
    """The recipe of this name, or one made of the mtdata dataset with this id."""
    if name in load_recipes():
        return load_recipes()[name]
    dataset = index.find(name)
    if dataset is None:
        nearest = get_close_matches(name, load_recipes(), n=1, cutoff=0.3)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise UsageError(f"There is no recipe and no mtdata dataset {name!r}.{hint} See: dragoman data list")
    return _single_dataset(dataset, index)


def _single_dataset(dataset: Dataset, index: Index) -> Recipe:
    source, target = (index.short_code(tag) for tag in dataset.languages)
    return Recipe(dataset.id, "One dataset of mtdata.", f"{source}-{target}", train=(dataset.id,))
