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
from dragoman.run.summary import read_evaluation_records
from dragoman.run.units import SCORE_PATTERNS
from dragoman.training.choose_settings import CorpusSize, Machine, choose_fine_tuning, choose_settings, describe_choices
from dragoman.training.run_setup import create_run, require_free_folder
from dragoman.training.warm_start import WarmStart
from dragoman.translation.loading import load_run


@dataclass(frozen=True)
class OwnText:
    """Two lists of files, and their languages where the user gave them, e.g. "en-ja"."""

    source: Sequence[Path]
    target: Sequence[Path]
    languages: str | None = None

    def settings(self, start: WarmStart | None = None) -> PrepareSettings:
        """Returns the settings to prepare the text with: with the vocabulary of the run to start from, if any."""
        corpora = [{"source": source, "target": target} for source, target in pair_up(self.source, self.target)]
        tokenizer = {"reuse": start.run.tokenizers, "separate": not start.is_joint} if start else {}
        changes = {"corpora": corpora, "languages": self.languages, "tokenizer": tokenizer}
        return load_prepare_settings(None, changes)[0]


def train_on_own_text(
    run: RunFolder, text: OwnText, overrides: list[str], placement: Placement, say: Say
) -> dict[str, Any]:
    """Prepares, chooses and explains settings, trains, and evaluates on the held-out test lines; returns the scores."""
    require_free_folder(run)
    machine = Machine(num_cores(), count_gpus(), placement.num_workers, not placement.is_only_this_machine)
    asked = apply_overrides({}, overrides)
    choose = _Chooser(machine, run.prepared, asked.get("training", {}).get("start_from"))
    _check_overrides(choose, overrides)
    prepare_settings = _with_languages(text.settings(choose.start), say)

    def make_ready() -> bool:
        with progress_bars() as show:
            corpus = prepare_corpus(prepare_settings, run.prepared, say, show)
        if dropped := dropped_message(corpus.manifest.cleaning):
            say(f"{dropped} Examples are in {run.prepared / 'cleaning.md'}.")
        tables, reasons = choose.settings(CorpusSize.of(corpus), asked)
        for reason in reasons:
            say(reason)
        settings = build_settings(tables, where="--set")
        write_text(run.chosen_config, describe_choices(tables, reasons))
        say(f"These settings, to copy and edit: {run.chosen_config}")
        create_run(run, settings, placement.num_workers, has_other_hosts=not placement.is_only_this_machine)
        return False

    is_trained = launch_run(run, placement, make_ready)
    if is_trained and choose.start is not None:
        _tell_gain(run, say)
    return score_held_out(run, say) if is_trained else {}


class _Chooser:
    """Chooses settings for a text: a recipe for a model from scratch, or one for fine-tuning."""

    def __init__(self, machine: Machine, prepared: Path, start: object) -> None:
        self._machine, self._prepared = machine, prepared
        self.start = WarmStart.open(str(start)) if start else None

    def settings(self, size: CorpusSize, asked: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Returns settings as tables of a TOML file, and one reason per choice; what was asked for comes first."""
        if self.start is None:
            return choose_settings(size, self._machine, self._prepared, asked)
        start = self.start
        asked = asked | {"training": asked["training"] | {"start_from": start.name}} if "training" in asked else asked
        return choose_fine_tuning(size, self._machine, self._prepared, start.name, start.peak_rate, asked)


def _tell_gain(run: RunFolder, say: Say) -> None:
    """Compares the first evaluation, before fine-tuning, with the best one."""
    best_by = load_settings(run.config).best_by
    records = read_evaluation_records(run)
    figures = [(value, record.step) for record in records if (value := record.number(best_by)) is not None]
    if not figures or figures[0][1] != 0:
        return
    value, step = (min if best_by == "loss" else max)(figures)
    before, after = (SCORE_PATTERNS[best_by].format(each) for each in (figures[0][0], value))
    if step == 0:
        say(f"Fine-tuning did not help: {before} on the dev set is still the best, of the weights it started from.")
    else:
        say(f"On the dev set: {before} before fine-tuning, {after} with the best checkpoint (step {step:,}).")


def score_held_out(run: RunFolder, say: Say) -> dict[str, Any]:
    """Evaluates a trained run on the test lines that were held out of its own text; returns the scores."""
    say("On the held-out test pairs:")
    result = try_to_score(run, lambda: evaluate_run(load_run(run.path, say=say), None, None, say))
    if result is not None:
        say(result.summary())
        write_end_report(run, load_settings(run.config))  # again, now with the score of the test set
    say(f"Translate with: {command_for('translate', run.path)} FILE")
    return {"test": result.figures() if result else None}


def _check_overrides(choose: _Chooser, overrides: list[str]) -> None:
    """Reports a mistake in --set now, not after preparing."""
    tables, _ = choose.settings(CorpusSize(num_pairs=1, num_target_tokens=1), {})
    settings = build_settings(tables, overrides, where="--set")
    if choose.start is not None:
        settings = choose.start.adapt(settings)
        choose.start.require_same_shape(settings.model)
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
