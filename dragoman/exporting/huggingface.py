"""Writes a model as a folder that the library transformers loads, and translates with such a folder to verify it."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, NUM_SPECIAL_IDS, PAD_ID, UNK_ID, Tokenizer
from dragoman.exporting.huggingface_layouts import model_config, model_weights
from dragoman.exporting.huggingface_search import to_huggingface_penalty
from dragoman.run.errors import UserError
from dragoman.run.files import write_json, write_then_rename
from dragoman.translation.search import SearchSettings

if TYPE_CHECKING:
    from dragoman.exporting.source import ExportSource

_MIN_POSITIONS = 1_024
"""Positions of an exported model at least; inputs with more subwords cannot be translated by transformers."""
_BATCH_LINES = 32


def write_huggingface(source: "ExportSource", folder: Path) -> None:
    """Writes weights, settings and tokenizer into a folder; a UserError says why a model cannot be written exactly."""
    from safetensors.torch import save

    _require_usable_subwords(source.source_tokenizer)
    max_tokens = source.settings.data.max_tokens
    num_positions = max(_MIN_POSITIONS, SearchSettings().max_length(max_tokens) + 1)
    write_json(folder / "config.json", model_config(source.shape, num_positions))
    write_json(folder / "generation_config.json", _generation_config(source))
    # Copies, since the file format refuses weights that share memory.
    weights = {name: each.detach().clone() for name, each in model_weights(source.model, num_positions).items()}
    with write_then_rename(folder / "model.safetensors") as file:
        # Earlier versions of transformers ask for this mark.
        file.write(save(weights, {"format": "pt"}))
    _write_tokenizer(source, folder)


def _require_usable_subwords(tokenizer: Tokenizer) -> None:
    """Refuses symbols that MarianTokenizer takes from the text before SentencePiece sees them."""
    for subword in tokenizer.subwords(range(NUM_SPECIAL_IDS, tokenizer.num_subwords)):
        if subword.startswith(">>") and subword.endswith("<<"):
            raise UserError(
                f"The tokenizer of Hugging Face treats the symbol {subword} in another way than this model does. "
                "Use --format ctranslate2 or --format safetensors."
            )


def _generation_config(source: "ExportSource") -> dict[str, Any]:
    """Returns how transformers searches: as our own search does, as far as the length penalty allows."""
    settings = source.settings
    padding = range(source.target_tokenizer.num_subwords, source.shape.target_vocab_size)
    return {
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "decoder_start_token_id": BOS_ID,
        "suppress_tokens": [PAD_ID, BOS_ID, UNK_ID, *padding],
        "num_beams": settings.evaluation.beam_size,
        "length_penalty": to_huggingface_penalty(settings.evaluation.length_penalty),
        "max_length": SearchSettings().max_length(settings.data.max_tokens) + 1,  # the start mark counts there
    }


def _write_tokenizer(source: "ExportSource", folder: Path) -> None:
    """Writes the SentencePiece models themselves: MarianTokenizer runs SentencePiece, so that all ids are ours."""
    files = source.tokenizer_files
    (folder / "source.spm").write_bytes(files[0].read_bytes())
    (folder / "target.spm").write_bytes(files[-1].read_bytes())
    is_joint = source.shape.shares_vocabulary
    write_json(folder / "vocab.json", _vocabulary(source.source_tokenizer))
    if not is_joint:
        write_json(folder / "target_vocab.json", _vocabulary(source.target_tokenizer))
    languages = dict(zip(("source_lang", "target_lang"), source.languages or (), strict=False))
    pad, end, _, unknown = source.source_tokenizer.subwords(range(NUM_SPECIAL_IDS))
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "pad_token": pad,
        "eos_token": end,
        "unk_token": unknown,
        "model_max_length": source.settings.data.max_tokens,
        "separate_vocabs": not is_joint,
        "split_special_tokens": True,  # </s> in a text is text
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", settings | languages)


def _vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    return {subword: number for number, subword in enumerate(tokenizer.subwords(range(tokenizer.num_subwords)))}


def translate_with_huggingface(
    folder: Path, lines: Sequence[str], beam_size: int, progress: Callable[[int], None] | None = None
) -> list[str]:
    """Translates with transformers, to verify an export; at beam size 1 it must agree with our own search.

    `progress` is called with the number of lines done since the last call.
    """
    try:
        model, tokenizer = _load_with_transformers(folder)
    except ImportError:
        raise UserError("The package transformers is needed to verify this export; install dragoman[export].") from None
    translations = [""] * len(lines)
    ids = tokenizer([line.strip() for line in lines], truncation=True, max_length=model.config.max_position_embeddings)
    # Of a blank line nothing is left but the end mark.
    filled = [index for index, each in enumerate(ids["input_ids"]) if len(each) > 1]
    filled.sort(key=lambda index: len(ids["input_ids"][index]))
    for begin in range(0, len(filled), _BATCH_LINES):
        batch = filled[begin : begin + _BATCH_LINES]
        found = _generate(model, tokenizer, [ids["input_ids"][index] for index in batch], beam_size)
        for index, text in zip(batch, found, strict=True):
            translations[index] = text.strip()
        if progress is not None:
            progress(len(batch))
    return translations


def _load_with_transformers(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends a package that only normalises punctuation on request
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).eval(), tokenizer


def _generate(model: Any, tokenizer: Any, id_lines: list[list[int]], beam_size: int) -> list[str]:
    """Translates one batch; each output has at most as many subwords as our own search allows."""
    import torch

    limits = [SearchSettings().max_length(len(ids)) for ids in id_lines]
    longest = min(max(limits), model.config.max_position_embeddings - 1)
    inputs = tokenizer.pad({"input_ids": id_lines}, return_tensors="pt")
    with torch.inference_mode():
        found = model.generate(**inputs, num_beams=beam_size, max_length=longest + 1).tolist()
    # The first id is the start mark.
    outputs = [ids[1 : limit + 1] for ids, limit in zip(found, limits, strict=True)]
    texts: list[str] = tokenizer.batch_decode(outputs, skip_special_tokens=True)
    return texts
