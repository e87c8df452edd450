"""Turns the vocabulary of a Hugging Face Marian model into our tokenizers, with the row of each subword.

Marian keeps SentencePiece models for text and a list of subwords with ids of its own. Ours are SentencePiece models
whose ids are those of the matrices, with PAD 0, EOS 1, BOS 2 and UNK 3.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from sentencepiece import sentencepiece_model_pb2

from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, NUM_SPECIAL_IDS, PAD_ID, UNK_ID, Tokenizer
from dragoman.run.errors import UserError

Ids = Mapping[str, int]
"""Rows by subword, as vocab.json has them."""
_ModelProto: Any = sentencepiece_model_pb2.ModelProto  # type: ignore[attr-defined]
_Piece = _ModelProto.SentencePiece
_OF_TEXT = (_Piece.NORMAL, _Piece.USER_DEFINED, _Piece.UNUSED, _Piece.BYTE)
_MARK_NAMES = ("<pad>", "</s>", "<s>", "<unk>")
"""Names of PAD, EOS, BOS and UNK in our tokenizers."""
_BLANK = "▁"


class Marks(NamedTuple):
    """Rows of the marks, in the order of our ids."""

    pad: int
    end: int
    start: int
    unknown: int


@dataclass(frozen=True)
class ImportedVocabulary:
    """A tokenizer of ours and the rows its ids have in the matrices of the other model."""

    tokenizer: bytes
    """A SentencePiece model file."""
    rows: list[int]
    """For each subword the row of its embedding; some rows are used twice, and those that end the list are rows that
    stand for no text."""
    is_possible: list[bool]
    """Whether the softmax may give each subword a probability: each row counts once."""

    @property
    def size(self) -> int:
        """Number of ids of the matrices, with those that only fill them up."""
        return len(self.rows)


def read_sentencepiece(content: bytes, name: str) -> Any:
    """Parses a SentencePiece model; a UserError names the file that is none."""
    model = _ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        model.Clear()
    if not model.pieces:
        raise UserError(f"{name} is damaged or is not a SentencePiece model.")
    return model


def is_complete(model: Any, ids: Ids) -> bool:
    """Whether text is cut into subwords with a row each, and into nothing that the SentencePiece model lacks."""
    return not _language_codes(ids) and all(piece.piece in ids for piece in _pieces_of_text(model))


def _language_codes(ids: Ids) -> dict[str, int]:
    """Returns codes such as >>deu<<, which name the language to translate into and stand before the text."""
    return {f"{_BLANK}{name}": row for name, row in ids.items() if name.startswith(">>") and name.endswith("<<")}


def _pieces_of_text(model: Any) -> list[Any]:
    """Returns what text can be cut into: all but marks."""
    return [piece for piece in model.pieces if piece.type in _OF_TEXT and piece.piece not in _MARK_NAMES]


def source_vocabulary(model: Any, ids: Ids, marks: Marks) -> ImportedVocabulary:
    """Returns the subwords that source text can be cut into; those without a row get the one of the unknown.

    Marian also finds the row of a character that only the target's SentencePiece model has, if it stands alone. Of
    several such characters in a row, Marian makes one unknown subword; here each keeps its row.
    """
    pieces = _pieces_of_text(model) + _characters_of_target(model, ids)
    rows = [ids.get(piece.piece, marks.unknown) for piece in pieces]
    codes = _language_codes(ids)
    pieces += [_Piece(piece=name, score=0.0, type=_Piece.USER_DEFINED) for name in codes]
    return _build(model, pieces, [*marks, *rows, *codes.values()], num_rows=0)


def _characters_of_target(model: Any, ids: Ids) -> list[Any]:
    """Returns the characters with a row that the SentencePiece model lacks; with byte fallback it reads their bytes.

    No subword contains such a character, so the score decides nothing.
    """
    if model.trainer_spec.byte_fallback:
        return []
    known = {piece.piece for piece in model.pieces}
    names = [name for name in ids if len(name) == 1 and name not in known]
    return [_Piece(piece=name, score=min(piece.score for piece in model.pieces)) for name in names]


def target_vocabulary(model: Any, ids: Ids, marks: Marks, num_rows: int) -> ImportedVocabulary:
    """Returns all subwords that the softmax knows; text is never cut into those that the SentencePiece model lacks."""
    return _build(model, *_target_pieces(model, ids, marks), num_rows)


def _target_pieces(model: Any, ids: Ids, marks: Marks) -> tuple[list[Any], list[int]]:
    of_text = {piece.piece: piece for piece in _pieces_of_text(model)}
    named = sorted((row, name) for name, row in ids.items() if row not in marks)
    pieces = [of_text.get(name) or _unused(name) for _, name in named]
    rows = [*marks, *(row for row, _ in named)]
    # SentencePiece wants all 256 bytes or none; those without a row are as unlikely as they are unknown.
    missing = [piece for name, piece in of_text.items() if piece.type == _Piece.BYTE and name not in ids]
    return pieces + missing, rows + [marks.unknown] * len(missing)


def _unused(name: str) -> Any:
    """Returns a subword that can be written but that text is not cut into."""
    return _Piece(piece=f"{name} " if name in _MARK_NAMES else name, score=0.0, type=_Piece.UNUSED)


def _build(model: Any, pieces: list[Any], rows: list[int], num_rows: int) -> ImportedVocabulary:
    """Builds the tokenizer; rows of the matrix that no subword has fill it up, as far as there is room."""
    built = _ModelProto()
    built.CopyFrom(model)
    del built.pieces[:]
    built.pieces.extend([*_mark_pieces(), *pieces])
    spec = built.trainer_spec
    spec.pad_id, spec.eos_id, spec.bos_id, spec.unk_id = PAD_ID, EOS_ID, BOS_ID, UNK_ID
    spec.pad_piece, spec.eos_piece, spec.bos_piece, spec.unk_piece = _MARK_NAMES
    spec.vocab_size = len(built.pieces)
    built.ClearField("self_test_data")
    content = built.SerializeToString(deterministic=True)
    size = _load(content).vocab_size
    rows = rows + sorted(set(range(num_rows)).difference(rows))
    if len(rows) > size:
        raise UserError(
            f"The vocabulary names {len(pieces) + NUM_SPECIAL_IDS:,} subwords, but the model has {num_rows:,} rows of "
            "embeddings: such a model cannot be imported exactly."
        )
    is_possible = list(_possible(rows)) + [False] * (size - len(rows))
    return ImportedVocabulary(content, rows + [rows[UNK_ID]] * (size - len(rows)), is_possible)


def _mark_pieces() -> Iterator[Any]:
    for number, name in enumerate(_MARK_NAMES):
        kind = _Piece.UNKNOWN if number == UNK_ID else _Piece.CONTROL
        yield _Piece(piece=name, score=0.0, type=kind)


def _possible(rows: list[int]) -> Iterator[bool]:
    """Lets each row count once: as the end or as the unknown if it is that, then as the start, and last as padding."""
    owners: dict[int, int] = {}
    for number in (EOS_ID, UNK_ID, BOS_ID, PAD_ID, *range(NUM_SPECIAL_IDS, len(rows))):
        owners.setdefault(rows[number], number)
    return (owners[row] == number for number, row in enumerate(rows))


def _load(content: bytes) -> Tokenizer:
    try:
        return Tokenizer(content)
    except ValueError as problem:
        raise UserError(f"The vocabulary cannot be imported: {problem}.") from None
