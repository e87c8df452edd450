"""Something to export: a tiny model with random weights that are nowhere zero, and its tokenizers."""

from dataclasses import replace
from pathlib import Path

import torch

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.exporting.source import ExportSource
from dragoman.model.shape import ModelShape
from dragoman.model.transformer import Transformer
from dragoman.run.config import Settings
from dragoman.run.folder import RunFolder

SENTENCE = "the cat sat on a mat and saw two small dogs near an old green house by the river"
WORDS = SENTENCE.split()
LINES = [" ".join(WORDS[begin : begin + length]) for begin in range(6) for length in (1, 4, 9)]
POST_NORM = {"norm": "post", "positions": "marian", "norm_epsilon": 1e-5}
"""What a model needs to fit the layout of Marian."""


def build_source(
    folder: Path, models: tuple[bytes, ...], dtype: torch.dtype = torch.float64, **choices: object
) -> ExportSource:
    """Makes a model for one joint tokenizer or for two; `choices` are fields of its shape."""
    files = tuple(folder / f"{number}.model" for number in range(len(models)))
    for file, model in zip(files, models, strict=True):
        file.write_bytes(model)
    source, target = Tokenizer(models[0]), Tokenizer(models[-1])
    shape = ModelShape(32, 64, 2, 2, 1, 0.1, 0.1, 0.1, source.vocab_size, target.vocab_size, len(models) == 1)
    torch.manual_seed(1)
    model = Transformer(replace(shape, **choices)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    settings = Settings(data={"prepared": "nowhere"})
    return ExportSource(RunFolder(folder), model, settings, source, target, files, ("en", "de"), 1, "step 1")
