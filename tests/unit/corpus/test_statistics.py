"""Tests of the statistics of a prepared corpus against its text, and of pages that any text leaves readable."""

import io
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.builtin import write_builtin_corpus
from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.corpus.settings import CorpusSettings, PrepareSettings, TokenizerSettings
from dragoman.corpus.statistics import (
    MAX_BINS,
    _choose_bin_width,
    _histogram,
    corpus_figures,
    describe_corpus,
    length_within,
    statistics_page,
)
from dragoman.corpus.token_streams import tokenize_stream
from dragoman.run.errors import UserError

COUNTS = st.dictionaries(st.integers(0, 70_000), st.integers(1, 10**9), max_size=50)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> PreparedCorpus:
    """Two corpora with weights, separate vocabularies, a bad line, dropped pairs, dev and test held out."""
    folder = tmp_path_factory.mktemp("mixed")
    text = write_builtin_corpus(folder / "text", num_train=600, num_dev=20, num_test=20).train
    (folder / "evil.en").write_bytes(b"same \x1b[31mtext\n" * 3 + b"\xff\n" + b"one more line\n")
    (folder / "evil.de").write_bytes(b"same \x1b[31mtext\n" * 3 + b"noch eine\n" + b"noch eine Zeile\n")
    corpora = (
        CorpusSettings(source=text.source, target=text.target, name="clean"),
        CorpusSettings(source=folder / "evil.en", target=folder / "evil.de", name="evil", weight=20.0),
    )
    settings = PrepareSettings(
        corpora=corpora, held_out=10, skip_bad_lines=5, tokenizer=TokenizerSettings(vocab_size=200, separate=True)
    )
    return prepare_corpus(settings, folder / "prepared", say=lambda _: None)


@pytest.fixture
def plain(prepared: Path) -> PreparedCorpus:
    return PreparedCorpus.open(prepared)


def with_changes(corpus: PreparedCorpus, **changes) -> PreparedCorpus:
    return PreparedCorpus(corpus.folder, corpus.manifest.model_copy(update=changes))


def test_the_figures_are_those_of_the_text(plain: PreparedCorpus):
    split = corpus_figures(plain, [])["splits"]["dev"]
    text = (plain.folder / "dev.source.txt").read_bytes()
    lengths = sorted(len(ids) for ids in plain.source_tokenizer.encode_lines(text.decode().splitlines()))
    assert (split["num_pairs"], split["num_lines_read"], split["is_held_out"]) == (20, 20, False)
    side = split["source"]
    assert side["text_mb"] == len(text) / 1e6
    assert side["num_words"] == len(text.split())
    assert side["num_pieces"] == sum(lengths)
    assert side["pieces_per_word"] == pytest.approx(sum(lengths) / len(text.split()))
    assert side["mean_length"] == pytest.approx(sum(lengths) / 20)
    assert (side["median_length"], side["max_length"]) == (lengths[9], lengths[-1])
    assert (side["length_within_95_percent"], side["length_within_99_percent"]) == (lengths[18], lengths[19])
    assert sum(each["num_sentences"] for each in side["histogram"]) == 20
    assert (side["num_unknown"], side["unknown_share"], side["vocabulary_size"]) == (0, 0, 500)
    assert 0 < side["pieces_used_share"] == side["num_pieces_used"] / 500 < 1


def test_sizes_are_those_of_the_files(plain: PreparedCorpus):
    split = corpus_figures(plain, [])["splits"]["dev"]
    files = sorted((plain.folder / "dev").glob("00000.*"))
    num_bytes = sum(path.stat().st_size for path in files)
    assert split["source"]["ids_mb"] + split["target"]["ids_mb"] == pytest.approx(num_bytes / 1e6)
    subwords = io.BytesIO()
    with (plain.folder / "dev.target.txt").open("rb") as text:
        tokenize_stream(plain.target_tokenizer, text, subwords, as_ids=False)
    assert split["target"]["piece_text_mb"] == len(subwords.getvalue()) / 1e6


@pytest.mark.parametrize("which", ["plain", "mixed"])
def test_figures_are_plain_values(which: str, request: pytest.FixtureRequest):
    figures = corpus_figures(request.getfixturevalue(which), [300, 4096])
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures


