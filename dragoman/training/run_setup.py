"""Creates or reopens a run folder, and checks everything that can be checked before the workers start."""

import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dragoman import __version__
from dragoman.corpus.mixture import Mixture, base_weights, build_stages, stages_begun
from dragoman.corpus.prepared_corpus import MANIFEST_NAME, PreparedCorpus, tokenizer_path
from dragoman.evaluation.scores import choose_tokenizer, require_tokenizer
from dragoman.model.shape import resolve_shape
from dragoman.run.checkpoints import newest_complete_checkpoint, require_same_data
from dragoman.run.commands import resume_command
from dragoman.run.config import (
    PROVENANCE,
    Settings,
    SynchronisationSettings,
    dump_settings,
    load_settings,
    relative_to_run,
)
from dragoman.run.errors import UsageError, UserError, describe_os_error
from dragoman.run.files import write_json, write_text
from dragoman.run.folder import RunFolder, checkpoint_step, make_run_folder
from dragoman.run.synchronisation import require_possible
from dragoman.run.tables import read_toml
from dragoman.training.warm_start import WarmStart, merge_model

_KEPT_ON_RESUME = (
    ("training", "seed"),
    ("training", "global_batch_tokens"),
    ("training", "initial_batch_tokens"),
    ("training", "batch_doubling_steps"),
    ("training", "virtual_workers"),
    ("training", "freeze"),
    *(("synchronisation", name) for name in SynchronisationSettings.model_fields),
    ("data", "max_tokens"),
)
"""Settings that decide the order of sentences and what is trained: with other values, it would not be the same run."""
_KEPT_PROVENANCE = ("start_weights",)
"""What is known only when a run is created."""


def create_run(run: RunFolder, settings: Settings, num_workers: int, has_other_hosts: bool = False) -> None:
    """Creates the run folder and writes everything the run needs into it."""
    require_free_folder(run)
    fewer = _fewer_workers(settings, has_other_hosts)
    start = WarmStart.open(settings.training.start_from) if settings.training.start_from else None
    settings = start.adapt(settings) if start else settings
    corpus = _check_settings(settings, num_workers, f"{fewer} or raise training.virtual_workers")
    if start:
        start.require_same_vocabulary(corpus)
        start.require_same_shape(settings.model)
    settings = _resolve_tokenizer(_resolve_data(settings, corpus), corpus)
    make_run_folder(run)
    try:
        copy_tokenizers(corpus, run)
        write_json(run.corpus_facts, corpus.facts())
        _write_config(run, settings, {"start_weights": start.copy_weights(run)} if start else {})
    except OSError as error:
        raise UserError(f"The run folder {run.path} cannot be written: {describe_os_error(error)}.") from error


def copy_tokenizers(corpus: PreparedCorpus, run: RunFolder) -> None:
    """Copies the tokenizers into the run folder, so that translating does not need the prepared corpus."""
    run.tokenizers.mkdir(parents=True, exist_ok=True)
    for side in ("source", "target") if not corpus.is_joint else ("source",):
        origin = tokenizer_path(corpus.folder, side, corpus.is_joint)
        if not (run.tokenizers / origin.name).exists():
            shutil.copyfile(origin, run.tokenizers / origin.name)


def reopen_run(
    run: RunFolder, settings: Settings | None, overrides: list[str], num_workers: int, has_other_hosts: bool = False
) -> None:
    """Checks that a run can continue, and writes the settings it continues with.

    Its checkpoints may be on other hosts, where the workers search for them.
    """
    if not run.exists:
        raise UserError(f"There is nothing to resume in {run.path}: it holds no run.")
    before = load_settings(run.config)
    settings = settings or load_settings(run.config, overrides)
    if before.training.start_from:  # its model came from another run
        training = settings.training.model_copy(update={"start_from": before.training.start_from})
        model = merge_model(before.model, settings.model)
        settings = settings.model_copy(update={"training": training, "model": model})
    for section, key in _KEPT_ON_RESUME:
        old, new = (getattr(getattr(each, section), key) for each in (before, settings))
        if old != new:
            raise UsageError(
                f"A resumed run must keep {section}.{key} = {_shown(old)}; start a new run to use {_shown(new)}."
            )
    _require_data(run, settings.data.prepared)
    corpus = _check_settings(settings, num_workers, _fewer_workers(settings, has_other_hosts))
    settings = _resolve_tokenizer(_resolve_data(settings, corpus), corpus, before)
    warnings: list[str] = []
    checkpoint = newest_complete_checkpoint(run, warnings.append)
    if checkpoint is not None:
        require_same_data(checkpoint, corpus.fingerprint)
        _require_same_mixture(before, settings, corpus, checkpoint_step(checkpoint))
    elif not has_other_hosts:
        raise UserError(" ".join([f"There is no checkpoint to resume in {run.checkpoints}.", *warnings]))
    if settings != before:
        provenance = read_toml(run.config).get(PROVENANCE, {})
        _write_config(run, settings, {name: provenance[name] for name in _KEPT_PROVENANCE if name in provenance})


