"""Text that was cut into pieces before it came here, put together again: SentencePiece (▁) and subword-nmt (@@)."""

import re
from collections.abc import Callable, Sequence
from typing import Literal

from dragoman.run.preparation import Pieces

SAMPLE_LINES = 1000
_LEAST_SHARE_OF_CUT_LINES = 0.2
_JOINER = re.compile("@@( |$)", re.MULTILINE)

KindOfPieces = Literal["none", "sentencepiece", "subword-nmt"]
Undo = Callable[[list[str]], list[str]]


def recognise_pieces(lines: Sequence[str]) -> KindOfPieces:
    """What the first lines of a side look like."""
    filled = [line for line in lines if line and not line.isspace()]
    if filled and all(line.startswith("▁") for line in filled):
        return "sentencepiece"
    num_cut = sum("@@ " in line for line in lines)
    if num_cut and num_cut >= _LEAST_SHARE_OF_CUT_LINES * len(lines):
        return "subword-nmt"
    return "none"


def choose_pieces(setting: Pieces, lines: Sequence[str]) -> KindOfPieces:
    """What the setting says, or what the lines look like."""
    return recognise_pieces(lines) if setting == "auto" else setting


def put_together(kind: KindOfPieces, lines: list[str]) -> list[str]:
    """The lines as they were before; done for all of them at once, because that is much faster."""
    if kind == "none" or not lines:
        return lines
    text = "\n".join(lines)
    text = _without_sentencepiece(text) if kind == "sentencepiece" else _JOINER.sub("", text)
    return text.split("\n")


def tell_pieces(side: str, kind: KindOfPieces) -> str:
    """The notice about pieces that were undone."""
    maker, mark = ("SentencePiece", "▁") if kind == "sentencepiece" else ("subword-nmt", "@@")
    return f"{side} was cut into pieces by {maker} ({mark}); they were put together again."


def _without_sentencepiece(text: str) -> str:
    """Spaces part the pieces, and ▁ was a space, but for the one that SentencePiece puts before a sentence."""
    return text.replace(" ", "").replace("▁", " ").replace("\n ", "\n").removeprefix(" ")
