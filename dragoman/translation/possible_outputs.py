"""What an output must be like, and whether any can be; the same for every backend, without torch."""

from collections.abc import Sequence

from dragoman.corpus.tokenizer import NUM_SPECIAL_IDS
from dragoman.run.errors import UsageError
from dragoman.translation.search import SearchSettings, SourceSegment


def require_possible(segment: SourceSegment, settings: SearchSettings) -> None:
    """Refuses what no output can satisfy."""
    if segment.required and settings.sampling is not None:
        raise UsageError("Required words need beam search: they cannot be drawn at random.")
    demands = [("begin with", segment.prefix, True), *(("contain", each, False) for each in segment.required)]
    for name, wanted, is_start in demands:
        if any(token < NUM_SPECIAL_IDS for token in wanted):
            raise UsageError(
                f"Line {segment.number:,}: its translation cannot {name} the given text, because the model's "
                "vocabulary lacks one of the characters."
            )
        if has_forbidden(wanted, settings, is_start):
            raise UsageError(f"Line {segment.number:,}: its translation must {name} text that is also forbidden.")


def has_forbidden(tokens: Sequence[int], settings: SearchSettings, is_start: bool = True) -> bool:
    """Whether an output, or a part of it, contains a forbidden sequence; `is_start` says that the output begins so."""
    if any(contains(tokens, each) for each in settings.forbidden):
        return True
    starts = [place for place in range(1, len(tokens)) if tokens[place - 1] in settings.word_ends]
    return any(
        tuple(tokens[place : place + len(each)]) == each
        for place in [*([0] if is_start else []), *starts]
        for each in settings.forbidden_starts
    )


def max_length(segment: SourceSegment, settings: SearchSettings) -> int:
    """Returns the largest number of subwords of an output, EOS included; its prefix always fits."""
    return max(settings.max_length(segment.num_tokens), len(segment.prefix) + 1)


def contains(tokens: Sequence[int], part: Sequence[int]) -> bool:
    """Whether a sequence occurs in another without a gap."""
    return any(tuple(tokens[begin : begin + len(part)]) == tuple(part) for begin in range(len(tokens) - len(part) + 1))
