"""Tests that decoding the shards gives the cleaned text, byte for byte, for every line."""

from collections import Counter

import pytest
from corpora import (
    TextPair,
    decode_all,
    decode_split,
    ignore,
    make_pairs,
    num_dropped,
    prepare_pairs,
    settings_for,
    write_pairs,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.corpus.cleaning.normalisation import normalise, strip_only
from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.settings import CorpusSettings, FilterSettings, PrepareSettings, TokenizerSettings

LINES = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=12)
PAIRS = st.lists(st.tuples(LINES, LINES), max_size=12)
# How little text is enough is not at stake here, so every text has some sentences to hold out and to learn from.
FILLING = make_pairs(16)
TOKENIZERS = [
    TokenizerSettings(kind=kind, byte_fallback=byte_fallback, separate=separate)
    for kind in ("bpe", "unigram")
    for byte_fallback in (False, True)
    for separate in (False, True)
]


def cleaned_pairs(pairs: list[TextPair], is_normalised: bool, keeps_empty: bool) -> Counter[TextPair]:
    """The rule, told again: white space is tidied; empty sides and characters of the tokenizer are left out."""
    tidy = normalise if is_normalised else strip_only
    as_read = [(source.removesuffix("\r"), target.removesuffix("\r")) for source, target in pairs]
    as_read[0] = (as_read[0][0].removeprefix("\ufeff"), as_read[0][1].removeprefix("\ufeff"))
    tidied = [(tidy(source), tidy(target)) for source, target in as_read]
    return Counter(pair for pair in tidied if (keeps_empty or all(pair)) and not set("▁▅") & set("".join(pair)))


def assert_all_came_back(decoded: list[TextPair], held_out: list[TextPair], cleaned: Counter[TextPair]) -> int:
    """Returns how many pairs are missing, all of which share a sentence with those that were held out."""
    missing = cleaned.copy()
    missing.subtract(decoded)
    assert min(missing.values()) >= 0, "text that was never given"
    sources, targets = map(set, zip(*held_out, strict=True))
    assert all(source in sources or target in targets for (source, target), number in missing.items() if number)
    return missing.total()


@settings(max_examples=30)
@given(
    pairs=PAIRS,
    tokenizer=st.sampled_from(TOKENIZERS),
    is_normalised=st.booleans(),
    keeps_empty=st.booleans(),
    tag=st.sampled_from([None, "<bt>", "▲", "<2de> formal:"]),
)
@example([("\ufeffx", "\ufeffy"), ("a\r", "b\u2028\x85c"), ("é", "e\u0301")], TOKENIZERS[0], True, False, "<bt>")
@example([("a\tb  c", "\u00a0 d \u3000e\x1c"), ("⁇", "<s> </s> <unk>")], TOKENIZERS[-1], False, True, None)
def test_every_line_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    pairs: list[TextPair],
    tokenizer: TokenizerSettings,
    is_normalised: bool,
    keeps_empty: bool,
    tag: str | None,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    source, target = write_pairs(folder, "train", [*pairs, *FILLING])
    wanted = PrepareSettings(
        corpora=(CorpusSettings(source=source, target=target, tag=tag),),
        cleaning="none",
        filters=FilterSettings(empty=not keeps_empty),
        normalise=is_normalised,
        tokenizer=tokenizer,
        held_out=2,
    )
    corpus = prepare_corpus(wanted, folder / "out", ignore)
    prefix = f"{tag} " if tag else ""
    decoded = decode_all(corpus)
    assert all(source.startswith(prefix) for source, _ in decoded)
    untagged = [(source.removeprefix(prefix), target) for source, target in decoded]
    cleaned = cleaned_pairs([*pairs, *FILLING], is_normalised, keeps_empty)
    num_missing = assert_all_came_back(untagged, untagged[-4:], cleaned)
    assert num_missing == num_dropped(corpus, ["held_out"])
    assert all(split.source.num_unknown == 0 for split in corpus.manifest.splits.values())


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_every_line_comes_back_from_many_blocks_and_shards(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    # Every pair has two characters of its own, so the sample lacks nearly all of them.
    rare = [(f"{chr(0x4E00 + 2 * i)} {s}", f"{chr(0x4E01 + 2 * i)} {t}") for i, (s, t) in enumerate(make_pairs(400))]
    tokenizer = TokenizerSettings(kind=kind, sample_lines=40)  # type: ignore[arg-type]
    corpus = prepare_pairs(tmp_path_factory.mktemp("many"), rare, tokenizer=tokenizer)
    assert len(corpus.manifest.splits["train"].shards.shards) > 5
    assert corpus.manifest.tokenizer.num_sample_lines <= 40
    assert sorted(decode_all(corpus)) == sorted(rare)


def test_dev_and_test_decode_to_their_plain_text(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("given")
    files = write_pairs(folder, "train", make_pairs(50))
    unusual = "a\u2028b\x85c\x0bd\re\u00a0f😀"
    dev = write_pairs(folder, "dev", [(f"  {unusual}\t\t b ", "ab")])
    corpus = prepare_corpus(
        settings_for(files, dev=([dev[0]], [dev[1]]), tokenizer=TokenizerSettings()), folder / "out", ignore
    )
    assert corpus.text("dev") == ([normalise(f"{unusual} b")], ["ab"])
    for name in ("dev", "test"):
        sources, targets = corpus.text(name)  # type: ignore[arg-type]
        assert list(zip(sources, targets, strict=True)) == decode_split(corpus, name)  # type: ignore[arg-type]