def test_figures_include_corpora_and_cleaning(mixed: PreparedCorpus):
    figures = corpus_figures(mixed, [])
    clean, evil = figures["corpora"]
    assert (clean["name"], clean["weight"], evil["name"], evil["weight"]) == ("clean", 1.0, "evil", 20.0)
    assert clean["epoch_share"] + evil["epoch_share"] == pytest.approx(1)
    assert clean["epoch_share"] == clean["num_pairs"] / (clean["num_pairs"] + 20 * evil["num_pairs"])
    cleaning = figures["cleaning"]
    assert cleaning["num_dropped"] == sum(cleaning["dropped_by_filter"].values()) >= 3
    assert figures["num_bad_lines"] == 1
    assert figures["tokenizer"]["sample_mb"] > 0


def test_padding_is_that_of_the_batches_of_a_training(plain: PreparedCorpus):
    pairs = plain.split("train")
    source_lengths, target_lengths = pairs.lengths(np.arange(pairs.num_pairs))
    longer = [max(pair) + 1 for pair in zip(source_lengths, target_lengths, strict=True)]
    small, large = corpus_figures(plain, [30, 10**6])["batches"]
    # Too little for the longer pairs, and nearly none to sort among.
    assert small["num_pairs_left_out"] == sum(length > 30 for length in longer) > 0
    assert small["left_out_share"] == small["num_pairs_left_out"] / len(longer)
    # All pairs in one batch: padding can be worked out from the lengths.
    total = int(source_lengths.sum() + target_lengths.sum()) + 2 * len(longer)
    width = int(source_lengths.max() + target_lengths.max()) + 2
    assert (large["pairs_per_batch"], large["num_pairs_left_out"]) == (len(longer), 0)
    assert large["padding_share"] == pytest.approx(1 - total / (width * len(longer)))


