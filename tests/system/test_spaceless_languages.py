"""A tiny model learns to translate into a language without spaces, its score says so, and `best` is the best."""

import json
from pathlib import Path

import pytest
from program import Run, read_records
from spaceless_corpora import write_spaceless_corpus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200), pytest.mark.usefixtures("one_thread")]

CONFIG = """
[data]
prepared = "prepared"
[model]
preset = "tiny"
dropout = 0.0
[training]
max_steps = 60
global_batch_tokens = 1024
virtual_workers = 1
learning_rate = 3e-3
schedule = "cosine"
warmup_steps = 20
[evaluation]
evaluate_every = 20
beam_size = 1
[checkpoints]
save_every = 20
keep_last = 3
[monitoring]
report = false
"""


@pytest.mark.parametrize(
    ("language", "options", "tokenizer"),
    [("ja", ["--languages", "en-ja"], "ja-mecab"), ("zh", [], "zh")],  # the second by the script of its text
)
def test_a_model_for_a_language_without_spaces(dragoman: Run, tmp_path: Path, language, options, tokenizer):
    source, target = write_spaceless_corpus(tmp_path, language, 3_000)
    text = ["--source", source, "--target", target]
    dragoman("prepare", *text, *options, "--vocab-size", 250, "--out", tmp_path / "prepared")
    config, run = tmp_path / "config.toml", tmp_path / "run"
    config.write_text(CONFIG)
    dragoman("train", config, "--workers", 1, "--run-dir", run, timeout=600)

    evaluations = read_records(run, "evaluation")
    assert [record["step"] for record in evaluations] == [20, 40, 60]
    assert all(f"tok:{tokenizer}" in str(record["signature"]) for record in evaluations)
    best = max(evaluations, key=lambda record: (record["bleu"], -record["loss"], record["step"]))
    link = (run / "checkpoints/best").readlink().name
    assert link == f"step-{best['step']:08d}"
    saved = json.loads((run / "checkpoints/best/state.json").read_text())["evaluation"]
    assert saved == {name: best[name] for name in ("loss", "bleu", "chrf", "tokenizer")}
    assert f'tokenizer = "{tokenizer}"' in (run / "config.toml").read_text()

    figures = json.loads(dragoman("evaluate", run, "--json").stdout)
    assert figures["bleu"] > 50
    assert f"tok:{tokenizer}" in figures["signature"]
    others = ["--source", source, "--reference", target, "--tokenizer", "char"]
    by_characters = json.loads(dragoman("evaluate", run, *others, "--json").stdout)
    assert by_characters["bleu"] > 50
    assert "tok:char" in by_characters["signature"]
