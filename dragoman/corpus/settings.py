"""Settings of `dragoman prepare`: the [prepare] table of a config file, changed by command-line options.

The text under a field is its documentation; docs/write_configuration.py makes docs/configuration.md of it.
"""

from collections.abc import Iterator, Sequence
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from dragoman.run.errors import UsageError
from dragoman.run.tables import (
    Count,
    CountOrZero,
    Fraction,
    NotNegative,
    Positive,
    Section,
    Switch,
    first_problem,
    parse_value,
    read_toml,
    unknown_key,
)

Cleaning = Literal["none", "seeds", "standard", "strict"]
Format = Literal["plain", "tsv", "jsonl", "tmx", "parquet"]
Pieces = Literal["auto", "none", "sentencepiece", "subword-nmt"]
Range = tuple[CountOrZero, Count]
# Part of a file's name, so no path.
CorpusName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]

# Words with single spaces between them, so that it comes back from the pieces as it was.
Tag = Annotated[str, Field(pattern=r"^[^\s▁▅]+( [^\s▁▅]+)*$")]


class TextSettings(Section):
    """Parallel text: two plain files, or one file that holds both sides."""

    source: Path | None = None
    """Source text, one sentence a line."""
    target: Path | None = None
    """Its translation, line by line."""
    file: Path | None = None
    """One file with both sides instead: TSV, JSON lines, TMX or Parquet."""
    format: Format | None = None
    """Of `file`. Default: by its name."""
    columns: tuple[Count, Count] = (1, 2)
    """TSV: which columns hold source and target, counted from 1."""
    pieces: Pieces = "auto"
    """Text that was cut into pieces before (`▁` or `@@`) is put together again; auto recognises it."""
    tag: Tag | None = None
    """Put before every source sentence, e.g. "<bt>" for back-translations or "<2de>" for a target language."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if (self.file is None) == (self.source is None and self.target is None):
            raise ValueError("parallel text needs either source and target, or file")
        if self.file is None and (self.source is None or self.target is None):
            raise ValueError("source and target belong together")
        return self

    @property
    def paths(self) -> tuple[Path, ...]:
        """The one or two files."""
        return (self.file,) if self.file is not None else (self.source, self.target)  # type: ignore[return-value]


class CorpusSettings(TextSettings):
    """[[prepare.corpora]]: training text with a name and a weight."""

    name: CorpusName | None = None
    """What stages of training call it. Default: the file's name without its endings. Equal names are one corpus."""
    weight: NotNegative = 1.0
    """How often each pair is seen in an epoch of training: 2 is twice, 0.5 a random half, another one each epoch."""

    @property
    def given_or_default_name(self) -> str:
        """What training calls it."""
        return self.name or default_corpus_name(self.paths[0])


def default_corpus_name(path: Path) -> str:
    """A corpus's name where none was given: the file's, up to its first dot, as far as a name may have it."""
    stem = path.name.split(".")[0]
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in stem)
    return name if name[:1].isalnum() else f"corpus{name}"


class FilterSettings(Section):
    """[prepare.filters]: what makes a pair be dropped. Each may be false, true, or given its threshold.

    What is not given is as `prepare.cleaning` says.
    """

    empty: Switch | None = None
    """A side without text."""
    control_characters: Switch | None = None
    """Control characters, private-use characters, noncharacters, or the mark of a failed conversion (U+FFFD)."""
    length_words: Range | Switch | None = None
    """A side with fewer or more words (runs of text between blanks): [least, most]."""
    length_characters: Range | Switch | None = None
    """A side with fewer or more characters: [least, most]."""
    length_ratio: Positive | Switch | None = None
    """One side with more than so many times the words of the other; characters for scripts without spaces."""
    identical: Switch | None = None
    """Source and target are the same."""
    script: Fraction | Switch | None = None
    """Less than this share of a side's letters is in a script of its language. Needs the languages."""
    language: Count | Switch | None = None
    """A side of at least so many characters is surely in another language. Needs the languages."""
    numbers: Switch | None = None
    """The numbers of the two sides differ."""
    duplicates: Switch | None = None
    """The same pair again."""
    near_duplicates: Switch | None = None
    """The same pair but for case, digits, punctuation and blanks."""
    overlap: Switch | None = None
    """A sentence of a given dev or test set, on either side. Where it is off, such pairs are counted and kept."""


