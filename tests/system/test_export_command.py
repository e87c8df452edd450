"""`dragoman export` of a run that was really trained, as a user sees it."""

import json
import subprocess
from pathlib import Path

import pytest
from program import Run, call_dragoman

from dragoman.corpus.prepared_corpus import text_path


@pytest.mark.slow
def test_all_formats_translate_like_the_run(
    one_thread: None, dragoman: Run, run_copy: Path, prepared: Path, tmp_path: Path
):
    sources = text_path(prepared, "dev", "source")
    native = dragoman("translate", run_copy, input=sources.read_text()).stdout
    for name, options in {
        "ctranslate2": (),
        "int8": ("--quantization", "int8"),
        "huggingface": ("--format", "huggingface"),
        "safetensors": ("--format", "safetensors", "--licence", "cc0-1.0"),
    }.items():
        out = tmp_path / name
        run = dragoman if name == "huggingface" else call_dragoman
        figures = json.loads(run("export", run_copy, "--out", out, *options, "--json").stdout)
        assert figures["different_sentences"] == (None if name == "int8" else 0)
        assert figures["folder"] == str(out)
        assert figures["bleu"] == pytest.approx(figures["original_bleu"], abs=0.5)
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=out, check=True)
    assert dragoman("translate", tmp_path / "ctranslate2", input=sources.read_text()).stdout == native
    assert dragoman("translate", run_copy, "--backend", "ctranslate2", input=sources.read_text()).stdout == native


@pytest.mark.slow
def test_refusals_are_one_sentence_and_leave_nothing_behind(run_copy: Path, tmp_path: Path):
    place = tmp_path / "place"
    (place / "thesis").mkdir(parents=True)
    (place / "thesis" / "text").write_text("important")
    text = tmp_path / "text"
    text.write_text("one\n")
    for options, code, words in (
        (("--out", place / "new", "--format", "onnx"), 2, "onnx"),
        (("--out", place / "new", "--format", "huggingface", "--quantization", "int8"), 2, "--format ctranslate2"),
        (("--out", place / "new", "--checkpoint", "77"), 1, "no checkpoint of step 77"),
        (("--out", place / "thesis"), 1, "not an export of dragoman"),
        (("--out", place / "thesis" / "text" / "new"), 1, "cannot be written"),
        (("--out", place / "new", "--verify-reference", text), 2, "--verify-source"),
        (("--out", place / "new", "--verify-source", tmp_path / "gone"), 1, "gone"),
        (("--out", place / "new", "--quantization", "int8", "--verify-source", text), 2, "--verify-reference"),
    ):
        failed = call_dragoman("export", run_copy, *options, code=code)
        assert words in failed.stderr
        assert failed.stderr.count("\n") <= 2
        assert "Traceback" not in failed.stderr
    assert {path.name for path in place.iterdir()} == {"thesis"}


@pytest.mark.slow
def test_a_run_whose_corpus_is_gone_is_compared_on_what_it_kept(run_copy: Path, tmp_path: Path):
    config = (run_copy / "config.toml").read_text()
    lines = [line for line in config.splitlines() if not line.startswith("prepared")]
    lines.insert(lines.index("[data]") + 1, 'prepared = "gone"')
    (run_copy / "config.toml").write_text("\n".join(lines) + "\n")
    exported = call_dragoman("export", run_copy, "--out", tmp_path / "out")
    assert "is gone: the export is compared on" in exported.stderr
    assert "0 of 4 sentences of the dev set come out differently" in exported.stdout
