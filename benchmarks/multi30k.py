"""Multi30k, English to German, as the benchmarks use it: joint subwords, in a folder of its own."""

from pathlib import Path

from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.corpus.settings import PrepareSettings, TokenizerSettings

REPOSITORY = Path(__file__).resolve().parent.parent
PACKED_FOLDER = REPOSITORY.parent / "shared" / "data" / "multi30k"
VOCAB_SIZE = 8_000


def prepare_multi30k(folder: Path, vocab_size: int = VOCAB_SIZE) -> PreparedCorpus:
    """Prepares the corpus inside `folder`; takes a few seconds."""

    def both_sides(split: str) -> tuple[list[Path], list[Path]]:
        return [PACKED_FOLDER / f"{split}.en.gz"], [PACKED_FOLDER / f"{split}.de.gz"]

    settings = PrepareSettings.of_files(
        *both_sides("train"),
        dev=both_sides("val"),
        test=both_sides("test_2016_flickr"),
        cleaning="none",
        tokenizer=TokenizerSettings(vocab_size=vocab_size),
    )
    return prepare_corpus(settings, folder / "prepared", say=lambda _: None)