class TokenizerSettings(Section):
    """[prepare.tokenizer]: how text is cut into pieces."""

    kind: Literal["bpe", "unigram"] = "bpe"
    """Of SentencePiece model."""
    vocab_size: Count | None = None
    """Pieces. Default: by the size of the text."""
    separate: Switch = False
    """One vocabulary for each language instead of a joint one."""
    byte_fallback: Switch = False
    """Characters without a piece are written as bytes instead of becoming unknown."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1, strict=True)] = 1.0
    """Share of all characters that get a piece of their own. Below 1, use byte_fallback, or text is lost."""
    sample_lines: Count = 1_000_000
    """Lines it is trained on, drawn from the training text of both sides."""
    reuse: Path | None = None
    """A prepared folder or a model file whose vocabulary is taken over instead of training one."""


class PrepareSettings(Section):
    """[prepare]: from raw parallel text to a folder that training reads."""

    corpora: tuple[CorpusSettings, ...] = ()
    """[[prepare.corpora]] tables: training text."""
    dev: tuple[TextSettings, ...] = ()
    """[[prepare.dev]] tables: text to judge training by. Default: held out of the training text."""
    test: tuple[TextSettings, ...] = ()
    """[[prepare.test]] tables: text to judge the result by. Default: held out of the training text."""
    languages: (
        Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}(_[A-Za-z0-9]+)*-[A-Za-z]{2,3}(_[A-Za-z0-9]+)*$")] | None
    ) = None
    """Source and target language, e.g. "en-de". Without them, script and language are not checked."""
    cleaning: Cleaning = "standard"
    """Which filters are on: none, seeds (empty, 1-80 words), standard, or strict (also numbers, near-duplicates)."""
    filters: FilterSettings = FilterSettings()
    """[prepare.filters]: changes to them."""
    normalise: Switch = True
    """Unicode NFC, and one plain space for each run of white space. Off: blanks at the ends are stripped only."""
    tokenizer: TokenizerSettings = TokenizerSettings()
    """[prepare.tokenizer]: how text is cut into pieces."""
    held_out: Count | None = None
    """Pairs for each of dev and test where none are given. Default: 2 %, but 1 to 1000."""
    seed: CountOrZero = 1
    """Of the shuffle and of what is held out."""
    skip_bad_lines: CountOrZero = 0
    """Lines that cannot be read (not UTF-8, too long, malformed) are skipped and listed, up to so many."""
    max_expansion: Count = 200
    """A compressed file may grow to at most so many times its size (64 MiB are always allowed)."""

    @classmethod
    def of_files(
        cls,
        sources: Sequence[Path],
        targets: Sequence[Path],
        dev: tuple[Sequence[Path], Sequence[Path]] = ((), ()),
        test: tuple[Sequence[Path], Sequence[Path]] = ((), ()),
        **others: Any,
    ) -> Self:
        """The settings for plain files that belong together in order."""
        return cls(
            corpora=tuple(CorpusSettings(source=source, target=target) for source, target in pair_up(sources, targets)),
            dev=tuple(TextSettings(source=source, target=target) for source, target in pair_up(*dev)),
            test=tuple(TextSettings(source=source, target=target) for source, target in pair_up(*test)),
            **others,
        )


def pair_up(sources: Sequence[Path], targets: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Source and target files that belong together in order."""
    if len(sources) != len(targets):
        raise UsageError(
            f"There are {len(sources)} source files and {len(targets)} target files; "
            "give one target file for each source file, in the same order."
        )
    return zip(sources, targets, strict=True)


TABLE = "prepare"
_TEXT_TABLES = ("corpora", "dev", "test")
_PATH_KEYS = ("source", "target", "file")


