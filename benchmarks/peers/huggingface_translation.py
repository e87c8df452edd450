"""Translates lines with a checkpoint of huggingface_training.py, beam 5: `… SUBWORDS CHECKPOINT SOURCE OUTPUT`."""

import sys
from pathlib import Path

import torch
from huggingface_text import MAX_LENGTH, PAD, Subwords, pad
from transformers import MarianMTModel

BEAM_SIZE = 5
BATCH_SIZE = 64


def main() -> None:
    model_path, checkpoint, source, output = map(Path, sys.argv[1:])
    subwords, model = Subwords(model_path), MarianMTModel.from_pretrained(checkpoint).eval()
    rows = subwords.encode(source)
    found: dict[int, str] = {}
    by_length = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    for first in range(0, len(rows), BATCH_SIZE):
        numbers = by_length[first : first + BATCH_SIZE]
        ids = pad([rows[number] for number in numbers], PAD)
        longest = min(MAX_LENGTH, 2 * ids.shape[1] + 10)
        with torch.inference_mode():
            made = model.generate(
                input_ids=ids, attention_mask=(ids != PAD).long(), num_beams=BEAM_SIZE, max_new_tokens=longest
            )
        found |= dict(zip(numbers, subwords.decode(made.tolist()), strict=True))
    output.write_text("".join(f"{found[number]}\n" for number in range(len(rows))), encoding="utf-8")


if __name__ == "__main__":
    main()
