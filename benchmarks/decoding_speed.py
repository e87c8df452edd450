"""Sentences per second of our translator against `generate` of Hugging Face: `python decoding_speed.py`.

All contestants translate the same sentences with the same trained weights, text in and text out: our translator as a
user gets it, our exports for CTranslate2, and a Marian model of Hugging Face with the batch size that suits it best.
They take turns, each in a process of its own; loading and a warm-up are not counted. Exit code 1 if one of ours is not
three times as fast as Hugging Face.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from multi30k import REPOSITORY, prepare_multi30k
from results import describe_machine, end_with, positive_count, save_result, summarise

from dragoman.corpus.prepared_corpus import PreparedCorpus, text_path
from dragoman.run.config import build_settings, dump_settings
from dragoman.run.errors import UserError
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder
from dragoman.translation.search import SearchSettings

BEAM_SIZE = 5
REQUIRED_RATIO = 3.0
NUM_THREADS = 2
HUGGINGFACE = "huggingface"
CONTESTANTS = ("native", "ctranslate2", "ctranslate2-int8", HUGGINGFACE)
BATCH_SIZES = (8, 16, 32, 64)
NUM_WARM_UP = 16
NUM_CHECKED = 16
"""Dev sentences that an export is compared on; the figures say how many outputs of all contestants are equal."""
MARIAN = {"norm": "post", "positions": "marian", "norm_epsilon": 1e-5}
"""Settings of a model that Hugging Face's Marian computes exactly."""

Translate = Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class Turn:
    """Translations and time of one contestant."""

    seconds: float
    translations: list[str]

    @property
    def sentences_per_second(self) -> float:
        """Sentences per second."""
        return len(self.translations) / self.seconds


def train_briefly(
    folder: Path, corpus: PreparedCorpus, num_steps: int, model: dict[str, Any] | None = None
) -> RunFolder:
    """Trains, through the command line, a model whose outputs end: those of random weights would not."""
    settings = build_settings(
        {
            "data": {"prepared": str(corpus.folder)},
            "model": {"preset": "small"} | (model or {}),
            "training": {
                "global_batch_tokens": 2_048,
                "virtual_workers": NUM_THREADS,
                "max_steps": num_steps,
                "warmup_steps": max(1, num_steps // 2),
                "learning_rate": 2e-3 if model is None else 1e-3,
                "schedule": "inverse_polynomial",
            },
            "evaluation": {"max_sentences": 1, "beam_size": 1},
        }
    )
    config, run = folder / "decoding.toml", RunFolder(folder / "run")
    write_text(config, dump_settings(settings))
    options = ["--workers", str(NUM_THREADS), "--run-dir", str(run.path)]
    command = [sys.executable, "-m", "dragoman", "train", str(config), "--no-check", *options]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise UserError(f"Training the model to decode with failed: {finished.stderr.strip()}")
    return run


# Contestants


def load_contestant(name: str, folder: Path, batch_size: int) -> Translate:
    """Loads a contestant's model in this process."""
    if name == HUGGINGFACE:
        return _load_huggingface(folder / HUGGINGFACE, batch_size)
    if name == "native":
        from dragoman.translation.loading import load_run

        return load_run(folder / "run", "latest", BEAM_SIZE).translator.translate
    from dragoman.translation.exported_model import load_export

    return load_export(folder / name, BEAM_SIZE).translator.translate


def _load_huggingface(folder: Path, batch_size: int) -> Translate:
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    torch.set_num_threads(NUM_THREADS)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).eval()

    def translate_batch(lines: list[str]) -> list[str]:
        inputs = tokenizer(lines, padding=True, return_tensors="pt")
        longest = SearchSettings().max_length(inputs["input_ids"].shape[1])
        with torch.inference_mode():
            found = model.generate(**inputs, num_beams=BEAM_SIZE, max_length=longest + 1)
        texts: list[str] = tokenizer.batch_decode(found, skip_special_tokens=True)
        return texts

    def translate(lines: list[str]) -> list[str]:
        # By length, as ours: batches without much padding are faster.
        order = sorted(range(len(lines)), key=lambda index: len(lines[index]))
        batches = [order[begin : begin + batch_size] for begin in range(0, len(order), batch_size)]
        found = [text for batch in batches for text in translate_batch([lines[index] for index in batch])]
        return [text for _, text in sorted(zip(order, found, strict=True))]

    return translate


def translate_once(name: str, folder: Path, num_sentences: int, batch_size: int) -> int:
    """Prints the time of one turn in this process, and the translations."""
    translate = load_contestant(name, folder, batch_size)
    lines = read_sentences(folder, num_sentences)
    translate(lines[:NUM_WARM_UP])
    begin = time.perf_counter()
    translations = translate(lines)
    print(json.dumps({"seconds": time.perf_counter() - begin, "translations": translations}))
    return 0


def take_turn(name: str, folder: Path, num_sentences: int, batch_size: int = 0) -> Turn:
    """Lets a contestant translate in a process of its own."""
    options = ["--folder", str(folder), "--sentences", str(num_sentences), "--batch-size", str(batch_size)]
    command = [sys.executable, __file__, "--contestant", name, *options]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise UserError(f"The contestant {name} failed: {finished.stderr.strip()}")
    return Turn(**json.loads(finished.stdout.splitlines()[-1]))


# Measurement


