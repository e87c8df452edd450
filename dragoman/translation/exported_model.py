"""Loads a model from a folder that `dragoman export` wrote; needs no torch.

A folder may come from a stranger: its checksums must match, files have fixed names, and sizes are bounded.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dragoman.corpus.prepared_corpus import tokenizer_path
from dragoman.corpus.shards import SIDES
from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, UNK_ID, Tokenizer
from dragoman.run.config import BeamSize, LengthPenalty
from dragoman.run.errors import UsageError, UserError, describe_os_error
from dragoman.run.files import require_known_format, sha256
from dragoman.translation.ctranslate2_backend import CTranslate2Backend, vocabulary_entries
from dragoman.translation.ctranslate2_file import check_model_file
from dragoman.translation.notices import Say
from dragoman.translation.search import SearchSettings
from dragoman.translation.translator import LineTranslator

FORMAT_VERSION: Final = 1
DESCRIPTION_FILE = "dragoman.json"
CHECKSUMS_FILE = "SHA256SUMS"
MODEL_FILE = "model.bin"
_CONFIG_FILE = "config.json"
_MAX_TEXT_BYTES = 4 * 2**20
"""Of dragoman.json and SHA256SUMS: larger ones are not ours, and are not read."""
_MAX_TOKENIZER_BYTES = 256 * 2**20
_CHECKSUM_LINE = re.compile(r"([0-9a-f]{64}) [ *]([A-Za-z0-9][A-Za-z0-9._-]{0,254})")

ExportFormat = Literal["ctranslate2", "huggingface", "safetensors"]
Quantization = Literal["int8", "int8_float32", "float16"]
_Text = Annotated[str, Field(max_length=10_000)]


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class ExportedScore(_Facts):
    """A score of the exported weights, with the signature of its computation."""

    judged_on: _Text
    bleu: float
    signature: _Text | None = None
    chrf: float | None = None
    chrf_signature: _Text | None = None
    chrfpp: float | None = None
    chrfpp_signature: _Text | None = None
    ter: float | None = None
    ter_signature: _Text | None = None
    num_sentences: int | None = None


class ExportFacts(_Facts):
    """What dragoman.json tells about an export."""

    format_version: int
    format: ExportFormat
    quantization: Quantization | None = None
    dragoman_version: _Text
    created: _Text
    languages: Annotated[list[_Text], Field(min_length=2, max_length=2)] | None = None
    """Codes of the source and the target language."""
    has_joint_vocabulary: bool
    beam_size: BeamSize
    length_penalty: LengthPenalty
    max_source_tokens: Annotated[int, Field(ge=2, le=1_000_000)]
    max_positions: Annotated[int, Field(ge=2, le=10_000_000)]
    """Longest output in subwords."""
    mean_source_subwords: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Mean length of the training sources, where it is known."""
    step: Annotated[int, Field(ge=0)]
    checkpoint: _Text
    """Which weights these are, e.g. "the checkpoint of step 500 (best)"."""
    num_parameters: Annotated[int, Field(ge=0)]
    scores: Annotated[list[ExportedScore], Field(max_length=100)] = []
    licence: _Text | None = None
    key: _Text | None = None
    """Tells whether an export that a run keeps for itself is up to date."""


@dataclass(frozen=True)
class LoadedExport:
    """A translator with what its export tells about it."""

    translator: LineTranslator
    facts: ExportFacts
    folder: Path

    @property
    def step(self) -> int:
        """The step at which the weights were saved."""
        return self.facts.step

    def describe(self) -> str:
        """Says in a sentence what was loaded."""
        precision = self.facts.quantization or "float32"
        return f"Translating with CTranslate2 ({precision}) and {self.facts.checkpoint}, exported to {self.folder}."


def is_export(folder: Path) -> bool:
    """Whether a folder holds the facts of an export; they may still be damaged."""
    return (folder / DESCRIPTION_FILE).is_file()


def load_export(
    folder: Path,
    beam_size: int | None = None,
    length_penalty: float | None = None,
    say: Say | None = None,
    num_workers: int | None = None,
) -> LoadedExport:
    """Loads an export for CTranslate2; searches as the run's config said unless told otherwise."""
    facts = read_facts(folder)
    if facts.format != "ctranslate2":
        raise UsageError(
            f"{folder} is an export in the format {facts.format}, for other programs; dragoman translates with run "
            "folders and with exports in the format ctranslate2."
        )
    verify_checksums(folder)
    source, target = _load_tokenizers(folder, facts.has_joint_vocabulary)
    _check_vocabularies(folder, source, target)
    _check_config(folder / _CONFIG_FILE, target)
    check_model_file(folder / MODEL_FILE, source.vocab_size, target.vocab_size, facts.max_positions)
    search = SearchSettings(
        facts.beam_size if beam_size is None else beam_size,
        facts.length_penalty if length_penalty is None else length_penalty,
    )
    backend = CTranslate2Backend(folder, source, target, facts.max_positions, num_workers, facts.quantization)
    return LoadedExport(LineTranslator(backend, source, target, search, facts.max_source_tokens, say), facts, folder)


