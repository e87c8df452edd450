"""The files a preparation reads, checked and hashed before any work, and the keys that follow from them.

A key is a hash of everything that decides what a stage writes: equal keys, equal files.
"""

import hashlib
import json
import shutil
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sentencepiece

from dragoman.corpus.cleaning.filters import Rules
from dragoman.corpus.prepared_corpus import FORMAT_VERSION, SPLIT_NAMES, InputRecord, SplitName
from dragoman.corpus.settings import CorpusSettings, PrepareSettings, TextSettings, default_corpus_name
from dragoman.run.errors import UsageError, UserError
from dragoman.run.files import sha256

# The hashes of the texts stand for them; limits on reading do not change what was read.
_NOT_DECISIVE = ("corpora", "dev", "test", "skip_bad_lines", "max_expansion")


@dataclass(frozen=True)
class Input:
    """One parallel text, ready to be read."""

    split: SplitName
    settings: TextSettings
    """Settings as given, but with a pipe replaced by the file that holds its content."""
    records: tuple[InputRecord, ...]
    """Its one or two files, under the names that were given."""

    @property
    def corpus_name(self) -> str:
        """Name of the corpus in training."""
        given = self.settings.name if isinstance(self.settings, CorpusSettings) else None
        return given or default_corpus_name(Path(self.records[0].path))


@contextmanager
def open_inputs(settings: PrepareSettings, beside: Path) -> Iterator[list[Input]]:
    """Checks and hashes all files; the content of pipes is kept beside the output until the block ends."""
    texts: dict[SplitName, Sequence[TextSettings]] = {
        "train": settings.corpora,
        "dev": settings.dev,
        "test": settings.test,
    }
    if not settings.corpora:
        raise UsageError("No training text was given; name at least one source file and one target file.")
    _refuse_contradictions(settings.corpora)
    paths = [path for name in SPLIT_NAMES for text in texts[name] for path in text.paths]
    _refuse_repeated_files(paths)
    with _open_spool(paths, beside) as spool:
        inputs = [_open_input(name, text, spool) for name in SPLIT_NAMES for text in texts[name]]
        try:
            yield inputs
        except UserError as problem:
            problem.args = (with_given_names(str(problem), inputs),)
            raise


def with_given_names(message: str, inputs: Sequence[Input]) -> str:
    """Names pipes in a message as the user gave them, instead of the files that hold their content."""
    for each in inputs:
        for path, record in zip(each.settings.paths, each.records, strict=True):
            message = message.replace(str(path), record.path)
    return message


# --- keys


@dataclass(frozen=True)
class StageKeys:
    """The key of each result of a preparation, each chained on the one before."""

    text: str
    """Cleaned and shuffled training text."""
    shards: str
    """Held-out sets, tokenizers and encoded shards."""
    corpus: str
    """The prepared corpus; recorded in its manifest."""


def stage_keys(settings: PrepareSettings, rules: Rules, inputs: Sequence[Input]) -> StageKeys:
    """Computes the keys of a preparation."""
    versions = [_code_hash(), unicodedata.unidata_version, version("pycld2")]
    # File names count here: the examples of dropped pairs name them.
    texts = [
        [
            each.split,
            each.settings.model_dump(mode="json", include={"format", "columns", "pieces"}),
            [record.model_dump() for record in each.records],
        ]
        for each in inputs
    ]
    text = _hash([versions, asdict(rules), settings.seed, texts])
    tags = [each.settings.tag for each in inputs]
    shards = _hash([text, settings.held_out, tags, *_tokenizer_key(settings)])
    return StageKeys(text, shards, preparation_key(settings, inputs))


