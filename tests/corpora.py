"""Small parallel texts for tests, and readers of prepared corpora."""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.prepared_corpus import PreparedCorpus, SplitName
from dragoman.corpus.settings import PrepareSettings, TokenizerSettings

TextPair = tuple[str, str]
Files = tuple[Path, Path]
SPLITS: tuple[SplitName, ...] = ("train", "dev", "test")


def ignore(_: object) -> None:
    """Ignores messages of prepare_corpus."""


def make_sentences(num_sentences: int, seed: int = 1) -> list[str]:
    """Makes different sentences of invented words."""
    randomness = random.Random(seed)
    words = ["".join(randomness.choices("abcdefgh", k=randomness.randint(2, 5))) for _ in range(60)]
    return [" ".join(randomness.choices(words, k=5)) + f" {number}" for number in range(num_sentences)]


def make_pairs(num_pairs: int, seed: int = 1) -> list[TextPair]:
    """Makes pairs whose target is the source in capitals."""
    return [(line, line.upper()) for line in make_sentences(num_pairs, seed)]


def write_pairs(folder: Path, name: str, pairs: Iterable[TextPair]) -> Files:
    """Writes pairs as two plain files, NAME.en and NAME.de."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{name}.en", folder / f"{name}.de"
    texts = ["".join(f"{line}\n" for line in lines) for lines in list(zip(*pairs, strict=True)) or [(), ()]]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text.encode())
    return paths


def settings_for(files: Files, **changes: Any) -> PrepareSettings:
    """Returns settings for two plain files, with a vocabulary that fits small texts."""
    return PrepareSettings.of_files(
        [files[0]], [files[1]], **({"tokenizer": TokenizerSettings(vocab_size=100)} | changes)
    )


def prepare_pairs(folder: Path, pairs: Iterable[TextPair], **changes: Any) -> PreparedCorpus:
    """Writes pairs into a folder and prepares them there."""
    return prepare_corpus(settings_for(write_pairs(folder, "train", pairs), **changes), folder / "out", ignore)


def decode_split(corpus: PreparedCorpus, name: SplitName) -> list[TextPair]:
    """Decodes the text of a split from its ids."""
    ids = corpus.split(name)
    sources = corpus.source_tokenizer.decode_lines([ids.source(index).tolist() for index in range(len(ids))])
    targets = corpus.target_tokenizer.decode_lines([ids.target(index).tolist() for index in range(len(ids))])
    return list(zip(sources, targets, strict=True))


def decode_all(corpus: PreparedCorpus) -> list[TextPair]:
    """Decodes the text of all three splits."""
    return [pair for name in SPLITS for pair in decode_split(corpus, name)]


def content_of(out: Path) -> dict[str, Any]:
    """Reads every file of a prepared corpus by name; the manifest without its date."""
    files: dict[str, Any] = {
        path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()
    }
    manifest = json.loads(files.pop("manifest.json"))
    del manifest["created"]
    return files | {"manifest.json": manifest}


def names_in(folder: Path) -> set[str]:
    """Names of everything in a folder, hidden files included."""
    return {path.name for path in folder.iterdir()}


def filter_record(corpus: PreparedCorpus, name: str) -> dict[str, Any]:
    """Entry of one filter in the manifest."""
    [record] = [record for record in corpus.manifest.cleaning["filters"] if record["name"] == name]
    return dict(record)


def num_dropped(corpus: PreparedCorpus, names: Sequence[str] | None = None) -> int:
    """Number of pairs that these filters dropped, or all filters."""
    filters = corpus.manifest.cleaning["filters"]
    return sum(record["num_dropped"] for record in filters if names is None or record["name"] in names)