def read_sentences(folder: Path, num_sentences: int) -> list[str]:
    """Reads sentences spread evenly over the test set, so that few of them resemble all."""
    lines = (folder / "test.txt").read_text(encoding="utf-8").splitlines()
    num_sentences = min(num_sentences, len(lines))
    return [lines[number * len(lines) // num_sentences] for number in range(num_sentences)]


def write_models(folder: Path, given: Path | None, num_steps: int) -> str:
    """Puts the run, its exports and the test set into a folder; returns what kind of model Hugging Face gets."""
    from dragoman.exporting.export import ExportChoice, export_model
    from dragoman.exporting.huggingface import write_huggingface
    from dragoman.exporting.source import open_export_source
    from dragoman.exporting.verification import Limits, find_text

    corpus = prepare_multi30k(folder)
    shutil.copyfile(text_path(corpus.folder, "test", "source"), folder / "test.txt")
    run = folder / "run"
    if given is None:
        train_briefly(folder, corpus, num_steps, MARIAN)
    else:
        shutil.copytree(given, run, symlinks=True)
    (folder / HUGGINGFACE).mkdir()
    source = open_export_source(run, "latest")
    write_huggingface(source, folder / HUGGINGFACE)
    text = find_text(source, (None, None), print)
    for name, quantization in (("ctranslate2", None), ("ctranslate2-int8", "int8")):
        # A model of a few hundred steps is unsure everywhere, so that rounding alone could have the export refused.
        choice = ExportChoice("ctranslate2", quantization)
        export_model(source, choice, folder / name, text, Limits(1.0, 100.0), NUM_CHECKED)
    config = json.loads((folder / HUGGINGFACE / "config.json").read_text(encoding="utf-8"))
    return str(config["architectures"][0])


def choose_batch_size(folder: Path, num_sentences: int) -> int:
    """Returns the batch size with which Hugging Face is fastest."""
    speeds = {size: take_turn(HUGGINGFACE, folder, num_sentences, size).sentences_per_second for size in BATCH_SIZES}
    print("huggingface by batch size: " + ", ".join(f"{size}: {speed:.1f}/s" for size, speed in speeds.items()))
    return max(speeds, key=speeds.__getitem__)


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Lets all contestants take turns and returns the content of the result file."""
    architecture = write_models(folder, options.run, options.train_steps)
    batch_size = choose_batch_size(folder, min(options.sentences, 200))
    rounds: list[dict[str, Turn]] = []
    for number in range(options.rounds):
        rounds.append({name: take_turn(name, folder, options.sentences, batch_size) for name in CONTESTANTS})
        shown = ", ".join(f"{name} {turn.sentences_per_second:.1f}" for name, turn in rounds[-1].items())
        print(f"round {number + 1}: {shown} sentences/s", flush=True)
    return {
        "workload": "Multi30k test_2016_flickr, text in and out; the same weights, fp32 unless named otherwise",
        "model": f"{options.run or 'preset small trained briefly'}; for Hugging Face as {architecture}",
        "beam_size": BEAM_SIZE,
        "sentences": len(rounds[0]["native"].translations),
        "huggingface_batch_size": batch_size,
        "huggingface_threads": NUM_THREADS,
        "required_ratio": REQUIRED_RATIO,
        "contestants": {name: describe(name, rounds) for name in CONTESTANTS},
    }


def describe(name: str, rounds: Sequence[dict[str, Turn]]) -> dict[str, Any]:
    """Returns the figures of one contestant; lengths and equal outputs show that all did the same work."""
    speeds = [turns[name].sentences_per_second for turns in rounds]
    ratios = [speed / turns[HUGGINGFACE].sentences_per_second for speed, turns in zip(speeds, rounds, strict=True)]
    mine, native = rounds[0][name].translations, rounds[0]["native"].translations
    return {
        "sentences_per_second": summarise(speeds),
        "ratio_to_huggingface": summarise(ratios),
        "mean_output_words": mean(len(text.split()) for text in mine),
        "share_of_outputs_as_native": mean(one == other for one, other in zip(mine, native, strict=True)),
    }


def _print_summary(figures: dict[str, Any]) -> None:
    for name, result in figures["contestants"].items():
        print(
            f"{name:<18}{result['sentences_per_second']['median']:>8.1f} sentences/s, "
            f"{result['ratio_to_huggingface']['median']:.2f} x Hugging Face; {result['mean_output_words']:.1f} words, "
            f"{result['share_of_outputs_as_native']:.0%} of the outputs as native"
        )


def main() -> int:
    """Measures, writes and prints the result; the exit code says whether all of ours are fast enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive_count, default=3, help="turns of each contestant (default: 3)")
    parser.add_argument("--sentences", type=positive_count, default=1_000, help="to translate (default: 1000)")
    parser.add_argument("--train-steps", type=positive_count, default=300, help="before measuring (default: 300)")
    parser.add_argument("--run", type=Path, metavar="RUN", help="translate with this run instead of training one")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch-size", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        return translate_once(options.contestant, options.folder, options.sentences, options.batch_size)
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="dragoman-benchmark-") as folder:
        figures = measure(Path(folder), options)
    path = save_result("decoding_speed", machine, figures | {"train_steps": options.train_steps})
    _print_summary(figures)
    print(f"Written to {path.relative_to(REPOSITORY)}")
    ratios = [
        result["ratio_to_huggingface"]["median"]
        for name, result in figures["contestants"].items()
        if name != HUGGINGFACE
    ]
    return 0 if min(ratios) >= REQUIRED_RATIO else 1


if __name__ == "__main__":
    end_with(main)
