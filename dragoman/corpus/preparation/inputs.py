"""The files a preparation reads: found, told apart and hashed before anything is made of them.

The hashes and the settings give the key of the preparation: equal keys, equal prepared corpora.
"""

import hashlib
import json
import shutil
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import sentencepiece

from dragoman.corpus.prepared_corpus import FORMAT_VERSION, SPLIT_NAMES, InputRecord, SplitName
from dragoman.corpus.settings import CorpusSettings, PrepareSettings, TextSettings, default_corpus_name
from dragoman.run.errors import UsageError, UserError

# Texts count by their hashes; limits on reading change nothing that was read.
_NOT_DECISIVE = ("corpora", "dev", "test", "skip_bad_lines", "max_expansion")


@dataclass(frozen=True)
class Input:
    """One parallel text, ready to be read."""

    split: SplitName
    settings: TextSettings
    """As given, but with a pipe replaced by the file its content was kept in."""
    records: tuple[InputRecord, ...]
    """Of its one or two files, under the names they were given by."""

    @property
    def corpus_name(self) -> str:
        """What training calls it."""
        given = self.settings.name if isinstance(self.settings, CorpusSettings) else None
        return given or default_corpus_name(Path(self.records[0].path))


@contextmanager
def open_inputs(settings: PrepareSettings, beside: Path) -> Iterator[list[Input]]:
    """Checks and hashes all files; what comes from pipes is kept beside the output until the block ends."""
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
            problem.args = (under_given_names(str(problem), inputs),)
            raise


def under_given_names(sentence: str, inputs: Sequence[Input]) -> str:
    """A sentence about files that names a pipe as it was given, and not the file its content was kept in."""
    for each in inputs:
        for path, record in zip(each.settings.paths, each.records, strict=True):
            sentence = sentence.replace(str(path), record.path)
    return sentence


@contextmanager
def _open_spool(paths: Sequence[Path], beside: Path) -> Iterator[Path]:
    """A folder for what comes from pipes; made only if there are any, for it is left behind where we are killed."""
    folder = _nearest_folder(beside)
    if not any(path.exists() and not (path.is_file() or path.is_dir()) for path in paths):
        yield folder
        return
    try:
        spool = TemporaryDirectory(prefix=".pipes.", dir=folder)
    except OSError as problem:
        raise UserError(f"{folder} cannot be written: {problem.strerror}.") from None
    with spool as name:
        yield Path(name)


def preparation_key(settings: PrepareSettings, inputs: Sequence[Input]) -> str:
    """The SHA-256 of all that decides the content of the prepared corpus, but no file names or places."""
    decisive = settings.model_dump(mode="json", exclude=dict.fromkeys(_NOT_DECISIVE, True) | {"tokenizer": {"reuse"}})
    has_members = len({each.corpus_name for each in inputs if each.split == "train"}) > 1
    texts = [
        [
            each.split,
            # Where there is one corpus only, a name that nobody gave decides nothing.
            each.corpus_name if has_members and each.split == "train" else getattr(each.settings, "name", None),
            each.settings.model_dump(mode="json", exclude={"source", "target", "file", "name"}),
            [record.sha256 for record in each.records],
        ]
        for each in inputs
    ]
    reused = [_record_input(path, path).sha256 for path in _reused_models(settings)]
    versions = [FORMAT_VERSION, sentencepiece.__version__, unicodedata.unidata_version]
    return hashlib.sha256(json.dumps([versions, decisive, texts, reused], sort_keys=True).encode()).hexdigest()


def _reused_models(settings: PrepareSettings) -> list[Path]:
    path = settings.tokenizer.reuse
    if path is None:
        return []
    return sorted(path.glob("tokenizer*.model")) if path.is_dir() else [path]


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
            raise UsageError(f"{path} is given twice; every file may be given once only, for one side of one split.")
        seen[real] = path


def _nearest_folder(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(folder for folder in (path, *path.resolve().parents) if folder.is_dir())


def _open_input(split: SplitName, text: TextSettings, spool: Path) -> Input:
    kept = {field: _keep_pipe(path, spool) for field in ("source", "target", "file") if (path := getattr(text, field))}
    records = tuple(_record_input(getattr(text, field), path) for field, path in kept.items())
    return Input(split, text.model_copy(update=kept), records)


def _keep_pipe(path: Path, spool: Path) -> Path:
    """The path itself, or a copy of what came out of it where it can be read only once."""
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
        with readable.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return InputRecord(path=str(given), num_bytes=readable.stat().st_size, sha256=digest)
    except OSError as problem:
        raise UserError(f"{given} cannot be read: {problem.strerror}.") from None
