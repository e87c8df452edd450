"""Tests of dropped copies, overlaps and held-out sentences: every pair that is read is accounted for."""

import random
from pathlib import Path

import pytest
from corpora import (
    SPLITS,
    TextPair,
    decode_split,
    filter_record,
    ignore,
    make_pairs,
    names_in,
    num_dropped,
    prepare_pairs,
    settings_for,
    write_pairs,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.corpus.settings import Cleaning, CorpusSettings, FilterSettings, PrepareSettings, TokenizerSettings
from dragoman.run.errors import UserError

SENTENCES = st.sampled_from(["a", "b", "B!", "c d", "c d e", "▁x", " ", "1", "2"])


def places(record: dict[str, list[dict[str, str]]]) -> list[str]:
    return [example["place"] for example in record["examples"]]


@pytest.mark.usefixtures("small_shards")
def test_copies_far_apart_are_found_and_the_first_stays(tmp_path: Path) -> None:
    pairs = make_pairs(200)
    copies = {10: 3, 150: 3, 199: 150, 60: 59}
    text = [pairs[copies.get(copies.get(number, number), copies.get(number, number))] for number in range(200)]
    corpus = prepare_pairs(tmp_path, text)
    record = filter_record(corpus, "duplicates")
    assert record["num_dropped"] == record["num_found"] == 4
    assert set(places(record)) < {f"{tmp_path / 'train.en'}, line {number + 1}" for number in copies}
    assert sorted(pair for name in SPLITS for pair in decode_split(corpus, name)) == sorted(set(text))


@pytest.mark.usefixtures("small_shards")
def test_of_near_copies_the_first_stays_as_it_is(tmp_path: Path) -> None:
    words = [line.rpartition(" ")[0] for line, _ in make_pairs(150)]
    pairs = [(f"{word} end", f"{word.upper()} END") for word in dict.fromkeys(words)]
    varied = [(f"{source.capitalize()}!", f"{target} ...") for source, target in pairs[:40]]
    corpus = prepare_pairs(tmp_path, [*pairs, *varied, *pairs[:5]], filters=FilterSettings(near_duplicates=True))
    assert filter_record(corpus, "near_duplicates")["num_dropped"] == 40
    assert filter_record(corpus, "duplicates")["num_dropped"] == 5
    assert sorted(pair for name in SPLITS for pair in decode_split(corpus, name)) == sorted(pairs)
    assert all("train.en, line " in place for place in places(filter_record(corpus, "near_duplicates")))


def test_copies_in_another_corpus_are_found(tmp_path: Path) -> None:
    first, second = write_pairs(tmp_path, "first", make_pairs(60)), write_pairs(tmp_path, "second", make_pairs(80)[50:])
    corpora = tuple(CorpusSettings(source=source, target=target) for source, target in (first, second))
    wanted = PrepareSettings(corpora=corpora, tokenizer=TokenizerSettings(vocab_size=60))
    corpus = prepare_corpus(wanted, tmp_path / "out", ignore)
    assert filter_record(corpus, "duplicates")["num_dropped"] == 10
    # The first of them, in the order in which they were found, stand in the second corpus.
    assert set(places(filter_record(corpus, "duplicates"))) < {f"{second[0]}, line {n}" for n in range(1, 11)}
    assert [record.num_pairs for record in corpus.manifest.corpora] == pytest.approx([60, 20], abs=2)


def given_sets(folder: Path) -> dict[str, tuple[list[Path], list[Path]]]:
    """Dev and test that have, besides their own, a source and a target of the pairs of `make_pairs`."""
    pairs = make_pairs(10)
    dev = write_pairs(folder, "dev", [("own dev", "DEV OWN"), (f" {pairs[2][0]} ", "other words")])
    test = write_pairs(folder, "test", [("own test", "TEST OWN"), ("other words", pairs[7][1])])
    return {"dev": ([dev[0]], [dev[1]]), "test": ([test[0]], [test[1]])}


def test_sentences_of_given_sets_are_removed_on_either_side(tmp_path: Path) -> None:
    pairs = make_pairs(100)
    corpus = prepare_pairs(tmp_path, pairs, **given_sets(tmp_path))
    record = filter_record(corpus, "overlap")
    assert (record["num_found"], record["num_dropped"], record["is_on"]) == (2, 2, True)
    assert places(record) == [f"{tmp_path / 'train.en'}, line {number}" for number in (3, 8)]
    assert sorted(decode_split(corpus, "train")) == sorted(set(pairs) - {pairs[2], pairs[7]})


def test_overlap_can_be_kept_but_is_counted(tmp_path: Path) -> None:
    pairs = make_pairs(100)
    corpus = prepare_pairs(tmp_path, pairs, filters=FilterSettings(overlap=False), **given_sets(tmp_path))
    record = filter_record(corpus, "overlap")
    assert (record["num_found"], record["num_dropped"], record["is_on"]) == (2, 0, False)
    assert len(places(record)) == 2
    assert sorted(decode_split(corpus, "train")) == sorted(pairs)
    assert corpus.manifest.cleaning["num_kept"] == 100


@pytest.mark.usefixtures("small_shards")
def test_held_out_sets_share_no_sentence_with_training_or_each_other(tmp_path: Path) -> None:
    sources = [source for source, _ in make_pairs(120)]
    # Every source occurs with two targets and every target with four sources.
    targets = [f"T {sources[index // 2]}" for index in range(120)]
    text = list(zip(sources * 2, targets + targets[2:] + targets[:2], strict=True))
    corpus = prepare_pairs(tmp_path, text, held_out=8)
    splits = {name: decode_split(corpus, name) for name in SPLITS}
    for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
        for side in (0, 1):
            assert not {pair[side] for pair in splits[one]} & {pair[side] for pair in splits[other]}  # type: ignore[index]
    assert len(splits["dev"]) == len(splits["test"]) == 8
    assert num_dropped(corpus, ["held_out"]) == 240 - 16 - len(splits["train"]) > 0


def num_accounted(corpus: PreparedCorpus) -> int:
    """Pairs in the splits that were drawn from the training text, and pairs dropped from it."""
    splits = corpus.manifest.splits.values()
    return sum(split.num_pairs for split in splits if split.is_held_out or split.inputs) + num_dropped(corpus)


@settings(max_examples=30)
@given(
    pairs=st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=40),
    cleaning=st.sampled_from(["none", "moses", "standard", "strict"]),
    held_out=st.integers(1, 3),
)
def test_every_pair_that_was_read_is_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[TextPair], cleaning: Cleaning, held_out: int
) -> None:
    folder = tmp_path_factory.mktemp("account")
    text = [*pairs, *make_pairs(8)]
    random.Random(len(pairs)).shuffle(text)
    try:
        corpus = prepare_pairs(
            folder, text, cleaning=cleaning, held_out=held_out, tokenizer=TokenizerSettings(byte_fallback=True)
        )
    except UserError:
        assert names_in(folder) - {".dragoman-work"} == {"train.en", "train.de"}
        return
    assert corpus.manifest.cleaning["num_read"] == len(text) == num_accounted(corpus)
    num_kept = sum(split.num_pairs for split in corpus.manifest.splits.values())
    assert corpus.manifest.cleaning["num_kept"] == num_kept
    assert sum(corpus.manifest.splits["train"].longer_length_counts.values()) == corpus.split("train").num_pairs


def test_everything_is_accounted_for_with_given_sets(tmp_path: Path) -> None:
    files = write_pairs(tmp_path, "train", [*make_pairs(60), *make_pairs(5), ("", "x"), ("same", "same")])
    dev = write_pairs(tmp_path, "dev", [*make_pairs(3), ("", "left out")])
    said: list[str] = []
    corpus = prepare_corpus(settings_for(files, dev=([dev[0]], [dev[1]])), tmp_path / "out", said.append)
    splits = corpus.manifest.splits
    num_from_training = splits["train"].num_pairs + splits["test"].num_pairs
    assert corpus.manifest.cleaning["num_read"] == 67 == num_from_training + num_dropped(corpus)
    assert (splits["dev"].num_pairs, splits["dev"].num_lines_read, splits["dev"].is_held_out) == (3, 4, False)
    assert f"Left out 1 dev pairs (empty), the first at {dev[0]}, line 4." in said
