"""Multi30k, English to German, as the benchmarks use it: unpacked, 8,000 joint pieces, in a folder of its own."""

import gzip
import shutil
from pathlib import Path

from dragoman.corpus.prepare import PrepareRequest, prepare_corpus
from dragoman.corpus.prepared import PreparedCorpus
from dragoman.run.errors import UserError

REPOSITORY = Path(__file__).resolve().parent.parent
PACKED_FOLDER = REPOSITORY.parent / "shared" / "data" / "multi30k"
VOCAB_SIZE = 8_000


def prepare_multi30k(folder: Path) -> PreparedCorpus:
    """Unpacks and prepares the corpus inside `folder`; takes a few seconds."""

    def both_sides(split: str) -> tuple[list[Path], list[Path]]:
        return [_unpack(f"{split}.en", folder)], [_unpack(f"{split}.de", folder)]

    request = PrepareRequest(
        *both_sides("train"),
        folder / "prepared",
        *both_sides("val"),
        *both_sides("test_2016_flickr"),
        vocab_size=VOCAB_SIZE,
    )
    return prepare_corpus(request, say=lambda _: None)


def _unpack(name: str, folder: Path) -> Path:
    packed, unpacked = PACKED_FOLDER / f"{name}.gz", folder / name
    if not packed.exists():
        raise UserError(f"{packed} is missing; the benchmarks need Multi30k there, gzipped.")
    with gzip.open(packed) as read, unpacked.open("wb") as written:
        shutil.copyfileobj(read, written)
    return unpacked
