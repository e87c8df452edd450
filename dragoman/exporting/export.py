"""Exports a model in one of several formats: written aside, compared with the original, and only then put in place."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dragoman import __version__
from dragoman.exporting.ctranslate2_format import write_ctranslate2
from dragoman.exporting.huggingface import translate_with_huggingface, write_huggingface
from dragoman.exporting.model_card import write_card
from dragoman.exporting.recorded_scores import read_scores
from dragoman.exporting.safetensors_format import load_exported_transformer, write_safetensors
from dragoman.exporting.source import ExportSource
from dragoman.exporting.verification import (
    Limits,
    Progress,
    Translate,
    Verification,
    VerificationText,
    translate_with_torch,
    verify,
)
from dragoman.run.errors import UsageError, UserError, describe_os_error
from dragoman.run.files import fsync_folder, require_free_space, write_json, write_text
from dragoman.run.units import format_bytes
from dragoman.translation.ctranslate2_backend import CTranslate2Backend
from dragoman.translation.exported_model import (
    DESCRIPTION_FILE,
    FORMAT_VERSION,
    ExportedScore,
    ExportFacts,
    ExportFormat,
    Quantization,
    facts_as_json,
    is_export,
    write_checksums,
)
from dragoman.translation.lines.usual_length import mean_source_subwords
from dragoman.translation.search import SearchSettings
from dragoman.translation.translator import LineTranslator

_MIN_POSITIONS = 1_024
"""Positions that an export knows at least: callers of other programs may have longer sentences than the training."""
_MAX_SLOW_SENTENCES = 200
_NEEDED_PACKAGES = {"ctranslate2": "ctranslate2", "huggingface": "transformers"}


@dataclass(frozen=True)
class ExportChoice:
    """What to write."""

    format: ExportFormat
    quantization: Quantization | None = None
    licence: str | None = None
    key: str | None = None
    """For an export that a run keeps for itself: what it was made from."""

    def __post_init__(self) -> None:
        if self.quantization is not None and self.format != "ctranslate2":
            raise UsageError(f"--quantization needs --format ctranslate2; {self.format} has float32 weights.")
        package = _NEEDED_PACKAGES.get(self.format)
        if package and find_spec(package) is None:
            raise UserError(f"--format {self.format} needs the package {package}: pip install 'dragoman[export]'.")


@dataclass(frozen=True)
class FinishedExport:
    """An export that is in place."""

    folder: Path
    facts: ExportFacts
    verification: Verification
    num_bytes: int

    def figures(self) -> dict[str, Any]:
        """Returns the values that --json prints."""
        return {
            "folder": str(self.folder),
            "format": self.facts.format,
            "quantization": self.facts.quantization,
            "step": self.facts.step,
            "checkpoint": self.facts.checkpoint,
            "bytes": self.num_bytes,
            **self.verification.figures(),
        }

    def summary(self) -> str:
        """Says what was written and how it was checked."""
        precision = self.facts.quantization or "float32"
        return (
            f"{self.verification.summary()}\n"
            f"{self.folder}: {self.facts.format}, {precision}, {format_bytes(self.num_bytes)}, {self.facts.checkpoint}"
        )


def export_model(
    source: ExportSource,
    choice: ExportChoice,
    out: Path,
    text: VerificationText,
    limits: Limits,
    max_sentences: int | None = None,
) -> FinishedExport:
    """Writes an export and compares its translations; raises, and leaves nothing behind, where they differ too much."""
    require_replaceable(out)
    if choice.quantization is not None and text.references is None:
        raise UsageError("A quantised export is judged by its BLEU: give --verify-reference with --verify-source.")
    with _writing_aside(out) as folder:
        require_free_space(folder, sum(parameter.nbytes for parameter in source.model.parameters()))
        max_positions = max(_MIN_POSITIONS, SearchSettings().max_length(source.settings.data.max_tokens))
        _write_weights(source, choice, folder, max_positions)
        translate = _translator_of(source, choice, folder, max_positions)
        if choice.format == "huggingface":  # transformers translates slowly
            max_sentences = max_sentences or _MAX_SLOW_SENTENCES
        verification = verify(source, text, translate, choice.quantization is None, max_sentences)
        verification.require(limits)
        facts = _collect_facts(source, choice, verification, max_positions)
        write_json(folder / DESCRIPTION_FILE, facts_as_json(facts))
        write_text(folder / "README.md", write_card(source, facts))
        write_checksums(folder)
        num_bytes = sum(path.stat().st_size for path in folder.iterdir())
    return FinishedExport(out, facts, verification, num_bytes)


def require_replaceable(out: Path) -> None:
    """Refuses a place that holds something else than an earlier export."""
    if out.is_dir() and not is_export(out) and any(out.iterdir()):
        raise UserError(f"{out} exists and is not an export of dragoman: choose another folder with --out.")
    if not out.is_dir() and (out.exists() or out.is_symlink()):
        raise UserError(f"{out} exists and is not a folder: choose another one with --out.")


@contextmanager
def _writing_aside(out: Path) -> Iterator[Path]:
    """Yields a folder beside `out` that takes its place if the block succeeds, and is removed otherwise."""
    out = out.resolve()
    aside, earlier = (out.with_name(f".{out.name}.{os.getpid()}.{ending}") for ending in ("partial", "earlier"))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
    except OSError as error:
        raise UserError(f"{out} cannot be written: {describe_os_error(error)}.") from None
    try:
        yield aside
        for path in (*aside.iterdir(), aside):
            fsync_folder(path)
        if out.exists():
            out.rename(earlier)
        aside.rename(out)
        fsync_folder(out.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if earlier.exists() and not out.exists():
            earlier.rename(out)
        shutil.rmtree(earlier, ignore_errors=True)


def _write_weights(source: ExportSource, choice: ExportChoice, folder: Path, max_positions: int) -> None:
    match choice.format:
        case "ctranslate2":
            write_ctranslate2(source, folder, max_positions, choice.quantization)
            source.copy_tokenizers(folder)
        case "huggingface":
            write_huggingface(source, folder)
        case "safetensors":
            write_safetensors(source, folder)
            source.copy_tokenizers(folder)


def _translator_of(source: ExportSource, choice: ExportChoice, folder: Path, max_positions: int) -> Translate:
    """Returns how to translate with what was written."""
    settings, tokenizers = source.settings, (source.source_tokenizer, source.target_tokenizer)
    if choice.format == "huggingface":
        return lambda lines, beam_size, progress: translate_with_huggingface(folder, lines, beam_size, progress)
    model = load_exported_transformer(folder) if choice.format == "safetensors" else None
    backend = None if model else CTranslate2Backend(folder, *tokenizers, max_positions, None, choice.quantization)

    def translate(lines: list[str], beam_size: int, progress: Progress) -> list[str]:
        search = SearchSettings(beam_size, settings.evaluation.length_penalty)
        if model is not None:
            return translate_with_torch(model, source, lines, search, progress)
        assert backend is not None
        return LineTranslator(backend, *tokenizers, search, settings.data.max_tokens).translate(lines, progress)

    return translate


def _collect_facts(
    source: ExportSource, choice: ExportChoice, verification: Verification, max_positions: int
) -> ExportFacts:
    evaluation = source.settings.evaluation
    return ExportFacts(
        format_version=FORMAT_VERSION,
        format=choice.format,
        quantization=choice.quantization,
        dragoman_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        languages=None if source.languages is None else list(source.languages),
        has_joint_vocabulary=source.shape.shares_vocabulary,
        beam_size=evaluation.beam_size,
        length_penalty=evaluation.length_penalty,
        max_source_tokens=source.settings.data.max_tokens,
        max_positions=max_positions,
        mean_source_subwords=mean_source_subwords(source.run.path),
        step=source.step,
        checkpoint=source.description,
        num_parameters=sum(parameter.numel() for parameter in source.model.parameters()),
        scores=[*_measured_score(verification), *read_scores(source)],
        licence=choice.licence,
        key=choice.key,
    )


def _measured_score(verification: Verification) -> list[ExportedScore]:
    if verification.exported is None:
        return []
    score = verification.exported
    return [
        ExportedScore(
            judged_on=f"{verification.judged_on}, translated by this export with beam {verification.beam_size}",
            bleu=score.bleu,
            signature=score.signature,
            chrf=score.chrf,
            chrf_signature=score.chrf_signature,
            num_sentences=verification.num_scored,
        )
    ]