def read_facts(folder: Path) -> ExportFacts:
    """Reads dragoman.json; a folder that is missing, foreign, damaged or of a later format is a UserError."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    path = folder / DESCRIPTION_FILE
    if not path.is_file():
        raise UserError(f"{folder} is not an export of dragoman: it has no {DESCRIPTION_FILE}.")
    content = _read_json(path)
    require_known_format(path, content.get("format_version") if isinstance(content, dict) else None, FORMAT_VERSION)
    try:
        return ExportFacts.model_validate(content)
    except ValidationError as problem:
        place = ".".join(str(part) for part in problem.errors()[0]["loc"]) or "its beginning"
        raise UserError(f"{path} is malformed at {place}: export the model again.") from None


def verify_checksums(folder: Path) -> None:
    """Compares all files that SHA256SUMS names; a UserError names the first that differs."""
    expected = _read_checksums(folder / CHECKSUMS_FILE)
    for name in _required_files(folder):
        if name not in expected:
            raise UserError(f"{folder} is damaged: {CHECKSUMS_FILE} does not name {name}. Export the model again.")
    for name, digest in expected.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{folder} is incomplete: {name} is missing. Export the model again.")
        try:
            is_same = sha256(path) == digest
        except OSError as error:
            raise UserError(f"{path} cannot be read: {describe_os_error(error)}.") from None
        if not is_same:
            raise UserError(f"{path} is damaged: {CHECKSUMS_FILE} describes another file. Export the model again.")


def write_checksums(folder: Path) -> None:
    """Writes SHA256SUMS about all other files of a folder, as the program sha256sum reads it."""
    names = sorted(path.name for path in folder.iterdir() if path.name != CHECKSUMS_FILE)
    lines = [f"{sha256(folder / name)}  {name}\n" for name in names]
    (folder / CHECKSUMS_FILE).write_text("".join(lines), encoding="utf-8")


def _read_checksums(path: Path) -> dict[str, str]:
    """Returns SHA-256 by file name; names with a folder in them are refused, so that no other file is ever read."""
    matches = [_CHECKSUM_LINE.fullmatch(line) for line in _read_text(path).splitlines()]
    checksums = {match[2]: match[1] for match in matches if match}
    if not checksums or len(checksums) != len(matches):
        raise UserError(f"{path} is damaged: a line is not a checksum and the name of a file beside it.")
    return checksums


def _required_files(folder: Path) -> list[str]:
    """Names what CTranslate2 and the tokenizers read, and the facts."""
    is_read = re.compile(r".*(vocabulary\.(json|txt)|\.model)|vmap\.txt")
    others = sorted(path.name for path in folder.iterdir() if is_read.fullmatch(path.name))
    return [DESCRIPTION_FILE, MODEL_FILE, _CONFIG_FILE, *others]


def _load_tokenizers(folder: Path, is_joint: bool) -> tuple[Tokenizer, Tokenizer]:
    paths = [tokenizer_path(folder, side, is_joint) for side in SIDES]
    for path in paths:
        if path.is_file() and path.stat().st_size > _MAX_TOKENIZER_BYTES:
            raise UserError(f"{path} is not a tokenizer of dragoman: it is larger than any.")
    source = Tokenizer.load(paths[0])
    return source, source if is_joint else Tokenizer.load(paths[1])


def _check_vocabularies(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """Refuses lists of subwords that are not those of the tokenizers: ids would mean other subwords."""
    shared = folder / "shared_vocabulary.json"
    paths = [shared, shared] if shared.is_file() else [folder / f"{side}_vocabulary.json" for side in SIDES]
    for path, tokenizer in zip(paths, (source, target), strict=True):
        try:
            wanted = vocabulary_entries(tokenizer)
        except UnicodeDecodeError:
            raise UserError(f"The tokenizer of {folder} is damaged: a subword is not UTF-8.") from None
        if _read_json(path, _MAX_TOKENIZER_BYTES) != wanted:
            raise UserError(f"{path} is not the vocabulary of the tokenizer beside it. Export the model again.")


def _check_config(path: Path, target: Tokenizer) -> None:
    """Refuses settings of CTranslate2 that an export never has: it would fail at the first translation."""
    bos, eos, unk = target.subwords((BOS_ID, EOS_ID, UNK_ID))
    wanted = {
        "add_source_bos": False,
        "add_source_eos": True,
        "bos_token": bos,
        "decoder_start_token": bos,
        "eos_token": eos,
        "unk_token": unk,
    }
    found = _read_json(path)
    found = found if isinstance(found, dict) else {}
    epsilon = found.pop("layer_norm_epsilon", None)
    # Versions of CTranslate2 differ in the features that they list as not used.
    used = {name: value for name, value in found.items() if name in wanted or value not in (None, False)}
    if used != wanted or not isinstance(epsilon, float) or not 0 < epsilon < math.inf:
        raise UserError(f"{path} is damaged, or it is not that of an export of dragoman. Export the model again.")


def _read_json(path: Path, max_bytes: int = _MAX_TEXT_BYTES) -> Any:
    try:
        return json.loads(_read_text(path, max_bytes))
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged: it is not valid JSON. Export the model again.") from None


def _read_text(path: Path, max_bytes: int = _MAX_TEXT_BYTES) -> str:
    try:
        if path.stat().st_size > max_bytes:
            raise UserError(f"{path} is not a file of an export: it is larger than {max_bytes // 2**20} MiB.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path.parent} is incomplete: {path.name} is missing. Export the model again.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {describe_os_error(error)}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is damaged: it is not UTF-8. Export the model again.") from None


def facts_as_json(facts: ExportFacts) -> dict[str, Any]:
    """Returns the facts as they are written to dragoman.json."""
    return facts.model_dump(mode="json")
