"""An export must compute, in CTranslate2, what our own model computes, for every choice of ModelShape."""

import json
from dataclasses import replace
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import sentencepiece
import torch
from export_sources import LINES, SHAPES, build_source, native_log_probabilities

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.exporting.ctranslate2_format import write_ctranslate2
from dragoman.exporting.source import ExportSource
from dragoman.translation.ctranslate2_backend import CTranslate2Backend, vocabulary_entries
from dragoman.translation.search import SearchSettings, SourceSegment
from dragoman.translation.torch_search.torch_backend import TorchBackend
from dragoman.translation.translator import LineTranslator, SourceLine

MAX_POSITIONS = 128


def export(source: ExportSource, folder: Path, quantization: str | None = None) -> CTranslate2Backend:
    folder.mkdir()
    write_ctranslate2(source, folder, MAX_POSITIONS, quantization)
    return CTranslate2Backend(folder, source.source_tokenizer, source.target_tokenizer, MAX_POSITIONS, num_workers=1)


def random_pairs(source: ExportSource, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Pairs of all lengths from nothing to longer than any sentence of the training."""
    randomness = np.random.default_rng(seed)
    sizes = source.source_tokenizer.num_subwords, source.target_tokenizer.num_subwords
    return [
        tuple(randomness.integers(4, size, length).tolist() for size, length in zip(sizes, lengths, strict=True))
        for lengths in [(1, 0), (1, 1), (5, 9), (30, 17), (60, 100)]
    ]


@pytest.mark.parametrize("name", SHAPES)
def test_log_probabilities_are_those_of_the_model(name: str, tmp_path: Path):
    source = build_source(tmp_path / "run", **SHAPES[name])
    backend = export(source, tmp_path / "export")
    pairs = random_pairs(source)
    found = backend.score(*zip(*pairs, strict=True))
    for (ids, target), scores in zip(pairs, found, strict=True):
        assert scores == pytest.approx(native_log_probabilities(source.model, ids, target), abs=1e-4)


@pytest.mark.parametrize("name", ["default", "separate_untied", "marian_like"])
def test_greedy_search_finds_the_same(name: str, tmp_path: Path):
    source = build_source(tmp_path / "run", **SHAPES[name])
    backend = export(source, tmp_path / "export")
    found = [translate(source, each, SearchSettings(beam_size=1)) for each in (native(source), backend)]
    assert [each.text for each in found[0]] == [each.text for each in found[1]]
    assert [each.score for each in found[0]] == pytest.approx([each.score for each in found[1]], abs=1e-3)


def native(source: ExportSource) -> TorchBackend:
    return TorchBackend(source.model, source.target_tokenizer.num_subwords)


def translate(source: ExportSource, backend, settings: SearchSettings):
    translator = LineTranslator(backend, source.source_tokenizer, source.target_tokenizer, settings, 64)
    return [best[0] for best in translator.translate_lines([SourceLine(line) for line in LINES])]


def test_a_position_too_many_is_not_computed(tmp_path: Path):
    source = build_source(tmp_path / "run")
    backend = export(source, tmp_path / "export")
    settings = SearchSettings(beam_size=1, max_length_extra=10_000)
    [found] = [found for _, found in backend.search_batches([[_segment(source)]], settings)]
    assert len(found[0][0].tokens) <= MAX_POSITIONS


def _segment(source: ExportSource) -> SourceSegment:
    return SourceSegment(source.source_tokenizer.encode_lines(LINES[:1])[0])


def test_loads_with_ctranslate2_and_sentencepiece_alone(tmp_path: Path):
    """As the model card shows it."""
    source = build_source(tmp_path / "run", **SHAPES["separate_untied"])
    export(source, tmp_path / "export")
    source.copy_tokenizers(tmp_path / "export")
    pieces = {
        side: sentencepiece.SentencePieceProcessor(str(tmp_path / "export" / f"tokenizer.{side}.model"))
        for side in ("source", "target")
    }
    translator = ctranslate2.Translator(str(tmp_path / "export"))
    sources = [pieces["source"].encode(line, out_type=str) for line in LINES]
    entries = vocabulary_entries(source.target_tokenizer)
    unwanted = [entries[0], entries[2], entries[3], *entries[source.target_tokenizer.num_subwords :]]
    # A model that was never trained needs these; a trained one hardly ever chooses such subwords.
    odd = {"suppress_sequences": [[entry] for entry in unwanted], "min_decoding_length": 0, "max_decoding_length": 30}
    found = translator.translate_batch(sources, beam_size=1, **odd)
    texts = [pieces["target"].decode(each.hypotheses[0]).strip() for each in found]
    settings = SearchSettings(beam_size=1, max_length_factor=0, max_length_extra=30)
    assert texts == [each.text for each in translate(source, native(source), settings)]


def test_all_entries_of_the_vocabulary_differ(tmp_path: Path):
    source = build_source(tmp_path / "run", shares_vocabulary=False)
    export(source, tmp_path / "export")
    for side, size in (("source", 64), ("target", 56)):
        entries = json.loads((tmp_path / "export" / f"{side}_vocabulary.json").read_text())
        assert len(set(entries)) == len(entries) == size


def test_a_subword_that_is_named_like_an_unused_id_stays_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    tokenizer = build_source(tmp_path).source_tokenizer
    names = tokenizer.subwords(range(tokenizer.vocab_size))
    names[10] = names[-1]
    monkeypatch.setattr(Tokenizer, "subwords", lambda _self, _ids: list(names))
    entries = vocabulary_entries(tokenizer)
    assert len(set(entries)) == len(entries) == tokenizer.vocab_size
    assert entries[: tokenizer.num_subwords] == names[: tokenizer.num_subwords]


@pytest.mark.parametrize("name", ["default", "separate_untied"])
@pytest.mark.parametrize("quantization", ["int8", "int8_float32", "float16"])
def test_quantised_weights_are_near(name: str, quantization: str, tmp_path: Path):
    source = build_source(tmp_path / "run", **SHAPES[name])
    exact, rough = export(source, tmp_path / "exact"), export(source, tmp_path / "rough", quantization)
    sizes = [(tmp_path / each / "model.bin").stat().st_size for each in ("exact", "rough")]
    assert sizes[1] < 0.7 * sizes[0]
    pairs = list(zip(*random_pairs(source), strict=True))
    scores = [np.concatenate(each.score(*pairs)) for each in (exact, rough)]
    assert np.abs(scores[0] - scores[1]).mean() < (0.02 if quantization == "float16" else 0.5)


def test_the_model_is_left_as_it_was(tmp_path: Path):
    source = build_source(tmp_path / "run")
    before = {name: each.clone() for name, each in source.model.state_dict().items()}
    export(source, tmp_path / "export", "int8")
    assert all(torch.equal(each, before[name]) for name, each in source.model.state_dict().items())


def test_a_model_in_double_precision_is_exported_in_single(tmp_path: Path):
    source = build_source(tmp_path / "run")
    source = replace(source, model=source.model.double())
    backend = export(source, tmp_path / "export")
    [scores] = backend.score([[5, 6]], [[7, 8]])
    assert scores == pytest.approx(native_log_probabilities(source.model, [5, 6], [7, 8]), abs=1e-4)
