"""Lines of several sentences, and how long the lines of the training text were."""

import json
from pathlib import Path

import pytest

from dragoman.corpus.tokenizer import Tokenizer, train_tokenizer
from dragoman.run.folder import RunFolder
from dragoman.translation.lines.usual_length import usual_subwords
from dragoman.translation.notices import SPLIT_NOTICE
from dragoman.translation.search import Hypothesis, SearchSettings
from dragoman.translation.translator import LineTranslator

SHORT, LONG = "I see. You go.", "I see a big red house here. You go."


class ForgetfulBackend:
    """Translates a source into itself up to its first sentence end, as a model of single sentences may."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def search_batches(self, batches, _settings):
        for index, batch in enumerate(batches):
            texts = self.tokenizer.decode_lines([segment.ids for segment in batch])
            firsts = [text.partition(".")[0] + "." for text in texts]
            yield index, [[Hypothesis(ids, -1.0, -1.0)] for ids in self.tokenizer.encode_lines(firsts)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_tokenizer(["I see a big red house here. You go."] * 3, 30))


def test_a_line_of_several_sentences_is_translated_whole(tokenizer: Tokenizer) -> None:
    said: list[str] = []
    whole = LineTranslator(ForgetfulBackend(tokenizer), tokenizer, tokenizer, SearchSettings(), say=said.append)
    usual = len(tokenizer.encode_lines([SHORT])[0])
    assert whole.translate([SHORT, LONG]) == ["I see.", "I see a big red house here."]
    assert said == []
    split = whole.by_sentences(usual)
    assert split.translate([SHORT, LONG]) == ["I see.", LONG]
    assert split.by_sentences(usual - 1).translate([SHORT, LONG, "You go. " * 3]) == [
        SHORT,
        LONG,
        "You go. You go. You go.",
    ]
    split.finish_notices()
    split.translate([LONG])
    assert said == [SPLIT_NOTICE]
    assert whole.translate([LONG]) == ["I see a big red house here."]  # test sets are translated line by line


def write_facts(folder: Path, text: str) -> Path:
    folder.mkdir()
    RunFolder(folder).corpus_facts.write_text(text)
    return folder


@pytest.mark.parametrize(("num_tokens", "usual"), [(1426, 14), (6400, 64), (6600, None)])
def test_the_usual_length_is_the_mean_of_the_training_text(tmp_path: Path, num_tokens: int, usual: int | None) -> None:
    facts = {"splits": {"train": {"num_pairs": 100, "source": {"num_tokens": num_tokens}}}}
    assert usual_subwords(write_facts(tmp_path / "run", json.dumps(facts))) == usual


@pytest.mark.parametrize(
    "text", ["", "[]", '{"splits": {"train": {"num_pairs": 0, "source": {"num_tokens": 1}}}}', "{}"]
)
def test_unknown_training_text_is_taken_for_sentences(tmp_path: Path, text: str) -> None:
    assert usual_subwords(write_facts(tmp_path / "run", text)) == 20
    assert usual_subwords(tmp_path / "nothing") == 20
