"""Test sentences in the training data are counted exactly, whatever their length and however often they occur."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.corpus.settings import CorpusSettings, PrepareSettings, TokenizerSettings
from dragoman.corpus.shards import pack_ids, write_shard
from dragoman.evaluation import training_overlap
from dragoman.evaluation.evaluation_set import EvaluationSet
from dragoman.evaluation.training_overlap import TrainingOverlap, count_overlap


def training_pairs(prepared: Path) -> list[tuple[str, str]]:
    """Decodes the training split, independently of the code under test."""
    corpus = PreparedCorpus.open(prepared)
    ids = corpus.split("train")
    sources = corpus.source_tokenizer.decode_lines([ids.source(index).tolist() for index in range(len(ids))])
    targets = corpus.target_tokenizer.decode_lines([ids.target(index).tolist() for index in range(len(ids))])
    return list(zip(sources, targets, strict=True))


def test_sources_references_and_pairs_are_counted(prepared):
    pairs = training_pairs(prepared)
    (first, first_target), (second, _), (_, third_target) = pairs[0], pairs[7], pairs[-1]
    rows = [
        (f" {first}  ", first_target),  # normalised as training text is
        (second, "Ein Satz, den niemand kennt."),
        ("A sentence that nobody knows.", third_target),
        (first, third_target),  # both known, but no pair
        ("Nobody knows this one.", "Auch diesen nicht."),
        ("", ""),
    ]
    sources, targets = (list(column) for column in zip(*rows, strict=True))
    test_set = EvaluationSet("test", sources, [targets])
    expected = TrainingOverlap(6, sources=3, references=3, pairs=1)
    if (first, third_target) in pairs:  # the corpus repeats sentences
        expected = TrainingOverlap(6, 3, 3, 2)
    assert count_overlap(test_set, PreparedCorpus.open(prepared)) == expected


def test_any_reference_counts_and_sources_may_be_unknown(prepared):
    target = training_pairs(prepared)[3][1]
    test_set = EvaluationSet("test", None, [["Unbekannt.", "Fremd."], [target, None]])
    assert count_overlap(test_set, PreparedCorpus.open(prepared)) == TrainingOverlap(2, 0, 1, 0)


def test_the_prepared_test_set_is_not_in_the_training_data(prepared):
    corpus = PreparedCorpus.open(prepared)
    sources, targets = corpus.text("test")
    overlap = count_overlap(EvaluationSet("test", sources, [targets]), corpus)
    assert overlap == TrainingOverlap(20, 0, 0, 0)
    assert overlap.describe() == "None of the 20 test sentences is in the training data."


def test_tags_of_the_training_data_make_no_difference(tmp_path):
    lines = [f"number {number} of a small corpus" for number in range(60)]
    (tmp_path / "en").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "de").write_text("".join(f"{line} x\n" for line in lines))
    prepare = PrepareSettings(
        corpora=(CorpusSettings(source=str(tmp_path / "en"), target=str(tmp_path / "de"), tag="<bt>"),),
        cleaning="none",
        held_out=2,
        tokenizer=TokenizerSettings(vocab_size=60),
    )
    prepare_corpus(prepare, tmp_path / "prepared", say=lambda _: None)
    corpus = PreparedCorpus.open(tmp_path / "prepared")
    held_out = {line for split in ("dev", "test") for line in corpus.text(split)[1]}
    targets = [f"{line} x" for line in lines]
    num_known = sum(target not in held_out for target in targets)
    for sources in (lines, [f"<bt> {line}" for line in lines]):
        overlap = count_overlap(EvaluationSet("test", sources, [targets]), corpus)
        assert overlap == TrainingOverlap(60, num_known, num_known, num_known)


@settings(max_examples=30)  # each writes files
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=7), min_size=1, max_size=40),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=7), min_size=1, max_size=10),
    st.integers(1, 9),
)
def test_all_sentences_are_found_and_no_others(tmp_path_factory, training, wanted, block):
    folder = tmp_path_factory.mktemp("shard")
    packed = pack_ids(training, "<u2")
    shard, _, _ = write_shard(folder, 0, packed, packed, "<u2")
    texts = set(pack_ids(wanted, "<u2"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_overlap, "_BLOCK", block)
        found = list(training_overlap._find(folder, 0, "source", np.dtype("<u2"), shard, texts))
    assert found == [(index, ids) for index, ids in enumerate(packed) if ids in texts]


@given(arrays(np.uint16, st.integers(1, 30)))
def test_a_key_depends_on_the_sentence_only(ids):
    alone = training_overlap._keys(ids, np.array([0, len(ids)]))
    among = training_overlap._keys(
        np.concatenate([ids[:1], ids, ids]), np.array([0, 1, 1 + len(ids), 1 + 2 * len(ids)])
    )
    assert among[1] == among[2] == alone[0]


def test_known_sentences_are_told():
    assert TrainingOverlap(1000, 3, 2, 1).describe() == (
        "In the training data are 3 sources, 2 references and 1 whole pairs of the 1,000 test sentences: "
        "the model may know them by heart."
    )
