"""Checks a model file of CTranslate2 before CTranslate2 reads it, which trusts what the file says.

A stranger's file with wrong sizes would make it read outside its memory.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import BinaryIO, Final

from dragoman.run.errors import UserError, describe_os_error

_BINARY_VERSION: Final = 6
_NUMBER_BYTES = (4, 1, 2, 4, 2, 2)
"""Of float32, int8, int16, int32, float16 and bfloat16, in CTranslate2's order."""
_MAX_VARIABLES = 100_000
_MAX_RANK = 3
_LAYER = r"(?P<layer>(?P<side>encoder|decoder)/layer_\d{1,4})"
_SHAPES = {
    r"encoder/embeddings_0/weight": "S D",
    r"decoder/(embeddings|projection)/weight": "T D",
    r"decoder/projection/bias": "T",
    r"(encoder|decoder)/position_encodings/encodings": "P D",
    rf"((encoder|decoder)|{_LAYER}/(self_attention|attention|ffn))/layer_norm/(gamma|beta)": "D",
    rf"{_LAYER}/self_attention/linear_0/weight": "3D D",
    rf"{_LAYER}/self_attention/linear_0/bias": "3D",
    rf"{_LAYER}/attention/linear_1/weight": "2D D",
    rf"{_LAYER}/attention/linear_1/bias": "2D",
    rf"{_LAYER}/(self_attention/linear_1|attention/linear_[02])/weight": "D D",
    rf"{_LAYER}/(self_attention/linear_1|attention/linear_[02])/bias": "D",
    rf"{_LAYER}/ffn/linear_0(_noact)?/weight": "F D",
    rf"{_LAYER}/ffn/linear_0(_noact)?/bias": "F",
    rf"{_LAYER}/ffn/linear_1/weight": "D F",
    rf"{_LAYER}/ffn/linear_1/bias": "D",
}
"""What each array of a Transformer must measure: D width, F feed-forward, S and T vocabularies, P positions."""
_HEADS = re.compile(r"(encoder|decoder)/num_heads")


class _MalformedError(Exception):
    """The file is not what it should be."""


@dataclass
class _Contents:
    """Arrays of a file by name; an alias has the sizes of what it stands for."""

    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    """Single integers."""


def check_model_file(path: Path, num_source: int, num_target: int, num_positions: int) -> None:
    """Refuses a file that is no Transformer of these vocabularies, or whose arrays do not fit together."""
    try:
        with path.open("rb") as file:
            _check_sizes(_read(file, path.stat().st_size), {"S": num_source, "T": num_target, "P": num_positions})
    except _MalformedError as problem:
        raise UserError(f"{path} is not a model that fits the rest of the export: {problem}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {describe_os_error(error)}.") from None


def _read(file: BinaryIO, num_bytes: int) -> _Contents:
    """Reads names and sizes, and skips the weights."""
    contents = _Contents()
    if _integer(file, "<I") != _BINARY_VERSION or _text(file) != "TransformerSpec":
        raise _MalformedError("it has another format")
    _integer(file, "<I")  # revision of the specification
    for _ in range(_count(file)):
        name = _text(file)
        sizes = tuple(_integer(file, "<I") for _ in range(_limited(_integer(file, "<B"), _MAX_RANK)))
        width = _NUMBER_BYTES[_limited(_integer(file, "<B"), len(_NUMBER_BYTES) - 1)]
        length = _integer(file, "<I")
        if length != width * prod(sizes) or file.tell() + length > num_bytes:
            raise _MalformedError(f"{name!r} has other sizes than its weights")
        contents.sizes[name] = sizes
        if sizes:
            file.seek(length, 1)
        else:
            contents.numbers[name] = int.from_bytes(file.read(length), "little", signed=True)
    for _ in range(_count(file)):
        alias, name = _text(file), _text(file)
        if name not in contents.sizes:
            raise _MalformedError(f"{alias!r} stands for nothing")
        contents.sizes[alias] = contents.sizes[name]
    if file.tell() != num_bytes:
        raise _MalformedError("more follows after its end")
    return contents


def _check_sizes(contents: _Contents, known: Mapping[str, int]) -> None:
    """Compares all arrays with what they must measure for the width that the target embedding has."""
    embedding = contents.sizes.get("decoder/embeddings/weight", ())
    if len(embedding) != 2:
        raise _MalformedError("it has no target embedding")
    width = embedding[1]
    for name, sizes in contents.sizes.items():
        if sizes:
            _check_array(name, sizes, contents, {"D": width, "2D": 2 * width, "3D": 3 * width, **known})
    heads = [number for name, number in contents.numbers.items() if _HEADS.fullmatch(name)]
    if len(heads) != 2 or any(number < 1 or width % number for number in heads):
        raise _MalformedError("its number of heads does not divide its width")


def _check_array(name: str, sizes: tuple[int, ...], contents: _Contents, known: Mapping[str, int]) -> None:
    weight = name.removesuffix("_scale")
    if weight != name:  # one factor per row of a quantised matrix
        if sizes != contents.sizes.get(weight, ())[:1]:
            raise _MalformedError(f"{name!r} does not fit its matrix")
        return
    for pattern, symbols in _SHAPES.items():
        if match := re.fullmatch(pattern, name):
            inner = contents.sizes.get(f"{match.groupdict().get('layer')}/ffn/linear_0/weight", (0,))
            wanted = [inner[0] if symbol == "F" else known[symbol] for symbol in symbols.split()]
            is_long_enough = symbols.startswith("P") and sizes[0] >= wanted[0] and sizes[1:] == tuple(wanted[1:])
            if list(sizes) != wanted and not is_long_enough:
                raise _MalformedError(f"{name!r} is {_show(sizes)} instead of {_show(wanted)}")
            return
    raise _MalformedError(f"it has an array {name!r}, which no model of dragoman has")


def _show(sizes: Sequence[int]) -> str:
    return " × ".join(f"{size:,}" for size in sizes)


def _integer(file: BinaryIO, kind: str) -> int:
    content = file.read(struct.calcsize(kind))
    if len(content) < struct.calcsize(kind):
        raise _MalformedError("it ends too early")
    return int(struct.unpack(kind, content)[0])


def _count(file: BinaryIO) -> int:
    return _limited(_integer(file, "<I"), _MAX_VARIABLES)


def _limited(number: int, largest: int) -> int:
    if number > largest:
        raise _MalformedError("it has another format")
    return number


def _text(file: BinaryIO) -> str:
    """Reads a name; a zero byte ends it."""
    content = file.read(_integer(file, "<H"))
    return content.rstrip(b"\0").decode(errors="replace")
