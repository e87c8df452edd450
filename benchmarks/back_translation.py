"""Measures the gain of back-translation with a tenth of Multi30k: `python benchmarks/back_translation.py`.

The recipe of docs/translating.md with its commands: English to German is trained on 2,900 pairs; German to English is
trained on the same pairs and translates the other 26,100 German sentences; English to German is trained again on the
pairs and on these translations, tagged <bt>. All three trainings have the same model, steps and batches; both scores
are those of the best checkpoint by BLEU on the dev set. Takes 30 to 40 minutes on two idle cores; --steps makes it
shorter. Exit code 1 if the gain is not at least --least BLEU.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from multi30k import PACKED_FOLDER
from results import describe_machine, end_with, positive_count, save_result

from dragoman.run.errors import UserError

NUM_PAIRS = 2_900
TAG = "<bt>"
VOCAB_SIZE = 3_000
PRESET = "small"
SETTINGS = (
    "model.dropout=0.3",
    "training.global_batch_tokens=4096",
    "training.virtual_workers=2",
    "training.schedule=cosine",
    "training.learning_rate=2e-3",
    "training.beta2=0.98",
    "evaluation.max_sentences=300",
    "checkpoints.keep_best=1",
    "checkpoints.keep_last=1",
    "monitoring.report=false",
)


def run(*arguments: object) -> str:
    """Runs a command of dragoman; its messages go to the terminal."""
    command = ["dragoman", *map(str, arguments)]
    print("$", *command, flush=True)
    done = subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError(f"{' '.join(command[:3])} failed with code {done.returncode}.")
    return done.stdout


def write_part(split: str, language: str, path: Path, begin: int = 0, end: int | None = None) -> None:
    """Writes some lines of the corpus as plain text."""
    with gzip.open(PACKED_FOLDER / f"{split}.{language}.gz", "rt", encoding="utf-8") as file:
        lines = file.readlines()[begin:end]
    path.write_text("".join(lines), encoding="utf-8")


def write_text(folder: Path, num_pairs: int, num_sentences: int | None) -> None:
    """Writes the pairs, the German sentences without a translation, and the dev and test sets."""
    for language in ("en", "de"):
        write_part("train", language, folder / f"train.{language}", 0, num_pairs)
        write_part("val", language, folder / f"dev.{language}")
        write_part("test_2016_flickr", language, folder / f"test.{language}")
    end = None if num_sentences is None else num_pairs + num_sentences
    write_part("train", "de", folder / "mono.de", num_pairs, end)


def prepare(folder: Path, source: str, target: str, name: str, back_translated: bool = False) -> Path:
    """Prepares the pairs for one direction, with the back-translations as a corpus of its own if wanted."""

    def table(kind: str, stem: str, *more: str) -> list[str]:
        files = [f'source = "{folder}/{stem}.{source}"', f'target = "{folder}/{stem}.{target}"']
        return [f"[[prepare.{kind}]]", *files, *more]

    lines = ["[prepare]", f'languages = "{source}-{target}"', f"tokenizer.vocab_size = {VOCAB_SIZE}"]
    lines += table("corpora", "train", 'name = "pairs"')
    if back_translated:
        lines += ["[[prepare.corpora]]", 'name = "back-translated"', f'tag = "{TAG}"']
        lines += [f'source = "{folder}/mono.en"', f'target = "{folder}/mono.de"']
    lines += table("dev", "dev") + table("test", "test")
    config = folder / f"{name}.toml"
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    run("prepare", config, "--out", folder / name)
    return folder / name


def train(prepared: Path, steps: int, preset: str) -> Path:
    """Trains on a prepared corpus; returns the run."""
    config = prepared.with_suffix(".train.toml")
    config.write_text(f'[data]\nprepared = "{prepared}"\n[model]\npreset = "{preset}"\n', encoding="utf-8")
    often = max(1, steps // 6)
    own = (
        f"training.max_steps={steps}",
        f"training.warmup_steps={max(1, steps // 5)}",
        f"evaluation.evaluate_every={often}",
        f"checkpoints.save_every={often}",
    )
    options = [part for each in (*SETTINGS, *own) for part in ("--set", each)]
    folder = prepared.with_name(f"run-{prepared.name}")
    run("train", config, "--run-dir", folder, *options)
    return folder


def score(folder: Path, model: Path) -> dict[str, Any]:
    """Scores a run on the test set."""
    figures = run("evaluate", model, "--source", folder / "test.en", "--reference", folder / "test.de", "--json")
    found: dict[str, Any] = json.loads(figures)
    return found


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Carries out the recipe."""
    begin = time.monotonic()
    write_text(folder, arguments.pairs, arguments.sentences)
    baseline = train(prepare(folder, "en", "de", "small"), arguments.steps, arguments.preset)
    reverse = train(prepare(folder, "de", "en", "reverse"), arguments.steps, arguments.preset)
    options = ["--out", folder / "mono.en", "--json", *(["--sample"] if arguments.sample else [])]
    translated = json.loads(run("translate", reverse, folder / "mono.de", *options))
    improved = train(prepare(folder, "en", "de", "both", back_translated=True), arguments.steps, arguments.preset)
    scores = {"pairs_only": score(folder, baseline), "with_back_translation": score(folder, improved)}
    gain = scores["with_back_translation"]["bleu"] - scores["pairs_only"]["bleu"]
    return {
        "pairs": arguments.pairs,
        "preset": arguments.preset,
        "steps_of_each_training": arguments.steps,
        "back_translated_sentences": translated["num_lines"],
        "drawn_at_random": arguments.sample,
        "back_translation_lines_per_second": translated["lines_per_second"],
        "scores": scores,
        "gain_in_bleu": round(gain, 2),
        "minutes": round((time.monotonic() - begin) / 60, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive_count, default=450, help="steps of each training (450)")
    parser.add_argument("--pairs", type=positive_count, default=NUM_PAIRS, help=f"pairs ({NUM_PAIRS:,})")
    parser.add_argument("--sentences", type=positive_count, help="German sentences to translate (all others)")
    parser.add_argument("--preset", default=PRESET, help=f"size of the models ({PRESET})")
    parser.add_argument("--sample", action="store_true", help="draw back-translations instead of beam search")
    parser.add_argument("--folder", type=Path, help="keep all files here, in a new folder")
    parser.add_argument("--least", type=float, default=1.0, help="the least gain in BLEU (1.0)")
    arguments = parser.parse_args()
    machine = describe_machine()
    if arguments.folder is not None:
        arguments.folder.mkdir(parents=True)
        figures = measure(arguments.folder.resolve(), arguments)
    else:
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(Path(folder), arguments)
    path = save_result("back_translation", machine, figures)
    before, after = (figures["scores"][name]["bleu"] for name in ("pairs_only", "with_back_translation"))
    print(f"BLEU {before:.1f} with {arguments.pairs:,} pairs, {after:.1f} with back-translations. Written to {path}")
    return 0 if figures["gain_in_bleu"] >= arguments.least else 1


if __name__ == "__main__":
    end_with(main)
