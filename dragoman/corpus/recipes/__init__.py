"""Public corpora by name: recipes.toml says which, mtdata's index says where, and the files end up ready to prepare."""

from dragoman.corpus.recipes.fetching import Part, get_recipe
from dragoman.corpus.recipes.index import CorpusListing, Recipe, list_corpora, parse_languages

__all__ = ["CorpusListing", "Part", "Recipe", "get_recipe", "list_corpora", "parse_languages"]
