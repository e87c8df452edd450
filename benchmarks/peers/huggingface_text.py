"""Text as subword ids for the Hugging Face side, with the SentencePiece model that the peers share."""

from pathlib import Path
from typing import Any

import sentencepiece
import torch

PAD, EOS = 0, 1
IGNORED_LABEL = -100
MAX_LENGTH = 256


class Subwords:
    """A SentencePiece model whose first ids are PAD and EOS."""

    def __init__(self, model: Path) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        assert (self._processor.pad_id(), self._processor.eos_id()) == (PAD, EOS)

    @property
    def size(self) -> int:
        """Number of subwords."""
        return self._processor.get_piece_size()

    def encode(self, path: Path) -> list[list[int]]:
        """Returns the ids of every line, each with its end mark."""
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        return self._processor.encode(lines, add_eos=True)

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Returns the text of ids; marks are left out."""
        return self._processor.decode([[each for each in line if each > EOS] for line in ids])


def training_pairs(subwords: Subwords, source: Path, target: Path) -> list[dict[str, list[int]]]:
    """Returns the pairs that fit the model."""
    pairs = zip(subwords.encode(source), subwords.encode(target), strict=True)
    return [{"input_ids": left, "labels": right} for left, right in pairs if max(len(left), len(right)) <= MAX_LENGTH]


def pad(rows: list[list[int]], value: int) -> torch.Tensor:
    """Returns rows of one length."""
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def collate(pairs: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Returns a batch, as DataCollatorForSeq2Seq does: the decoder reads PAD, then the labels before the last."""
    source = pad([each["input_ids"] for each in pairs], PAD)
    labels = pad([each["labels"] for each in pairs], IGNORED_LABEL)
    read = torch.nn.functional.pad(labels[:, :-1].clamp(min=PAD), (1, 0), value=PAD)
    return {
        "input_ids": source,
        "attention_mask": (source != PAD).long(),
        "decoder_input_ids": read,
        "labels": labels,
    }
