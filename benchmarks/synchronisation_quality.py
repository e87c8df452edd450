"""Trains the same run with each strategy, one process each, and keeps BLEU and loss of every evaluation.

Replicas belong to the run: one process with two replicas computes the same losses as two hosts do.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compared_strategies import (
    AUTO,
    CACHE_FOLDER,
    EVERY_STEP,
    EXACT,
    LOCAL,
    RATES,
    STRATEGIES,
    base_sections,
    name_of,
    prepared_corpus,
    settings_of,
)
from multi30k import REPOSITORY

from dragoman.run.config import build_settings, dump_settings
from dragoman.run.errors import UserError
from dragoman.run.files import read_json, write_text
from dragoman.run.folder import RunFolder
from dragoman.run.records import EvaluationRecord, TrainRecord, records_of
from dragoman.run.summary import read_records

sys.path.append(str(REPOSITORY / "tests"))  # where the programs of the tests are
from host_runs import ONE_THREAD
from program import dragoman_command

NUM_REPLICAS = 2
CORPORA = ("multi30k", "tatoeba")
NUM_EVALUATIONS = 5
WARMUP_STEPS = 150
LOG_EVERY = 25
NOT_CHOSEN = ("diloco",)
"""Strategies whose quality is of interest, but that are too poor for their speed to be."""
KEPT_SETTINGS = ("strategy", "interval", "max_interval", "together_steps", "wire", "fragments", "overlap")


@dataclass(frozen=True)
class QualityRun:
    """One run: what it learns from, how workers agree, and its seed."""

    corpus: str
    label: str
    """Name of the strategy; auto stands for the settings that it takes on slow links."""
    seed: int
    num_steps: int
    synchronisation: dict[str, Any]

    @property
    def name(self) -> str:
        """Name in the result file and of the run folder."""
        return f"{self.corpus}-{self.label}-{self.num_steps}-seed{self.seed}"


def list_runs(
    num_steps: int, num_seeds: int, auto: dict[str, Any], labels: list[str] | None, corpora: Sequence[str] = CORPORA
) -> list[QualityRun]:
    """Lists the runs, the most needed first: several seeds of every_step and auto, one of the others, Tatoeba once."""

    def runs_of(corpus: str, chosen: list[str], seeds: range) -> list[QualityRun]:
        return [
            QualityRun(corpus, label, seed, num_steps, synchronisation_of(label, auto))
            for seed in seeds
            for label in chosen
            if corpus in corpora and (not labels or label in labels)
        ]

    pair = [EVERY_STEP, AUTO]
    others = [label for label in (*STRATEGIES, *NOT_CHOSEN) if label not in (*EXACT, AUTO)]
    first = range(1, 2)
    return [
        *runs_of("multi30k", pair, range(1, num_seeds + 1)),
        *runs_of("multi30k", others, first),
        *runs_of("tatoeba", pair, first),
    ]


def synchronisation_of(label: str, auto: dict[str, Any]) -> dict[str, Any]:
    """Returns the table [synchronisation] of a run in one process."""
    if label in EXACT:
        return {"strategy": label}
    return (auto if label == AUTO else settings_of(label)) | {"replicas": NUM_REPLICAS}


def settings_auto_takes(checks: dict[str, Any]) -> dict[str, Any]:
    """Returns what auto chose on the slowest link that was measured, or what it is expected to choose."""
    for check in (checks[name_of(rate)] for rate in RATES if name_of(rate) in checks):
        chosen = check.get("chosen")
        if isinstance(chosen, dict) and chosen.get("strategy") not in (None, *EXACT):
            return {key: chosen[key] for key in KEPT_SETTINGS if chosen.get(key) is not None}
    return {"strategy": "local"} | LOCAL


def train_all(runs: list[QualityRun], num_at_once: int, keep: Callable[[QualityRun, dict[str, Any]], None]) -> None:
    """Trains some runs at a time, each on one core; `keep` gets the figures of each when it ends."""
    for corpus in sorted({each.corpus for each in runs}):
        prepared_corpus(corpus)
    with ThreadPoolExecutor(num_at_once) as pool:
        futures = {pool.submit(train, each): each for each in runs}
        try:
            for future in as_completed(futures):
                keep(futures[future], future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def folder_of(run: QualityRun) -> Path:
    """Returns where a run is kept."""
    return CACHE_FOLDER / "runs" / run.name


def train(run: QualityRun) -> dict[str, Any]:
    """Trains to the end, or continues a run that was interrupted; returns its figures."""
    folder = folder_of(run)
    config, wanted = folder / "config.toml", dump_settings(build_settings(sections_of(run)))
    if config.exists() and config.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder)  # a run with other settings cannot be continued
    folder.mkdir(parents=True, exist_ok=True)
    write_text(config, wanted)
    command = dragoman_command("train", config, "--run-dir", folder / "run", "--workers", 1, "--continue")
    with (folder / "printed.txt").open("a", encoding="utf-8") as printed:
        done = subprocess.run(
            command, env=os.environ | ONE_THREAD, stdout=printed, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode != 0:
        last = (folder / "printed.txt").read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise UserError(f"Run {run.name} failed, see {folder / 'printed.txt'}: {''.join(last)}")
    return describe_run(run, RunFolder(folder / "run"))


def write_whole_run_config(path: Path, num_steps: int) -> Path:
    """Writes the config of a whole run, for `dragoman check`: auto also looks at the length of a run."""
    run = QualityRun("multi30k", "local", 1, num_steps, settings_of("local"))
    write_text(path, dump_settings(build_settings(sections_of(run))))
    return path


def sections_of(run: QualityRun) -> dict[str, Any]:
    """Returns all settings of a run."""
    base = base_sections(prepared_corpus(run.corpus))
    every = max(1, run.num_steps // NUM_EVALUATIONS)
    training = {
        "seed": run.seed,
        "max_steps": run.num_steps,
        "learning_rate": 3e-3,
        "schedule": "cosine",
        "warmup_steps": WARMUP_STEPS,
        "beta2": 0.98,
        "log_every": min(LOG_EVERY, every),
    }
    return base | {
        "training": base["training"] | training,
        "evaluation": {"evaluate_every": every, "max_sentences": 1_000, "beam_size": 1},
        "checkpoints": {"save_every": every, "keep_last": 1},
        "cluster": {"check": "never"},
        "synchronisation": run.synchronisation,
    }


def describe_run(run: QualityRun, folder: RunFolder) -> dict[str, Any]:
    """Returns settings and the learning curve of a run that ended."""
    records = read_records(folder)
    state = read_json(folder.checkpoint(run.num_steps) / "state.json")
    return {
        "corpus": run.corpus,
        "label": run.label,
        "seed": run.seed,
        "steps": run.num_steps,
        "settings": run.synchronisation,
        "together_steps": (state.get("synchronisation") or {}).get("together_steps", 0),
        "evaluations": describe_curve(
            records_of(records, EvaluationRecord), count_target_tokens(records_of(records, TrainRecord))
        ),
        "steps_back": steps_back(folder.log),
    }


def count_target_tokens(records: list[TrainRecord]) -> dict[int, float]:
    """Returns the target tokens learned from until each record."""
    total, previous, found = 0.0, 0, {0: 0.0}
    for each in {each.step: each for each in records}.values():  # a repeated step counts once
        total += (each.target_tokens_per_second or 0.0) * (each.seconds_per_step or 0.0) * (each.step - previous)
        previous, found[each.step] = each.step, total
    return found


def describe_curve(evaluations: list[EvaluationRecord], tokens: dict[int, float]) -> list[dict[str, Any]]:
    """Returns step, tokens, BLEU and loss of each evaluation."""
    return [
        {
            "step": each.step,
            "target_tokens": round(max((count for step, count in tokens.items() if step <= each.step), default=0)),
            "bleu": each.bleu,
            "loss": each.loss,
        }
        for each in {each.step: each for each in evaluations}.values()
    ]


def steps_back(log: Path) -> list[str]:
    """Returns what the guard said, where it made replicas meet more often."""
    return [line for line in log.read_text(encoding="utf-8").splitlines() if "From now on" in line]


def as_settings(text: str) -> dict[str, Any]:
    """Parses settings of [synchronisation] from the command line: strategy="local" interval=8 …, as JSON values."""
    pairs = (each.partition("=") for each in text.split())
    return {key: json.loads(value) for key, _, value in pairs}