def _shown(value: object) -> object:
    """Returns a setting as a person writes it."""
    if value is None:
        return "its default"
    return str(value).lower() if isinstance(value, bool) else value


def _require_data(run: RunFolder, prepared: Path) -> None:
    """Says how to name the new place of prepared data that was moved."""
    if not (prepared / MANIFEST_NAME).is_file():
        raise UserError(
            f"The prepared data of {run.path} is not in {prepared}. If it was moved, name its folder: "
            f"{resume_command(run.path)} --set data.prepared=FOLDER"
        )


def _write_config(run: RunFolder, settings: Settings, origin: dict[str, Any]) -> None:
    prepared = settings.data.prepared
    data = settings.data.model_copy(update={"prepared": relative_to_run(prepared, run.path)})
    start = _describe_start() | {"prepared": str(prepared)} | origin
    write_text(run.config, dump_settings(settings.model_copy(update={"data": data}), start))


def _require_same_mixture(before: Settings, settings: Settings, corpus: PreparedCorpus, num_steps: int) -> None:
    """Refuses changes of stages that have begun: they decide the run's position in the epoch."""
    old, new = (stages_begun(build_stages(corpus.train_corpora, each.data), num_steps) for each in (before, settings))
    if old != new:
        raise UsageError(
            f"A resumed run must keep data.weights and data.stages as they were in its first {num_steps:,} steps: "
            f"change only stages that begin at step {num_steps:,} or later, or start a new run."
        )


def require_free_folder(run: RunFolder) -> None:
    """Refuses to write into another run or a folder with other files; a run without checkpoints may start again.

    Another process may be about to write its first checkpoint: whoever calls this has locked the run, or will.
    """
    if run.exists and not run.checkpoint_steps():
        return
    if run.exists:
        raise UserError(
            f"{run.path} already holds a run: choose another folder with --run-dir, or continue it with: "
            f"{resume_command(run.path)}"
        )
    own = {run.corpus, run.chosen_config, run.launch_log, run.lock, *run.preparation()}
    if run.path.exists() and not (run.path.is_dir() and set(run.path.iterdir()) <= own):
        raise UserError(f"{run.path} exists and is not a run folder. Choose another one with --run-dir.")


def _fewer_workers(settings: Settings, has_other_hosts: bool) -> str:
    """Advises how to use no more workers than virtual workers."""
    num_virtual = settings.training.virtual_workers
    if has_other_hosts:
        return f"give the hosts at most {num_virtual} workers together in --hosts"
    return f"use --workers {num_virtual}"


def _check_settings(settings: Settings, num_workers: int, advice: str) -> PreparedCorpus:
    """Fails early, before workers start; returns the verified corpus. `advice` is for too many workers."""
    virtual_workers = settings.training.virtual_workers
    if num_workers < 1:
        raise UsageError(f"--workers takes a number of at least 1, not {num_workers}.")
    if num_workers > virtual_workers:
        raise UsageError(f"{num_workers} workers cannot share {virtual_workers} virtual workers: {advice}.")
    require_possible(settings)
    corpus = PreparedCorpus.open(settings.data.prepared)
    resolve_shape(settings.model, corpus.source_vocab_size, corpus.target_vocab_size, corpus.is_joint)
    Mixture.build(corpus.train_corpora, settings.data)
    return corpus


def _resolve_data(settings: Settings, corpus: PreparedCorpus) -> Settings:
    """Makes the path absolute and the weights explicit, so that they stay the same after a new `prepare`."""
    weights = base_weights(corpus.train_corpora, settings.data.weights)
    update = {"prepared": settings.data.prepared.resolve(), "weights": weights}
    return settings.model_copy(update={"data": settings.data.model_copy(update=update)})


def _resolve_tokenizer(settings: Settings, corpus: PreparedCorpus, before: Settings | None = None) -> Settings:
    """Decides "auto" once, so that every host and every resume of the run scores alike."""
    setting = settings.evaluation.tokenizer
    if setting == "auto" and before is not None:
        setting = before.evaluation.tokenizer
    _, references = corpus.text("dev")
    tokenizer = choose_tokenizer(setting, corpus.manifest.settings.get("languages"), references)
    require_tokenizer(tokenizer)
    return settings.model_copy(update={"evaluation": settings.evaluation.model_copy(update={"tokenizer": tokenizer})})


def _describe_start() -> dict[str, Any]:
    """Returns versions, commit, time and command line, as needed to repeat the run."""
    return {
        "dragoman": __version__,
        "torch": version("torch"),
        "python": sys.version.split()[0],
        "git_commit": _git_commit(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
    }


def _git_commit() -> str | None:
    """Returns the commit of this code, if it runs from a git clone."""
    git = shutil.which("git")
    if git is None:
        return None
    answer = subprocess.run(
        [git, "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or None
