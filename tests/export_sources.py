"""Tiny models that nobody trained, ready to be exported, and their log-probabilities computed in the plainest way."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from dragoman.corpus.prepared_corpus import tokenizer_path
from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, Tokenizer, train_tokenizer
from dragoman.exporting.source import ExportSource
from dragoman.model.shape import ModelShape
from dragoman.model.transformer import Transformer
from dragoman.run.config import Settings
from dragoman.run.folder import RunFolder

SENTENCE = "the cat sat on a mat and saw two small dogs near an old green house by the river"
WORDS = SENTENCE.split()
LINES = [" ".join(WORDS[begin:end]) for begin in range(6) for end in range(begin + 1, len(WORDS), 3)]
SHAPES = {
    "default": {},
    "post_norm": {"norm": "post"},
    "gelu": {"activation": "gelu"},
    "swish": {"activation": "swish"},
    "swiglu": {"activation": "swiglu"},
    "untied": {"embeddings": "untied"},
    "marian_positions": {"positions": "marian"},
    "biases": {"attention_bias": True, "output_bias": True},
    "large_epsilon": {"norm_epsilon": 0.3},
    "deep_encoder": {"encoder_layers": 3, "decoder_layers": 1},
    "separate": {"shares_vocabulary": False},
    "separate_untied": {"shares_vocabulary": False, "embeddings": "untied"},
    "marian_like": {
        "norm": "post",
        "activation": "swish",
        "positions": "marian",
        "attention_bias": True,
        "output_bias": True,
        "norm_epsilon": 1e-5,
    },
}
"""Every choice of ModelShape at least once."""


@cache
def tokenizer_models() -> tuple[bytes, bytes]:
    """Two vocabularies of different sizes, both padded: 61 and 51 subwords."""
    return train_tokenizer([SENTENCE, *LINES], 61), train_tokenizer([SENTENCE.upper(), *map(str.upper, LINES)], 51)


def build_source(folder: Path, seed: int = 1, **choices: object) -> ExportSource:
    """Makes something to export; all weights are random, so that each one matters."""
    is_joint = choices.get("shares_vocabulary", True) is True
    models = tokenizer_models()[:1] if is_joint else tokenizer_models()
    run = RunFolder(folder)
    run.tokenizers.mkdir(parents=True, exist_ok=True)
    files = list(dict.fromkeys(tokenizer_path(run.tokenizers, side, is_joint) for side in ("source", "target")))
    for file, model in zip(files, models, strict=True):
        file.write_bytes(model)
    source, target = Tokenizer(models[0]), Tokenizer(models[-1])
    shape = ModelShape(32, 64, 2, 2, 2, 0.1, 0.1, 0.1, source.vocab_size, target.vocab_size)
    torch.manual_seed(seed)
    model = Transformer(replace(shape, **choices)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    settings = Settings(data={"prepared": folder / "nowhere"}, evaluation={"beam_size": 3})
    return ExportSource(run, model, settings, source, target, tuple(files), ("en", "de"), 7, "the checkpoint of step 7")


@torch.no_grad()
def native_log_probabilities(model: Transformer, source: Sequence[int], target: Sequence[int]) -> list[float]:
    """Teacher-forced log-probability of each target subword and of EOS, computed in double precision."""
    source_ids, target_ids = torch.tensor([[*source, EOS_ID]]), torch.tensor([[BOS_ID, *target]])
    states = model.double()(source_ids, torch.tensor([source_ids.shape[1]]), target_ids)
    log_p = model.logits(states).log_softmax(-1)[0]
    found = log_p.gather(1, torch.tensor([*target, EOS_ID])[:, None])[:, 0].tolist()
    model.float()
    return found
