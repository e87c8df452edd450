"""Tests of vocabularies: their size, the sample they are trained on, and their reuse."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase

import pytest
from corpora import (
    SPLITS,
    Files,
    decode_all,
    decode_split,
    ignore,
    make_pairs,
    names_in,
    prepare_pairs,
    settings_for,
    write_pairs,
)
from spaceless_corpora import write_spaceless_corpus

from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.preparation.vocabulary_stage import _median_frequency, default_vocab_size
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.corpus.settings import TokenizerSettings
from dragoman.corpus.tokenizer import (
    Tokenizer,
    VocabularyTooLarge,
    VocabularyTooSmall,
    train_tokenizer,
)
from dragoman.run.errors import UsageError, UserError


@pytest.mark.parametrize(
    ("num_pairs", "vocab_size"),
    [(1, 2048), (1_999, 2048), (2_000, 4096), (20_000, 8192), (200_000, 16384), (1_000_000, 32768), (5_000_000, 32768)],
)
def test_default_vocab_size_follows_the_text(num_pairs: int, vocab_size: int) -> None:
    assert default_vocab_size(num_pairs) == vocab_size


def test_default_vocabulary_shrinks_to_the_text(tmp_path: Path) -> None:
    said: list[str] = []
    files = write_pairs(tmp_path, "train", make_pairs(200))
    corpus = prepare_corpus(settings_for(files, tokenizer=TokenizerSettings()), tmp_path / "out", said.append)
    num_subwords = corpus.source_tokenizer.num_subwords
    assert num_subwords < 2048
    assert any(f"{num_subwords} subwords (the most this text gives" in sentence for sentence in said)


def test_default_vocabulary_grows_for_many_characters(tmp_path: Path) -> None:
    lines = ["".join(chr(0x4E00 + 3 * number + place) for place in (0, 1, 2)) * 2 for number in range(1_500)]
    said: list[str] = []
    files = write_pairs(tmp_path, "train", [(line, f"{line}!") for line in lines])
    wanted = settings_for(files, tokenizer=TokenizerSettings(), held_out=50)
    corpus = prepare_corpus(wanted, tmp_path / "out", said.append)
    assert corpus.source_tokenizer.num_subwords > 4200 > default_vocab_size(1_400)
    assert any("because the text has many different characters" in sentence for sentence in said)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("separate", [False, True])
def test_sizes_that_do_not_fit_name_one_that_does(
    tmp_path: Path, kind: str, byte_fallback: bool, separate: bool
) -> None:
    files = write_pairs(tmp_path, "train", make_pairs(60))
    others = {"kind": kind, "byte_fallback": byte_fallback, "separate": separate}

    def prepare(vocab_size: int) -> PreparedCorpus:
        tokenizer = TokenizerSettings(vocab_size=vocab_size, **others)  # type: ignore[arg-type]
        return prepare_corpus(settings_for(files, tokenizer=tokenizer), tmp_path / f"out-{vocab_size}", ignore)

    with pytest.raises(VocabularyTooLarge, match="--vocab-size") as too_large:
        prepare(30_000)
    with pytest.raises(VocabularyTooSmall, match="--vocab-size") as too_small:
        prepare(5)
    assert names_in(tmp_path) == {"train.en", "train.de", ".dragoman-work"}
    largest, smallest = too_large.value.largest, too_small.value.smallest
    assert 5 < smallest < largest < 30_000
    if not separate:  # of two vocabularies, the message is about the first that does not fit
        assert prepare(largest).manifest.tokenizer.num_source_pieces == largest
        assert prepare(smallest).manifest.tokenizer.num_source_pieces == smallest


def test_separate_vocabularies(tmp_path: Path) -> None:
    corpus = prepare_pairs(tmp_path, make_pairs(200), tokenizer=TokenizerSettings(vocab_size=60, separate=True))
    assert not corpus.is_joint
    assert {"tokenizer.source.model", "tokenizer.target.model"} <= names_in(tmp_path / "out")
    assert "tokenizer.model" not in names_in(tmp_path / "out")
    assert len(decode_split(corpus, "train")) == 192
    assert corpus.target_tokenizer.subwords(corpus.split("train").target(0))[0].lstrip("▁").isupper()


@pytest.mark.parametrize(("separate", "num_lines"), [(False, 100), (True, 100), (False, 7)])
def test_the_sample_is_as_large_as_stated(tmp_path: Path, separate: bool, num_lines: int) -> None:
    tokenizer = TokenizerSettings(vocab_size=60, separate=separate, sample_lines=num_lines)
    # So many are held out that the first pairs of the text, on their own, would be no sample at all.
    corpus = prepare_pairs(tmp_path, make_pairs(400), tokenizer=tokenizer, held_out=60)
    record = corpus.manifest.tokenizer
    assert num_lines - 1 <= record.num_sample_lines <= num_lines + 1
    assert 20 * record.num_sample_lines < record.num_sample_bytes < 40 * record.num_sample_lines
    assert sorted(decode_all(corpus)) == sorted(make_pairs(400))


def test_the_sample_holds_no_sentence_of_dev_or_test(tmp_path: Path) -> None:
    words = [3 * letter for letter in ascii_lowercase]
    pairs = [(f"{word} {word} {word}", word.upper()) for word in words]
    corpus = prepare_pairs(tmp_path, pairs, tokenizer=TokenizerSettings(), held_out=4)
    tokenizer = corpus.source_tokenizer
    subwords = set(tokenizer.subwords(range(tokenizer.num_subwords)))
    is_learnt = {name: {f"▁{source[:3]}" in subwords for source, _ in decode_split(corpus, name)} for name in SPLITS}
    assert is_learnt == {"train": {True}, "dev": {False}, "test": {False}}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_pairs(tmp_path, "train", make_pairs(100, seed=5))


@pytest.mark.parametrize("separate", [False, True])
def test_a_vocabulary_is_reused_from_a_folder(tmp_path: Path, files: Files, separate: bool) -> None:
    tokenizer = TokenizerSettings(vocab_size=60, separate=separate)
    first = prepare_pairs(tmp_path / "first", make_pairs(100), tokenizer=tokenizer)
    reused = TokenizerSettings(reuse=first.folder, separate=separate)
    second = prepare_corpus(settings_for(files, tokenizer=reused), tmp_path / "second", ignore)
    models = [path.name for path in first.folder.glob("*.model")]
    assert len(models) == 1 + separate
    for name in models:
        assert (second.folder / name).read_bytes() == (first.folder / name).read_bytes()
    assert second.manifest.tokenizer.num_sample_lines == 0
    assert sorted(decode_all(second)) == sorted(make_pairs(100, seed=5))


def test_a_vocabulary_is_reused_from_a_file_in_any_place(tmp_path: Path, files: Files) -> None:
    model = prepare_pairs(tmp_path / "first", make_pairs(100)).folder / "tokenizer.model"
    moved = Path(shutil.copy(model, tmp_path / "moved.model"))
    one, other = (
        prepare_corpus(settings_for(files, tokenizer=TokenizerSettings(reuse=path)), tmp_path / f"{number}", ignore)
        for number, path in enumerate((model, moved))
    )
    assert one.manifest.key == other.manifest.key
    assert one.fingerprint == other.fingerprint


def test_another_model_is_another_preparation(tmp_path: Path, files: Files) -> None:
    model = tmp_path / "my.model"
    keys = []
    for number, vocab_size in enumerate((60, 70)):
        folder = tmp_path / f"made-{number}"
        made = prepare_pairs(folder, make_pairs(100), tokenizer=TokenizerSettings(vocab_size=vocab_size))
        shutil.copy(made.folder / "tokenizer.model", model)
        wanted = settings_for(files, tokenizer=TokenizerSettings(reuse=model))
        keys.append(prepare_corpus(wanted, tmp_path / f"out-{number}", ignore).manifest.key)
    assert keys[0] != keys[1]


def test_unknown_characters_of_a_reused_vocabulary_are_counted(tmp_path: Path) -> None:
    first = prepare_pairs(tmp_path / "first", make_pairs(100))
    pairs = [(f"{source} ж", target) for source, target in make_pairs(50)]
    second = prepare_pairs(tmp_path / "second", pairs, tokenizer=TokenizerSettings(reuse=first.folder))
    train = second.manifest.splits["train"]
    assert train.source.num_unknown == train.num_pairs
    assert train.target.num_unknown == 0


def test_models_that_cannot_be_reused_are_refused(tmp_path: Path, files: Files) -> None:
    (tmp_path / "text.model").write_text("no model")
    (tmp_path / "empty").mkdir()
    joint = prepare_pairs(tmp_path / "joint", make_pairs(50))
    for reuse, separate, error, message in [
        (tmp_path / "nowhere", False, UserError, "nowhere does not exist"),
        (tmp_path / "text.model", False, UserError, "text.model is damaged or is not a tokenizer"),
        (tmp_path / "empty", False, UserError, "does not exist"),
        (joint.folder / "tokenizer.model", True, UsageError, "is one model"),
        (joint.folder, True, UsageError, "has joint vocabular"),
    ]:
        wanted = settings_for(files, tokenizer=TokenizerSettings(reuse=reuse, separate=separate))
        with pytest.raises(error, match=message):
            prepare_corpus(wanted, tmp_path / "out", ignore)
    assert not list(tmp_path.glob(".out*"))


def test_the_default_vocabulary_of_text_without_spaces_is_small(tmp_path: Path) -> None:
    """Of 4,096 subwords most would be whole phrases, seen once or twice: a model could not learn them."""
    said: list[str] = []
    source, target = write_spaceless_corpus(tmp_path, "ja", 2_500)
    corpus = prepare_corpus(
        settings_for((source, target), tokenizer=TokenizerSettings()), tmp_path / "out", said.append
    )
    assert corpus.source_tokenizer.num_subwords == 512
    assert any("512 subwords (with more, half of them would occur fewer than 15 times" in sentence for sentence in said)


class WatchedTokenizer(Tokenizer):
    """Refuses to encode many lines at once, whose ids would need much memory."""

    def encode_lines(self, lines: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        assert len(lines) <= 5_000
        return super().encode_lines(lines, num_threads)


def test_counting_subwords_does_not_hold_the_ids_of_all_lines() -> None:
    lines = [" ".join(pair) for pair in make_pairs(200)]
    tokenizer = WatchedTokenizer(train_tokenizer(lines, 300))
    assert _median_frequency(tokenizer, lines * 60) == 60 * _median_frequency(tokenizer, lines)
