"""`[prepare]` of a config file, with what the command line changes in it."""

from collections.abc import Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dragoman.run.checking import first_problem, parse_value, read_toml, unknown_key
from dragoman.run.errors import UsageError
from dragoman.run.preparation import FilterSettings, PrepareSettings

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
