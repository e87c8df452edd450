"""Converts text to subwords or ids and back, line by line, for `dragoman tokenize` and `dragoman detokenize`.

A line ends only with "\\n" or "\\r\\n". Ids lose characters that are not in the vocabulary; subwords keep them, so that
the text can be restored exactly.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from dragoman.corpus.formats.blocks import MAX_LINE_BYTES, Unreadable, decode_sentence, join_lines
from dragoman.corpus.prepared_corpus import PreparedCorpus, read_manifest
from dragoman.corpus.tokenizer import NUM_SPECIAL_IDS, Tokenizer
from dragoman.run.errors import UsageError, UserError

_MAX_TOKENS_LINE_BYTES = 8 * MAX_LINE_BYTES
"""One byte of text can become a subword like <0xE2> or an id of seven digits, and the space after it."""
BATCH_BYTES = 2**18
"""Size of a batch of lines that are encoded together: enough to keep all cores busy."""
_MAX_SHOWN_CHARACTERS = 20
_SPACE_MARK = "▁"


def load_vocabulary(path: Path, side: str) -> Tokenizer:
    """Loads the tokenizer of one side of a prepared folder, or the one in a model file."""
    if side not in ("source", "target"):
        raise UsageError(f"--side is {side!r}; it can be source or target.")
    if not path.is_dir():
        return Tokenizer.load(path)
    corpus = PreparedCorpus(path, read_manifest(path))
    return corpus.source_tokenizer if side == "source" else corpus.target_tokenizer


def tokenize_stream(tokenizer: Tokenizer, stdin: BinaryIO, stdout: BinaryIO, as_ids: bool) -> None:
    """Writes the subwords or ids of every line, with one space between them."""
    if as_ids:
        _convert(stdin, stdout, MAX_LINE_BYTES, lambda lines, _: _ids_of_text(tokenizer, lines))
    else:
        # If the vocabulary lacks "<", "s" and ">", the text <s> becomes one subword that looks like a special token.
        special = frozenset(tokenizer.subwords(range(NUM_SPECIAL_IDS)))
        _convert(stdin, stdout, MAX_LINE_BYTES, lambda lines, _: _subwords_of_text(tokenizer, special, lines))


def _ids_of_text(tokenizer: Tokenizer, lines: Sequence[str]) -> list[str]:
    return [" ".join(map(str, ids)) for ids in tokenizer.encode_lines(lines, num_threads=-1)]


def _subwords_of_text(tokenizer: Tokenizer, special: frozenset[str], lines: Sequence[str]) -> list[str]:
    return [
        " ".join(subwords if special.isdisjoint(subwords) else _spell_out(subwords, special))
        for subwords in tokenizer.encode_as_subwords(lines)
    ]


def _spell_out(subwords: Sequence[str], special: frozenset[str]) -> list[str]:
    """Splits unknown text that looks like a special token into its characters, so that it is not read as one."""
    return [part for subword in subwords for part in (subword if subword in special else (subword,))]


def detokenize_stream(tokenizer: Tokenizer, stdin: BinaryIO, stdout: BinaryIO, as_ids: bool) -> None:
    """Writes the text of every line of subwords or ids; BOS, EOS and PAD have no text."""
    every_id = range(tokenizer.num_subwords)
    if as_ids:
        ids = {str(subword_id): subword_id for subword_id in every_id}
        _convert(stdin, stdout, _MAX_TOKENS_LINE_BYTES, lambda lines, first: _text_of_ids(tokenizer, ids, lines, first))
    else:
        known = frozenset(tokenizer.subwords(every_id))
        _convert(stdin, stdout, _MAX_TOKENS_LINE_BYTES, lambda lines, _: _text_of_subwords(tokenizer, known, lines))


def _text_of_subwords(tokenizer: Tokenizer, known: frozenset[str], lines: Sequence[str]) -> list[str]:
    split_lines = ([subword for subword in line.split(" ") if subword] for line in lines)
    readable = (subwords if known.issuperset(subwords) else _split_marks(subwords, known) for subwords in split_lines)
    # A byte subword can be a line end, which must not become one here.
    return [join_lines(text) for text in tokenizer.decode_subwords(readable)]


def _split_marks(subwords: Sequence[str], known: frozenset[str]) -> list[str]:
    """Separates the space mark in subwords of other vocabularies, which would otherwise be decoded as text."""
    return [part for subword in subwords for part in ([subword] if subword in known else _split_mark(subword))]


def _split_mark(subword: str) -> list[str]:
    return [part for part in subword.replace(_SPACE_MARK, f" {_SPACE_MARK} ").split(" ") if part]


def _text_of_ids(tokenizer: Tokenizer, ids: Mapping[str, int], lines: Sequence[str], first_number: int) -> list[str]:
    ids_of_lines = [_look_up(ids, line, number) for number, line in enumerate(lines, start=first_number)]
    return [join_lines(text) for text in tokenizer.decode_lines(ids_of_lines)]


def _look_up(ids: Mapping[str, int], line: str, number: int) -> list[int]:
    words = [word for word in line.split(" ") if word]
    try:
        return [ids[word] for word in words]
    except KeyError as missing:
        word: str = missing.args[0]
    shown = ascii(word if len(word) <= _MAX_SHOWN_CHARACTERS else word[:_MAX_SHOWN_CHARACTERS] + "…")
    raise _input_error(
        number,
        f"has {shown} where an id should be; the ids of this vocabulary are the numbers from 0 to {len(ids) - 1}",
        "correct it, give the vocabulary it was made with, or omit --ids",
    )


def _convert(
    stdin: BinaryIO, stdout: BinaryIO, max_line_bytes: int, convert: Callable[[list[str], int], list[str]]
) -> None:
    """Reads, converts and writes batches of lines; `convert` also gets the number of its first line."""
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
    """Yields lines without their line ends; never keeps more of a line in memory than its limit."""
    limit = max_line_bytes + len(b"\r\n")
    number = 0
    while raw := stdin.readline(limit):
        number += 1
        # Strips every "\r", not just one: a line that kept one would lose it when it is converted back.
        content = raw.rstrip(b"\r\n")
        if len(content) > max_line_bytes or (len(raw) == limit and not raw.endswith(b"\n")):
            reason = f"has more than {max_line_bytes:,} bytes, the limit for a line"
            raise _input_error(number, reason, "split it into sentences, one per line")
        yield content


def _input_error(number: int, reason: str, advice: str) -> UserError:
    return UserError(f"Standard input, line {number} {reason}; {advice}.")
