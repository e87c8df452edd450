"""Exports that a run keeps for itself, so that CTranslate2 can serve it and translate with it at once."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from dragoman import __version__
from dragoman.run.checkpoints import (
    check_sizes,
    find_checkpoint,
    find_checkpoints_to_average,
    parse_average_name,
    weights_file,
)
from dragoman.run.config import load_settings
from dragoman.run.errors import UserError
from dragoman.run.files import sha256
from dragoman.run.folder import RunFolder, checkpoint_step, open_run
from dragoman.translation.exported_model import FORMAT_VERSION, Quantization, is_export, read_facts, verify_checksums

_FOLDER = "exports"
_NUM_KEPT = 4
_NUM_SENTENCES = 100
"""Compared with the run before an export is used; `dragoman export` compares more."""

Say = Callable[[str], None]


def ensure_export(
    run: Path, checkpoint: str = "best", say: Say | None = None, quantization: Quantization | None = None
) -> Path:
    """Returns the run's own export of a checkpoint for CTranslate2; makes it if it is missing, outdated or damaged.

    `say` is told before an export is made, which takes a while.
    """
    folder = open_run(run)
    say = say or (lambda _: None)
    key, step = _key_of(folder, checkpoint, quantization, say)
    out = folder.path / _FOLDER / f"ctranslate2-step-{step:08d}-{quantization or 'float32'}-{key[:12]}"
    if not _is_usable(out, key):
        say(f"Exporting {run} for CTranslate2 to {out}, once.")
        _make(run, checkpoint, quantization, out, key, say)
        _remove_old(out)
    return out


def _key_of(run: RunFolder, which: str, quantization: str | None, say: Say) -> tuple[str, int]:
    """Returns a hash of all that decides the content of an export, and the step of its weights."""
    settings = load_settings(run.config)
    if (average := parse_average_name(which)) is not None:
        checkpoints = find_checkpoints_to_average(run, average, settings.best_by, say)
    else:
        checkpoints = [find_checkpoint(run, which, settings.best_by, say)]
    weights = [check_sizes(each, (weights_file(each),)) for each in checkpoints]
    tokenizers = {path.name: sha256(path) for path in sorted(run.tokenizers.iterdir())}
    model, evaluation = (json.loads(each.model_dump_json()) for each in (settings.model, settings.evaluation))
    facts = [
        FORMAT_VERSION,
        __version__,
        quantization,
        weights,
        tokenizers,
        model,
        evaluation,
        settings.data.max_tokens,
    ]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return key, checkpoint_step(checkpoints[-1])


def _is_usable(folder: Path, key: str) -> bool:
    if not is_export(folder):
        return False
    try:
        verify_checksums(folder)
        return read_facts(folder).key == key
    except UserError:
        return False


def _make(run: Path, checkpoint: str, quantization: Quantization | None, out: Path, key: str, say: Say) -> None:
    from dragoman.exporting.export import ExportChoice, export_model
    from dragoman.exporting.source import open_export_source
    from dragoman.exporting.verification import Limits, find_text

    choice = ExportChoice("ctranslate2", quantization, key=key)
    source = open_export_source(run, checkpoint, say)
    export_model(source, choice, out, find_text(source, (None, None), say), Limits(), _NUM_SENTENCES)


def _remove_old(newest: Path) -> None:
    """Keeps the newest few exports of the run; a program that has loaded another one goes on with it."""
    others = [path for path in newest.parent.iterdir() if is_export(path) and path != newest]
    others.sort(key=lambda path: path.stat().st_mtime)
    for path in others[: max(0, len(others) - _NUM_KEPT + 1)]:
        shutil.rmtree(path, ignore_errors=True)
