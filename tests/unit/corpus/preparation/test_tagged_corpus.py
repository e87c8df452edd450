"""Back-translations as a tagged corpus: the tag is one subword before the source, and no filter counts it."""

from pathlib import Path

from corpora import decode_split, ignore, make_pairs, num_dropped, write_pairs

from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.settings import CorpusSettings, PrepareSettings, TextSettings, TokenizerSettings

TAG = "<bt>"
NUM_WORDS = 6  # of each sentence of `make_pairs`


def test_a_tag_is_one_subword_of_the_source_that_no_filter_sees(tmp_path: Path) -> None:
    pairs, more, dev, test = (make_pairs(number, seed) for seed, number in enumerate([60, 40, 5, 5]))
    named = {"pairs": pairs, "back": more, "dev": dev, "test": test}
    files = {name: write_pairs(tmp_path, name, each) for name, each in named.items()}
    settings = PrepareSettings(
        corpora=(
            CorpusSettings(source=files["pairs"][0], target=files["pairs"][1], name="pairs"),
            CorpusSettings(source=files["back"][0], target=files["back"][1], name="back", tag=TAG),
        ),
        dev=(TextSettings(source=files["dev"][0], target=files["dev"][1]),),
        test=(TextSettings(source=files["test"][0], target=files["test"][1]),),
        filters={"length_words": (1, NUM_WORDS)},
        tokenizer=TokenizerSettings(vocab_size=120),
    )
    corpus = prepare_corpus(settings, tmp_path / "out", ignore)
    assert num_dropped(corpus, ["length_words"]) == 0
    found = decode_split(corpus, "train")
    assert sorted(found) == sorted([*pairs, *((f"{TAG} {source}", target) for source, target in more)])
    assert decode_split(corpus, "dev") == dev
    [subwords] = corpus.source_tokenizer.encode_as_subwords([f"{TAG} {more[0][0]}"])
    assert next(subword for subword in subwords if subword.strip("▁")) == TAG
