"""Detects the languages of parallel text from a sample, where they are certain: a wrong one would drop good lines."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from dragoman.corpus.cleaning.clean import clean_block
from dragoman.corpus.cleaning.filters import language_code, resolve_rules
from dragoman.corpus.cleaning.language import (
    are_similar,
    detect_code,
    is_known_language,
    language_name,
    length_in_letters,
    main_script,
    scripts_of,
)
from dragoman.corpus.cleaning.normalisation import normalise
from dragoman.corpus.formats.blocks import BadLines
from dragoman.corpus.formats.reading import ParallelText
from dragoman.corpus.settings import PrepareSettings, TextSettings
from dragoman.run.errors import UserError

_NUM_SAMPLED = 600
"""Pairs read of each text, spread over its first block."""
_CHUNK_LETTERS = 200
"""Lines are joined to chunks of this size: CLD2 is not reliable on shorter text."""
_FEWEST_CHUNKS = 5
_LEAST_SHARE = 0.9
"""Share of chunks that must be in the language or a similar one, and of sampled pairs that the filters must keep."""
_LEAST_SHARE_ALONE = 0.67
"""Share of chunks that must be in the language itself: CLD2 takes some Croatian for Bosnian."""


def detect_languages(settings: PrepareSettings) -> str | None:
    """Returns source and target language, e.g. "en-ja"; None unless both are certain in every training text.

    Two sides in the same or in similar languages are never certain: which lines are wrong could not be said. Neither
    are texts that can be read only once, or not at all; preparing them reports what is wrong.
    """
    try:
        samples = [_read_sample(text, settings.max_expansion) for text in settings.corpora]
    except (UserError, OSError):
        return None
    found = {_detect_pair(*sample) if sample else None for sample in samples}
    languages = found.pop() if len(found) == 1 else None
    if languages is None or not all(_are_kept(*sample, settings, languages) for sample in samples if sample):
        return None
    return languages


def describe_languages(languages: str) -> str:
    """Returns the pair in words, e.g. "English → Japanese (en-ja)"."""
    return f"{' → '.join(map(language_name, languages.split('-')))} ({languages})"


def _read_sample(text: TextSettings, max_expansion: int) -> tuple[list[str], list[str]] | None:
    """Reads pairs from the beginning of a text; None for a pipe, which can be read only once."""
    if not all(path.is_file() for path in text.paths):
        return None
    first = next(ParallelText(text, None, BadLines(0), max_expansion).blocks(), None)
    if first is None:
        return None
    step = max(1, len(first.sources) // _NUM_SAMPLED)
    sources, targets = ([normalise(line) for line in lines[::step]] for lines in (first.sources, first.targets))
    return sources, targets


def _detect_pair(sources: Sequence[str], targets: Sequence[str]) -> str | None:
    source, target = _detect_side(sources), _detect_side(targets)
    if source is None or target is None or are_similar(source, target):
        return None
    return f"{source}-{target}"


def _detect_side(lines: Sequence[str]) -> str | None:
    """Returns the language that nearly all chunks are clearly in, and that is written in their script."""
    chunks = list(_join_to_chunks(dict.fromkeys(lines)))
    if len(chunks) < _FEWEST_CHUNKS:
        return None
    votes = Counter(language_code(found) for found in map(detect_code, chunks) if found)
    code, num_alone = (votes.most_common(1) or [("", 0)])[0]
    num_similar = sum(number for other, number in votes.items() if are_similar(code, other))
    if num_alone < _LEAST_SHARE_ALONE * len(chunks) or num_similar < _LEAST_SHARE * len(chunks):
        return None
    return code if is_known_language(code) and main_script("\n".join(chunks)) in scripts_of(code) else None


def _join_to_chunks(lines: Iterable[str]) -> Iterator[str]:
    chunk: list[str] = []
    num_letters = 0
    for line in lines:
        chunk.append(line)
        num_letters += length_in_letters(line)
        if num_letters >= _CHUNK_LETTERS:
            yield "\n".join(chunk)
            chunk, num_letters = [], 0


def _are_kept(sources: list[str], targets: list[str], settings: PrepareSettings, languages: str) -> bool:
    """Whether the filters that need the languages would keep nearly all of the sample."""
    rules = resolve_rules(settings.model_copy(update={"languages": languages}))
    dropped = clean_block(sources, targets, rules, str).dropped
    num_dropped = sum(dropped[name].num_pairs for name in ("script", "language") if name in dropped)
    return num_dropped <= (1 - _LEAST_SHARE) * len(sources)
