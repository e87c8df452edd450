"""The texts of time_to_bleu.py: a corpus unpacked, and one SentencePiece model for both peers."""

import gzip
import io
from pathlib import Path

import sentencepiece
from bleu_contestants import BATCH_TOKENS, VOCAB_SIZE, Texts
from multi30k import REPOSITORY

from dragoman.run.errors import UserError
from dragoman.run.files import write_text

DATA_FOLDER = REPOSITORY.parent / "shared" / "data"
DEV_NAMES = {"multi30k": "val", "tatoeba": "dev"}
LANGUAGES = ("en", "de")


def prepare_texts(corpus: str, folder: Path) -> Texts:
    """Unpacks a corpus into a folder and trains the peers' subwords, joint BPE, on all of it."""
    packed_folder = DATA_FOLDER / corpus
    if not packed_folder.is_dir():
        raise UserError(f"There is no corpus in {packed_folder}.")
    dev = DEV_NAMES[corpus]
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", dev):
        for language in LANGUAGES:
            text = gzip.decompress((packed_folder / f"{name}.{language}.gz").read_bytes())
            (folder / f"{name}.{language}").write_bytes(text)
    train = (folder / "train.en", folder / "train.de")
    subwords = folder / "subwords.model"
    _train_subwords(train, subwords)
    return Texts(
        packed=(packed_folder / "train.en.gz", packed_folder / "train.de.gz"),
        train=train,
        dev=(folder / f"{dev}.en", folder / f"{dev}.de"),
        subwords=subwords,
        num_pairs=len(read_lines(train[0])),
        pairs_per_batch=_pairs_per_batch(train, subwords),
    )


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a text; only a newline ends one."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def _train_subwords(train: tuple[Path, Path], model: Path) -> None:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for path in train for line in read_lines(path)),
        model_writer=written,
        vocab_size=VOCAB_SIZE,
        model_type="bpe",
        character_coverage=1.0,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    model.write_bytes(written.getvalue())
    # What `eole tools spm_to_vocab` makes, except its pseudo counts: one piece a line, without marks.
    processor = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    pieces = (processor.id_to_piece(number) for number in range(4, processor.get_piece_size()))
    write_text(model.with_suffix(".eole"), "".join(f"{piece}\t1\n" for piece in pieces))


def _pairs_per_batch(train: tuple[Path, Path], subwords: Path) -> int:
    """Returns how many pairs have about BATCH_TOKENS tokens on their longer side."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(subwords))
    lengths = ([len(line) + 1 for line in processor.encode(read_lines(path))] for path in train)
    longer = [max(pair) for pair in zip(*lengths, strict=True)]
    return round(BATCH_TOKENS * len(longer) / sum(longer))
