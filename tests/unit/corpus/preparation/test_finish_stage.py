"""Tests of several corpora with names, weights and tags in one training text."""

from pathlib import Path

import numpy as np
import pytest
from corpora import decode_split, ignore, make_pairs, write_pairs

from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.corpus.settings import CorpusSettings, PrepareSettings, TextSettings, TokenizerSettings
from dragoman.run.errors import UsageError


def corpus_of(folder: Path, file_name: str, seed: int, num_pairs: int = 60, **settings: object) -> CorpusSettings:
    pairs = [(f"{file_name} {source}", target) for source, target in make_pairs(num_pairs, seed)]
    source, target = write_pairs(folder, file_name, pairs)
    return CorpusSettings(source=source, target=target, **settings)  # type: ignore[arg-type]


def prepare(folder: Path, *corpora: CorpusSettings, **changes: object) -> PreparedCorpus:
    settings = PrepareSettings(corpora=corpora, tokenizer=TokenizerSettings(vocab_size=120), **changes)  # type: ignore[arg-type]
    return prepare_corpus(settings, folder / "out", ignore)


@pytest.mark.usefixtures("small_shards")
def test_members_partition_the_training_text(tmp_path: Path) -> None:
    corpus = prepare(
        tmp_path,
        corpus_of(tmp_path, "news", 1, weight=2.0),
        corpus_of(tmp_path, "crawl", 2, name="web", weight=0.5),
        corpus_of(tmp_path, "more", 3, name="web", weight=0.5),
    )
    train = decode_split(corpus, "train")
    news, web = corpus.train_corpora
    assert [(each.name, each.weight) for each in (news, web)] == [("news", 2.0), ("web", 0.5)]
    assert news.members is not None
    assert web.members is not None
    assert sorted([*news.members, *web.members]) == list(range(len(train)))
    assert np.all(np.diff(news.members) > 0)
    assert {train[index][0].split()[0] for index in news.members} == {"news"}
    assert {train[index][0].split()[0] for index in web.members} == {"crawl", "more"}
    assert [record.num_pairs for record in corpus.manifest.corpora] == [len(news.members), len(web.members)]
    assert {"train/news.members", "train/web.members"} <= set(corpus.manifest.files)


def test_one_corpus_needs_no_members(tmp_path: Path) -> None:
    corpus = prepare(tmp_path, corpus_of(tmp_path, "my.crawl", 1), corpus_of(tmp_path, "my.news", 2))
    [only] = corpus.train_corpora
    assert (only.name, only.weight, only.members) == ("my", 1.0, None)
    assert only.num_pairs == corpus.split("train").num_pairs
    assert not list((tmp_path / "out").rglob("*.members"))


def test_tags_are_put_before_sources_of_their_corpus_only(tmp_path: Path) -> None:
    dev = write_pairs(tmp_path, "dev", [("ab", "BA")])
    corpus = prepare(
        tmp_path,
        corpus_of(tmp_path, "plain", 1),
        corpus_of(tmp_path, "back", 2, tag="<bt>"),
        dev=(TextSettings(source=dev[0], target=dev[1], tag="<2de>"),),
    )
    for source, target in [*decode_split(corpus, "train"), *decode_split(corpus, "test")]:
        assert source.startswith(("plain ", "<bt> back "))
        assert "<bt>" not in target
    assert corpus.text("dev") == (["<2de> ab"], ["BA"])
    assert decode_split(corpus, "dev") == [("<2de> ab", "BA")]
    # A tag is one subword; the blank before it is another.
    [ids] = corpus.source_tokenizer.encode_lines(["<bt> back"])
    assert "<bt>" in corpus.source_tokenizer.subwords(ids)[:2]


def test_tags_do_not_hide_an_overlap(tmp_path: Path) -> None:
    back = corpus_of(tmp_path, "back", 2, tag="<bt>")
    source = back.paths[0].read_text().splitlines()[5]
    dev = write_pairs(tmp_path, "dev", [(source, "of its own")])
    corpus = prepare(tmp_path, back, dev=(TextSettings(source=dev[0], target=dev[1]),))
    assert source not in {line.removeprefix("<bt> ") for line, _ in decode_split(corpus, "train")}


@pytest.mark.parametrize("tag", ["", " <bt>", "<bt> ", "a\nb", "a▁b", "a  b", "\t"])
def test_tags_that_would_not_decode_unchanged_are_refused(tag: str) -> None:
    with pytest.raises(ValueError, match="tag"):
        TextSettings(source=Path("a"), target=Path("b"), tag=tag)


def test_contradicting_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'web' has the weights 2 and 0\.5; give its files one weight"):
        prepare(
            tmp_path,
            corpus_of(tmp_path, "crawl", 1, name="web", weight=2.0),
            corpus_of(tmp_path, "web", 2, weight=0.5),
        )


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a/b", "a b"])
def test_names_that_are_no_part_of_a_file_name_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        CorpusSettings(source=Path("a"), target=Path("b"), name=name)


@pytest.mark.parametrize("file_name", ["_crawl", ".hidden", "größe", "-x", "日本", "mein korpus"])
def test_files_of_any_name_can_be_prepared(tmp_path: Path, file_name: str) -> None:
    corpus = prepare(tmp_path, corpus_of(tmp_path, file_name, 1, 20), corpus_of(tmp_path, "other", 2, 20), held_out=2)
    assert PreparedCorpus.open(tmp_path / "out").manifest == corpus.manifest
    assert len(corpus.train_corpora) == 2
