"""Folders of Marian models that are ours, damaged, or a trick; without transformers, which is slow to import."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from random_exports import LINES, POST_NORM, SENTENCE, build_source
from safetensors.torch import load_file, save_file

from dragoman.cli.import_model import import_model
from dragoman.corpus.tokenizer import TokenizerDesign, train_tokenizer
from dragoman.exporting.huggingface import write_huggingface
from dragoman.exporting.marian_import import import_marian
from dragoman.exporting.source import ExportSource, open_export_source
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder
from dragoman.translation.search import SearchSettings
from dragoman.translation.torch_search.torch_backend import TorchBackend
from dragoman.translation.translator import LineTranslator


@pytest.fixture(scope="module")
def tokenizers() -> tuple[bytes, bytes]:
    other = TokenizerDesign(kind="unigram", byte_fallback=True)
    return train_tokenizer([SENTENCE, *LINES], 60), train_tokenizer([SENTENCE, *LINES], 290, other)


@pytest.fixture(scope="module")
def original(tmp_path_factory, tokenizers) -> Path:
    """A folder that tests must not change."""
    folder = tmp_path_factory.mktemp("original") / "model"
    folder.mkdir()
    write_huggingface(build_source(folder.parent, tokenizers[:1], torch.float32, **POST_NORM), folder)
    return folder


@pytest.fixture
def folder(original, tmp_path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def translate(source: ExportSource) -> list[str]:
    backend = TorchBackend(source.model, source.target_tokenizer.num_subwords, num_workers=1)
    search = SearchSettings(beam_size=2)
    return LineTranslator(backend, source.source_tokenizer, source.target_tokenizer, search).translate(LINES)


@pytest.mark.parametrize("is_joint", [True, False])
@pytest.mark.parametrize("choices", [{}, {"embeddings": "untied", "output_bias": True}], ids=["tied", "untied"])
def test_our_own_exports_come_back_the_same(tmp_path, tokenizers, choices, is_joint):
    models = tokenizers[:1] if is_joint else tokenizers
    source = build_source(tmp_path, models, torch.float32, attention_bias=True, **POST_NORM | choices)
    (tmp_path / "model").mkdir()
    write_huggingface(source, tmp_path / "model")
    imported = import_marian(tmp_path / "model", RunFolder(tmp_path / "run"))
    again = open_export_source(tmp_path / "run")
    assert again.shape == source.shape
    assert translate(again) == translate(source)
    assert (again.languages, again.step) == (("en", "de"), 0)
    assert again.settings.evaluation == source.settings.evaluation.model_copy(update={"tokenizer": "13a"})
    assert imported.num_parameters == sum(parameter.numel() for parameter in source.model.parameters())


def test_command_names_the_run_after_the_folder(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.parent)
    import_model(folder, languages="en-fr")
    assert "into runs/model." in capsys.readouterr().out
    assert open_export_source(Path("runs/model")).languages == ("en", "fr")
    import_model(folder, run_dir=Path("other"), json=True)
    figures = json.loads(capsys.readouterr().out)
    assert figures["run"] == "other"
    assert figures["languages"] == "en-de"
    assert figures["width"] == 32


Damage = Callable[[Path], Any]


def with_config(**values: Any) -> Damage:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def with_ids(change_ids: Callable[[dict[str, Any]], Any]) -> Damage:
    def change(folder: Path) -> None:
        ids = json.loads((folder / "vocab.json").read_text())
        change_ids(ids)
        (folder / "vocab.json").write_text(json.dumps(ids))

    return change


def with_weights(change_weights: Callable[[dict[str, torch.Tensor]], Any]) -> Damage:
    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change_weights(weights)
        save_file(weights, folder / "model.safetensors")

    return change


def without(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def with_file(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def in_place_of(name: str, make: Callable[[Path], Any]) -> Damage:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


BIAS = "model.encoder.layers.0.fc1.bias"
REFUSALS: dict[str, tuple[Damage, str]] = {
    "no config": (without("config.json"), "has no config.json"),
    "no weights": (without("model.safetensors"), "has no model.safetensors"),
    "pickle": (only_pickle, "pytorch_model.bin only.*save_pretrained"),
    "no vocabulary": (without("vocab.json"), "vocab.json cannot be read"),
    "no tokenizer": (without("target.spm"), "target.spm cannot be read"),
    "not JSON": (with_file("config.json", b'{"model_type": '), "not valid JSON"),
    "not UTF-8": (with_file("config.json", b"\xff\xfe{}"), "not valid JSON"),
    "nested JSON": (with_file("config.json", b"[" * 100_000), "not valid JSON"),
    "a list": (with_file("config.json", b"[]"), "not a JSON object"),
    "another type": (with_config(model_type="bert"), "'bert', not one of Marian"),
    "another class": (with_config(architectures=["MarianForCausalLM"]), "not one of Marian"),
    "unscaled": (with_config(scale_embedding=False), "scale_embedding"),
    "pre-norm": (with_config(normalize_before=True), "normalize_before"),
    "activation": (with_config(activation_function="tanh"), "activation"),
    "layers": (with_config(encoder_layers=10**12), "encoder_layers is 1000000000000"),
    "no layers": (with_config(decoder_layers=0), "decoder_layers is 0"),
    "negative": (with_config(d_model=-8), "d_model is -8"),
    "text as number": (with_config(d_model="32"), "d_model is '32'"),
    "heads": (with_config(encoder_attention_heads=3, decoder_attention_heads=3), "not a multiple"),
    "different heads": (with_config(encoder_attention_heads=4), "encoder and decoder differ"),
    "dropout": (with_config(dropout=float("nan")), "dropout is nan"),
    "start": (with_config(decoder_start_token_id=10**6), "marks outside"),
    "another end": (with_config(eos_token_id=5), "different ids for the end"),
    "vocab size": (
        with_config(vocab_size=64 * 1024, decoder_vocab_size=64 * 1024),
        "rows of embeddings|is not the model",
    ),
    "same id": (with_ids(lambda ids: ids.update({"x y": 7})), "same id"),
    "negative id": (with_ids(lambda ids: ids.update({"x y": -1})), "the id -1"),
    "id of text": (with_ids(lambda ids: ids.update({"x y": "7"})), "the id '7'"),
    "no unknown": (with_ids(lambda ids: ids.pop("<unk>")), "has no <unk>"),
    "no SentencePiece": (with_file("source.spm", b"\x00nonsense"), "source.spm is damaged"),
    "empty SentencePiece": (with_file("source.spm", b""), "source.spm is damaged"),
    "NaN": (with_weights(lambda weights: weights[BIAS].fill_(float("nan"))), "NaN or infinite"),
    "missing weight": (with_weights(lambda weights: weights.pop(BIAS)), f"lacks {BIAS}"),
    "another size": (with_weights(lambda weights: weights.update({BIAS: torch.ones(7)})), "is 7 of F32, expected 64"),
    "integers": (with_weights(lambda weights: weights.update({BIAS: torch.ones(64).int()})), "I32"),
    "another weight": (
        with_weights(lambda weights: weights.update({"model.encoder.layer_norm.weight": torch.ones(32)})),
        "does not have",
    ),
    "learned positions": (
        with_weights(lambda weights: weights.update({"model.encoder.embed_positions.weight": torch.ones(1024, 32)})),
        "positions are not Marian's",
    ),
    "unequal tied": (
        with_weights(lambda weights: weights.update({"lm_head.weight": torch.ones(64, 32)})),
        "different embeddings",
    ),
    "cut weights": (lambda folder: os.truncate(folder / "model.safetensors", 5_000), "not a readable safetensors"),
    "no weights at all": (with_file("model.safetensors", b"{}"), "not a readable safetensors"),
    "a folder": (in_place_of("model.safetensors", Path.mkdir), "is not a file"),
    "a pipe": (in_place_of("vocab.json", os.mkfifo), "is not a file"),
    "a device": (in_place_of("config.json", lambda path: path.symlink_to("/dev/zero")), "is not a file"),
    "a huge file": (lambda folder: os.truncate(folder / "vocab.json", 2**40), "too large"),
}


@pytest.mark.parametrize(("damage", "reason"), REFUSALS.values(), ids=REFUSALS.keys())
def test_folders_that_cannot_be_imported_say_why(folder, damage, reason):
    damage(folder)
    run = folder.parent / "runs" / "run"
    with pytest.raises(UserError, match=reason) as refusal:
        import_marian(folder, RunFolder(run))
    assert len(str(refusal.value)) < 500
    assert not list((folder.parent).glob("runs/*"))


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="There is no folder"):
        import_marian(tmp_path / "nowhere", RunFolder(tmp_path / "run"))


def test_a_run_is_not_overwritten(folder, tmp_path):
    import_marian(folder, RunFolder(tmp_path / "run"))
    with pytest.raises(UserError, match="already holds a run"):
        import_marian(folder, RunFolder(tmp_path / "run"))


@pytest.mark.parametrize("languages", ["english", "en-", "../../en-de", "en-de-fr"])
def test_languages_are_two_codes(folder, tmp_path, languages):
    with pytest.raises(UsageError, match="such as en-de"):
        import_marian(folder, RunFolder(tmp_path / "run"), languages)
