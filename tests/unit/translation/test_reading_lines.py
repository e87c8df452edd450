"""What a model reads of text from anywhere: what training read of it after `prepare` had cleaned it."""

from collections.abc import Callable

import pytest

from dragoman.corpus.tokenizer import Tokenizer, train_tokenizer
from dragoman.translation.search import Hypothesis, SearchSettings
from dragoman.translation.translator import LineTranslator, SourceLine


class Echo:
    """A backend whose translation is the source, so that tests see what a model would read."""

    def search_batches(self, batches, settings):
        for index, batch in enumerate(batches):
            yield index, [[self._copy(segment.ids)] for segment in batch]

    def _copy(self, ids):
        return Hypothesis(list(ids), 0.0, 0.0, aligned=list(range(len(ids))))


@pytest.fixture(scope="module")
def read() -> Callable[[list[str]], list[str]]:
    """Returns texts as a model reads them; it knows é and the joiner of Persian, but no other odd character."""
    text = "the caf\u00e9 \u0645\u06cc\u200c\u0631\u0648\u0645 on a mat"
    tokenizer = Tokenizer(train_tokenizer([text, *text.split()], 50))
    return LineTranslator(Echo(), tokenizer, tokenizer, SearchSettings(beam_size=1)).translate


@pytest.mark.parametrize(
    "text",
    [
        "the\u00a0caf\u00e9",
        "the  caf\u00e9",
        "the\tcaf\u00e9",
        " the\ncaf\u00e9\r\n",
        "the\u2009caf\u00e9",
        "the cafe\u0301",
    ],
)
def test_text_from_anywhere_reads_as_the_cleaned_text_of_training(read, text: str) -> None:
    assert read([text]) == ["the caf\u00e9"]


def test_invisible_characters_that_the_model_does_not_know_are_left_out(read) -> None:
    marked = [
        "\u202ethe\u202c ca\u00adf\u00e9",
        "\ufeffthe caf\u00e9\u200f",
        "the\0 caf\u00e9\x07",
        "\u200e",
        "\u200b \u200b",
    ]
    assert read(marked) == [*["the caf\u00e9"] * 3, "", ""]
    assert read(["\u0645\u06cc\u200c\u0631\u0648\u0645\u200f"]) == ["\u0645\u06cc\u200c\u0631\u0648\u0645"]


def test_alignments_count_the_words_that_the_caller_sees(read) -> None:
    [[found]] = read.__self__.translate_lines(
        [SourceLine("\u200e the caf\u00e9")], settings=SearchSettings(beam_size=1, with_alignment=True)
    )
    assert max(pair[0] for pair in found.alignment) == 2