def load_prepare_settings(config: Path | None, changes: dict[str, Any]) -> tuple[PrepareSettings, Path | None]:
    """The settings of a preparation, and the folder the config trains from, if it names one.

    Texts on the command line are added to those of the config; of all else, the command line wins.
    """
    values = read_toml(config) if config else {}
    table = values.get(TABLE, {})
    if config and not isinstance(table, dict):
        raise UsageError(f"{config}: {TABLE} must be a table, written [{TABLE}].")
    if config:
        table = _with_paths_beside(table, config.parent)
    try:
        settings = PrepareSettings.model_validate(_merge(table, changes))
    except ValidationError as error:
        where = f"{config}: " if config else ""
        raise UsageError(where + first_problem(error, PrepareSettings, TABLE)) from None
    match values:
        case {"data": {"prepared": str(prepared)}}:
            return settings, Path(prepared)
    return settings, None


def with_weights(settings: PrepareSettings, options: list[str]) -> PrepareSettings:
    """The settings with each `--weight name=number` set."""
    weights = dict(map(_parse_weight, options))
    names = [corpus.given_or_default_name for corpus in settings.corpora]
    for name in weights:
        if name not in names:
            raise UsageError(f"--weight {name}: there is no such corpus; there are {', '.join(names) or 'none'}.")
    corpora = tuple(
        corpus.model_copy(update={"weight": weights.get(corpus.given_or_default_name, corpus.weight)})
        for corpus in settings.corpora
    )
    return settings.model_copy(update={"corpora": corpora})


def _parse_weight(option: str) -> tuple[str, float]:
    name, _, text = option.rpartition("=")
    try:
        weight = float(text)
    except ValueError:
        weight = nan
    if not name or not 0 <= weight < inf:
        raise UsageError(f"--weight takes name=number, not {option!r}; for example --weight europarl=0.5.")
    return name, weight


def parse_filters(options: list[str]) -> dict[str, Any]:
    """`--filter name=value` options as a table: on, off, a number, or a range such as 1-80."""
    filters = {}
    for option in options:
        name, equals, text = (part.strip() for part in option.partition("="))
        if not equals:
            raise UsageError(f"--filter takes name=value, not {option!r}; for example --filter length_words=1-80.")
        if name not in FilterSettings.model_fields:
            raise UsageError(f"--filter {option}: {unknown_key(name, list(FilterSettings.model_fields))}")
        filters[name] = _parse_filter_value(text)
    return filters


def _parse_filter_value(text: str) -> Any:
    match text.split("-"):
        case ["on" | "true"]:
            return True
        case ["off" | "false"]:
            return False
        case [least, most] if least.isdecimal() and most.isdecimal():
            return (int(least), int(most))
        case _:
            return parse_value(text)


def _merge(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(table)
    for key, value in changes.items():
        mine = merged.get(key)
        if mine is not None and isinstance(value, dict | list) and type(mine) is not type(value):
            continue  # what the config has there is wrong, and checking will say so
        if isinstance(value, dict):
            merged[key] = _merge(mine or {}, value)
        elif isinstance(value, list):
            merged[key] = [*(mine or []), *value]
        elif value is not None:
            merged[key] = value
    return merged


def _with_paths_beside(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Takes paths as relative to the config file where that is where they are."""
    texts = {
        key: [_paths_beside(text, _PATH_KEYS, folder) for text in table[key]]
        for key in _TEXT_TABLES
        if isinstance(table.get(key), list)
    }
    tokenizer = {"tokenizer": _paths_beside(table["tokenizer"], ("reuse",), folder)} if "tokenizer" in table else {}
    return table | texts | tokenizer


def _paths_beside(table: Any, keys: Sequence[str], folder: Path) -> Any:
    if not isinstance(table, dict):
        return table
    return table | {key: _beside(table[key], folder) for key in keys if isinstance(table.get(key), str)}


def _beside(path: str, folder: Path) -> Path:
    return folder / path if not Path(path).exists() and (folder / path).exists() else Path(path)
