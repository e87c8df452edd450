"""Exports appear complete and verified, or not at all."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from export_sources import LINES, build_source

from dragoman.evaluation.scores import Score
from dragoman.exporting.export import ExportChoice, export_model
from dragoman.exporting.safetensors_format import load_exported_transformer
from dragoman.exporting.source import ExportSource
from dragoman.exporting.verification import Limits, Verification, VerificationText, find_text
from dragoman.model.shape import count_parameters
from dragoman.run.errors import UsageError, UserError
from dragoman.run.files import sha256
from dragoman.translation.exported_model import load_export, read_facts, verify_checksums

TEXT = VerificationText("some text", LINES[:6], [line.upper() for line in LINES[:6]])
ANYTHING = Limits(max_different=1.0, max_bleu_drop=100.0)


@pytest.fixture
def source(tmp_path: Path) -> ExportSource:
    return build_source(tmp_path / "run", embeddings="untied")


def export(source: ExportSource, out: Path, format_name: str = "ctranslate2", text=TEXT, limits=ANYTHING, **choices):
    return export_model(source, ExportChoice(format_name, **choices), out, text, limits)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_ctranslate2_folder_is_complete_and_loads(source: ExportSource, tmp_path: Path):
    finished = export(source, tmp_path / "out", licence="cc-by-4.0")
    assert names_in(tmp_path / "out") == {
        "model.bin",
        "config.json",
        "shared_vocabulary.json",
        "tokenizer.model",
        "dragoman.json",
        "README.md",
        "SHA256SUMS",
    }
    loaded = load_export(tmp_path / "out", num_workers=1)
    assert loaded.facts == finished.facts
    assert (loaded.facts.languages, loaded.facts.step, loaded.facts.beam_size) == (["en", "de"], 7, 3)
    assert loaded.facts.num_parameters == count_parameters(source.shape)
    assert loaded.describe().startswith("Translating with CTranslate2 (float32) and the checkpoint of step 7")
    assert len(loaded.translator.translate(LINES[:3])) == 3
    assert finished.verification.num_different == 0
    assert finished.figures()["different_sentences"] == 0


def test_vocabularies_may_be_separate(tmp_path: Path):
    source = build_source(tmp_path / "run", shares_vocabulary=False)
    export(source, tmp_path / "out")
    assert {"tokenizer.source.model", "tokenizer.target.model"} < names_in(tmp_path / "out")
    assert load_export(tmp_path / "out").translator.translate(LINES[:1])


def test_safetensors_hold_the_same_bits(source: ExportSource, tmp_path: Path):
    export(source, tmp_path / "out", "safetensors")
    loaded = load_exported_transformer(tmp_path / "out")
    assert loaded.shape == source.shape
    for name, tensor in source.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name].view(torch.uint8), tensor.view(torch.uint8))
    assert str(tmp_path) not in (tmp_path / "out" / "config.json").read_text()


def test_safetensors_are_refused_as_a_translator(source: ExportSource, tmp_path: Path):
    export(source, tmp_path / "out", "safetensors")
    with pytest.raises(UsageError, match="in the format safetensors"):
        load_export(tmp_path / "out")


def test_checksums_are_those_of_sha256sum(source: ExportSource, tmp_path: Path):
    export(source, tmp_path / "out", "safetensors")
    lines = (tmp_path / "out" / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1] for line in lines} == names_in(tmp_path / "out") - {"SHA256SUMS"}
    assert f"{sha256(tmp_path / 'out' / 'README.md')}  README.md" in lines


def test_an_export_that_differs_is_refused_and_removed(
    source: ExportSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Weights that are not written as they are."""
    from dragoman.exporting import export as module

    other = build_source(tmp_path / "other", seed=2, embeddings="untied")

    def write_others(_source: ExportSource, *arguments: object) -> None:
        write(other, *arguments)

    write = module.write_ctranslate2
    monkeypatch.setattr(module, "write_ctranslate2", write_others)
    with pytest.raises(UserError, match=r"refused: it translates . of 6 sentences of some text .* differently"):
        export(source, tmp_path / "place" / "out", limits=Limits())
    assert names_in(tmp_path / "place") == set()


def measured(num_different: int = 0, original: float = 30.0, exported: float = 30.0) -> Verification:
    scores = [Score(bleu, "nrefs:1", 50.0, "nrefs:1") for bleu in (original, exported)]
    return Verification("the dev set", 200, num_different, 200, 4, *scores, 1.0)


def test_limits_are_those_of_the_options():
    measured(num_different=2, exported=29.5).require(Limits())
    measured(num_different=9, exported=20.0).require(Limits(0.05, 10.0))
    with pytest.raises(UserError, match=r"translates 3 of 200 sentences of the dev set \(1\.5%\) .* at most 1\.0% may"):
        measured(num_different=3).require(Limits())
    with pytest.raises(
        UserError, match=r"BLEU on the dev set is 29\.40, 0\.60 below the run's 30\.00, and .* by 0\.5 "
    ):
        measured(exported=29.4).require(Limits())