def preparation_key(settings: PrepareSettings, inputs: Sequence[Input]) -> str:
    """Hashes all that decides the content of the prepared corpus, without names and places of files."""
    decisive = settings.model_dump(mode="json", exclude=dict.fromkeys(_NOT_DECISIVE, True) | {"tokenizer": {"reuse"}})
    if decisive["cleaning"] == "moses":
        decisive["cleaning"] = "seeds"  # its former name, which the keys of older corpora contain
    has_members = len({each.corpus_name for each in inputs if each.split == "train"}) > 1
    texts = [
        [
            each.split,
            # If there is only one corpus, a default name decides nothing.
            each.corpus_name if has_members and each.split == "train" else getattr(each.settings, "name", None),
            each.settings.model_dump(mode="json", exclude={"source", "target", "file", "name"}),
            [record.sha256 for record in each.records],
        ]
        for each in inputs
    ]
    versions = [FORMAT_VERSION, sentencepiece.__version__, unicodedata.unidata_version]
    return _hash([versions, decisive, texts, _hashes_of_reused_models(settings)])


def _tokenizer_key(settings: PrepareSettings) -> list[Any]:
    decisive = settings.tokenizer.model_dump(mode="json", exclude={"reuse"})
    return [sentencepiece.__version__, decisive, _hashes_of_reused_models(settings)]


def _hashes_of_reused_models(settings: PrepareSettings) -> list[str]:
    path = settings.tokenizer.reuse
    if path is None:
        return []
    models = sorted(path.glob("tokenizer*.model")) if path.is_dir() else [path]
    return [_record_input(model, model).sha256 for model in models]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@cache
def _code_hash() -> str:
    """Hashes the code of the stages, so that work of another version of it is never used."""
    paths = sorted(Path(__file__).parents[1].rglob("*.py"))
    return _hash([path.read_text(encoding="utf-8") for path in paths])


# --- checks


def _refuse_contradictions(corpora: Sequence[CorpusSettings]) -> None:
    weights: dict[str, float] = {}
    for corpus in corpora:
        name = corpus.given_or_default_name
        if weights.setdefault(name, corpus.weight) != corpus.weight:
            raise UsageError(
                f"The corpus {name!r} has the weights {weights[name]:g} and {corpus.weight:g}; "
                "give its files one weight, or other names."
            )


def _refuse_repeated_files(paths: Sequence[Path]) -> None:
    seen: dict[Path, Path] = {}
    for path in paths:
        real = path.resolve()
        if real in seen and real.is_file():
            raise UsageError(f"{path} is given twice; give every file once only, for one side of one split.")
        seen[real] = path


# --- pipes


@contextmanager
def _open_spool(paths: Sequence[Path], beside: Path) -> Iterator[Path]:
    """Makes a folder for the content of pipes, only if there are any: a killed process would leave it behind."""
    folder = next(each for each in (beside, *beside.resolve().parents) if each.is_dir())
    if not any(path.exists() and not (path.is_file() or path.is_dir()) for path in paths):
        yield folder
        return
    try:
        spool = TemporaryDirectory(prefix=".pipes.", dir=folder)
    except OSError as problem:
        raise UserError(f"{folder} cannot be written: {problem.strerror}.") from None
    with spool as name:
        yield Path(name)


def _open_input(split: SplitName, text: TextSettings, spool: Path) -> Input:
    kept = {field: _keep_pipe(path, spool) for field in ("source", "target", "file") if (path := getattr(text, field))}
    records = tuple(_record_input(getattr(text, field), path) for field, path in kept.items())
    return Input(split, text.model_copy(update=kept), records)


def _keep_pipe(path: Path, spool: Path) -> Path:
    """Returns the path itself, or a copy of its content if it can be read only once."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return path
        if stat.S_ISDIR(mode):
            raise UserError(f"{path} is a folder; give the text file itself.")
        kept = spool / f"{len(list(spool.iterdir())):05d}{''.join(path.suffixes)}"
        with path.open("rb") as pipe, kept.open("wb") as file:
            shutil.copyfileobj(pipe, file)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None
    return kept


def _record_input(given: Path, readable: Path) -> InputRecord:
    try:
        return InputRecord(path=str(given), num_bytes=readable.stat().st_size, sha256=sha256(readable))
    except OSError as problem:
        raise UserError(f"{given} cannot be read: {problem.strerror}.") from None
