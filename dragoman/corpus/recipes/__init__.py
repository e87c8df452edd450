"""Downloads public corpora by name: recipes.toml lists their datasets, and mtdata's index has their addresses."""

from dragoman.corpus.recipes.fetching import FetchedDataset, get_recipe
from dragoman.corpus.recipes.index import CorpusListing, Recipe, list_corpora, parse_languages

__all__ = ["CorpusListing", "FetchedDataset", "Recipe", "get_recipe", "list_corpora", "parse_languages"]
