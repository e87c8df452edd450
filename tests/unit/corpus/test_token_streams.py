"""Tokenizing a stream and back: nothing is lost, lines stay lines, and bad input is named."""

import contextlib
import io
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.corpus import token_streams
from dragoman.corpus.formats.blocks import MAX_LINE_BYTES
from dragoman.corpus.token_streams import detokenize_stream, load_vocabulary, tokenize_stream
from dragoman.corpus.tokenizer import Tokenizer, TokenizerDesign, train_tokenizer
from dragoman.run.errors import UsageError, UserError

TEXT = [
    "the dog sees a cat",
    "a small dog sees the small cat",
    "<2de> le chat noir",
    "dogs, cats and mice: 12 of 3",
] * 3
CHINESE = ["中文 文中 中中文文 文 中"] * 5
TOKENIZERS = {
    "bpe": Tokenizer(train_tokenizer(TEXT, 60)),
    "unigram": Tokenizer(train_tokenizer(TEXT, 35, TokenizerDesign("unigram"))),
    "bytes": Tokenizer(train_tokenizer(TEXT, 300, TokenizerDesign(byte_fallback=True))),
    "tags": Tokenizer(train_tokenizer(TEXT, 60, TokenizerDesign(symbols=("<2de>",)))),
    # Lacks the characters of <s>, so that it becomes one unknown subword.
    "no Latin": Tokenizer(train_tokenizer(CHINESE, 12)),
}
LINES = st.lists(
    st.text(
        st.one_of(
            st.sampled_from("<>/sunkpad0xE2 \t\r\u2028\x85\u00a0\u3000\ufeff⁇äß中"),
            st.characters(exclude_categories=["Cs"], exclude_characters="\0\n▁▅"),
        )
    ).map(lambda line: line.rstrip("\r")),
    max_size=8,
)


def tokenize(tokenizer: Tokenizer, given: bytes, as_ids: bool = False) -> bytes:
    out = io.BytesIO()
    tokenize_stream(tokenizer, io.BytesIO(given), out, as_ids)
    return out.getvalue()


def detokenize(tokenizer: Tokenizer, given: bytes, as_ids: bool = False) -> bytes:
    out = io.BytesIO()
    detokenize_stream(tokenizer, io.BytesIO(given), out, as_ids)
    return out.getvalue()


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(lines=LINES)
@example(lines=["<s>", "</s> <pad>", "<unk>", " <unk>  ", "a<s>b", "<0x41>", "", " ", "⁇"])
@example(lines=["a\rb", "\u2028", "\x85c", "\ufeffx", "  two  blanks  ", "<2de> dog"])
def test_text_is_restored_exactly(kind: str, lines: list[str]):
    text = "".join(f"{line}\n" for line in lines).encode()
    subwords = tokenize(TOKENIZERS[kind], text)
    assert subwords.count(b"\n") == len(lines)
    assert detokenize(TOKENIZERS[kind], subwords) == text


@given(lines=LINES)
def test_ids_restore_text_if_every_character_has_one(lines: list[str]):
    text = "".join(f"{line}\n" for line in lines).encode()
    ids = tokenize(TOKENIZERS["bytes"], text, as_ids=True)
    assert set(ids) <= set(b"0123456789 \n")
    assert detokenize(TOKENIZERS["bytes"], ids, as_ids=True) == text


@given(st.binary())
def test_any_bytes_are_converted_or_refused(given: bytes):
    for convert in (tokenize, detokenize):
        for as_ids in (False, True):
            with contextlib.suppress(UserError):
                out = convert(TOKENIZERS["bytes"], given, as_ids)
                assert out.count(b"\n") == given.count(b"\n") + (not given.endswith(b"\n") and given != b"")


def test_subwords_and_ids_are_those_of_sentencepiece():
    tokenizer = TOKENIZERS["bpe"]
    subwords, ids = tokenizer.encode_as_subwords(TEXT), tokenizer.encode_lines(TEXT)
    text = "".join(f"{line}\n" for line in TEXT).encode()
    assert tokenize(tokenizer, text).decode() == "".join(" ".join(line) + "\n" for line in subwords)
    assert tokenize(tokenizer, text, as_ids=True).decode() == "".join(" ".join(map(str, line)) + "\n" for line in ids)


def test_empty_lines_stay_and_the_last_line_may_lack_its_end():
    tokenizer = TOKENIZERS["bpe"]
    assert tokenize(tokenizer, b"") == b""
    assert tokenize(tokenizer, b"\n\n") == b"\n\n"
    assert detokenize(tokenizer, b"\n\n") == b"\n\n"
    assert detokenize(tokenizer, tokenize(tokenizer, b"a cat")) == b"a cat\n"


def test_windows_line_ends_are_plain_line_ends():
    tokenizer = TOKENIZERS["bpe"]
    assert tokenize(tokenizer, b"a cat\r\n\r\nthe\r\n") == tokenize(tokenizer, b"a cat\n\nthe\n")
    subwords = tokenize(tokenizer, b"a cat\nthe\n")
    assert detokenize(tokenizer, subwords.replace(b"\n", b"\r\n")) == b"a cat\nthe\n"


