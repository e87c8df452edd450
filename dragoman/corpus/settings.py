"""Settings of `dragoman prepare`: the [prepare] table of a config file, changed by command-line options.

The text under a field is its documentation; docs/write_configuration.py writes docs/configuration.md from it.
"""

from collections.abc import Iterator, Sequence
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from dragoman.run.errors import UsageError
from dragoman.run.tables import (
    Count,
    CountOrZero,
    Fraction,
    NotNegative,
    Positive,
    SettingsTable,
    Switch,
    first_problem,
    parse_value,
    read_toml,
    unknown_key,
)

# "seeds" is the name of "moses" in dragoman 0.1.
Cleaning = Annotated[
    Literal["none", "moses", "standard", "strict"],
    BeforeValidator(lambda value: "moses" if value == "seeds" else value),
]
Format = Literal["plain", "tsv", "jsonl", "tmx", "parquet"]
SubwordSetting = Literal["auto", "none", "sentencepiece", "subword-nmt"]
Range = tuple[CountOrZero, Count]
# Part of a file name, so not a path.
CorpusName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
LANGUAGE_PAIR = r"^[A-Za-z]{2,3}(_[A-Za-z0-9]+)*-[A-Za-z]{2,3}(_[A-Za-z0-9]+)*$"
# Words with single spaces between them, so that decoding the subwords gives the same text.
Tag = Annotated[str, Field(pattern=r"^[^\s▁▅]+( [^\s▁▅]+)*$")]


class TextSettings(SettingsTable):
    """Parallel text: two plain files, or one file that holds both sides."""

    source: Path | None = None
    """Source text, one sentence per line."""
    target: Path | None = None
    """Translation of the source text, line by line."""
    file: Path | None = None
    """One file with both sides instead: TSV, JSON lines, TMX or Parquet."""
    format: Format | None = None
    """Format of `file`. Default: from its name."""
    columns: tuple[Count, Count] = (1, 2)
    """TSV: the columns of source and target, counted from 1."""
    pieces: SubwordSetting = "auto"
    """How the text was split into subwords (marked by `▁` or `@@`), to join them again; auto detects it."""
    tag: Tag | None = None
    """Text added before every source sentence, e.g. "<bt>" for back-translations or "<2de>" for a target language."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if (self.file is None) == (self.source is None and self.target is None):
            raise ValueError("parallel text needs either source and target, or file")
        if self.file is None and (self.source is None or self.target is None):
            raise ValueError("source and target belong together")
        return self

    @property
    def paths(self) -> tuple[Path, ...]:
        """One or two files."""
        return (self.file,) if self.file is not None else (self.source, self.target)  # type: ignore[return-value]


class CorpusSettings(TextSettings):
    """[[prepare.corpora]]: training text with a name and a weight."""

    name: CorpusName | None = None
    """Name in `data.weights` and `data.stages`. Default: the file name up to its first dot. Same name, same corpus."""
    weight: NotNegative = 1.0
    """How often each pair is used per epoch: 2 is twice, 0.5 is a random half that changes with each epoch."""

    @property
    def given_or_default_name(self) -> str:
        """Name that training uses for the corpus."""
        return self.name or default_corpus_name(self.paths[0])


def default_corpus_name(path: Path) -> str:
    """Returns the file name up to its first dot, with "_" for characters that a corpus name may not have."""
    stem = path.name.split(".")[0]
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in stem)
    return name if name[:1].isalnum() else f"corpus{name}"


class FilterSettings(SettingsTable):
    """[prepare.filters]: why a pair is dropped. Each filter may be false, true, or set to its threshold.

    Filters that are not set follow `prepare.cleaning`.
    """

    empty: Switch | None = None
    """A side has no text."""
    control_characters: Switch | None = None
    """A side has control characters, private-use characters, noncharacters, or U+FFFD from a failed conversion."""
    length_words: Range | Switch | None = None
    """A side has fewer or more words (text between white space) than [least, most]."""
    length_characters: Range | Switch | None = None
    """A side has fewer or more characters than [least, most]."""
    length_ratio: Positive | Switch | None = None
    """One side has more than this many times the words of the other; characters for scripts without spaces."""
    identical: Switch | None = None
    """Source and target are the same."""
    script: Fraction | Switch | None = None
    """Less than this share of a side's letters is in a script of its language. Needs the languages."""
    language: Count | Switch | None = None
    """A side of at least this many characters is clearly in another language. Needs the languages."""
    numbers: Switch | None = None
    """The two sides have different numbers."""
    duplicates: Switch | None = None
    """The same pair came before."""
    near_duplicates: Switch | None = None
    """The same pair came before, except for case, digits, punctuation and white space."""
    overlap: Switch | None = None
    """One side is a sentence of a given dev or test set. If off, such pairs are counted and kept."""


