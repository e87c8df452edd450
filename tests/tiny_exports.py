"""A real export for CTranslate2 of a tiny model that nobody trained; made in a fraction of a second."""

import json
from pathlib import Path
from typing import Any

import torch

from dragoman.corpus.tokenizer import Tokenizer, train_tokenizer
from dragoman.exporting.ctranslate2_format import write_ctranslate2
from dragoman.exporting.source import ExportSource
from dragoman.model.shape import ModelShape
from dragoman.model.transformer import Transformer
from dragoman.run.folder import RunFolder
from dragoman.translation.exported_model import write_checksums

SENTENCE = "the cat sat on a mat and saw two small dogs near an old green house by the river"
MAX_POSITIONS = 64


def write_tiny_export(folder: Path, languages: tuple[str, str] | None = ("en", "de"), seed: int = 0) -> Path:
    """Writes an export; its translations are nonsense, but always the same."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(train_tokenizer([SENTENCE, *SENTENCE.split()], 60))
    torch.manual_seed(seed)
    shape = ModelShape(32, 64, 2, 1, 1, 0.1, 0.1, 0.1, tokenizer.vocab_size, tokenizer.vocab_size)
    tokenizer_file = folder / "tokenizer.model"
    tokenizer.save(tokenizer_file)
    unused: Any = None
    source = ExportSource(
        RunFolder(folder),
        Transformer(shape).eval(),
        unused,
        tokenizer,
        tokenizer,
        (tokenizer_file,),
        languages,
        7,
        "the checkpoint of step 7",
    )
    write_ctranslate2(source, folder, MAX_POSITIONS)
    facts = {
        "format_version": 1,
        "format": "ctranslate2",
        "dragoman_version": "0.1.0",
        "created": "2026-11-18T10:00:00+00:00",
        "languages": languages,
        "has_joint_vocabulary": True,
        "beam_size": 2,
        "length_penalty": 0.6,
        "max_source_tokens": 24,
        "max_positions": MAX_POSITIONS,
        "step": 7,
        "checkpoint": "the checkpoint of step 7",
        "num_parameters": 12_345,
        "scores": [{"judged_on": "dev", "bleu": 12.34, "signature": "nrefs:1|<b>odd</b>"}],
        "licence": "Apache-2.0",
    }
    (folder / "dragoman.json").write_text(json.dumps(facts), encoding="utf-8")
    write_checksums(folder)
    return folder
