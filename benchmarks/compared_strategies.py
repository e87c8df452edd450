"""The strategies that benchmarks/slow_network.py compares, and the run that all of them train."""

from pathlib import Path
from typing import Any

from learning_curves import DATA_FOLDER
from multi30k import prepare_multi30k
from results import RESULTS_FOLDER

from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.settings import PrepareSettings, TokenizerSettings

CACHE_FOLDER = RESULTS_FOLDER / "slow_network"
"""Prepared corpora and runs, kept between calls."""
RATES = ("10mbit", "30mbit", "100mbit", "300mbit", None)
"""Links from slow to fast; None is not limited."""
EVERY_STEP, AUTO = "every_step", "auto"
EXACT = (EVERY_STEP, "hierarchical")
"""Strategies with the same losses, so that one of them shows the quality of both."""
INTERVAL = 16
LOCAL = {"interval": INTERVAL, "max_interval": INTERVAL, "wire": "int4"}
STRATEGIES: dict[str, dict[str, Any]] = {
    EVERY_STEP: {},
    "hierarchical": {},
    "bf16": {},
    "int8": {},
    "powersgd": {},
    "local": LOCAL,
    AUTO: {},
}
"""Settings of [synchronisation] beside the strategy, by strategy."""
VOCAB_SIZE = 6_000

Sections = dict[str, dict[str, Any]]


def settings_of(strategy: str) -> dict[str, Any]:
    """Returns the table [synchronisation] of a strategy."""
    return {"strategy": strategy} | STRATEGIES.get(strategy, {})


def base_sections(prepared: Path) -> Sections:
    """Returns the settings that all runs share: 2.2 million parameters, few tokens a step, as on a slow network."""
    return {
        "data": {"prepared": str(prepared), "max_tokens": 100},
        "model": {
            "preset": "small",
            "width": 128,
            "feed_forward": 512,
            "heads": 4,
            "encoder_layers": 3,
            "decoder_layers": 3,
            "dropout": 0.2,
        },
        "training": {"global_batch_tokens": 3_000, "virtual_workers": 2, "precision": "fp32"},
        "monitoring": {"report": False},
    }


def name_of(rate: str | None) -> str:
    """Returns the name of a link in files and tables."""
    return rate or "unlimited"


def prepared_corpus(name: str) -> Path:
    """Returns the prepared corpus multi30k or tatoeba; prepares it the first time."""
    folder = CACHE_FOLDER / name
    if not (folder / "prepared" / "manifest.json").exists():
        print(f"Preparing {name} in {folder}", flush=True)
        if name == "multi30k":
            prepare_multi30k(folder, VOCAB_SIZE)
        else:
            _prepare_tatoeba(folder)
    return folder / "prepared"


def _prepare_tatoeba(folder: Path) -> None:
    def both_sides(split: str) -> tuple[list[Path], list[Path]]:
        texts = DATA_FOLDER / "tatoeba"
        return [texts / f"{split}.en.gz"], [texts / f"{split}.de.gz"]

    tokenizer = TokenizerSettings(vocab_size=VOCAB_SIZE)
    settings = PrepareSettings.of_files(
        *both_sides("train"), dev=both_sides("dev"), cleaning="none", tokenizer=tokenizer
    )
    prepare_corpus(settings, folder / "prepared", say=lambda _: None)