class TokenizerSettings(SettingsTable):
    """[prepare.tokenizer]: how text is split into subwords."""

    kind: Literal["bpe", "unigram"] = "bpe"
    """Kind of SentencePiece model."""
    vocab_size: Count | None = None
    """Number of subwords. Default: depends on the size of the text."""
    separate: Switch = False
    """One vocabulary per language instead of a joint one."""
    byte_fallback: Switch = False
    """Characters that are not in the vocabulary are written as bytes instead of as the unknown token."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1, strict=True)] = 1.0
    """Share of all characters that get a subword of their own. Below 1, use byte_fallback, or text is lost."""
    sample_lines: Count = 1_000_000
    """Lines to train the tokenizer on, sampled from the training text of both sides."""
    reuse: Path | None = None
    """A prepared folder or a model file whose vocabulary is used instead of training a new one."""


class PrepareSettings(SettingsTable):
    """[prepare]: how raw parallel text becomes a folder that training reads."""

    corpora: tuple[CorpusSettings, ...] = ()
    """[[prepare.corpora]] tables: training text."""
    dev: tuple[TextSettings, ...] = ()
    """[[prepare.dev]] tables: text to validate on during training. Default: held out of the training text."""
    test: tuple[TextSettings, ...] = ()
    """[[prepare.test]] tables: text to evaluate the trained model on. Default: held out of the training text."""
    languages: Annotated[str, Field(pattern=LANGUAGE_PAIR)] | None = None
    """Source and target language, e.g. "en-de". Without them, script and language are not checked."""
    cleaning: Cleaning = "standard"
    """Which filters are on: none, moses (1-80 words, ratio 9), standard, or strict (also numbers, near-duplicates)."""
    filters: FilterSettings = FilterSettings()
    """[prepare.filters]: changes to single filters."""
    normalise: Switch = True
    """Convert to Unicode NFC, and each run of white space to one space. Off: only strip white space at the ends."""
    tokenizer: TokenizerSettings = TokenizerSettings()
    """[prepare.tokenizer]: how text is split into subwords."""
    held_out: Count | None = None
    """Number of pairs held out for each of dev and test that is not given. Default: 2 %, at least 1, at most 1000."""
    seed: CountOrZero = 1
    """Random seed of the shuffle and of the held-out pairs."""
    skip_bad_lines: CountOrZero = 0
    """How many lines that cannot be read (not UTF-8, too long, malformed) may be skipped and listed."""
    max_expansion: Count = 200
    """How many times its size a compressed file may expand to (64 MiB are always allowed)."""

    @classmethod
    def of_files(
        cls,
        sources: Sequence[Path],
        targets: Sequence[Path],
        dev: tuple[Sequence[Path], Sequence[Path]] = ((), ()),
        test: tuple[Sequence[Path], Sequence[Path]] = ((), ()),
        **others: Any,
    ) -> Self:
        """Returns the settings for lists of plain files: each source file belongs to the target file at its place."""
        return cls(
            corpora=tuple(CorpusSettings(source=source, target=target) for source, target in pair_up(sources, targets)),
            dev=tuple(TextSettings(source=source, target=target) for source, target in pair_up(*dev)),
            test=tuple(TextSettings(source=source, target=target) for source, target in pair_up(*test)),
            **others,
        )


def pair_up(sources: Sequence[Path], targets: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Pairs source and target files in their order."""
    if len(sources) != len(targets):
        raise UsageError(
            f"There are {len(sources)} source files and {len(targets)} target files; "
            "give one target file for each source file, in the same order."
        )
    return zip(sources, targets, strict=True)


_TABLE = "prepare"
_TEXT_TABLES = ("corpora", "dev", "test")
_PATH_KEYS = ("source", "target", "file")


def load_prepare_settings(config: Path | None, changes: dict[str, Any]) -> tuple[PrepareSettings, Path | None]:
    """Returns the settings of a preparation, and the folder the config trains from, if it names one.

    Texts on the command line are added to those of the config; all other options replace what the config says.
    """
    values = read_toml(config) if config else {}
    table = values.get(_TABLE, {})
    if config and not isinstance(table, dict):
        raise UsageError(f"{config}: {_TABLE} must be a table, written [{_TABLE}].")
    if config:
        table = _find_files_beside(table, config.parent)
    try:
        settings = PrepareSettings.model_validate(_merge(table, changes))
    except ValidationError as error:
        where = f"{config}: " if config else ""
        raise UsageError(where + first_problem(error, PrepareSettings, _TABLE)) from None
    match values:
        case {"data": {"prepared": str(prepared)}}:
            return settings, Path(prepared)
    return settings, None


def with_weights(settings: PrepareSettings, options: list[str]) -> PrepareSettings:
    """Returns the settings with each `--weight name=number` applied."""
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
    """Parses `--filter name=value` options into a table; a value is on, off, a number, or a range such as 1-80."""
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
            continue  # the config has a wrong type here, which validation will report
        if isinstance(value, dict):
            merged[key] = _merge(mine or {}, value)
        elif isinstance(value, list):
            merged[key] = [*(mine or []), *value]
        elif value is not None:
            merged[key] = value
    return merged


def _find_files_beside(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Makes paths relative to the config file where the file is there and not in the current folder."""
    texts = {
        key: [_find_beside(text, _PATH_KEYS, folder) for text in table[key]]
        for key in _TEXT_TABLES
        if isinstance(table.get(key), list)
    }
    tokenizer = {"tokenizer": _find_beside(table["tokenizer"], ("reuse",), folder)} if "tokenizer" in table else {}
    return table | texts | tokenizer


def _find_beside(table: Any, keys: Sequence[str], folder: Path) -> Any:
    if not isinstance(table, dict):
        return table
    paths = {key: Path(table[key]) for key in keys if isinstance(table.get(key), str)}
    beside = {key: folder / path for key, path in paths.items() if not path.exists() and (folder / path).exists()}
    return table | paths | beside
