"""From text files to a prepared corpus: splits apart, the same result twice, whole or not at all."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.corpus.prepare import PrepareRequest, default_vocab_size, prepare_corpus
from dragoman.corpus.prepared import PreparedCorpus
from dragoman.corpus.text import normalise
from dragoman.corpus.tokenizer import VocabularyTooLarge
from dragoman.run.errors import UsageError, UserError

ANY_LINES = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=12)


def make_sentences(num_sentences: int, seed: int = 1) -> list[str]:
    randomness = random.Random(seed)
    words = ["".join(randomness.choices("abcdefgh", k=randomness.randint(2, 5))) for _ in range(60)]
    return [" ".join(randomness.choices(words, k=5)) + f" {number}" for number in range(num_sentences)]


def write_pairs(folder: Path, name: str, sources: list[str], targets: list[str]) -> tuple[list[Path], list[Path]]:
    paths = folder / f"{name}.en", folder / f"{name}.de"
    for path, lines in zip(paths, (sources, targets), strict=True):
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return [paths[0]], [paths[1]]


@pytest.fixture
def request_(tmp_path: Path) -> PrepareRequest:
    sources = make_sentences(200)
    files = write_pairs(tmp_path, "train", sources, [line.upper() for line in sources])
    return PrepareRequest(*files, out=tmp_path / "prepared", vocab_size=100)


def decode_split(corpus: PreparedCorpus, name: str) -> list[tuple[str, str]]:
    ids = corpus.split(name)  # type: ignore[arg-type]
    sources = corpus.source_tokenizer.decode_lines([ids.source(index) for index in range(len(ids))])
    targets = corpus.target_tokenizer.decode_lines([ids.target(index) for index in range(len(ids))])
    return list(zip(sources, targets, strict=True))


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def ignore(_: object) -> None:
    pass


def test_all_text_is_in_exactly_one_split(request_: PrepareRequest) -> None:
    corpus = prepare_corpus(request_, ignore)
    splits = {name: decode_split(corpus, name) for name in ("train", "dev", "test")}
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 192, "dev": 4, "test": 4}
    sources = make_sentences(200)
    assert sorted(chain(*splits.values())) == sorted((line, line.upper()) for line in sources)
    assert [source for source, _ in splits["train"]] != [
        line for line in sources if (line, line.upper()) in splits["train"]
    ]


def test_text_of_dev_and_test_is_kept_plain(request_: PrepareRequest) -> None:
    corpus = prepare_corpus(request_, ignore)
    for name in ("dev", "test"):
        sources, targets = corpus.text(name)  # type: ignore[arg-type]
        assert list(zip(sources, targets, strict=True)) == decode_split(corpus, name)


def test_opened_again_it_is_the_same(request_: PrepareRequest) -> None:
    corpus = prepare_corpus(request_, ignore)
    again = PreparedCorpus.open(request_.out)
    assert again.manifest == corpus.manifest
    assert again.fingerprint == corpus.fingerprint
    assert again.is_joint
    assert again.target_tokenizer is again.source_tokenizer
    assert again.source_vocab_size == again.source_tokenizer.vocab_size == 104


def test_manifest_records_files_and_counts(request_: PrepareRequest) -> None:
    corpus = prepare_corpus(request_, ignore)
    train = corpus.manifest.splits["train"]
    sources = [source for source, _ in decode_split(corpus, "train")]
    assert train.num_source_bytes == sum(map(len, sources))
    assert train.num_source_tokens == corpus.split("train").source_lengths.sum()
    assert train.num_lines_read == train.source_files[0].num_lines == 200
    assert train.source_files[0].num_bytes == request_.source_files[0].stat().st_size
    stored = {path.relative_to(request_.out).as_posix() for path in request_.out.rglob("*") if path.is_file()}
    assert set(corpus.manifest.files) == stored - {"manifest.json"}


def test_separate_tokenizers(request_: PrepareRequest) -> None:
    corpus = prepare_corpus(replace(request_, separate=True, vocab_size=60), ignore)
    assert not corpus.is_joint
    assert {"tokenizer.source.model", "tokenizer.target.model"} <= names_in(request_.out)
    assert "tokenizer.model" not in names_in(request_.out)
    assert len(decode_split(corpus, "train")) == 192
    assert corpus.target_tokenizer.pieces(corpus.split("train").target(0))[0].isupper()


def test_same_text_and_settings_give_the_same_fingerprint(request_: PrepareRequest, tmp_path: Path) -> None:
    first = prepare_corpus(request_, ignore)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = [
        shutil.copy(path, elsewhere / f"other-{path.name}") for path in (*request_.source_files, *request_.target_files)
    ]
    second = prepare_corpus(
        replace(request_, source_files=[moved[0]], target_files=[moved[1]], out=elsewhere / "out"), ignore
    )
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize(
    "change", [{"seed": 2}, {"vocab_size": 90}, {"held_out": 3}, {"separate": True, "vocab_size": 60}]
)
def test_other_settings_give_another_fingerprint(request_: PrepareRequest, change: dict[str, int]) -> None:
    first = prepare_corpus(request_, ignore)
    second = prepare_corpus(replace(request_, out=request_.out.with_name("second"), **change), ignore)
    assert first.fingerprint != second.fingerprint


def test_training_shares_no_sentence_with_dev_or_test(tmp_path: Path) -> None:
    sources = make_sentences(60)
    # Every source occurs with two targets and every target with two sources.
    targets = [f"T {sources[index // 2]}" for index in range(60)]
    files = write_pairs(tmp_path, "train", sources * 2, targets + targets[1:] + targets[:1])
    said: list[str] = []
    corpus = prepare_corpus(PrepareRequest(*files, out=tmp_path / "out", vocab_size=60, held_out=5), said.append)
    splits = {name: decode_split(corpus, name) for name in ("train", "dev", "test")}
    for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
        for side in (0, 1):
            assert not {pair[side] for pair in splits[one]} & {pair[side] for pair in splits[other]}
    assert len(splits["dev"]) == len(splits["test"]) == 5
    num_dropped = 120 - 10 - len(splits["train"])
    assert corpus.manifest.dropped.overlap == num_dropped > 0
    assert f"Left out {num_dropped} training pairs that share a sentence with dev or test." in said


@pytest.mark.parametrize("given_split", ["dev", "test"])
def test_only_the_missing_split_is_held_out(request_: PrepareRequest, tmp_path: Path, given_split: str) -> None:
    sources = ["ab cd", *make_sentences(200)[:2]]
    source, target = write_pairs(tmp_path, given_split, sources, ["CD AB", "AB", "AC"])
    request_ = replace(request_, **{f"{given_split}_source": source, f"{given_split}_target": target})
    corpus = prepare_corpus(request_, ignore)
    other = "test" if given_split == "dev" else "dev"
    assert corpus.text(given_split) == (sources, ["CD AB", "AB", "AC"])  # type: ignore[arg-type]
    assert not corpus.manifest.splits[given_split].is_held_out  # type: ignore[index]
    assert corpus.manifest.splits[other].is_held_out  # type: ignore[index]
    assert corpus.manifest.splits[other].num_pairs == 4  # type: ignore[index]
    # The two sentences of the given set that also stand in the text are not learnt from.
    num_usable = 200 - 4 - 2
    assert corpus.manifest.splits["train"].num_pairs == num_usable


def test_given_dev_and_test_leave_all_other_text_for_training(request_: PrepareRequest, tmp_path: Path) -> None:
    dev = write_pairs(tmp_path, "dev", ["ab"], ["BA"])
    test = write_pairs(tmp_path, "test", ["cd"], ["DC"])
    request_ = replace(request_, dev_source=dev[0], dev_target=dev[1], test_source=test[0], test_target=test[1])
    assert prepare_corpus(request_, ignore).split("train").num_pairs == 200


def test_user_is_told_what_was_found(tmp_path: Path) -> None:
    sources = make_sentences(100)
    files = write_pairs(tmp_path, "train", ["\ufeff", *sources, "x▁y"], ["A\r", *sources, "z"])
    said: list[str] = []
    corpus = prepare_corpus(PrepareRequest(*files, out=tmp_path / "out"), said.append)
    text = "\n".join(said)
    for part in ("CRLF", "BOM", "1 pair with an empty side", "U+2581", "Held out 2 pairs", "vocabulary has"):
        assert part in text
    assert (corpus.manifest.dropped.blank, corpus.manifest.dropped.reserved_character) == (1, 1)
    assert str(corpus.source_tokenizer.num_pieces) in said[-1]


def test_unusual_characters_survive_in_text_and_ids(tmp_path: Path) -> None:
    unusual = "a\u2028b\x85c\x0bd\re\u00a0f😀"
    files = write_pairs(tmp_path, "train", [*make_sentences(50), f"{unusual} {unusual}"], make_sentences(51))
    dev = write_pairs(tmp_path, "dev", [f"  {unusual}\t\t b "], ["ab"])
    corpus = prepare_corpus(
        PrepareRequest(*files, out=tmp_path / "out", dev_source=dev[0], dev_target=dev[1], held_out=1, seed=3), ignore
    )
    assert corpus.text("dev") == ([f"{unusual} b"], ["ab"])
    assert decode_split(corpus, "dev") == [(f"{unusual} b", "ab")]


@settings(max_examples=25, deadline=None)
@given(st.lists(ANY_LINES, max_size=12, unique_by=normalise))
def test_any_text_is_prepared_or_refused_in_words(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    folder = tmp_path_factory.mktemp("any")
    files = write_pairs(folder, "train", lines, lines)
    try:
        corpus = prepare_corpus(PrepareRequest(*files, out=folder / "out"), ignore)
    except UserError:
        assert "out" not in names_in(folder)
    else:
        # The first line's BOM is the file's, the last character before a newline may be half of a CRLF.
        kept = {normalise(line) for line in [*lines, lines[0].removeprefix("\ufeff")]}
        assert {source for source, _ in decode_split(corpus, "train")} <= kept


@pytest.mark.parametrize(
    ("num_pairs", "vocab_size"),
    [(1, 2048), (1_999, 2048), (2_000, 4096), (20_000, 8192), (200_000, 16384), (1_000_000, 32768), (5_000_000, 32768)],
)
def test_default_vocab_size_follows_the_text(num_pairs: int, vocab_size: int) -> None:
    assert default_vocab_size(num_pairs) == vocab_size


def test_default_vocabulary_shrinks_to_the_text(request_: PrepareRequest) -> None:
    said: list[str] = []
    corpus = prepare_corpus(replace(request_, vocab_size=None), said.append)
    num_pieces = corpus.source_tokenizer.num_pieces
    assert num_pieces < 2048
    assert f"{num_pieces} pieces (the most this text gives" in said[-1]


def test_default_vocabulary_grows_for_many_characters(tmp_path: Path) -> None:
    lines = ["".join(chr(0x4E00 + 3 * number + place) for place in (0, 1, 2)) * 2 for number in range(1_500)]
    files = write_pairs(tmp_path, "train", lines, [f"{line}!" for line in lines])
    said: list[str] = []
    corpus = prepare_corpus(PrepareRequest(*files, out=tmp_path / "out", held_out=50), said.append)
    assert corpus.source_tokenizer.num_pieces > 4200 > default_vocab_size(1_400)
    assert "because the text has many different characters" in said[-1]


def test_asked_vocabulary_that_is_too_large_is_an_error(request_: PrepareRequest) -> None:
    with pytest.raises(VocabularyTooLarge, match="--vocab-size"):
        prepare_corpus(replace(request_, vocab_size=30_000), ignore)
    assert not request_.out.exists()


@pytest.mark.parametrize("num_pairs", [1, 2])
def test_too_little_text_is_refused(tmp_path: Path, num_pairs: int) -> None:
    files = write_pairs(tmp_path, "train", make_sentences(num_pairs), make_sentences(num_pairs, seed=2))
    with pytest.raises(UserError, match=f"The text has {num_pairs} pairs"):
        prepare_corpus(PrepareRequest(*files, out=tmp_path / "out"), ignore)


def test_three_pairs_are_enough(tmp_path: Path) -> None:
    files = write_pairs(tmp_path, "train", make_sentences(3), make_sentences(3, seed=2))
    corpus = prepare_corpus(PrepareRequest(*files, out=tmp_path / "out"), ignore)
    assert [corpus.split(name).num_pairs for name in ("train", "dev", "test")] == [1, 1, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sources", "message"),
    [(["same"] * 10, "repeats itself"), (["one", "two"] * 5, "none is left"), ([" "] * 10, "no pair with text")],
)
def test_useless_text_is_refused(tmp_path: Path, sources: list[str], message: str) -> None:
    files = write_pairs(tmp_path, "train", sources, sources)
    with pytest.raises(UserError, match=message):
        prepare_corpus(PrepareRequest(*files, out=tmp_path / "out"), ignore)
    assert names_in(tmp_path) == {"train.en", "train.de"}


@pytest.mark.parametrize(
    "change", [{"source_files": []}, {"dev_source": [Path("x")]}, {"held_out": 0}, {"vocab_size": 0}, {"seed": -1}]
)
def test_wrong_requests_are_usage_errors(request_: PrepareRequest, change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        prepare_corpus(replace(request_, **change), ignore)  # type: ignore[arg-type]


def test_finished_preparation_is_reused(request_: PrepareRequest) -> None:
    first = prepare_corpus(request_, ignore)
    said: list[str] = []
    again = prepare_corpus(request_, said.append)
    assert again.manifest == first.manifest
    assert len(said) == 1
    assert "already prepared" in said[0]


def test_other_settings_or_text_in_the_way_are_refused(request_: PrepareRequest) -> None:
    prepare_corpus(request_, ignore)
    before = (request_.out / "manifest.json").read_bytes()
    with pytest.raises(UserError, match="with other settings"):
        prepare_corpus(replace(request_, seed=2), ignore)
    with request_.source_files[0].open("a") as file:
        file.write("more\n")
    with pytest.raises(UserError, match="from other train text"):
        prepare_corpus(request_, ignore)
    assert (request_.out / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    "put_in_the_way",
    [Path.touch, lambda path: path.symlink_to("nowhere")],
    ids=["file", "dangling link"],
)
def test_anything_else_in_the_way_is_refused(request_: PrepareRequest, put_in_the_way: Callable[[Path], None]) -> None:
    put_in_the_way(request_.out)
    with pytest.raises(UserError, match="prepared exists already"):
        prepare_corpus(request_, ignore)
    assert os.path.lexists(request_.out)


def test_an_empty_folder_is_not_in_the_way(request_: PrepareRequest) -> None:
    request_.out.mkdir()
    assert prepare_corpus(request_, ignore).split("train").num_pairs > 0


def test_full_disk_leaves_nothing_behind(request_: PrepareRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dragoman.corpus.shards._write_offsets", fail)
    with pytest.raises(UserError, match=rf"no space left for {request_.out}"):
        prepare_corpus(request_, ignore)
    assert names_in(request_.out.parent) == {"train.en", "train.de"}


def test_unwritable_place_is_refused(request_: PrepareRequest) -> None:
    with pytest.raises(UserError, match="cannot be written: Not a directory"):
        prepare_corpus(replace(request_, out=request_.source_files[0] / "out"), ignore)


def test_killed_preparation_leaves_no_output_and_does_not_block(request_: PrepareRequest) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from dragoman.corpus.prepare import PrepareRequest, prepare_corpus\n"
        "def die(stage, done, total):\n"
        "    if stage == 'encoding dev': os.kill(os.getpid(), signal.SIGKILL)\n"
        "source, target, out = map(Path, sys.argv[1:])\n"
        "prepare_corpus(PrepareRequest([source], [target], out=out, vocab_size=100), print, die)\n"
    )
    paths = map(str, (request_.source_files[0], request_.target_files[0], request_.out))
    ended = subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not request_.out.exists()
    said: list[str] = []
    assert prepare_corpus(request_, said.append).split("train").num_pairs == 192
    assert any("left over" in sentence for sentence in said)


def test_progress_counts_up_to_all_pairs(request_: PrepareRequest) -> None:
    seen: list[tuple[str, int, int | None]] = []
    prepare_corpus(request_, ignore, lambda *report: seen.append(report))
    assert ("encoding train", 192, 192) in seen


def damage_manifest(out: Path, change: Callable[[dict[str, object]], object]) -> None:
    content = json.loads((out / "manifest.json").read_text())
    change(content)
    (out / "manifest.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.update(format_version=2), "format version 2"),
        (lambda content: content.pop("format_version"), "format version None"),
        (lambda content: content.pop("settings"), "malformed at settings"),
        (lambda content: content["splits"].pop("dev"), "lacks dev"),
        (lambda content: content["splits"]["train"].update(num_pairs="many"), "malformed at splits.train.num_pairs"),
    ],
)
def test_malformed_manifest_is_refused(request_: PrepareRequest, change: Callable[..., object], message: str) -> None:
    prepare_corpus(request_, ignore)
    damage_manifest(request_.out, change)
    with pytest.raises(UserError, match=message):
        PreparedCorpus.open(request_.out)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b""])
def test_manifest_that_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(UserError, match=r"manifest\.json"):
        PreparedCorpus.open(tmp_path)


def test_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no manifest\.json"):
        PreparedCorpus.open(tmp_path)
    with pytest.raises(UserError, match=r"has no manifest\.json"):
        PreparedCorpus.open(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["tokenizer.model", "test.target.txt", "train/00000.target.ids"])
def test_damaged_files_are_found_on_opening(request_: PrepareRequest, name: str) -> None:
    prepare_corpus(request_, ignore)
    path = request_.out / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=path.name):
        PreparedCorpus.open(request_.out)
    path.unlink()
    with pytest.raises(UserError, match=f"{path.name} is missing"):
        PreparedCorpus.open(request_.out)
