"""Trains small real runs with different schedules and corpora, and saves their curves for benchmarks/forecast.py.

    python benchmarks/learning_curves.py            all of them, about an hour on one core
    python benchmarks/learning_curves.py --only multi30k_cosine

Each becomes a run folder with two small files in benchmarks/curves/: config.toml, and a metrics.jsonl with the records
of the learning curve.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from multi30k import REPOSITORY
from results import end_with

from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.settings import PrepareSettings, TokenizerSettings
from dragoman.run.config import PROVENANCE
from dragoman.run.errors import UserError
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder
from dragoman.run.summary import read_records
from dragoman.run.tables import dump_toml, read_toml

CURVES_FOLDER = REPOSITORY / "benchmarks" / "curves"
DATA_FOLDER = REPOSITORY.parent / "shared" / "data"
NUM_EVALUATIONS = 30
KEPT_FIGURES = {
    "train": ("time", "kind", "step", "loss", "learning_rate", "seconds_per_step", "training_seconds"),
    "evaluation": ("time", "kind", "step", "loss", "bleu", "signature", "seconds"),
}
VOCAB_SIZE = 3_000


@dataclass(frozen=True)
class Curve:
    """One run: its corpus, length and training settings."""

    corpus: str
    num_pairs: int
    num_steps: int
    settings: dict[str, object] = field(default_factory=dict)


CURVES = {
    "multi30k_transformer": Curve("multi30k", 29_000, 900, {"schedule": "transformer", "learning_rate": 0.5}),
    "multi30k_cosine": Curve("multi30k", 29_000, 900, {"schedule": "cosine", "learning_rate": 3e-3}),
    "multi30k_fixed": Curve("multi30k", 29_000, 900, {"schedule": "fixed", "learning_rate": 1e-3}),
    "multi30k_linear": Curve("multi30k", 29_000, 900, {"schedule": "polynomial", "learning_rate": 3e-3}),
    "multi30k_exponential": Curve(
        "multi30k", 29_000, 900, {"schedule": "exponential", "learning_rate": 3e-3, "decay_steps": 200}
    ),
    "multi30k_piecewise": Curve(
        "multi30k",
        29_000,
        900,
        {
            "schedule": "piecewise_constant",
            "learning_rate": 2e-3,
            "boundaries": [450, 720],
            "multipliers": [0.3, 0.1],
        },
    ),
    "tatoeba_transformer": Curve("tatoeba", 100_000, 900, {"schedule": "transformer", "learning_rate": 0.5}),
    "tatoeba_cosine": Curve("tatoeba", 100_000, 900, {"schedule": "cosine", "learning_rate": 3e-3}),
    "tatoeba_fixed": Curve("tatoeba", 100_000, 900, {"schedule": "fixed", "learning_rate": 1e-3}),
    "europarl_transformer": Curve("europarl", 60_000, 900, {"schedule": "transformer", "learning_rate": 0.5}),
    "europarl_linear": Curve("europarl", 60_000, 900, {"schedule": "polynomial", "learning_rate": 3e-3}),
    "multi30k_overfitted": Curve("multi30k", 1_500, 900, {"schedule": "fixed", "learning_rate": 2e-3}),
    "tatoeba_overfitted": Curve("tatoeba", 2_000, 900, {"schedule": "cosine", "learning_rate": 3e-3}),
    "multi30k_long": Curve("multi30k", 29_000, 2_400, {"schedule": "transformer", "learning_rate": 0.5}),
    "tatoeba_long": Curve("tatoeba", 150_000, 2_400, {"schedule": "transformer", "learning_rate": 0.7}),
}


def prepare(curve: Curve, folder: Path) -> Path:
    """Prepares the corpus of a curve, cut to its number of pairs; the dev set stays complete."""
    dev = "val" if curve.corpus == "multi30k" else "dev"
    ending = "xz" if curve.corpus == "europarl" else "gz"
    sides = {}
    for language in ("en", "de"):
        text = _read_lines(DATA_FOLDER / curve.corpus / f"train.{language}.{ending}", curve.num_pairs)
        sides[language] = folder / f"train.{language}"
        write_text(sides[language], "".join(text))
    settings = PrepareSettings.of_files(
        [sides["en"]],
        [sides["de"]],
        dev=([DATA_FOLDER / curve.corpus / f"{dev}.en.gz"], [DATA_FOLDER / curve.corpus / f"{dev}.de.gz"]),
        tokenizer=TokenizerSettings(vocab_size=min(VOCAB_SIZE, 1_500 + curve.num_pairs // 10)),
    )
    prepare_corpus(settings, folder / "prepared", say=lambda _: None)
    return folder / "prepared"


def _read_lines(path: Path, num_lines: int) -> list[str]:
    import gzip
    import lzma

    with (lzma if path.suffix == ".xz" else gzip).open(path, "rt", encoding="utf-8") as file:
        return [line for _, line in zip(range(num_lines), file, strict=False)]


def train(curve: Curve, prepared: Path, run: Path) -> None:
    """Trains with one worker and one thread, so that two runs can share a small machine."""
    evaluate_every = curve.num_steps // NUM_EVALUATIONS
    settings = {
        "model.preset": "tiny",
        "model.dropout": 0.0 if curve.num_pairs < 5_000 else 0.1,
        "training.max_steps": curve.num_steps,
        "training.warmup_steps": curve.num_steps // 10,
        "training.global_batch_tokens": 1_536,
        "training.virtual_workers": 1,
        "training.log_every": max(1, curve.num_steps // 180),
        "evaluation.evaluate_every": evaluate_every,
        "evaluation.max_sentences": 250,
        "evaluation.beam_size": 1,
        "checkpoints.save_every": curve.num_steps,
        "checkpoints.keep_best": 0,
        "monitoring.sample_seconds": 0,
    } | {f"training.{key}": value for key, value in curve.settings.items()}
    overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    config = run.parent / "config.toml"
    write_text(config, f'[data]\nprepared = "{prepared}"\n')
    command = [sys.executable, "-c", "from dragoman.cli import main; main()", "train", str(config)]
    command += ["--run-dir", str(run), *overrides]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)


def keep(run: RunFolder, kept: RunFolder) -> None:
    """Saves the records and figures of a curve, and the settings."""
    kept_records = (
        {name: value for name, value in record.values().items() if name in KEPT_FIGURES[record.kind]}
        for record in read_records(run)
        if record.kind in KEPT_FIGURES
    )
    lines = [json.dumps(record) for record in kept_records]
    kept.path.mkdir(parents=True, exist_ok=True)
    write_text(kept.metrics, "".join(f"{line}\n" for line in lines))
    tables = read_toml(run.config)
    # The folder on the machine that trained it means nothing elsewhere.
    tables["data"]["prepared"] = "prepared"
    write_text(kept.config, dump_toml({name: table for name, table in tables.items() if name != PROVENANCE}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CURVES, help="train only these")
    chosen = parser.parse_args().only or list(CURVES)
    if not DATA_FOLDER.is_dir():
        raise UserError(f"There are no corpora for these curves in {DATA_FOLDER}.")
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            train(CURVES[name], prepare(CURVES[name], path), path / "run")
            keep(RunFolder(path / "run"), RunFolder(CURVES_FOLDER / name))
        print(f"{name}: {CURVES_FOLDER / name}", flush=True)
    return 0


if __name__ == "__main__":
    end_with(main)
