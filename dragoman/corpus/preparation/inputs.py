"""The files a preparation reads, checked and hashed before any work, and the keys that follow from them.

A key is a hash of everything that decides what a stage writes: equal keys, equal files.
"""

import hashlib
import json
import shutil
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from io import BufferedReader
from pathlib import Path
from typing import Any

import sentencepiece

from dragoman.corpus.cleaning.filters import Rules
from dragoman.corpus.formats.compression import CHUNK_BYTES
from dragoman.corpus.formats.lines import refuse_endless_lines
from dragoman.corpus.formats.reading import format_of
from dragoman.corpus.prepared_corpus import FORMAT_VERSION, SPLIT_NAMES, InputRecord, SplitName
from dragoman.corpus.settings import CorpusSettings, PrepareSettings, TextSettings, default_corpus_name
from dragoman.run.errors import UsageError, UserError, describe_os_error
from dragoman.run.files import require_free_space, try_lock
from dragoman.run.input_files import is_read_once, open_input

_FIRST_NOTICE_BYTES = 2**30
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
def open_inputs(settings: PrepareSettings, out: Path, say: Callable[[str], None]) -> Iterator[list[Input]]:
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
    with _open_spool(paths, out) as spool:
        inputs = [_open_input(name, text, spool, say) for name in SPLIT_NAMES for text in texts[name]]
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
        if real in seen and not is_read_once(real):
            raise UsageError(f"{path} is given twice; give every file once only, for one side of one split.")
        seen[real] = path


# --- pipes


@contextmanager
def _open_spool(paths: Sequence[Path], out: Path) -> Iterator[Path]:
    """Makes a folder for the content of pipes, if there are any; removes the one that a killed process left behind."""
    parent = out.resolve().parent
    spool = next(each for each in (parent, *parent.parents) if each.is_dir()) / f".{out.name}.pipes"
    if not spool.exists() and not any(map(is_read_once, paths)):
        yield spool
        return
    spool.mkdir(exist_ok=True)
    with try_lock(spool / "lock") as is_ours:
        if not is_ours:
            raise UserError(f"{out} is being prepared by another process; wait for it, or stop it first.")
        try:
            for left_behind in spool.glob("pipe*"):
                left_behind.unlink()
            yield spool
        finally:
            shutil.rmtree(spool, ignore_errors=True)


def _open_input(split: SplitName, text: TextSettings, spool: Path, say: Callable[[str], None]) -> Input:
    kept = {}
    for field in ("source", "target", "file"):
        if path := getattr(text, field):
            kept[field] = _keep_pipe(path, _has_lines(text), spool, say) if is_read_once(path) else path
    records = tuple(_record_input(getattr(text, field), path) for field, path in kept.items())
    return Input(split, text.model_copy(update=kept), records)


def _has_lines(text: TextSettings) -> bool:
    """Whether the format has one pair per line; TMX and Parquet may have no line end at all."""
    return text.file is None or (text.format or format_of(text.file)) in ("tsv", "jsonl")


def _keep_pipe(path: Path, has_lines: bool, spool: Path, say: Callable[[str], None]) -> Path:
    """Returns a copy of the content of a pipe, which can be read only once."""
    kept = spool / f"pipe{len(list(spool.iterdir())):05d}{''.join(path.suffixes)}"
    num_bytes, notice_at = 0, _FIRST_NOTICE_BYTES
    with open_input(path) as pipe, kept.open("wb") as file:
        chunks = _read_chunks(path, pipe)
        for chunk in refuse_endless_lines(path, chunks) if has_lines else chunks:
            require_free_space(spool)
            num_bytes += file.write(chunk)
            if num_bytes >= notice_at:
                say(f"Copied {num_bytes // 2**30:,} GiB of {path}, a pipe, to {spool}.")
                notice_at *= 2
    return kept


def _read_chunks(path: Path, file: BufferedReader) -> Iterator[bytes]:
    try:
        yield from iter(lambda: file.read1(CHUNK_BYTES), b"")
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {describe_os_error(problem)}.") from None


def _record_input(given: Path, readable: Path) -> InputRecord:
    digest, num_bytes = hashlib.sha256(), 0
    with open_input(readable) as file:
        for chunk in _read_chunks(given, file):
            digest.update(chunk)
            num_bytes += len(chunk)
    return InputRecord(path=str(given), num_bytes=num_bytes, sha256=digest.hexdigest())