def test_subwords_of_another_vocabulary_are_joined_too():
    subwords = "<s> ▁Hun de ▁und ▁Kat zen , ▁12 .  </s>\n".encode()
    assert detokenize(TOKENIZERS["no Latin"], subwords) == b"Hunde und Katzen, 12.\n"


def test_a_byte_subword_for_a_line_end_makes_no_line():
    assert detokenize(TOKENIZERS["bytes"], "▁a <0x0A> b\n".encode()) == b"a b\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"fine\nd\xff\n", r"line 2 is not UTF-8 at byte offset 1 of the line \(0xff\)"),
        (b"\nfine\n\0\n", "line 3 has a NUL byte"),
        (b"x" * (MAX_LINE_BYTES + 1), "line 1 has more than 65,536 bytes"),
        (b"x\r\n" + b"x" * (MAX_LINE_BYTES + 1) + b"\n", "line 2 has more than 65,536 bytes"),
        (b"x" + b"\r" * (MAX_LINE_BYTES + 5) + b"\n", "line 1 has more than 65,536 bytes"),
    ],
)
def test_bad_text_is_refused_with_its_place(given: bytes, message: str):
    with pytest.raises(UserError, match=message):
        tokenize(TOKENIZERS["bpe"], given)


def test_the_longest_line_is_converted_and_restored():
    line = b"y" * MAX_LINE_BYTES
    for kind, as_ids in (("no Latin", False), ("bytes", False), ("bytes", True)):
        converted = tokenize(TOKENIZERS[kind], line + b"\r\n", as_ids)
        assert detokenize(TOKENIZERS[kind], converted, as_ids) == line + b"\n"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("60", "line 2 has '60' where an id should be; the ids of this vocabulary are the numbers from 0 to 59"),
        ("9" * 5000, r"line 2 has '9{20}.u2026' where"),
        ("-1", "line 2 has '-1' where"),
        ("▁the", "line 2 has '.u2581the' where an id should be; .* omit --ids"),
        ("1_0", "'1_0'"),
        ("１", "uff11"),
        ("²", "xb2"),
        ("5\t6", "5.t6"),
    ],
)
def test_a_wrong_id_is_refused_with_its_line(word: str, message: str):
    with pytest.raises(UserError, match=message):
        detokenize(TOKENIZERS["bpe"], f"5 6\n5 {word}\n".encode(), as_ids=True)


def test_line_numbers_continue_across_batches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(token_streams, "BATCH_BYTES", 4)
    with pytest.raises(UserError, match="line 100 has 'x'"):
        detokenize(TOKENIZERS["bpe"], b"5\n" * 99 + b"x\n", as_ids=True)
    text = b"a cat\n\nthe dog\n" * 20
    assert detokenize(TOKENIZERS["bpe"], tokenize(TOKENIZERS["bpe"], text)) == text


class Watched(io.BytesIO):
    """Records how far the reader was ahead of the writer at most."""

    def __init__(self, content: bytes, out: io.BytesIO) -> None:
        super().__init__(content)
        self.out, self.furthest_ahead = out, 0

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        self.furthest_ahead = max(self.furthest_ahead, self.tell() - self.out.tell())
        return line


def test_a_stream_is_never_wholly_in_memory():
    out = io.BytesIO()
    stream = Watched(b"a cat\n" * 300_000, out)
    tokenize_stream(TOKENIZERS["bpe"], stream, out, as_ids=True)
    assert stream.furthest_ahead < 2 * token_streams.BATCH_BYTES


def test_a_vocabulary_is_a_folder_or_a_model_file(prepared: Path):
    from_folder = load_vocabulary(prepared, "target")
    from_file = load_vocabulary(prepared / "tokenizer.model", "source")
    assert from_folder.encode_lines(["a dog"]) == from_file.encode_lines(["a dog"])


def test_separate_vocabularies_are_loaded_by_side(prepared: Path, tmp_path: Path):
    manifest = (prepared / "manifest.json").read_text(encoding="utf-8")
    (tmp_path / "manifest.json").write_text(manifest.replace('"is_joint": true', '"is_joint": false'), encoding="utf-8")
    TOKENIZERS["bpe"].save(tmp_path / "tokenizer.source.model")
    TOKENIZERS["unigram"].save(tmp_path / "tokenizer.target.model")
    assert load_vocabulary(tmp_path, "source").num_subwords == TOKENIZERS["bpe"].num_subwords
    assert load_vocabulary(tmp_path, "target").num_subwords == TOKENIZERS["unigram"].num_subwords


def test_a_missing_vocabulary_is_an_error(prepared: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="--side is 'left'; it can be source or target"):
        load_vocabulary(prepared, "left")
    with pytest.raises(UserError, match="is not a prepared corpus"):
        load_vocabulary(tmp_path, "source")
    with pytest.raises(UserError, match=r"none\.model does not exist"):
        load_vocabulary(tmp_path / "none.model", "source")
