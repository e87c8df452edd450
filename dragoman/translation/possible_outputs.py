"""What an output must be like, and whether any can be; the same for every backend, without torch."""

from collections.abc import Sequence

from dragoman.corpus.tokenizer import NUM_SPECIAL_IDS
from dragoman.run.errors import UsageError
from dragoman.translation.search import SearchSettings, SourceSegment


def require_possible(segment: SourceSegment, settings: SearchSettings) -> None:
    """Refuses what no output can satisfy."""
    for name, wanted in [("begin with", segment.prefix), *(("contain", each) for each in segment.required)]:
        if any(token < NUM_SPECIAL_IDS for token in wanted):
            raise UsageError(
                f"Line {segment.number:,}: its translation cannot {name} the given text, because the model's "
                "vocabulary lacks one of the characters."
            )
        if any(contains(wanted, forbidden) for forbidden in settings.forbidden):
            raise UsageError(f"Line {segment.number:,}: its translation must {name} text that is also forbidden.")


def max_length(segment: SourceSegment, settings: SearchSettings) -> int:
    """Returns the largest number of subwords of an output, EOS included; its prefix always fits."""
    return max(settings.max_length(segment.num_tokens), len(segment.prefix) + 1)


def contains(tokens: Sequence[int], part: Sequence[int]) -> bool:
    """Whether a sequence occurs in another without a gap."""
    return any(tuple(tokens[begin : begin + len(part)]) == tuple(part) for begin in range(len(tokens) - len(part) + 1))
