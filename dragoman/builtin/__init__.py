"""The corpora inside the package: English-German sentences from a grammar and a lexicon, and the reversal task.

They need no download and have no copyright; every German sentence is a function of the English one.
"""

from dragoman.builtin.splits import BuiltinCorpus, ParallelFiles, write_builtin_corpus

__all__ = ["BuiltinCorpus", "ParallelFiles", "write_builtin_corpus"]
