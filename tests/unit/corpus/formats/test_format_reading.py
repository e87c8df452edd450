"""Pairs in any format and compression are read back unchanged and with their numbers; subwords are joined."""

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.formats import blocks as blocks_module
from dragoman.corpus.formats.blocks import BadLines
from dragoman.corpus.formats.reading import ParallelText, detect_subwords, join_subwords
from dragoman.corpus.settings import TextSettings

Pairs = list[tuple[str, str]]

# XML knows no control characters, a line may not end with "\r", and a file may start with a byte order mark.
SENTENCES = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff\ufffe\uffff"), max_size=12
)
LINES = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20), max_size=8)
PAIRS = st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=12)
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "bz2": bz2.compress,
}


def as_tsv(pairs: Pairs) -> bytes:
    return "".join(f"{source}\t{target}\textra\n" for source, target in pairs).encode()


def as_jsonl(pairs: Pairs) -> bytes:
    records = ({"translation": {"de": target, "en": source}} for source, target in pairs)
    return "".join(json.dumps(record, ensure_ascii=i % 2 == 0) + "\n" for i, record in enumerate(records)).encode()


def as_tmx(pairs: Pairs) -> bytes:
    segments = [[f"<seg>{escape(side)}</seg>" for side in pair] for pair in pairs]
    units = "".join(f'<tu><tuv xml:lang="en">{en}</tuv><tuv xml:lang="de">{de}</tuv></tu>' for en, de in segments)
    return f'<tmx><header srclang="en"/><body>{units}</body></tmx>'.encode()


def as_parquet(pairs: Pairs) -> bytes:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    sources, targets = zip(*pairs, strict=True)
    pq.write_table(pa.table({"source": list(sources), "target": list(targets)}), file)
    return file.getvalue()


WRITERS: dict[str, Callable[[Pairs], bytes]] = {
    "tsv": as_tsv,
    "jsonl": as_jsonl,
    "tmx": as_tmx,
    "parquet": as_parquet,
}


def write(folder: Path, pairs: Pairs, kind: str, compress: Callable[[bytes], bytes]) -> TextSettings:
    if kind != "plain":
        (folder / "my.text").write_bytes(compress(WRITERS[kind](pairs)))
        return TextSettings(file=folder / "my.text", format=kind, pieces="none")  # type: ignore[arg-type]
    for side, name in enumerate(("my.en", "my.de")):
        (folder / name).write_bytes(compress("".join(pair[side] + "\n" for pair in pairs).encode()))
    return TextSettings(source=folder / "my.en", target=folder / "my.de", pieces="none")


@pytest.mark.parametrize("kind", ["plain", *WRITERS])
@given(pairs=PAIRS, compression=st.sampled_from(list(COMPRESS)), block_size=st.integers(1, 60))
def test_pairs_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, kind: str, pairs: Pairs, compression: str, block_size: int
) -> None:
    settings = write(tmp_path_factory.mktemp("text"), pairs, kind, COMPRESS[compression])
    text = ParallelText(settings, ("en", "de"), BadLines(0), 200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCK_BYTES", block_size)
        blocks = list(text.blocks())
    read = [pair for block in blocks for pair in zip(block.sources, block.targets, strict=True)]
    assert read == pairs
    numbers = [block.first_number + i for block in blocks for i in range(len(block.sources))]
    assert numbers == list(range(1, len(pairs) + 1))
    assert text.num_read == len(pairs)
    assert text.notices() == []


@pytest.mark.parametrize(
    ("kind", "split", "whole"),
    [
        ("sentencepiece", "▁The ▁to ur", "The tour"),
        ("sentencepiece", "▁ A ▁▁ b", "A  b"),
        ("sentencepiece", "", ""),
        ("subword-nmt", "un@@ related words", "unrelated words"),
        ("subword-nmt", "cut off at the end@@", "cut off at the end"),
        ("subword-nmt", "me@@example.org @@", "me@@example.org "),
        ("none", "▁a b@@ c", "▁a b@@ c"),
    ],
)
def test_subwords_are_joined(kind: str, split: str, whole: str) -> None:
    assert join_subwords(kind, ["", split, split]) == ["", whole, whole]  # type: ignore[arg-type]


@given(LINES)
def test_text_split_by_sentencepiece_is_restored(lines: list[str]) -> None:
    lines = [line.replace("▁", "") for line in lines]
    split = [" ".join("▁" + line.replace(" ", "▁")) for line in lines]
    assert join_subwords("sentencepiece", split) == lines


@given(LINES, st.sampled_from(["sentencepiece", "subword-nmt"]))
def test_joining_all_lines_at_once_equals_one_by_one(lines: list[str], kind: str) -> None:
    one_by_one = [join_subwords(kind, [line])[0] for line in lines]  # type: ignore[arg-type]
    assert join_subwords(kind, lines) == one_by_one  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["▁a b", "", " ", "▁c"], "sentencepiece"),
        (["▁a b", "c"], "none"),
        (["", " "], "none"),
        ([], "none"),
        (["a@@ b", "c", "d", "e", "f"], "subword-nmt"),
        (["a@@ b", "c", "d", "e", "f", "g"], "none"),
        (["a@@b"], "none"),
    ],
)
def test_subwords_are_detected(lines: list[str], kind: str) -> None:
    assert detect_subwords(lines) == kind
