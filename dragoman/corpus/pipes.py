"""`dragoman tokenize` and `dragoman detokenize`: text to pieces or ids and back, line by line, in bounded memory.

A line ends with "\\n" (or "\\r\\n") and nowhere else. Where ids are written, what the vocabulary lacks is lost; pieces
keep it, so that text comes back as it was.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from dragoman.corpus.formats.blocks import MAX_LINE_BYTES, Unreadable, decode_sentence, join_lines
from dragoman.corpus.prepared_corpus import PreparedCorpus, read_manifest
from dragoman.corpus.tokenizer import NUM_SPECIAL_PIECES, Tokenizer
from dragoman.run.errors import UsageError, UserError

MAX_PIECES_LINE_BYTES = 8 * MAX_LINE_BYTES
"""A byte of text can become a piece like <0xE2> or an id of seven digits, and the blank after it."""
BATCH_BYTES = 2**18
"""Of lines that are encoded together: enough to keep all cores busy."""
MAX_SHOWN_CHARACTERS = 20
SPACE_MARK = "▁"


def load_vocabulary(path: Path, side: str) -> Tokenizer:
    """The tokenizer of one side of a prepared folder, or the one in a model file."""
    if side not in ("source", "target"):
        raise UsageError(f"--side is {side!r}; it can be source or target.")
    if not path.is_dir():
        return Tokenizer.load(path)
    corpus = PreparedCorpus(path, read_manifest(path))
    return corpus.source_tokenizer if side == "source" else corpus.target_tokenizer


def tokenize_stream(tokenizer: Tokenizer, stdin: BinaryIO, stdout: BinaryIO, as_ids: bool) -> None:
    """Writes the pieces or ids of every line, with one blank between them."""
    if as_ids:
        _convert(stdin, stdout, MAX_LINE_BYTES, lambda lines, _: _ids_of_text(tokenizer, lines))
    else:
        # Where the vocabulary lacks "<", "s" and ">", the text <s> becomes one piece that looks like a mark.
        marks = frozenset(tokenizer.pieces(range(NUM_SPECIAL_PIECES)))
        _convert(stdin, stdout, MAX_LINE_BYTES, lambda lines, _: _pieces_of_text(tokenizer, marks, lines))


def _ids_of_text(tokenizer: Tokenizer, lines: Sequence[str]) -> list[str]:
    return [" ".join(map(str, ids)) for ids in tokenizer.encode_lines(lines, num_threads=-1)]


def _pieces_of_text(tokenizer: Tokenizer, marks: frozenset[str], lines: Sequence[str]) -> list[str]:
    return [
        " ".join(pieces if marks.isdisjoint(pieces) else _spell_out(pieces, marks))
        for pieces in tokenizer.encode_as_pieces(lines)
    ]


def _spell_out(pieces: Sequence[str], marks: frozenset[str]) -> list[str]:
    """Cuts unknown text that looks like a mark into its characters, so that it is not read as one."""
    return [part for piece in pieces for part in (piece if piece in marks else (piece,))]


def detokenize_stream(tokenizer: Tokenizer, stdin: BinaryIO, stdout: BinaryIO, as_ids: bool) -> None:
    """Writes the text of every line of pieces or ids; BOS, EOS and PAD stand for no text."""
    every_id = range(tokenizer.num_pieces)
    if as_ids:
        ids = {str(piece_id): piece_id for piece_id in every_id}
        _convert(stdin, stdout, MAX_PIECES_LINE_BYTES, lambda lines, first: _text_of_ids(tokenizer, ids, lines, first))
    else:
        known = frozenset(tokenizer.pieces(every_id))
        _convert(stdin, stdout, MAX_PIECES_LINE_BYTES, lambda lines, _: _text_of_pieces(tokenizer, known, lines))


def _text_of_pieces(tokenizer: Tokenizer, known: frozenset[str], lines: Sequence[str]) -> list[str]:
    pieces_of_lines = ([piece for piece in line.split(" ") if piece] for line in lines)
    readable = (pieces if known.issuperset(pieces) else _split_marks(pieces, known) for pieces in pieces_of_lines)
    # A byte piece can stand for a line end, which must not become one here.
    return [join_lines(text) for text in tokenizer.decode_pieces(readable)]


def _split_marks(pieces: Sequence[str], known: frozenset[str]) -> list[str]:
    """Sets the space mark apart in pieces of other vocabularies, which would be shown as they are."""
    return [part for piece in pieces for part in ([piece] if piece in known else _around_marks(piece))]


def _around_marks(piece: str) -> list[str]:
    return [part for part in piece.replace(SPACE_MARK, f" {SPACE_MARK} ").split(" ") if part]


def _text_of_ids(tokenizer: Tokenizer, ids: Mapping[str, int], lines: Sequence[str], first_number: int) -> list[str]:
    ids_of_lines = [_look_up(ids, line, number) for number, line in enumerate(lines, start=first_number)]
    return [join_lines(text) for text in tokenizer.decode_lines(ids_of_lines)]


def _look_up(ids: Mapping[str, int], line: str, number: int) -> list[int]:
    words = [word for word in line.split(" ") if word]
    try:
        return [ids[word] for word in words]
    except KeyError as missing:
        word: str = missing.args[0]
    shown = ascii(word if len(word) <= MAX_SHOWN_CHARACTERS else word[:MAX_SHOWN_CHARACTERS] + "…")
    raise _input_error(
        number,
        f"has {shown} where an id should be; the ids of this vocabulary are the numbers from 0 to {len(ids) - 1}",
        "correct it, give the vocabulary it was made with, or leave out --ids",
    )


def _convert(
    stdin: BinaryIO, stdout: BinaryIO, max_line_bytes: int, convert: Callable[[list[str], int], list[str]]
) -> None:
    """Reads, converts and writes batches of lines; `convert` also hears the number of its first line."""
    first_number = 1
    for lines in _read_batches(stdin, max_line_bytes):
        stdout.write("".join([f"{line}\n" for line in convert(lines, first_number)]).encode())
        first_number += len(lines)
    stdout.flush()


def _read_batches(stdin: BinaryIO, max_line_bytes: int) -> Iterator[list[str]]:
    batch: list[str] = []
    num_bytes = 0
    for number, content in enumerate(_read_lines(stdin, max_line_bytes), start=1):
        try:
            batch.append(decode_sentence(content))
        except Unreadable as fault:
            raise _input_error(number, fault.reason, fault.advice) from None
        num_bytes += len(content) + 1
        if num_bytes >= BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _read_lines(stdin: BinaryIO, max_line_bytes: int) -> Iterator[bytes]:
    """Yields lines without their ends, never holding more of one than may be."""
    limit = max_line_bytes + len(b"\r\n")
    number = 0
    while raw := stdin.readline(limit):
        number += 1
        # All of them, not one: a line that kept a "\r" would lose it on the way back.
        content = raw.rstrip(b"\r\n")
        if len(content) > max_line_bytes or (len(raw) == limit and not raw.endswith(b"\n")):
            reason = f"has more than the {max_line_bytes:,} bytes a line may have"
            raise _input_error(number, reason, "split it into sentences, one a line")
        yield content


def _input_error(number: int, reason: str, advice: str) -> UserError:
    return UserError(f"Standard input, line {number} {reason}; {advice}.")
