"""`dragoman train --source … --target …`: two text files to a judged translator, every choice made and explained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.cluster.world import num_gpus
from dragoman.corpus.cleaning.account import dropped_sentence
from dragoman.corpus.prepare import Say, prepare_corpus
from dragoman.evaluation.judgement import evaluate_run
from dragoman.monitoring.progress import progress_bars
from dragoman.run.command import own_command
from dragoman.run.config import apply_overrides, build_settings
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder
from dragoman.run.preparation import PrepareSettings
from dragoman.run.processes import num_cores
from dragoman.training.recipe import CorpusSize, Machine, choose_settings, describe_choices
from dragoman.training.start import require_free_folder, start_run
from dragoman.translation.loading import load_run


def train_on_own_text(
    run: RunFolder, source: Sequence[Path], target: Sequence[Path], overrides: list[str], num_workers: int, say: Say
) -> dict[str, Any]:
    """Prepares, chooses settings and says why, trains, and judges on the held-out test lines; returns those figures."""
    require_free_folder(run)
    apply_overrides({}, overrides)  # a slip in --set is told now, not after preparing
    with progress_bars() as show:
        corpus = prepare_corpus(PrepareSettings.of_files(source, target), run.prepared, say, show)
    if dropped := dropped_sentence(corpus.manifest.cleaning):
        say(f"{dropped} Examples are in {run.prepared / 'cleaning.md'}.")
    machine = Machine(num_cores(), num_gpus(), num_workers)
    tables, reasons = choose_settings(CorpusSize.of(corpus), machine, run.prepared.resolve())
    for reason in reasons:
        say(reason)
    tables = apply_overrides(tables, overrides)
    settings = build_settings(tables, where="--set")
    write_text(run.chosen_config, describe_choices(tables, reasons))
    say(f"These settings, to copy and edit: {run.chosen_config}\nRun folder: {run.path}")
    if not start_run(run, settings, num_workers):
        return {}
    say(f"On the {corpus.manifest.splits['test'].num_pairs:,} held-out test pairs:")
    judgement = evaluate_run(load_run(run.path, say=say), None, None, say)
    say(judgement.summary())
    say(f"Translate with: {own_command()} translate {run.path} FILE")
    return {"test": judgement.figures()}