def test_an_export_that_scores_lower_is_refused_and_the_earlier_one_stays(
    source: ExportSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from dragoman.exporting import export as module

    export(source, tmp_path / "place" / "out")
    monkeypatch.setattr(module, "verify", lambda *_: measured(exported=10.0))
    with pytest.raises(UserError, match=r"its BLEU on the dev set is 10\.00"):
        export(source, tmp_path / "place" / "out", quantization="int8", limits=Limits())
    assert names_in(tmp_path / "place") == {"out"}
    assert read_facts(tmp_path / "place" / "out").quantization is None


def test_a_failure_leaves_nothing_behind(source: ExportSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from dragoman.exporting import export as module

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "verify", fail)
    with pytest.raises(KeyboardInterrupt):
        export(source, tmp_path / "place" / "out")
    assert names_in(tmp_path / "place") == set()


def test_an_earlier_export_is_replaced(source: ExportSource, tmp_path: Path):
    export(source, tmp_path / "out", "safetensors")
    export(source, tmp_path / "out")
    assert read_facts(tmp_path / "out").format == "ctranslate2"
    assert not (tmp_path / "out" / "model.safetensors").exists()
    verify_checksums(tmp_path / "out")


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_other_things_are_never_overwritten(kind: str, source: ExportSource, tmp_path: Path):
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
        (out / "thesis.txt").write_text("important")
    elif kind == "file":
        out.write_text("important")
    else:
        out.symlink_to("nowhere")
    with pytest.raises(UserError, match="exists and is not"):
        export(source, out)
    assert out.is_symlink() or (out / "thesis.txt").exists() or out.read_text() == "important"


def test_an_empty_folder_is_used(source: ExportSource, tmp_path: Path):
    (tmp_path / "out").mkdir()
    export(source, tmp_path / "out", "safetensors")
    assert (tmp_path / "out" / "README.md").exists()


def test_quantization_is_for_ctranslate2_and_needs_references(source: ExportSource, tmp_path: Path):
    with pytest.raises(UsageError, match="--quantization needs --format ctranslate2"):
        ExportChoice("safetensors", "int8")
    with pytest.raises(UsageError, match="give --verify-reference"):
        export(source, tmp_path / "out", quantization="int8", text=replace(TEXT, references=None))
    assert not (tmp_path / "out").exists()


def test_without_references_only_outputs_are_compared(source: ExportSource, tmp_path: Path):
    finished = export(source, tmp_path / "out", text=replace(TEXT, references=None), limits=Limits())
    assert (finished.verification.num_compared, finished.verification.original) == (6, None)
    assert "BLEU" not in finished.summary()


def test_card_tells_scores_data_training_and_licence(source: ExportSource, tmp_path: Path):
    facts = {
        "corpora": [{"name": "europarl", "num_pairs": 12_345}],
        "cleaning": {"num_read": 20_000, "num_kept": 12_345},
        "tokenizer": {"is_joint": True, "num_source_pieces": 61, "num_target_pieces": 61},
    }
    source.run.corpus_facts.write_text(json.dumps(facts))
    scores = [
        {"judged_on": "/home/me/data/test.en", "step": 7, "bleu": 33.3, "signature": "nrefs:1|x", "sentences": 9},
        {"judged_on": "/home/me/data/test.en", "step": 8, "bleu": 44.4, "signature": "nrefs:1|x", "sentences": 9},
    ]
    source.run.scores.write_text("".join(json.dumps(each) + "\n" for each in scores) + "damaged\n")
    export(source, tmp_path / "out", "safetensors", licence="Ask me: first\nline | two")
    card = (tmp_path / "out" / "README.md").read_text()
    front_matter = card.split("---\n")[1]
    assert 'language: ["en", "de"]\n' in front_matter
    assert 'license: "other"\nlicense_name: "Ask me: first\\nline | two"\n' in front_matter
    assert "| test.en | 9 | 33.30 |" in card
    assert "44.4" not in card
    assert "/home/me" not in card
    assert "- europarl: 12,345 pairs" in card
    assert "the checkpoint of step 7; float32" in card
    assert f"{count_parameters(source.shape):,} parameters" in card
    assert "Ask me: first" in card


def test_averages_do_not_get_the_scores_of_a_checkpoint(source: ExportSource, tmp_path: Path):
    source.run.scores.write_text(json.dumps({"judged_on": "test.en", "step": 7, "bleu": 33.3}) + "\n")
    finished = export(replace(source, is_average=True), tmp_path / "out", "safetensors")
    assert [score.judged_on for score in finished.facts.scores] == ["some text, translated by this export with beam 3"]


class TestFindText:
    def test_reads_what_the_run_kept_where_the_corpus_is_gone(self, source: ExportSource):
        rows = [{"step": 7, "bleu": 1.0}, {"source": "a", "reference": "b"}, {"source": "c", "reference": "d"}]
        source.run.translations.write_text("".join(json.dumps(row) + "\n" for row in rows))
        said: list[str] = []
        text = find_text(source, (None, None), said.append)
        assert (text.sources, text.references) == (["a", "c"], ["b", "d"])
        assert "is gone: the export is compared on the 2 dev sentences in translations.jsonl" in said[0]

    def test_makes_lines_of_words_where_nothing_is_left(self, source: ExportSource):
        said: list[str] = []
        text = find_text(source, (None, None), said.append)
        assert text.references is None
        assert len(text.sources) > 10
        assert all(source.source_tokenizer.encode_lines(text.sources))
        assert "--verify-source" in said[0]

    def test_reads_files(self, source: ExportSource, tmp_path: Path):
        one, other = tmp_path / "one.txt", tmp_path / "other.txt"
        one.write_text("a\nb\n")
        other.write_text("x\n")
        assert find_text(source, (one, None), print).references is None
        with pytest.raises(UserError, match=r"has 2 lines but .* has 1"):
            find_text(source, (one, other), print)
        with pytest.raises(UsageError, match="--verify-reference needs --verify-source"):
            find_text(source, (None, other), print)
        other.write_text("\n\n")
        with pytest.raises(UserError, match="no text"):
            find_text(source, (other, None), print)
