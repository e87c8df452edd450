"""`dragoman train --source … --target …`: trains on two text files, with settings chosen for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.cli.final_scores import try_to_score
from dragoman.corpus.cleaning.cleaning_account import dropped_message
from dragoman.corpus.cleaning.detection import describe_languages, detect_languages
from dragoman.corpus.preparation.prepare import Say, prepare_corpus
from dragoman.corpus.settings import PrepareSettings, load_prepare_settings, pair_up
from dragoman.evaluation.final_evaluation import evaluate_run
from dragoman.evaluation.scores import require_tokenizer
from dragoman.launch.hosts import Placement, count_gpus
from dragoman.launch.launcher import launch_run, write_end_report
from dragoman.model.shape import load_preset
from dragoman.run.commands import command_for
from dragoman.run.config import apply_overrides, build_settings, load_settings
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder
from dragoman.run.processes import num_cores
from dragoman.run.progress import progress_bars
from dragoman.training.choose_settings import CorpusSize, Machine, choose_settings, describe_choices
from dragoman.training.run_setup import create_run, require_free_folder
from dragoman.translation.translator import load_run


@dataclass(frozen=True)
class OwnText:
    """Two lists of files, and their languages where the user gave them, e.g. "en-ja"."""

    source: Sequence[Path]
    target: Sequence[Path]
    languages: str | None = None

    def settings(self) -> PrepareSettings:
        """Returns the settings to prepare the text with."""
        corpora = [{"source": source, "target": target} for source, target in pair_up(self.source, self.target)]
        settings, _ = load_prepare_settings(None, {"corpora": corpora, "languages": self.languages})
        return settings


def train_on_own_text(
    run: RunFolder, text: OwnText, overrides: list[str], placement: Placement, say: Say
) -> dict[str, Any]:
    """Prepares, chooses and explains settings, trains, and evaluates on the held-out test lines; returns the scores."""
    require_free_folder(run)
    machine = Machine(num_cores(), count_gpus(), placement.num_workers)
    _check_overrides(overrides, machine)
    prepare_settings = _with_languages(text.settings(), say)
    with progress_bars() as show:
        corpus = prepare_corpus(prepare_settings, run.prepared, say, show)
    if dropped := dropped_message(corpus.manifest.cleaning):
        say(f"{dropped} Examples are in {run.prepared / 'cleaning.md'}.")
    tables, reasons = choose_settings(CorpusSize.of(corpus), machine, run.prepared, apply_overrides({}, overrides))
    for reason in reasons:
        say(reason)
    settings = build_settings(tables, where="--set")
    write_text(run.chosen_config, describe_choices(tables, reasons))
    say(f"These settings, to copy and edit: {run.chosen_config}")
    create_run(run, settings, placement.num_workers)
    return score_held_out(run, say) if launch_run(run, placement) else {}


def score_held_out(run: RunFolder, say: Say) -> dict[str, Any]:
    """Evaluates a trained run on the test lines that were held out of its own text; returns the scores."""
    say("On the held-out test pairs:")
    result = try_to_score(run, lambda: evaluate_run(load_run(run.path, say=say), None, None, say))
    if result is not None:
        say(result.summary())
        write_end_report(run, load_settings(run.config))  # again, now with the score of the test set
    say(f"Translate with: {command_for('translate', run.path)} FILE")
    return {"test": result.figures() if result else None}


def _check_overrides(overrides: list[str], machine: Machine) -> None:
    """Reports a mistake in --set now, not after preparing."""
    tables, _ = choose_settings(CorpusSize(num_pairs=1, num_target_tokens=1), machine, Path())
    settings = build_settings(tables, overrides, where="--set")
    load_preset(settings.model.preset)
    require_tokenizer(settings.evaluation.tokenizer)


def _with_languages(settings: PrepareSettings, say: Say) -> PrepareSettings:
    """Returns the settings with the languages that the user gave or that are certain, and tells which."""
    if settings.languages is not None:
        return settings
    languages = detect_languages(settings)
    if languages is None:
        say(
            "The languages are not certain: lines in a wrong language are kept. Name them with --languages, e.g. en-de."
        )
        return settings
    say(f"Detected languages: {describe_languages(languages)}; set --languages if this is wrong.")
    return settings.model_copy(update={"languages": languages})