def test_planning_stops_after_a_few_batches(plain: PreparedCorpus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dragoman.corpus.batching.POOL_MICRO_BATCHES", 5)
    [figures] = corpus_figures(plain, [200])["batches"]
    assert 5 <= figures["num_batches_planned"] <= 15
    assert 0 < figures["padding_share"] < 0.5


def test_what_cannot_be_trained_on_is_described_all_the_same(plain: PreparedCorpus):
    [figures] = corpus_figures(plain, [1])["batches"]
    assert (figures["padding_share"], figures["pairs_per_batch"], figures["left_out_share"]) == (None, None, 1.0)
    weightless = [record.model_copy(update={"weight": 0.0}) for record in plain.manifest.corpora]
    page = statistics_page(with_changes(plain, corpora=tuple(weightless)))
    assert "| 4,096            |       – |" in page


def test_damage_is_not_taken_for_a_corpus_without_pairs(plain: PreparedCorpus, tmp_path: Path):
    with pytest.raises(UserError, match="missing"):
        statistics_page(PreparedCorpus(tmp_path, plain.manifest))


def test_the_page_answers_how_big_the_training_set_is(plain: PreparedCorpus):
    train = plain.manifest.splits["train"]
    source, target = train.source.num_bytes / 1e6, train.target.num_bytes / 1e6
    page = statistics_page(plain)
    assert (
        f"The training set has 1,000 lines per side: {source:.3f} MB of source and {target:.3f} MB of target text, "
        f"{source + target:.3f} MB together (1 MB = 10^6 bytes;" in page
    )
    assert "Source and target share one vocabulary of 500 subwords, trained on 2,000 lines" in page
    assert "## Corpora" not in page
    assert [f"| {size:,}" in page for size in (1024, 4096, 16384)] == [True] * 3


def test_the_page_accounts_for_every_pair(mixed: PreparedCorpus):
    page = statistics_page(mixed, [4096])
    cleaning = corpus_figures(mixed, [])["cleaning"]
    num_beside = cleaning["dropped_by_filter"]["held_out"]
    beside = f"; {num_beside} more share a sentence with those and are left out" if num_beside else ""
    num_dropped = cleaning["num_dropped"] - num_beside
    assert (
        f"It comes from 604 pairs, of which cleaning dropped {num_dropped:,} (see cleaning.md) and 20 were held out "
        f"for dev and test{beside}; 1 more could not be read." in page
    )
    assert "| dev, held out from training  |" in page
    assert "have separate vocabularies of 200 and 200 subwords, each trained on up to" in page
    assert "| evil   |" in page


def test_a_vocabulary_from_elsewhere_is_said_to_be(plain: PreparedCorpus):
    tokenizer = plain.manifest.tokenizer.model_copy(update={"num_sample_lines": 0, "num_sample_bytes": 0})
    assert "one vocabulary of 500 subwords, copied from another corpus." in statistics_page(
        with_changes(plain, tokenizer=tokenizer)
    )


@pytest.mark.parametrize("which", ["plain", "mixed"])
def test_tables_have_the_same_columns_in_every_row(which: str, request: pytest.FixtureRequest):
    tables: dict[int, set[tuple[int, ...]]] = {}
    number = 0
    for line in statistics_page(request.getfixturevalue(which)).split("\n"):
        if line.startswith("|"):
            places = tuple(place for place, character in enumerate(line) if character == "|")
            tables.setdefault(number, set()).add(places)
        else:
            number += 1
    assert len(tables) >= 3
    assert all(len(places) == 1 for places in tables.values())


def test_bars_are_as_long_as_there_are_sentences(plain: PreparedCorpus):
    page = statistics_page(plain)
    histogram = page.split("```text\n")[1].split("```")[0].splitlines()
    bins = corpus_figures(plain, [])["splits"]["train"]["source"]["histogram"]
    assert len(histogram) == len(bins)
    most = max(each["num_sentences"] for each in bins)
    for line, each in zip(histogram, bins, strict=True):
        assert line.count("█") == round(40 * each["num_sentences"] / most)
        assert ("▏" in line) == (each["num_sentences"] > 0 and "█" not in line)


def test_an_empty_split_is_described(plain: PreparedCorpus):
    dev = plain.manifest.splits["dev"]
    nothing = dict.fromkeys(("num_bytes", "num_words", "num_tokens", "num_piece_bytes", "num_pieces_used"), 0)
    side = dev.source.model_copy(update=nothing | {"length_counts": {}})
    empty = dev.model_copy(update={"num_pairs": 0, "source": side, "target": side, "longer_length_counts": {}})
    corpus = with_changes(plain, splits=plain.manifest.splits | {"dev": empty})
    assert corpus_figures(corpus, [])["splits"]["dev"]["source"]["mean_length"] is None
    assert "– |" in statistics_page(corpus)


def test_a_short_description_follows_a_preparation(mixed: PreparedCorpus):
    lines = describe_corpus(mixed)
    assert lines[0].startswith(f"{mixed.manifest.cleaning['num_kept']} of 604 pairs were kept (")
    assert lines[1].split() == ["filter", "pairs", "dropped", "share"]
    assert [line.split(":")[0] for line in lines if " pairs, " in line] == ["train", "dev", "test"]
    train = mixed.manifest.splits["train"]
    assert f"{train.num_pairs} pairs, 0.0" in "\n".join(lines)
    assert f"{train.source.num_tokens:,} source and {train.target.num_tokens:,} target subwords" in "\n".join(lines)
    assert "1 bad line was skipped:" in lines
    assert any("evil.en, line 4: is not UTF-8" in line for line in lines)
    assert lines[-1] == f"More in {mixed.folder / 'cleaning.md'} and {mixed.folder / 'statistics.md'}"


def test_no_text_of_the_corpus_commands_the_terminal(mixed: PreparedCorpus):
    evil = with_changes(mixed, bad_lines=tuple(f"\x1b[2J\n{number}.en" for number in range(1234)))
    lines = describe_corpus(evil)
    assert any("\\x1b[31mtext" in line for line in lines)
    assert all(line.isprintable() for line in lines)
    assert "1,234 bad lines were skipped:" in lines
    assert "  and 1,231 more, all in manifest.json" in lines


@given(COUNTS, st.sampled_from([1, 50, 95, 99, 100]))
def test_a_percentile_is_the_smallest_length_that_covers_enough(counts: dict[int, int], percent: int):
    length = length_within(counts, percent)
    if not counts:
        assert length is None
        return
    total = sum(counts.values())
    assert length in counts
    assert 100 * sum(num for each, num in counts.items() if each <= length) >= percent * total
    assert 100 * sum(num for each, num in counts.items() if each < length) < percent * total


@given(COUNTS, COUNTS)
def test_histograms_hold_every_sentence_in_few_bins(plain_counts: dict[int, int], other_counts: dict[int, int]):
    source, target = (SimpleNamespace(length_counts=counts) for counts in (plain_counts, other_counts))
    bins = _histogram(plain_counts, _choose_bin_width(SimpleNamespace(source=source, target=target)))
    assert len(bins) <= MAX_BINS
    assert sum(each["num_sentences"] for each in bins) == sum(plain_counts.values())
    for each in bins:
        inside = (num for length, num in plain_counts.items() if each["from"] <= length <= each["to"])
        assert each["num_sentences"] == sum(inside)
    assert [each["from"] for each in bins[1:]] == [each["to"] + 1 for each in bins[:-1]]
    # Few are in the last bin, which takes all that is longer.
    if len(bins) == MAX_BINS:
        assert bins[-1]["num_sentences"] <= math.ceil(sum(plain_counts.values()) / 100)
