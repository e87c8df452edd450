"""The commands as users type them."""

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from program import Run, call_dragoman, dragoman_command, read_records


def cpu_seconds_of(*command: str) -> float:
    """CPU time, which a busy machine does not lengthen as it does wall time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_is_quick_and_imports_nothing_heavy():
    help_command = dragoman_command("--help")
    # On a slow machine Python alone takes longer too; one more library of the size of pydantic is noticed.
    assert any(
        cpu_seconds_of(*help_command) < max(0.3, 8 * cpu_seconds_of(sys.executable, "-c", "pass")) for _ in range(10)
    )
    script = "import sys, dragoman.cli; sys.exit(bool({'torch', 'numpy', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_every_command_has_help_with_an_example():
    for command in ("demo", "prepare", "train", "evaluate", "translate", "presets", "data builtin", "data reversal"):
        assert "Example" in call_dragoman(*command.split(), "--help").stdout


def test_presets_as_json():
    rows = {row["name"]: row for row in json.loads(call_dragoman("presets", "--json").stdout)}
    assert rows["transformer-base"]["parameters"] == 60_880_896
    assert {"transformer-big", "small", "tiny"} < rows.keys()
    assert [rows["small"][key] for key in ("width", "feed_forward", "heads", "encoder_layers")] == [256, 1024, 4, 3]


def test_wrong_usage_ends_with_code_2():
    assert "Nothing to train" in call_dragoman("train", code=2).stderr
    call_dragoman("translate", code=2)
    call_dragoman("no-such-command", code=2)


@pytest.mark.slow
def test_separate_vocabularies_all_the_way(dragoman: Run, tmp_path: Path):
    dragoman("data", "builtin", "--out", tmp_path / "corpus", "--pairs", 300)
    dragoman(
        "prepare", "--source", tmp_path / "corpus/train.en", "--target", tmp_path / "corpus/train.de", "--separate",
        "--vocab-size", 200, "--out", tmp_path / "prepared",
    )  # fmt: skip
    config = tmp_path / "separate.toml"
    config.write_text(f'[data]\nprepared = "{tmp_path / "prepared"}"\n[model]\npreset = "tiny"\n')
    run = tmp_path / "run"
    done = dragoman("train", config, "--run-dir", run, "--set", "training.max_steps=2", "--json")
    figures = json.loads(done.stdout)
    assert figures["step"] == figures["train"]["step"] == figures["evaluation"]["step"] == 2
    assert figures["checkpoints"]["latest"] == str(run / "checkpoints/step-00000002")
    assert sorted(path.name for path in (run / "tokenizers").iterdir()) == [
        "tokenizer.source.model",
        "tokenizer.target.model",
    ]
    assert dragoman("translate", run, "--beam-size", 1, input="The dog sleeps.\n").stdout.count("\n") == 1


@pytest.mark.slow
def test_two_text_files_become_an_evaluated_translator(dragoman: Run, tmp_path: Path):
    dragoman("data", "builtin", "--out", tmp_path / "corpus", "--pairs", 400)
    run = tmp_path / "run"
    done = dragoman(
        "train", "--source", tmp_path / "corpus/train.en", "--target", tmp_path / "corpus/train.de", "--workers", 2,
        "--run-dir", run, "--set", "training.max_steps=60", "--set", "evaluation.evaluate_every=30",
        "--set", "model.width=32",
    )  # fmt: skip
    assert "Model tiny" in done.stdout
    assert "held-out test pairs" in done.stdout
    assert "nrefs:1|case:mixed" in done.stdout
    assert 'preset = "tiny"' in (run / "chosen.toml").read_text()
    precision = re.search(r", (bf16|fp32) on cpu\.", done.stdout)
    assert precision is not None
    assert f'precision = "{precision[1]}"' in (run / "config.toml").read_text()
    assert [record["step"] for record in read_records(run, "evaluation")] == [30, 60]

    source = (run / "prepared/test.source.txt").read_text()
    translated = dragoman("translate", run, input="\n" + source, encoding=None).stdout.split("\n")
    assert translated[0] == ""
    assert len(translated) == source.count("\n") + 2
    one_by_one = dragoman("translate", run, run / "prepared/test.source.txt", "--beam-size", 1)
    assert one_by_one.stdout.count("\n") == source.count("\n")

    figures = json.loads(dragoman("evaluate", run, "--json").stdout)
    by_files = dragoman(
        "evaluate", run, "--source", run / "prepared/test.source.txt",
        "--reference", run / "prepared/test.target.txt", "--json",
    )  # fmt: skip
    assert json.loads(by_files.stdout)["bleu"] == figures["bleu"]
    assert figures["signature"].startswith("nrefs:1|")
